//! Attention of few tokens on tensor cores.
//!
//! The kernel keeps queries and weights as two 16-bit numbers each and 16-bit caches as stored, so that results
//! have nearly the precision of f32. Quantized caches are rounded to f16, which only `Precision::Fast` permits.

use kernels::{GgmlType, Precision};

use super::super::super::kernel::{ATTENTION_PAGES, Kernel, Value};
use super::super::arguments::TensorArg;
use super::super::task::Task;
use crate::graph::{Attention, Tensor};

/// Size of a matrix fragment: 16 by 16 elements.
const STEP: usize = 16;

/// Maximum key size, and maximum key size of kernels with queries in registers.
const MAX_KEY: usize = 576;
const SHORT_KEY: usize = 128;

/// Maximum number of values of a result that a block computes.
const MAX_VALUES: usize = 256;

/// Maximum number of query heads per block, and number of heads per warp.
const MAX_HEADS: usize = 16;
const HEADS_OF_WARP: usize = 8;

/// Maximum number of elements of keys and values in a tile, and maximum number of cells.
const MAX_TILE: usize = 64 * 256;
const MAX_CELLS: usize = 64;

/// Maximum number of warps with different cells.
const MAX_WARPS: usize = 4;

/// Padding of a row in shared memory, in elements.
const PADDING: usize = 8;

/// Shared memory per block for tiles, in bytes, and maximum number of tiles. Several blocks share a
/// multiprocessor.
const STAGE_BYTES: usize = 64 << 10;
const MAX_STAGES: usize = 4;

/// Shared memory of the kernel that is allocated statically: the listed pages.
const STATIC_SHARED: usize = 128 * 12;

/// Configuration of the page kernel on tensor cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pages {
    k: Value,
    v: Value,
    dk: usize,
    dv: usize,
    /// Query heads per block, and blocks per KV head.
    pub(super) heads: usize,
    blocks_of_group: usize,
    /// Number of parts that a result is divided into.
    parts: usize,
}

/// Returns the decoder type for keys or values that are read in parts of `n` elements.
fn decoder(t: &Tensor, arg: &TensorArg, n: usize, precision: Precision) -> Option<Value> {
    match t.ty {
        GgmlType::F16 if arg.has_vectors(2, 16) => Some(Value::Word("f16x8")),
        GgmlType::BF16 if arg.has_vectors(2, 16) => Some(Value::Word("bf16x8")),
        ty if precision == Precision::Fast
            && ty.is_quantized()
            && n.is_multiple_of(ty.block_size())
            && t.has_dense_rows() =>
        {
            Some(Value::Type(ty))
        }
        _ => None,
    }
}

impl Pages {
    /// Returns the configuration for a node, or `None` if the kernel cannot be used.
    pub(super) fn of(task: &Task<'_>, p: &Attention, [q, k, v]: [&TensorArg; 3], max_shared: usize) -> Option<Pages> {
        let (at, precision) = (p.operands(), task.target.precision());
        if precision == Precision::Exact || p.selects || !q.has_vectors(size_of::<f32>(), 2 * size_of::<f32>()) {
            return None;
        }
        let (queries, keys, values) = (task.operand(at.q), task.operand(at.k), task.operand(at.v));
        let (dk, dv, group) = (keys.ne[0], values.ne[0], queries.ne[1] / keys.ne[1]);
        let parts = dv.div_ceil(MAX_VALUES);
        if !dk.is_multiple_of(STEP) || dk > MAX_KEY || dv == 0 || !dv.is_multiple_of(STEP * parts) {
            return None;
        }
        let heads = group.min(MAX_HEADS);
        let pages = Pages {
            k: decoder(keys, k, dk, precision)?,
            v: decoder(values, v, dv / parts, precision)?,
            dk,
            dv,
            heads,
            blocks_of_group: group.div_ceil(heads),
            parts,
        };
        (pages.shared() + STATIC_SHARED <= max_shared).then_some(pages)
    }

    /// Returns the number of blocks per KV head.
    pub(super) fn blocks_of_head(&self) -> usize {
        self.blocks_of_group * self.parts
    }

    /// Returns the number of cells per tile.
    fn tile(&self) -> usize {
        let fits = |&cells: &usize| cells * (self.dk + self.dv / self.parts) <= MAX_TILE;
        [MAX_CELLS, MAX_CELLS / 2].into_iter().find(fits).unwrap_or(STEP)
    }

    /// Returns the number of warps with different heads, and with different cells.
    fn warps(&self) -> (usize, usize) {
        let groups = self.heads.div_ceil(HEADS_OF_WARP);
        (groups, (MAX_WARPS / groups).min(self.tile() / STEP))
    }

    /// Returns the number of threads per block.
    pub(super) fn threads(&self) -> usize {
        let (groups, shares) = self.warps();
        32 * groups * shares
    }

    /// Returns the size of a tile in bytes.
    fn stage(&self) -> usize {
        size_of::<u16>() * self.tile() * (self.dk + self.dv / self.parts + 2 * PADDING)
    }

    /// Returns the number of tiles in shared memory.
    fn stages(&self) -> usize {
        (STAGE_BYTES / self.stage()).clamp(2, MAX_STAGES)
    }

    /// Returns the dynamic shared memory in bytes: tiles and long queries, or the warps' sums.
    pub(super) fn shared(&self) -> usize {
        let (n, (groups, shares)) = (self.dv / self.parts, self.warps());
        let queries = if self.dk > SHORT_KEY {
            groups * (self.dk / STEP) * 32 * size_of::<[u32; 4]>()
        } else {
            0
        };
        let sums = size_of::<f32>() * shares * self.heads * (n + n / 32 + 2);
        (self.stages() * self.stage() + queries).max(sums)
    }

    /// Returns the kernel, without the definitions for the node's operands.
    pub(super) fn kernel(&self) -> Kernel {
        Kernel::new(&ATTENTION_PAGES, "attention_pages")
            .with("K", self.k)
            .with("V", self.v)
            .with_int("DK", self.dk as i64)
            .with_int("DV", self.dv as i64)
            .with_int("HEADS", self.heads as i64)
            .with_int("TILE", self.tile() as i64)
            .with_int("STAGES", self.stages() as i64)
            .with_int("PARTS", self.parts as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(dk: usize, dv: usize, heads: usize) -> Pages {
        Pages {
            k: Value::Word("f16x8"),
            v: Value::Word("f16x8"),
            dk,
            dv,
            heads,
            blocks_of_group: 1,
            parts: dv.div_ceil(MAX_VALUES),
        }
    }

    #[test]
    fn tiles_fit_in_shared_memory_of_small_gpus() {
        for (dk, dv) in [(64, 64), (128, 128), (192, 128), (256, 256), (512, 512), (576, 512)] {
            for heads in [1, 8, 16] {
                let pages = pages(dk, dv, heads);
                let shared = pages.shared() + STATIC_SHARED;
                assert!(shared <= 99 << 10, "{pages:?}: {shared} bytes");
            }
        }
    }

    #[test]
    fn long_keys_have_small_tiles() {
        let shape = |dk, dv, heads| {
            let pages = pages(dk, dv, heads);
            (pages.tile(), pages.stages(), pages.threads())
        };
        assert_eq!(shape(128, 128, 4), (64, 2, 128));
        assert_eq!(shape(64, 64, 16), (64, 3, 128));
        assert_eq!(shape(256, 256, 2), (32, 2, 64));
        assert_eq!(shape(576, 512, 16), (16, 2, 64));
    }
}
