//! Types with one or two magnitudes and one scale per block.

use crate::layout::block::Half;

/// Returns the scale and the digits (0, 1, 2 for minus one, zero, one) of 256 ternary values with the least
/// squared error.
///
/// For any scale, the nonzero elements are the largest ones, so the best number of nonzero elements is found
/// by adding them in descending order.
pub(super) fn ternary(x: &[f32], importance: Option<&[f32]>) -> (Half, [u8; 256]) {
    let w = |i: usize| importance.map_or(1.0, |w| f64::from(w[i]));
    let mut order: [u16; 256] = std::array::from_fn(|i| i as u16);
    order.sort_unstable_by(|&a, &b| {
        let [x, y] = [a, b].map(|i| x[usize::from(i)].abs());
        y.total_cmp(&x).then(a.cmp(&b))
    });
    let (mut sum, mut weight, mut d, mut best) = (0.0, 0.0, 0.0, 0.0);
    for i in order.map(usize::from) {
        sum += w(i) * f64::from(x[i].abs());
        weight += w(i);
        let gain = sum * sum / weight;
        if gain > best {
            (d, best) = (sum / weight, gain);
        }
    }
    let d = to_half(d);
    let threshold = d.get() / 2.0;
    let digit = |x: f32| match x {
        x if x > threshold => 2,
        x if x < -threshold => 0,
        _ => 1,
    };
    (d, std::array::from_fn(|i| digit(x[i])))
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
