//! Matmuls with 9 to 64 columns, such as those of a server or of experts with few columns each. Small matrices have up to
//! 128 columns. With fast memory, large ones have at least 5. Weights are streamed through shared memory and converted to
//! f16 integers. Only used with `Precision::Fast` and `Fastest`.

use bytemuck::Zeroable;

use super::super::gpu::Gpu;
use super::super::kernel::{Kernel, MUL_STREAM};
use super::arguments::TensorArg;
use super::halves::{COUNTERS, Params, STEP, Weights};
use super::task::{Grouping, Halves, Task};
use super::unplanned::{Unplanned, size};

/// Maximum number of columns. Beyond, tiles that convert weights once for more columns are faster.
const MAX_COLUMNS: usize = 64;

/// Maximum number of columns if the matrix is too small for such tiles.
const MAX_COLUMNS_OF_SMALL: usize = 128;

/// Rows and threads of a block of `mul_stream.cu`.
const ROWS: usize = 128;
const THREADS: u32 = 128;

/// Exponent of the largest value of a column. Integers up to 2048 times values below 2^10, summed in f32.
const EXPONENT: i32 = 9;

/// Columns per tile. The smaller tile also serves types and GPUs whose stages would not fit otherwise.
const TILES: [usize; 2] = [16, 32];

/// Steps in shared memory.
const MIN_STAGES: u32 = 2;
const MAX_STAGES: u32 = 4;

/// Shared memory of a block that is reserved or static, in bytes.
const RESERVED_SHARED: u32 = 1 << 10;

/// Minimum number of steps per block, so that the prologue and the sum of the parts pay off.
const MIN_STEPS: usize = 4;

/// Sizes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Columns per tile.
    columns: usize,
    stages: u32,
    /// Dynamic shared memory in bytes.
    shared: u32,
}

impl Shape {
    /// Returns the form of columns. `of_outer` columns share tiles.
    fn halves(self, weights: Weights, of_outer: u32) -> Halves {
        Halves {
            tile: self.columns as u32,
            sums: weights.sums,
            exponent: EXPONENT,
            of_outer,
        }
    }
}

/// Returns the sizes for `n` columns, or `None` if a GPU has too little shared memory.
fn shape(gpu: Gpu, weights: Weights, n: usize) -> Option<Shape> {
    let of_one = gpu.shared_bytes.checked_sub(RESERVED_SHARED)?;
    let of_two = (gpu.shared_bytes / 2).saturating_sub(RESERVED_SHARED);
    let stage = |columns: usize| ROWS as u32 * weights.stride + weights.step_bytes(columns) as u32;
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

/// Returns the sizes of a launch with tiles for `n` columns, or `None` if the weights are unsuitable. The caller checks the
/// precision.
fn shape_of(task: &Task<'_>, w: &TensorArg, n: usize) -> Option<(Weights, Shape)> {
    let weights = Weights::of(task.operand(0), w)?;
    if weights.are_floats() {
        return None;
    }
    Some((weights, shape(task.target.gpu(), weights, n)?))
}

/// Returns true if the matmul of the task's node should use this kernel. The caller checks the precision. `is_small` is
/// true if the matrix is too small for large tiles, and `has_halves` if `mul_mat_halves.cu` can multiply more columns.
pub(super) fn suits(task: &Task<'_>, w: &TensorArg, is_small: bool, has_halves: bool) -> bool {
    let n = task.node.ne[1];
    let most = if !task.target.gpu().has_bfloats && !has_halves {
        // The kernel for more columns converts bf16 to f16.
        usize::MAX
    } else if is_small {
        MAX_COLUMNS_OF_SMALL
    } else {
        MAX_COLUMNS
    };
    n <= most && shape_of(task, w, n).is_some()
}

/// Returns the columns per tile of a matmul with groups of `n` columns on average, or `None` if the matmul cannot use this
/// kernel. The caller checks the precision and that groups are small.
pub(super) fn tile_of_groups(task: &Task<'_>, [w, x]: [&TensorArg; 2], n: usize) -> Option<usize> {
    // A quarter more columns than on average should not need a second tile.
    let (_, shape) = shape_of(task, w, n + n / 4)?;
    let are_rows = x.as_rows().ne[2..] == [1, 1];
    are_rows.then_some(shape.columns)
}

/// Number of parts of rows, steps per part, and bytes of the sums of all parts.
struct Division {
    n_parts: usize,
    n_steps: usize,
    bytes: usize,
}

/// Divides rows of `k` values.
fn divide(gpu: Gpu, k: usize, n_tiles: usize, shape: Shape) -> Division {
    let n_steps = k.div_ceil(STEP).div_ceil(n_parts(gpu, n_tiles, k.div_ceil(STEP)));
    let n_parts = k.div_ceil(STEP).div_ceil(n_steps);
    let bytes = match n_parts {
        1 => 0,
        _ => size_of::<f32>() * ROWS * shape.columns * n_tiles * n_parts,
    };
    Division {
        n_parts,
        n_steps,
        bytes,
    }
}

fn kernel(weights: Weights, shape: Shape, by_ids: bool) -> Kernel {
    Kernel::new(&MUL_STREAM, "mul_stream")
        .with("TYPE", weights.decoder)
        .with_int("COLUMNS", shape.columns as i64)
        .with_int("SUMS", weights.sums.into())
        .with_int("STAGES", shape.stages.into())
        .with_int("IDS", by_ids.into())
}

/// Plans a suitable matmul.
pub(super) fn plan(task: &mut Task<'_>, [w, x, y]: [TensorArg; 3]) -> Result<(), Unplanned> {
    let [m, n, n2, n3] = task.node.ne;
    let (weights, shape) = shape_of(task, &w, n).ok_or("no decoder to f16 integers")?;
    let (row_tiles, column_tiles, outer) = (m.div_ceil(ROWS), n.div_ceil(shape.columns), n2 * n3);
    let division = divide(
        task.target.gpu(),
        task.operand(0).ne[0],
        row_tiles * column_tiles * outer,
        shape,
    );
    let of_x = shape.halves(weights, size(n)?).of_columns(task, &x)?;
    let parts = match division.bytes {
        0 => 0,
        bytes => task.target.scratch(bytes)?,
    };
    let params = Params {
        w,
        x,
        y,
        columns: of_x.columns,
        factors: of_x.factors,
        counters: of_x.counters,
        parts,
        n_steps: size(division.n_steps)? as i32,
        row_bytes: weights.row_bytes as i32,
        ..Params::zeroed()
    };
    let grid = [size(row_tiles * division.n_parts)?, size(column_tiles)?, size(outer)?];
    task.launch_with(kernel(weights, shape, false), grid, THREADS, shape.shared, &params)
}

/// Plans a suitable matmul of columns that are grouped by matrix, in tiles of `grouping.tile` columns. `group` returns the
/// addresses of tiles, of the order of columns, and of further scratch memory.
pub(super) fn plan_groups(
    task: &mut Task<'_>,
    [w, x, y]: [TensorArg; 3],
    grouping: &Grouping,
    group: impl FnOnce(&mut Task<'_>, &Grouping, usize) -> Result<[u64; 3], Unplanned>,
) -> Result<(), Unplanned> {
    let [m, n_used, ..] = task.node.ne;
    let (weights, shape) = shape_of(task, &w, grouping.tile as usize).ok_or("no decoder to f16 integers")?;
    let (row_tiles, n_tiles) = (m.div_ceil(ROWS), grouping.n_tiles as usize);
    let division = divide(task.target.gpu(), task.operand(0).ne[0], row_tiles * n_tiles, shape);
    let [tiles, order, parts] = group(task, grouping, division.bytes)?;
    let rows = x.as_rows();
    let of_x = shape
        .halves(weights, rows.ne[1].unsigned_abs())
        .of_columns(task, &rows)?;
    let params = Params {
        w,
        x,
        y,
        columns: of_x.columns,
        factors: of_x.factors,
        counters: of_x.counters,
        parts,
        tiles,
        order,
        n_steps: size(division.n_steps)? as i32,
        n_used: size(n_used)? as i32,
        row_bytes: weights.row_bytes as i32,
        padding: 0,
    };
    let grid = [size(row_tiles * division.n_parts)?, size(n_tiles)?, 1];
    task.launch_with(kernel(weights, shape, true), grid, THREADS, shape.shared, &params)
}

#[cfg(test)]
mod tests {
    use kernels::GgmlType;

    use super::super::super::kernel::Value;
    use super::*;

    #[test]
    fn stages_fit_in_the_shared_memory_of_all_gpus() {
        let small = Gpu {
            shared_bytes: Gpu::LEAST_SHARED_BYTES,
            ..Gpu::H100
        };
        let weights = |stride| Weights {
            decoder: Value::Type(GgmlType::Q4_0),
            stride,
            sums: if stride == 112 { 16 } else { 8 },
            has_mins: true,
            row_bytes: 0,
        };
        for stride in [112, 144, 176, 208, 240, 272] {
            for gpu in [Gpu::H100, small] {
                for n in [9, 16, 17, 64] {
                    let shape = shape(gpu, weights(stride), n).expect("two stages fit");
                    assert!(
                        shape.shared + RESERVED_SHARED <= gpu.shared_bytes,
                        "{stride}, {n}: {shape:?}"
                    );
                }
            }
        }
        let sizes = |gpu, stride, n| shape(gpu, weights(stride), n).map(|shape| (shape.columns, shape.stages));
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
