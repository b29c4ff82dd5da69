//! Types with one or two magnitudes and one scale per block.

use super::cpu::for_this_cpu;
use super::lanes::{self, Lanes};
use crate::layout::block::Half;

for_this_cpu! {
    /// Returns the scale and the digits (0, 1, 2 for minus one, zero, one) of 256 ternary values with the least
    /// squared error.
    pub(super) fn ternary[][](x: &[f32], importance: Option<&[f32]>) -> (Half, [u8; 256]) = best_digits;
}

/// See [`ternary`].
///
/// The nonzero elements of the best digits are those of at least half the scale, their mean. This mean increases with
/// the limit, so repeated means from both ends enclose all candidates.
#[inline(always)]
pub(super) fn best_digits(x: &[f32], importance: Option<&[f32]>) -> (Half, [u8; 256]) {
    let mut elements = Elements {
        magnitudes: [0.0; 256],
        w: [1.0; 256],
    };
    for (to, x) in elements.magnitudes.iter_mut().zip(x) {
        *to = x.abs();
    }
    if let Some(importance) = importance {
        let largest = lanes::largest(importance).max(f32::MIN_POSITIVE);
        for (to, w) in elements.w.iter_mut().zip(importance) {
            *to = w / largest;
        }
    }
    let (mut lower, mut upper) = (f32::MIN_POSITIVE, lanes::largest(&elements.magnitudes) / 2.0);
    for _ in 0..MEANS {
        let next = (elements.half_mean(lower), elements.half_mean(upper));
        // Not finite if all of these elements are 0 or have no importance.
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
    let d = to_half(elements.best_mean(lower.min(upper), upper));
    let threshold = d.get() / 2.0;
    let mut digits = [1; 256];
    for (digit, &x) in digits.iter_mut().zip(x) {
        *digit = 1 + u8::from(x > threshold) - u8::from(x < -threshold);
    }
    (d, digits)
}

/// Maximum number of means from either end.
const MEANS: usize = 64;

/// Ratio of the limits between which all elements are tried.
const ENCLOSED: f32 = 1.15;

/// Magnitudes and the importance of their columns.
struct Elements {
    magnitudes: [f32; 256],
    w: [f32; 256],
}

impl Elements {
    /// Returns the weighted sum of the magnitudes of at least `limit`, and their weight.
    #[inline(always)]
    fn sums(&self, limit: f32) -> (f32, f32) {
        let (mut sums, mut weights) = (Lanes::ZERO, Lanes::ZERO);
        for (m, w) in self.magnitudes.as_chunks().0.iter().zip(self.w.as_chunks().0) {
            let (m, w) = (Lanes(*m), Lanes(*w));
            let w = m.select_less(Lanes::splat(limit), Lanes::ZERO, w);
            sums = sums + w * m;
            weights = weights + w;
        }
        (sums.sum(), weights.sum())
    }

    /// Returns half the weighted mean of the magnitudes of at least `limit`.
    #[inline(always)]
    fn half_mean(&self, limit: f32) -> f32 {
        let (sum, weight) = self.sums(limit);
        sum / weight / 2.0
    }

    /// Returns the best mean of the largest elements if the smallest of them is about `lower` to `upper`.
    #[inline(always)]
    fn best_mean(&self, lower: f32, upper: f32) -> f64 {
        let (lower, upper) = (lower * 0.9999, upper * 1.0001);
        let mut n_between = 0;
        let mut between = [(0f32, 0f32); 256];
        for (m, w) in self.magnitudes.as_chunks::<8>().0.iter().zip(self.w.as_chunks::<8>().0) {
            let mut any = false;
            for m in m {
                any |= (*m >= lower) & (*m < upper);
            }
            if any {
                for (&m, &w) in m.iter().zip(w) {
                    between[n_between] = (m, w);
                    n_between += usize::from(m >= lower && m < upper);
                }
            }
        }
        let between = &mut between[..n_between];
        between.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let (sum, weight) = self.sums(upper);
        let (mut sum, mut weight) = (f64::from(sum), f64::from(weight));
        let mut best = (0.0, 0.0);
        for &(m, w) in [(0.0, 0.0)].iter().chain(&*between) {
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

/// Returns the scale with the least squared error for elements of one magnitude: the mean magnitude.
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
