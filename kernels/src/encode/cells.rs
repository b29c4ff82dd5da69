//! Search for grid points with 8 elements of 3 levels: the IQ1 and IQ2 types.

use super::equal::{splat, with_words};
use super::lanes::{Lanes, N};
use super::reals::Reals;
use super::words::{PortableWords, Words};
use crate::prefetch::{CacheLevel, prefetch};

/// Number of points that a search compares.
pub(super) const NEAR: usize = 16;

/// Largest number of cells in a unit.
pub(super) const CELLS: usize = 8;

/// Shifts of elements: for types without shifts, and for types with two shifts.
const SHIFTS: [[f32; 2]; 2] = [[0.0; 2], [0.125, -0.125]];

/// Meaning of the bits of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bits {
    /// Signs of elements.
    Signs,
    /// Signs of elements, with an even number of negative elements in each 8.
    EvenSigns,
    /// Common shift of all elements in a unit.
    UnitShift,
    /// Common shift of all elements in a cell.
    CellShift,
}

impl Bits {
    /// Returns the shifts of elements.
    #[inline(always)]
    pub(super) fn shifts(self) -> &'static [f32] {
        match self {
            Bits::Signs | Bits::EvenSigns => &SHIFTS[0][..1],
            Bits::UnitShift | Bits::CellShift => &SHIFTS[1],
        }
    }
}

/// Points chosen for a unit with one scale, and the sums that determine the error of other scales.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chosen {
    pub points: [u16; CELLS],
    /// Cells with a negative shift.
    pub negative: [bool; CELLS],
    /// Sum of `w t q`, for targets `t` and values `q` before they are scaled.
    pub tq: f32,
    /// Sum of `w q^2`.
    pub qq: f32,
}

impl Chosen {
    /// Returns the squared error less the constant `sum(w t^2)`.
    #[inline(always)]
    pub(super) fn error(&self, scale: f32) -> f32 {
        scale * (scale * self.qq - 2.0 * self.tq)
    }

    #[inline(always)]
    pub(super) fn best_scale(&self) -> f32 {
        if self.qq > 0.0 {
            (self.tq / self.qq).max(0.0)
        } else {
            0.0
        }
    }
}

/// The elements of a unit to approximate, and their weights.
pub(super) struct Unit<'a> {
    /// Elements to approximate; magnitudes if the type stores signs separately.
    pub t: &'a [f32],
    pub w: &'a [f32],
    /// Sum of `w t` of each cell.
    pub wt: &'a [f32],
}

/// Points with 8 elements of 3 levels. A point is the indices of its levels, 2 bits each.
pub(super) struct Points {
    /// Levels of elements. The fourth is unused.
    pub levels: [f32; 4],
    /// The points near each combination of levels.
    pub near: Vec<Near>,
}

/// The points nearest to a combination of levels, in ascending distance. Each array has 4 points: the low bytes of all
/// of them, then the high bytes.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(super) struct Near([[u8; 8]; NEAR / 4]);

impl Near {
    /// Packs points.
    pub(super) fn new(points: [u16; NEAR]) -> Near {
        let mut near = Near([[0; 8]; NEAR / 4]);
        for (i, point) in points.into_iter().enumerate() {
            let [low, high] = point.to_le_bytes();
            (near.0[i / 4][i % 4], near.0[i / 4][i % 4 + 4]) = (low, high);
        }
        near
    }

    /// Returns point `i`.
    #[inline(always)]
    fn point(&self, i: usize) -> u16 {
        let four = &self.0[i / 4 % (NEAR / 4)];
        u16::from_le_bytes([four[i % 4], four[i % 4 + 4]])
    }
}

/// Sums of `3^i` over the bits `i` of each byte.
static PLACES: [u16; 256] = {
    let (mut places, mut bits) = ([0; 256], 0);
    while bits < 256 {
        let (mut i, mut place) = (0, 1);
        while i < N {
            if bits >> i & 1 != 0 {
                places[bits] += place;
            }
            (i, place) = (i + 1, place * 3);
        }
        bits += 1;
    }
    places
};

/// Operations on the costs of the levels of a cell: one register per level, one float per element.
trait Costs: Words {
    /// Returns the bits of the elements whose best level is the second, and the bits of those with the third.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    unsafe fn best_levels(costs: [Self::Floats; 3]) -> [usize; 2];

    /// Returns the index of the first point with the lowest cost, and this cost.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    unsafe fn best_point(costs: [Self::Floats; 3], near: &Near) -> (usize, f32);

    /// Returns the levels of a point.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    unsafe fn values(levels: &[f32; 4], point: u16) -> Self::Floats;
}

with_words! {
    /// Returns the points of a unit with the smallest error for a scale.
    fn choose(points: &Points, bits: Bits, unit: &Unit<'_>, scale: f32, chosen: &mut Chosen) -> () = points_of_unit;
    /// Returns the point of a cell with the smallest error, and this error minus terms that do not depend on the point:
    /// [`constant`], and a term that all shifts share.
    fn nearest(points: &Points, t: &[f32; N], w: &[f32; N], scale: f32, shift: f32) -> (u16, f32) = point_of_cell;
}

/// Returns the part of the error of a cell that depends on the sign of the shift. `wt` is the sum of `w t`.
#[inline(always)]
pub(super) fn constant(wt: f32, scale: f32, shift: f32) -> f32 {
    -2.0 * scale * shift * wt
}

/// See [`choose`].
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn points_of_unit<W: Costs>(points: &Points, bits: Bits, unit: &Unit<'_>, scale: f32, chosen: &mut Chosen) {
    // SAFETY: function contract.
    unsafe {
        match (unit.wt.len(), bits.shifts().len()) {
            (2, 1) => points_of_cells::<W, 2, 1>(points, bits, unit, scale, chosen),
            (2, _) => points_of_cells::<W, 2, 2>(points, bits, unit, scale, chosen),
            (_, 1) => points_of_cells::<W, 4, 1>(points, bits, unit, scale, chosen),
            _ => points_of_cells::<W, 4, 2>(points, bits, unit, scale, chosen),
        }
    }
}

/// Chooses the points of `C` cells for `S` possible shifts.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn points_of_cells<W: Costs, const C: usize, const S: usize>(
    points: &Points,
    bits: Bits,
    unit: &Unit<'_>,
    scale: f32,
    chosen: &mut Chosen,
) {
    let (t, w) = (&unit.t.as_chunks().0[..C], &unit.w.as_chunks().0[..C]);
    // SAFETY: function contract.
    let mut costs = unsafe { [[[splat::<W>(0.0); 3]; S]; C] };
    let mut near = [[0; S]; C];
    for cell in 0..C {
        for s in 0..S {
            // SAFETY: function contract.
            unsafe {
                costs[cell][s] = costs_of::<W>(points, &t[cell], &w[cell], scale, SHIFTS[S - 1][s]);
                near[cell][s] = best_levels::<W>(costs[cell][s]);
            }
            // The table exceeds the L1 cache.
            prefetch((&raw const points.near[near[cell][s]]).cast(), CacheLevel::First);
        }
    }
    // Each entry packs the points of two shifts.
    let mut found = [0; C];
    let mut errors = [[0.0; S]; C];
    let mut totals = [0.0; S];
    for cell in 0..C {
        for s in 0..S {
            let near = &points.near[near[cell][s]];
            // SAFETY: function contract.
            let (best, error) = unsafe { W::best_point(costs[cell][s], near) };
            found[cell] |= u32::from(near.point(best)) << (16 * s);
            errors[cell][s] = error + constant(unit.wt[cell], scale, SHIFTS[S - 1][s]);
            totals[s] += errors[cell][s];
        }
    }
    let unit_is_negative = bits == Bits::UnitShift && totals[S - 1] < totals[0];
    // SAFETY: function contract.
    let (mut tq, mut qq) = unsafe { (splat::<W>(0.0), splat::<W>(0.0)) };
    for cell in 0..C {
        let is_better = bits == Bits::CellShift && errors[cell][S - 1] < errors[cell][0];
        // Computed without a branch, which would often be mispredicted.
        let negative = u32::from(unit_is_negative | is_better);
        let point = (found[cell] >> (16 * negative)) as u16;
        let shift = f32::from_bits(SHIFTS[S - 1][0].to_bits() | negative << 31);
        (chosen.points[cell], chosen.negative[cell]) = (point, negative != 0);
        // SAFETY: function contract.
        unsafe {
            let t = W::Floats::from_lanes(&Lanes(t[cell]));
            let w = W::Floats::from_lanes(&Lanes(w[cell]));
            let q = W::values(&points.levels, point) + splat::<W>(shift);
            (tq, qq) = (tq + w * t * q, qq + w * q * q);
        }
    }
    (chosen.tq, chosen.qq) = (tq.to_lanes().sum(), qq.to_lanes().sum());
}

/// See [`nearest`].
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn point_of_cell<W: Costs>(points: &Points, t: &[f32; N], w: &[f32; N], scale: f32, shift: f32) -> (u16, f32) {
    // SAFETY: function contract.
    unsafe {
        let costs = costs_of::<W>(points, t, w, scale, shift);
        let near = &points.near[best_levels::<W>(costs)];
        let (best, cost) = W::best_point(costs, near);
        (near.point(best), cost)
    }
}

/// Returns the error of each level for each element of a cell, minus a constant.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn costs_of<W: Costs>(points: &Points, t: &[f32; N], w: &[f32; N], scale: f32, shift: f32) -> [W::Floats; 3] {
    // SAFETY: function contract.
    unsafe {
        let w = W::Floats::from_lanes(&Lanes(*w));
        let t = W::Floats::from_lanes(&Lanes(*t)) - splat::<W>(scale * shift);
        let (a, b) = (splat::<W>(scale * scale) * w, splat::<W>(2.0 * scale) * w * t);
        let mut costs = [splat::<W>(0.0); 3];
        for (cost, level) in costs.iter_mut().zip(points.levels) {
            let level = splat::<W>(level);
            *cost = level * (level * a - b);
        }
        costs
    }
}

/// Returns the index of the combination of the best levels.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn best_levels<W: Costs>(costs: [W::Floats; 3]) -> usize {
    // SAFETY: function contract.
    let [second, third] = unsafe { W::best_levels(costs) };
    usize::from(PLACES[second]) + 2 * usize::from(PLACES[third])
}

/// Returns the index of the first smallest sum, and this sum.
#[inline(always)]
pub(super) fn first_least(sums: &[f32; NEAR]) -> (usize, f32) {
    // Vector instructions compare the two halves.
    let mut least = *sums;
    for half in [NEAR / 2, NEAR / 4, NEAR / 8, NEAR / 16] {
        for i in 0..half {
            let [low, high] = [least[i], least[i + half]];
            least[i] = if high < low { high } else { low };
        }
    }
    let mut is_least = 1u32 << (NEAR - 1);
    for (i, sum) in sums.iter().enumerate() {
        is_least |= u32::from(*sum == least[0]) << i;
    }
    (is_least.trailing_zeros() as usize % NEAR, least[0])
}

impl Costs for PortableWords {
    #[inline(always)]
    unsafe fn best_levels([first, second, third]: [Lanes; 3]) -> [usize; 2] {
        let mut bits = [0; 2];
        for i in 0..N {
            let is_second = second.0[i] < first.0[i];
            let least = if is_second { second.0[i] } else { first.0[i] };
            let is_third = third.0[i] < least;
            bits[0] |= usize::from(is_second && !is_third) << i;
            bits[1] |= usize::from(is_third) << i;
        }
        bits
    }

    #[inline(always)]
    unsafe fn best_point(costs: [Lanes; 3], near: &Near) -> (usize, f32) {
        let mut sums = [0.0; NEAR];
        for (i, sum) in sums.iter_mut().enumerate() {
            let point = near.point(i);
            let mut of_elements = [0.0; N];
            for (d, cost) in of_elements.iter_mut().enumerate() {
                *cost = costs[usize::from(point >> (2 * d) & 3) % 3].0[d];
            }
            let [a, b, c, d, e, f, g, h] = of_elements;
            *sum = ((a + b) + (c + d)) + ((e + f) + (g + h));
        }
        first_least(&sums)
    }

    #[inline(always)]
    unsafe fn values(levels: &[f32; 4], point: u16) -> Lanes {
        let mut values = Lanes::ZERO;
        for (i, value) in values.0.iter_mut().enumerate() {
            *value = levels[usize::from(point >> (2 * i) & 3)];
        }
        values
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! Costs of levels in AVX2 registers.

    use std::arch::x86_64::*;

    use super::super::reals::avx2::Avx2Reals;
    use super::super::words::avx2::Avx2Words;
    use super::{Costs, Near};

    /// Returns the costs of four points for elements 0 to 3, then their costs for elements 4 to 7. `tables` has the
    /// costs of the levels of elements `i` and `i + 4`.
    #[inline(always)]
    unsafe fn cost_of_four(tables: &[__m256; 4], points: &[u8; 8]) -> __m256 {
        // SAFETY: the load is within `points`, and the CPU supports AVX2 (function contract).
        unsafe {
            let levels = _mm256_cvtepu8_epi32(_mm_loadl_epi64(points.as_ptr().cast()));
            // The permutation only reads the lowest two bits of each lane.
            let a = _mm256_permutevar_ps(tables[0], levels);
            let b = _mm256_permutevar_ps(tables[1], _mm256_srli_epi32::<2>(levels));
            let c = _mm256_permutevar_ps(tables[2], _mm256_srli_epi32::<4>(levels));
            let d = _mm256_permutevar_ps(tables[3], _mm256_srli_epi32::<6>(levels));
            _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d))
        }
    }

    /// Adds both halves of both registers.
    #[inline(always)]
    unsafe fn add_halves(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the intrinsics only use registers, and the CPU supports AVX2 (function contract).
        unsafe {
            let (low, high) = (
                _mm256_permute2f128_ps::<0x20>(a, b),
                _mm256_permute2f128_ps::<0x31>(a, b),
            );
            _mm256_add_ps(low, high)
        }
    }

    impl Costs for Avx2Words {
        #[inline(always)]
        unsafe fn best_levels([first, second, third]: [Avx2Reals; 3]) -> [usize; 2] {
            // SAFETY: the intrinsics only use registers, and the CPU supports AVX2 (function contract).
            unsafe {
                let is_second = _mm256_cmp_ps::<_CMP_LT_OQ>(second.0, first.0);
                let is_third = _mm256_cmp_ps::<_CMP_LT_OQ>(third.0, _mm256_min_ps(second.0, first.0));
                let (second, third) = (_mm256_movemask_ps(is_second), _mm256_movemask_ps(is_third));
                [(second & !third) as usize, third as usize]
            }
        }

        #[inline(always)]
        unsafe fn best_point([first, second, third]: [Avx2Reals; 3], near: &Near) -> (usize, f32) {
            // SAFETY: the intrinsics only use registers, and the CPU supports AVX2 (function contract).
            unsafe {
                let low = _mm256_unpacklo_ps(first.0, second.0);
                let high = _mm256_unpackhi_ps(first.0, second.0);
                let low_third = _mm256_unpacklo_ps(third.0, third.0);
                let high_third = _mm256_unpackhi_ps(third.0, third.0);
                let tables = [
                    _mm256_shuffle_ps::<0x44>(low, low_third),
                    _mm256_shuffle_ps::<0xee>(low, low_third),
                    _mm256_shuffle_ps::<0x44>(high, high_third),
                    _mm256_shuffle_ps::<0xee>(high, high_third),
                ];
                let [a, b, c, d] = &near.0;
                // Packing restores the order.
                let a = add_halves(cost_of_four(&tables, a), cost_of_four(&tables, c));
                let b = add_halves(cost_of_four(&tables, b), cost_of_four(&tables, d));
                let least = _mm256_min_ps(b, a);
                let least = _mm256_min_ps(_mm256_permute2f128_ps::<1>(least, least), least);
                let least = _mm256_min_ps(_mm256_permute_ps::<0b01_00_11_10>(least), least);
                let least = _mm256_min_ps(_mm256_permute_ps::<0b10_11_00_01>(least), least);
                let of_a = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_EQ_OQ>(a, least));
                let of_b = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_EQ_OQ>(b, least));
                let is_least = _mm256_movemask_epi8(_mm256_packs_epi32(of_a, of_b)) as u32 | 1 << 31;
                let index = is_least.trailing_zeros() as usize / 2;
                (index, _mm256_cvtss_f32(least))
            }
        }

        #[inline(always)]
        unsafe fn values(levels: &[f32; 4], point: u16) -> Avx2Reals {
            // SAFETY: the load is within `levels`, and the CPU supports AVX2 (function contract).
            unsafe {
                let levels = _mm256_broadcast_ps(&*levels.as_ptr().cast());
                let shifts = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
                let point = _mm256_srlv_epi32(_mm256_set1_epi32(i32::from(point)), shifts);
                Avx2Reals(_mm256_permutevar_ps(levels, point))
            }
        }
    }
}
