//! Loads, stores, atomics, and asynchronous copies of a warp.

use super::env::{Env, Pointers, WarpAccess};
use super::fault::Fault;
use super::half::{pair_of_sums, sum_of};
use super::inst::{Access, AsyncCopy, Atomic, AtomicOp};
use super::lanes::{LANES, Lane, bits, read, write};
use super::scalar::Scalar::{self, *};
use super::warp::{Copy, Warp};
use crate::ptx::Space;

impl Warp {
    pub fn addresses(&self, access: &Access) -> [u64; LANES] {
        let file = self.file();
        // SAFETY: the decoder assigned a register with the width of `is_wide` to the address
        // (`Decoder::address`).
        unsafe {
            if access.is_wide {
                read::<u64>(file, access.address).map(|a| a.wrapping_add(access.offset as u64))
            } else {
                // 32-bit addresses wrap on overflow.
                read::<u32>(file, access.address).map(|a| a.wrapping_add(access.offset as u32).into())
            }
        }
    }

    fn resolve(
        &mut self,
        env: &mut Env,
        access: &Access,
        mask: u32,
        reads: bool,
        writes: bool,
    ) -> Result<Pointers, Box<Fault>> {
        let addresses = self.addresses(access);
        let touch = self.touch(&addresses, access.bytes(), mask, reads, writes);
        env.touch(access.space, &touch, &mut self.local)
    }

    pub fn touch<'a>(
        &self,
        addresses: &'a [u64; LANES],
        bytes: u32,
        mask: u32,
        reads: bool,
        writes: bool,
    ) -> WarpAccess<'a> {
        let (pc, first_thread, warp_time) = (self.pc as usize, self.index * LANES as u32, self.time);
        let unordered = self.unordered;
        WarpAccess {
            mask,
            addresses,
            bytes,
            pc,
            first_thread,
            warp_time,
            unordered,
            reads,
            writes,
        }
    }

    /// Executes a load instruction.
    #[inline]
    pub fn load(&mut self, env: &mut Env, access: &Access, mask: u32) -> Result<(), Box<Fault>> {
        let pointers = self.resolve(env, access, mask, true, false)?;
        let file = self.file_mut();
        for (i, register) in access.registers.iter().enumerate() {
            let at = i * access.kind.bytes() as usize;
            // SAFETY: `resolve` checked the addresses, and the decoder assigned registers of `register_bytes`
            // bytes (`Decoder::access`).
            unsafe { load_element(file, *register, &pointers, at, mask, access) };
        }
        Ok(())
    }

    /// Executes a store instruction.
    #[inline]
    pub fn store(&mut self, env: &mut Env, access: &Access, mask: u32) -> Result<(), Box<Fault>> {
        let pointers = self.resolve(env, access, mask, false, true)?;
        let file = self.file();
        for (i, register) in access.registers.iter().enumerate() {
            let at = i * access.kind.bytes() as usize;
            // SAFETY: `resolve` checked the addresses, and the decoder assigned registers of `register_bytes`
            // bytes (`Decoder::access`).
            unsafe {
                match (access.kind.bytes(), access.register_bytes) {
                    (1, 2) => scatter::<u16, u8>(file, *register, &pointers, at, mask, |v| v as u8),
                    (1, 4) => scatter::<u32, u8>(file, *register, &pointers, at, mask, |v| v as u8),
                    (1, _) => scatter::<u64, u8>(file, *register, &pointers, at, mask, |v| v as u8),
                    (2, 2) => scatter::<u16, u16>(file, *register, &pointers, at, mask, |v| v),
                    (2, 4) => scatter::<u32, u16>(file, *register, &pointers, at, mask, |v| v as u16),
                    (2, _) => scatter::<u64, u16>(file, *register, &pointers, at, mask, |v| v as u16),
                    (4, 4) => scatter::<u32, u32>(file, *register, &pointers, at, mask, |v| v),
                    (4, _) => scatter::<u64, u32>(file, *register, &pointers, at, mask, |v| v as u32),
                    _ => scatter::<u64, u64>(file, *register, &pointers, at, mask, |v| v),
                }
            }
        }
        Ok(())
    }

    /// Executes an atomic instruction, lane by lane.
    pub fn atomic(&mut self, env: &mut Env, atomic: &Atomic, mask: u32) -> Result<(), Box<Fault>> {
        let access = &atomic.access;
        let addresses = self.addresses(access);
        let len = access.bytes();
        // Concurrent atomics on shared memory are not a data race.
        let is_shared = |a: u64| access.space == Space::Shared || super::env::window_of(a) == super::env::SHARED_WINDOW;
        if access.space != Space::Shared {
            let (block_order, block) = env.block_order;
            block_order.wait(block);
        }
        let mut old = [0u64; LANES];
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let touch = self.touch(&addresses, len, 1 << lane, true, true);
            let pointers = if is_shared(addresses[lane]) {
                env.touch_atomically(access.space, &touch, &mut self.local)?
            } else {
                env.touch(access.space, &touch, &mut self.local)?
            };
            let file = self.file();
            // SAFETY: `touch` checked the address, and the decoder assigned registers of `len` bytes. Blocks
            // do not access the memory concurrently because of `BlockOrder::wait`.
            old[lane] = unsafe {
                let operand = |slot| operand(file, slot, lane, len);
                let before = load_bits(pointers[lane], len);
                let after = apply(atomic.op, access.kind, before, operand(atomic.b), operand(atomic.c));
                pointers[lane].copy_from(after.to_le_bytes().as_ptr(), len as usize);
                before
            };
        }
        let (file, register) = (self.file_mut(), access.registers[0]);
        // SAFETY: the decoder assigned a result register of `len` bytes, or the sink.
        unsafe {
            match access.register_bytes {
                2 => write(file, register, &old.map(|v| v as u16), mask),
                4 => write(file, register, &old.map(|v| v as u32), mask),
                _ => write(file, register, &old, mask),
            }
        }
        Ok(())
    }

    /// Starts an asynchronous copy. The source is read immediately; the destination is written when the copy
    /// completes.
    pub fn async_copy(&mut self, env: &mut Env, copy: &AsyncCopy, mask: u32) -> Result<(), Box<Fault>> {
        let file = self.file();
        // SAFETY: the decoder assigned 32-bit registers and predicates to these operands.
        let (mut lens, ignored) = unsafe {
            let lens = copy.read.map_or([copy.bytes; LANES], |slot| read::<u32>(file, slot));
            (lens, copy.ignore.map_or(0, |(slot, negate)| bits(file, slot) ^ negate))
        };
        for lane in 0..LANES {
            lens[lane] = if ignored >> lane & 1 != 0 {
                0
            } else {
                lens[lane].min(copy.bytes)
            };
        }
        let (from, to) = (self.addresses(&copy.from), self.addresses(&copy.to));
        let whole = (0..LANES).fold(0, |m, lane| m | u32::from(lens[lane] == copy.bytes) << lane) & mask;
        let touch = self.touch(&from, copy.bytes, whole, true, false);
        let pointers = env.touch(copy.from.space, &touch, &mut self.local)?;
        let now = env.now(self.time);
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let mut bytes = [0; 16];
            if whole >> lane & 1 != 0 {
                // SAFETY: `touch` checked that `copy.bytes` bytes can be read in each lane of `whole`.
                unsafe { bytes.as_mut_ptr().copy_from(pointers[lane], copy.bytes as usize) };
            } else {
                for i in 0..lens[lane] as usize {
                    let single = from.map(|a| a + i as u64);
                    let touch = self.touch(&single, 1, 1 << lane, true, false);
                    let pointers = env.touch(copy.from.space, &touch, &mut self.local)?;
                    // SAFETY: `touch` checked that one byte can be read in this lane.
                    bytes[i] = unsafe { *pointers[lane] };
                }
            }
            let thread = self.index * LANES as u32 + lane as u32;
            let window = if copy.to.space == Space::Generic {
                super::env::SHARED_WINDOW
            } else {
                0
            };
            let address = to[lane].wrapping_sub(window);
            if address % u64::from(copy.bytes) != 0 {
                let description = format!(
                    "misaligned asynchronous copy of {} bytes to shared memory offset {address}",
                    copy.bytes
                );
                return Err(Fault::new(super::fault::Kind::Misaligned, Some(thread), description));
            }
            env.shared.begin_copy(address, copy.bytes, thread, now)?;
            self.copies.push(Copy {
                lane: lane as u32,
                group: self.committed[lane],
                address,
                bytes,
                len: copy.bytes,
            });
        }
        Ok(())
    }

    /// Commits the current copy group of the lanes in `mask`.
    pub fn async_commit(&mut self, mask: u32) {
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            self.committed[lane] += 1;
        }
    }

    /// Completes all copies except the last `in_flight` groups of each lane; `None` completes all copies.
    pub fn async_wait(&mut self, env: &mut Env, in_flight: Option<u32>, mask: u32) {
        let now = env.now(self.time);
        let first_thread = self.index * LANES as u32;
        let committed = self.committed;
        self.copies.retain(|copy| {
            let last = committed[copy.lane as usize];
            let is_done = in_flight.is_none_or(|n| copy.group < last.saturating_sub(n));
            let ends = is_done && mask >> copy.lane & 1 != 0;
            if ends {
                let bytes = &copy.bytes[..copy.len as usize];
                env.shared.end_copy(copy.address, bytes, first_thread + copy.lane, now);
            }
            !ends
        });
    }
}

/// # Safety
/// The pointers of the lanes in `mask` are valid for reads of an element at offset `at`, and `register` has
/// `access.register_bytes` bytes per lane.
#[inline(always)]
unsafe fn load_element(file: *mut u8, register: u32, from: &Pointers, at: usize, mask: u32, access: &Access) {
    // SAFETY: the pointers are valid and the register has the matching width (function contract).
    unsafe {
        match (access.kind.bytes(), access.kind.is_signed(), access.register_bytes) {
            (4, _, 4) => gather::<u32, u32>(file, register, from, at, mask, |v| v),
            (8, _, _) => gather::<u64, u64>(file, register, from, at, mask, |v| v),
            (2, _, 2) => gather::<u16, u16>(file, register, from, at, mask, |v| v),
            (1, false, 2) => gather::<u8, u16>(file, register, from, at, mask, u16::from),
            (1, true, 2) => gather::<i8, i16>(file, register, from, at, mask, i16::from),
            (1, false, 4) => gather::<u8, u32>(file, register, from, at, mask, u32::from),
            (1, true, 4) => gather::<i8, i32>(file, register, from, at, mask, i32::from),
            (1, false, _) => gather::<u8, u64>(file, register, from, at, mask, u64::from),
            (1, true, _) => gather::<i8, i64>(file, register, from, at, mask, i64::from),
            (2, false, 4) => gather::<u16, u32>(file, register, from, at, mask, u32::from),
            (2, true, 4) => gather::<i16, i32>(file, register, from, at, mask, i32::from),
            (2, false, _) => gather::<u16, u64>(file, register, from, at, mask, u64::from),
            (2, true, _) => gather::<i16, i64>(file, register, from, at, mask, i64::from),
            (_, false, _) => gather::<u32, u64>(file, register, from, at, mask, u64::from),
            (_, true, _) => gather::<i32, i64>(file, register, from, at, mask, i64::from),
        }
    }
}

/// # Safety
/// The pointers of the lanes in `mask` are valid for reads of an element at offset `at`, and `register`
/// contains values of type `R`.
#[inline(always)]
unsafe fn gather<M: core::marker::Copy, R: Lane>(
    file: *mut u8,
    register: u32,
    from: &Pointers,
    at: usize,
    mask: u32,
    extend: impl Fn(M) -> R,
) {
    let mut values = [R::default(); LANES];
    for lane in 0..LANES {
        if mask >> lane & 1 != 0 {
            // SAFETY: the pointer of a lane in `mask` is valid (function contract).
            values[lane] = extend(unsafe { from[lane].add(at).cast::<M>().read_unaligned() });
        }
    }
    // SAFETY: `register` contains values of type `R` (function contract).
    unsafe { write(file, register, &values, mask) };
}

/// # Safety
/// The pointers of the lanes in `mask` are valid for writes of an element at offset `at`, and `register`
/// contains values of type `R`.
#[inline(always)]
unsafe fn scatter<R: Lane, M>(
    file: *const u8,
    register: u32,
    to: &Pointers,
    at: usize,
    mask: u32,
    cut: impl Fn(R) -> M,
) {
    // SAFETY: `register` contains values of type `R` (function contract).
    let values = unsafe { read::<R>(file, register) };
    for lane in 0..LANES {
        if mask >> lane & 1 != 0 {
            // SAFETY: the pointer of a lane in `mask` is valid (function contract).
            unsafe { to[lane].add(at).cast::<M>().write_unaligned(cut(values[lane])) };
        }
    }
}

/// # Safety
/// `pointer` is valid for `len` bytes, and `len <= 8`.
unsafe fn load_bits(pointer: *const u8, len: u32) -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: `pointer` is valid for `len` bytes (function contract).
    unsafe { bytes.as_mut_ptr().copy_from(pointer, len as usize) };
    u64::from_le_bytes(bytes)
}

/// # Safety
/// `slot` is a register of `len` bytes per lane in `file`.
unsafe fn operand(file: *const u8, slot: u32, lane: usize, len: u32) -> u64 {
    // SAFETY: `slot` has `LANES` values of `len` bytes (function contract).
    unsafe { load_bits(file.add(slot as usize + lane * len as usize), len) }
}

/// Returns the new value of an atomic operation.
fn apply(op: AtomicOp, kind: Scalar, old: u64, b: u64, c: u64) -> u64 {
    let is_less = || match kind {
        S32 => (old as i32) < b as i32,
        S64 => (old as i64) < b as i64,
        _ => old < b,
    };
    match op {
        AtomicOp::Add => add(kind, old, b),
        AtomicOp::Min => {
            if is_less() {
                old
            } else {
                b
            }
        }
        AtomicOp::Max => {
            if is_less() {
                b
            } else {
                old
            }
        }
        AtomicOp::And => old & b,
        AtomicOp::Or => old | b,
        AtomicOp::Xor => old ^ b,
        AtomicOp::Exchange => b,
        AtomicOp::CompareAndSwap => {
            if old == b {
                c
            } else {
                old
            }
        }
        AtomicOp::Increment => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Decrement => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
    }
}

fn add(kind: Scalar, a: u64, b: u64) -> u64 {
    match kind {
        F32 => (f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits().into(),
        F64 => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        F16 | Bf16 => sum_of(kind, a as u16, b as u16).into(),
        F16x2 | Bf16x2 => pair_of_sums(kind, a as u32, b as u32).into(),
        _ => a.wrapping_add(b),
    }
}
