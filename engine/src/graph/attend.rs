//! Constructors of the attention op and of the ops that select the cells a token attends to.

use super::ops::Result;
use super::{Attention, AttentionOperands, Blocks, Graph, MAX_SRC, Op, TensorId, VisibleCells};

impl Graph {
    /// Appends an [`Op::Attention`] node with output f32 `[dv, n_head, T]`. `sinks` and `selects` are set
    /// according to the operands.
    pub fn attention(&mut self, params: Attention, operands: AttentionOperands<TensorId>) -> Result {
        let params = Attention {
            sinks: operands.sinks.is_some(),
            selects: operands.selection.is_some(),
            ..params
        };
        let mut src = [operands.q; MAX_SRC];
        let n = src
            .iter_mut()
            .zip(operands.list())
            .map(|(place, id)| *place = id)
            .count();
        self.op(Op::Attention(params), &src[..n])
    }

    /// Scores cells for tokens, from queries `q [d, n_head, T]`, keys `k [d, 1, n_kv]`, and optional head weights
    /// `[n_head, T]`; see [`Op::IndexScores`].
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
