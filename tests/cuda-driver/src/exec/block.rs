//! A block: its warps run in turn, each until it ends or comes to a barrier.

use super::env::Env;
use super::fault::{Fault, Kind};
use super::inst::{Barrier, BarrierOp, Kernel, Special};
use super::lanes::{ALL, LANES, write};
use super::warp::{Stop, Warp};

/// A barrier of a block, while warps come to it.
#[derive(Default, Clone)]
struct Meeting {
    /// Threads that came, those of a warp counted as 32.
    come: u32,
    /// Warps that wait, with what they wait at.
    waiting: Vec<(usize, Barrier)>,
    /// Lanes whose predicate is true, over all warps, and lanes in all.
    is_true: u32,
    lanes: u32,
}

/// Runs a block. `warps` are as many as it needs.
pub fn run(warps: &mut [Warp], env: &mut Env, block: [u32; 3]) -> Result<(), Box<Fault>> {
    for warp in warps.iter_mut() {
        warp.begin(env.threads, env.kernel.local_bytes);
        set_block(warp, env.kernel, block);
    }
    env.barriers += 1;
    let mut meetings: [Meeting; 16] = Default::default();
    let mut runnable: Vec<usize> = (0..warps.len()).rev().collect();
    let mut ended = vec![false; warps.len()];
    while let Some(i) = runnable.pop() {
        match warps[i].run(env).map_err(|fault| placed(fault, block))? {
            Stop::Ended => ended[i] = true,
            Stop::Barrier(barrier) => {
                let released = arrive(warps, i, &barrier, &mut meetings, env).map_err(|fault| placed(fault, block))?;
                // In order, the first one next.
                runnable.extend(released.into_iter().rev());
            }
        }
    }
    if ended.iter().all(|e| *e) {
        Ok(())
    } else {
        Err(placed(stuck(warps, &ended, &meetings, env), block))
    }
}

fn placed(mut fault: Box<Fault>, block: [u32; 3]) -> Box<Fault> {
    fault.block = block;
    fault
}

/// A warp comes to a barrier; the warps that can go on.
fn arrive(
    warps: &mut [Warp],
    i: usize,
    barrier: &Barrier,
    meetings: &mut [Meeting],
    env: &mut Env,
) -> Result<Vec<usize>, Box<Fault>> {
    let first = warps[i].live().trailing_zeros() as usize % LANES;
    // SAFETY: the decoder gave these operands registers of 32 bits.
    let value = |slot| unsafe { super::lanes::read::<u32>(warps[i].file(), slot)[first] };
    let line = env.kernel.code[warps[i].pc as usize].line;
    let all = (warps.len() * LANES) as u32;
    let (id, expected) = (value(barrier.id), barrier.count.map_or(all, value));
    let Some(meeting) = meetings.get_mut(id as usize) else {
        return Err(fault_at(line, format!("barrier {id}: there are 16")));
    };
    if expected % LANES as u32 != 0 || expected > all || expected == 0 {
        return Err(fault_at(line, format!("barrier {id} for {expected} threads of {all}")));
    }
    meeting.come += LANES as u32;
    if let Some((_, predicate, negate, _)) = barrier.reduce {
        let live = warps[i].live();
        meeting.is_true += ((warps[i].predicate(predicate) ^ negate) & live).count_ones();
        meeting.lanes += live.count_ones();
    }
    let mut released = Vec::new();
    if barrier.waits {
        meeting.waiting.push((i, barrier.clone()));
    } else {
        released.push(i);
    }
    if meeting.come < expected {
        return Ok(released);
    }
    let meeting = std::mem::take(meeting);
    env.barriers += 1;
    for (warp, barrier) in &meeting.waiting {
        give_result(&mut warps[*warp], barrier, &meeting);
        released.push(*warp);
    }
    Ok(released)
}

fn give_result(warp: &mut Warp, barrier: &Barrier, meeting: &Meeting) {
    let Some((op, _, _, d)) = barrier.reduce else { return };
    let live = warp.live();
    let as_mask = |b: bool| if b { ALL } else { 0 };
    match op {
        BarrierOp::Count => warp.write_all(d, meeting.is_true, live),
        BarrierOp::All => warp.set_predicate(d, as_mask(meeting.is_true == meeting.lanes), live),
        BarrierOp::Any => warp.set_predicate(d, as_mask(meeting.is_true != 0), live),
    }
}

fn fault_at(line: u32, what: String) -> Box<Fault> {
    let mut fault = Fault::new(Kind::Synchronization, None, what);
    fault.line = line;
    fault
}

/// Warps wait at barriers that the others do not come to.
fn stuck(warps: &[Warp], ended: &[bool], meetings: &[Meeting], env: &Env) -> Box<Fault> {
    let mut line = 0;
    let mut places = Vec::new();
    for (id, meeting) in meetings.iter().enumerate() {
        for (i, _) in &meeting.waiting {
            let at = env.kernel.code[warps[*i].pc as usize].line;
            line = if line == 0 { at } else { line };
            places.push(format!("warp {i} at barrier {id}, line {at}"));
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
        format!("warps wait for others that do not come: {}{ended}", places.join(", ")),
    )
}

/// Writes the special registers that are the same in all blocks of a launch.
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
                    let wanted = masks.iter().zip(has).filter(|(_, has)| *has);
                    wanted.fold(0, |all, (mask, _)| all | mask)
                }
                Special::Processors => PROCESSORS,
                Special::Grid => 1,
                Special::SharedBytes => kernel.shared_bytes + dynamic_shared,
                Special::DynamicSharedBytes => dynamic_shared,
                Special::Block(_) | Special::Processor => 0,
            }
        };
        let values: [u32; LANES] = std::array::from_fn(of_lane);
        // SAFETY: the decoder gave special registers 32 bits.
        unsafe { write(warp.file_mut(), *slot, &values, ALL) };
    }
}

/// Writes those that tell blocks apart.
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

/// Multiprocessors of the emulated device.
pub const PROCESSORS: u32 = 132;
