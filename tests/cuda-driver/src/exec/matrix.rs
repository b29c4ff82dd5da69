//! Warp-level matrix instructions: `mma.sync`, `ldmatrix`, `stmatrix`, and `movmatrix`.
//!
//! Lane l has the group g = l / 4 and the position t = l % 4. With e elements per 32-bit register, the
//! fragments are:
//!
//! - A: register r contains row g (+ 8 if r is odd), from column 4e (r / 2) + te. With 8 rows, there are no
//!   odd registers.
//! - B: register r contains column g, from row 4er + te.
//! - C and D: element i is at row g + 8 (i / 2) and column 2t + i % 2.

use super::env::{Env, WarpAccess};
use super::fault::Fault;
use super::inst::{Access, Matrix, Multiply};
use super::lanes::{ALL, LANES, Slot, read, write};
use super::scalar::Scalar::{self, *};
use super::scalar::{bf16_to_f32, f16_to_f32, f32_to_f16};
use super::warp::Warp;

/// Matrix A in row-major order, with up to 32 columns.
type Wide<T> = [[T; 32]; 16];
/// Matrix B, C, or D in row-major order, with 8 columns.
type Narrow<T> = [[T; 8]; 32];

impl Warp {
    /// Executes a matrix instruction. All 32 lanes have arrived.
    pub fn matrix(&mut self, env: &mut Env, matrix: &Matrix) -> Result<(), Box<Fault>> {
        match matrix {
            Matrix::Multiply(multiply) if multiply.sum == S32 => self.multiply_integers(multiply),
            Matrix::Multiply(multiply) => self.multiply(multiply),
            Matrix::Group(product) => self.start_product(env, product)?,
            Matrix::Load(access, transposed) => self.load_matrices(env, access, *transposed)?,
            Matrix::Store(access, transposed) => self.store_matrices(env, access, *transposed)?,
            Matrix::Transpose(d, a) => self.transpose(*d, *a),
        }
        Ok(())
    }

    fn words(&self, slot: Slot) -> [u32; LANES] {
        // SAFETY: the decoder assigned 32-bit registers to matrix fragments (`Decoder::words`).
        unsafe { read(self.file(), slot) }
    }

    fn set_words(&mut self, slot: Slot, words: &[u32; LANES]) {
        // SAFETY: the decoder assigned 32-bit registers to matrix fragments (`Decoder::words`).
        unsafe { write(self.file_mut(), slot, words, ALL) };
    }

    /// Returns A in row-major order. `unpack` extracts element i from the registers of all lanes.
    fn matrix_a<T: Copy + Default>(
        &self,
        m: &Multiply,
        unpack: impl Fn(&[u32; LANES], usize) -> [T; LANES],
    ) -> Wide<T> {
        let mut a = [[T::default(); 32]; 16];
        let (per_word, halves) = (elements(m.kinds[0]), m.m / 8);
        for (r, slot) in m.registers[1].iter().enumerate() {
            let words = self.words(*slot);
            for i in 0..per_word {
                for (lane, value) in unpack(&words, i).into_iter().enumerate() {
                    let column = 4 * per_word * (r / halves) + lane % 4 * per_word;
                    a[lane / 4 + 8 * (r % halves)][column + i] = value;
                }
            }
        }
        a
    }

    /// Returns B in row-major order.
    fn matrix_b<T: Copy + Default>(
        &self,
        m: &Multiply,
        unpack: impl Fn(&[u32; LANES], usize) -> [T; LANES],
    ) -> Narrow<T> {
        let mut b = [[T::default(); 8]; 32];
        let per_word = elements(m.kinds[1]);
        for (r, slot) in m.registers[2].iter().enumerate() {
            let words = self.words(*slot);
            for i in 0..per_word {
                for (lane, value) in unpack(&words, i).into_iter().enumerate() {
                    b[4 * per_word * r + lane % 4 * per_word + i][lane / 4] = value;
                }
            }
        }
        b
    }

    fn multiply(&mut self, m: &Multiply) {
        // SAFETY: `decode` rejects kernels unless the CPU has these features.
        let unpack = |words: &_, i| unsafe { values(m.kinds[0], words, i) };
        let (a, b) = (self.matrix_a(m, unpack), self.matrix_b(m, unpack));
        let mut sums = self.sums(m, f32::from_bits, |word, i| f16_to_f32((word >> (16 * i)) as u16));
        // SAFETY: `decode` rejects kernels unless the CPU has these features.
        unsafe { product(&a, &b, &mut sums, m.m, m.k) };
        if m.sum == F16 {
            for (r, slot) in m.registers[0].iter().enumerate() {
                let half = |lane: usize, i: usize| u32::from(f32_to_f16(sums[lane / 4 + 8 * r][lane % 4 * 2 + i]));
                let words = std::array::from_fn(|lane| half(lane, 0) | half(lane, 1) << 16);
                self.set_words(*slot, &words);
            }
        } else {
            self.write_sums(m, |row, column| sums[row][column].to_bits());
        }
    }

    fn multiply_integers(&mut self, m: &Multiply) {
        let (a_kind, b_kind) = (m.kinds[0], m.kinds[1]);
        let a = self.matrix_a(m, |words, i| words.map(|word| integer(a_kind, word, i)));
        let b = self.matrix_b(m, |words, i| words.map(|word| integer(b_kind, word, i)));
        let mut sums = self.sums(m, i64::from, |_, _| 0);
        for row in 0..m.m {
            for column in 0..8 {
                // The accumulator C is always signed.
                let c = i64::from(sums[row][column] as i32);
                let products = (0..m.k).map(|k| i64::from(a[row][k] * b[k][column]));
                let sum = c + products.sum::<i64>();
                let limited = sum.clamp(i32::MIN.into(), i32::MAX.into());
                sums[row][column] = if m.saturate { limited } else { sum };
            }
        }
        self.write_sums(m, |row, column| sums[row][column] as u32);
    }

    /// Returns C in row-major order.
    fn sums<T: Copy + Default>(
        &self,
        m: &Multiply,
        word: impl Fn(u32) -> T,
        half: impl Fn(u32, usize) -> T,
    ) -> Narrow<T> {
        let mut c = [[T::default(); 8]; 32];
        for (r, slot) in m.registers[3].iter().enumerate() {
            for (lane, bits) in self.words(*slot).into_iter().enumerate() {
                if m.sum == F16 {
                    for i in 0..2 {
                        c[lane / 4 + 8 * r][lane % 4 * 2 + i] = half(bits, i);
                    }
                } else {
                    c[lane / 4 + 8 * (r / 2)][lane % 4 * 2 + r % 2] = word(bits);
                }
            }
        }
        c
    }

    fn write_sums(&mut self, m: &Multiply, sum: impl Fn(usize, usize) -> u32) {
        for (r, slot) in m.registers[0].iter().enumerate() {
            let words = std::array::from_fn(|lane| sum(lane / 4 + 8 * (r / 2), lane % 4 * 2 + r % 2));
            self.set_words(*slot, &words);
        }
    }

    /// Returns pointers to the rows of the matrices. Lane 8j + i provides the address of row i of matrix j.
    fn rows(&mut self, env: &mut Env, access: &Access, writes: bool) -> Result<super::env::Pointers, Box<Fault>> {
        let file = self.file();
        // SAFETY: the decoder assigned a register with the width of `is_wide` to the address
        // (`Decoder::address`).
        let addresses = unsafe {
            if access.is_wide {
                read::<u64>(file, access.address).map(|a| a.wrapping_add(access.offset as u64))
            } else {
                read::<u32>(file, access.address).map(|a| a.wrapping_add(access.offset as u32).into())
            }
        };
        let mask = ALL >> (LANES - 8 * access.registers.len());
        let touch = WarpAccess {
            mask,
            addresses: &addresses,
            bytes: 16,
            pc: self.pc as usize,
            first_thread: self.index * LANES as u32,
            warp_time: self.time,
            unordered: self.unordered,
            reads: !writes,
            writes,
        };
        env.touch(access.space, &touch, &mut self.local)
    }

    fn load_matrices(&mut self, env: &mut Env, access: &Access, transposed: bool) -> Result<(), Box<Fault>> {
        let rows = self.rows(env, access, false)?;
        for (j, slot) in access.registers.iter().enumerate() {
            let element = |row: usize, column: usize| {
                // SAFETY: `rows` checked that each row address is valid for 16 bytes.
                u32::from(unsafe { rows[8 * j + row].cast::<u16>().add(column).read_unaligned() })
            };
            let words = std::array::from_fn(|lane| {
                let (g, t) = (lane / 4, lane % 4);
                if transposed {
                    element(2 * t, g) | element(2 * t + 1, g) << 16
                } else {
                    element(g, 2 * t) | element(g, 2 * t + 1) << 16
                }
            });
            self.set_words(*slot, &words);
        }
        Ok(())
    }

    fn store_matrices(&mut self, env: &mut Env, access: &Access, transposed: bool) -> Result<(), Box<Fault>> {
        let rows = self.rows(env, access, true)?;
        for (j, slot) in access.registers.iter().enumerate() {
            for (lane, word) in self.words(*slot).into_iter().enumerate() {
                let (g, t) = (lane / 4, lane % 4);
                for i in 0..2 {
                    let (row, column) = if transposed { (2 * t + i, g) } else { (g, 2 * t + i) };
                    let half = (word >> (16 * i)) as u16;
                    // SAFETY: `rows` checked that each row address is valid for 16 bytes.
                    unsafe { rows[8 * j + row].cast::<u16>().add(column).write_unaligned(half) };
                }
            }
        }
        Ok(())
    }

    fn transpose(&mut self, d: Slot, a: Slot) {
        let words = self.words(a);
        let element = |row: usize, column: usize| words[row * 4 + column / 2] >> (16 * (column % 2)) & 0xffff;
        let transposed = std::array::from_fn(|lane| {
            let (g, t) = (lane / 4, lane % 4);
            element(2 * t, g) | element(2 * t + 1, g) << 16
        });
        self.set_words(d, &transposed);
    }
}

/// Returns the number of elements in a 32-bit register.
fn elements(kind: Scalar) -> usize {
    4 / kind.bytes() as usize
}

/// Returns element i of a register in all lanes.
///
/// # Safety
/// [`super::lanes::is_supported`] returned true.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
unsafe fn values(kind: Scalar, words: &[u32; LANES], i: usize) -> [f32; LANES] {
    let mut values = [0.0; LANES];
    for (value, word) in values.iter_mut().zip(words) {
        let half = (word >> (16 * (i & 1))) as u16;
        *value = match kind {
            F16 => f16_to_f32(half),
            Bf16 => bf16_to_f32(half),
            // Tensor cores ignore the low 13 bits of a tf32 operand.
            _ => f32::from_bits(word & !0x1fff),
        };
    }
    values
}

#[inline(always)]
fn integer(kind: Scalar, word: u32, i: usize) -> i32 {
    let byte = (word >> (8 * i)) as u8;
    if kind == S8 { (byte as i8).into() } else { byte.into() }
}

/// # Safety
/// [`super::lanes::is_supported`] returned true.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
unsafe fn product(a: &Wide<f32>, b: &Narrow<f32>, c: &mut Narrow<f32>, m: usize, k: usize) {
    for (row, sums) in c.iter_mut().enumerate().take(m) {
        for i in 0..k {
            for (sum, b) in sums.iter_mut().zip(&b[i]) {
                *sum = a[row][i].mul_add(*b, *sum);
            }
        }
    }
}
