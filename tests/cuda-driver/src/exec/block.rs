//! Executes a block. The warps run one after the other, each until it exits or reaches a barrier.

use super::bulk;
use super::env::Env;
use super::fault::{Fault, Kind};
use super::inst::{Barrier, BarrierOp, Kernel, Special};
use super::lanes::{ALL, LANES, write};
use super::warp::{StopReason, Warp};

/// Progress of a barrier.
#[derive(Default, Clone)]
struct BarrierState {
    /// Number of arrived threads; each warp counts as 32.
    arrived: u32,
    /// Indices of the waiting warps, with their barrier instructions.
    waiting: Vec<(usize, Barrier)>,
    /// Number of lanes with a true predicate, and of all arrived lanes (`bar.red`).
    is_true: u32,
    lanes: u32,
    /// Clock of the last warp that arrived.
    last: u64,
}

/// Executes a block and returns the clocks of its slowest warp. `warps` must have one warp for every 32 threads.
pub fn run(warps: &mut [Warp], env: &mut Env, block: [u32; 3]) -> Result<u64, Box<Fault>> {
    for warp in warps.iter_mut() {
        warp.begin(env);
        set_block(warp, env.kernel, block);
    }
    env.barriers += 1;
    let mut barrier_states: [BarrierState; 16] = Default::default();
    let mut runnable: Vec<usize> = (0..warps.len()).rev().collect();
    let mut ended = vec![false; warps.len()];
    let mut blocked = Blocked::default();
    while let Some(i) = runnable.pop().or_else(|| blocked.resume(env, &mut runnable)) {
        match warps[i].run(env).map_err(|fault| with_block(fault, block))? {
            StopReason::Ended => ended[i] = true,
            StopReason::Phase => blocked.warps.push(i),
            StopReason::Barrier(barrier) => {
                let released =
                    arrive(warps, i, &barrier, &mut barrier_states, env).map_err(|fault| with_block(fault, block))?;
                // Reverse the order so that the first released warp is popped next.
                runnable.extend(released.into_iter().rev());
            }
        }
    }
    if ended.iter().all(|e| *e) {
        bulk::check_end(warps, env).map_err(|text| with_block(fault_at(0, text), block))?;
        return Ok(warps.iter().map(Warp::now).max().unwrap_or(0));
    }
    let fault = deadlock_fault(warps, &ended, &blocked.warps, &barrier_states, env);
    Err(with_block(fault, block))
}

/// Warps that wait for phases of `mbarrier`.
#[derive(Default)]
struct Blocked {
    warps: Vec<usize>,
    /// Number of events at which warps last resumed.
    events: u64,
}

impl Blocked {
    /// Makes all warps runnable if a phase may have ended, and returns one of them.
    fn resume(&mut self, env: &Env, runnable: &mut Vec<usize>) -> Option<usize> {
        let events = env.shared.mbarriers.as_ref()?.events;
        if self.events == events {
            return None;
        }
        self.events = events;
        runnable.extend(self.warps.drain(..).rev());
        runnable.pop()
    }
}

fn with_block(mut fault: Box<Fault>, block: [u32; 3]) -> Box<Fault> {
    fault.block = block;
    fault
}

/// Records the arrival of warp `i` at a barrier and returns the released warps.
fn arrive(
    warps: &mut [Warp],
    i: usize,
    barrier: &Barrier,
    barrier_states: &mut [BarrierState],
    env: &mut Env,
) -> Result<Vec<usize>, Box<Fault>> {
    let first = warps[i].live().trailing_zeros() as usize % LANES;
    // SAFETY: the decoder assigned 32-bit registers to the barrier ID and count (`Decoder::barrier`).
    let value = |slot| unsafe { super::lanes::read::<u32>(warps[i].file(), slot)[first] };
    let line = env.kernel.code[warps[i].pc as usize].line;
    let all = (warps.len() * LANES) as u32;
    let (id, expected) = (value(barrier.id), barrier.count.map_or(all, value));
    let Some(barrier_state) = barrier_states.get_mut(id as usize) else {
        return Err(fault_at(
            line,
            format!("invalid barrier ID: expected 0 to 15, found {id}"),
        ));
    };
    if expected % LANES as u32 != 0 || expected > all || expected == 0 {
        return Err(fault_at(
            line,
            format!("invalid thread count of barrier {id}: expected a multiple of 32 up to {all}, found {expected}"),
        ));
    }
    barrier_state.arrived += LANES as u32;
    barrier_state.last = barrier_state.last.max(warps[i].now());
    if let Some((_, predicate, negate, _)) = barrier.reduce {
        let live = warps[i].live();
        barrier_state.is_true += ((warps[i].predicate(predicate) ^ negate) & live).count_ones();
        barrier_state.lanes += live.count_ones();
    }
    let mut released = Vec::new();
    if barrier.waits {
        barrier_state.waiting.push((i, barrier.clone()));
    } else {
        released.push(i);
    }
    if barrier_state.arrived < expected {
        return Ok(released);
    }
    let barrier_state = std::mem::take(barrier_state);
    env.barriers += 1;
    let last = barrier_state.last;
    for (warp, barrier) in &barrier_state.waiting {
        write_reduction(&mut warps[*warp], barrier, &barrier_state);
        if let Some(chain) = &mut warps[*warp].chain {
            chain.wait_until(last);
        }
        released.push(*warp);
    }
    Ok(released)
}

fn write_reduction(warp: &mut Warp, barrier: &Barrier, barrier_state: &BarrierState) {
    let Some((op, _, _, d)) = barrier.reduce else { return };
    let live = warp.live();
    let as_mask = |b: bool| if b { ALL } else { 0 };
    match op {
        BarrierOp::Count => warp.write_all(d, barrier_state.is_true, live),
        BarrierOp::All => warp.set_predicate(d, as_mask(barrier_state.is_true == barrier_state.lanes), live),
        BarrierOp::Any => warp.set_predicate(d, as_mask(barrier_state.is_true != 0), live),
    }
}

fn fault_at(line: u32, description: String) -> Box<Fault> {
    let mut fault = Fault::new(Kind::Synchronization, None, description);
    fault.line = line;
    fault
}

/// Returns the fault for a deadlock in which warps wait at barriers that the other warps do not reach.
fn deadlock_fault(
    warps: &[Warp],
    ended: &[bool],
    blocked: &[usize],
    barrier_states: &[BarrierState],
    env: &Env,
) -> Box<Fault> {
    let mut line = 0;
    let mut waiting_warps = Vec::new();
    for i in blocked {
        let (address, at) = (warps[*i].waits_for, env.kernel.code[warps[*i].pc as usize].line);
        let state = env.shared.mbarriers.as_ref().map(|m| m.describe(address));
        line = at;
        waiting_warps.push(format!(
            "warp {i} at the `mbarrier` at {address}, line {at} ({})",
            state.unwrap_or_default()
        ));
    }
    for (id, barrier_state) in barrier_states.iter().enumerate() {
        for (i, _) in &barrier_state.waiting {
            let at = env.kernel.code[warps[*i].pc as usize].line;
            line = if line == 0 { at } else { line };
            waiting_warps.push(format!("warp {i} at barrier {id}, line {at}"));
        }
    }
    let ended: Vec<_> = ended
        .iter()
        .enumerate()
        .filter(|(_, e)| **e)
        .map(|(i, _)| i.to_string())
        .collect();
    let ended = if ended.is_empty() {
        String::new()
    } else {
        format!("; warps {} ended", ended.join(", "))
    };
    fault_at(
        line,
        format!("deadlock at a barrier: {}{ended}", waiting_warps.join(", ")),
    )
}

/// Writes the special registers that are equal for all blocks of a launch.
pub fn set_specials(warp: &mut Warp, kernel: &Kernel, threads: [u32; 3], blocks: [u32; 3], dynamic_shared: u32) {
    let first = warp.index * LANES as u32;
    let n_threads: u32 = threads.iter().product();
    for (special, slot) in &kernel.specials {
        let of_lane = |lane: usize| {
            let linear = first + lane as u32;
            match *special {
                Special::Thread(0) => linear % threads[0],
                Special::Thread(1) => linear / threads[0] % threads[1],
                Special::Thread(_) => linear / threads[0] / threads[1],
                Special::Threads(d) => threads[d],
                Special::Blocks(d) => blocks[d],
                Special::Lane => lane as u32,
                Special::Warp => warp.index,
                Special::Warps => n_threads.div_ceil(LANES as u32),
                Special::LaneMask(has) => {
                    let before = (1u32 << lane) - 1;
                    let masks = [before, 1 << lane, !before & !(1 << lane)];
                    let selected = masks.iter().zip(has).filter(|(_, has)| *has);
                    selected.fold(0, |all, (mask, _)| all | mask)
                }
                Special::Processors => PROCESSORS,
                Special::Grid => 1,
                Special::SharedBytes => kernel.shared_bytes + dynamic_shared,
                Special::DynamicSharedBytes => dynamic_shared,
                Special::Block(_) | Special::Processor => 0,
            }
        };
        let values: [u32; LANES] = std::array::from_fn(of_lane);
        // SAFETY: the decoder assigned 32-bit registers to special registers (`Decoder::special`).
        unsafe { write(warp.file_mut(), *slot, &values, ALL) };
    }
}

/// Writes the special registers that depend on the block.
fn set_block(warp: &mut Warp, kernel: &Kernel, block: [u32; 3]) {
    for (special, slot) in &kernel.specials {
        let value = match *special {
            Special::Block(d) => block[d],
            Special::Processor => block[0] % PROCESSORS,
            _ => continue,
        };
        warp.write_all(*slot, value, ALL);
    }
}

/// Number of multiprocessors of the emulated device.
pub const PROCESSORS: u32 = 132;
