//! Skinny matmuls over row groups in 512-bit registers, with the same bits as
//! [`interleaved8`](super::interleaved8).
//!
//! Each group is unpacked in 256-bit registers, then two groups are joined. Joining costs less than it saves:
//! multiplications and broadcasts of activations are halved.
//!
//! ```text
//!            ymm: group 0 (8 rows)      ymm: group 1 (8 rows)
//! zmm =    | w0[0..4] .. w7[0..4]   |  | w8[0..4] .. w15[0..4]  |
//!
//! DoubleWidthSums: 2 groups in 1 zmm        TwoRegisterSums: 4 groups in 2 zmm
//! for run:                                  for run:
//!     for word in 0..8:                         unpack all 8 words of 4 groups
//!         zmm = join(group 0, group 1)          for byte in (high, low):
//!         for column, byte in (low, high):          for word in 0..8, column:
//!             sum[byte] += dot4(zmm, x)                 sum += dot4(zmm[0..2], x)    # x is broadcast once
//!     total = low + 256 * high                      sum <<= 8 after the high bytes
//!     sums += f32(total - zero * sum(x)) * scale
//! ```
//!
//! Panels for many columns are filled in the same way ([`fill_panel`]).

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::int_products::{IntProduct, each_of_8};
use super::integers::I16Header;
use super::interleaved8::{GroupSums, WORDS, has_mins, multiply, multiply_with, prefetch, sums_row, word};
use super::interleaved8_schedule::{GroupChunk, Schedule};
use super::pack::{GROUPS, IntFormat, PanelChunk, SIGN, ShiftedI8Values};
use crate::layout::groups::{GROUP_ROWS, GroupScales, Interleaved, LANES, UnpackGroup, bytes_in_group};
use crate::layout::runs::{CHUNK, RUN, Unpack};
use crate::simd::dots::{ByteDots, DoubleWidth};
use crate::simd::{IntSimd, Simd};

/// Returns true if reading the weights from memory takes at least as long as computing `n` columns in 256-bit
/// registers: one or two columns of a type with 4 bits or more. Twice the register width then gains nothing
/// and costs a few percent.
const fn is_bandwidth_bound<D: Interleaved>(n: usize) -> bool {
    n <= 2 && 8 * bytes_in_group::<D>(CHUNK) >= 4 * GROUP_ROWS * CHUNK
}

/// Minimum columns for four groups at a time in two registers, which share each activation load.
const FOUR_GROUP_COLUMNS: usize = 3;

/// Returns true if four groups at a time pay off for `n` columns and rows of `k` elements. With 3 or 4
/// columns short rows are 2 to 4 % slower (576 elements in SmolLM2).
const fn use_four_groups(n: usize, k: usize) -> bool {
    n >= 5 || n >= FOUR_GROUP_COLUMNS && k >= 1024
}

/// Multiplies like [`interleaved8::multiply`](multiply), with two groups joined in one register `W` of twice
/// the width, or four in two registers, where that is faster.
///
/// # Safety
/// The CPU supports `V` and `W`, `p` satisfies the invariants of [`IntProduct`], and `p.n >= N`.
#[inline(always)]
pub(crate) unsafe fn multiply_double_width<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, const N: usize>(
    p: &IntProduct,
) {
    // SAFETY: the caller upholds the contract of `multiply_with`; `fours` and `rest` split the `p.m` rows.
    unsafe {
        if const { is_bandwidth_bound::<D>(N) } {
            multiply::<V, D, N>(p);
        } else if const { N >= FOUR_GROUP_COLUMNS } && use_four_groups(N, p.k) {
            // Four groups at a time, then the remaining rows.
            let m = p.m / (4 * GROUP_ROWS) * (4 * GROUP_ROWS);
            let (fours, rest) = (IntProduct { m, ..*p }, p.rows_from(m));
            multiply_with::<V, D, TwoRegisterSums<V, W, D, N>, 4>(&fours, &Schedule::streamed(&fours));
            multiply_with::<V, D, DoubleWidthSums<V, W, D, N>, 2>(&rest, &Schedule::streamed(&rest));
        } else {
            multiply_with::<V, D, DoubleWidthSums<V, W, D, N>, 2>(p, &Schedule::streamed(p));
        }
    }
}

/// Sums of two groups with `N` columns, in one register per column.
struct DoubleWidthSums<V: IntSimd, W: DoubleWidth<V>, D, const N: usize> {
    sums: [[W::Float; 1]; N],
    by: PhantomData<(V, D)>,
}

impl<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, const N: usize> GroupSums<2> for DoubleWidthSums<V, W, D, N> {
    #[inline(always)]
    unsafe fn new() -> Self {
        const { assert!(<<W as ByteDots>::Float as Simd>::LANES == 2 * LANES) };
        DoubleWidthSums {
            // SAFETY: the CPU supports `W` (function contract).
            sums: unsafe { [[W::Float::splat(0.0)]; N] },
            by: PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn add_chunk(&mut self, part: &GroupChunk<2>) {
        // SAFETY: `i < part.runs`, and the scales of those runs are set (function contract).
        unsafe {
            let mut mins = [W::Float::splat(0.0); N];
            for i in 0..part.runs {
                prefetch::<V, D, 2>(part, i);
                if D::BY_16 {
                    self.add_totals(part, i, 0, &mut mins);
                    self.add_totals(part, i, 1, &mut mins);
                } else {
                    self.add_totals(part, i, 0, &mut mins);
                }
            }
            if has_mins::<V, D>() {
                for j in 0..N {
                    self.sums[j][0] = self.sums[j][0].add(mins[j]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store_results(&self, p: &IntProduct, rows: [usize; 2]) {
        // SAFETY: the caller upholds the contract of `store_results`.
        unsafe { store_results(p, &self.sums, rows) }
    }
}

impl<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, const N: usize> DoubleWidthSums<V, W, D, N> {
    /// Adds the products that share one scale (run `i` or its half `half`), and the minimums' part to `mins`.
    ///
    /// # Safety
    /// - The CPU supports `V` and `W`.
    /// - `part` describes a chunk with more than `i` runs whose scales are set.
    #[inline(always)]
    unsafe fn add_totals(&mut self, part: &GroupChunk<2>, i: usize, half: usize, mins: &mut [W::Float; N]) {
        let at = if D::BY_16 { 2 * i + half } else { i };
        let sums_at = sums_row::<V, D>(half);
        // The value that represents 0 in the unsigned bytes, a power of two.
        const { assert!(!(D::SIGNED && D::ZERO > 0)) };
        let zero = if D::SIGNED { SIGN } else { D::ZERO };
        // SAFETY: `i < part.runs`; a `BY_16` type has scales for both halves of a run, so scale `at` is set.
        unsafe {
            let totals = Self::totals(part, i, half);
            let (first, second) = (part.scales, part.scales.add(1));
            let scale = W::join_floats(GroupScales::scale(first, at), GroupScales::scale(second, at));
            for j in 0..N {
                let column = part.column(j);
                let mut total = totals[j];
                if zero > 0 {
                    let zero_correction = W::broadcast((&raw const (*column).totals[sums_at][i]).cast());
                    total = total.sub32(zero_correction.shl32(zero.trailing_zeros()));
                }
                self.sums[j][0] = total.floats().mul_add(scale, self.sums[j][0]);
                if has_mins::<V, D>() {
                    let min = W::join_floats(GroupScales::min(first, at), GroupScales::min(second, at));
                    let sum_of_x = (&raw const (*column).sums[sums_at][i]).read_unaligned();
                    mins[j] = min.mul_add(W::Float::splat(sum_of_x), mins[j]);
                }
            }
        }
    }

    /// Returns the exact dot products of weights and activations that share a scale.
    ///
    /// # Safety
    /// - The CPU supports `V` and `W`.
    /// - `part` describes a chunk with more than `i` runs.
    #[inline(always)]
    unsafe fn totals(part: &GroupChunk<2>, i: usize, half: usize) -> [W; N] {
        // SAFETY: `i < part.runs`, so the run's 8 words and the activations of each column are readable.
        unsafe {
            let mut sums = [[W::zero(); 2]; N];
            each_of_8!(V, step => {
                if let Some(word) = word::<V, D>(step, half) {
                    let mut values = [V::splat(0); 2];
                    for g in 0..2 {
                        let bytes = D::group_values(part.w[g], i, word);
                        values[g] = if D::SIGNED { bytes.xor(V::splat(SIGN)) } else { bytes };
                    }
                    let values = W::join(values[0], values[1]);
                    for j in 0..N {
                        let x = (&raw const (*part.column(j)).parts[i]).cast::<u8>();
                        for high in 0..2 {
                            let x = W::broadcast(x.add(RUN * high + 4 * word));
                            sums[j][high] = sums[j][high].add_dots(values, x);
                        }
                    }
                }
            });
            let mut totals = [W::zero(); N];
            for j in 0..N {
                let [low, high] = sums[j];
                totals[j] = low.add32(high.shl32(8));
            }
            totals
        }
    }
}

/// Minimum columns for which the high and the low bytes of activations are accumulated one after the other in
/// the same registers. With fewer columns each sum would wait for the previous one.
const SEQUENTIAL_COLUMNS: usize = 5;

/// Sums of four groups with `N` columns, in two registers per column. Each activation is broadcast once for
/// both.
struct TwoRegisterSums<V: IntSimd, W: DoubleWidth<V>, D, const N: usize> {
    sums: [[W::Float; 2]; N],
    by: PhantomData<(V, D)>,
}

/// An unpacked run of four groups: the bytes of each word, and the scales of the run's halves. Types with one
/// scale per run set only the first half.
struct UnpackedRun<W: ByteDots> {
    words: [[W; 2]; WORDS],
    scales: [[W::Float; 2]; 2],
}

impl<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, const N: usize> GroupSums<4> for TwoRegisterSums<V, W, D, N> {
    #[inline(always)]
    unsafe fn new() -> Self {
        TwoRegisterSums {
            // SAFETY: the CPU supports `W` (function contract).
            sums: unsafe { [[W::Float::splat(0.0); 2]; N] },
            by: PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn add_chunk(&mut self, part: &GroupChunk<4>) {
        // SAFETY: `i < part.runs`, and the scales of those runs are set (function contract).
        unsafe {
            for i in 0..part.runs {
                prefetch::<V, D, 4>(part, i);
                let weights = Self::unpack(part, i);
                self.add_totals(part, i, 0, &weights);
                if D::BY_16 {
                    self.add_totals(part, i, 1, &weights);
                }
            }
            if has_mins::<V, D>() {
                self.add_mins(part);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_results(&self, p: &IntProduct, rows: [usize; 4]) {
        // SAFETY: the caller upholds the contract of `store_results`.
        unsafe { store_results(p, &self.sums, rows) }
    }
}

/// Writes the sums to `p.out`. Each of the `R` registers holds two groups; `rows` holds the first row of each
/// group.
///
/// # Safety
/// - The CPU supports `F`.
/// - `rows[g] + 8 <= p.m`, and `p` satisfies the invariants of [`IntProduct`] with at least `N` columns.
#[inline(always)]
unsafe fn store_results<F: Simd, const N: usize, const R: usize, const G: usize>(
    p: &IntProduct,
    sums: &[[F; R]; N],
    rows: [usize; G],
) {
    const { assert!(F::LANES == 2 * LANES && G == 2 * R) };
    for (j, column_sums) in sums.iter().enumerate() {
        let mut sums = [[0.0f32; LANES]; G];
        // SAFETY: `rows[g] + 8 <= p.m` and `j < N` (function contract); `sums` has `R` registers of 16
        // floats.
        unsafe {
            let scale = F::splat(I16Header::scale_at(p.x.add(j * p.x_stride)));
            let to = sums.as_flattened_mut().as_mut_ptr();
            for r in 0..R {
                column_sums[r].mul(scale).store(to.add(r * 2 * LANES));
            }
            for g in 0..G {
                let out = p.out.add(j * p.out_stride + rows[g]);
                out.cast::<[f32; LANES]>().write_unaligned(sums[g]);
            }
        }
    }
}

impl<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, const N: usize> TwoRegisterSums<V, W, D, N> {
    /// Unpacks run `i`.
    ///
    /// # Safety
    /// - The CPU supports `V` and `W`.
    /// - `part` describes a chunk with more than `i` runs whose scales are set.
    #[inline(always)]
    unsafe fn unpack(part: &GroupChunk<4>, i: usize) -> UnpackedRun<W> {
        // SAFETY: `i < part.runs`, so the run's 8 words are readable and its scales are set (function
        // contract).
        unsafe {
            let mut words = [[W::zero(); 2]; WORDS];
            each_of_8!(V, word => {
                let mut values = [V::splat(0); 4];
                for g in 0..4 {
                    let bytes = D::group_values(part.w[g], i, word);
                    values[g] = if D::SIGNED { bytes.xor(V::splat(SIGN)) } else { bytes };
                }
                words[word] = [W::join(values[0], values[1]), W::join(values[2], values[3])];
            });
            let mut scales = [[W::Float::splat(0.0); 2]; 2];
            for half in 0..scales_per_run::<V, D>() {
                let at = if D::BY_16 { 2 * i + half } else { i };
                for r in 0..2 {
                    let (first, second) = (part.scales.add(2 * r), part.scales.add(2 * r + 1));
                    scales[half][r] = W::join_floats(GroupScales::scale(first, at), GroupScales::scale(second, at));
                }
            }
            UnpackedRun { words, scales }
        }
    }

    /// Adds the products that share one scale (run `i` or its half `half`), with the same bits as
    /// [`DoubleWidthSums`].
    ///
    /// # Safety
    /// - The CPU supports `V` and `W`.
    /// - `part` describes a chunk with more than `i` runs.
    #[inline(always)]
    unsafe fn add_totals(&mut self, part: &GroupChunk<4>, i: usize, half: usize, weights: &UnpackedRun<W>) {
        let zero = if D::SIGNED { SIGN } else { D::ZERO };
        let sums_at = sums_row::<V, D>(half);
        // SAFETY: `i < part.runs` and `c < N`, so the activations and their totals are readable (function
        // contract).
        unsafe {
            let mut sums = [[W::zero(); 2]; N];
            Self::add_dots::<1>(part, i, half, weights, &mut sums);
            for c in 0..N {
                for r in 0..2 {
                    sums[c][r] = sums[c][r].shl32(8);
                }
            }
            if const { N >= SEQUENTIAL_COLUMNS } {
                Self::add_dots::<0>(part, i, half, weights, &mut sums);
            } else {
                let mut low = [[W::zero(); 2]; N];
                Self::add_dots::<0>(part, i, half, weights, &mut low);
                for c in 0..N {
                    for r in 0..2 {
                        sums[c][r] = sums[c][r].add32(low[c][r]);
                    }
                }
            }
            for c in 0..N {
                for r in 0..2 {
                    let mut total = sums[c][r];
                    if zero > 0 {
                        let zero_correction = W::broadcast((&raw const (*part.column(c)).totals[sums_at][i]).cast());
                        total = total.sub32(zero_correction.shl32(zero.trailing_zeros()));
                    }
                    let sum = &mut self.sums[c][r];
                    *sum = total.floats().mul_add(weights.scales[half][r], *sum);
                }
            }
        }
    }

    /// Adds the products with the low bytes (`HIGH` = 0) or high bytes (`HIGH` = 1) of the activations.
    ///
    /// # Safety
    /// - The CPU supports `V` and `W`.
    /// - `part` describes a chunk with more than `i` runs.
    #[inline(always)]
    unsafe fn add_dots<const HIGH: usize>(
        part: &GroupChunk<4>,
        i: usize,
        half: usize,
        weights: &UnpackedRun<W>,
        sums: &mut [[W; 2]; N],
    ) {
        let words = const { WORDS / scales_per_run::<V, D>() };
        for word in half * words..(half + 1) * words {
            for c in 0..N {
                // SAFETY: `word < 8` and `HIGH < 2`, so the 4 bytes are within the column's 64 bytes of run
                // `i`.
                let x = unsafe {
                    let x = (&raw const (*part.column(c)).parts[i]).cast::<u8>();
                    W::broadcast(x.add(RUN * HIGH + 4 * word))
                };
                for r in 0..2 {
                    sums[c][r] = sums[c][r].add_dots(weights.words[word][r], x);
                }
            }
            // Compute word by word instead of column by column, so that sums do not wait for each other.
            for c in 1..N {
                [sums[c - 1][0], sums[c][0]] = W::compute_together([sums[c - 1][0], sums[c][0]]);
            }
        }
    }

    /// Adds the minimums of a chunk times the sums of the activations.
    ///
    /// # Safety
    /// - The CPU supports `V` and `W`.
    /// - `part` describes a chunk whose minimums are set.
    #[inline(always)]
    unsafe fn add_mins(&mut self, part: &GroupChunk<4>) {
        let scales_per_run = scales_per_run::<V, D>();
        // SAFETY: `at` is below the number of minimums set for `part.runs` runs (function contract).
        unsafe {
            let mut mins = [[W::Float::splat(0.0); 2]; N];
            for at in 0..scales_per_run * part.runs {
                let (i, sums_at) = (at / scales_per_run, sums_row::<V, D>(at % scales_per_run));
                for r in 0..2 {
                    let (first, second) = (part.scales.add(2 * r), part.scales.add(2 * r + 1));
                    let min = W::join_floats(GroupScales::min(first, at), GroupScales::min(second, at));
                    for j in 0..N {
                        let sum_of_x = (&raw const (*part.column(j)).sums[sums_at][i]).read_unaligned();
                        mins[j][r] = min.mul_add(W::Float::splat(sum_of_x), mins[j][r]);
                    }
                }
            }
            for j in 0..N {
                for r in 0..2 {
                    self.sums[j][r] = self.sums[j][r].add(mins[j][r]);
                }
            }
        }
    }
}

/// Returns the number of scales per run.
const fn scales_per_run<V: IntSimd, D: Unpack<V>>() -> usize {
    if D::BY_16 { 2 } else { 1 }
}

/// Fills a panel of [`ShiftedI8Values`] like [`fill_panel`](super::interleaved8::fill_panel), both groups at
/// a time.
///
/// # Safety
/// - The CPU supports `V` and `W`.
/// - Each pointer in `groups` is valid for a chunk of a row group with at least `runs` runs.
#[inline(always)]
pub(crate) unsafe fn fill_panel<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>>(
    groups: [*const u8; GROUPS],
    runs: usize,
    to: &mut PanelChunk<ShiftedI8Values>,
) {
    let mut scales = [const { MaybeUninit::<GroupScales>::uninit() }; GROUPS];
    // SAFETY: each group has `runs` runs (function contract), and `group_scales` initializes their scales
    // first. A panel stores both groups contiguously, so a 64-byte store fits.
    unsafe {
        for (scales, p) in scales.iter_mut().zip(groups) {
            D::group_scales(p, runs, scales.as_mut_ptr());
        }
        let [first, second] = scales.each_ref().map(|scales| scales.as_ptr());
        for half in 0..2 * runs {
            let at = if D::BY_16 { half } else { half / 2 };
            let scale = W::join_floats(GroupScales::scale(first, at), GroupScales::scale(second, at));
            scale.store(to.scales[half].as_flattened_mut().as_mut_ptr());
            if has_mins::<V, D>() {
                let min = W::join_floats(GroupScales::min(first, at), GroupScales::min(second, at));
                min.store(to.mins[half].as_flattened_mut().as_mut_ptr());
            }
        }
        let n = const { IntFormat::of::<V, D>().spare_bits() };
        let zero = W::broadcast([D::ZERO << n; 4].as_ptr());
        for i in 0..runs {
            each_of_8!(V, j => {
                let mut values = [V::splat(0); GROUPS];
                for g in 0..GROUPS {
                    values[g] = D::group_values(groups[g], i, j).shl(n);
                }
                let values = W::join(values[0], values[1]);
                let to = &mut to.values.0[i * (RUN / 4) + j];
                values.sub_bytes(zero).store(to.as_flattened_mut().as_mut_ptr());
            });
        }
    }
}
