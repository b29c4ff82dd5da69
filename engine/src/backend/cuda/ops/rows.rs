//! Ops over dimension 0: a block of threads has a row.

use bytemuck::{Pod, Zeroable};

use super::super::kernel::{Kernel, ROWS};
use super::arguments::TensorArg;
use super::{Refusal, Task, size};
use crate::graph::Op;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    x: TensorArg,
    w: TensorArg,
    y: TensorArg,
    c: f32,
    i: [i32; 2],
    padding: u32,
}

/// The largest matrix of [`Op::Balance`] that fits in shared memory with sums of its rows.
const MAX_BALANCE: usize = 96;

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
    // A thread for a few elements, in whole warps.
    let threads = size(x.ne[0].div_ceil(4).next_multiple_of(32).clamp(32, 512))?;
    let params = Params {
        x: task.source(0)?,
        w: task.optional(weighted.then_some(1))?,
        y: task.result()?,
        c,
        i,
        padding: 0,
    };
    task.launch_with(kernel, [n_rows, 1, 1], threads, shared, &params)
}
