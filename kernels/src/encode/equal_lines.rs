//! Search for scales and minimums of groups of 32 weights of equal importance, in integers of 16 bits (see
//! [`words`](super::words)). The search considers fewer candidates than the search in floats, which handles groups with
//! a nearly exact fit.

use super::equal::{EightGroups, Halves, MAGNITUDES, SETS, any_nearly_exact, splat, with_words};
use super::lanes::N;
use super::reals::{Reals, limited, raised};
use super::words::{LEN, WORDS, Words};
use crate::layout::block::Half;

/// Scales, minimums, and indices of 8 groups.
pub(super) struct EncodedLines {
    pub fitted: Halves,
    pub q: [[u8; LEN]; N],
    /// False if any group needs the search in floats.
    pub is_complete: bool,
}

impl EncodedLines {
    /// Returns groups of zeros.
    pub(super) const fn new() -> EncodedLines {
        EncodedLines {
            fitted: Halves {
                scales: [Half([0; 2]); N],
                mins: [Half([0; 2]); N],
            },
            q: [[0; LEN]; N],
            is_complete: false,
        }
    }
}

with_words! {
    /// Encodes up to `SETS` sets of groups with the smallest squared error found. The largest index is 15 or 31.
    fn encode(x: &[EightGroups], q_max: u8, found: &mut [EncodedLines; SETS]) -> () = encode_sets;
}

/// Largest magnitude of a weight in steps of the scale. Rounding a minimum to F16 must change it by much less than a
/// step.
const STEPS: f32 = 400.0;

/// Range of a group as an integer. Rounding adds at most 1.
const UNITS: f32 = 2046.0;

/// Largest magnitude of a weight, relative to the range, that fits in an integer.
const FAR: f32 = 16.0;

/// Product of a weight and a multiplier that is 1 after [`Words::times`].
const ONE: f32 = 32768.0;

/// Indices are rounded from multiples of `1 / FRACTIONS`.
const FRACTIONS: f32 = 16.0;

/// Weights of 8 groups as integers from 0 to `UNITS`, and their best scales and minimums.
#[derive(Clone, Copy)]
struct Set<W: Words> {
    x: [W; WORDS],
    /// The weight that the integer 0 represents, in units.
    low: W::Floats,
    /// The weight difference that the integer 1 represents.
    unit: W::Floats,
    /// Sums of weights.
    sum: W::Sums,
    best: LineFit<W::Floats>,
}

/// See [`encode`].
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn encode_sets<W: Words>(x: &[EightGroups], q_max: u8, [first, second]: &mut [EncodedLines; SETS]) {
    // SAFETY: function contract.
    unsafe {
        match x {
            [a, b, ..] => {
                if !encode_together::<W, 2>([a, b], q_max, [first, second]) {
                    encode_together::<W, 1>([a], q_max, [first]);
                    encode_together::<W, 1>([b], q_max, [second]);
                }
            }
            [a] => {
                encode_together::<W, 1>([a], q_max, [first]);
            }
            [] => {}
        }
    }
}

/// Encodes sets of groups. Returns false if the range of any group needs the search in floats.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn encode_together<W: Words, const S: usize>(
    x: [&EightGroups; S],
    q_max: u8,
    found: [&mut EncodedLines; S],
) -> bool {
    let (q, limit) = (f32::from(q_max), FAR.min(STEPS / f32::from(q_max)));
    // SAFETY: function contract.
    unsafe {
        let mut ranges = [(splat::<W>(0.0), splat::<W>(0.0)); S];
        let mut is_usual = true;
        for i in 0..S {
            let (low, high) = W::ranges(x[i]);
            ranges[i] = (low, high - low);
            let far = high.larger(splat::<W>(0.0) - low);
            is_usual &= far.all_less(ranges[i].1 * splat::<W>(limit)) && ranges[i].1.all_in(&MAGNITUDES);
        }
        if !is_usual {
            found.into_iter().for_each(|found| found.is_complete = false);
            return false;
        }
        let mut sets = [Set::<W>::new(x[0], ranges[0]); S];
        for i in 1..S {
            sets[i] = Set::new(x[i], ranges[i]);
        }
        consider_all::<W, S, false, false>(&mut sets, q, (0.0, 0.0));
        consider_all::<W, S, false, false>(&mut sets, q, (0.0, -0.5));
        consider_all::<W, S, true, false>(&mut sets, q, (0.3, -0.5));
        consider_all::<W, S, false, true>(&mut sets, q, (0.0, 1.0));
        if q_max > 15 {
            consider_all::<W, S, false, true>(&mut sets, q, (0.0, 2.0));
        }
        for set in &mut sets {
            set.refit(q);
        }
        for (set, found) in sets.iter().zip(found) {
            found.is_complete = !any_nearly_exact(set.total(), set.best.gain);
            set.finish(q_max, found);
        }
        true
    }
}

/// Considers the range of each group, narrowed by a number of steps at either end. At the lower end, the number must be
/// below 0.5.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn consider_all<W: Words, const S: usize, const AT_BOTTOM: bool, const AT_TOP: bool>(
    sets: &mut [Set<W>; S],
    q_max: f32,
    (bottom, top): (f32, f32),
) {
    let unit = UNITS / (q_max - bottom - top);
    // SAFETY: function contract.
    unsafe {
        let line = Line {
            multiplier: W::per_group(splat::<W>(ONE / unit)),
            offset: W::per_group(splat::<W>(bottom * unit)),
            highest: W::per_group(splat::<W>(q_max)),
        };
        for set in sets {
            set.consider::<AT_BOTTOM, false, AT_TOP>(line);
        }
    }
}

/// Conversion of weights to indices.
#[derive(Clone, Copy)]
struct Line<W> {
    multiplier: W,
    offset: W,
    highest: W,
}

/// Returns the multiplier of [`fine_index`] for a scale in units.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn fine_multiplier<W: Words>(scale: W::Floats) -> W {
    /// Largest multiplier.
    const LARGEST: f32 = 32767.0;
    // SAFETY: function contract.
    unsafe {
        let multiplier = scale.reciprocal() * splat::<W>(2.0 * ONE * FRACTIONS);
        W::per_group(multiplier.smaller(splat::<W>(LARGEST)))
    }
}

/// Returns indices. The multiplier has more bits than that of [`Words::times`].
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn fine_index<W: Words>(x: W, multiplier: W) -> W {
    // SAFETY: function contract.
    let rounding = unsafe { W::per_group(splat::<W>(ONE / FRACTIONS)) };
    // Rounding down twice gives the same result as rounding down once.
    x.high(multiplier).times(rounding)
}

/// Returns integers of at most `UNITS`.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn within_units<W: Words>(x: W::Floats) -> W {
    // SAFETY: function contract.
    unsafe { W::per_group(x.larger(splat::<W>(-UNITS)).smaller(splat::<W>(UNITS))) }
}

impl<W: Words> Set<W> {
    /// Converts weights with these minimums and ranges.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    #[inline(always)]
    unsafe fn new(x: &EightGroups, (low, range): (W::Floats, W::Floats)) -> Set<W> {
        // SAFETY: function contract.
        unsafe {
            let factor = range.reciprocal() * splat::<W>(UNITS);
            let low = W::per_group(low * factor);
            let mut x = W::load(x, factor);
            for x in &mut x {
                *x = x.minus(low);
            }
            // Sums of 8 weights fit in 16 bits.
            let mut sums = [x[0], x[1]];
            for i in (2..WORDS).step_by(2) {
                sums = [sums[0].plus(x[i]), sums[1].plus(x[i + 1])];
            }
            let one = W::per_group(splat::<W>(1.0));
            Set {
                x,
                low: W::to_floats(low.dots(one)) * splat::<W>(0.5),
                unit: range * splat::<W>(1.0 / UNITS),
                sum: W::add(sums[0].dots(one), sums[1].dots(one)),
                best: LineFit {
                    scale: splat::<W>(0.0),
                    q_sum: splat::<W>(0.0),
                    gain: splat::<W>(0.0),
                },
            }
        }
    }

    /// Rounds weights with the best scale and minimum, and fits both again.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    #[inline(always)]
    unsafe fn refit(&mut self, q_max: f32) {
        // SAFETY: function contract.
        unsafe {
            self.consider::<true, true, true>(Line {
                multiplier: fine_multiplier::<W>(self.best.scale),
                offset: within_units::<W>(self.offset()),
                highest: W::per_group(splat::<W>(q_max)),
            });
        }
    }

    /// Rounds weights to indices, and fits scales and minimums. Keeps the better fit of each group. `OFFSET` is true if
    /// there is an offset, `FINE` if the multiplier is that of [`fine_index`], and `HIGHEST` if indices must be
    /// clamped.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    #[inline(always)]
    unsafe fn consider<const OFFSET: bool, const FINE: bool, const HIGHEST: bool>(&mut self, line: Line<W>) {
        // SAFETY: function contract.
        unsafe {
            let zero = W::per_group(splat::<W>(0.0));
            let (mut counts, mut xq) = (W::none(), zero.dots(zero));
            for i in 0..WORDS / 2 {
                let mut q = [zero; 2];
                for (q, x) in q.iter_mut().zip([self.x[2 * i], self.x[2 * i + 1]]) {
                    *q = if OFFSET { x.minus(line.offset) } else { x };
                    *q = if FINE {
                        fine_index(*q, line.multiplier).at_least(zero)
                    } else {
                        q.times(line.multiplier)
                    };
                    *q = if HIGHEST { q.at_most(line.highest) } else { *q };
                    xq = W::add(xq, x.dots(*q));
                }
                counts = W::count(counts, q[0], q[1]);
            }
            let [q, qq] = W::counts(counts);
            let covariance = W::to_floats(W::determinant(xq, self.sum, q));
            let scale = covariance.divided_by(W::to_floats(W::determinant(qq, q, q)));
            self.best.improve(LineFit {
                scale,
                q_sum: W::to_floats(q),
                gain: scale * covariance,
            });
        }
    }

    /// Returns the value of index 0.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    #[inline(always)]
    unsafe fn offset(&self) -> W::Floats {
        // SAFETY: function contract.
        let nth = unsafe { splat::<W>(1.0 / LEN as f32) };
        (W::to_floats(self.sum) - self.best.scale * self.best.q_sum) * nth
    }

    /// Returns the error of a scale of 0, times `LEN`.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    #[inline(always)]
    unsafe fn total(&self) -> W::Floats {
        let mut squares = self.x[0].dots(self.x[0]);
        for x in &self.x[1..] {
            squares = W::add(squares, x.dots(*x));
        }
        let sum = W::to_floats(self.sum);
        // SAFETY: function contract.
        W::to_floats(squares) * unsafe { splat::<W>(LEN as f32) } - sum * sum
    }

    /// Rounds scales and minimums to F16, and weights to indices.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    #[inline(always)]
    unsafe fn finish(&self, q_max: u8, found: &mut EncodedLines) {
        // SAFETY: function contract.
        unsafe {
            let zero = splat::<W>(0.0);
            found.fitted.scales = raised(self.best.scale * self.unit).to_halves();
            found.fitted.mins = limited(zero - (self.offset() + self.low) * self.unit).to_halves();
            let per_unit = self.unit.reciprocal();
            let scale = W::Floats::from_halves(&found.fitted.scales) * per_unit;
            let offset = zero - W::Floats::from_halves(&found.fitted.mins) * per_unit - self.low;
            let (multiplier, offset) = (fine_multiplier::<W>(scale), within_units::<W>(offset));
            let mut q = self.x;
            for q in &mut q {
                *q = fine_index(q.minus(offset), multiplier);
            }
            W::store(&q, q_max, &mut found.q);
        }
    }
}

/// Scales and minimums with the smallest error for fixed indices.
#[derive(Clone, Copy)]
struct LineFit<R> {
    scale: R,
    /// Sums of indices.
    q_sum: R,
    /// The error of a scale of 0 minus the error of the fit, times `LEN`.
    gain: R,
}

impl<R: Reals> LineFit<R> {
    /// Replaces each fit whose gain is smaller than that of `other`.
    #[inline(always)]
    fn improve(&mut self, other: LineFit<R>) {
        self.scale = self.gain.choose_less(other.gain, other.scale, self.scale);
        self.q_sum = self.gain.choose_less(other.gain, other.q_sum, self.q_sum);
        self.gain = self.gain.larger(other.gain);
    }
}
