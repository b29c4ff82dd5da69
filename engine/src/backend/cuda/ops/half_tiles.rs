//! Matmuls with many columns on GPUs whose tensor cores sum products in f32 at half the rate of f16. Only used with
//! `Precision::Fast` and `Fastest`.

use bytemuck::Zeroable;
use kernels::GgmlType;

use super::super::gpu::Gpu;
use super::super::kernel::{Kernel, MUL_MAT_HALVES, Value};
use super::arguments::TensorArg;
use super::halves::{Params, STEP, Weights};
use super::task::{Halves, Task};
use super::tensor::{Groups, occupies};
use super::unplanned::{Unplanned, size};

/// Rows, and also columns, of the tiles of `mul_mat_halves.cu`, and rows of a warp.
const LARGE: u32 = 128;
const SMALL: u32 = 64;
const WARP_ROWS: u32 = 32;

/// Maximum number of columns that other kernels multiply, because most columns of a tile would be missing.
const FEW_COLUMNS: u32 = 32;

/// Bytes of a column's group of values in shared memory: 32 values of 2 bytes.
const GROUP_BYTES: u32 = 64;

/// Number of groups of columns in shared memory.
const MIN_STAGES: u32 = 2;
const MAX_STAGES: u32 = 4;

/// Exponent of the largest value of a column: 32 products of integers up to 4096 (Q6_K, or floats of a group), and values up
/// to 1/4 are less than 65504.
const EXPONENT: i32 = -3;
/// Exponent for MXFP4, whose f16 values are at most 6 * 2^-14.
const MXFP4_EXPONENT: i32 = 14;

/// Sizes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Rows and columns per tile.
    tile: u32,
    stages: u32,
    /// Dynamic shared memory in bytes.
    shared: u32,
}

/// Returns the sizes of a launch with these tiles, or `None` if a GPU has too little shared memory.
fn shape(gpu: Gpu, weights: Weights, tile: u32) -> Option<Shape> {
    let sums = if weights.has_mins {
        2 * tile * weights.sum_bytes() as u32
    } else {
        0
    };
    let fixed = 2 * tile * weights.stride + sums;
    // GPUs with more shared memory use the kernels of the others.
    let available = gpu.shared_bytes.min(Gpu::LEAST_SHARED_BYTES).checked_sub(fixed)?;
    let stages = (available / (tile * GROUP_BYTES)).min(MAX_STAGES);
    (stages >= MIN_STAGES).then_some(Shape {
        tile,
        stages,
        shared: fixed + stages * tile * GROUP_BYTES,
    })
}

/// Weights and launch sizes of a matmul.
#[derive(Clone, Copy)]
pub(super) struct HalfTiles {
    weights: Weights,
    shape: Shape,
}

impl HalfTiles {
    /// Returns the tiles for matmuls with `sizes` rows, columns, and outer dimensions. Returns `None` if the GPU, the weights,
    /// or the sizes are unsuitable. The caller checks the precision.
    pub(super) fn of(task: &Task<'_>, w: &TensorArg, sizes: [u32; 3]) -> Option<HalfTiles> {
        let gpu = task.target.gpu();
        if !gpu.has_half_rate_sums || sizes[1] <= FEW_COLUMNS {
            return None;
        }
        let weights = Weights::of(task.operand(0), w)?;
        let is_large = sizes[1] > SMALL && occupies(gpu, [LARGE; 2], sizes);
        let shape = is_large.then(|| shape(gpu, weights, LARGE)).flatten();
        let shape = shape.or_else(|| self::shape(gpu, weights, SMALL))?;
        Some(HalfTiles { weights, shape })
    }

    /// Returns the tiles for groups with `sizes[1]` columns on average, under the conditions of [`HalfTiles::of`]. A tile
    /// has columns of a single group, so a tile should not be much larger than a group.
    pub(super) fn of_groups(task: &Task<'_>, w: &TensorArg, sizes: [u32; 3]) -> Option<HalfTiles> {
        let (gpu, most) = (task.target.gpu(), sizes[1] + sizes[1] / 4);
        let tiles = HalfTiles::of(task, w, sizes)?;
        let fits = |tile: u32| tile <= most && occupies(gpu, [tile; 2], sizes);
        if fits(tiles.shape.tile) {
            return Some(tiles);
        }
        let shape = fits(SMALL).then(|| shape(gpu, tiles.weights, SMALL)).flatten()?;
        Some(HalfTiles { shape, ..tiles })
    }

    /// Returns the number of columns of a tile.
    pub(super) fn columns(self) -> u32 {
        self.shape.tile
    }

    /// Plans the matmul of all columns, or of groups of columns.
    pub(super) fn plan(
        self,
        task: &mut Task<'_>,
        [w, x, y]: [TensorArg; 3],
        groups: Option<Groups>,
    ) -> Result<(), Unplanned> {
        let HalfTiles { weights, shape } = self;
        let exponent = match weights.decoder {
            Value::Type(GgmlType::MXFP4) => MXFP4_EXPONENT,
            _ => EXPONENT,
        };
        let of_kernel = if groups.is_some() { x.as_rows() } else { x };
        let halves = Halves {
            tile: shape.tile,
            sums: weights.sums,
            exponent,
            of_outer: of_kernel.ne[1].unsigned_abs(),
        };
        let of_x = halves.of_columns(task, &of_kernel)?;
        let [m, n, n2, n3] = task.node.ne;
        let (column_blocks, outer_blocks) = match groups {
            Some(groups) => (size(groups.n_tiles)?, 1),
            None => (size(n)?.div_ceil(shape.tile), size(n2 * n3)?),
        };
        let params = Params {
            w,
            x,
            y,
            columns: of_x.columns,
            factors: of_x.factors,
            tiles: groups.map_or(0, |g| g.tiles),
            order: groups.map_or(0, |g| g.order),
            n_steps: size(task.operand(0).ne[0].div_ceil(STEP))? as i32,
            n_used: size(groups.map_or(1, |g| g.n_used))? as i32,
            row_bytes: weights.row_bytes as i32,
            ..Params::zeroed()
        };
        let warp_columns = shape.tile / 2;
        let kernel = Kernel::new(&MUL_MAT_HALVES, "mul_mat_halves")
            .with("TYPE", weights.decoder)
            .with_int("ROWS", shape.tile.into())
            .with_int("COLUMNS", shape.tile.into())
            .with_int("WARP_COLUMNS", warp_columns.into())
            .with_int("SUMS", weights.sums.into())
            .with_int("STAGES", shape.stages.into())
            .with_int("IDS", groups.is_some().into());
        let grid = [column_blocks, size(m)?.div_ceil(shape.tile), outer_blocks];
        let threads = 32 * shape.tile / WARP_ROWS * (shape.tile / warp_columns);
        task.launch_with(kernel, grid, threads, shape.shared, &params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fit_in_the_shared_memory_of_all_gpus() {
        let small = Gpu {
            shared_bytes: Gpu::LEAST_SHARED_BYTES,
            ..Gpu::H100
        };
        for (stride, sums, has_mins) in [
            (112, 16, true),
            (144, 8, true),
            (208, 8, true),
            (240, 8, false),
            (272, 8, false),
            (288, 8, false),
        ] {
            let weights = Weights {
                decoder: Value::Type(GgmlType::Q4_0),
                stride,
                sums,
                has_mins,
                row_bytes: 0,
            };
            for gpu in [Gpu::H100, small] {
                for tile in [SMALL, LARGE] {
                    let shape = shape(gpu, weights, tile).expect("two stages fit");
                    assert!(shape.shared <= gpu.shared_bytes, "{stride}, {tile}: {shape:?}");
                    assert!(shape.stages >= 3, "{stride}, {tile}: {shape:?}");
                }
            }
            let small = shape(Gpu::RTX_2080_TI, weights, SMALL).expect("two stages fit");
            assert!(small.shared <= Gpu::RTX_2080_TI.shared_bytes, "{stride}: {small:?}");
        }
    }
}
