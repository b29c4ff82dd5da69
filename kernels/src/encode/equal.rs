//! Search for scales of groups of 32 weights of equal importance, in integers of 16 bits (see
//! [`words`](super::words)). It considers fewer candidates than the search in floats, and leaves groups that are
//! nearly exact to that search.

use super::lanes::{Lanes, N};
use super::words::{LEN, PortableWords, WORDS, Words};

/// Weights of 8 groups.
pub(super) type EightGroups = [f32; N * LEN];

/// Largest magnitude of a weight as an integer.
const UNIT: f32 = 32767.0;

/// Weights as integers are this much larger than those that are multiplied to find indices.
const COARSE: f32 = 32.0;

/// Multiplier of coarse weights for a scale of 1: the inverse of `COARSE / 2^15`, relative to weights.
const INVERSE: f32 = COARSE * 32768.0;

/// Magnitudes that the search handles: scales are normal numbers in F16.
const MAGNITUDES: std::ops::Range<f32> = 4e-3..1e5;

/// Largest error, relative to the squares, of groups that depend on the rounding of scales to F16.
const NEARLY_EXACT: f32 = 1e-4;

/// Candidates of the search for scales.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    /// Levels, or positions near them, to which candidates map the element of largest magnitude.
    pub ends: &'static [f32],
    /// Lowest and highest level.
    pub low: i16,
    pub high: i16,
}

/// Candidates of the search for scales and minimums.
#[derive(Clone, Copy)]
pub(super) struct Narrowings {
    /// Steps that narrow the range at either end.
    pub steps: &'static [(f32, f32)],
    /// Largest index.
    pub q: i16,
}

/// Defines functions that run a generic function with the integers of this CPU.
macro_rules! with_words {
    ($( $(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $f:ident; )*) => { $(
        $(#[$doc])*
        pub(super) fn $name($($arg: $ty),*) -> $ret {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn vectorized($($arg: $ty),*) -> $ret {
                    // SAFETY: the CPU supports AVX2 (target feature).
                    unsafe { $f::<super::words::avx2::Avx2Words>($($arg),*) }
                }
                if super::cpu::has_avx2() {
                    // SAFETY: the CPU supports AVX2.
                    return unsafe { vectorized($($arg),*) };
                }
            }
            // SAFETY: every CPU supports the portable integers.
            unsafe { $f::<PortableWords>($($arg),*) }
        }
    )* };
}

with_words! {
    /// Returns the best scale of each group, or `None` if any group needs the search in floats.
    fn scales(x: &EightGroups, candidates: Ends) -> Option<Lanes> = best_scales;
    /// Writes `(x - low) * factor + offset` for each group, rounded and limited to `0..=max`.
    fn indices(x: &EightGroups, low: &Lanes, factor: &Lanes, offset: f32, max: f32, out: &mut [[u8; LEN]; N]) -> () = all_indices;
    /// Returns the best scale and minimum of each group, or `None` if any group needs the search in floats.
    fn lines(x: &EightGroups, candidates: Narrowings) -> Option<(Lanes, Lanes)> = best_lines;
}

/// See [`indices`].
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn all_indices<W: Words>(
    x: &EightGroups,
    low: &Lanes,
    factor: &Lanes,
    offset: f32,
    max: f32,
    out: &mut [[u8; LEN]; N],
) {
    // SAFETY: function contract.
    unsafe { W::indices(x, low, factor, offset, max, out) }
}

/// Returns true if all lanes that are not 0 are in a range.
#[inline(always)]
fn all_in(lanes: Lanes, range: &std::ops::Range<f32>) -> bool {
    lanes.0.iter().all(|lane| *lane == 0.0 || range.contains(lane))
}

/// Returns true if the error of any group is so small that it depends on the rounding to F16.
#[inline(always)]
fn any_nearly_exact(total: Lanes, gain: Lanes) -> bool {
    let error = total - gain;
    let limit = total * Lanes::splat(NEARLY_EXACT);
    (0..N).any(|i| error.0[i] < limit.0[i])
}

#[inline(always)]
fn to_lanes(sums: [i32; N]) -> Lanes {
    Lanes(sums.map(|sum| sum as f32))
}

/// See [`scales`].
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn best_scales<W: Words>(x: &EightGroups, candidates: Ends) -> Option<Lanes> {
    // SAFETY: function contract.
    unsafe {
        let (low, high) = W::ranges(x);
        let max = high.select_less(Lanes::ZERO - low, low, high);
        let magnitude = max.abs();
        if !all_in(magnitude, &MAGNITUDES) {
            return None;
        }
        let fine = W::load(x, &Lanes::ZERO, &(magnitude.inverse() * Lanes::splat(UNIT)));
        let coarse = coarse(&fine);
        let total = to_lanes(products::<W>(&coarse, &coarse)) * Lanes::splat(COARSE * COARSE);
        let (lowest, highest) = (
            W::per_group(Lanes::splat(candidates.low.into())),
            W::per_group(Lanes::splat(candidates.high.into())),
        );
        let sign = Lanes::splat(COARSE).with_sign_of(max);
        let (mut scale, mut best) = (Lanes::ZERO, Lanes::ZERO);
        for start in 0..candidates.ends.len() + REFITS {
            let multiplier = match candidates.ends.get(start) {
                Some(&end) => sign * Lanes::splat(end),
                None => (scale.inverse() * Lanes::splat(INVERSE)).clamp(-UNIT, UNIT),
            };
            let multiplier = W::per_group(multiplier);
            let zero = W::per_group(Lanes::ZERO);
            let (mut xq, mut qq) = (zero.dots(zero), zero.dots(zero));
            for i in 0..WORDS {
                let q = coarse[i].times(multiplier).at_least(lowest).at_most(highest);
                xq = W::add(xq, fine[i].dots(q));
                qq = W::add(qq, q.dots(q));
            }
            let (xq, qq) = (to_lanes(W::sums(xq)), to_lanes(W::sums(qq)));
            let fitted = xq.over(qq);
            let gain = fitted * xq;
            scale = best.select_less(gain, fitted, scale);
            best = best.max(gain);
        }
        if any_nearly_exact(total, best) {
            return None;
        }
        Some(scale * magnitude * Lanes::splat(1.0 / UNIT))
    }
}

/// Divides weights by `COARSE`.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn coarse<W: Words>(fine: &[W; WORDS]) -> [W; WORDS] {
    // SAFETY: function contract.
    let factor = unsafe { W::per_group(Lanes::splat(32768.0 / COARSE)) };
    let mut coarse = *fine;
    for x in &mut coarse {
        *x = x.times(factor);
    }
    coarse
}

/// Returns the sum of products of each group.
#[inline(always)]
fn products<W: Words>(a: &[W; WORDS], b: &[W; WORDS]) -> [i32; N] {
    let mut sums = a[0].dots(b[0]);
    for i in 1..WORDS {
        sums = W::add(sums, a[i].dots(b[i]));
    }
    W::sums(sums)
}

/// Number of times that the best candidate is fitted again.
const REFITS: usize = 1;

/// Largest magnitude of a weight in steps: the rounding of a minimum to F16 must be much smaller than a step.
const STEPS: f32 = 400.0;

/// Added to coarse weights, so that differences to offsets are not negative.
const BIAS: f32 = 1024.0;

/// See [`lines`].
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn best_lines<W: Words>(x: &EightGroups, candidates: Narrowings) -> Option<(Lanes, Lanes)> {
    // SAFETY: function contract.
    unsafe {
        let (low, high) = W::ranges(x);
        let range = high - low;
        let q_max = f32::from(candidates.q);
        let far = high.max(Lanes::ZERO - low);
        let is_usual = |i: usize| MAGNITUDES.contains(&range.0[i]) && far.0[i] * q_max < range.0[i] * STEPS;
        if !(0..N).all(is_usual) {
            return None;
        }
        let fine = W::load(x, &low, &(range.inverse() * Lanes::splat(UNIT)));
        let mut coarse = coarse(&fine);
        let one = W::per_group(Lanes::splat(1.0));
        let ones = [one; WORDS];
        let (x_sum, coarse_sum) = (products::<W>(&fine, &ones), products::<W>(&coarse, &ones));
        let squares = products::<W>(&coarse, &coarse);
        let variance: [i32; N] = std::array::from_fn(|i| LEN as i32 * squares[i] - coarse_sum[i] * coarse_sum[i]);
        let total = to_lanes(variance) * Lanes::splat(COARSE * COARSE);
        let (zero, highest) = (W::per_group(Lanes::ZERO), W::per_group(Lanes::splat(q_max)));
        let bias = W::per_group(Lanes::splat(BIAS));
        for x in &mut coarse {
            *x = x.plus(bias);
        }
        let (mut scale, mut min, mut best) = (Lanes::ZERO, Lanes::ZERO, Lanes::ZERO);
        for start in 0..candidates.steps.len() + REFITS {
            let (multiplier, offset) = match candidates.steps.get(start) {
                Some(&(bottom, top)) => {
                    let steps = q_max - bottom - top;
                    (
                        Lanes::splat(COARSE * steps),
                        Lanes::splat(bottom * 32768.0 / COARSE / steps),
                    )
                }
                None => (
                    (scale.inverse() * Lanes::splat(INVERSE)).min(Lanes::splat(UNIT)),
                    min * Lanes::splat(-1.0 / COARSE),
                ),
            };
            let offset = (offset + Lanes::splat(BIAS)).max(Lanes::ZERO).min(Lanes::splat(UNIT));
            let (multiplier, offset) = (W::per_group(multiplier), W::per_group(offset));
            let (mut q_sum, mut qq, mut xq) = (zero, zero.dots(zero), zero.dots(zero));
            for i in 0..WORDS {
                let q = coarse[i].less(offset).times(multiplier).at_most(highest);
                q_sum = q_sum.plus(q);
                qq = W::add(qq, q.dots(q));
                xq = W::add(xq, fine[i].dots(q));
            }
            let fit = LineFit::new(x_sum, W::sums(q_sum.dots(one)), W::sums(qq), W::sums(xq));
            scale = best.select_less(fit.gain, fit.scale, scale);
            min = best.select_less(fit.gain, fit.min, min);
            best = best.max(fit.gain);
        }
        if any_nearly_exact(total, best) {
            return None;
        }
        let unit = range * Lanes::splat(1.0 / UNIT);
        Some((scale * unit, min * unit - low))
    }
}

/// Scales and minimums with the least error for fixed indices.
struct LineFit {
    scale: Lanes,
    min: Lanes,
    /// The error without a scale less the error, times `LEN`.
    gain: Lanes,
}

impl LineFit {
    /// Fits scales and minimums to sums over each group.
    #[inline(always)]
    fn new(x: [i32; N], q: [i32; N], qq: [i32; N], xq: [i32; N]) -> LineFit {
        let (mut covariance, mut spread) = (Lanes::ZERO, Lanes::ZERO);
        for i in 0..N {
            covariance.0[i] = (LEN as i32 * xq[i] - x[i] * q[i]) as f32;
            spread.0[i] = (LEN as i32 * qq[i] - q[i] * q[i]) as f32;
        }
        let scale = covariance.over(spread);
        LineFit {
            scale,
            min: (scale * to_lanes(q) - to_lanes(x)) * Lanes::splat(1.0 / LEN as f32),
            gain: scale * covariance,
        }
    }
}
