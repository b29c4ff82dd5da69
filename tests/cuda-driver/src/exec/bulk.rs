//! Instructions of warps with different roles: `mbarrier`, bulk copies, and `setmaxnreg`.

use super::env::Env;
use super::fault::{Fault, Kind};
use super::inst::{BulkCopy, MbarrierOp, PhaseOperation, PhaseWait};
use super::lanes::{LANES, read};
use super::latency::{GLOBAL, L2_BYTES, SHARED};
use super::warp::Warp;

/// Registers of a multiprocessor.
const REGISTERS: u32 = 65536;

/// Bytes that the emulator copies at a time.
const UNIT: u32 = 16;

impl Warp {
    /// Executes an `mbarrier` instruction other than a wait.
    pub fn mbarrier(&mut self, env: &mut Env, op: &MbarrierOp, on: u32) -> Result<(), Box<Fault>> {
        let addresses = self.addresses(&op.object);
        // SAFETY: the decoder assigned a 32-bit register (`Decoder::mbarrier`).
        let operands = unsafe { read::<u32>(self.file(), op.operand) };
        let clock = self.now() + SHARED;
        let now = env.now(self.time);
        let mut left = on;
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let (address, operand) = (addresses[first], operands[first]);
            // Lanes with equal operands arrive together.
            let is_alike = |lane: &usize| addresses[*lane] == address && operands[*lane] == operand;
            let lanes = (0..LANES).filter(|lane| left >> lane & 1 != 0).filter(is_alike);
            let lanes = lanes.fold(0, |mask, lane| mask | 1 << lane);
            left &= !lanes;
            let thread = self.thread(lanes);
            if address % super::mbarrier::BYTES != 0 {
                let description = format!("misaligned `mbarrier` at {address}: expected a multiple of 8");
                return Err(Fault::new(Kind::Misaligned, Some(thread), description));
            }
            if op.operation == PhaseOperation::Init {
                env.shared.touch(address, 8, thread, now, true)?;
            } else {
                env.shared.check_mbarrier(address, thread, now)?;
            }
            let Some(mbarriers) = &mut env.shared.mbarriers else {
                continue;
            };
            let n = lanes.count_ones();
            match op.operation {
                PhaseOperation::Init => mbarriers.init(address, operand, thread)?,
                PhaseOperation::Invalidate => mbarriers.invalidate(address, thread)?,
                PhaseOperation::Arrive => mbarriers.arrive(address, lanes, operand, thread, clock)?,
                PhaseOperation::Expect => mbarriers.expect(address, n * operand, thread)?,
                PhaseOperation::ArriveAndExpect => {
                    mbarriers.expect(address, n * operand, thread)?;
                    mbarriers.arrive(address, lanes, 1, thread, clock)?;
                }
            }
        }
        Ok(())
    }

    /// Returns true if the phases that the lanes wait for have ended.
    pub fn try_wait(&mut self, env: &mut Env, wait: &PhaseWait, on: u32) -> Result<bool, Box<Fault>> {
        let addresses = self.addresses(&wait.object);
        // SAFETY: the decoder assigned a 32-bit register (`Decoder::mbarrier`).
        let parities = unsafe { read::<u32>(self.file(), wait.parity) };
        let now = env.now(self.time);
        let mut last = 0;
        for lane in (0..LANES).filter(|lane| on >> lane & 1 != 0) {
            let (address, thread) = (addresses[lane], self.thread(1 << lane));
            env.shared.check_mbarrier(address, thread, now)?;
            let Some(mbarriers) = &mut env.shared.mbarriers else {
                continue;
            };
            let written = mbarriers.complete(address, thread)?;
            let ended = mbarriers.has_ended(address, parities[lane], thread)?;
            written.iter().for_each(|copy| env.shared.end_bulk_copy(copy, now));
            let Some(ended_at) = ended else {
                self.waits_for = address;
                return Ok(false);
            };
            last = last.max(ended_at);
        }
        if let Some(chain) = &mut self.chain {
            chain.wait_until(last);
        }
        Ok(true)
    }

    /// Starts bulk copies, one per lane. The source is read immediately.
    pub fn bulk_copy(&mut self, env: &mut Env, copy: &BulkCopy, on: u32) -> Result<(), Box<Fault>> {
        let [to, from, barriers] = [&copy.to, &copy.from, &copy.object].map(|access| self.addresses(access));
        // SAFETY: the decoder assigned a 32-bit register (`Decoder::bulk_copy`).
        let lens = unsafe { read::<u32>(self.file(), copy.bytes) };
        let now = env.now(self.time);
        for lane in (0..LANES).filter(|lane| on >> lane & 1 != 0) {
            let (thread, len) = (self.thread(1 << lane), lens[lane]);
            let (to, from) = (to[lane], from[lane]);
            if len == 0 || (to | from | u64::from(len)) % u64::from(UNIT) != 0 {
                let description = format!(
                    "misaligned bulk copy of {len} bytes from {from:#x} to shared memory offset {to}: expected multiples of 16"
                );
                return Err(Fault::new(Kind::Misaligned, Some(thread), description));
            }
            env.shared.check_mbarrier(barriers[lane], thread, now)?;
            let bytes = self.global_bytes(env, copy, lane, from, len)?;
            env.shared.begin_bulk_copy(to, len, thread, now)?;
            let ready_at = self.now() + GLOBAL + u64::from(len) / L2_BYTES;
            if let Some(mbarriers) = &mut env.shared.mbarriers {
                let number = mbarriers.start_copy(barriers[lane], to, bytes, thread, ready_at)?;
                env.shared.set_copier(to, len, number);
            }
        }
        Ok(())
    }

    /// Reads global memory on behalf of a lane.
    fn global_bytes(
        &mut self,
        env: &mut Env,
        copy: &BulkCopy,
        lane: usize,
        from: u64,
        len: u32,
    ) -> Result<Vec<u8>, Box<Fault>> {
        let mut bytes = vec![0; len as usize];
        let mut start = 0;
        for part in bytes.chunks_mut(UNIT as usize * LANES) {
            let addresses = std::array::from_fn(|i| from + start + i as u64 * u64::from(UNIT));
            let n_units = part.len() / UNIT as usize;
            let mask = u32::MAX >> (LANES - n_units);
            let mut touch = self.touch(&addresses, UNIT, mask, true, false);
            touch.first_thread += lane as u32;
            let pointers = env.touch(copy.from.space, &touch, &mut self.local)?;
            for (unit, pointer) in part.chunks_mut(UNIT as usize).zip(pointers) {
                // SAFETY: `touch` checked that 16 bytes can be read at each pointer of `mask`.
                unsafe { unit.as_mut_ptr().copy_from(pointer, UNIT as usize) };
            }
            start += (UNIT as usize * LANES) as u64;
        }
        Ok(bytes)
    }

    /// Changes the number of registers of each thread.
    pub fn set_registers(&mut self, env: &Env, n: u32, is_increase: bool) -> Result<(), Box<Fault>> {
        let thread = self.thread(u32::MAX);
        let Some(max_threads) = env.kernel.max_threads else {
            let description = "`setmaxnreg` has no effect: the kernel has no maximum number of threads";
            return Err(Fault::new(Kind::Synchronization, Some(thread), description));
        };
        let before = self.registers.unwrap_or_else(|| initial_registers(max_threads));
        if is_increase == (n < before) && n != before {
            let (name, relation) = if is_increase {
                ("inc", "at least")
            } else {
                ("dec", "at most")
            };
            let description = format!("`setmaxnreg.{name}`: expected {relation} {before} registers, found {n}");
            return Err(Fault::new(Kind::Synchronization, Some(thread), description));
        }
        self.registers = Some(n);
        Ok(())
    }
}

/// Returns the registers per thread at the start of a kernel with this maximum number of threads.
fn initial_registers(max_threads: u32) -> u32 {
    (REGISTERS / max_threads.max(1) / 8 * 8).min(255)
}

/// Checks the registers and the copies of a block whose warps ended.
pub fn check_end(warps: &[Warp], env: &Env) -> Result<(), String> {
    let n_copies = env.shared.mbarriers.as_ref().map_or(0, |m| m.n_copies());
    if n_copies > 0 {
        return Err(format!(
            "the block ended before {n_copies} bulk copies: a warp must wait for each copy"
        ));
    }
    if warps.iter().all(|warp| warp.registers.is_none()) {
        return Ok(());
    }
    if let Some(group) = warps.chunks(4).position(|group| {
        let first = group[0].registers;
        group.iter().any(|warp| warp.registers != first)
    }) {
        let first = 4 * group;
        return Err(format!(
            "`setmaxnreg` must be executed by all four warps of a group: warps {first} to {} differ",
            first + 3
        ));
    }
    let initial = initial_registers(env.kernel.max_threads.unwrap_or(env.threads));
    let needed: u32 = (warps.iter())
        .map(|warp| LANES as u32 * warp.registers.unwrap_or(initial))
        .sum();
    let available = LANES as u32 * initial * warps.len() as u32;
    if needed > available {
        return Err(format!(
            "`setmaxnreg` never ends: the block has {available} registers, but its warps request {needed}"
        ));
    }
    Ok(())
}
