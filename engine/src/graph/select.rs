//! Sparse attention: which cells a token attends to. Parameters and op functions of the selection.

use super::ops::Result;
use super::{Graph, Op, TensorId, VisibleCells};

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
    /// Scores of cells for tokens by queries `q [d, n_head, T]`, keys `k [d, 1, n_kv]` and maybe head weights `[n_head, T]`, see
    /// [`Op::IndexScores`].
    pub fn index_scores(
        &mut self,
        q: TensorId,
        k: TensorId,
        visible: VisibleCells<TensorId>,
        weights: Option<TensorId>,
    ) -> Result {
        let mut src = [q; 3 + VisibleCells::<TensorId>::N];
        src[1] = k;
        src[2..8].copy_from_slice(&visible.list());
        src[8] = weights.unwrap_or(q);
        let n = src.len() - usize::from(weights.is_none());
        self.op(Op::IndexScores, &src[..n])
    }

    /// The cells of the selected blocks; see [`Op::SelectBlocks`] for the operands: i32 `[n, T]` or `[n, n_head, T]`, as the scores.
    pub fn select_blocks(&mut self, blocks: Blocks, scores: TensorId, visible: VisibleCells<TensorId>) -> Result {
        let mut src = [scores; 1 + VisibleCells::<TensorId>::N];
        src[1..].copy_from_slice(&visible.list());
        self.op(Op::SelectBlocks(blocks), &src)
    }

    /// The cells of the `n` last positions up to each token's, i32 `[n, T]`, see [`Op::LastCells`].
    pub fn last_cells(&mut self, n: usize, visible: VisibleCells<TensorId>) -> Result {
        self.op(Op::LastCells { n }, &visible.list())
    }

    /// Positions (i32 `[t]`) minus `back`, repeated for each axis: i32 `[t, n_axes]`.
    pub fn earlier_positions(&mut self, positions: TensorId, back: usize, n_axes: usize) -> Result {
        self.op(Op::EarlierPositions { back, n_axes }, &[positions])
    }
}
