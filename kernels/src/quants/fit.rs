//! Search for the scale, or the scale and minimum, with the smallest squared error.

/// Returns the scale with the smallest squared error for `x ~ scale * value(x / scale)`. Candidates map the element of
/// largest magnitude to one of `ends` before rounding.
pub(super) fn best_scale(x: &[f32], ends: impl Iterator<Item = f32>, value: impl Fn(f32) -> f32) -> f32 {
    let max = signed_max(x);
    if max == 0.0 {
        return 0.0;
    }
    let (mut best, mut best_gain) = (0.0, 0.0);
    for end in ends {
        let inv = end / max;
        // For fixed indices, the best scale is `sum(x v) / sum(v^2)`; it reduces the squared error by `sum(x
        // v)^2 / sum(v^2)`.
        let (mut sum_xv, mut sum_vv) = (0.0, 0.0);
        for &x in x {
            let v = value(x * inv);
            sum_xv += x * v;
            sum_vv += v * v;
        }
        let gain = sum_xv * sum_xv / sum_vv;
        if gain > best_gain {
            (best, best_gain) = (sum_xv / sum_vv, gain);
        }
    }
    best
}

/// Returns the scale and minimum with the smallest squared error for `x ~ scale * q + min` with `q` in `0..=max_q`.
/// Candidates are found by alternately rounding and fitting a line, starting from slightly narrowed ranges.
pub(super) fn best_line(x: &[f32], max_q: f32) -> (f32, f32) {
    let (low, high) = min_max(x);
    let (mut best, mut best_gain) = (((high - low) / max_q, low), 0.0);
    for (narrow_low, narrow_high) in (0..25).map(|i| ((i % 5) as f32 * 0.4, (i / 5) as f32 * 0.4)) {
        let scale = (high - low) / (max_q - narrow_low - narrow_high);
        let mut line = (scale, low + narrow_low * scale);
        for _ in 0..3 {
            let (fitted, gain) = fit_line(x, line, max_q);
            if gain > best_gain {
                (best, best_gain) = (fitted, gain);
            }
            line = fitted;
        }
    }
    best
}

/// Fits a line through `x` over its indices as rounded by `line`. Also returns the reduction of the squared
/// error around the mean.
fn fit_line(x: &[f32], line: (f32, f32), max_q: f32) -> ((f32, f32), f32) {
    let n = x.len() as f32;
    let inv = inverse(line.0);
    let q = |x: f32| f32::from(round_to((x - line.1) * inv, max_q));
    let mean_x = x.iter().sum::<f32>() / n;
    let mean_q = x.iter().map(|&x| q(x)).sum::<f32>() / n;
    let (mut sum_xq, mut sum_qq) = (0.0, 0.0);
    for &x in x {
        sum_xq += (x - mean_x) * (q(x) - mean_q);
        sum_qq += (q(x) - mean_q).powi(2);
    }
    let scale = sum_xq / sum_qq;
    ((scale, mean_x - scale * mean_q), sum_xq * scale)
}

/// Returns the element of largest magnitude with its sign, or 0 for an empty slice.
pub(super) fn signed_max(x: &[f32]) -> f32 {
    x.iter()
        .fold(0.0, |max: f32, &v| if v.abs() > max.abs() { v } else { max })
}

/// Returns the smallest and the largest element.
fn min_max(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), &v| {
        (min.min(v), max.max(v))
    })
}

/// Returns `1 / x`, or 0 if `x` is 0, for scales that may be zero.
pub(super) fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// Rounds `x` to the nearest integer in `0..=max`.
pub(super) fn round_to(x: f32, max: f32) -> u8 {
    x.round_ties_even().clamp(0.0, max) as u8
}
