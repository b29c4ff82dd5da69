//! Search for scales of groups of 32 weights of equal importance, in integers of 16 bits (see
//! [`words`](super::words)). It considers fewer candidates than the search in floats, and leaves groups that are
//! nearly exact to that search.

use super::lanes::N;
use super::reals::{Reals, raised};
use super::words::{LEN, WORDS, Words};
use crate::layout::block::Half;

/// Weights of 8 groups.
pub(super) type EightGroups = [f32; N * LEN];

/// Largest magnitude of a weight as an integer.
const UNIT: f32 = 32767.0;

/// Weights as integers are this much larger than those that are multiplied to find indices.
const COARSE: f32 = 32.0;

/// Multiplier of coarse weights for a scale of 1: the inverse of `COARSE / 2^15`, relative to weights.
const INVERSE: f32 = COARSE * 32768.0;

/// Magnitudes that the search handles: scales are normal numbers in F16.
pub(super) const MAGNITUDES: std::ops::Range<f32> = 4e-3..1e5;

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
                    unsafe { $f::<$crate::encode::words::avx2::Avx2Words>($($arg),*) }
                }
                if $crate::encode::cpu::has_avx2() {
                    // SAFETY: the CPU supports AVX2.
                    return unsafe { vectorized($($arg),*) };
                }
            }
            // SAFETY: every CPU supports the portable integers.
            unsafe { $f::<$crate::encode::words::PortableWords>($($arg),*) }
        }
    )* };
}
pub(super) use with_words;

with_words! {
    /// Returns the best scale of each group, or `None` if any group needs the search in floats.
    fn scales(x: &EightGroups, candidates: Ends) -> Option<[Half; N]> = best_scales;
    /// Writes `(x + min) / scale + offset` for each group, rounded and limited to `0..=max`.
    fn indices(x: &EightGroups, fitted: &Halves, offset: f32, max: f32, out: &mut [[u8; LEN]; N]) -> () = all_indices;
}

/// See [`indices`].
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn all_indices<W: Words>(x: &EightGroups, fitted: &Halves, offset: f32, max: f32, out: &mut [[u8; LEN]; N]) {
    // SAFETY: function contract.
    unsafe {
        let low = splat::<W>(0.0) - W::Floats::from_halves(&fitted.mins);
        let factor = W::Floats::from_halves(&fitted.scales).reciprocal();
        W::indices(x, low, factor, offset, max, out);
    }
}

/// Scales and minimums of 8 groups.
#[derive(Clone, Copy, Default)]
pub(super) struct Halves {
    pub scales: [Half; N],
    pub mins: [Half; N],
}

/// Returns `x` for all groups. Unlike a closure, this function is always inlined.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
pub(super) unsafe fn splat<W: Words>(x: f32) -> W::Floats {
    // SAFETY: function contract.
    unsafe { W::Floats::splat(x) }
}

/// Returns true if the error of any group is so small that it depends on the rounding to F16.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
pub(super) unsafe fn any_nearly_exact<R: Reals>(total: R, gain: R) -> bool {
    // SAFETY: function contract.
    (total - gain).any_less(total * unsafe { R::splat(NEARLY_EXACT) })
}

/// See [`scales`].
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn best_scales<W: Words>(x: &EightGroups, candidates: Ends) -> Option<[Half; N]> {
    // SAFETY: function contract.
    unsafe {
        let zero = splat::<W>(0.0);
        let (low, high) = W::ranges(x);
        let max = high.choose_less(zero - low, low, high);
        let magnitude = max.magnitude();
        if !magnitude.all_in(&MAGNITUDES) {
            return None;
        }
        let factor = magnitude.reciprocal() * splat::<W>(UNIT);
        let fine = W::load(x, factor);
        Some(raised(fit_scales(&fine, max, candidates)?).to_halves())
    }
}

/// Returns the best scales of groups with these elements of largest magnitude, or `None` if any group needs the search
/// in floats.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn fit_scales<W: Words>(fine: &[W; WORDS], max: W::Floats, candidates: Ends) -> Option<W::Floats> {
    // SAFETY: function contract.
    unsafe {
        let coarse = coarse(fine);
        let total = W::to_floats(products(&coarse, &coarse)) * splat::<W>(COARSE * COARSE);
        let lowest = W::per_group(splat::<W>(candidates.low.into()));
        let highest = W::per_group(splat::<W>(candidates.high.into()));
        let zero = W::per_group(splat::<W>(0.0));
        let sign = splat::<W>(COARSE).signed_as(max);
        let (mut scale, mut best) = (splat::<W>(0.0), splat::<W>(0.0));
        for start in 0..candidates.ends.len() + REFITS {
            let multiplier = match candidates.ends.get(start) {
                Some(&end) => sign * splat::<W>(end),
                None => (scale.reciprocal() * splat::<W>(INVERSE))
                    .larger(splat::<W>(-UNIT))
                    .smaller(splat::<W>(UNIT)),
            };
            let multiplier = W::per_group(multiplier);
            let (mut xq, mut qq) = (zero.dots(zero), zero.dots(zero));
            for i in 0..WORDS {
                let q = coarse[i].times(multiplier).at_least(lowest).at_most(highest);
                xq = W::add(xq, fine[i].dots(q));
                qq = W::add(qq, q.dots(q));
            }
            let (xq, qq) = (W::to_floats(xq), W::to_floats(qq));
            let fitted = xq.divided_by(qq);
            let gain = fitted * xq;
            scale = best.choose_less(gain, fitted, scale);
            best = best.larger(gain);
        }
        if any_nearly_exact(total, best) {
            return None;
        }
        let (magnitude, nth) = (max.magnitude(), splat::<W>(1.0 / UNIT));
        Some(scale * magnitude * nth)
    }
}

/// Divides weights by `COARSE`.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn coarse<W: Words>(fine: &[W; WORDS]) -> [W; WORDS] {
    // SAFETY: function contract.
    let factor = unsafe { W::per_group(splat::<W>(32768.0 / COARSE)) };
    let mut coarse = *fine;
    for x in &mut coarse {
        *x = x.times(factor);
    }
    coarse
}

/// Returns the sum of products of each group.
#[inline(always)]
fn products<W: Words>(a: &[W; WORDS], b: &[W; WORDS]) -> W::Sums {
    let mut sums = a[0].dots(b[0]);
    for i in 1..WORDS {
        sums = W::add(sums, a[i].dots(b[i]));
    }
    sums
}

/// Number of times that the best candidate is fitted again.
const REFITS: usize = 1;
