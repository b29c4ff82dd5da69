//! Two groups of interleaved rows in registers twice as long as theirs, times a few columns: the same bits as one group after the other.
//!
//! Weights are unpacked for each group, in its registers, and joined. That costs less than it saves: products, and activations that all lanes have, take half of the instructions.
//! Panels for many columns are filled in the same way.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::interleaved8_schedule::Part;
use super::interleaved8::{GroupScales, GroupSums, UnpackGroup, WORDS, has_mins, prefetch, row_of_sums, word};
use super::int_products::{IntProduct, each_of_8};
use super::integers::{I16Header, RUN, Unpack};
use super::pack::{GROUPS, Integers, LANES, PanelChunk, SIGN, ShiftedValues};
use crate::simd::dots::{ByteDots, DoubleWidth};
use crate::simd::{IntSimd, Simd};

/// The sums of both groups with `N` columns.
pub(super) struct DoubleWidthSums<V: IntSimd, W: DoubleWidth<V>, D, const N: usize> {
    sums: [[W::Float; 1]; N],
    by: PhantomData<(V, D)>,
}

impl<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, const N: usize> GroupSums<2> for DoubleWidthSums<V, W, D, N> {
    #[inline(always)]
    unsafe fn new() -> Self {
        const { assert!(<<W as ByteDots>::Float as Simd>::LANES == 2 * LANES) };
        DoubleWidthSums {
            // SAFETY: the caller's promise.
            sums: unsafe { [[W::Float::splat(0.0)]; N] },
            by: PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn add_chunk(&mut self, part: &Part<2>) {
        // SAFETY: the caller's promise.
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
    unsafe fn put(&self, p: &IntProduct, rows: [usize; 2]) {
        // SAFETY: the caller's promise.
        unsafe { put_sums(p, &self.sums, rows) }
    }
}

impl<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, const N: usize> DoubleWidthSums<V, W, D, N> {
    /// Adds what belongs to one scale, run `i` or half of it, and the minimums to `mins`.
    ///
    /// # Safety
    /// As for [`interleaved8::multiply`](super::interleaved8::multiply).
    #[inline(always)]
    unsafe fn add_totals(&mut self, part: &Part<2>, i: usize, half: usize, mins: &mut [W::Float; N]) {
        let at = if D::BY_16 { 2 * i + half } else { i };
        let sums_at = row_of_sums::<V, D>(half);
        // What stands for 0 in the bytes that are multiplied, a power of two.
        const { assert!(!(D::SIGNED && D::ZERO > 0)) };
        let zero = if D::SIGNED { SIGN } else { D::ZERO };
        // SAFETY: the caller's promise; a type that is `BY_16` has scales for both halves.
        unsafe {
            let totals = Self::totals(part, i, half);
            let (first, second) = (part.scales, part.scales.add(1));
            let scale = W::join_floats(GroupScales::scale(first, at), GroupScales::scale(second, at));
            for j in 0..N {
                let column = part.column(j);
                let mut total = totals[j];
                if zero > 0 {
                    let of_zero = W::broadcast((&raw const (*column).totals[sums_at][i]).cast());
                    total = total.sub32(of_zero.shl32(zero.trailing_zeros()));
                }
                self.sums[j][0] = total.floats().mul_add(scale, self.sums[j][0]);
                if has_mins::<V, D>() {
                    let min = W::join_floats(GroupScales::min(first, at), GroupScales::min(second, at));
                    let of_x = (&raw const (*column).sums[sums_at][i]).read_unaligned();
                    mins[j] = min.mul_add(W::Float::splat(of_x), mins[j]);
                }
            }
        }
    }

    /// The products of weights and activations that have one scale: exact sums.
    ///
    /// # Safety
    /// As for [`interleaved8::multiply`](super::interleaved8::multiply).
    #[inline(always)]
    unsafe fn totals(part: &Part<2>, i: usize, half: usize) -> [W; N] {
        // SAFETY: the caller's promise; a run has 8 registers.
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

/// Fewest columns whose products with high bytes and with low bytes are added up one after the other, in the same registers. With fewer, each sum would wait for the one before.
const COLUMNS_IN_TURN: usize = 5;

/// The sums of four groups, two in each register: an activation that all lanes have is read once for both.
pub(super) struct TwoRegisterSums<V: IntSimd, W: DoubleWidth<V>, D, const N: usize> {
    sums: [[W::Float; 2]; N],
    by: PhantomData<(V, D)>,
}

/// A run of four groups: the bytes that are multiplied, by word, and the scales of its halves, or of the whole run in the place of its first half.
struct UnpackedRun<W: ByteDots> {
    words: [[W; 2]; WORDS],
    scales: [[W::Float; 2]; 2],
}

impl<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, const N: usize> GroupSums<4> for TwoRegisterSums<V, W, D, N> {
    #[inline(always)]
    unsafe fn new() -> Self {
        TwoRegisterSums {
            // SAFETY: the caller's promise.
            sums: unsafe { [[W::Float::splat(0.0); 2]; N] },
            by: PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn add_chunk(&mut self, part: &Part<4>) {
        // SAFETY: the caller's promise.
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
    unsafe fn put(&self, p: &IntProduct, rows: [usize; 4]) {
        // SAFETY: the caller's promise.
        unsafe { put_sums(p, &self.sums, rows) }
    }
}

/// Writes sums of two groups in each of `R` registers as results, given the first row of each group.
///
/// # Safety
/// The CPU has `F`'s instructions, and the result has the rows and columns.
#[inline(always)]
unsafe fn put_sums<F: Simd, const N: usize, const R: usize, const G: usize>(
    p: &IntProduct,
    sums: &[[F; R]; N],
    rows: [usize; G],
) {
    const { assert!(F::LANES == 2 * LANES && G == 2 * R) };
    for (j, of_column) in sums.iter().enumerate() {
        let mut sums = [[0.0f32; LANES]; G];
        // SAFETY: the caller's promise; all registers fit.
        unsafe {
            let scale = F::splat(I16Header::scale_at(p.x.add(j * p.x_stride)));
            let to = sums.as_flattened_mut().as_mut_ptr();
            for r in 0..R {
                of_column[r].mul(scale).store(to.add(r * 2 * LANES));
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
    /// As for [`interleaved8::multiply`](super::interleaved8::multiply).
    #[inline(always)]
    unsafe fn unpack(part: &Part<4>, i: usize) -> UnpackedRun<W> {
        // SAFETY: the caller's promise; a run has 8 registers.
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
            for half in 0..halves::<V, D>() {
                let at = if D::BY_16 { 2 * i + half } else { i };
                for r in 0..2 {
                    let (first, second) = (part.scales.add(2 * r), part.scales.add(2 * r + 1));
                    scales[half][r] = W::join_floats(GroupScales::scale(first, at), GroupScales::scale(second, at));
                }
            }
            UnpackedRun { words, scales }
        }
    }

    /// Adds what belongs to one scale, run `i` or half of it: the same bits as those of [`DoubleWidthSums`].
    ///
    /// # Safety
    /// As for [`interleaved8::multiply`](super::interleaved8::multiply).
    #[inline(always)]
    unsafe fn add_totals(&mut self, part: &Part<4>, i: usize, half: usize, weights: &UnpackedRun<W>) {
        let zero = if D::SIGNED { SIGN } else { D::ZERO };
        let sums_at = row_of_sums::<V, D>(half);
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[W::zero(); 2]; N];
            Self::add_dots::<1>(part, i, half, weights, &mut sums);
            for c in 0..N {
                for r in 0..2 {
                    sums[c][r] = sums[c][r].shl32(8);
                }
            }
            if const { N >= COLUMNS_IN_TURN } {
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
                        let of_zero = W::broadcast((&raw const (*part.column(c)).totals[sums_at][i]).cast());
                        total = total.sub32(of_zero.shl32(zero.trailing_zeros()));
                    }
                    let sum = &mut self.sums[c][r];
                    *sum = total.floats().mul_add(weights.scales[half][r], *sum);
                }
            }
        }
    }

    /// Adds the products with the low bytes of activations (`HIGH` 0) or with the high ones (1).
    ///
    /// # Safety
    /// As for [`interleaved8::multiply`](super::interleaved8::multiply).
    #[inline(always)]
    unsafe fn add_dots<const HIGH: usize>(
        part: &Part<4>,
        i: usize,
        half: usize,
        weights: &UnpackedRun<W>,
        sums: &mut [[W; 2]; N],
    ) {
        let words = const { WORDS / halves::<V, D>() };
        for word in half * words..(half + 1) * words {
            for c in 0..N {
                // SAFETY: the caller's promise.
                let x = unsafe {
                    let x = (&raw const (*part.column(c)).parts[i]).cast::<u8>();
                    W::broadcast(x.add(RUN * HIGH + 4 * word))
                };
                for r in 0..2 {
                    sums[c][r] = sums[c][r].add_dots(weights.words[word][r], x);
                }
            }
            // Word by word, not column by column: sums need not wait for each other then.
            for c in 1..N {
                [sums[c - 1][0], sums[c][0]] = W::both([sums[c - 1][0], sums[c][0]]);
            }
        }
    }

    /// Adds the minimums of a chunk.
    ///
    /// # Safety
    /// As for [`interleaved8::multiply`](super::interleaved8::multiply).
    #[inline(always)]
    unsafe fn add_mins(&mut self, part: &Part<4>) {
        let halves = halves::<V, D>();
        // SAFETY: the caller's promise.
        unsafe {
            let mut mins = [[W::Float::splat(0.0); 2]; N];
            for at in 0..halves * part.runs {
                let (i, sums_at) = (at / halves, row_of_sums::<V, D>(at % halves));
                for r in 0..2 {
                    let (first, second) = (part.scales.add(2 * r), part.scales.add(2 * r + 1));
                    let min = W::join_floats(GroupScales::min(first, at), GroupScales::min(second, at));
                    for j in 0..N {
                        let of_x = (&raw const (*part.column(j)).sums[sums_at][i]).read_unaligned();
                        mins[j][r] = min.mul_add(W::Float::splat(of_x), mins[j][r]);
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

/// Parts of a run that have a scale of their own.
const fn halves<V: IntSimd, D: Unpack<V>>() -> usize {
    if D::BY_16 { 2 } else { 1 }
}

/// [`fill_panel`](super::interleaved8::fill_panel) of [`ShiftedValues`] with both groups at a time.
///
/// # Safety
/// As for that function, and the CPU has `W`'s instructions.
#[inline(always)]
pub(crate) unsafe fn fill_panel<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>>(
    groups: [*const u8; GROUPS],
    runs: usize,
    to: &mut PanelChunk<ShiftedValues>,
) {
    let mut scales = [const { MaybeUninit::<GroupScales>::uninit() }; GROUPS];
    // SAFETY: the caller's promise. Scales of the runs are set before they are read; what a panel has for both groups lies side by side.
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
        let n = const { Integers::of::<V, D>().spare_bits() };
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
