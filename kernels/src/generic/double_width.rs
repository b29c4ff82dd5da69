//! Two groups of interleaved rows in registers twice as long as theirs, times a few columns: the same bits as one group after the other.
//!
//! Weights are unpacked for each group, in its registers, and joined. That costs less than it saves: products, and activations that all lanes have, take half of the instructions.
//! Panels for many columns are filled in the same way.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::group_order::Part;
use super::groups::{GroupScales, GroupSums, UnpackGroup, has_mins, prefetch, row_of_sums, word};
use super::int_products::{IntProduct, each_of_8};
use super::integers::{I16Header, RUN};
use super::panels::{GROUPS, Integers, LANES, PanelChunk, SIGN, ShiftedValues};
use crate::simd::dots::{ByteDots, DoubleWidth};
use crate::simd::{IntSimd, Simd};

/// The sums of both groups with `N` columns.
pub(super) struct DoubleWidthSums<V: IntSimd, W: DoubleWidth<V>, D, const N: usize> {
    sums: [W::Float; N],
    by: PhantomData<(V, D)>,
}

impl<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, const N: usize> GroupSums<2> for DoubleWidthSums<V, W, D, N> {
    #[inline(always)]
    unsafe fn new() -> Self {
        const { assert!(<<W as ByteDots>::Float as Simd>::LANES == 2 * LANES) };
        DoubleWidthSums {
            // SAFETY: the caller's promise.
            sums: unsafe { [W::Float::splat(0.0); N] },
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
                    self.sums[j] = self.sums[j].add(mins[j]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn put(&self, p: &IntProduct, rows: [usize; 2]) {
        for j in 0..N {
            let mut sums = [[0.0f32; LANES]; 2];
            // SAFETY: the caller's promise: rows of groups that the result has.
            unsafe {
                let scale = W::Float::splat(I16Header::scale_at(p.x.add(j * p.x_stride)));
                self.sums[j].mul(scale).store(sums.as_flattened_mut().as_mut_ptr());
                for g in 0..2 {
                    let out = p.out.add(j * p.out_stride + rows[g]);
                    out.cast::<[f32; LANES]>().write_unaligned(sums[g]);
                }
            }
        }
    }
}

impl<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, const N: usize> DoubleWidthSums<V, W, D, N> {
    /// Adds what belongs to one scale, run `i` or half of it, and the minimums to `mins`.
    ///
    /// # Safety
    /// As for [`groups::multiply`](super::groups::multiply).
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
                self.sums[j] = total.floats().mul_add(scale, self.sums[j]);
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
    /// As for [`groups::multiply`](super::groups::multiply).
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
                    // Word by word, not column by column.
                    for j in 1..N {
                        [sums[j - 1][0], sums[j][0]] = W::side_by_side([sums[j - 1][0], sums[j][0]]);
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

/// [`fill_panel`](super::groups::fill_panel) of [`ShiftedValues`] with both groups at a time.
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
