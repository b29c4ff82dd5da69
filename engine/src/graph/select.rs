//! Sparse attention: which cells a token attends to. Parameters and op functions of the selection.

use super::ops::Result;
use super::{Graph, Op, TensorId};

/// Parameters of [`Op::SelectBlocks`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// Positions of a block. Not 0.
    pub size: usize,
    /// Blocks to select (top-k).
    pub k: usize,
    /// How blocks are formed and scored.
    pub rule: BlockRule,
}

/// How blocks are formed and scored. Only cells visible to the token count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockRule {
    /// Blocks start at multiples of their size from position 0; a block's score is the maximum over its cells (MiniMax M3's sparse attention).
    Best {
        /// Local blocks: this many last blocks, up to the token's own, are always selected first.
        local: usize,
    },
    /// Blocks are counted from the first position of the sequence; only those count all of whose positions have a cell that the token sees,
    /// and a block's score is that of its last cell (GLM 5 Next's and Qwen 4's pools).
    Whole {
        /// Also selects the cells of the token's own block while it is incomplete.
        tail: bool,
    },
}

impl Blocks {
    /// Upper bound of selected cells, out of `n_kv`, if each position has one cell.
    pub fn n_cells(&self, n_kv: usize) -> usize {
        let rest = match self.rule {
            BlockRule::Whole { tail: true } => self.size.saturating_sub(1),
            _ => 0,
        };
        self.k.saturating_mul(self.size).saturating_add(rest).min(n_kv)
    }
}

impl Graph {
    /// Scores of cells for tokens; see [`Op::IndexScores`] for the operands, of which weights may be missing.
    pub fn index_scores(&mut self, src: &[TensorId]) -> Result {
        self.op(Op::IndexScores, src)
    }

    /// The cells of the selected blocks; see [`Op::SelectBlocks`] for the operands: i32 `[n, T]` or `[n, n_head, T]`, as the scores.
    pub fn select_blocks(&mut self, blocks: Blocks, src: [TensorId; 5]) -> Result {
        self.op(Op::SelectBlocks(blocks), &src)
    }

    /// The cells of the `n` last positions up to each token's; see [`Op::LastCells`] for the operands: i32 `[n, T]`.
    pub fn last_cells(&mut self, n: usize, src: [TensorId; 4]) -> Result {
        self.op(Op::LastCells { n }, &src)
    }

    /// Positions (i32 `[t]`) minus `back`, repeated for each axis: i32 `[t, n_axes]`.
    pub fn earlier_positions(&mut self, positions: TensorId, back: usize, n_axes: usize) -> Result {
        self.op(Op::EarlierPositions { back, n_axes }, &[positions])
    }
}
