//! Ops over dimension 0, with one block of threads per row.

use bytemuck::{Pod, Zeroable};
use kernels::GgmlType;

use super::super::kernel::{Kernel, ROWS};
use super::arguments::TensorArg;
use super::integers;
use super::task::Task;
use super::unplanned::{Unplanned, size};
use crate::graph::{Op, TensorId};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    x: TensorArg,
    w: TensorArg,
    y: TensorArg,
    c: f32,
    i: [i32; 2],
    padding: i32,
    b: TensorArg,
    sum: TensorArg,
    tiles: u64,
}

/// Maximum size `n` of a Sinkhorn matrix. The matrix and its row sums must fit in shared memory.
const MAX_SINKHORN: usize = 96;

/// A norm with at most `FEW_ROWS` rows of at least `LONG_ROW` elements is divided among `PARTS` blocks per
/// row.
const FEW_ROWS: u32 = 16;
const LONG_ROW: i32 = 2048;
const PARTS: u32 = 4;

/// Returns the number of threads for a row of `n` elements: one per four elements, rounded up to whole warps.
/// The order of summation depends on it.
fn threads_of(n: usize) -> Result<u32, Unplanned> {
    size(n.div_ceil(4).next_multiple_of(32).clamp(32, 1024))
}

pub(super) fn plan(task: &mut Task<'_>) -> Result<(), Unplanned> {
    let (name, c) = match task.node.op {
        Op::RmsNorm { eps } => ("rms_norm", eps),
        Op::Norm { eps } => ("layer_norm", eps),
        Op::L2Norm { eps } => ("l2_norm", eps),
        Op::SoftMax { scale } => ("soft_max", scale),
        Op::SumRows => ("sum_rows", 0.0),
        Op::Sinkhorn { eps, .. } => ("balance", eps),
        _ => return Err("not an op over rows".into()),
    };
    let mut kernel = Kernel::new(&ROWS, name);
    let weighted = matches!(task.node.op, Op::RmsNorm { .. }) && task.has(1);
    if weighted {
        kernel = kernel.with_type("W", task.operand(1).ty);
    }
    let (i, shared) = match task.node.op {
        Op::Sinkhorn { n, iterations, .. } if n <= MAX_SINKHORN => (
            [size(n)? as i32, size(iterations.max(1))? as i32],
            size(4 * n * (n + 1))?,
        ),
        Op::Sinkhorn { .. } => return Err("the matrix exceeds the shared memory".into()),
        _ => ([0; 2], 0),
    };
    let x = task.operand(0);
    let n_rows = size(x.nrows())?;
    let threads = threads_of(x.ne[0])?;
    let (x, w) = (
        task.source(0)?,
        if weighted { task.source(1)? } else { TensorArg::NONE },
    );
    let params = Params {
        x,
        w,
        y: task.result()?,
        c,
        i,
        ..Params::zeroed()
    };
    let mut grid = [n_rows, 1, 1];
    if name == "rms_norm" && has_vectors(task, &params.w, &[params.x, params.y]) {
        kernel = kernel.with_int("X4", 1);
        grid = shared_rows(n_rows, &params);
    }
    task.launch_with(kernel, grid, threads, shared, &params)
}

/// Returns true if a norm's rows, and its weight if any, can be accessed in vectors of 4 elements.
fn has_vectors(task: &Task<'_>, w: &TensorArg, rows: &[TensorArg]) -> bool {
    let dense = |arg: &TensorArg| arg.has_vectors(size_of::<f32>(), 16);
    (!task.has(1) || task.operand(1).ty == GgmlType::F32 && dense(w)) && rows.iter().all(dense)
}

/// Returns the grid of a norm.
///
/// Each of few long rows is divided among several blocks, which all compute the sum of squares and store a
/// part of the result. The result must therefore not overlap the input.
fn shared_rows(n_rows: u32, params: &Params) -> [u32; 3] {
    let range = |arg: &TensorArg| arg.data..arg.data + arg.extent();
    let (x, y) = (range(&params.x), range(&params.y));
    let is_disjoint = x.end <= y.start || y.end <= x.start;
    let is_long = params.x.ne[0] >= LONG_ROW && n_rows <= FEW_ROWS;
    let adds = params.b.data != 0;
    [n_rows, if is_disjoint && is_long && !adds { PARTS } else { 1 }, 1]
}

/// A norm and the nodes fused with it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) struct Normed {
    pub(in super::super) norm: TensorId,
    /// The sum that is the input of the norm, if fused.
    pub(in super::super) sum: Option<TensorId>,
    /// True if the sum has other readers.
    pub(in super::super) stores_sum: bool,
    /// True if integer matmuls read the norm.
    pub(in super::super) rounds: bool,
}

/// Maximum row length of a fused sum, which is stored in shared memory. A block has 48 KiB without opting in.
pub(in super::super) const MAX_ADDED: usize = 11 << 10;

/// Plans a norm with the sum before it and the quantization after it.
pub(super) fn plan_normed(task: &mut Task<'_>, normed: &Normed) -> Result<(), Unplanned> {
    let Op::RmsNorm { eps } = task.node.op else {
        return Err("a norm".into());
    };
    let graph = task.graph;
    let [n, ..] = task.node.ne;
    let mut params = Params {
        y: task.result()?,
        w: task.source_or_none(1)?,
        c: eps,
        ..Params::zeroed()
    };
    let mut kernel = Kernel::new(&ROWS, "rms_norm");
    if task.has(1) {
        kernel = kernel.with_type("W", task.operand(1).ty);
    }
    let mut shared = 0;
    let mut rows = vec![params.y];
    if let Some(sum) = normed.sum {
        let operand = |task: &mut Task<'_>, i: usize| {
            let id = graph.tensor(sum).source(i);
            TensorArg::new(graph.tensor(id), task.target.address(id, false)?)
        };
        (params.x, params.b) = (operand(task, 0)?, operand(task, 1)?);
        if normed.stores_sum {
            params.sum = TensorArg::new(graph.tensor(sum), task.target.address(sum, true)?)?;
            rows.push(params.sum);
        }
        rows.extend([params.x, params.b]);
        (kernel, shared) = (kernel.with_int("ADDS", 1), size(size_of::<f32>() * n)?);
    } else {
        params.x = task.source(0)?;
        rows.push(params.x);
    }
    let has_vectors = has_vectors(task, &params.w, &rows);
    if has_vectors {
        kernel = kernel.with_int("X4", 1);
    }
    // Without vector loads, the matmul quantizes its own input.
    if normed.rounds && has_vectors {
        params.tiles = integers::written_columns(task, &params.y)?;
        kernel = kernel.with_int("ROUNDS", 1);
    }
    let n_rows = size(task.node.nrows())?;
    let grid = if has_vectors {
        shared_rows(n_rows, &params)
    } else {
        [n_rows, 1, 1]
    };
    task.launch_with(kernel, grid, threads_of(n)?, shared, &params)
}
