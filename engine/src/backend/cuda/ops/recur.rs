//! Planning of recurrences over tokens.

use bytemuck::{Pod, Zeroable};

use super::super::kernel::{Kernel, RECUR};
use super::arguments::TensorArg;
use super::task::Task;
use super::unplanned::{Unplanned, size};
use crate::graph::{LinearAttention, Recurrence};

/// Index of the recurrence's first own operand, after the states and the two cell lists.
const FIRST: usize = 3;

/// Maximum number of operands of a recurrence.
const MAX_OPERANDS: usize = 6;

/// Threads per block. Few, so that even a single head is distributed over many multiprocessors.
const THREADS: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    states: TensorArg,
    from: TensorArg,
    to: TensorArg,
    y: TensorArg,
    operands: [TensorArg; MAX_OPERANDS],
    fault: u64,
    node: u32,
    i: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct LinearParams {
    common: Params,
    scale: f32,
    slope: f32,
    delta: i32,
    tiled: i32,
    has_decay: i32,
    has_beta: i32,
}

pub(super) fn plan(task: &mut Task<'_>, recurrence: Recurrence) -> Result<(), Unplanned> {
    let n_operands = task.node.sources().count() - FIRST;
    let mut operands = [TensorArg::NONE; MAX_OPERANDS];
    for (i, operand) in operands[..n_operands].iter_mut().enumerate() {
        *operand = task.source(FIRST + i)?;
    }
    let fault = task.fault();
    let mut params = Params {
        states: task.state(0)?,
        from: task.source(1)?,
        to: task.source(2)?,
        y: task.result()?,
        operands,
        fault: fault.record,
        node: fault.node,
        i: 0,
    };
    let [n0, n1, ..] = task.node.ne;
    // Number of threads: one per channel or column, or a warp per row of a state.
    let (name, n_threads) = match recurrence {
        Recurrence::ShortConv { dilation } => {
            params.i = size(dilation)? as i32;
            ("short_conv", n0)
        }
        Recurrence::TokenShift => ("previous", n0),
        Recurrence::Compress { overlap } => {
            params.i = overlap.into();
            ("compress", n0)
        }
        Recurrence::SsmScan => ("ssm_scan", 32 * n0 * n1),
        Recurrence::Wkv6 => ("wkv6", 32 * n0 * n1),
        Recurrence::Wkv7 => ("wkv7", 32 * n0 * n1),
        Recurrence::LinearAttention(p) => return linear_attention(task, &p, params, n_operands),
    };
    launch(task, name, n_threads, &params)
}

/// Plans one thread per column of a head's state.
fn linear_attention(
    task: &mut Task<'_>,
    p: &LinearAttention,
    common: Params,
    n_operands: usize,
) -> Result<(), Unplanned> {
    let params = LinearParams {
        common,
        scale: p.scale,
        slope: p.slope,
        delta: p.delta.into(),
        tiled: p.tiled.into(),
        has_decay: (n_operands > 3).into(),
        has_beta: (n_operands > 4).into(),
    };
    launch(task, "linear_attention", task.node.ne[0] * task.node.ne[1], &params)
}

fn launch(task: &mut Task<'_>, name: &'static str, n_threads: usize, params: &impl Pod) -> Result<(), Unplanned> {
    let grid = [size(n_threads)?.div_ceil(THREADS), 1, 1];
    task.launch(Kernel::new(&RECUR, name), grid, THREADS, params)
}
