//! Products of many columns on tensor cores, in bf16 with sums of f32: for `fast` alone.

use bytemuck::{Pod, Zeroable};
use kernels::{GgmlType, Precision};

use super::super::kernel::{Kernel, MUL_MAT_TENSOR, ROUND_COLUMNS};
use super::arguments::TensorArg;
use super::products::decoder;
use super::{ColumnForm, Refusal, Task, size};
use crate::graph::Tensor;

/// Rows of a tile of `mul_mat_tensor.cu`, its columns where there are many and where there are few, and its threads.
const ROWS: u32 = 128;
const MANY: u32 = 128;
const FEW: u32 = 32;
const THREADS: u32 = 256;

/// Values between rows in shared memory.
const PADDING: u32 = 8;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct RoundParams {
    x: TensorArg,
    columns: u64,
    stride: i32,
    n: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    w: TensorArg,
    x: TensorArg,
    y: TensorArg,
    columns: u64,
    tiles: u64,
    order: u64,
    n_used: i32,
    stride: i32,
}

/// Columns that were grouped by matrix: addresses of tiles and of their order, how many tiles there are, and matrices for each token.
#[derive(Clone, Copy)]
pub(super) struct Groups {
    pub(super) tiles: u64,
    pub(super) order: u64,
    pub(super) n_tiles: usize,
    pub(super) n_used: usize,
    /// Scratch memory for the columns.
    pub(super) columns: u64,
}

/// Columns of a tile of groups.
pub(super) const GROUP_COLUMNS: u32 = FEW;

/// True if the product of a node's weights may be computed so.
pub(super) fn suits(precision: Precision, weights: &Tensor) -> bool {
    // Floats of 32 bits are few, and mean to be exact.
    precision == Precision::Fast && weights.ty != GgmlType::F32
}

/// Bytes from one column to the next.
fn stride(x: &Tensor) -> usize {
    (2 * x.ne[0]).next_multiple_of(16)
}

/// Bytes of all columns.
pub(super) fn column_bytes(x: &Tensor) -> usize {
    stride(x) * x.nrows()
}

/// Values of a row that are decoded at a time: whole groups of runs.
fn step(ty: GgmlType) -> u32 {
    match ty {
        GgmlType::Q2_K | GgmlType::Q3_K | GgmlType::Q6_K | GgmlType::TQ2_0 => 128,
        _ => 64,
    }
}

/// Plans the product: of all columns, or of groups of them.
pub(super) fn plan(task: &mut Task<'_>, operands: [TensorArg; 3], groups: Option<Groups>) -> Result<(), Refusal> {
    let [w, x, y] = operands;
    let (weights, values) = (task.operand(0), task.operand(1));
    let (columns, is_new) = match groups {
        Some(groups) => (groups.columns, true),
        None => {
            let bytes = column_bytes(values);
            task.target.columns(&x, ColumnForm::Bfloats, bytes)?
        }
    };
    let stride = size(stride(values))?;
    if is_new {
        let n = size(stride as usize / 4 * values.nrows())?;
        let params = RoundParams {
            x,
            columns,
            stride: stride as i32,
            n: n as i32,
        };
        task.for_each(Kernel::new(&ROUND_COLUMNS, "round_columns"), n, &params)?;
    }
    let [m, n, n2, n3] = task.node.ne;
    let (n_columns, y_blocks, z_blocks) = match groups {
        Some(groups) => (GROUP_COLUMNS, size(groups.n_tiles)?, 1),
        None => {
            let n_columns = if n > FEW as usize { MANY } else { FEW };
            (n_columns, size(n)?.div_ceil(n_columns), size(n2 * n3)?)
        }
    };
    let kernel = Kernel::new(&MUL_MAT_TENSOR, "mul_mat_tensor")
        .with("TYPE", decoder(weights.ty, &w))
        .with_int("STEP", step(weights.ty).into())
        .with_int("COLUMNS", n_columns.into())
        .with_int("IDS", groups.is_some().into());
    let params = Params {
        w,
        x,
        y,
        columns,
        tiles: groups.map_or(0, |g| g.tiles),
        order: groups.map_or(0, |g| g.order),
        n_used: size(groups.map_or(1, |g| g.n_used))? as i32,
        stride: stride as i32,
    };
    let grid = [size(m)?.div_ceil(ROWS), y_blocks, z_blocks];
    let shared = 2 * (ROWS + n_columns) * (step(weights.ty) + PADDING);
    task.launch_with(kernel, grid, THREADS, shared, &params)
}
