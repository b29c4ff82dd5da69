//! Sparse attention: which cells a token attends to. Parameters and op functions of the selection.

use kernels::GgmlType;

use super::ops::{Result, mismatch};
use super::{Graph, Name, Op, Tensor, TensorId, VisibleCells};

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
        let ne = |id: TensorId| self.tensor(id).ne;
        let ([d, n_head, n_tokens, _], n_kv) = (ne(q), ne(k)[2]);
        let fits = ne(q) == [d, n_head, n_tokens, 1]
            && ne(k) == [d, 1, n_kv, 1]
            && self.describes(visible, n_kv, n_tokens)
            && weights.is_none_or(|w| ne(w) == [n_head, n_tokens, 1, 1]);
        if !fits {
            let expected = "q [d, n_head, t], keys [d, 1, n_kv], page tables, weights [n_head, t]";
            let found = format!("{:?}, {:?}, {:?}, {:?}", ne(q), ne(k), visible.map(ne), weights.map(ne));
            return Err(mismatch("index_scores", expected, found));
        }
        let ne = match weights {
            Some(_) => [n_kv, n_tokens, 1, 1],
            None => [n_kv, n_head, n_tokens, 1],
        };
        let mut src = [q; 3 + VisibleCells::<TensorId>::N];
        src[1] = k;
        src[2..8].copy_from_slice(&visible.list());
        src[8] = weights.unwrap_or(q);
        let n = src.len() - usize::from(weights.is_none());
        Ok(self.node(Op::IndexScores, ne, &src[..n]))
    }

    /// The cells of the selected blocks; see [`Op::SelectBlocks`] for the operands: i32 `[n, T]` or `[n, n_head, T]`, as the scores.
    pub fn select_blocks(&mut self, blocks: Blocks, scores: TensorId, visible: VisibleCells<TensorId>) -> Result {
        let [n_kv, a, b, one] = self.tensor(scores).ne;
        let n_tokens = self.tensor(visible.pos).ne[0];
        let fits = self.describes(visible, n_kv, n_tokens) && one == 1;
        if !fits || !([a, b] == [n_tokens, 1] || b == n_tokens) || blocks.size == 0 || blocks.k == 0 {
            let expected = "scores [n_kv, T] or [n_kv, n_head, T] of cells and tokens, and blocks of some size";
            let found = format!("{:?}, {n_tokens} tokens and {blocks:?}", [n_kv, a, b, one]);
            return Err(mismatch("select_blocks", expected, found));
        }
        let mut src = [scores; 1 + VisibleCells::<TensorId>::N];
        src[1..].copy_from_slice(&visible.list());
        Ok(self.ints(Op::SelectBlocks(blocks), [blocks.n_cells(n_kv), a, b, 1], &src))
    }

    /// The cells of the `n` last positions up to each token's, i32 `[n, T]`, see [`Op::LastCells`].
    pub fn last_cells(&mut self, n: usize, visible: VisibleCells<TensorId>) -> Result {
        let [n_kv, n_tokens] = [visible.cell_pos, visible.pos].map(|id| self.tensor(id).ne[0]);
        if n == 0 || !self.describes(visible, n_kv, n_tokens) {
            let found = format!("{:?} for the last {n}", visible.map(|id| self.tensor(id).ne));
            return Err(mismatch("last_cells", "page tables of tokens over cells", found));
        }
        Ok(self.ints(Op::LastCells { n }, [n, n_tokens, 1, 1], &visible.list()))
    }

    /// Positions (i32 `[t]`) minus `back`, repeated for each axis: i32 `[t, n_axes]`.
    pub fn earlier_positions(&mut self, positions: TensorId, back: usize, n_axes: usize) -> Result {
        let p = self.tensor(positions);
        if p.ty != GgmlType::I32 || p.ne[1..] != [1; 3] || i32::try_from(back).is_err() || n_axes == 0 {
            let found = format!("{} {:?}, {back} earlier along {n_axes} axes", p.ty, p.ne);
            return Err(mismatch("earlier_positions", "i32 positions [t]", found));
        }
        let ne = [p.ne[0], n_axes, 1, 1];
        Ok(self.ints(Op::EarlierPositions { back, n_axes }, ne, &[positions]))
    }

    fn ints(&mut self, op: Op, ne: [usize; 4], src: &[TensorId]) -> TensorId {
        self.link(Tensor::new(GgmlType::I32, ne, Name::default()), op, src)
    }
}
