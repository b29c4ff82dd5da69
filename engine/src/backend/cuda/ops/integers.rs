//! Products of quantized weights with few columns, in integers: what decoding spends its time with.

use bytemuck::{Pod, Zeroable};
use kernels::{GgmlType, Precision};

use super::super::kernel::{Kernel, QUANTIZE_COLUMNS};
use super::arguments::TensorArg;
use super::{ColumnForm, Refusal, Task, size};
use crate::graph::Tensor;

/// Types that `dots.cuh` knows as integers: all that are quantized.
const TYPES: [GgmlType; 25] = [
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
];

/// Rows of a block of `mul_vec_int.cu`.
pub(super) const ROWS: u32 = 8;

/// Bytes that a lane fetches at a time: rows begin at multiples of it.
const FETCH: usize = 16;

/// Values that share a scale.
pub(super) const GROUP: usize = 32;

/// Values that a lane rounds.
const PER_LANE: usize = 4;

/// Values of a tile of a column, and its bytes: the structure of `columns.cuh`.
const TILE: usize = 1024;
const TILE_BYTES: usize = 2 * TILE + 3 * size_of::<f32>() * (TILE / GROUP);

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct QuantizeParams {
    x: TensorArg,
    tiles: u64,
    n_groups: i32,
    is_dense: i32,
}

/// True if rows can be fetched as they lie.
fn has_whole_rows(w: &Tensor, arg: &TensorArg) -> bool {
    let row_bytes = w.ty.row_bytes(w.ne[0]).unwrap_or(1);
    let apart = (1..4).all(|d| arg.ne[d] == 1 || arg.nb[d] % FETCH as i64 == 0);
    row_bytes.is_multiple_of(FETCH) && apart && arg.data.is_multiple_of(FETCH as u64)
}

/// True if a product of these weights is computed in integers where it has few columns.
pub(super) fn suits(precision: Precision, weights: &Tensor, w: &TensorArg) -> bool {
    let allowed = precision != Precision::Exact && TYPES.contains(&weights.ty);
    allowed && has_whole_rows(weights, w) && weights.ne[0].is_multiple_of(GROUP)
}

/// Bytes of columns as integers.
fn column_bytes(x: &TensorArg) -> usize {
    let [n, rows @ ..] = x.ne.map(|n| n as usize);
    TILE_BYTES * n.div_ceil(TILE) * rows.iter().product::<usize>()
}

/// The columns of `x` as integers, which are made of it unless they are there.
pub(super) fn columns(task: &mut Task<'_>, x: &TensorArg) -> Result<u64, Refusal> {
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

/// Where columns go that the caller writes.
pub(super) fn written_columns(task: &mut Task<'_>, x: &TensorArg) -> Result<u64, Refusal> {
    Ok(task.target.columns(x, ColumnForm::Integers, column_bytes(x))?.0)
}
