//! Sizes of attention: operands, blocks, units of work, and parts of page tables.

use std::ops::Range;

use kernels::FAST_COLUMNS;
use kernels::attention::{self as kernel, FEW_QUERIES};

use crate::graph::{AttentionOperands, PAGE, Tensor};

/// Maximum number of queries (tokens times heads) per unit, unless more heads share a KV head.
pub(super) const QUERIES: usize = 48;

/// Queries per block for tile kernels: a whole number of tiles, also for three query heads per KV head.
const BLOCK_QUERIES: usize = 96;

/// Maximum number of blocks per unit. Larger units amortize packing keys and values for the tile kernel.
const MAX_BLOCKS: usize = 4;

/// Maximum number of tokens per unit.
pub(super) const MAX_UNIT: usize = MAX_BLOCKS * BLOCK_QUERIES;

/// Minimum number of units per thread when units have several blocks.
const UNITS_FOR_BLOCKS: usize = 6;

/// Minimum number of pages per part.
pub(super) const MIN_PART: usize = 2;

/// Minimum number of pages per part for tile kernels, which process a part quickly. Parts are multiples of this
/// number.
const MIN_TILE_PART: usize = MOST_PAGES;

/// Maximum number of parts per unit.
pub(super) const MAX_PARTS: usize = 32;

/// Maximum number of pages to pack together.
pub(super) const MOST_PAGES: usize = 8;

/// Maximum size in bytes of keys to pack together, except that one page is always allowed. Keys, values,
/// scores, and weights then fit in the L2 cache.
const KEY_BYTES: usize = 512 << 10;

/// Returns the number of pages to pack together, for keys of `dk` elements.
pub(super) fn pages_together(dk: usize) -> usize {
    (KEY_BYTES / kernel::tiles::bytes_of_keys(dk, 1)).clamp(1, MOST_PAGES)
}

const _: () = assert!(PAGE == kernel::KEYS);

/// Shapes of the attention operands.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) dk: usize,
    pub(super) dv: usize,
    pub(super) n_head: usize,
    pub(super) n_head_kv: usize,
    pub(super) n_tokens: usize,
    pub(super) n_kv: usize,
    /// True if tile kernels may be used; see [`Operands::by_tiles`](super::operands::Operands::by_tiles).
    pub(super) by_tiles: bool,
    /// Tokens per block, at least 1.
    pub(super) block: usize,
    /// Maximum number of blocks per unit.
    pub(super) n_blocks: usize,
}

impl Sizes {
    /// Derives the sizes from the operands.
    ///
    /// Tile kernels are used for batches of [`FAST_COLUMNS`] or more tokens if `allow_reassociation` permits
    /// lower precision, as for matmuls.
    pub(super) fn new(at: &AttentionOperands<&Tensor>, allow_reassociation: bool, nth: usize) -> Sizes {
        let by_tiles = allow_reassociation && at.q.ne[2] >= FAST_COLUMNS && kernel::tiles::has_tiles();
        let (n_head, n_head_kv, n_tokens) = (at.q.ne[1], at.k.ne[1], at.q.ne[2]);
        let queries = if by_tiles { BLOCK_QUERIES } else { QUERIES };
        let block = (queries / (n_head / n_head_kv)).max(1);
        // A lower bound: tokens with separate page tables only add units.
        let most = n_tokens.div_ceil(block) * n_head_kv / (UNITS_FOR_BLOCKS * nth);
        Sizes {
            dk: at.q.ne[0],
            dv: at.v.ne[0],
            n_head,
            n_head_kv,
            n_tokens,
            n_kv: at.k.ne[2],
            by_tiles,
            block,
            n_blocks: if by_tiles { most.clamp(1, MAX_BLOCKS) } else { 1 },
        }
    }

    /// Returns the number of query heads per KV head.
    pub(super) fn group(&self) -> usize {
        self.n_head / self.n_head_kv
    }

    /// Returns the maximum number of tokens per unit.
    pub(super) fn tokens(&self) -> usize {
        self.block * self.n_blocks
    }

    /// Returns the maximum number of queries per unit, for any number of tokens.
    pub(super) fn max_queries(&self) -> usize {
        self.tokens() * self.group()
    }

    /// Returns the maximum number of queries per block.
    pub(super) fn together(&self) -> usize {
        self.block * self.group()
    }

    /// Returns the size in floats of the state of `n` queries: maximum score, sum, and weighted values.
    pub(super) fn state_of(&self, n: usize) -> usize {
        n * (2 + self.dv)
    }

    pub(super) fn kernel_scratch(&self) -> usize {
        let floats = |d| kernel::scratch(d).max(kernel::tiles::scratch(d));
        floats(self.dk).max(floats(self.dv))
    }

    /// Returns the maximum number of queries of a unit that covers all heads.
    pub(super) fn queries_of_all(&self) -> usize {
        (self.n_tokens * self.group()).min(FEW_QUERIES) * self.n_head_kv
    }

    /// Returns the size in floats of the largest state of a unit.
    pub(super) fn state(&self) -> usize {
        self.state_of(self.max_queries().max(self.queries_of_all()))
    }
}

/// Division of a page table into parts.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub(super) n: usize,
    /// Page table entries per part.
    pub(super) pages: usize,
}

impl Parts {
    pub(super) fn new(n_pages: usize, by_tiles: bool) -> Parts {
        let least = if by_tiles { MIN_TILE_PART } else { MIN_PART };
        let mut pages = least.max(n_pages.div_ceil(MAX_PARTS));
        if by_tiles {
            pages = pages.next_multiple_of(MIN_TILE_PART);
        }
        Parts {
            n: n_pages.div_ceil(pages),
            pages,
        }
    }
}

/// Unit of work: several tokens with one page table, and one KV head or all KV heads.
#[derive(Clone, Copy)]
pub(super) struct AttentionUnit {
    /// Index of the unit's first KV head.
    pub(super) head: usize,
    pub(super) heads: usize,
    pub(super) first: usize,
    pub(super) end: usize,
}

impl AttentionUnit {
    pub(super) fn tokens(&self) -> Range<usize> {
        self.first..self.end
    }

    /// Returns the number of queries per KV head, given the number of query heads per KV head.
    pub(super) fn queries_of_head(&self, group: usize) -> usize {
        self.tokens().len() * group
    }
}
