//! What a whole warp does to matrices: `mma.sync`, `ldmatrix`, `stmatrix`, `movmatrix`.
//!
//! Lane l has group g = l / 4 and place t = l % 4. A register of 32 bits holds e elements. Of A, register r has row g (+ 8 if r is odd) and
//! columns 4e (r / 2) + te ..; of B, register r has column g and rows 4er + te ..; of C and D, element i has row g + 8 (i / 2) and column
//! 2t + i % 2. Matrices of 8 rows lack the odd registers of A.

use super::env::{Env, Touch};
use super::fault::Fault;
use super::inst::Access;
use super::lanes::{ALL, LANES, Slot, read, write};
use super::scalar::Scalar::{self, *};
use super::scalar::{bf16_to_f32, f16_to_f32, f32_to_f16};
use super::warp::Warp;

/// An instruction of a whole warp.
pub enum Matrix {
    /// D = A B + C.
    Multiply(Multiply),
    /// From shared memory: 8 x 8 elements of 16 bits for each register, maybe transposed.
    Load(Access, bool),
    /// The other way.
    Store(Access, bool),
    /// Transposes one from register to register.
    Transpose(Slot, Slot),
}

/// `mma.sync`.
pub struct Multiply {
    /// Rows of A: 8 or 16. B has 8 columns.
    pub m: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Types of A and B.
    pub kinds: [Scalar; 2],
    /// Type of C and D: f16, f32 or s32.
    pub sum: Scalar,
    /// Whether sums of integers are limited instead of wrapping.
    pub saturate: bool,
    /// Registers of D, A, B and C.
    pub registers: [Vec<Slot>; 4],
}

/// Rows of a matrix with up to 32 columns.
type Wide<T> = [[T; 32]; 16];
/// Rows of B, or of C and D.
type Narrow<T> = [[T; 8]; 32];

impl Multiply {
    /// Multiplications and additions.
    pub fn operations(&self) -> u64 {
        (self.m * 8 * self.k) as u64
    }
}

impl Warp {
    /// An instruction of the whole warp, all of whose lanes have come.
    pub fn matrix(&mut self, env: &mut Env, matrix: &Matrix) -> Result<(), Box<Fault>> {
        match matrix {
            Matrix::Multiply(multiply) if multiply.sum == S32 => self.multiply_integers(multiply),
            Matrix::Multiply(multiply) => self.multiply(multiply),
            Matrix::Load(access, transposed) => self.load_matrices(env, access, *transposed)?,
            Matrix::Store(access, transposed) => self.store_matrices(env, access, *transposed)?,
            Matrix::Transpose(d, a) => self.transpose(*d, *a),
        }
        Ok(())
    }

    fn words(&self, slot: Slot) -> [u32; LANES] {
        // SAFETY: the decoder gave matrices registers of 32 bits.
        unsafe { read(self.file(), slot) }
    }

    fn set_words(&mut self, slot: Slot, words: &[u32; LANES]) {
        // SAFETY: the decoder gave matrices registers of 32 bits.
        unsafe { write(self.file_mut(), slot, words, ALL) };
    }

    /// The elements of A, in rows; `unpack` takes element i out of all lanes' registers.
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

    /// The elements of B, in rows.
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
        // SAFETY: no kernel is decoded where the CPU lacks these features.
        let unpack = |words: &_, i| unsafe { values(m.kinds[0], words, i) };
        let (a, b) = (self.matrix_a(m, unpack), self.matrix_b(m, unpack));
        let mut sums = self.sums(m, f32::from_bits, |word, i| f16_to_f32((word >> (16 * i)) as u16));
        // SAFETY: no kernel is decoded where the CPU lacks these features.
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
                // C is signed.
                let c = i64::from(sums[row][column] as i32);
                let products = (0..m.k).map(|k| i64::from(a[row][k] * b[k][column]));
                let sum = c + products.sum::<i64>();
                let limited = sum.clamp(i32::MIN.into(), i32::MAX.into());
                sums[row][column] = if m.saturate { limited } else { sum };
            }
        }
        self.write_sums(m, |row, column| sums[row][column] as u32);
    }

    /// The elements of C, in rows.
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

    /// Where the rows of the matrices are: lane 8j + i has the address of row i of matrix j.
    fn rows(&mut self, env: &mut Env, access: &Access, writes: bool) -> Result<super::env::Pointers, Box<Fault>> {
        let file = self.file();
        // SAFETY: the decoder gave the address a register of this width.
        let addresses = unsafe {
            if access.is_wide {
                read::<u64>(file, access.address).map(|a| a.wrapping_add(access.offset as u64))
            } else {
                read::<u32>(file, access.address).map(|a| a.wrapping_add(access.offset as u32).into())
            }
        };
        let mask = ALL >> (LANES - 8 * access.registers.len());
        let touch = Touch {
            mask,
            addresses: &addresses,
            bytes: 16,
            pc: self.pc as usize,
            first_thread: self.index * LANES as u32,
            warp_time: self.time,
            reads: !writes,
            writes,
        };
        env.touch(access.space, &touch, &mut self.local)
    }

    fn load_matrices(&mut self, env: &mut Env, access: &Access, transposed: bool) -> Result<(), Box<Fault>> {
        let rows = self.rows(env, access, false)?;
        for (j, slot) in access.registers.iter().enumerate() {
            let element = |row: usize, column: usize| {
                // SAFETY: the rows are checked.
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
                    // SAFETY: the rows are checked.
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

/// Elements in a register of 32 bits.
fn elements(kind: Scalar) -> usize {
    4 / kind.bytes() as usize
}

/// Element i of all lanes' registers.
///
/// # Safety
/// The CPU [`super::lanes::is_supported`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
unsafe fn values(kind: Scalar, words: &[u32; LANES], i: usize) -> [f32; LANES] {
    let mut values = [0.0; LANES];
    for (value, word) in values.iter_mut().zip(words) {
        let half = (word >> (16 * (i & 1))) as u16;
        *value = match kind {
            F16 => f16_to_f32(half),
            Bf16 => bf16_to_f32(half),
            // The unit does not look at the last 13 bits.
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
/// The CPU [`super::lanes::is_supported`].
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
