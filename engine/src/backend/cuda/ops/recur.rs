//! Planning of recurrences over tokens.

use bytemuck::{Pod, Zeroable};

use super::super::kernel::{Kernel, RECUR};
use super::arguments::TensorArg;
use super::scan;
use super::task::Task;
use super::unplanned::{Unplanned, size};
use crate::graph::Recurrence;

/// Index of the recurrence's first own operand, after the states and the two cell lists.
pub(super) const FIRST: usize = 3;

/// Maximum number of operands of a recurrence over channels.
const MAX_OPERANDS: usize = 3;

/// Threads per block. A small number, so that even a few channels are distributed over many multiprocessors.
const THREADS: u32 = 64;

/// Maximum number of taps that a thread keeps in registers.
const MAX_TAPS: usize = 8;

/// Maximum number of tokens of a batch whose sequences are computed by different blocks.
const MAX_SPREAD: usize = 32;

/// States and the cells that each token reads and writes.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct States {
    pub(super) cells: TensorArg,
    from: TensorArg,
    to: TensorArg,
    fault: u64,
    node: u32,
    pub(super) n_tokens: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    states: States,
    y: TensorArg,
    operands: [TensorArg; MAX_OPERANDS],
    i: i32,
    padding: i32,
}

impl States {
    pub(super) fn of(task: &mut Task<'_>) -> Result<States, Unplanned> {
        let fault = task.fault();
        let from = task.source(1)?;
        Ok(States {
            cells: task.state(0)?,
            from,
            to: task.source(2)?,
            fault: fault.record,
            node: fault.node,
            n_tokens: from.ne[0],
        })
    }

    /// Returns the number of blocks that share the tokens: one, or one for each token.
    pub(super) fn spread(&self) -> u32 {
        let n = self.n_tokens.unsigned_abs();
        if n as usize <= MAX_SPREAD { n } else { 1 }
    }
}

pub(super) fn plan(task: &mut Task<'_>, recurrence: Recurrence) -> Result<(), Unplanned> {
    match recurrence {
        Recurrence::ShortConv { dilation: 1 } if task.operand(FIRST + 1).ne[0] <= MAX_TAPS => {
            let taps = task.operand(FIRST + 1).ne[0];
            let kernel = Kernel::new(&RECUR, "short_conv").with_int("TAPS", taps as i64);
            slide(task, kernel)
        }
        Recurrence::TokenShift => slide(task, Kernel::new(&RECUR, "previous")),
        Recurrence::ShortConv { dilation } => {
            let dilation = size(dilation)? as i32;
            channels(task, Kernel::new(&RECUR, "dilated_conv"), dilation, 1)
        }
        Recurrence::Compress { overlap } => channels(task, Kernel::new(&RECUR, "compress"), overlap.into(), 1),
        Recurrence::SsmScan | Recurrence::Wkv6 | Recurrence::Wkv7 | Recurrence::LinearAttention(_) => {
            scan::plan(task, recurrence)
        }
    }
}

/// Plans a recurrence over a window of inputs, which are in registers.
fn slide(task: &mut Task<'_>, kernel: Kernel) -> Result<(), Unplanned> {
    let spread = States::of(task)?.spread();
    channels(task, kernel.with_int("SPREADS", (spread > 1).into()), 0, spread)
}

/// Plans one thread per channel, in `spread` blocks.
fn channels(task: &mut Task<'_>, kernel: Kernel, i: i32, spread: u32) -> Result<(), Unplanned> {
    let mut operands = [TensorArg::NONE; MAX_OPERANDS];
    let n_operands = task.node.sources().count() - FIRST;
    for (i, operand) in operands[..n_operands].iter_mut().enumerate() {
        *operand = task.source(FIRST + i)?;
    }
    let params = Params {
        states: States::of(task)?,
        y: task.result()?,
        operands,
        i,
        padding: 0,
    };
    let n_channels = size(task.node.ne[0])?;
    task.launch(kernel, [n_channels.div_ceil(THREADS), 1, spread], THREADS, &params)
}
