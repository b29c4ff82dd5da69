//! Skinny matmuls over row groups in 512-bit registers, with the same bits as
//! [`interleaved8`](super::interleaved8).
//!
//! Each group is unpacked in 256-bit registers, then two groups are combined. Joining costs less than it saves:
//! multiplications and broadcasts of activations are halved.
//!
//! ```text
//!            ymm: group 0 (8 rows)      ymm: group 1 (8 rows)
//! zmm =    | w0[0..4] .. w7[0..4]   |  | w8[0..4] .. w15[0..4]  |
//!
//! for run:
//!     for word in 0..8:
//!         zmm = join(group 0, group 1)
//!         for column, byte in (low, high):
//!             sum[byte] += dot4(zmm, x)
//!     total = low + 256 * high
//!     sums += f32(total - zero * sum(x)) * scale
//! ```
//!
//! Panels are filled in the same way ([`fill_panel`]).
//!
//! # Limits
//!
//! - `N` is at most 3. With more columns, [`group_panels`](super::group_panels) is as fast or faster.
//! - Four groups in two registers would share each broadcast of an activation, but their unpacked words would not fit
//!   the registers. On Zen 4, 4 to 8 columns would take up to 1.16 times as long.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::int_products::{IntProduct, each_of_8};
use super::integers::I16Header;
use super::interleaved8::{GroupSums, WORDS, has_mins, multiply, multiply_with, prefetch, sums_row, word};
use super::interleaved8_schedule::{GroupChunk, Schedule};
use super::pack::{ByteValues, GROUPS, IntFormat, PanelChunk, PanelValues, SIGN, ShiftedI8Values};
use crate::layout::groups::{GROUP_ROWS, GroupScales, Interleaved, LANES, UnpackGroup, bytes_in_group};
use crate::layout::runs::{CHUNK, RUN, Unpack};
use crate::simd::dots::{ByteDots, DoubleWidth};
use crate::simd::{IntSimd, Simd};

/// Returns true if reading the weights from memory takes at least as long as computing `n` columns in 256-bit
/// registers. This is the case for one or two columns of a type with 4 bits or more. Twice the register width then
/// gains nothing and costs a few percent.
const fn is_bandwidth_bound<D: Interleaved>(n: usize) -> bool {
    n <= 2 && 8 * bytes_in_group::<D>(CHUNK) >= 4 * GROUP_ROWS * CHUNK
}

/// Multiplies like [`interleaved8::multiply`](multiply), with two groups combined in one register `W` of twice the
/// width where that is faster.
///
/// # Safety
/// The CPU supports `V` and `W`, `p` satisfies the invariants of [`IntProduct`], and `p.n >= N`.
#[inline(always)]
pub(crate) unsafe fn multiply_double_width<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, const N: usize>(
    p: &IntProduct,
) {
    // SAFETY: the caller upholds the contract of `multiply_with`.
    unsafe {
        if const { is_bandwidth_bound::<D>(N) } {
            multiply::<V, D, N>(p);
        } else {
            multiply_with::<V, D, DoubleWidthSums<V, W, D, N>, 2>(p, &Schedule::streamed(p));
        }
    }
}

/// Sums of two groups with `N` columns, in one register per column.
struct DoubleWidthSums<V: IntSimd, W: DoubleWidth<V>, D, const N: usize> {
    sums: [W::Float; N],
    by: PhantomData<(V, D)>,
}

impl<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, const N: usize> GroupSums<2> for DoubleWidthSums<V, W, D, N> {
    #[inline(always)]
    unsafe fn new() -> Self {
        const { assert!(<<W as ByteDots>::Float as Simd>::LANES == 2 * LANES) };
        DoubleWidthSums {
            // SAFETY: the CPU supports `W` (function contract).
            sums: unsafe { [W::Float::splat(0.0); N] },
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
                    self.sums[j] = self.sums[j].add(mins[j]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store_results(&self, p: &IntProduct, rows: [usize; 2]) {
        for (j, sums) in self.sums.iter().enumerate() {
            let mut both = [[0.0f32; LANES]; GROUPS];
            // SAFETY: `rows[g] + 8 <= p.m` and `j < N <= p.n`, so the 8 floats of each group are within the
            // output (function contract); `both` has 16 floats.
            unsafe {
                let scale = W::Float::splat(I16Header::scale_at(p.x.add(j * p.x_stride)));
                sums.mul(scale).store(both.as_flattened_mut().as_mut_ptr());
                for g in 0..GROUPS {
                    let out = p.out.add(j * p.out_stride + rows[g]);
                    out.cast::<[f32; LANES]>().write_unaligned(both[g]);
                }
            }
        }
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
                self.sums[j] = total.floats().mul_add(scale, self.sums[j]);
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

/// Panel of bytes that is filled with both groups at a time. Each word has the bytes of group 0, then those of
/// group 1.
pub(crate) trait JoinedValues: PanelValues {
    /// Converts a word of both groups to the form of the panel.
    ///
    /// # Safety
    /// The CPU supports `V` and `W`.
    unsafe fn join<V: IntSimd, W: DoubleWidth<V>, D: Unpack<V>>(groups: [V; GROUPS]) -> W;

    /// Returns the bytes of all words and groups.
    fn words(&mut self) -> &mut [[[u8; 4 * LANES]; GROUPS]; CHUNK / 4];

    /// Returns the address of word `i` of both groups.
    #[inline(always)]
    fn word(&mut self, i: usize) -> *mut u8 {
        self.words()[i].as_flattened_mut().as_mut_ptr()
    }
}

impl JoinedValues for ShiftedI8Values {
    #[inline(always)]
    unsafe fn join<V: IntSimd, W: DoubleWidth<V>, D: Unpack<V>>([first, second]: [V; GROUPS]) -> W {
        let n = const { IntFormat::of::<V, D>().spare_bits() };
        // SAFETY: the CPU supports `W` (function contract).
        W::join(first.shl(n), second.shl(n)).sub_bytes(unsafe { W::broadcast([D::ZERO << n; 4].as_ptr()) })
    }

    #[inline(always)]
    fn words(&mut self) -> &mut [[[u8; 4 * LANES]; GROUPS]; CHUNK / 4] {
        &mut self.0
    }
}

impl JoinedValues for ByteValues {
    #[inline(always)]
    unsafe fn join<V: IntSimd, W: DoubleWidth<V>, D: Unpack<V>>([first, second]: [V; GROUPS]) -> W {
        let joined = W::join(first, second);
        if D::SIGNED {
            // SAFETY: the CPU supports `W` (function contract).
            joined.xor(unsafe { W::broadcast([SIGN; 4].as_ptr()) })
        } else {
            joined
        }
    }

    #[inline(always)]
    fn words(&mut self) -> &mut [[[u8; 4 * LANES]; GROUPS]; CHUNK / 4] {
        &mut self.0
    }
}

/// Fills a panel like [`fill_panel`](super::interleaved8::fill_panel), both groups at a time.
///
/// # Safety
/// - The CPU supports `V` and `W`.
/// - Each pointer in `groups` is valid for a chunk of a row group with at least `runs` runs.
#[inline(always)]
pub(crate) unsafe fn fill_panel<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, F: JoinedValues>(
    groups: [*const u8; GROUPS],
    runs: usize,
    to: &mut PanelChunk<F>,
) {
    let mut scales = [const { MaybeUninit::<GroupScales>::uninit() }; GROUPS];
    // SAFETY: each group has `runs` runs (function contract), and `group_scales` initializes their scales
    // first. A panel stores both groups contiguously, so a 64-byte store fits.
    unsafe {
        for (scales, p) in scales.iter_mut().zip(groups) {
            D::group_scales(p, runs, scales.as_mut_ptr());
        }
        let [first, second] = scales.each_ref().map(|scales| scales.as_ptr());
        for half in (0..2 * runs).step_by(if D::BY_16 || F::EVERY_HALF { 1 } else { 2 }) {
            let at = if D::BY_16 { half } else { half / 2 };
            let scale = W::join_floats(GroupScales::scale(first, at), GroupScales::scale(second, at));
            scale.store(to.scales[half].as_flattened_mut().as_mut_ptr());
            if has_mins::<V, D>() {
                let min = W::join_floats(GroupScales::min(first, at), GroupScales::min(second, at));
                min.store(to.mins[half].as_flattened_mut().as_mut_ptr());
            }
        }
        for i in 0..runs {
            each_of_8!(V, j => {
                let words = [D::group_values(groups[0], i, j), D::group_values(groups[1], i, j)];
                F::join::<V, W, D>(words).store(to.values.word(i * WORDS + j));
            });
        }
    }
}
