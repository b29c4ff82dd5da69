//! Values of the input of sinusoids.

use crate::builder::Sinusoids;

/// Largest period of the sines, divided by 2 pi.
const LONGEST: f64 = 10_000.0;

/// Returns the sines and the cosines of each distance: `[d, before + 1 + after]`. The periods of the sines grow from 2
/// pi to 20,000 pi. The last one is shorter if sines and cosines alternate.
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

/// Returns the sines and the cosines of each column, then of each row: `[d, n]`. The periods grow from 2 pi to less
/// than 20,000 pi.
pub(super) fn grid_sinusoids(d: usize, places: impl Iterator<Item = [i32; 2]>) -> Vec<f32> {
    let n = d / 4;
    let angle = move |place: i32, i: usize| f64::from(place) * LONGEST.powf(-(i as f64) / n as f64);
    let of_axis = move |place: i32| {
        let angles = (0..n).map(move |i| angle(place, i));
        let sines = angles.clone().map(|angle| angle.sin() as f32);
        sines.chain(angles.map(|angle| angle.cos() as f32))
    };
    let of_patch = move |place: [i32; 2]| {
        let values = place.into_iter().flat_map(of_axis);
        values.chain(std::iter::repeat_n(0.0, d - 4 * n))
    };
    places.flat_map(of_patch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::TensorId;

    #[test]
    fn grid_sinusoids_have_columns_before_rows() {
        let angles = [2.0f64, 0.02, 3.0, 0.03];
        let [sines, cosines] = [angles.map(|a| a.sin() as f32), angles.map(|a| a.cos() as f32)];
        let expected = [&sines[..2], &cosines[..2], &sines[2..], &cosines[2..]].concat();
        assert_eq!(grid_sinusoids(8, std::iter::once([2, 3])), expected);
        let padded = grid_sinusoids(5, [[0, 0], [1, 0]].into_iter());
        assert_eq!(padded[..5], [0.0, 1.0, 0.0, 1.0, 0.0]);
        assert_eq!((padded.len(), padded[5]), (10, 1f64.sin() as f32));
    }

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
