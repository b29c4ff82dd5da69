//! Values of the input of sinusoids.

use crate::builder::Sinusoids;

/// Largest period of the sines, divided by 2 pi.
const LONGEST: f64 = 10_000.0;

/// Returns the sines and the cosines of each distance: `[d, before + 1 + after]`. The periods of the sines grow from
/// 2 pi to 20,000 pi.
pub(super) fn sinusoids(s: &Sinusoids) -> Vec<f32> {
    let half = s.d / 2;
    let last = half.saturating_sub(1).max(1) as f64;
    let mut values = Vec::with_capacity(s.d * (s.before + 1 + s.after));
    for column in 0..=s.before + s.after {
        let distance = s.before as f64 - column as f64;
        let angle = |i: usize| distance * LONGEST.powf(-(i as f64) / last);
        values.extend((0..half).map(|i| angle(i).sin() as f32));
        values.extend((0..half).map(|i| angle(i).cos() as f32));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::TensorId;

    #[test]
    fn sinusoids_fall_from_largest_distance() {
        let s = Sinusoids {
            d: 4,
            before: 1,
            after: 1,
            rows: TensorId(0),
        };
        let (sine, cosine) = (1f64.sin() as f32, 1f64.cos() as f32);
        let (slow, still) = (1e-4f64.sin() as f32, 1e-4f64.cos() as f32);
        let expected = [
            [sine, slow, cosine, still],
            [0.0, 0.0, 1.0, 1.0],
            [-sine, -slow, cosine, still],
        ];
        assert_eq!(sinusoids(&s), expected.concat());
    }
}
