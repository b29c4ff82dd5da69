//! Matmuls: row by row for few columns, in tiles for many columns.

use bytemuck::{Pod, Zeroable};
use kernels::Precision;

use super::super::gpu::Gpu;
use super::super::kernel::{GROUP, Kernel, MUL_MAT};
use super::arguments::TensorArg;
use super::decoder::decoder;
use super::half_tiles::HalfTiles;
use super::integers;
use super::skinny::{self, Products};
use super::stream;
use super::task::{COLUMNS_ALIGNMENT, Grouping, Task};
use super::tensor::{self, Groups, Tiles};
use super::unplanned::{Unplanned, size};
use crate::graph::{Graph, Op, Tensor};

/// Maximum number of columns for which a warp computes all elements of a row.
const FEW_COLUMNS: usize = 8;

/// Maximum number of these columns if `mul_stream.cu` suits the matrix better.
const FEW_COLUMNS_OF_LARGE: usize = 4;

/// Minimum number of weights of a large matrix. By instruction counts, the gain for smaller ones is less than the launch
/// that converts columns and the launches of operations that would otherwise be fused.
const LARGE: usize = 1 << 25;

/// Rows, columns, and threads per tile of `mul_mat.cu`.
const TILE: [u32; 2] = [32, 32];
const TILE_THREADS: u32 = 128;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct MatParams {
    w: TensorArg,
    x: TensorArg,
    y: TensorArg,
    tiles: u64,
    order: u64,
    n_used: i32,
    padding: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct GroupParams {
    ids: TensorArg,
    fault: u64,
    tiles: u64,
    order: u64,
    node: u32,
    n_matrices: i32,
    tile: i32,
    n_tiles: i32,
}

/// Threads of the block that groups columns.
const GROUP_THREADS: u32 = 256;

/// Maximum number of matrices whose counters fit in the shared memory of a block.
const MAX_GROUPS: usize = 8192;

pub(super) fn mul_mat(task: &mut Task<'_>) -> Result<(), Unplanned> {
    let (w, x, y) = (task.source(0)?, task.source(1)?, task.result()?);
    let [m, n, n2, n3] = task.node.ne;
    let outer = size(n2 * n3)?;
    // `mul_stream.cu` needs aligned weights.
    if is_few(task) || (n <= FEW_COLUMNS && !stream::suits(task, &w, false, false)) {
        return skinny::plan(task, &Products::of_one(task.id));
    }
    if tensor::suits(task.target.precision(), task.operand(0)) {
        let tiles = Tiles::new(task.target.gpu(), decoder(task.operand(0), &w), false);
        let is_small = tiles.are_smallest(size(m)?, size(n)?, outer);
        let halves = HalfTiles::of(task, &w, [size(m)?, size(n)?, outer]);
        if stream::suits(task, &w, is_small, halves.is_some()) {
            return stream::plan(task, [w, x, y]);
        }
        if let Some(halves) = halves {
            return halves.plan(task, [w, x, y], None);
        }
        return tensor::plan(task, [w, x, y], None);
    }
    let grid = [size(m)?.div_ceil(TILE[0]), size(n)?.div_ceil(TILE[1]), outer];
    let params = MatParams {
        w,
        x,
        y,
        ..MatParams::zeroed()
    };
    task.launch(mat_kernel(task.operand(0), &w, false), grid, TILE_THREADS, &params)
}

/// Returns the kernel of `mul_mat.cu` for these weights.
fn mat_kernel(weights: &Tensor, w: &TensorArg, by_ids: bool) -> Kernel {
    let kernel = Kernel::new(&MUL_MAT, "mul_mat").with("TYPE", decoder(weights, w));
    kernel.with_int("IDS", by_ids.into())
}

/// Returns true if a matmul has so few columns that a warp computes all elements of a row.
pub(in super::super) fn has_few_columns(gpu: Gpu, precision: Precision, graph: &Graph, product: &Tensor) -> bool {
    match product.op {
        Op::MulMat => product.ne[1] <= most_of_few(gpu, precision, graph.tensor(product.source(0))),
        Op::MulMatId => product.ne[2] <= FEW_COLUMNS || graph.tensor(product.source(0)).ne[2] > MAX_GROUPS,
        _ => false,
    }
}

fn is_few(task: &Task<'_>) -> bool {
    has_few_columns(task.target.gpu(), task.target.precision(), task.graph, task.node)
}

/// Returns the maximum number of columns that `skinny.rs` multiplies. With fast memory, `mul_stream.cu` multiplies 5 to 8
/// columns of large matrices faster, if instructions limit the other kernels.
fn most_of_few(gpu: Gpu, precision: Precision, weights: &Tensor) -> usize {
    let is_large = weights.ne[0] * weights.ne[1] >= LARGE && weights.ne[2] * weights.ne[3] == 1;
    let is_limited = gpu.has_fast_memory && integers::are_limited_by_instructions(weights.ty);
    if is_large && is_limited && tensor::suits(precision, weights) {
        FEW_COLUMNS_OF_LARGE
    } else {
        FEW_COLUMNS
    }
}

/// Assumed bandwidth of the bus in bytes per second (PCIe 4.0 with 16 lanes), and multiply-adds per second of
/// a CPU (about 16 cores).
const BUS: f64 = 25e9;
const CPU: f64 = 1e12;

/// Returns true if the CPU would take longer for the matmul than the bus takes to transfer the weights.
pub(in super::super) fn pays_to_bring_weights(graph: &Graph, product: &Tensor) -> bool {
    let n_columns = match product.op {
        Op::MulMat => product.ne[1..].iter().product::<usize>(),
        Op::MulMatId => product.ne[1] * product.ne[2],
        _ => return false,
    };
    let weights = graph.tensor(product.source(0));
    let products = (weights.ne[0] * weights.ne[1] * n_columns) as f64;
    products / CPU > weights.nbytes() as f64 / BUS
}

pub(super) fn mul_mat_id(task: &mut Task<'_>) -> Result<(), Unplanned> {
    if !is_few(task) {
        return mul_mat_by_groups(task);
    }
    skinny::plan(task, &Products::of_one(task.id))
}

/// Returns the addresses of tiles, of the order of columns, and of `more` bytes of scratch memory. Matmuls with the same
/// ids, such as those of a gated unit, share a grouping.
fn group(task: &mut Task<'_>, grouping: &Grouping, more: usize) -> Result<[u64; 3], Unplanned> {
    let n_pairs = grouping.ids.ne.iter().map(|&n| n as usize).product::<usize>();
    let of_tiles = 3 * size_of::<i32>() * grouping.n_tiles as usize;
    let of_all = (of_tiles + size_of::<i32>() * n_pairs).next_multiple_of(COLUMNS_ALIGNMENT);
    let (tiles, is_new) = task.target.grouping(grouping, of_all + more)?;
    let order = tiles + of_tiles as u64;
    if is_new {
        let fault = task.fault();
        let params = GroupParams {
            ids: grouping.ids,
            fault: fault.record,
            node: fault.node,
            tiles,
            order,
            n_matrices: grouping.n_matrices,
            tile: grouping.tile,
            n_tiles: grouping.n_tiles,
        };
        let shared = size(size_of::<i32>() * grouping.n_matrices as usize)?;
        task.launch_with(Kernel::new(&GROUP, "group"), [1, 1, 1], GROUP_THREADS, shared, &params)?;
    }
    Ok([tiles, order, tiles + of_all as u64])
}

/// Groups columns by matrix on the device, then computes each group in tiles. Each matrix is read once per
/// tile of columns.
fn mul_mat_by_groups(task: &mut Task<'_>) -> Result<(), Unplanned> {
    let (w, x, y, ids) = (task.source(0)?, task.source(1)?, task.result()?, task.source(2)?);
    let [m, n_used, n_tokens, _] = task.node.ne;
    let (n_pairs, n_matrices) = (n_used * n_tokens, task.operand(0).ne[2]);
    let on_tensor_cores = tensor::suits(task.target.precision(), task.operand(0));
    let tiles = Tiles::new(task.target.gpu(), decoder(task.operand(0), &w), true);
    let n_average = n_pairs / n_matrices;
    let large = tiles.of_groups(size(m)?, size(n_average)?, size(n_matrices)?);
    let halves = if on_tensor_cores {
        HalfTiles::of_groups(task, &w, [size(m)?, size(n_average)?, size(n_matrices)?])
    } else {
        None
    };
    let streamed = if on_tensor_cores && halves.is_none() && large.is_for_few() {
        stream::tile_of_groups(task, [&w, &x], n_average)
    } else {
        None
    };
    let tile = match (streamed, halves) {
        (Some(tile), _) => tile,
        (None, Some(halves)) => halves.columns() as usize,
        (None, None) if on_tensor_cores => large.columns as usize,
        (None, None) => TILE[1] as usize,
    };
    // One tile of each matrix may be partially filled.
    let n_tiles = n_pairs / tile + n_matrices.min(n_pairs);
    size(n_pairs)?;
    let grouping = Grouping {
        ids,
        n_matrices: size(n_matrices)? as i32,
        tile: size(tile)? as i32,
        n_tiles: size(n_tiles)? as i32,
    };
    if streamed.is_some() {
        return stream::plan_groups(task, [w, x, y], &grouping, group);
    }
    let [tiles, order, _] = group(task, &grouping, 0)?;
    if on_tensor_cores {
        let groups = Groups {
            tiles,
            order,
            n_tiles,
            n_used,
            tile: large,
        };
        if let Some(halves) = halves {
            return halves.plan(task, [w, x, y], Some(groups));
        }
        return tensor::plan(task, [w, x, y], Some(groups));
    }
    let params = MatParams {
        w,
        x,
        y,
        tiles,
        order,
        n_used: size(n_used)? as i32,
        padding: 0,
    };
    let grid = [size(m)?.div_ceil(TILE[0]), size(n_tiles)?, 1];
    task.launch(mat_kernel(task.operand(0), &w, true), grid, TILE_THREADS, &params)
}
