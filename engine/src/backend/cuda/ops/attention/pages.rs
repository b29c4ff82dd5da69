//! Attention of few tokens on tensor cores.
//!
//! The kernel keeps queries and weights as two 16-bit numbers each and 16-bit caches as stored, so that results
//! have nearly the precision of f32. Quantized caches are rounded to f16, which only `Precision::Fast` permits. Packed
//! rows stay quantized in shared memory, so that they can be copied asynchronously.

use kernels::{GgmlType, Precision};

use super::super::super::gpu::Gpu;
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

/// Maximum size of the keys and values in a tile in bytes, and maximum number of cells.
const MAX_TILE: usize = 34 << 10;
const MAX_CELLS: usize = 64;

/// Maximum number of warps with different cells.
const MAX_WARPS: usize = 4;

/// Types whose rows can be packed. Rows must have pairs of blocks, so that each block has a known alignment.
const PACKED: [GgmlType; 2] = [GgmlType::Q8_0, GgmlType::Q4_0];
const PAIR_OF_BLOCKS: usize = 64;

/// Sizes of asynchronous copies in bytes.
const UNITS: [usize; 3] = [16, 8, 4];

/// Shared memory per block for tiles, in bytes, and maximum number of tiles. Several blocks share a
/// multiprocessor.
const STAGE_BYTES: usize = 64 << 10;
const MAX_STAGES: usize = 4;

/// Shared memory of the kernel that is allocated statically: the listed pages.
const STATIC_SHARED: usize = 128 * 12;

/// Maximum shared memory per block in bytes, which all GPUs with bf16 have.
const MAX_SHARED: usize = Gpu::LEAST_SHARED_BYTES as usize;

/// Rows of keys or values in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rows {
    decoder: Value,
    /// Size of a row in bytes.
    bytes: usize,
    /// Bytes per copy of packed rows. 0 for rows of 16-bit floats, which are not packed.
    unit: usize,
}

impl Rows {
    /// Returns the rows of parts of `n` elements, or `None` if the type is not supported.
    fn of(t: &Tensor, arg: &TensorArg, n: usize, precision: Precision, gpu: Gpu) -> Option<Rows> {
        let decoder = decoder(t, arg, n, precision, gpu)?;
        let packed = t.ty.row_bytes(n)?;
        let is_aligned = |unit: &usize| {
            let multiple = |bytes: i64| bytes % *unit as i64 == 0;
            let apart = (1..4).all(|d| arg.ne[d] == 1 || multiple(arg.nb[d]));
            apart && arg.data.is_multiple_of(*unit as u64) && packed.is_multiple_of(*unit)
        };
        let is_packed = PACKED.contains(&t.ty) && n.is_multiple_of(PAIR_OF_BLOCKS);
        let unit = UNITS.into_iter().find(|unit| is_packed && is_aligned(unit));
        Some(Rows {
            decoder,
            bytes: if unit.is_some() { packed } else { size_of::<u16>() * n },
            unit: unit.unwrap_or(0),
        })
    }

    /// Returns the distance between rows in bytes, an odd multiple of 16.
    fn stride(&self) -> usize {
        (self.bytes + 15) / 32 * 32 + 16
    }
}

/// Configuration of the page kernel on tensor cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pages {
    k: Rows,
    v: Rows,
    /// True if values are the first elements of the keys, which are then loaded once for all parts of the values.
    v_in_k: bool,
    dk: usize,
    dv: usize,
    /// Query heads per block, and blocks per KV head.
    pub(super) heads: usize,
    blocks_of_group: usize,
    /// Number of parts that a result is divided into.
    parts: usize,
    /// Maximum dynamic shared memory of a block in bytes.
    max_shared: usize,
}

/// Returns the decoder type for keys or values that are read in parts of `n` elements.
fn decoder(t: &Tensor, arg: &TensorArg, n: usize, precision: Precision, gpu: Gpu) -> Option<Value> {
    match t.ty {
        GgmlType::F16 if arg.has_vectors(2, 16) => Some(Value::Word("f16x8")),
        GgmlType::BF16 if gpu.has_bfloats && arg.has_vectors(2, 16) => Some(Value::Word("bf16x8")),
        ty if precision.is_fast() && ty.is_quantized() && n.is_multiple_of(ty.block_size()) && t.has_dense_rows() => {
            Some(Value::Type(ty))
        }
        _ => None,
    }
}

impl Pages {
    /// Returns the configuration for a node, or `None` if the kernel cannot be used.
    pub(super) fn of(task: &Task<'_>, p: &Attention, [q, k, v]: [&TensorArg; 3]) -> Option<Pages> {
        let (at, precision, gpu) = (p.operands(), task.target.precision(), task.target.gpu());
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
        let (k_rows, v_rows) = (
            Rows::of(keys, k, dk, precision, gpu)?,
            Rows::of(values, v, dv / parts, precision, gpu)?,
        );
        let memory = |i: usize| {
            let (id, t) = (task.node.source(i), task.operand(i));
            (t.view.unwrap_or((id, 0)), t.nb, t.ty)
        };
        let is_same = memory(at.k) == memory(at.v);
        let pages = Pages {
            k: k_rows,
            v: v_rows,
            v_in_k: is_same && dv <= dk && (k_rows.unit == 0) == (v_rows.unit == 0) && parts.is_power_of_two(),
            dk,
            dv,
            heads,
            blocks_of_group: group.div_ceil(heads),
            parts,
            max_shared: MAX_SHARED.min(gpu.shared_bytes as usize) - STATIC_SHARED,
        };
        (pages.shared() <= pages.max_shared).then_some(pages)
    }

    /// Returns the number of blocks per KV head.
    pub(super) fn blocks_of_head(&self) -> usize {
        self.blocks_of_group * self.parts / self.parts_of_warps()
    }

    /// Returns the number of parts of values that the warps of a block compute.
    fn parts_of_warps(&self) -> usize {
        if self.v_in_k { self.parts } else { 1 }
    }

    /// Returns the shared memory for the keys and values of a cell in bytes.
    fn cell(&self) -> usize {
        self.k.stride() + if self.v_in_k { 0 } else { self.v.stride() }
    }

    /// Returns the number of cells per tile.
    fn tile(&self) -> usize {
        let fits = |&cells: &usize| {
            let bytes = cells * self.cell();
            bytes <= MAX_TILE && 2 * bytes + self.queries(cells) <= self.max_shared
        };
        [MAX_CELLS, MAX_CELLS / 2].into_iter().find(fits).unwrap_or(STEP)
    }

    /// Returns the number of warps with different heads and values, and with different cells.
    fn warps(&self) -> (usize, usize) {
        let groups = self.groups() * self.parts_of_warps();
        (groups, (MAX_WARPS / groups).min(self.tile() / STEP))
    }

    /// Returns the number of warps with different heads.
    fn groups(&self) -> usize {
        self.heads.div_ceil(HEADS_OF_WARP)
    }

    /// Returns the number of threads per block.
    pub(super) fn threads(&self) -> usize {
        let (groups, shares) = self.warps();
        32 * groups * shares
    }

    /// Returns the size of a tile in bytes.
    fn stage(&self) -> usize {
        self.tile() * self.cell()
    }

    /// Returns the number of tiles in shared memory.
    fn stages(&self) -> usize {
        let left = self.max_shared.saturating_sub(self.queries(self.tile()));
        (STAGE_BYTES.min(left) / self.stage()).clamp(2, MAX_STAGES)
    }

    /// Returns the shared memory for long queries, and for products with parts of keys, in bytes, given the number of
    /// cells per tile.
    fn queries(&self, cells: usize) -> usize {
        if self.dk <= SHORT_KEY {
            return 0;
        }
        let products = match self.parts_of_warps() {
            1 => 0,
            parts => size_of::<f32>() * HEADS_OF_WARP * self.groups() * parts * cells,
        };
        self.groups() * (self.dk / STEP) * 32 * size_of::<[u32; 4]>() + products
    }

    /// Returns the dynamic shared memory in bytes: tiles, queries, and products, or the warps' sums.
    pub(super) fn shared(&self) -> usize {
        let n = self.dv / self.parts * self.parts_of_warps();
        let sums = size_of::<f32>() * self.warps().1 * self.heads * (n + n / 32 + 2);
        (self.stages() * self.stage() + self.queries(self.tile())).max(sums)
    }

    /// Returns the kernel, without the definitions for the node's operands.
    pub(super) fn kernel(&self) -> Kernel {
        Kernel::new(&ATTENTION_PAGES, "attention_pages")
            .with("K", self.k.decoder)
            .with("V", self.v.decoder)
            .with_int("DK", self.dk as i64)
            .with_int("DV", self.dv as i64)
            .with_int("K_UNIT", self.k.unit as i64)
            .with_int("V_UNIT", self.v.unit as i64)
            .with_int("V_IN_K", self.v_in_k.into())
            .with_int("HEADS", self.heads as i64)
            .with_int("TILE", self.tile() as i64)
            .with_int("STAGES", self.stages() as i64)
            .with_int("PARTS", self.parts as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns rows of 16-bit floats, or packed rows.
    fn rows(n: usize, packed: Option<GgmlType>) -> Rows {
        Rows {
            decoder: packed.map_or(Value::Word("f16x8"), Value::Type),
            bytes: packed.map_or(size_of::<u16>() * n, |ty| {
                ty.row_bytes(n).expect("rows have whole blocks")
            }),
            unit: packed.map_or(0, |_| 4),
        }
    }

    fn pages([dk, dv]: [usize; 2], heads: usize, packed: Option<GgmlType>, v_in_k: bool) -> Pages {
        let parts = dv.div_ceil(MAX_VALUES);
        Pages {
            k: rows(dk, packed),
            v: rows(dv / parts, packed),
            v_in_k,
            dk,
            dv,
            heads,
            blocks_of_group: 1,
            parts,
            max_shared: MAX_SHARED - STATIC_SHARED,
        }
    }

    #[test]
    fn tiles_fit_in_shared_memory_of_small_gpus() {
        for size in [[64, 64], [128, 128], [192, 128], [256, 256], [512, 512], [576, 512]] {
            for (packed, v_in_k) in [
                (None, false),
                (None, true),
                (Some(GgmlType::Q8_0), false),
                (Some(GgmlType::Q8_0), true),
            ] {
                for heads in [1, 8, 16] {
                    let pages = pages(size, heads, packed, v_in_k);
                    let shared = pages.shared() + STATIC_SHARED;
                    assert!(shared <= 99 << 10, "{pages:?}: {shared} bytes");
                }
            }
        }
    }

    #[test]
    fn long_keys_have_small_tiles() {
        let shape = |size, heads, packed, v_in_k| {
            let pages = pages(size, heads, packed, v_in_k);
            (pages.tile(), pages.stages(), pages.threads())
        };
        assert_eq!(shape([128, 128], 4, None, false), (64, 2, 128));
        assert_eq!(shape([64, 64], 16, None, false), (64, 3, 128));
        assert_eq!(shape([256, 256], 2, None, false), (32, 2, 64));
        assert_eq!(shape([576, 512], 16, None, false), (16, 2, 64));
        assert_eq!(shape([576, 512], 16, None, true), (16, 3, 128));
    }

    #[test]
    fn packed_tiles_have_more_cells() {
        let (q8, q4) = (Some(GgmlType::Q8_0), Some(GgmlType::Q4_0));
        let shape = |size, packed, v_in_k| {
            let pages = pages(size, 8, packed, v_in_k);
            (pages.tile(), pages.stages(), pages.cell())
        };
        assert_eq!(shape([128, 128], q8, false), (64, 3, 288));
        assert_eq!(shape([128, 128], q4, false), (64, 4, 160));
        assert_eq!(shape([256, 256], q8, false), (64, 2, 544));
        assert_eq!(shape([576, 512], q8, true), (32, 3, 624));
        assert_eq!(pages([576, 512], 16, q8, true).stages(), 2);
    }
}
