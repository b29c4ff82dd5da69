//! Matmuls with many columns on tensor cores, in bf16 with f32 accumulation: `mma`, or `wgmma` of GPUs that have it. Tensor
//! cores before compute capability 8.0 multiply the bf16 values as f16, with a power of two for each row and column.
//! Only used with `Precision::Fast`.

use bytemuck::{Pod, Zeroable};
use kernels::{GgmlType, Precision};

use super::super::context::LaunchShape;
use super::super::gpu::Gpu;
use super::super::kernel::{Kernel, MUL_MAT_TENSOR, MUL_MAT_WGMMA, ROUND_COLUMNS, Value};
use super::arguments::TensorArg;
use super::decoder::decoder;
use super::task::{ColumnForm, Task};
use super::unplanned::{Unplanned, size};
use crate::graph::Tensor;

/// A tile of `mul_mat_tensor.cu` or `mul_mat_wgmma.cu`: rows and columns of a block, and of each warp's part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tile {
    rows: u32,
    pub(super) columns: u32,
    warp_rows: u32,
    warp_columns: u32,
}

const fn tile(rows: u32, columns: u32, warp_rows: u32, warp_columns: u32) -> Tile {
    Tile {
        rows,
        columns,
        warp_rows,
        warp_columns,
    }
}

/// Tile sizes, starting with those that read and decode the least.
const TILES: [Tile; 3] = [tile(128, 256, 64, 64), tile(128, 128, 64, 32), tile(64, 64, 32, 32)];

/// Tile for matmuls with few columns.
const FEW: Tile = tile(128, 32, 16, 32);

/// Values of a row per step in shared memory, which holds two steps.
const STEP: u32 = 64;

/// Steps that `mul_mat_wgmma.cu` has in shared memory.
const STAGES: u32 = 4;

/// Shared memory in bytes that aligns the steps of `mul_mat_wgmma.cu`, and shared memory of the barriers: two per step.
const ALIGNMENT: u32 = 1024;
const BARRIERS: u32 = 2 * 8 * STAGES;

/// Threads of `mul_mat_wgmma.cu` that load steps.
const PRODUCERS: u32 = 128;

/// Columns of an outer dimension start at a multiple of this number.
const ALIGNED_COLUMNS: usize = 8;

/// Returns true if tiles of `outer` matrices occupy a GPU: at least three for four multiprocessors.
pub(super) fn occupies(gpu: Gpu, tile: [u32; 2], [rows, columns, outer]: [u32; 3]) -> bool {
    let n = u64::from(rows.div_ceil(tile[0])) * u64::from(columns.div_ceil(tile[1])) * u64::from(outer);
    n >= u64::from(gpu.multiprocessors * 3 / 4)
}

/// The tiles that a GPU can use for some weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    gpu: Gpu,
    weights: Value,
    /// True if columns are grouped by matrix.
    has_groups: bool,
}

impl Tiles {
    pub(super) fn new(gpu: Gpu, weights: Value, has_groups: bool) -> Tiles {
        Tiles {
            gpu,
            weights,
            has_groups,
        }
    }

    /// Returns the tiles with enough registers and shared memory, largest first.
    fn usable(self) -> impl Iterator<Item = Tile> {
        // The largest tile would run out of registers if elements were loaded one by one.
        let reads_elements = matches!(self.weights, Value::Type(ty) if !ty.is_quantized());
        TILES
            .into_iter()
            .skip(if reads_elements { 1 } else { 0 })
            .filter(move |t| t.shared() + t.static_shared(self.has_groups) <= self.gpu.shared_bytes)
    }

    fn is_occupied_by(self, tile: Tile, rows: u32, columns: u32, outer: u32) -> bool {
        occupies(self.gpu, [tile.rows, tile.columns], [rows, columns, outer])
    }

    /// Returns the tile for `outer` matmuls with this number of rows and columns.
    pub(super) fn of(self, rows: u32, columns: u32, outer: u32) -> Tile {
        // Larger tiles with bf16-to-f16 conversion would run out of registers.
        if columns <= FEW.columns || !self.gpu.has_bfloats {
            return FEW;
        }
        let large = self.usable().find(|&t| self.is_occupied_by(t, rows, columns, outer));
        large.unwrap_or(TILES[TILES.len() - 1])
    }

    /// Returns true if only the smallest tile occupies the GPU. Weights are then converted often.
    pub(super) fn are_smallest(self, rows: u32, columns: u32, outer: u32) -> bool {
        self.of(rows, columns, outer) == TILES[TILES.len() - 1]
    }

    /// Returns the tile for matmuls of groups with `columns` columns on average. A tile holds columns of a
    /// single group, so a tile should not be much larger than a group.
    pub(super) fn of_groups(self, rows: u32, columns: u32, n_groups: u32) -> Tile {
        if !self.gpu.has_bfloats {
            return FEW;
        }
        let fits = |t: &Tile| t.columns <= columns + columns / 4;
        let mut usable = self.usable();
        let large = usable.find(|&t| fits(&t) && self.is_occupied_by(t, rows, columns, n_groups));
        large.unwrap_or(FEW)
    }
}

impl Tile {
    /// Returns true if this is the tile for groups with few columns.
    pub(super) fn is_for_few(self) -> bool {
        self == FEW
    }

    /// Returns the equivalent tile for `mul_mat_wgmma.cu`, if the GPU has the instructions and the memory: 16 rows and
    /// all columns per warp.
    fn of_warpgroups(self, gpu: Gpu, has_groups: bool) -> Option<Tile> {
        let tile = Tile {
            warp_rows: 16,
            warp_columns: self.columns,
            ..self
        };
        let need = tile.shared_of_stages() + BARRIERS + tile.static_shared(has_groups);
        let has_kernel = self.rows == 128 && [128, 256].contains(&self.columns);
        (gpu.has_wgmma && has_kernel && need <= gpu.shared_bytes).then_some(tile)
    }

    /// Returns the dynamic shared memory of `mul_mat_wgmma.cu` in bytes.
    fn shared_of_stages(self) -> u32 {
        STAGES * self.shared() / 2 + ALIGNMENT
    }

    fn threads(self) -> u32 {
        32 * (self.rows / self.warp_rows) * (self.columns / self.warp_columns)
    }

    /// Returns the dynamic shared memory in bytes.
    fn shared(self) -> u32 {
        2 * 2 * STEP * (self.rows + self.columns)
    }

    /// Returns the static shared memory in bytes: two numbers per column of a group.
    fn static_shared(self, has_groups: bool) -> u32 {
        if has_groups { 2 * 4 * self.columns } else { 0 }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct RoundParams {
    x: TensorArg,
    columns: u64,
    per_outer: i32,
    n_padded: i32,
    n_total: i32,
    n_steps: i32,
    n: i32,
    padding: i32,
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
    n_total: i32,
    n_padded: i32,
    padding: i32,
}

/// Columns grouped by matrix: addresses of the tiles and of their order, number of tiles, and number of
/// matrices per token.
#[derive(Clone, Copy)]
pub(super) struct Groups {
    pub(super) tiles: u64,
    pub(super) order: u64,
    pub(super) n_tiles: usize,
    pub(super) n_used: usize,
    pub(super) tile: Tile,
}

/// Returns true if matmuls with these weights may run on tensor cores.
pub(super) fn suits(precision: Precision, weights: &Tensor) -> bool {
    // f32 weights are rare and require exact results.
    precision.is_fast() && weights.ty != GgmlType::F32
}

/// The order of columns in bf16: for each step, the columns of all outer dimensions.
#[derive(Clone, Copy)]
struct Order {
    /// Columns of an outer dimension without and with padding. Without padding, all columns are one dimension.
    per_outer: usize,
    n_padded: usize,
    n_total: usize,
    n_steps: usize,
}

impl Order {
    /// Returns the order of the columns of `x`.
    fn new(x: &Tensor, has_groups: bool) -> Order {
        let [k, n, ..] = x.ne;
        let is_padded = !has_groups && !n.is_multiple_of(ALIGNED_COLUMNS);
        let per_outer = if is_padded { n } else { x.nrows() };
        let n_padded = per_outer.next_multiple_of(ALIGNED_COLUMNS);
        Order {
            per_outer,
            n_padded,
            n_total: n_padded * (x.nrows() / per_outer),
            n_steps: k.div_ceil(STEP as usize),
        }
    }

    /// Returns the number of values.
    fn len(self) -> usize {
        self.n_total * self.n_steps * STEP as usize
    }
}

/// Returns the alignment of rows in bytes, up to the size of a load.
fn alignment(w: &TensorArg) -> i64 {
    let rows = (1..4).all(|d| w.ne[d] == 1 || w.nb[d] % 16 == 0);
    if rows && w.data.is_multiple_of(16) { 16 } else { 4 }
}

/// Plans the conversion of columns, unless they already exist, and returns their address.
fn rounded(task: &mut Task<'_>, x: TensorArg, order: Order) -> Result<u64, Unplanned> {
    let form = ColumnForm::Bfloats(size(order.per_outer)?);
    let (columns, is_new) = task.target.columns(&x, form, 2 * order.len())?;
    if is_new {
        let n = size(order.len() / 2)?;
        let params = RoundParams {
            x,
            columns,
            per_outer: size(order.per_outer)? as i32,
            n_padded: size(order.n_padded)? as i32,
            n_total: size(order.n_total)? as i32,
            n_steps: size(order.n_steps)? as i32,
            n: n as i32,
            padding: 0,
        };
        task.for_each(Kernel::new(&ROUND_COLUMNS, "round_columns"), n, &params)?;
    }
    Ok(columns)
}

/// Plans the matmul of all columns, or of groups of columns.
pub(super) fn plan(task: &mut Task<'_>, operands: [TensorArg; 3], groups: Option<Groups>) -> Result<(), Unplanned> {
    let [w, x, y] = operands;
    let (weights, values) = (task.operand(0), task.operand(1));
    let order = Order::new(values, groups.is_some());
    let columns = rounded(task, x, order)?;
    let [m, n, n2, n3] = task.node.ne;
    let tiles = Tiles::new(task.target.gpu(), decoder(weights, &w), groups.is_some());
    let (tile, column_blocks, outer_blocks) = match groups {
        Some(groups) => (groups.tile, size(groups.n_tiles)?, 1),
        None => {
            let outer = size(n2 * n3)?;
            let tile = tiles.of(size(m)?, size(n)?, outer);
            (tile, size(n)?.div_ceil(tile.columns), outer)
        }
    };
    let grid = [column_blocks, size(m)?.div_ceil(tile.rows), outer_blocks];
    let launch = |kernel: Kernel, tile: Tile, block: u32, shared: u32| {
        let kernel = kernel
            .with("TYPE", decoder(weights, &w))
            .with_int("ALIGNED", alignment(&w))
            .with_int("ROWS", tile.rows.into())
            .with_int("COLUMNS", tile.columns.into())
            .with_int("WARP_ROWS", tile.warp_rows.into())
            .with_int("WARP_COLUMNS", tile.warp_columns.into())
            .with_int("IDS", groups.is_some().into());
        (kernel, LaunchShape { grid, block, shared })
    };
    let params = Params {
        w,
        x,
        y,
        columns,
        tiles: groups.map_or(0, |g| g.tiles),
        order: groups.map_or(0, |g| g.order),
        n_used: size(groups.map_or(1, |g| g.n_used))? as i32,
        n_total: size(order.n_total)? as i32,
        n_padded: size(n.next_multiple_of(ALIGNED_COLUMNS))? as i32,
        padding: 0,
    };
    let of_warps = launch(
        Kernel::new(&MUL_MAT_TENSOR, "mul_mat_tensor"),
        tile,
        tile.threads(),
        tile.shared(),
    );
    let Some(tile) = tile.of_warpgroups(task.target.gpu(), groups.is_some()) else {
        let (kernel, shape) = of_warps;
        return task.launch_with(kernel, grid, shape.block, shape.shared, &params);
    };
    let kernel = Kernel::new(&MUL_MAT_WGMMA, "mul_mat_wgmma").with_int("STAGES", STAGES.into());
    let block = tile.threads() + PRODUCERS;
    task.launch_either(
        [launch(kernel, tile, block, tile.shared_of_stages()), of_warps],
        &params,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiles(gpu: Gpu, has_groups: bool) -> Tiles {
        Tiles::new(gpu, Value::Type(GgmlType::Q4_K), has_groups)
    }

    #[test]
    fn tile_size_occupies_all_multiprocessors() {
        let columns = |rows, columns| tiles(Gpu::H100, false).of(rows, columns, 1).columns;
        let found = [
            (14336, 512),
            (4096, 512),
            (1024, 512),
            (1024, 4096),
            (4096, 32),
            (64, 64),
        ];
        assert_eq!(found.map(|(rows, n)| columns(rows, n)), [256, 128, 64, 256, 32, 64]);
        let small = Gpu {
            multiprocessors: 28,
            shared_bytes: Gpu::LEAST_SHARED_BYTES,
            ..Gpu::H100
        };
        assert_eq!(tiles(small, false).of(4096, 512, 1).columns, 256);
        assert_eq!(tiles(Gpu::T4, false).of(14336, 2048, 1).columns, 32);
    }

    #[test]
    fn tile_size_matches_group_size() {
        let found = [
            (1536, 32, 128),
            (14336, 128, 8),
            (14336, 100, 8),
            (768, 60, 64),
            (64, 300, 4),
            (14336, 205, 8),
        ];
        for shared_bytes in [Gpu::H100.shared_bytes, Gpu::LEAST_SHARED_BYTES] {
            let gpu = Gpu {
                shared_bytes,
                ..Gpu::H100
            };
            let columns = found.map(|(rows, columns, n)| tiles(gpu, true).of_groups(rows, columns, n).columns);
            assert_eq!(columns, [32, 128, 64, 64, 32, 256]);
        }
    }

    #[test]
    fn warpgroups_multiply_large_tiles_of_gpus_with_wgmma() {
        let columns = |gpu, has_groups| {
            TILES.map(|tile| {
                tile.of_warpgroups(gpu, has_groups)
                    .map(|tile| (tile.columns, tile.threads()))
            })
        };
        assert_eq!(columns(Gpu::H100, false), [None; 3]);
        for has_groups in [false, true] {
            assert_eq!(
                columns(Gpu::HOPPER, has_groups),
                [Some((256, 256)), Some((128, 256)), None]
            );
        }
        // Four steps of 128 x 256 values of 16 bits, eight barriers, and two numbers per column.
        let need = 4 * 2 * 64 * (128 + 256) + 1024 + 64 + 8 * 256;
        for (shared_bytes, largest) in [(need, Some((256, 256))), (need - 1, None)] {
            let gpu = Gpu {
                shared_bytes,
                ..Gpu::HOPPER
            };
            assert_eq!(columns(gpu, true)[0], largest);
        }
    }

    #[test]
    fn tiles_stay_within_gpu_limits() {
        let of = |shared_bytes, weights| {
            let gpu = Gpu {
                shared_bytes,
                ..Gpu::H100
            };
            Tiles::new(gpu, weights, true).of_groups(14336, 4096, 8).columns
        };
        let quantized = Value::Type(GgmlType::Q4_K);
        // 128 x 256 values of 16 bits twice, and two numbers per column.
        let need = 4 * 64 * (128 + 256) + 8 * 256;
        assert_eq!([need, need - 1].map(|bytes| of(bytes, quantized)), [256, 128]);
        let columns = ["f16x8", "f32x4"].map(|word| of(need, Value::Word(word)));
        assert_eq!(columns, [256; 2]);
        assert_eq!(
            [GgmlType::F16, GgmlType::BF16].map(|ty| of(need, Value::Type(ty))),
            [128; 2]
        );
        assert!(TILES.into_iter().chain([FEW]).all(|tile| tile.threads() <= 256));
    }
}
