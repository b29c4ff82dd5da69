//! Attention of many tokens by tiles on tensor cores: for `fast` alone.

use kernels::{GgmlType, Precision};

use super::super::super::kernel::{ATTENTION_TILES, Kernel, Value};
use super::super::arguments::{TensorArg, VisibleArg};
use super::super::{Refusal, Task, size};
use super::Params;
use crate::graph::{Attention, Tensor};

/// Tokens, in all and for each page table, from which on they are computed by tiles: rows of a tile are tokens of one table.
const MIN_TOKENS: usize = 32;
const MIN_TOKENS_OF_TABLE: usize = 16;

/// Cells of a page, which are the columns of a tile.
const PAGE: usize = 64;

/// What matrices are made of: 16 by 16 numbers.
const STEP: usize = 16;

/// Most query heads of a block.
const MAX_HEADS: usize = 16;

/// The longest keys, and those up to which queries stay in registers; then a block has more rows.
const MAX_KEY: usize = 256;
const SHORT_KEY: usize = 128;

/// Most values that a block computes of each result.
const MAX_VALUES: usize = 128;

/// How a node is computed by tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tiles {
    k: Value,
    v: Value,
    dk: usize,
    dv: usize,
    /// Query heads of a block, and blocks that have a key head's.
    heads: usize,
    blocks_of_group: usize,
    /// Parts that results are computed in.
    parts: usize,
}

/// The type by which keys or values are read in parts of `n`; floats of 16 bits as they lie.
fn decoder(t: &Tensor, arg: &TensorArg, n: usize) -> Option<Value> {
    match t.ty {
        GgmlType::F16 => arg.has_vectors(2, 16).then_some(Value::Word("f16x8")),
        GgmlType::BF16 => arg.has_vectors(2, 16).then_some(Value::Word("bf16x8")),
        // Floats of 32 bits mean to be exact.
        ty => (ty.is_quantized() && n.is_multiple_of(ty.block_size()) && t.has_dense_rows()).then_some(Value::Type(ty)),
    }
}

impl Tiles {
    /// How to compute a node so, if it may be.
    pub(super) fn of(task: &Task<'_>, p: &Attention, [k, v]: [&TensorArg; 2], visible: &VisibleArg) -> Option<Tiles> {
        let at = p.operands();
        let [_, n_head, n_tokens, _] = task.operand(at.q).ne;
        let many = n_tokens >= MIN_TOKENS.max(MIN_TOKENS_OF_TABLE * visible.n_tables());
        if task.target.precision() != Precision::Fast || !many || p.selects {
            return None;
        }
        let (keys, values) = (task.operand(at.k), task.operand(at.v));
        let (dk, dv, group) = (keys.ne[0], values.ne[0], n_head / keys.ne[1]);
        let parts = dv.div_ceil(MAX_VALUES);
        if !dk.is_multiple_of(STEP) || dk > MAX_KEY || dv == 0 || !dv.is_multiple_of(STEP * parts) {
            return None;
        }
        let heads = group.min(MAX_HEADS);
        Some(Tiles {
            k: decoder(keys, k, dk)?,
            v: decoder(values, v, dv / parts)?,
            dk,
            dv,
            heads,
            blocks_of_group: group.div_ceil(heads),
            parts,
        })
    }

    /// Rows of a block: a warp has 16.
    fn rows(&self) -> usize {
        if self.dk <= SHORT_KEY { 64 } else { 32 }
    }

    /// Bytes of shared memory: keys and values of a page, and long queries in two parts, each with padding.
    fn shared(&self) -> usize {
        const PADDING: usize = 8;
        let (key, value) = (self.dk + PADDING, self.dv / self.parts + PADDING);
        let queries = if self.dk > SHORT_KEY { 2 * self.rows() * key } else { 0 };
        size_of::<u16>() * (PAGE * (key + value) + queries)
    }

    pub(super) fn plan(&self, task: &mut Task<'_>, p: &Attention, params: &Params) -> Result<(), Refusal> {
        let at = p.operands();
        let kernel = Kernel::new(&ATTENTION_TILES, "attention_tiles")
            .with("K", self.k)
            .with("V", self.v)
            .with_int("DK", self.dk as i64)
            .with_int("DV", self.dv as i64)
            .with_int("HEADS", self.heads as i64)
            .with_int("PARTS", self.parts as i64)
            .with_int("BIASES", at.biases.is_some().into())
            .with_int("SINKS", p.sinks.into());
        let [_, _, n_tokens, _] = task.operand(at.q).ne;
        let n_blocks = task.operand(at.k).ne[1] * self.blocks_of_group;
        let n_tiles = n_tokens.div_ceil(self.rows() / self.heads);
        let grid = [size(n_tiles)?, size(n_blocks)?, size(self.parts)?];
        task.launch_with(kernel, grid, 2 * size(self.rows())?, size(self.shared())?, params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fit_in_the_shared_memory_of_small_cards() {
        for (dk, dv) in [(64, 64), (128, 128), (192, 128), (256, 256), (256, 512)] {
            let tiles = Tiles {
                k: Value::Word("f16x8"),
                v: Value::Word("f16x8"),
                dk,
                dv,
                heads: 1,
                blocks_of_group: 1,
                parts: dv.div_ceil(MAX_VALUES),
            };
            assert!(tiles.shared() + 1024 <= 99 << 10, "{tiles:?}: {}", tiles.shared());
        }
    }
}
