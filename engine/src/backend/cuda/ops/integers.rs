//! Products of quantized weights with few columns, in integers: what decoding spends its time with.

use bytemuck::{Pod, Zeroable};
use kernels::{GgmlType, Precision};

use super::super::kernel::{Kernel, MUL_VEC_INT, QUANTIZE_COLUMNS};
use super::arguments::{FaultArg, TensorArg};
use super::{ColumnForm, Refusal, Task, size};
use crate::graph::Tensor;

/// Types that `dots.cuh` knows as integers.
const TYPES: [GgmlType; 13] = [
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
];

/// Warps of a block and rows of a warp of `mul_vec_int.cu`.
const WARPS: u32 = 4;
const ROWS: u32 = 2;

/// Bytes that a lane fetches at a time: rows begin at multiples of it.
const FETCH: usize = 16;

/// Values that share a scale.
const GROUP: usize = 32;

/// Values of a tile of a column, and its bytes: the structure of `columns.cuh`.
const TILE: usize = 1024;
const TILE_BYTES: usize = 2 * TILE + 3 * size_of::<f32>() * (TILE / GROUP);

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct QuantizeParams {
    x: TensorArg,
    tiles: u64,
    n_groups: i32,
    padding: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    w: TensorArg,
    x: TensorArg,
    y: TensorArg,
    ids: TensorArg,
    tiles: u64,
    fault: u64,
    node: u32,
    padding: i32,
}

/// Operands of a product of few columns.
pub(super) struct Product {
    pub(super) w: TensorArg,
    pub(super) x: TensorArg,
    pub(super) y: TensorArg,
    /// The matrix of each column, where they are chosen by numbers, and where numbers that are none are noted.
    pub(super) ids: Option<(TensorArg, FaultArg)>,
    /// Columns that a warp computes.
    pub(super) columns: usize,
    pub(super) grid: [u32; 2],
}

/// True if rows can be fetched as they lie.
fn has_whole_rows(w: &Tensor, arg: &TensorArg) -> bool {
    let row_bytes = w.ty.row_bytes(w.ne[0]).unwrap_or(1);
    let apart = (1..4).all(|d| arg.ne[d] == 1 || arg.nb[d] % FETCH as i64 == 0);
    row_bytes.is_multiple_of(FETCH) && apart && arg.data.is_multiple_of(FETCH as u64)
}

/// Plans a product in integers, if its precision allows that and its weights suit. True if it did.
pub(super) fn plan(task: &mut Task<'_>, product: &Product) -> Result<bool, Refusal> {
    let (weights, x) = (task.operand(0), task.operand(1));
    let allowed = task.target.precision() != Precision::Exact && TYPES.contains(&weights.ty);
    if !allowed || !has_whole_rows(weights, &product.w) || !x.ne[0].is_multiple_of(GROUP) {
        return Ok(false);
    }
    let n_groups = x.nelements() / GROUP;
    let (of, bytes) = (task.node.source(1), TILE_BYTES * x.ne[0].div_ceil(TILE) * x.nrows());
    let (tiles, is_new) = task.target.columns(of, ColumnForm::Integers, bytes)?;
    if is_new {
        let params = QuantizeParams {
            x: product.x,
            tiles,
            n_groups: size(n_groups)? as i32,
            padding: 0,
        };
        let kernel = Kernel::new(&QUANTIZE_COLUMNS, "quantize_columns");
        task.for_each(kernel, size(GROUP * n_groups)?, &params)?;
    }
    let (ids, fault) = product
        .ids
        .unwrap_or((TensorArg::NONE, FaultArg { record: 0, node: 0 }));
    let params = Params {
        w: product.w,
        x: product.x,
        y: product.y,
        ids,
        tiles,
        fault: fault.record,
        node: fault.node,
        padding: 0,
    };
    let kernel = Kernel::new(&MUL_VEC_INT, "mul_vec_int")
        .with_type("TYPE", weights.ty)
        .with_int("COLS", product.columns as i64)
        .with_int("IDS", product.ids.is_some().into());
    let [y, z] = product.grid;
    let grid = [size(weights.ne[1])?.div_ceil(WARPS * ROWS), y, z];
    task.launch(kernel, grid, 32 * WARPS, &params)?;
    Ok(true)
}
