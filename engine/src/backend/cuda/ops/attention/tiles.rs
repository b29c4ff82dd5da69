//! Attention of many tokens on tensor cores. Only used with `Precision::Fast` and `Fastest`.

use kernels::GgmlType;

use super::super::super::gpu::Gpu;
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

/// Maximum key size, and maximum size of keys that are loaded at once. Longer keys are loaded in parts.
const MAX_KEY: usize = 576;
const MAX_WHOLE_KEY: usize = 256;
const MAX_KEY_PART: usize = 144;

/// Maximum size of keys whose queries stay in registers. Queries for bf16 keys take two numbers per element, and other
/// queries one.
const SHORT_KEY: usize = 192;
const SHORT_BF16_KEY: usize = 128;

/// Maximum number of values of a result that a block computes.
const MAX_VALUES: usize = 128;

/// Static shared memory of the kernel, at most.
const STATIC_SHARED: usize = 2 << 10;

/// Decoder of bf16 values.
const BFLOATS: &str = "bf16x8";

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
    /// Number of parts that a result is divided into, and number of parts of a key.
    parts: usize,
    key_parts: usize,
}

/// Returns the decoder type for keys or values that are read in parts of `n` elements.
fn decoder(t: &Tensor, arg: &TensorArg, n: usize, gpu: Gpu) -> Option<Value> {
    match t.ty {
        GgmlType::F16 if arg.has_vectors(2, 16) => Some(Value::Word("f16x8")),
        GgmlType::BF16 if gpu.has_bfloats && arg.has_vectors(2, 16) => Some(Value::Word(BFLOATS)),
        ty if ty.is_quantized() && n.is_multiple_of(ty.block_size()) && t.has_dense_rows() => Some(Value::Type(ty)),
        // f32 caches require exact results.
        _ => None,
    }
}

/// Returns the number of parts of a key of `n` elements, which are loaded one after the other. Queries for long bf16
/// keys do not fit in shared memory.
fn key_parts(n: usize, ty: GgmlType) -> Option<usize> {
    if n <= MAX_WHOLE_KEY {
        return Some(1);
    }
    if ty == GgmlType::BF16 {
        return None;
    }
    let divides = |parts: &usize| n.is_multiple_of(parts * STEP.max(ty.block_size()));
    (n.div_ceil(MAX_KEY_PART)..=n / STEP).find(divides)
}

impl Tiles {
    /// Returns the configuration for a node, or `None` if the tile kernel cannot be used.
    pub(super) fn of(task: &Task<'_>, p: &Attention, [k, v]: [&TensorArg; 2], visible: &VisibleArg) -> Option<Tiles> {
        let at = p.operands();
        let [_, n_head, n_tokens, _] = task.operand(at.q).ne;
        let many = n_tokens >= MIN_TOKENS.max(MIN_TOKENS_OF_TABLE * visible.n_tables());
        if !task.target.precision().is_fast() || !many || p.selects {
            return None;
        }
        let (keys, values) = (task.operand(at.k), task.operand(at.v));
        let (dk, dv, group) = (keys.ne[0], values.ne[0], n_head / keys.ne[1]);
        let parts = dv.div_ceil(MAX_VALUES);
        if !dk.is_multiple_of(STEP) || dk > MAX_KEY || dv == 0 || !dv.is_multiple_of(STEP * parts) {
            return None;
        }
        let key_parts = key_parts(dk, keys.ty)?;
        let heads = group.min(MAX_HEADS);
        let gpu = task.target.gpu();
        let tiles = Tiles {
            k: decoder(keys, k, dk / key_parts, gpu)?,
            v: decoder(values, v, dv / parts, gpu)?,
            dk,
            dv,
            heads,
            blocks_of_group: group.div_ceil(heads),
            parts,
            key_parts,
        };
        (tiles.shared() + STATIC_SHARED <= gpu.shared_bytes as usize).then_some(tiles)
    }

    fn splits_queries(&self) -> bool {
        self.k == Value::Word(BFLOATS)
    }

    fn keeps_queries(&self) -> bool {
        self.dk
            <= if self.splits_queries() {
                SHORT_BF16_KEY
            } else {
                SHORT_KEY
            }
    }

    /// Returns the number of rows per block, 16 per warp.
    fn rows(&self) -> usize {
        let is_short = !self.splits_queries() && self.dk <= MAX_WHOLE_KEY;
        if self.keeps_queries() || is_short { 64 } else { 32 }
    }

    /// Returns the shared memory in bytes: keys and values of a page, and long queries in two parts, each
    /// with padding.
    fn shared(&self) -> usize {
        const PADDING: usize = 8;
        let (query, key) = (self.dk + PADDING, self.dk / self.key_parts + PADDING);
        let value = self.dv / self.parts + PADDING;
        let queries = match (self.keeps_queries(), self.splits_queries()) {
            (true, _) => 0,
            (false, is_split) => (1 + usize::from(is_split)) * self.rows() * query,
        };
        size_of::<u16>() * (PAGE * (self.key_parts.min(2) * key + value) + queries)
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
            .with_int("KEY_PARTS", self.key_parts as i64)
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
        let types = [
            (GgmlType::F16, "f16x8"),
            (GgmlType::BF16, BFLOATS),
            (GgmlType::Q8_0, "q8_0"),
        ];
        let sizes = [
            (64, 64),
            (128, 128),
            (192, 128),
            (256, 256),
            (256, 512),
            (320, 256),
            (512, 512),
            (MAX_KEY, 512),
        ];
        for ((dk, dv), (ty, k)) in sizes.into_iter().flat_map(|size| types.map(|k| (size, k))) {
            let Some(key_parts) = key_parts(dk, ty) else {
                assert!(dk > MAX_WHOLE_KEY && ty == GgmlType::BF16, "{dk}, {ty}");
                continue;
            };
            let tiles = Tiles {
                k: Value::Word(k),
                v: Value::Word("f16x8"),
                dk,
                dv,
                heads: 1,
                blocks_of_group: 1,
                parts: dv.div_ceil(MAX_VALUES),
                key_parts,
            };
            assert!(
                tiles.shared() + STATIC_SHARED <= 99 << 10,
                "{tiles:?}: {}",
                tiles.shared()
            );
        }
    }
}
