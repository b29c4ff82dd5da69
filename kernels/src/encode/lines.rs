//! Search for scales and minimums: types whose values are `scale * q - min`.

use super::cpu::for_this_cpu;
use super::equal::Halves;
use super::lanes::{Groups, LARGEST, Lanes, N, round_to_byte};
use super::scales;
use crate::layout::assemble::Lines;
use crate::layout::block::Half;

/// Limits of the values that a type can store, and the candidates of its search.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Largest index of an element.
    pub q: f32,
    /// Largest integer scale and minimum.
    pub scale: f32,
    /// Whether stored minimums may be negative; if so, the range of a group need not include 0.
    pub signed: bool,
    /// Candidates of the search: by how many steps the range is narrowed at its lower and upper end.
    pub narrowings: &'static [(f32, f32)],
}

impl Limits {
    /// Returns the error, relative to the squares, below which sums are too inexact to compare candidates.
    /// Random weights have larger errors.
    fn nearly_exact(self) -> f32 {
        0.1 / (self.q * self.q)
    }

    /// Returns true if the error of any group is below this limit.
    #[inline(always)]
    fn is_nearly_exact(self, error: Lanes, total: Lanes) -> bool {
        (0..N).any(|i| error.0[i] > 0.0 && error.0[i] < total.0[i] * self.nearly_exact())
    }
}

/// Narrowings for types with at least 4 bits.
pub(super) const FINE: &[(f32, f32)] = &[
    (0.0, 0.0),
    (0.3, 0.3),
    (0.6, 0.6),
    (0.9, 0.9),
    (0.5, 0.0),
    (0.0, 0.5),
    (1.0, 0.3),
    (0.3, 1.0),
    (0.0, -0.5),
    (0.0, 1.0),
];

/// Narrowings for 2-bit types.
pub(super) const COARSE: &[(f32, f32)] = &[
    (0.0, 0.0),
    (0.25, 0.25),
    (0.5, 0.5),
    (0.8, 0.8),
    (0.6, 0.0),
    (0.0, 0.6),
    (0.9, 0.3),
    (0.3, 0.9),
    (1.2, 0.6),
    (0.6, 1.2),
    (0.0, -0.3),
    (0.0, 0.3),
];

/// Narrowings for columns of different importance, whose error has more local minima.
pub(super) const WEIGHTED: &[(f32, f32)] = &grid([-0.5, 0.0, 0.4, 0.8, 1.3, 2.0]);

/// Narrowings for 2-bit types and columns of different importance.
pub(super) const COARSE_WEIGHTED: &[(f32, f32)] = &grid([-0.3, 0.0, 0.3, 0.6, 0.9, 1.25]);

const fn grid(amounts: [f32; 6]) -> [(f32, f32); 36] {
    let mut all = [(0.0, 0.0); 36];
    let mut i = 0;
    while i < 36 {
        all[i] = (amounts[i / 6], amounts[i % 6]);
        i += 1;
    }
    all
}

/// Sums over a group, for fixed indices `q`. They determine the squared error of any scale and minimum.
#[derive(Clone, Copy, Default)]
struct Sums {
    w: Lanes,
    x: Lanes,
    q: Lanes,
    qq: Lanes,
    xq: Lanes,
}

impl Sums {
    /// Returns these sums where `error < limit`, and those of `other` elsewhere.
    #[inline(always)]
    fn where_less(&self, error: Lanes, limit: Lanes, other: &Sums) -> Sums {
        Sums {
            w: error.select_less(limit, self.w, other.w),
            x: error.select_less(limit, self.x, other.x),
            q: error.select_less(limit, self.q, other.q),
            qq: error.select_less(limit, self.qq, other.qq),
            xq: error.select_less(limit, self.xq, other.xq),
        }
    }

    /// Returns the squared error less the constant `sum(w x^2)`.
    #[inline(always)]
    fn error(&self, scale: Lanes, min: Lanes) -> Lanes {
        let two = Lanes::splat(2.0);
        let scale_part = scale * (scale * self.qq - two * (self.xq + min * self.q));
        scale_part + min * (min * self.w + two * self.x)
    }

    /// Returns the scale and the minimum with the smallest error.
    #[inline(always)]
    fn best(&self, signed: bool) -> (Lanes, Lanes) {
        let det = self.qq * self.w - self.q * self.q;
        let threshold = self.qq * self.w * Lanes::splat(1e-6);
        let both = (self.xq * self.w - self.x * self.q).over(det);
        let both_min = (both * self.q - self.x).over(self.w);
        let alone = self.xq.over(self.qq);
        let alone_min = (Lanes::ZERO - self.x).over(self.w);
        if signed {
            let scale = threshold.select_less(det, both, Lanes::ZERO);
            return (scale.max(Lanes::ZERO), threshold.select_less(det, both_min, alone_min));
        }
        let alone_min = alone_min.max(Lanes::ZERO);
        // Equal indices leave the scale or the minimum undetermined: all elements are 0, or no minimum is needed.
        let equal_min = self.qq.select_less(Lanes::splat(1e-20), alone_min, Lanes::ZERO);
        let scale = threshold.select_less(det, both, alone);
        let min = threshold.select_less(det, both_min, equal_min);
        let scale = min.select_less(Lanes::ZERO, alone, scale);
        (scale.max(Lanes::ZERO), min.max(Lanes::ZERO))
    }
}

for_this_cpu! {
    /// Returns the best scale and minimum of each group that are F16.
    pub(super) fn fit_halves[const L: usize][L](groups: &Groups<L>, limits: Limits) -> Halves = best_halves;
    /// Returns the scales and minimums of a block of `S` times 8 groups with the smallest error found.
    pub(super) fn search[const S: usize, const L: usize, const G: usize][S, L, G](groups: &[Groups<L>; S], limits: Limits) -> Lines<G> = best_lines;
    /// Returns the sums of a group whose elements are rounded with this scale and minimum, and the squared
    /// error.
    fn round[const L: usize][L](groups: &Groups<L>, scale: Lanes, min: Lanes, max_q: f32) -> (Sums, Lanes) = round_elements;
    /// Returns the common factors with the smallest error for the indices of the fitted scales.
    fn start[const S: usize][S](fitted: &[(Lanes, Lanes, Sums); S], limits: Limits, largest: f32, largest_min: f32) -> (Half, Half) = start_for;
    /// Alternates between choosing integers and fitting the common factors. Improves on `best` and its error.
    fn refine[const S: usize, const L: usize, const G: usize][S, L, G](groups: &[Groups<L>; S], limits: Limits, fitted: [(Lanes, Lanes, Sums); S], factors: (Half, Half), best: &mut Lines<G>, best_error: &mut f32) -> () = refine_with;
}

/// Result of [`refit_elements`].
struct Refit {
    sums: Sums,
    scale: Lanes,
    min: Lanes,
    error: Lanes,
}

/// Rounds the elements of each group with this scale and minimum. Returns the sums, the best scale and minimum for
/// them, rounded to F16 if `to_halves`, and the error.
#[inline(always)]
fn refit_elements<const L: usize>(
    groups: &Groups<L>,
    scale: Lanes,
    min: Lanes,
    limits: Limits,
    to_halves: bool,
) -> Refit {
    let (sums, _) = round_elements(groups, scale, min, limits.q);
    let (mut scale, mut min) = sums.best(limits.signed);
    if to_halves {
        (scale, min) = (scale.half_precision(), min.half_precision());
    }
    Refit {
        sums,
        scale,
        min,
        error: sums.error(scale, min),
    }
}

/// See [`round`].
#[inline(always)]
fn round_elements<const L: usize>(groups: &Groups<L>, scale: Lanes, min: Lanes, max_q: f32) -> (Sums, Lanes) {
    let inverse = scale.inverse();
    let offset = min * inverse;
    let (mut sums, mut error) = (Sums::default(), Lanes::ZERO);
    for (&x, &w) in groups.x.iter().zip(&groups.w) {
        let q = (x * inverse + offset).clamp(0.0, max_q).round();
        let wq = w * q;
        let difference = x - (scale * q - min);
        sums.w = sums.w + w;
        sums.x = sums.x + w * x;
        sums.q = sums.q + wq;
        sums.qq = sums.qq + wq * q;
        sums.xq = sums.xq + wq * x;
        error = error + w * difference * difference;
    }
    (sums, error)
}

/// Returns the best scale and minimum of each group, with its sums. Both are rounded to F16 if `to_halves`.
#[inline(always)]
fn fit<const L: usize>(groups: &Groups<L>, limits: Limits, to_halves: bool) -> (Lanes, Lanes, Sums) {
    let (low, high) = groups.range();
    let low = if limits.signed { low } else { low.min(Lanes::ZERO) };
    let (mut scale, mut min) = ((high - low) * Lanes::splat(1.0 / limits.q), Lanes::ZERO - low);
    let (mut sums, mut best) = (Sums::default(), Lanes::splat(f32::MAX));
    let per_start = if limits.narrowings.len() > MANY { 2 } else { 1 };
    let n_starts = per_start * limits.narrowings.len();
    let mut refitted = (scale, min);
    for i in 0..n_starts + REFITS {
        let (s, m) = match limits.narrowings.get(i / per_start) {
            Some(&(bottom, top)) if i.is_multiple_of(per_start) => {
                let s = (high - low) * Lanes::splat(1.0 / (limits.q - bottom - top));
                (s, Lanes::ZERO - (low + s * Lanes::splat(bottom)))
            }
            Some(_) => refitted,
            None => (scale, min),
        };
        let new = refit_elements(groups, s, m, limits, to_halves);
        let last = (scale, min);
        scale = new.error.select_less(best, new.scale, scale);
        min = new.error.select_less(best, new.min, min);
        sums = new.sums.where_less(new.error, best, &sums);
        best = new.error.min(best);
        refitted = (new.scale, new.min);
        if i >= n_starts && (scale, min) == last {
            break;
        }
    }
    (scale, min, sums)
}

/// Number of times that the best scale and minimum are fitted again.
const REFITS: usize = 2;

/// Number of narrowings above which each one is also refitted. Only the lists for columns of different importance are
/// longer.
const MANY: usize = 20;

/// Chooses the integer scale and minimum with the smallest error for fixed indices. Returns both and the errors.
#[inline(always)]
fn choose(sums: &Sums, ideal: Lanes, d: f32, dmin: f32, limit: f32) -> (Lanes, Lanes, Lanes) {
    let (inverse, inverse_min) = (Lanes::splat(d).inverse(), Lanes::splat(dmin).inverse());
    let nearest = (ideal * inverse).clamp(0.0, limit);
    // One candidate is rounded down, and the other is the next integer.
    let below = (nearest - Lanes::splat(0.5)).max(Lanes::ZERO).round();
    let above = (below + Lanes::splat(1.0)).min(Lanes::splat(limit));
    let mut best = (below, Lanes::ZERO, Lanes::splat(f32::MAX));
    for scale in [below, above] {
        let real = scale * Lanes::splat(d);
        let min = ((real * sums.q - sums.x).over(sums.w) * inverse_min)
            .clamp(0.0, limit)
            .round();
        let error = sums.error(real, min * Lanes::splat(dmin));
        best.0 = error.select_less(best.2, scale, best.0);
        best.1 = error.select_less(best.2, min, best.1);
        best.2 = error.min(best.2);
    }
    best
}

/// See [`fit_halves`].
#[inline(always)]
pub(super) fn best_halves<const L: usize>(groups: &Groups<L>, limits: Limits) -> Halves {
    let (mut scale, mut min, _) = fit(groups, limits, true);
    let (mut best, mut best_error) = (Halves::default(), Lanes::splat(f32::INFINITY));
    let mut last = (Lanes::splat(f32::NAN), Lanes::ZERO);
    // The first candidates are refits. If errors depend on the rounding to F16, each number of steps and its refit
    // follow.
    for i in 0..HALF_FITS + 2 * limits.q as u32 {
        if i == HALF_FITS && !limits.is_nearly_exact(best_error, groups.squares()) {
            break;
        }
        if i >= HALF_FITS && (i - HALF_FITS).is_multiple_of(2) {
            (scale, min) = in_steps(groups, limits, (i - HALF_FITS) / 2 + 1);
        }
        let (scales, mins) = (scales::to_halves(scale), min.clamp(-LARGEST, LARGEST).to_halves());
        let real = (Lanes::from_halves(&scales), Lanes::from_halves(&mins));
        if i < HALF_FITS && real == last {
            continue;
        }
        last = real;
        let (sums, error) = round(groups, real.0, real.1, limits.q);
        for lane in 0..N {
            if error.0[lane] < best_error.0[lane] {
                (best.scales[lane], best.mins[lane]) = (scales[lane], mins[lane]);
                best_error.0[lane] = error.0[lane];
            }
        }
        (scale, min) = sums.best(limits.signed);
    }
    best
}

/// Number of fits of scales and minimums in F16.
const HALF_FITS: u32 = 3;

/// Rounds a positive factor to a positive, finite F16.
#[inline(always)]
fn to_half(x: f32) -> Half {
    let half = Half::new(if x < 65504.0 { x } else { 65504.0 });
    if x > 0.0 && half.get() == 0.0 {
        Half([1, 0])
    } else {
        half
    }
}

/// See [`search`].
#[inline(always)]
pub(super) fn best_lines<const S: usize, const L: usize, const G: usize>(
    groups: &[Groups<L>; S],
    limits: Limits,
) -> Lines<G> {
    let mut fitted = [(Lanes::ZERO, Lanes::ZERO, Sums::default()); S];
    let (mut largest, mut largest_min) = (0f32, 0f32);
    for (to, groups) in fitted.iter_mut().zip(groups) {
        *to = fit(groups, limits, false);
        largest = largest.max(to.0.largest());
        largest_min = largest_min.max(to.1.largest());
    }
    let mut best = Lines {
        d: Half::default(),
        dmin: Half::default(),
        scales: [0; G],
        mins: [0; G],
    };
    let mut total = 0.0;
    for groups in groups {
        total += groups.squares().sum();
    }
    let mut error = total;
    let factors = start(&fitted, limits, largest, largest_min);
    refine(groups, limits, fitted, factors, &mut best, &mut error);
    if error > 0.0 && error < total * limits.nearly_exact() {
        // The error depends on the rounding of the factors to F16, so any number of steps may be best.
        for steps in 1..=limits.q as u32 {
            let (mut largest, mut largest_min) = (0f32, 0f32);
            for (to, groups) in fitted.iter_mut().zip(groups) {
                (to.0, to.1) = in_steps(groups, limits, steps);
                to.2 = round(groups, to.0, to.1, limits.q).0;
                largest = largest.max(to.0.largest());
                largest_min = largest_min.max(to.1.largest());
            }
            let factors = (to_half(largest / limits.scale), to_half(largest_min / limits.scale));
            refine(groups, limits, fitted, factors, &mut best, &mut error);
        }
    }
    best
}

/// Returns the scale and minimum that divide the range of each group into this many steps.
#[inline(always)]
fn in_steps<const L: usize>(groups: &Groups<L>, limits: Limits, steps: u32) -> (Lanes, Lanes) {
    let (low, high) = groups.range();
    let low = if limits.signed { low } else { low.min(Lanes::ZERO) };
    ((high - low) * Lanes::splat(1.0 / steps as f32), Lanes::ZERO - low)
}

/// See [`refine`].
#[inline(always)]
fn refine_with<const S: usize, const L: usize, const G: usize>(
    groups: &[Groups<L>; S],
    limits: Limits,
    mut fitted: [(Lanes, Lanes, Sums); S],
    (mut d, mut dmin): (Half, Half),
    best: &mut Lines<G>,
    best_error: &mut f32,
) {
    for _ in 0..ROUNDS {
        let mut chosen = [(Lanes::ZERO, Lanes::ZERO); S];
        let (mut error, mut is_final) = (0.0, true);
        for ((to, (ideal, ideal_min, sums)), groups) in chosen.iter_mut().zip(&mut fitted).zip(groups) {
            let (scale, min, _) = choose(sums, *ideal, d.get(), dmin.get(), limits.scale);
            let [real, real_min] = [Lanes::splat(d.get()), Lanes::splat(dmin.get())];
            let (mut sums_of_choice, mut found) = round(groups, scale * real, min * real_min, limits.q);
            *to = (scale, min);
            if is_coarse(*ideal, d) {
                for (scale, min) in around(*ideal, *ideal_min, d, dmin, limits.scale) {
                    let (sums, error) = round(groups, scale * real, min * real_min, limits.q);
                    to.0 = error.select_less(found, scale, to.0);
                    to.1 = error.select_less(found, min, to.1);
                    sums_of_choice = sums.where_less(error, found, &sums_of_choice);
                    found = error.min(found);
                }
            }
            *sums = sums_of_choice;
            error += found.sum();
            let refitted = sums.best(false);
            is_final &= refitted == (*ideal, *ideal_min);
            (*ideal, *ideal_min) = refitted;
        }
        if error < *best_error {
            *best_error = error;
            (best.d, best.dmin) = (d, dmin);
            for g in 0..G {
                best.scales[g] = chosen[g / N].0.0[g % N] as u8;
                best.mins[g] = chosen[g / N].1.0[g % N] as u8;
            }
        }
        let refitted = refit(&chosen, &fitted, d, dmin);
        if is_final && refitted == (d, dmin) {
            break;
        }
        (d, dmin) = refitted;
    }
}

/// Returns true if the integer scale of any group is so small that indices depend on its rounding.
#[inline(always)]
fn is_coarse(ideal: Lanes, d: Half) -> bool {
    let limit = 4.0 * d.get();
    (0..N).any(|i| ideal.0[i] < limit)
}

/// Returns the integers on either side of the ideal scale and minimum.
#[inline(always)]
fn around(ideal: Lanes, ideal_min: Lanes, d: Half, dmin: Half, limit: f32) -> [(Lanes, Lanes); 6] {
    let below = |ideal: Lanes, factor: Half| {
        let real = (ideal * Lanes::splat(factor.get()).inverse()).clamp(0.0, limit);
        (real - Lanes::splat(0.5)).max(Lanes::ZERO).round()
    };
    let above = |x: Lanes| (x + Lanes::splat(1.0)).min(Lanes::splat(limit));
    let (scale, min) = (below(ideal, d), below(ideal_min, dmin));
    let (scales, mins) = ([scale, above(scale)], [min, above(min)]);
    [
        (scales[0], mins[0]),
        (scales[0], mins[1]),
        (scales[1], mins[0]),
        (scales[1], mins[1]),
        (scales[1], (mins[0] - Lanes::splat(1.0)).max(Lanes::ZERO)),
        (scales[1], above(mins[1])),
    ]
}

/// Rounds of choosing integers and fitting the common factors.
const ROUNDS: usize = 4;

/// Factors tried, relative to the largest scale or minimum divided by its largest integer. Large factors help if one
/// group needs a much larger scale than all others.
const FACTORS: [f32; 12] = [0.96, 1.0, 1.03, 1.07, 1.12, 1.2, 1.3, 1.4, 1.5, 1.65, 1.8, 2.0];

/// See [`start`].
#[inline(always)]
fn start_for<const S: usize>(
    fitted: &[(Lanes, Lanes, Sums); S],
    limits: Limits,
    largest: f32,
    largest_min: f32,
) -> (Half, Half) {
    let (unit, unit_min) = (largest / limits.scale, largest_min / limits.scale);
    let mut best = (to_half(unit), to_half(unit_min));
    let mut best_error = f32::INFINITY;
    let mut consider = |d: Option<f32>, dmin: Option<f32>| {
        let d = d.map_or(best.0, |factor| to_half(unit * factor));
        let dmin = dmin.map_or(best.1, |factor| to_half(unit_min * factor));
        let error: f32 = fitted
            .iter()
            .map(|(ideal, _, sums)| choose(sums, *ideal, d.get(), dmin.get(), limits.scale).2.sum())
            .sum();
        if error < best_error {
            best_error = error;
            best = (d, dmin);
        }
    };
    FACTORS.into_iter().for_each(|factor| consider(Some(factor), None));
    FACTORS.into_iter().for_each(|factor| consider(None, Some(factor)));
    FACTORS.into_iter().for_each(|factor| consider(Some(factor), None));
    best
}

/// Returns the common factors with the smallest error for fixed indices, scales, and minimums.
#[inline(always)]
fn refit<const S: usize>(
    chosen: &[(Lanes, Lanes); S],
    fitted: &[(Lanes, Lanes, Sums); S],
    d: Half,
    dmin: Half,
) -> (Half, Half) {
    let [mut ss, mut sm, mut mm, mut xs, mut xm] = [Lanes::ZERO; 5];
    for ((scale, min), (_, _, sums)) in chosen.iter().zip(fitted) {
        ss = ss + *scale * *scale * sums.qq;
        sm = sm + *scale * *min * sums.q;
        mm = mm + *min * *min * sums.w;
        xs = xs + *scale * sums.xq;
        xm = xm + *min * sums.x;
    }
    let [ss, sm, mm, xs, xm] = [ss, sm, mm, xs, xm].map(|lanes| f64::from(lanes.sum()));
    // Minimizes the sum of `w (x - d scale q + dmin min)^2`.
    let det = ss * mm - sm * sm;
    let (new, new_min) = if det > 1e-6 * ss * mm {
        ((xs * mm - xm * sm) / det, (xs * sm - xm * ss) / det)
    } else if ss > 0.0 {
        (xs / ss, f64::from(dmin.get()))
    } else if mm > 0.0 {
        (f64::from(d.get()), -xm / mm)
    } else {
        return (d, dmin);
    };
    // The best pair of F16 numbers is not always the nearest pair.
    let mut best = (d, dmin);
    let mut best_error = f64::INFINITY;
    for d in neighbors(new) {
        for dmin in neighbors(new_min) {
            let [s, m] = [d, dmin].map(|half| f64::from(half.get()));
            let error = s * (s * ss - 2.0 * (xs + m * sm)) + m * (m * mm + 2.0 * xm);
            if error < best_error {
                best_error = error;
                best = (d, dmin);
            }
        }
    }
    best
}

/// Returns the F16 nearest to a positive factor, and both of its neighbors.
#[inline(always)]
fn neighbors(x: f64) -> [Half; 3] {
    let half = to_half((x as f32).max(0.0));
    let bits = u16::from_le_bytes(half.0);
    let near = |bits: u16| Half(bits.min(0x7bff).to_le_bytes());
    [half, near(bits.saturating_sub(1)), near(bits + 1)]
}

/// Returns the index of each element of a group.
#[inline(always)]
pub(super) fn indices_of(x: &[f32], scale: f32, min: f32, max_q: f32, out: &mut [u8]) {
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let inverse = if inverse < f32::INFINITY { inverse } else { 0.0 };
    for (q, &x) in out.iter_mut().zip(x) {
        let real = (x + min) * inverse;
        let real = if real > 0.0 { real } else { 0.0 };
        let real = if real < max_q { real } else { max_q };
        *q = round_to_byte(real);
    }
}
