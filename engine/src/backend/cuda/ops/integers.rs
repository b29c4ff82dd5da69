//! Integer matmuls of quantized weights with few columns. Decoding spends most of its time here.

use bytemuck::{Pod, Zeroable};
use kernels::{GgmlType, Precision};

use super::super::gpu::Gpu;
use super::super::kernel::{Kernel, QUANTIZE_COLUMNS};
use super::arguments::TensorArg;
use super::task::{ColumnForm, Task};
use super::unplanned::{Unplanned, size};
use crate::graph::Tensor;

/// Types that `dots.cuh` supports: all quantized types.
const TYPES: [GgmlType; 30] = [
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::MXFP4,
    GgmlType::NVFP4,
    GgmlType::Q1_0,
    GgmlType::Q2_0,
    GgmlType::TQ1_0,
    GgmlType::TQ2_0,
    GgmlType::IQ1_S,
    GgmlType::IQ1_M,
    GgmlType::IQ2_XXS,
    GgmlType::IQ2_XS,
    GgmlType::IQ2_S,
    GgmlType::IQ3_XXS,
    GgmlType::IQ3_S,
    GgmlType::IQ4_K,
    GgmlType::IQ5_K,
    GgmlType::IQ6_K,
    GgmlType::IQ4_KS_D,
    GgmlType::IQ5_KS_D,
];

/// Weight rows, threads, and dynamic shared memory of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) rows: u32,
    pub(super) threads: u32,
    pub(super) shared: u32,
    /// Number of blocks per multiprocessor that occupy a GPU.
    pub(super) occupying: u32,
}

/// Block of `mul_vec_int.cu`.
pub(super) const OF_ONE: Block = Block {
    rows: 8,
    threads: 128,
    shared: 0,
    occupying: 8,
};

/// Static shared memory of `mul_few_int.cu`, at most.
const STATIC_OF_FEW: u32 = 8 << 10;

/// Returns the block of `mul_few_int.cu`. The shared memory of an A100 or H100 fits two such blocks. The shared memory
/// of smaller GPUs fits one.
pub(super) fn of_few(gpu: Gpu) -> Block {
    Block {
        rows: 16,
        threads: 256,
        shared: (75 << 10).min(gpu.shared_bytes.saturating_sub(STATIC_OF_FEW)),
        occupying: 4,
    }
}

/// Bytes that a lane loads at a time. Rows must be aligned to this.
pub(super) const FETCH: usize = 16;

/// Values that share a quantization scale.
pub(super) const GROUP: usize = 32;

/// Values that each lane quantizes.
const PER_LANE: usize = 4;

/// Values and bytes per tile of a column, matching the struct of `columns.cuh`.
const TILE: usize = 1024;
const TILE_BYTES: usize = 2 * TILE + 4 * size_of::<f32>() * (TILE / GROUP);

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct QuantizeParams {
    x: TensorArg,
    tiles: u64,
    n_groups: i32,
    is_dense: i32,
}

/// Returns true if the rows are aligned for direct loads.
pub(super) fn has_whole_rows(w: &Tensor, arg: &TensorArg) -> bool {
    let row_bytes = w.layout.group_bytes(w.ty, w.ne[0]).unwrap_or(1);
    let apart = (1..4).all(|d| arg.ne[d] == 1 || arg.nb[d] % FETCH as i64 == 0);
    row_bytes.is_multiple_of(FETCH) && apart && arg.data.is_multiple_of(FETCH as u64)
}

/// Returns true if matmuls with these weights and few columns are computed in integers.
pub(super) fn suits(precision: Precision, weights: &Tensor, w: &TensorArg) -> bool {
    let allowed = precision != Precision::Exact && TYPES.contains(&weights.ty);
    allowed && has_whole_rows(weights, w) && weights.ne[0].is_multiple_of(GROUP)
}

/// Returns true if instructions limit `mul_few_int.cu` with 5 to 8 columns on an H200, by counts of its instructions:
/// types that need many instructions per byte.
pub(super) fn are_limited_by_instructions(ty: GgmlType) -> bool {
    matches!(
        ty,
        GgmlType::Q4_0
            | GgmlType::Q2_K
            | GgmlType::Q3_K
            | GgmlType::Q6_K
            | GgmlType::IQ4_NL
            | GgmlType::IQ4_XS
            | GgmlType::MXFP4
    )
}

/// Returns the size of quantized columns in bytes.
fn column_bytes(x: &TensorArg) -> usize {
    let [n, rows @ ..] = x.ne.map(|n| n as usize);
    TILE_BYTES * n.div_ceil(TILE) * rows.iter().product::<usize>()
}

/// Returns the address of the quantized columns of `x`. Plans their quantization unless they already exist.
pub(super) fn columns(task: &mut Task<'_>, x: &TensorArg) -> Result<u64, Unplanned> {
    let (tiles, is_new) = task.target.columns(x, ColumnForm::Integers, column_bytes(x))?;
    if is_new {
        let n_groups = x.ne.iter().map(|&n| n as usize).product::<usize>() / GROUP;
        let params = QuantizeParams {
            x: *x,
            tiles,
            n_groups: size(n_groups)? as i32,
            is_dense: x.has_vectors(size_of::<f32>(), FETCH).into(),
        };
        let kernel = Kernel::new(&QUANTIZE_COLUMNS, "quantize_columns");
        task.for_each(kernel, size(GROUP / PER_LANE * n_groups)?, &params)?;
    }
    Ok(tiles)
}

/// Returns the address for quantized columns that the caller will write.
pub(super) fn written_columns(task: &mut Task<'_>, x: &TensorArg) -> Result<u64, Unplanned> {
    Ok(task.target.columns(x, ColumnForm::Integers, column_bytes(x))?.0)
}
