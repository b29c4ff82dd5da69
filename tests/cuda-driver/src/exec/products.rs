//! Asynchronous matrix products of warpgroups (`wgmma`), which read both operands from shared memory.
//!
//! Four warps execute a product together, each for 16 of its 64 rows. The interpreter computes a product when it
//! starts. Until a wait completes the group of the product, its sums must not be accessed, and its operands must not be
//! written. Operands that threads stored must have been published by `fence.proxy.async` of their writers.
//!
//! An operand has rows of 128 bytes, in groups of 8 rows. Bits 4 to 6 of an address are exclusive-ored with bits 7 to 9
//! (swizzle of 128 bytes). Other layouts are rejected.

use super::env::Env;
use super::fault::{Fault, Kind};
use super::inst::GroupProduct;
use super::lanes::{ALL, LANES, bits, read, write};
use super::scalar::Scalar;
use super::scalar::{bf16_to_f32, f16_to_f32};
use super::warp::Warp;

/// Rows of A that a warp multiplies.
const ROWS: usize = 16;
/// Columns of A and rows of B that a product covers.
const K: usize = 16;
/// Maximum number of columns of B.
const MAX_N: usize = 256;
/// Bytes that shared memory delivers per clock.
const WAVE: u64 = 128;
/// Number of warps that execute a product together.
const WARPS: u32 = 4;

impl Warp {
    /// Checks the registers of an instruction that is not a product.
    pub fn check_registers(&mut self, env: &Env) -> Result<(), Box<Fault>> {
        if self.products.access(&env.kernel.timings[self.pc as usize]) {
            return Ok(());
        }
        let description =
            "the instruction uses a register of a running `wgmma`: `wgmma.wait_group` must end its group first";
        Err(Fault::new(Kind::Race, Some(self.thread(ALL)), description))
    }

    /// Completes all groups of products except the last `running`. Lanes are synchronized.
    pub fn wait_for_products(&mut self, env: &mut Env, running: u32) -> Result<(), Box<Fault>> {
        self.time += 1;
        let (thread, now) = (self.thread(ALL), env.now(self.time));
        let mut reads = self.products.complete(running).into_iter();
        reads.try_for_each(|address| env.shared.end_product_read(address, thread, now))?;
        self.sync(env);
        Ok(())
    }

    /// Starts a product of the current group.
    pub fn start_product(&mut self, env: &mut Env, product: &GroupProduct) -> Result<(), Box<Fault>> {
        let thread = self.thread(ALL);
        let fault = |kind, description: String| Err(Fault::new(kind, Some(thread), description));
        let first = self.index / WARPS * WARPS;
        if (first + WARPS) * LANES as u32 > env.threads {
            let n = env.threads;
            return fault(
                Kind::Synchronization,
                format!("`wgmma` needs complete groups of four warps, but the block has {n} threads"),
            );
        }
        if !self.products.start(&product.registers) {
            let description = "no `wgmma.fence` orders `wgmma` and an earlier access of its sums";
            return fault(Kind::Race, description.into());
        }
        // SAFETY: the decoder assigned 64-bit registers to descriptors (`Decoder::group_product`).
        let [a, b] = product
            .operands
            .map(|slot| unsafe { read::<u64>(self.file(), slot) }[0]);
        let row = self.index as usize % WARPS as usize * ROWS;
        let a = self.operand(env, product.kind, a, row..row + ROWS)?;
        let b = self.operand(env, product.kind, b, 0..product.n)?;
        // SAFETY: the decoder assigned a predicate (`Decoder::group_product`).
        let adds = (unsafe { bits(self.file(), product.adds.0) } ^ product.adds.1) & 1 != 0;
        let mut sums = [[0.0; MAX_N]; ROWS];
        // The warps of a group read their own rows of A, and all of B together.
        env.counts[self.pc as usize].waves += (ROWS * K + product.n * K / WARPS as usize) as u64 * 2 / WAVE;
        let place = |lane: usize, i: usize| (lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2);
        let addends = if adds { product.registers.len() } else { 0 };
        for (i, slot) in product.registers.iter().enumerate().take(addends) {
            // SAFETY: the decoder assigned 32-bit registers to sums (`Decoder::group_product`).
            for (lane, sum) in unsafe { read::<f32>(self.file(), *slot) }.into_iter().enumerate() {
                let (row, column) = place(lane, i);
                sums[row][column] = sum;
            }
        }
        // SAFETY: `decode` rejects kernels unless the CPU has these features.
        unsafe { multiply(&a, &b, &mut sums) };
        for (i, slot) in product.registers.iter().enumerate() {
            let values: [f32; LANES] = std::array::from_fn(|lane| {
                let (row, column) = place(lane, i);
                sums[row][column]
            });
            // SAFETY: the decoder assigned 32-bit registers to sums (`Decoder::group_product`).
            unsafe { write(self.file_mut(), *slot, &values, ALL) };
        }
        Ok(())
    }

    /// Reads rows of an operand in shared memory.
    fn operand(
        &mut self,
        env: &mut Env,
        kind: Scalar,
        descriptor: u64,
        rows: std::ops::Range<usize>,
    ) -> Result<Vec<[f32; K]>, Box<Fault>> {
        let bytes_at = |bit: u32| (descriptor >> bit & 0x3fff) << 4;
        let (start, group_bytes) = (bytes_at(0), bytes_at(32));
        let (offset, swizzle) = (descriptor >> 49 & 7, descriptor >> 62);
        let thread = self.thread(ALL);
        if swizzle != 1 || offset != 0 || start & 0x380 != 0 {
            let description = format!(
                "unsupported operand of `wgmma` (descriptor {descriptor:#018x}): expected a swizzle of 128 bytes, offset 0, and a row whose number is a multiple of 8"
            );
            return Err(Fault::new(Kind::Misaligned, Some(thread), description));
        }
        let now = env.now(self.time);
        let mut values = Vec::with_capacity(rows.len());
        for row in rows {
            let mut of_row = [0.0; K];
            for (half, values) in of_row.chunks_exact_mut(8).enumerate() {
                let (groups, row) = ((row / 8) as u64, (row % 8) as u64);
                let plain = start + groups * group_bytes + 128 * row + 16 * half as u64;
                let address = plain ^ (plain >> 7 & 7) << 4;
                let bytes = env.shared.begin_product_read(address, thread, now)?;
                self.products.read(address);
                for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(2)) {
                    let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
                    *value = if kind == Scalar::Bf16 {
                        bf16_to_f32(bits)
                    } else {
                        f16_to_f32(bits)
                    };
                }
            }
            values.push(of_row);
        }
        Ok(values)
    }
}

/// # Safety
/// [`super::lanes::is_supported`] returned true.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
unsafe fn multiply(a: &[[f32; K]], b: &[[f32; K]], sums: &mut [[f32; MAX_N]; ROWS]) {
    let mut columns = [[0.0; MAX_N]; K];
    for (n, row) in b.iter().enumerate() {
        for (k, value) in row.iter().enumerate() {
            columns[k][n] = *value;
        }
    }
    for (a, sums) in a.iter().zip(sums) {
        for (a, b) in a.iter().zip(&columns) {
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = a.mul_add(*b, *sum);
            }
        }
    }
}
