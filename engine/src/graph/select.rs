//! Sparse attention: parameters and op functions for selecting the cells that a token attends to.

use super::ops::Result;
use super::{Graph, Op, TensorId, VisibleCells};

/// Parameters of [`Op::SelectBlocks`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// Number of positions per block; nonzero.
    pub size: usize,
    /// Number of blocks to select (top-k).
    pub k: usize,
    /// Rule for forming and scoring blocks.
    pub rule: BlockRule,
}

/// Rule for forming and scoring blocks. Only cells visible to the token count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockRule {
    /// Blocks start at multiples of their size from position 0; the score of a block is the maximum over its
    /// cells (MiniMax M3's sparse attention).
    Best {
        /// Number of local blocks, up to the token's own, that are always selected first.
        local: usize,
    },
    /// Blocks start at the first position of the sequence. A block counts only if each of its positions has a
    /// visible cell; its score is that of its last cell (GLM 5 Next's and Qwen 4's pools).
    Whole {
        /// Also selects the cells of the token's own block while that is incomplete.
        tail: bool,
    },
}

impl Blocks {
    /// Returns an upper bound of the number of selected cells out of `n_kv`, provided that each position has
    /// one cell.
    pub fn n_cells(&self, n_kv: usize) -> usize {
        let rest = match self.rule {
            BlockRule::Whole { tail: true } => self.size.saturating_sub(1),
            _ => 0,
        };
        self.k.saturating_mul(self.size).saturating_add(rest).min(n_kv)
    }
}

impl Graph {
    /// Scores cells for tokens, from queries `q [d, n_head, T]`, keys `k [d, 1, n_kv]` and optional head
    /// weights `[n_head, T]`; see [`Op::IndexScores`].
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

    /// Selects cells by blocks: i32 `[n, T]` or `[n, n_head, T]`, depending on the scores; see
    /// [`Op::SelectBlocks`].
    pub fn select_blocks(&mut self, blocks: Blocks, scores: TensorId, visible: VisibleCells<TensorId>) -> Result {
        let mut src = [scores; 1 + VisibleCells::<TensorId>::N];
        src[1..].copy_from_slice(&visible.list());
        self.op(Op::SelectBlocks(blocks), &src)
    }

    /// Returns the cells of the `n` most recent positions up to each token's own, i32 `[n, T]`; see
    /// [`Op::RecentCells`].
    pub fn recent_cells(&mut self, n: usize, visible: VisibleCells<TensorId>) -> Result {
        self.op(Op::RecentCells { n }, &visible.list())
    }

    /// Subtracts `back` from positions (i32 `[t]`) and repeats them for each axis: i32 `[t, n_axes]`.
    pub fn shift_positions(&mut self, positions: TensorId, back: usize, n_axes: usize) -> Result {
        self.op(Op::ShiftPositions { back, n_axes }, &[positions])
    }
}
