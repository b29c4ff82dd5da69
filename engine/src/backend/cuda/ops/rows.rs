//! Ops over dimension 0: a block of threads has a row.

use bytemuck::{Pod, Zeroable};
use kernels::GgmlType;

use super::super::kernel::{Kernel, ROWS};
use super::arguments::TensorArg;
use super::{Refusal, Task, integers, size};
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

/// The largest matrix of [`Op::Balance`] that fits in shared memory with sums of its rows.
const MAX_BALANCE: usize = 96;

/// Rows of a norm that are shared by blocks, of at least some elements, and by how many blocks.
const FEW_ROWS: u32 = 16;
const LONG_ROW: i32 = 2048;
const PARTS: u32 = 4;

/// Threads of a row of `n` elements: one for a few of them, in whole warps. Sums are added up in an order that follows from it.
fn threads_of(n: usize) -> Result<u32, Refusal> {
    size(n.div_ceil(4).next_multiple_of(32).clamp(32, 1024))
}

pub(super) fn plan(task: &mut Task<'_>) -> Result<(), Refusal> {
    let (name, c) = match task.node.op {
        Op::RmsNorm { eps } => ("rms_norm", eps),
        Op::Norm { eps } => ("layer_norm", eps),
        Op::L2Norm { eps } => ("l2_norm", eps),
        Op::SoftMax { scale } => ("soft_max", scale),
        Op::SumRows => ("sum_rows", 0.0),
        Op::Balance { eps, .. } => ("balance", eps),
        _ => return Err("an op over rows".into()),
    };
    let mut kernel = Kernel::new(&ROWS, name);
    let weighted = matches!(task.node.op, Op::RmsNorm { .. }) && task.has(1);
    if weighted {
        kernel = kernel.with_type("W", task.operand(1).ty);
    }
    let (i, shared) = match task.node.op {
        Op::Balance { n, iterations, .. } if n <= MAX_BALANCE => (
            [size(n)? as i32, size(iterations.max(1))? as i32],
            size(4 * n * (n + 1))?,
        ),
        Op::Balance { .. } => return Err("matrices that fit in shared memory".into()),
        _ => ([0; 2], 0),
    };
    let x = task.operand(0);
    let n_rows = size(x.nrows())?;
    let threads = threads_of(x.ne[0])?;
    let params = Params {
        x: task.source(0)?,
        w: task.optional(weighted.then_some(1))?,
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

/// True if a norm's weight, if it has one, and rows can be read and stored 4 elements at a time.
fn has_vectors(task: &Task<'_>, w: &TensorArg, rows: &[TensorArg]) -> bool {
    let dense = |arg: &TensorArg| arg.has_vectors(size_of::<f32>(), 16);
    (!task.has(1) || task.operand(1).ty == GgmlType::F32 && dense(w)) && rows.iter().all(dense)
}

/// The grid of a norm: few long rows are each shared by blocks, all of which add up its squares and store a part of the result. None may store what
/// another still reads.
fn shared_rows(n_rows: u32, params: &Params) -> [u32; 3] {
    let range = |arg: &TensorArg| arg.data..arg.data + arg.extent();
    let (x, y) = (range(&params.x), range(&params.y));
    let is_apart = x.end <= y.start || y.end <= x.start;
    let is_long = params.x.ne[0] >= LONG_ROW && n_rows <= FEW_ROWS;
    let adds = params.b.data != 0;
    [n_rows, if is_apart && is_long && !adds { PARTS } else { 1 }, 1]
}

/// A norm, and what is computed with it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) struct Normed {
    pub(in super::super) norm: TensorId,
    /// The sum that it is the norm of, if that is computed with it.
    pub(in super::super) sum: Option<TensorId>,
    /// The sum has other readers.
    pub(in super::super) stores_sum: bool,
    /// Products in integers read the norm.
    pub(in super::super) rounds: bool,
}

/// Elements of a row whose sum is kept in shared memory, of which a block has 48 KiB without asking.
pub(in super::super) const MAX_ADDED: usize = 11 << 10;

/// Plans the norm with the sum before it and the rounding behind it.
pub(super) fn plan_normed(task: &mut Task<'_>, normed: &Normed) -> Result<(), Refusal> {
    let Op::RmsNorm { eps } = task.node.op else {
        return Err("a norm".into());
    };
    let graph = task.graph;
    let [n, ..] = task.node.ne;
    let mut params = Params {
        y: task.result()?,
        w: task.optional(task.has(1).then_some(1))?,
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
    // Else whoever asks for integers rounds.
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
