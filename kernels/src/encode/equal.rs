//! Search for scales of groups of 32 weights of equal importance, in integers of 16 bits (see [`words`](super::words)).
//! The search considers fewer candidates than the search in floats, which handles groups with a nearly exact fit.

use super::lanes::N;
use super::reals::{Reals, raised};
use super::words::{LEN, WORDS, Words};
use crate::layout::block::Half;

/// Weights of 8 groups.
pub(super) type EightGroups = [f32; N * LEN];

/// Sets of 8 groups that are searched at a time, so that one set does not wait for results of another.
pub(super) const SETS: usize = 2;

/// Largest magnitude of a weight as an integer.
const UNIT: f32 = 32767.0;

/// Ratio of the fine integer weights to the coarse weights that are multiplied to find indices.
const COARSE: f32 = 32.0;

/// Multiplier of coarse weights for a scale of 1: the inverse of `COARSE / 2^15`, relative to weights.
const INVERSE: f32 = COARSE * 32768.0;

/// Magnitudes that the search handles: scales are normal numbers in F16.
pub(super) const MAGNITUDES: std::ops::Range<f32> = 4e-3..1e5;

/// Largest error, relative to the squares, of groups that depend on the rounding of scales to F16.
const NEARLY_EXACT: f32 = 1e-4;

/// Candidates of the search for scales: levels, or positions near them, to which candidates map the element of largest
/// magnitude.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    /// Candidates that may round to levels below the lowest and above the highest.
    pub clipped: &'static [f32],
    /// Candidates that may round to levels above the highest.
    pub clipped_above: &'static [f32],
    /// Candidates that round to levels only.
    pub whole: &'static [f32],
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
    /// Returns the best scales of up to `SETS` sets of groups, or `None` if any group of a set needs the search in
    /// floats.
    fn scales(x: &[EightGroups], candidates: Ends) -> [Option<[Half; N]>; SETS] = scales_of_sets;
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
unsafe fn scales_of_sets<W: Words>(x: &[EightGroups], candidates: Ends) -> [Option<[Half; N]>; SETS] {
    // SAFETY: function contract.
    unsafe {
        match x {
            [a, b, ..] => best_scales::<W, 2>([a, b], candidates).unwrap_or_else(|| {
                let [first] = best_scales::<W, 1>([a], candidates).unwrap_or_default();
                let [second] = best_scales::<W, 1>([b], candidates).unwrap_or_default();
                [first, second]
            }),
            [a] => [best_scales::<W, 1>([a], candidates).unwrap_or_default()[0], None],
            [] => [None; SETS],
        }
    }
}

/// Returns the best scales of each set, or `None` if a set needs the search in floats. Returns `None` for all sets if
/// the magnitude of any group needs this search.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn best_scales<W: Words, const S: usize>(
    x: [&EightGroups; S],
    candidates: Ends,
) -> Option<[Option<[Half; N]>; S]> {
    // SAFETY: function contract.
    unsafe {
        let zero = splat::<W>(0.0);
        let mut max = [zero; S];
        let mut is_usual = true;
        for i in 0..S {
            let (low, high) = W::ranges(x[i]);
            max[i] = high.choose_less(zero - low, low, high);
            is_usual &= max[i].magnitude().all_in(&MAGNITUDES);
        }
        if !is_usual {
            return None;
        }
        let mut sets = [Set::<W>::new(x[0], max[0]); S];
        for i in 1..S {
            sets[i] = Set::new(x[i], max[i]);
        }
        let range = Levels {
            low: W::per_group(splat::<W>(candidates.low.into())),
            high: W::per_group(splat::<W>(candidates.high.into())),
        };
        for &end in candidates.clipped {
            consider_all::<W, S, true, true>(&mut sets, range, end);
        }
        for &end in candidates.clipped_above {
            consider_all::<W, S, false, true>(&mut sets, range, end);
        }
        for &end in candidates.whole {
            consider_all::<W, S, false, false>(&mut sets, range, end);
        }
        for set in &mut sets {
            set.refit(range);
        }
        let mut found = [None; S];
        for (set, found) in sets.iter().zip(&mut found) {
            *found = set.finish();
        }
        Some(found)
    }
}

/// Weights of 8 groups as integers, and their best scales.
#[derive(Clone, Copy)]
struct Set<W: Words> {
    fine: [W; WORDS],
    coarse: [W; WORDS],
    /// Elements of largest magnitude.
    max: W::Floats,
    scale: W::Floats,
    gain: W::Floats,
}

/// Lowest and highest level.
#[derive(Clone, Copy)]
struct Levels<W> {
    low: W,
    high: W,
}

/// Considers scales that map the element of largest magnitude to `end`. `LOWEST` and `HIGHEST` are true if results must
/// be clamped to the lowest or highest level.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn consider_all<W: Words, const S: usize, const LOWEST: bool, const HIGHEST: bool>(
    sets: &mut [Set<W>; S],
    levels: Levels<W>,
    end: f32,
) {
    for set in sets {
        // SAFETY: function contract.
        unsafe {
            let multiplier = splat::<W>(COARSE).signed_as(set.max) * splat::<W>(end);
            set.consider::<LOWEST, HIGHEST>(levels, multiplier);
        }
    }
}

impl<W: Words> Set<W> {
    /// Converts weights whose elements of largest magnitude are `max`.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    #[inline(always)]
    unsafe fn new(x: &EightGroups, max: W::Floats) -> Set<W> {
        // SAFETY: function contract.
        unsafe {
            let fine = W::load(x, max.magnitude().reciprocal() * splat::<W>(UNIT));
            Set {
                fine,
                coarse: coarse(&fine),
                max,
                scale: splat::<W>(0.0),
                gain: splat::<W>(0.0),
            }
        }
    }

    /// Rounds weights with the best scale, and fits the scale again.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    #[inline(always)]
    unsafe fn refit(&mut self, levels: Levels<W>) {
        // SAFETY: function contract.
        unsafe {
            let multiplier = (self.scale.reciprocal() * splat::<W>(INVERSE))
                .larger(splat::<W>(-UNIT))
                .smaller(splat::<W>(UNIT));
            self.consider::<true, true>(levels, multiplier);
        }
    }

    /// Rounds weights to levels, fits scales, and keeps the better scale of each group.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    #[inline(always)]
    unsafe fn consider<const LOWEST: bool, const HIGHEST: bool>(&mut self, levels: Levels<W>, multiplier: W::Floats) {
        // SAFETY: function contract.
        unsafe {
            let multiplier = W::per_group(multiplier);
            let zero = W::per_group(splat::<W>(0.0));
            let (mut xq, mut qq) = (zero.dots(zero), zero.dots(zero));
            for (fine, coarse) in self.fine.iter().zip(&self.coarse) {
                let mut q = coarse.times(multiplier);
                q = if LOWEST { q.at_least(levels.low) } else { q };
                q = if HIGHEST { q.at_most(levels.high) } else { q };
                xq = W::add(xq, fine.dots(q));
                qq = W::add(qq, q.dots(q));
            }
            let (xq, qq) = (W::to_floats(xq), W::to_floats(qq));
            let fitted = xq.divided_by(qq);
            let gain = fitted * xq;
            self.scale = self.gain.choose_less(gain, fitted, self.scale);
            self.gain = self.gain.larger(gain);
        }
    }

    /// Returns the best scales, or `None` if any group needs the search in floats.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    #[inline(always)]
    unsafe fn finish(&self) -> Option<[Half; N]> {
        // SAFETY: function contract.
        unsafe {
            let total = W::to_floats(products(&self.coarse, &self.coarse)) * splat::<W>(COARSE * COARSE);
            if any_nearly_exact(total, self.gain) {
                return None;
            }
            let nth = splat::<W>(1.0 / UNIT);
            Some(raised(self.scale * self.max.magnitude() * nth).to_halves())
        }
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
