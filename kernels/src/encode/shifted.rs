//! Search for scales of types whose groups choose between a table of levels and the same table plus a constant. Types
//! with one factor per row are in [`shifted_rows`](super::shifted_rows).

use super::cpu::for_this_cpu;
use super::lanes::{Groups, Lanes, N};
use super::scales::{self, Iq4, Levels, Range, Sums, larger, n_coarse, to_half};
use crate::layout::assemble::ShiftedScales;
use crate::layout::block::Half;
use crate::quants::IQ4_K_SHIFT;

/// Sets of 8 groups in a block.
const SETS: usize = 2;

/// Number of elements of a group.
const LEN: usize = 16;

/// Levels of a type. Each group uses the levels as they are, or shifted.
pub(super) trait ShiftedLevels: Levels {
    /// Difference between the levels of a shifted group and of other groups.
    const SHIFT: f32;
}

impl ShiftedLevels for Iq4 {
    const SHIFT: f32 = IQ4_K_SHIFT as f32;
}

for_this_cpu! {
    /// Returns the sums of groups whose elements are rounded with these scales and shifts, and the squared errors.
    fn round[T: ShiftedLevels, const L: usize][T, L](groups: &Groups<L>, scale: Lanes, shift: Lanes) -> (Sums, Lanes) = round_elements;
    /// Returns the best fit of each group.
    pub(super) fn fit[T: ShiftedLevels, const L: usize][T, L](groups: &Groups<L>) -> Fit = best_fit;
    /// Returns the scales and shifts of a block with the smallest error found.
    pub(super) fn search[T: ShiftedLevels][T](groups: &[Groups<LEN>; SETS], range: Range) -> ShiftedScales = best_scales;
    /// Alternates between choosing integers and shifts, and fitting the common factor. Improves on `best`.
    fn refine[T: ShiftedLevels][T](groups: &[Groups<LEN>; SETS], range: Range, fitted: [Fit; SETS], d: Half, best: &mut Candidate) -> () = refine_with;
}

/// Scales and shifts of 8 groups.
#[derive(Clone, Copy, Default)]
pub(super) struct Fit {
    pub scale: Lanes,
    pub shift: Lanes,
    pub sums: Sums,
}

impl Fit {
    /// Replaces the lanes with a smaller error.
    #[inline(always)]
    fn improve(&mut self, errors: &mut Lanes, other: &Fit, error: Lanes) {
        self.scale = error.select_less(*errors, other.scale, self.scale);
        self.shift = error.select_less(*errors, other.shift, self.shift);
        self.sums.xv = error.select_less(*errors, other.sums.xv, self.sums.xv);
        self.sums.vv = error.select_less(*errors, other.sums.vv, self.sums.vv);
        *errors = error.min(*errors);
    }
}

/// Scales of a block, with their error.
struct Candidate {
    scales: ShiftedScales,
    error: f32,
}

/// See [`round`].
#[inline(always)]
fn round_elements<T: ShiftedLevels, const L: usize>(groups: &Groups<L>, scale: Lanes, shift: Lanes) -> (Sums, Lanes) {
    let inverse = scale.inverse();
    let (mut sums, mut error) = (Sums::default(), Lanes::ZERO);
    for (&x, &w) in groups.x.iter().zip(&groups.w) {
        let v = T::nearest(x * inverse - shift) + shift;
        let wv = w * v;
        let difference = x - scale * v;
        sums.xv = sums.xv + wv * x;
        sums.vv = sums.vv + wv * v;
        error = error + w * difference * difference;
    }
    (sums, error)
}

/// Number of times that the best scale is fitted again.
const REFITS: usize = 2;

/// See [`fit`].
#[inline(always)]
fn best_fit<T: ShiftedLevels, const L: usize>(groups: &Groups<L>) -> Fit {
    let max = groups.largest();
    let (mut best, mut errors) = (Fit::default(), Lanes::splat(f32::MAX));
    let ends = T::ENDS.iter().flat_map(|end| [(*end, 0.0), (*end, T::SHIFT)]);
    for (end, shift) in ends {
        let scale = max * Lanes::splat(1.0 / (end + shift));
        refit::<T, L>(groups, scale, Lanes::splat(shift), &mut best, &mut errors);
    }
    for _ in 0..REFITS {
        let (scale, shift) = (best.scale, best.shift);
        refit::<T, L>(groups, scale, shift, &mut best, &mut errors);
    }
    best
}

/// Rounds elements with a scale and a shift, and fits the scale again. Improves on `best`.
#[inline(always)]
fn refit<T: ShiftedLevels, const L: usize>(
    groups: &Groups<L>,
    scale: Lanes,
    shift: Lanes,
    best: &mut Fit,
    errors: &mut Lanes,
) {
    let (sums, _) = round::<T, L>(groups, scale, shift);
    let scale = sums.best();
    best.improve(errors, &Fit { scale, shift, sums }, sums.error(scale));
}

/// See [`search`].
#[inline(always)]
pub(super) fn best_scales<T: ShiftedLevels>(groups: &[Groups<LEN>; SETS], range: Range) -> ShiftedScales {
    let mut fitted = [Fit::default(); SETS];
    let (mut largest, mut total) = (0f32, 0.0);
    for (to, groups) in fitted.iter_mut().zip(groups) {
        *to = fit::<T, LEN>(groups);
        largest = larger(largest, to.scale);
        total += groups.squares().sum();
    }
    let mut best = Candidate {
        scales: ShiftedScales {
            d: Half::default(),
            scales: [0; 16],
            shifted: 0,
        },
        error: total,
    };
    let d = scales::start(&fitted.map(|fit| (fit.scale, fit.sums)), range, largest);
    refine::<T>(groups, range, fitted, d, &mut best);
    // The factor was chosen for the ideal scales. Rounding small integer scales changes the levels.
    let coarse: usize = fitted.iter().map(|fit| n_coarse(fit.scale, d)).sum();
    let n_starts = match coarse {
        0 => 0,
        n if n < SETS * N / 2 => 4,
        _ => 24,
    };
    let mut position = 1.04;
    for _ in 0..n_starts {
        let d = to_half(largest / (position * range.low));
        refine::<T>(groups, range, fitted, d, &mut best);
        position *= 0.96;
    }
    if best.error > 0.0 && best.error < total * 1e-5 {
        // The error depends on the rounding of the factor to F16, so each end of the levels may be best.
        for end in T::ENDS.iter().flat_map(|end| [*end, *end + T::SHIFT]) {
            let mut fitted = fitted;
            for (to, groups) in fitted.iter_mut().zip(groups) {
                to.scale = groups.largest() * Lanes::splat(1.0 / end);
            }
            let largest = fitted.iter().fold(0f32, |max, fit| larger(max, fit.scale));
            refine::<T>(groups, range, fitted, to_half(largest / range.low), &mut best);
        }
    }
    best.scales
}

/// Rounds of choosing integers and fitting the common factor.
const ROUNDS: usize = 4;

/// See [`refine`].
#[inline(always)]
fn refine_with<T: ShiftedLevels>(
    groups: &[Groups<LEN>; SETS],
    range: Range,
    mut fitted: [Fit; SETS],
    mut d: Half,
    best: &mut Candidate,
) {
    for _ in 0..ROUNDS {
        let (mut error, mut xv, mut vv) = (0.0, Lanes::ZERO, Lanes::ZERO);
        let mut chosen = [Fit::default(); SETS];
        let mut is_final = true;
        for ((to, ideal), groups) in chosen.iter_mut().zip(&mut fitted).zip(groups) {
            let mut errors = Lanes::splat(f32::INFINITY);
            choose::<T>(groups, range, ideal.scale, d, to, &mut errors);
            error += errors.sum();
            xv = xv + to.scale * to.sums.xv;
            vv = vv + to.scale * to.scale * to.sums.vv;
            // With a scale of 0, the sums cannot determine a better scale.
            let refitted = Lanes::ZERO.select_less(to.sums.vv, to.sums.best(), ideal.scale);
            is_final &= refitted == ideal.scale;
            ideal.scale = refitted;
        }
        if error < best.error {
            best.error = error;
            best.scales = to_scales(&chosen, d);
        }
        let vv = vv.sum();
        let refitted = if vv > 0.0 { to_half(xv.sum() / vv) } else { d };
        if is_final && refitted == d {
            break;
        }
        d = refitted;
    }
}

/// Chooses the integer scale and the shift of each group.
#[inline(always)]
fn choose<T: ShiftedLevels>(
    groups: &Groups<LEN>,
    range: Range,
    ideal: Lanes,
    d: Half,
    to: &mut Fit,
    errors: &mut Lanes,
) {
    let nearest = range.nearest(ideal, d);
    let n_offsets = if n_coarse(ideal, d) > 0 { 3 } else { 1 };
    for offset in &[0.0, -1.0, 1.0][..n_offsets] {
        let scale = (nearest + Lanes::splat(*offset)).clamp(range.low, range.high);
        choose_shift::<T, LEN>(groups, scale, d.get(), to, errors);
    }
}

/// Considers both shifts with an integer scale of each group. Improves on `best`.
#[inline(always)]
pub(super) fn choose_shift<T: ShiftedLevels, const L: usize>(
    groups: &Groups<L>,
    scale: Lanes,
    d: f32,
    best: &mut Fit,
    errors: &mut Lanes,
) {
    for shift in [0.0, T::SHIFT].map(Lanes::splat) {
        let (sums, error) = round::<T, L>(groups, scale * Lanes::splat(d), shift);
        best.improve(errors, &Fit { scale, shift, sums }, error);
    }
}

/// Converts integer scales and shifts of all groups.
#[inline(always)]
fn to_scales(chosen: &[Fit; SETS], d: Half) -> ShiftedScales {
    let mut found = ShiftedScales {
        d,
        scales: [0; 16],
        shifted: 0,
    };
    for g in 0..SETS * N {
        found.scales[g] = chosen[g / N].scale.0[g % N] as i8;
        found.shifted |= u16::from(chosen[g / N].shift.0[g % N] > 0.0) << g;
    }
    found
}

/// Returns the scale of group `g` and the shift of its levels.
#[inline(always)]
pub(super) fn scale_and_shift<T: ShiftedLevels>(found: &ShiftedScales, g: usize) -> (f32, f32) {
    let shift = if found.shifted >> g & 1 == 0 { 0.0 } else { T::SHIFT };
    (found.d.get() * f32::from(found.scales[g]), shift)
}

/// Returns the index of each element of group `g`.
#[inline(always)]
pub(super) fn indices_of<T: ShiftedLevels>(x: &[f32], found: &ShiftedScales, g: usize, out: &mut [u8]) {
    let (scale, shift) = scale_and_shift::<T>(found, g);
    indices_with::<T>(x, scale, shift, out);
}

/// Returns the index of each element of a group.
#[inline(always)]
pub(super) fn indices_with<T: ShiftedLevels>(x: &[f32], scale: f32, shift: f32, out: &mut [u8]) {
    let inverse = Lanes::splat(scale).inverse();
    for (q, x) in out.as_chunks_mut().0.iter_mut().zip(x.as_chunks().0) {
        *q = T::indices(Lanes(*x) * inverse - Lanes::splat(shift));
    }
}
