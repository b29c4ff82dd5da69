//! Types with one or two magnitudes and one scale per block.

use super::equal::{splat, with_words};
use super::lanes::{self, Lanes, N};
use super::reals::Reals;
use super::words::Words;
use crate::layout::block::Half;

with_words! {
    /// Returns the scale and the digits (0, 1, 2 for minus one, zero, one) of 256 ternary values with the smallest
    /// squared error.
    fn best_digits(x: &[f32], importance: Option<&[f32]>) -> (Half, [u8; 256]) = digits_of;
}

/// See [`best_digits`].
///
/// The nonzero digits belong to the elements of at least half the scale, and the scale is the mean of these elements.
/// The mean increases with the limit, so repeated means from both ends enclose all candidates.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn digits_of<W: Words>(x: &[f32], importance: Option<&[f32]>) -> (Half, [u8; 256]) {
    let mut elements = Elements {
        magnitudes: [0.0; 256],
        w: [1.0; 256],
    };
    for (to, x) in elements.magnitudes.iter_mut().zip(x) {
        *to = x.abs();
    }
    if let Some(importance) = importance {
        let largest = lanes::largest_importance(importance);
        for (to, w) in elements.w.iter_mut().zip(importance) {
            *to = w / largest;
        }
    }
    let (mut lower, mut upper) = (f32::MIN_POSITIVE, lanes::largest(&elements.magnitudes) / 2.0);
    for _ in 0..MEANS {
        // SAFETY: function contract.
        let [low, high] = unsafe { elements.sums::<W>([lower, upper]) };
        let next = (low.half_mean(), high.half_mean());
        // NaN or infinite if all of these elements are 0 or have an importance of 0.
        let next = (
            if next.0.is_finite() { next.0 } else { lower },
            if next.1.is_finite() { next.1 } else { upper },
        );
        if next == (lower, upper) || next.1 < next.0 * ENCLOSED {
            (lower, upper) = next;
            break;
        }
        (lower, upper) = next;
    }
    // SAFETY: function contract.
    let d = to_half(unsafe { elements.best_mean::<W>(lower.min(upper), upper) });
    let threshold = d.get() / 2.0;
    let mut digits = [1; 256];
    for (digit, &x) in digits.iter_mut().zip(x) {
        *digit = 1 + u8::from(x > threshold) - u8::from(x < -threshold);
    }
    (d, digits)
}

/// Maximum number of means from either end.
const MEANS: usize = 64;

/// Ratio of the limits below which all elements between them are tried.
const ENCLOSED: f32 = 1.15;

/// Magnitudes and the importance of their columns.
struct Elements {
    magnitudes: [f32; 256],
    w: [f32; 256],
}

/// Weighted sum of magnitudes, and their weight.
#[derive(Clone, Copy)]
struct Sums {
    sum: f32,
    weight: f32,
}

impl Sums {
    /// Returns half the weighted mean.
    #[inline(always)]
    fn half_mean(self) -> f32 {
        self.sum / self.weight / 2.0
    }
}

impl Elements {
    /// Returns the sums of the magnitudes of at least each limit.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    #[inline(always)]
    unsafe fn sums<W: Words>(&self, limits: [f32; 2]) -> [Sums; 2] {
        // SAFETY: function contract.
        unsafe {
            let zero = splat::<W>(0.0);
            let (low, high) = (splat::<W>(limits[0]), splat::<W>(limits[1]));
            // Separate sums of even and odd elements are independent of each other.
            let (mut sums, mut weights) = ([[zero; 2]; 2], [[zero; 2]; 2]);
            let (m, w) = (self.magnitudes.as_chunks::<N>().0, self.w.as_chunks::<N>().0);
            for (m, w) in m.as_chunks::<2>().0.iter().zip(w.as_chunks::<2>().0) {
                for i in 0..2 {
                    let (m, w) = (W::Floats::from_lanes(&Lanes(m[i])), W::Floats::from_lanes(&Lanes(w[i])));
                    let above = [w.where_at_least(m, low), w.where_at_least(m, high)];
                    sums[i] = [sums[i][0] + above[0] * m, sums[i][1] + above[1] * m];
                    weights[i] = [weights[i][0] + above[0], weights[i][1] + above[1]];
                }
            }
            let mut found = [Sums { sum: 0.0, weight: 0.0 }; 2];
            for (i, found) in found.iter_mut().enumerate() {
                found.sum = (sums[0][i] + sums[1][i]).to_lanes().sum();
                found.weight = (weights[0][i] + weights[1][i]).to_lanes().sum();
            }
            found
        }
    }

    /// Returns the sums of the magnitudes of at least a limit.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    #[inline(always)]
    unsafe fn sums_above<W: Words>(&self, limit: f32) -> Sums {
        // SAFETY: function contract.
        unsafe {
            let limit = splat::<W>(limit);
            let (mut sum, mut weight) = (splat::<W>(0.0), splat::<W>(0.0));
            for (m, w) in self.magnitudes.as_chunks().0.iter().zip(self.w.as_chunks().0) {
                let (m, w) = (W::Floats::from_lanes(&Lanes(*m)), W::Floats::from_lanes(&Lanes(*w)));
                let above = w.where_at_least(m, limit);
                (sum, weight) = (sum + above * m, weight + above);
            }
            Sums {
                sum: sum.to_lanes().sum(),
                weight: weight.to_lanes().sum(),
            }
        }
    }

    /// Returns the best mean of the largest elements if the smallest of them is about `lower` to `upper`.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    #[inline(always)]
    unsafe fn best_mean<W: Words>(&self, lower: f32, upper: f32) -> f64 {
        let (lower, upper) = (lower * 0.9999, upper * 1.0001);
        // One bit per element, because loops over the few bits of 8 elements mispredict their ends.
        let mut sets = [0u64; 4];
        for (i, m) in self.magnitudes.as_chunks().0.iter().enumerate() {
            // SAFETY: function contract.
            let lanes = unsafe { W::Floats::from_lanes(&Lanes(*m)).lanes_in(&(lower..upper)) };
            sets[i / 8] |= u64::from(lanes) << (i % 8 * 8);
        }
        let mut n_between = 0;
        // Packs magnitudes into the high bits and importance into the low bits. Nonnegative floats are ordered like
        // their bits.
        let mut between = [0; 256];
        for (i, mut set) in sets.into_iter().enumerate() {
            while set != 0 {
                let at = i * 64 + set.trailing_zeros() as usize % 64;
                between[n_between] = i64::from(self.magnitudes[at].to_bits()) << 32 | i64::from(self.w[at].to_bits());
                n_between += 1;
                set &= set - 1;
            }
        }
        let between = &mut between[..n_between];
        sort(between);
        // SAFETY: function contract.
        let Sums { sum, weight } = unsafe { self.sums_above::<W>(upper) };
        let (mut sum, mut weight) = (f64::from(sum), f64::from(weight));
        let mut best = (0.0, 0.0);
        for bits in [0].iter().chain(between.iter().rev()) {
            let (m, w) = (f32::from_bits((bits >> 32) as u32), f32::from_bits(*bits as u32));
            sum += f64::from(w) * f64::from(m);
            weight += f64::from(w);
            let gain = sum * sum / weight;
            if gain > best.1 {
                best = (sum / weight, gain);
            }
        }
        best.0
    }
}

/// Sorts positive numbers, usually few. Each of a few numbers is compared with all of them, because the branches of an
/// insertion would be mispredicted.
#[inline(always)]
fn sort(numbers: &mut [i64]) {
    let n = numbers.len();
    if n > FEW {
        numbers.sort_unstable();
        return;
    }
    let mut all = [i64::MAX; FEW];
    all[..n].copy_from_slice(numbers);
    let mut taken = 0u64;
    for number in &all[..n] {
        let mut smaller = [0i64; N];
        for others in &all.as_chunks::<N>().0[..n.div_ceil(N)] {
            for (smaller, other) in smaller.iter_mut().zip(others) {
                *smaller += i64::from(other < number);
            }
        }
        let mut at = smaller.iter().sum::<i64>() as usize % FEW;
        // Equal numbers get consecutive positions.
        while taken >> at & 1 != 0 {
            at += 1;
        }
        taken |= 1 << at;
        numbers[at] = *number;
    }
}

/// Largest length of a list that is sorted by counting smaller numbers.
const FEW: usize = 32;

/// Returns the scale with the smallest squared error for elements of one magnitude: the mean magnitude.
pub(super) fn magnitude(x: &[f32], importance: Option<&[f32]>) -> Half {
    let (mut sum, mut weight) = (0.0, 0.0);
    for (i, x) in x.iter().enumerate() {
        let w = importance.map_or(1.0, |w| f64::from(w[i]));
        sum += w * f64::from(x.abs());
        weight += w;
    }
    to_half(if weight > 0.0 { sum / weight } else { 0.0 })
}

fn to_half(d: f64) -> Half {
    Half::new(d.min(65504.0) as f32)
}
