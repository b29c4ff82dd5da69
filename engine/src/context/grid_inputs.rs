//! Values of the inputs that describe the grid of an image's patches.

use crate::builder::{TableFilter, TableWeights};

/// Returns the weights of the rows of a table for each row of the result: `[from, to]`.
pub(super) fn table_weights(resize: &TableWeights) -> Vec<f32> {
    let TableWeights { from, to, filter, .. } = *resize;
    let mut weights = vec![0.0; from * to];
    for (at, weights) in weights.chunks_exact_mut(from.max(1)).enumerate() {
        let i = if resize.descends { to - 1 - at } else { at };
        match filter {
            TableFilter::Linear => linear(weights, i, to),
            TableFilter::Bilinear => bilinear(weights, i, to as f64),
            // As in torch on a CPU, an axis of equal size is not resized.
            TableFilter::Dino if to == from => weights[i] = 1.0,
            TableFilter::Dino => bilinear(weights, i, to as f64 + 0.1),
            TableFilter::Smooth => smooth(weights, i, to, 1.0, |x| 1.0 - x),
            TableFilter::SmoothBicubic => smooth(weights, i, to, 2.0, smooth_cubic),
            TableFilter::Bicubic => bicubic(weights, i, to),
            TableFilter::Nearest => weights[i * from / to] = 1.0,
            TableFilter::Zeros => between_zeros(weights, i, to as f64),
        }
    }
    weights
}

/// Interpolates linearly with aligned corners.
fn linear(weights: &mut [f32], i: usize, n: usize) {
    let last = weights.len() - 1;
    // Positions are computed in f32, as in the published model.
    let step = last as f32 / n.saturating_sub(1).max(1) as f32;
    let place = i as f32 * step;
    let low = (place as usize).min(last);
    let high = (low + 1).min(last);
    let share = place - low as f32;
    weights[low] += 1.0 - share;
    weights[high] += share;
}

/// Interpolates linearly between the two rows that are nearest to the center of a patch.
fn bilinear(weights: &mut [f32], i: usize, n: f64) {
    let last = weights.len() - 1;
    let place = ((i as f64 + 0.5) * weights.len() as f64 / n - 0.5).clamp(0.0, last as f64);
    let (low, share) = (place as usize, place.fract() as f32);
    weights[low] += 1.0 - share;
    weights[(low + 1).min(last)] += share;
}

/// Interpolates linearly between the two rows that are nearest to the center of a patch. Rows beyond the table are
/// zeros.
fn between_zeros(weights: &mut [f32], i: usize, n: f64) {
    let place = (i as f64 + 0.5) * weights.len() as f64 / n - 0.5;
    let share = (place - place.floor()) as f32;
    // The first row beyond the table is at -1.
    let high = (place + 1.0) as usize;
    if let Some(low) = high.checked_sub(1) {
        weights[low] += 1.0 - share;
    }
    if let Some(weight) = weights.get_mut(high) {
        *weight += share;
    }
}

/// Interpolates with antialiasing: the filter widens with the scale. `curve` is its value at a distance below `radius`.
fn smooth(weights: &mut [f32], i: usize, n: usize, radius: f64, curve: fn(f64) -> f64) {
    let scale = weights.len() as f64 / n as f64;
    let (center, unit) = ((i as f64 + 0.5) * scale - 0.5, scale.max(1.0));
    let weight = |j: usize| {
        let x = (j as f64 - center).abs() / unit;
        if x < radius { curve(x) } else { 0.0 }
    };
    let sum: f64 = (0..weights.len()).map(weight).sum();
    for (j, to) in weights.iter_mut().enumerate() {
        *to = (weight(j) / sum) as f32;
    }
}

/// Evaluates the cubic filter with a = -0.5 (Keys) at distance `x`.
fn smooth_cubic(x: f64) -> f64 {
    if x < 1.0 {
        (1.5 * x - 2.5) * x * x + 1.0
    } else {
        ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    }
}

/// Interpolates cubically between four rows. A row beyond a border is replaced by the row at the border.
fn bicubic(weights: &mut [f32], i: usize, n: usize) {
    const A: f64 = -0.75;
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let place = (i as f64 + 0.5) * weights.len() as f64 / n as f64 - 0.5;
    let (low, share) = (place.floor(), place - place.floor());
    let taps = [far(share + 1.0), near(share), near(1.0 - share), far(2.0 - share)];
    for (tap, at) in taps.into_iter().zip(-1i64..) {
        let row = (low as i64 + at).clamp(0, weights.len() as i64 - 1);
        weights[row as usize] += tap as f32;
    }
}

/// Returns the frequency divisors of the pairs that rotate by the first axis, then by the second one. With `spread`,
/// the axes alternate along the frequencies.
pub(super) fn grid_factors(base: f32, spread: bool, n_pairs: usize) -> Vec<f32> {
    let n = n_pairs / 2;
    let of_axis = |first: usize| {
        (0..n).map(move |i| {
            let place = if spread {
                i as f64 + first as f64 / 2.0
            } else {
                i as f64
            };
            f64::from(base).powf(place / n as f64) as f32
        })
    };
    of_axis(0)
        .chain(of_axis(1))
        .chain(std::iter::repeat_n(1.0, n_pairs - 2 * n))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::TensorId;

    fn weights(filter: TableFilter, from: usize, to: usize) -> Vec<f32> {
        table_weights(&TableWeights {
            from,
            to,
            filter,
            descends: false,
            weights: TensorId(0),
        })
    }

    #[test]
    fn linear_weights_align_corners() {
        let linear = |side, n| weights(TableFilter::Linear, side, n);
        assert_eq!(
            linear(3, 5),
            [
                1.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 1.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 1.0
            ]
        );
        assert_eq!(linear(2, 1), [1.0, 0.0]);
        assert_eq!(linear(1, 2), [1.0, 1.0]);
    }

    /// The expected weights come from `torch.nn.functional.interpolate` with a scale of 3.1 / 4.
    #[test]
    fn dino_weights_match_published_scale() {
        let expected = [
            0.854_838_7,
            0.145_161_29,
            0.0,
            0.0,
            0.0,
            0.564_516_1,
            0.435_483_87,
            0.0,
            0.0,
            0.0,
            0.274_193_55,
            0.725_806_5,
        ];
        for (weight, expected) in weights(TableFilter::Dino, 4, 3).iter().zip(expected) {
            assert!((weight - expected).abs() < 1e-6, "{weight} {expected}");
        }
        assert_eq!(weights(TableFilter::Dino, 2, 2), [1.0, 0.0, 0.0, 1.0]);
    }

    /// The expected rows come from `bucketize` in torch, as in SigLIP over images of any size.
    #[test]
    fn nearest_rows_match_published_positions() {
        let rows = |side: usize, n: usize| -> Vec<usize> {
            let weights = weights(TableFilter::Nearest, side, n);
            let row = |w: &[f32]| w.iter().position(|&w| w == 1.0).unwrap();
            weights.chunks(side).map(row).collect()
        };
        assert_eq!(rows(8, 5), [0, 1, 3, 4, 6]);
        assert_eq!(rows(4, 10), [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]);
        assert_eq!(rows(70, 70), (0..70).collect::<Vec<_>>());
    }

    /// The expected weights come from `torch.nn.functional.interpolate` for unit vectors.
    #[test]
    fn area_weights_match_published_weights() {
        let bicubic = weights(TableFilter::Bicubic, 4, 3);
        let expected = [
            0.856_481_5,
            0.160_879_63,
            -0.017_361_11,
            0.0,
            -0.093_75,
            0.593_75,
            0.593_75,
            -0.093_75,
            0.0,
            -0.017_361_11,
            0.160_879_63,
            0.856_481_5,
        ];
        assert_eq!(bicubic.len(), expected.len());
        for (found, expected) in bicubic.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{bicubic:?}");
        }
        let bilinear = weights(TableFilter::Bilinear, 5, 2);
        assert_eq!(bilinear, [0.25, 0.75, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.75, 0.25]);
        let bilinear = weights(TableFilter::Bilinear, 3, 4);
        assert_eq!(
            bilinear,
            [1.0, 0.0, 0.0, 0.375, 0.625, 0.0, 0.0, 0.625, 0.375, 0.0, 0.0, 1.0]
        );
        let smooth = weights(TableFilter::Smooth, 5, 2);
        let half = [0.318_181_8, 0.409_090_9, 0.227_272_73, 0.045_454_547, 0.0];
        for (found, expected) in smooth.iter().zip(half.iter().chain(half.iter().rev())) {
            assert!((found - expected).abs() < 1e-6, "{smooth:?}");
        }
    }

    /// The expected weights come from `torch.nn.functional.grid_sample` for unit vectors, with zeros around them.
    #[test]
    fn zero_padded_weights_match_published_weights() {
        let zeros = |side, n| weights(TableFilter::Zeros, side, n);
        assert_eq!(
            zeros(3, 4),
            [0.875, 0.0, 0.0, 0.375, 0.625, 0.0, 0.0, 0.625, 0.375, 0.0, 0.0, 0.875]
        );
        let expected = [
            0.833_333_3,
            0.166_666_67,
            0.0,
            0.0,
            0.0,
            0.5,
            0.5,
            0.0,
            0.0,
            0.0,
            0.166_666_67,
            0.833_333_3,
        ];
        for (found, expected) in zeros(4, 3).iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
        assert_eq!(zeros(2, 2), [1.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn weights_of_a_patch_sum_to_one() {
        let filters = [
            TableFilter::Linear,
            TableFilter::Bilinear,
            TableFilter::Smooth,
            TableFilter::SmoothBicubic,
            TableFilter::Bicubic,
            TableFilter::Nearest,
        ];
        for filter in filters {
            for (side, n) in [(48, 7), (16, 29), (5, 5), (1, 3)] {
                for weights in weights(filter, side, n).chunks(side) {
                    assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{filter:?}");
                }
            }
        }
    }

    #[test]
    fn frequencies_repeat_or_alternate() {
        assert_eq!(grid_factors(10000.0, false, 4), [1.0, 100.0, 1.0, 100.0]);
        assert_eq!(grid_factors(10000.0, true, 4), [1.0, 100.0, 10.0, 1000.0]);
        assert_eq!(grid_factors(10000.0, false, 1), [1.0]);
    }
}
