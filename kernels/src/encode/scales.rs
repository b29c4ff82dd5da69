//! Search for scales: types whose values are a scale times one of a few levels.

use super::cpu::for_this_cpu;
use super::equal::{Ends, splat, with_words};
use super::lanes::{Groups, LARGEST, Lanes, N, SMALLEST, round_to_byte};
use super::reals::Reals;
use super::words::Words;
use crate::layout::assemble::IntScales;
use crate::layout::block::Half;
use crate::quants::IQ4_VALUES;

/// Levels of a type: the values of its elements before they are scaled.
pub(super) trait Levels {
    /// Levels, or positions near them, to which candidates map the element of largest magnitude.
    const ENDS: &'static [f32];

    /// Level of largest magnitude.
    const LOWEST: f32;

    /// Candidates for groups of 32 elements of equal importance, if the search in integers supports the type.
    const EQUAL: Option<Ends> = None;

    /// Lowest and highest level if the levels are all integers between them.
    const INTEGERS: Option<Range> = None;

    /// Returns the nearest levels.
    fn nearest(x: Lanes) -> Lanes;

    /// Returns the index of the nearest level.
    fn index(x: f32) -> u8;

    /// Returns the indices of the nearest levels.
    #[inline(always)]
    fn indices(x: Lanes) -> [u8; N] {
        let mut indices = [0; N];
        for (index, x) in indices.iter_mut().zip(x.0) {
            *index = Self::index(x);
        }
        indices
    }

    /// Returns the level of an index.
    fn value(index: u8) -> f32;
}

/// Integers from `LOW` to `HIGH`.
pub(super) struct Integers<const LOW: i32, const HIGH: i32>;

/// Returns the candidates for integer levels whose lowest level is `low`.
const fn ends_of(low: i32) -> &'static [f32] {
    match low {
        -32 => &[-32.5, -32.0, -31.5, -31.0, -30.5, -30.0, 30.75, 31.25, -28.5],
        -16 => &[-17.0, -16.5, -16.0, -15.5, -15.0, -14.5, 15.0, 15.5, -13.75, 14.25],
        -8 => &[-9.0, -8.5, -8.25, -8.0, -7.75, -7.5, -7.25, -7.0, 7.0, 7.5, -6.5, 6.5],
        -4 => &[-5.0, -4.6, -4.3, -4.0, -3.7, -3.4, -3.1, 2.8, 3.1, 3.4, 2.5, -2.6],
        _ => &[-1.8, -1.5, -1.2, -1.0, 1.2, 1.5, 1.8, 2.1, 2.5, 3.0, -2.2],
    }
}

impl<const LOW: i32, const HIGH: i32> Levels for Integers<LOW, HIGH> {
    const ENDS: &'static [f32] = ends_of(LOW);
    const LOWEST: f32 = LOW as f32;
    const EQUAL: Option<Ends> = match (LOW, HIGH) {
        (-16, 15) => Some(Ends {
            clipped: &[-17.0],
            clipped_above: &[-16.5, -16.0, -15.5, 15.5],
            whole: &[-15.0, -14.5, 15.0, -13.75, 14.25],
            low: -16,
            high: 15,
        }),
        (-8, 7) => Some(Ends {
            clipped: &[-9.0],
            clipped_above: &[-8.5, -8.25, -8.0, -7.75, -7.5, 7.5],
            whole: &[-7.25, -7.0, 7.0, -6.5, 6.5],
            low: -8,
            high: 7,
        }),
        _ => None,
    };
    const INTEGERS: Option<Range> = Some(Range {
        low: LOW as f32,
        high: HIGH as f32,
    });

    #[inline(always)]
    fn nearest(x: Lanes) -> Lanes {
        x.clamp(LOW as f32, HIGH as f32).round()
    }

    #[inline(always)]
    fn index(x: f32) -> u8 {
        let x = x - LOW as f32;
        let x = if x > 0.0 { x } else { 0.0 };
        let high = (HIGH - LOW) as f32;
        round_to_byte(if x < high { x } else { high })
    }

    #[inline(always)]
    fn value(index: u8) -> f32 {
        f32::from(index) + LOW as f32
    }
}

/// The table of IQ4_NL and IQ4_XS.
pub(super) struct Iq4;

impl Levels for Iq4 {
    const LOWEST: f32 = IQ4_VALUES[0] as f32;
    const ENDS: &'static [f32] = &[
        -140.0, -134.0, -130.0, -127.0, -124.0, -120.0, -115.0, -110.0, -104.0, 104.0, 108.0, 113.0, 117.0, 122.0,
        128.0,
    ];

    #[inline(always)]
    fn nearest(x: Lanes) -> Lanes {
        let mut level = Lanes::splat(f32::from(IQ4_VALUES[0]));
        for pair in IQ4_VALUES.windows(2) {
            let [below, above] = [f32::from(pair[0]), f32::from(pair[1])];
            let middle = Lanes::splat((below + above) / 2.0);
            level = middle.select_less(x, Lanes::splat(above), level);
        }
        level
    }

    #[inline(always)]
    fn index(x: f32) -> u8 {
        IQ4_VALUES
            .windows(2)
            .map(|pair| u8::from(x > (f32::from(pair[0]) + f32::from(pair[1])) / 2.0))
            .sum()
    }

    #[inline(always)]
    fn value(index: u8) -> f32 {
        f32::from(IQ4_VALUES[usize::from(index)])
    }
}

/// Sums over a group, for fixed levels `v`.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    pub xv: Lanes,
    pub vv: Lanes,
}

impl Sums {
    /// Returns the squared error less the constant `sum(w x^2)`.
    #[inline(always)]
    pub(super) fn error(&self, scale: Lanes) -> Lanes {
        scale * (scale * self.vv - Lanes::splat(2.0) * self.xv)
    }

    #[inline(always)]
    pub(super) fn best(&self) -> Lanes {
        self.xv.over(self.vv)
    }
}

for_this_cpu! {
    /// Returns the sums of a group whose elements are rounded with this scale, and the squared error.
    pub(super) fn round[T: Levels, const L: usize][T, L](groups: &Groups<L>, scale: Lanes) -> (Sums, Lanes) = round_elements;
    /// Returns the best scale of each group that is an F16.
    pub(super) fn fit_half[T: Levels, const L: usize][T, L](groups: &Groups<L>) -> [Half; N] = best_halves;
    /// Returns the scales of a block of `S` times 8 groups with the smallest error found.
    pub(super) fn search[T: Levels, const S: usize, const L: usize, const G: usize][T, S, L, G](groups: &[Groups<L>; S], range: Range, is_equal: bool) -> IntScales<G> = best_scales;
    /// Returns the common factor with the smallest error for the levels of the fitted scales.
    pub(super) fn start[const S: usize][S](fitted: &[(Lanes, Sums); S], range: Range, largest: f32) -> Half = start_for;
    /// Alternates between choosing integers and fitting the common factor. Improves on `best` and its error.
    fn refine[T: Levels, const S: usize, const L: usize, const G: usize][T, S, L, G](groups: &[Groups<L>; S], range: Range, fitted: [(Lanes, Sums); S], d: Half, best: &mut IntScales<G>, best_error: &mut f32) -> () = refine_with;
}

/// Rounds the elements of each group with this scale. Returns the sums, the best scale for them, rounded to F16 if
/// `to_halves`, and the error.
#[inline(always)]
fn refit_elements<T: Levels, const L: usize>(
    groups: &Groups<L>,
    scale: Lanes,
    to_halves: bool,
) -> (Sums, Lanes, Lanes) {
    let (sums, _) = round_elements::<T, L>(groups, scale);
    let mut scale = sums.best();
    if to_halves {
        scale = scale.half_precision();
    }
    (sums, scale, sums.error(scale))
}

/// See [`round`].
#[inline(always)]
fn round_elements<T: Levels, const L: usize>(groups: &Groups<L>, scale: Lanes) -> (Sums, Lanes) {
    let inverse = scale.inverse();
    let (mut sums, mut error) = (Sums::default(), Lanes::ZERO);
    for (&x, &w) in groups.x.iter().zip(&groups.w) {
        let v = T::nearest(x * inverse);
        let wv = w * v;
        let difference = x - scale * v;
        sums.xv = sums.xv + wv * x;
        sums.vv = sums.vv + wv * v;
        error = error + w * difference * difference;
    }
    (sums, error)
}

/// Returns the best scale of each group, with its sums. Scales are rounded to F16 if `to_halves`.
#[inline(always)]
fn fit<T: Levels, const L: usize>(groups: &Groups<L>, to_halves: bool) -> (Lanes, Sums) {
    let max = groups.largest();
    let mut scale = Lanes::ZERO;
    let (mut sums, mut best) = (Sums::default(), Lanes::splat(f32::MAX));
    for i in 0..T::ENDS.len() + REFITS {
        let start = T::ENDS.get(i).map_or(scale, |&end| max * Lanes::splat(1.0 / end));
        let (new, refitted, error) = refit_elements::<T, L>(groups, start, to_halves);
        let last = scale;
        scale = error.select_less(best, refitted, scale);
        sums.xv = error.select_less(best, new.xv, sums.xv);
        sums.vv = error.select_less(best, new.vv, sums.vv);
        best = error.min(best);
        if i >= T::ENDS.len() && scale == last {
            break;
        }
    }
    (scale, sums)
}

/// Elements of the groups of [`fit_integers`].
const SIXTEEN: usize = 16;

with_words! {
    /// Returns the best scales of two sets of groups whose elements are equally important, with their sums. Levels are
    /// the integers in a range, and `ends` as in [`Levels::ENDS`].
    fn fit_integers(sets: [&[Lanes; SIXTEEN]; 2], levels: Range, ends: &[f32], max: [Lanes; 2]) -> [(Lanes, Sums); 2] = fit_two_sets;
}

/// Computes [`fit`] for all groups with [`fit_integers`]. Returns false if the type or the length does not allow it.
#[inline(always)]
fn fit_equal<T: Levels, const L: usize>(groups: &[Groups<L>], fitted: &mut [(Lanes, Sums)]) -> bool {
    let (Some(levels), [first, second]) = (T::INTEGERS, groups) else {
        return false;
    };
    let (Ok(a), Ok(b)) = (first.x[..].try_into(), second.x[..].try_into()) else {
        return false;
    };
    let max = [first.largest(), second.largest()];
    fitted.copy_from_slice(&fit_integers([a, b], levels, T::ENDS, max));
    true
}

/// See [`fit_integers`]. The result equals that of [`fit`]. Two sets are independent, so their instructions overlap.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn fit_two_sets<W: Words>(
    sets: [&[Lanes; SIXTEEN]; 2],
    levels: Range,
    ends: &[f32],
    max: [Lanes; 2],
) -> [(Lanes, Sums); 2] {
    // SAFETY: function contract.
    unsafe {
        let zero = splat::<W>(0.0);
        let max = [W::Floats::from_lanes(&max[0]), W::Floats::from_lanes(&max[1])];
        let (mut scales, mut best) = ([zero; 2], [splat::<W>(f32::MAX); 2]);
        let (mut best_xv, mut best_vv) = ([zero; 2], [zero; 2]);
        for i in 0..ends.len() + REFITS {
            let mut inverse = [zero; 2];
            for s in 0..2 {
                let start = match ends.get(i) {
                    Some(&end) => max[s] * splat::<W>(1.0 / end),
                    None => scales[s],
                };
                inverse[s] = start.reciprocal();
            }
            // The candidate maps the element of largest magnitude to the end, so all elements are within the end.
            let reach = ends.get(i).map_or(f32::INFINITY, |end| end.abs());
            let [xv, vv] = if reach < levels.high + NEARLY_HALF {
                sums_of_sets::<W, false, false>(sets, inverse, levels)
            } else if reach < NEARLY_HALF - levels.low {
                sums_of_sets::<W, false, true>(sets, inverse, levels)
            } else {
                sums_of_sets::<W, true, true>(sets, inverse, levels)
            };
            for s in 0..2 {
                let scale = xv[s].divided_by(vv[s]);
                let error = scale * (scale * vv[s] - splat::<W>(2.0) * xv[s]);
                scales[s] = error.choose_less(best[s], scale, scales[s]);
                best_xv[s] = error.choose_less(best[s], xv[s], best_xv[s]);
                best_vv[s] = error.choose_less(best[s], vv[s], best_vv[s]);
                best[s] = error.smaller(best[s]);
            }
        }
        let mut fitted = [(Lanes::ZERO, Sums::default()); 2];
        for (s, fitted) in fitted.iter_mut().enumerate() {
            let (xv, vv) = (best_xv[s].to_lanes(), best_vv[s].to_lanes());
            *fitted = (scales[s].to_lanes(), Sums { xv, vv });
        }
        fitted
    }
}

/// Distance from a level at which numbers still round to the level, with a margin for inexact inverses.
const NEARLY_HALF: f32 = 0.49;

/// Returns the sums of `v * x` and of `v^2` of both sets, where `v` is the level nearest to `x * inverse`. `LOWEST` and
/// `HIGHEST` are true if integers must be clamped to the lowest or highest level.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn sums_of_sets<W: Words, const LOWEST: bool, const HIGHEST: bool>(
    sets: [&[Lanes; SIXTEEN]; 2],
    inverse: [W::Floats; 2],
    levels: Range,
) -> [[W::Floats; 2]; 2] {
    // SAFETY: function contract.
    unsafe {
        let zero = splat::<W>(0.0);
        let (low, high) = (splat::<W>(levels.low), splat::<W>(levels.high));
        let (mut xv, mut vv) = ([zero; 2], [zero; 2]);
        for e in 0..SIXTEEN {
            for s in 0..2 {
                let x = W::Floats::from_lanes(&sets[s][e]);
                let mut v = x * inverse[s];
                v = if LOWEST { v.larger(low) } else { v };
                v = if HIGHEST { v.smaller(high) } else { v };
                v = v.rounded();
                xv[s] = xv[s] + v * x;
                vv[s] = vv[s] + v * v;
            }
        }
        [xv, vv]
    }
}

/// Number of times that the best scale is fitted again.
const REFITS: usize = 2;

/// See [`fit_half`].
#[inline(always)]
pub(super) fn best_halves<T: Levels, const L: usize>(groups: &Groups<L>) -> [Half; N] {
    let (mut scale, _) = fit::<T, L>(groups, true);
    // Starts with a scale of 0, which is best for magnitudes below the smallest F16: not all types have a level of 0.
    let total = groups.squares();
    let (mut best, mut best_error) = ([Half::default(); N], total);
    let max = groups.largest();
    let mut last = Lanes::splat(f32::NAN);
    // The first candidates are refits. If errors depend on the rounding to F16, each end of the levels and its refit
    // follow.
    for i in 0..HALF_FITS + 2 * T::ENDS.len() {
        if i == HALF_FITS && !nearly_exact(best_error, total) {
            break;
        }
        if i >= HALF_FITS && (i - HALF_FITS).is_multiple_of(2) {
            scale = max * Lanes::splat(1.0 / T::ENDS[(i - HALF_FITS) / 2]);
        }
        let halves = to_halves(scale);
        let real = Lanes::from_halves(&halves);
        if i < HALF_FITS && real == last {
            continue;
        }
        last = real;
        let (sums, error) = round_elements::<T, L>(groups, real);
        for lane in 0..N {
            if error.0[lane] < best_error.0[lane] {
                (best[lane], best_error.0[lane]) = (halves[lane], error.0[lane]);
            }
        }
        scale = sums.best();
    }
    best
}

/// Number of fits of scales in F16.
const HALF_FITS: usize = 3;

/// Returns true if the error of any group is so small that it depends on the rounding of the scale to F16. The sums are
/// too inexact to compare candidates for these groups.
#[inline(always)]
fn nearly_exact(error: Lanes, total: Lanes) -> bool {
    (0..N).any(|i| error.0[i] > 0.0 && error.0[i] < total.0[i] * 1e-5)
}

/// Rounds to F16 as [`to_half`] does.
#[inline(always)]
pub(super) fn to_halves(scales: Lanes) -> [Half; N] {
    let magnitudes = scales.abs();
    let raised = magnitudes.clamp(SMALLEST, LARGEST).with_sign_of(scales);
    Lanes::ZERO.select_less(magnitudes, raised, Lanes::ZERO).to_halves()
}

/// Rounds to F16. Finite numbers stay finite, and nonzero numbers stay nonzero.
#[inline(always)]
pub(super) fn to_half(x: f32) -> Half {
    let half = Half::new(x.clamp(-LARGEST, LARGEST));
    if half.get() != 0.0 || x == 0.0 {
        half
    } else {
        Half::new(SMALLEST.copysign(x))
    }
}

/// Range of the integer scales of a type.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub low: f32,
    pub high: f32,
}

impl Range {
    #[inline(always)]
    pub(super) fn nearest(self, ideal: Lanes, d: Half) -> Lanes {
        (ideal * Lanes::splat(d.get()).inverse())
            .clamp(self.low, self.high)
            .round()
    }
}

/// Positions of the largest scale, relative to the lower end of the range. Small positions help if one group needs a
/// much larger scale than all others.
const POSITIONS: [f32; 16] = [
    1.0, 0.985, 0.97, 0.95, 0.93, 0.9, 1.03, -0.97, -0.93, 0.85, 0.8, 0.75, 0.7, 0.65, 0.58, 0.51,
];

/// Rounds of choosing integers and fitting the common factor.
const ROUNDS: usize = 4;

/// See [`search`].
#[inline(always)]
pub(super) fn best_scales<T: Levels, const S: usize, const L: usize, const G: usize>(
    groups: &[Groups<L>; S],
    range: Range,
    is_equal: bool,
) -> IntScales<G> {
    let mut fitted = [(Lanes::ZERO, Sums::default()); S];
    if !is_equal || !fit_equal::<T, L>(groups, &mut fitted) {
        for (to, groups) in fitted.iter_mut().zip(groups) {
            *to = fit::<T, L>(groups, false);
        }
    }
    let largest = fitted.iter().fold(0f32, |max, fit| larger(max, fit.0));
    let mut best = IntScales {
        d: Half::default(),
        scales: [0; G],
    };
    let d = start(&fitted, range, largest);
    let mut total = 0.0;
    for groups in groups {
        total += groups.squares().sum();
    }
    let mut error = total;
    refine::<T, S, L, G>(groups, range, fitted, d, &mut best, &mut error);
    // The factor was chosen for the ideal scales. Rounding small integer scales changes the levels.
    let coarse: usize = fitted.iter().map(|(ideal, _)| n_coarse(*ideal, d)).sum();
    let n_starts = match coarse {
        0 => 0,
        n if n < S * N / 2 => 4,
        _ => 24,
    };
    if n_starts > 0 {
        // Mapping the largest element to the level of largest magnitude gives the smallest scale.
        let lowest = at_end(groups, T::LOWEST);
        for fitted in [fitted, lowest] {
            let largest = fitted.iter().fold(0f32, |max, fit| larger(max, fit.0));
            let mut position = 1.04;
            for _ in 0..n_starts {
                let d = to_half(largest / (position * range.low));
                refine::<T, S, L, G>(groups, range, fitted, d, &mut best, &mut error);
                position *= 0.96;
            }
        }
    }
    if error > 0.0 && error < total * 1e-5 {
        // The error depends on the rounding of the factor to F16, so each end of the levels may be best.
        for &end in T::ENDS {
            let fitted = at_end(groups, end);
            let largest = fitted.iter().fold(0f32, |max, fit| larger(max, fit.0));
            refine::<T, S, L, G>(
                groups,
                range,
                fitted,
                to_half(largest / range.low),
                &mut best,
                &mut error,
            );
        }
    }
    best
}

/// Returns scales that map the largest magnitude of each group to `end`, with empty sums.
fn at_end<const S: usize, const L: usize>(groups: &[Groups<L>; S], end: f32) -> [(Lanes, Sums); S] {
    let mut scales = [(Lanes::ZERO, Sums::default()); S];
    for (to, groups) in scales.iter_mut().zip(groups) {
        to.0 = groups.largest() * Lanes::splat(1.0 / end);
    }
    scales
}

/// Returns the number of groups whose integer scale is so small that levels depend on its rounding.
#[inline(always)]
pub(super) fn n_coarse(ideal: Lanes, d: Half) -> usize {
    let limit = 4.0 * d.get().abs();
    ideal.0.into_iter().filter(|ideal| ideal.abs() < limit).count()
}

/// Returns the value of largest magnitude, with its sign.
#[inline(always)]
pub(super) fn larger(max: f32, lanes: Lanes) -> f32 {
    lanes
        .0
        .into_iter()
        .fold(max, |max, x| if x.abs() > max.abs() { x } else { max })
}

/// See [`refine`].
#[inline(always)]
fn refine_with<T: Levels, const S: usize, const L: usize, const G: usize>(
    groups: &[Groups<L>; S],
    range: Range,
    mut fitted: [(Lanes, Sums); S],
    mut d: Half,
    best: &mut IntScales<G>,
    best_error: &mut f32,
) {
    for _ in 0..ROUNDS {
        let mut chosen = [Lanes::ZERO; S];
        let (mut error, mut xv, mut vv) = (0.0, Lanes::ZERO, Lanes::ZERO);
        let mut is_final = true;
        for ((to, (ideal, _)), groups) in chosen.iter_mut().zip(&mut fitted).zip(groups) {
            let scale = range.nearest(*ideal, d);
            *to = scale;
            let real = Lanes::splat(d.get());
            let (mut new, mut found) = round_elements::<T, L>(groups, scale * real);
            if n_coarse(*ideal, d) > 0 {
                for offset in [-1.0, 1.0] {
                    let scale = (scale + Lanes::splat(offset)).clamp(range.low, range.high);
                    let (sums, error) = round_elements::<T, L>(groups, scale * real);
                    *to = error.select_less(found, scale, *to);
                    new.xv = error.select_less(found, sums.xv, new.xv);
                    new.vv = error.select_less(found, sums.vv, new.vv);
                    found = error.min(found);
                }
            }
            let scale = *to;
            error += found.sum();
            xv = xv + scale * new.xv;
            vv = vv + scale * scale * new.vv;
            // With a scale of 0, the sums cannot determine a better scale.
            let refitted = Lanes::ZERO.select_less(new.vv, new.best(), *ideal);
            is_final &= refitted == *ideal;
            *ideal = refitted;
        }
        if error < *best_error {
            *best_error = error;
            best.d = d;
            for g in 0..G {
                best.scales[g] = chosen[g / N].0[g % N] as i8;
            }
        }
        let vv = vv.sum();
        let refitted = if vv > 0.0 { to_half(xv.sum() / vv) } else { d };
        if is_final && refitted == d {
            break;
        }
        d = refitted;
    }
}

/// See [`start`].
#[inline(always)]
fn start_for<const S: usize>(fitted: &[(Lanes, Sums); S], range: Range, largest: f32) -> Half {
    let (mut best, mut best_error) = (Half::default(), f32::INFINITY);
    for positions in POSITIONS.as_chunks().0 {
        let factors = to_halves(Lanes::splat(largest) / (Lanes(*positions) * Lanes::splat(range.low)));
        let reals = Lanes::from_halves(&factors);
        let inverses = reals.inverse();
        for i in 0..N {
            let (d, inverse) = (Lanes::splat(reals.0[i]), Lanes::splat(inverses.0[i]));
            let mut errors = Lanes::ZERO;
            for (ideal, sums) in fitted {
                let scale = (*ideal * inverse).clamp(range.low, range.high).round();
                errors = errors + sums.error(scale * d);
            }
            let error = errors.sum();
            if error < best_error {
                (best, best_error) = (factors[i], error);
            }
        }
    }
    best
}

/// Returns the index of each element of a group. Its length is a multiple of [`N`].
#[inline(always)]
pub(super) fn indices_of<T: Levels>(x: &[f32], scale: f32, out: &mut [u8]) {
    let inverse = Lanes::splat(scale).inverse();
    for (q, x) in out.as_chunks_mut().0.iter_mut().zip(x.as_chunks().0) {
        *q = T::indices(Lanes(*x) * inverse);
    }
}
