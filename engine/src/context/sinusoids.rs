//! Values of the input of sinusoids.

use crate::builder::Sinusoids;

/// Largest period of the sines, divided by 2 pi.
const LONGEST: f64 = 10_000.0;

/// Returns the sines and the cosines of each distance: `[d, before + 1 + after]`. The periods of the sines grow from
/// 2 pi to 20,000 pi. The last one is shorter if sines and cosines follow each other in turn.
pub(super) fn sinusoids(s: &Sinusoids) -> Vec<f32> {
    let half = s.d / 2;
    let last = if s.in_turn { half } else { half.saturating_sub(1) }.max(1) as f64;
    let mut values = Vec::with_capacity(s.d * (s.before + 1 + s.after));
    for column in 0..=s.before + s.after {
        let distance = s.before as f64 - column as f64;
        let angle = |i: usize| distance * LONGEST.powf(-(i as f64) / last);
        if s.in_turn {
            values.extend((0..half).flat_map(|i| [angle(i).sin() as f32, angle(i).cos() as f32]));
        } else {
            values.extend((0..half).map(|i| angle(i).sin() as f32));
            values.extend((0..half).map(|i| angle(i).cos() as f32));
        }
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
            in_turn: false,
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
        let (slow, still) = (0.01f64.sin() as f32, 0.01f64.cos() as f32);
        let expected = [[sine, cosine, slow, still], [0.0, 1.0, 0.0, 1.0]];
        let in_turn = Sinusoids {
            in_turn: true,
            after: 0,
            ..s
        };
        assert_eq!(sinusoids(&in_turn), expected.concat());
    }
}
