//! Matmuls with 9 to 64 columns (128 for small matrices), such as those of a server: weights are streamed through shared
//! memory and converted to f16 integers. Only used with `Precision::Fast`.

use bytemuck::{Pod, Zeroable};
use kernels::GgmlType;

use super::super::gpu::Gpu;
use super::super::kernel::{HALVE_COLUMNS, Kernel, MUL_STREAM, Value};
use super::arguments::TensorArg;
use super::decoder::decoder;
use super::integers::{FETCH, has_whole_rows};
use super::task::{ColumnForm, Task};
use super::unplanned::{Unplanned, size};
use crate::graph::Tensor;

/// Maximum number of columns. Beyond, tiles that convert weights once for more columns are faster.
const MAX_COLUMNS: usize = 64;

/// Maximum number of columns if the matrix is too small for such tiles.
const MAX_COLUMNS_OF_SMALL: usize = 128;

/// Rows and threads of a block of `mul_stream.cu`, and values of a row per step.
const ROWS: usize = 128;
const THREADS: u32 = 128;
const STEP: usize = 256;

/// Columns per tile. The smaller tile also serves types and GPUs whose stages would not fit otherwise.
const TILES: [usize; 2] = [16, 32];

/// Steps in shared memory.
const MIN_STAGES: u32 = 2;
const MAX_STAGES: u32 = 4;

/// Shared memory of a block that is reserved or static, in bytes.
const RESERVED_SHARED: u32 = 1 << 10;

/// Minimum number of steps per block, so that the prologue and the sum of the parts pay off.
const MIN_STEPS: usize = 4;

/// Threads per block of `halve_columns.cu`.
const HALVING_THREADS: u32 = 1024;

/// Number of counters behind the columns: tiles of a launch whose rows are divided.
const COUNTERS: usize = 1024;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct HalveParams {
    x: TensorArg,
    steps: u64,
    factors: u64,
    counters: u64,
    n_counters: i32,
    is_dense: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    w: TensorArg,
    x: TensorArg,
    y: TensorArg,
    columns: u64,
    factors: u64,
    counters: u64,
    parts: u64,
    n_steps: i32,
    padding: i32,
}

/// A type that `halves_of_rows.cuh` supports, with the bytes between rows in shared memory.
struct Weights {
    decoder: Value,
    stride: u32,
}

/// Sizes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Columns per tile.
    columns: usize,
    stages: u32,
    /// Dynamic shared memory in bytes.
    shared: u32,
}

/// Returns the type's name in `halves_of_rows.cuh`, or `None` if the type is not supported.
fn weights_of(weights: &Tensor, w: &TensorArg) -> Option<Weights> {
    let decoder = decoder(weights, w);
    let stride = match decoder {
        Value::Type(GgmlType::Q4_0 | GgmlType::Q4_K) => 144,
        Value::Type(GgmlType::Q5_K) => 176,
        Value::Type(GgmlType::Q8_0) => 272,
        Value::Word("q6_K_x8") => 240,
        _ => return None,
    };
    Some(Weights { decoder, stride })
}

/// Returns the bytes of a step of a tile's columns: halves, and two halves per sum of 32 values.
fn step_bytes(columns: usize) -> usize {
    columns * (2 * STEP + 4 * STEP / 32)
}

/// Returns the sizes for `n` columns, or `None` if a GPU has too little shared memory.
fn shape(gpu: Gpu, stride: u32, n: usize) -> Option<Shape> {
    let of_one = gpu.shared_bytes.checked_sub(RESERVED_SHARED)?;
    let of_two = (gpu.shared_bytes / 2).saturating_sub(RESERVED_SHARED);
    let stage = |columns: usize| ROWS as u32 * stride + step_bytes(columns) as u32;
    let fits = |columns: &usize| MIN_STAGES * stage(*columns) <= of_one;
    let wanted = TILES.into_iter().find(|&columns| columns >= n).unwrap_or(TILES[1]);
    let columns = [wanted, TILES[0]].into_iter().find(fits)?;
    let stage = stage(columns);
    // Two blocks per multiprocessor hide each other's latency.
    let budget = if MIN_STAGES * stage <= of_two { of_two } else { of_one };
    let stages = (budget / stage).clamp(MIN_STAGES, MAX_STAGES);
    Some(Shape {
        columns,
        stages,
        shared: stages * stage,
    })
}

/// Returns the number of blocks that divide the steps of each row: enough for one block per multiprocessor.
fn n_parts(gpu: Gpu, n_tiles: usize, n_steps: usize) -> usize {
    if n_tiles > COUNTERS {
        return 1;
    }
    let wanted = gpu.multiprocessors as usize / n_tiles.max(1);
    wanted.min(n_steps / MIN_STEPS).max(1)
}

/// Returns true if the matmul of the task's node should use this kernel. The caller checks the precision. `is_small` is
/// true if the matrix is too small for large tiles.
pub(super) fn suits(task: &Task<'_>, w: &TensorArg, is_small: bool) -> bool {
    let (weights, n) = (task.operand(0), task.node.ne[1]);
    let most = if is_small { MAX_COLUMNS_OF_SMALL } else { MAX_COLUMNS };
    let stride = weights_of(weights, w).map(|weights| weights.stride);
    let is_suitable = n <= most && weights.ne[0].is_multiple_of(STEP) && has_whole_rows(weights, w);
    is_suitable && stride.is_some_and(|stride| shape(task.target.gpu(), stride, n).is_some())
}

/// Plans a suitable matmul.
pub(super) fn plan(task: &mut Task<'_>, [w, x, y]: [TensorArg; 3]) -> Result<(), Unplanned> {
    let gpu = task.target.gpu();
    let [m, n, n2, n3] = task.node.ne;
    let weights = weights_of(task.operand(0), &w).ok_or("no decoder to f16 integers")?;
    let shape = shape(gpu, weights.stride, n).ok_or("the stages do not fit in shared memory")?;
    let (k, outer, column_tiles) = (task.operand(0).ne[0], n2 * n3, n.div_ceil(shape.columns));
    let (n_steps, n_padded) = (k / STEP, column_tiles * shape.columns * outer);
    let of_steps = column_tiles * outer * n_steps * step_bytes(shape.columns);
    let of_factors = size_of::<f32>() * n_padded;
    let form = ColumnForm::Halves(shape.columns as u32);
    let n_bytes = of_steps + of_factors + size_of::<u32>() * COUNTERS;
    let (columns, is_new) = task.target.columns(&x, form, n_bytes)?;
    let factors = columns + of_steps as u64;
    let counters = factors + of_factors as u64;
    let grid = [size(column_tiles * shape.columns)?, size(outer)?, 1];
    if is_new {
        let params = HalveParams {
            x,
            steps: columns,
            factors,
            counters,
            n_counters: COUNTERS as i32,
            is_dense: x.has_vectors(size_of::<f32>(), FETCH).into(),
        };
        let kernel = Kernel::new(&HALVE_COLUMNS, "halve_columns").with_int("COLUMNS", shape.columns as i64);
        task.launch(kernel, grid, HALVING_THREADS, &params)?;
    }
    let row_tiles = m.div_ceil(ROWS);
    let n_tiles = row_tiles * column_tiles * outer;
    let per_part = n_steps.div_ceil(n_parts(gpu, n_tiles, n_steps));
    let n_parts = n_steps.div_ceil(per_part);
    let parts = match n_parts {
        1 => 0,
        _ => {
            let of_block = size_of::<f32>() * ROWS * shape.columns;
            task.target.scratch(of_block * n_tiles * n_parts)?
        }
    };
    let params = Params {
        w,
        x,
        y,
        columns,
        factors,
        counters,
        parts,
        n_steps: size(per_part)? as i32,
        padding: 0,
    };
    let kernel = Kernel::new(&MUL_STREAM, "mul_stream")
        .with("TYPE", weights.decoder)
        .with_int("COLUMNS", shape.columns as i64)
        .with_int("STAGES", shape.stages.into());
    let grid = [size(row_tiles * n_parts)?, size(column_tiles)?, size(outer)?];
    task.launch_with(kernel, grid, THREADS, shape.shared, &params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_fit_in_the_shared_memory_of_all_gpus() {
        let small = Gpu {
            shared_bytes: Gpu::LEAST_SHARED_BYTES,
            ..Gpu::H100
        };
        for stride in [144, 176, 240, 272] {
            for gpu in [Gpu::H100, small] {
                for n in [9, 16, 17, 64] {
                    let shape = shape(gpu, stride, n).expect("two stages fit");
                    assert!(
                        shape.shared + RESERVED_SHARED <= gpu.shared_bytes,
                        "{stride}, {n}: {shape:?}"
                    );
                }
            }
        }
        let sizes = |gpu, stride, n| shape(gpu, stride, n).map(|shape| (shape.columns, shape.stages));
        assert_eq!(sizes(Gpu::H100, 144, 32), Some((32, 3)));
        assert_eq!(sizes(Gpu::H100, 272, 9), Some((16, 2)));
        assert_eq!(sizes(small, 272, 32), Some((16, 2)));
        assert_eq!(
            sizes(
                Gpu {
                    shared_bytes: 48 << 10,
                    ..small
                },
                272,
                32
            ),
            None
        );
    }

    #[test]
    fn rows_are_divided_until_all_multiprocessors_are_busy() {
        let parts = |n_tiles, n_steps| n_parts(Gpu::H100, n_tiles, n_steps);
        assert_eq!(
            [parts(32, 16), parts(112, 16), parts(32, 56), parts(264, 56)],
            [4, 1, 4, 1]
        );
        assert_eq!([parts(2, 3), parts(COUNTERS + 1, 400), parts(0, 8)], [1, 1, 2]);
    }
}
