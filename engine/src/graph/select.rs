//! Parameters of block selection in sparse attention.

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
    /// Blocks start at the first position of the sequence. A block counts only if each of its positions has a visible
    /// cell. The score of a block is the score of its last cell (GLM 5 Next's and Qwen 4's pools).
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
