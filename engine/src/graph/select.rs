//! Sparse attention: which cells a token attends to. Parameters and op functions of the selection.

use kernels::GgmlType;

use super::ops::{Result, mismatch};
use super::{Graph, Name, Op, Tensor, TensorId};

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
        let ne = |i: usize| self.tensor(src[i]).ne;
        let ([d, n_head, n_tokens, _], n_kv) = (ne(0), ne(1)[2]);
        let (cells, tokens) = ([n_kv, 1, 1, 1], [n_tokens, 1, 1, 1]);
        let expected = [
            [d, n_head, n_tokens, 1],
            [d, 1, n_kv, 1],
            cells,
            cells,
            tokens,
            tokens,
            [n_head, n_tokens, 1, 1],
        ];
        if !matches!(src.len(), 6 | 7) || !(0..src.len()).all(|i| ne(i) == expected[i]) {
            let found: Vec<_> = (0..src.len()).map(ne).collect();
            return Err(mismatch("index_scores", format!("{expected:?}"), format!("{found:?}")));
        }
        let ne = match src.len() {
            7 => [n_kv, n_tokens, 1, 1],
            _ => [n_kv, n_head, n_tokens, 1],
        };
        Ok(self.node(Op::IndexScores, ne, src))
    }

    /// The cells of the selected blocks; see [`Op::SelectBlocks`] for the operands: i32 `[n, T]` or `[n, n_head, T]`, as the scores.
    pub fn select_blocks(&mut self, blocks: Blocks, src: [TensorId; 5]) -> Result {
        let [scores, cells @ .., pos, seq] = src.map(|s| self.tensor(s).ne);
        let [n_kv, a, b, one] = scores;
        let tokens = [pos[0], 1, 1, 1];
        let fits = cells == [[n_kv, 1, 1, 1]; 2] && [pos, seq] == [tokens; 2] && one == 1;
        if !fits || !([a, b] == [pos[0], 1] || b == pos[0]) || blocks.size == 0 || blocks.k == 0 {
            let expected = "scores [n_kv, T] or [n_kv, n_head, T] of cells and tokens, and blocks of some size";
            let found = format!("{scores:?}, {cells:?}, {pos:?}, {seq:?} and {blocks:?}");
            return Err(mismatch("select_blocks", expected, found));
        }
        Ok(self.ints(Op::SelectBlocks(blocks), [blocks.n_cells(n_kv), a, b, 1], &src))
    }

    /// The cells of the `n` last positions up to each token's; see [`Op::LastCells`] for the operands: i32 `[n, T]`.
    pub fn last_cells(&mut self, n: usize, src: [TensorId; 4]) -> Result {
        let ne @ [cells, _, tokens, _] = src.map(|s| self.tensor(s).ne);
        if n == 0 || ne != [cells, cells, tokens, tokens] || [&cells[1..], &tokens[1..]] != [[1; 3]; 2] {
            let expected = "positions and sets of cells, positions and sequences of tokens";
            return Err(mismatch("last_cells", expected, format!("{ne:?} for the last {n}")));
        }
        Ok(self.ints(Op::LastCells { n }, [n, tokens[0], 1, 1], &src))
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
