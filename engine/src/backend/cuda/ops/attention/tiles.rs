//! Attention of many tokens on tensor cores. Only used with `Precision::Fast`.

use kernels::{GgmlType, Precision};

use super::super::super::kernel::{ATTENTION_TILES, Kernel, Value};
use super::super::arguments::TensorArg;
use super::super::task::Task;
use super::super::unplanned::{Unplanned, size};
use super::super::visible::VisibleArg;
use super::params::Params;
use crate::graph::{Attention, Tensor};

/// Minimum number of tokens, in total and per page table, for the tile kernel. The rows of a tile are tokens
/// with the same table.
const MIN_TOKENS: usize = 32;
const MIN_TOKENS_OF_TABLE: usize = 16;

/// Cells per page, which are the columns of a tile.
const PAGE: usize = 64;

/// Size of a matrix fragment: 16 by 16 elements.
const STEP: usize = 16;

/// Maximum number of query heads per block.
const MAX_HEADS: usize = 16;

/// Maximum key size, and maximum key size for which queries stay in registers, which permits more rows per
/// block.
const MAX_KEY: usize = 256;
const SHORT_KEY: usize = 128;

/// Maximum number of values of a result that a block computes.
const MAX_VALUES: usize = 128;

/// Configuration of the tile kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tiles {
    k: Value,
    v: Value,
    dk: usize,
    dv: usize,
    /// Query heads per block, and blocks per KV head.
    heads: usize,
    blocks_of_group: usize,
    /// Number of parts that a result is divided into.
    parts: usize,
}

/// Returns the decoder type for keys or values that are read in parts of `n` elements.
fn decoder(t: &Tensor, arg: &TensorArg, n: usize) -> Option<Value> {
    match t.ty {
        GgmlType::F16 if arg.has_vectors(2, 16) => Some(Value::Word("f16x8")),
        GgmlType::BF16 if arg.has_vectors(2, 16) => Some(Value::Word("bf16x8")),
        ty if ty.is_quantized() && n.is_multiple_of(ty.block_size()) && t.has_dense_rows() => Some(Value::Type(ty)),
        // f32 caches require exact results.
        _ => None,
    }
}

impl Tiles {
    /// Returns the configuration for a node, or `None` if the tile kernel cannot be used.
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

    /// Returns the number of rows per block, 16 per warp.
    fn rows(&self) -> usize {
        if self.dk <= SHORT_KEY { 64 } else { 32 }
    }

    /// Returns the shared memory in bytes: keys and values of a page, and long queries in two parts, each
    /// with padding.
    fn shared(&self) -> usize {
        const PADDING: usize = 8;
        let (key, value) = (self.dk + PADDING, self.dv / self.parts + PADDING);
        let queries = if self.dk > SHORT_KEY { 2 * self.rows() * key } else { 0 };
        size_of::<u16>() * (PAGE * (key + value) + queries)
    }

    pub(super) fn plan(&self, task: &mut Task<'_>, p: &Attention, params: &Params) -> Result<(), Unplanned> {
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
    fn tiles_fit_in_shared_memory_of_small_gpus() {
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
