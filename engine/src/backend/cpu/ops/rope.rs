//! RoPE and attention temperature. Sines and cosines are computed once per token and used by all of its heads.

use std::f64::consts::{FRAC_2_PI, PI};

use super::{Need, Task};
use crate::backend::cpu::scratch::take;
use crate::backend::cpu::view::Source;
use crate::graph::{ROPE_AXES, Rope, RopeKind, Tensor};

/// Per pair: frequency factor, YaRN ramp, sine and cosine.
pub(super) fn need(node: &Tensor) -> Need {
    Need {
        per_thread: 2 * node.ne[0],
        shared: 0,
    }
}

pub(super) fn rope(task: Task<'_>, p: &Rope) {
    let (x, positions) = (task.source(0), task.source(1).list::<i32>());
    let (factors, target) = (task.optional(2), task.target);
    let n_pairs = p.n_dims / 2;
    let mut scratch = task.scratch;
    let (divisors, mix) = (take(&mut scratch, n_pairs), take(&mut scratch, n_pairs));
    let (sin, cos) = (take(&mut scratch, n_pairs), take(&mut scratch, n_pairs));
    fill_pairs(divisors, mix, p, factors);
    let magnitude = magnitude(p);
    let mut prepared = None;
    for (i @ [_, t, _], out) in target.rows() {
        if prepared != Some(t) {
            extrapolated(p, positions, t, divisors, sin);
            rotations(p.freq_scale, mix, magnitude, sin, cos);
            prepared = Some(t);
        }
        x.copy_row(i, out);
        match p.kind {
            RopeKind::Norm => {
                for (pair, (s, c)) in out.chunks_exact_mut(2).zip(sin.iter().zip(&*cos)) {
                    (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[0] * s + pair[1] * c);
                }
            }
            RopeKind::Neox | RopeKind::Mrope | RopeKind::Imrope => {
                let (first, second) = out[..p.n_dims].split_at_mut(n_pairs);
                for ((a, b), (s, c)) in first.iter_mut().zip(second).zip(sin.iter().zip(&*cos)) {
                    (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                }
            }
        }
    }
}

/// Steps are counted in f32, as models are trained.
pub(super) fn attention_temperature(task: Task<'_>, scale: f32, length: usize, offset: f32) {
    let positions = task.source(0).list::<i32>();
    for ([_, t, _], out) in task.target.rows() {
        let steps = ((positions[t] as f32 + offset) / length as f32).floor();
        out[0] = (1.0 + f64::from(scale) * (f64::from(steps) + 1.0).ln()) as f32;
    }
}

/// The part of a pair's angle that does not depend on the position.
fn fill_pairs(divisors: &mut [f32], mix: &mut [f32], p: &Rope, factors: Option<Source<'_>>) {
    let ramp = (p.ext_factor != 0.0).then(|| ramp(p));
    for (i, (divisor, mix)) in divisors.iter_mut().zip(mix).enumerate() {
        *divisor = factors.map_or(1.0, |f| f.float([i, 0, 0, 0]));
        *mix = ramp.map_or(0.0, |(low, high)| {
            let interpolation = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            (1.0 - interpolation) as f32 * p.ext_factor
        });
    }
}

/// YaRN's ramp from extrapolation to interpolation: between the pairs with `beta_fast` and `beta_slow` rotations over the original
/// context.
fn ramp(p: &Rope) -> (f64, f64) {
    let n_dims = p.n_dims as f64;
    let pair_of = |turns: f32| {
        n_dims * (p.n_ctx_orig as f64 / (f64::from(turns) * 2.0 * PI)).ln() / (2.0 * f64::from(p.freq_base).ln())
    };
    (
        pair_of(p.beta_fast).floor().max(0.0),
        pair_of(p.beta_slow).ceil().min(n_dims - 1.0),
    )
}

fn magnitude(p: &Rope) -> f32 {
    let yarn = if p.ext_factor != 0.0 {
        1.0 + 0.1 * (1.0 / p.freq_scale).ln()
    } else {
        1.0
    };
    p.attn_factor * yarn
}

/// Angles of token `t` without scaling. They are made in f32, each from the one before it: that is how models are trained and
/// served, and at large angles (long contexts, small frequency factors) it decides the last digits of recorded logits.
fn extrapolated(p: &Rope, positions: &[i32], t: usize, divisors: &[f32], out: &mut [f32]) {
    let step = p.freq_base.powf(-2.0 / p.n_dims as f32);
    let (n_axes, pairs) = (p.kind.n_axes(), out.iter_mut().zip(divisors));
    if n_axes == 1 {
        let mut theta = p.place(positions[t]) as f32;
        for (angle, divisor) in pairs {
            *angle = theta / divisor;
            theta *= step;
        }
        return;
    }
    let n_tokens = positions.len() / n_axes;
    let mut thetas: [f32; ROPE_AXES] = std::array::from_fn(|axis| p.place(positions[axis * n_tokens + t]) as f32);
    for (pair, (angle, divisor)) in pairs.enumerate() {
        *angle = thetas[p.axis(pair)] / divisor;
        thetas = thetas.map(|theta| theta * step);
    }
}

/// Sines and cosines of angles that stand in `sin` without scaling. Sine and cosine of an angle are exact.
fn rotations(freq_scale: f32, mix: &[f32], magnitude: f32, sin: &mut [f32], cos: &mut [f32]) {
    for (mix, (s, c)) in mix.iter().zip(sin.iter_mut().zip(cos)) {
        let (extrapolated, interpolated) = (*s, freq_scale * *s);
        let angle = if *mix == 0.0 {
            interpolated
        } else {
            interpolated * (1.0 - mix) + extrapolated * mix
        };
        let (sin, cos) = sin_cos(f64::from(angle));
        (*s, *c) = (sin as f32 * magnitude, cos as f32 * magnitude);
    }
}

/// Sine and cosine within 1e-10 for angles up to a million, and 1e-6 up to 2^31, in a form that compilers turn into vector code.
fn sin_cos(x: f64) -> (f64, f64) {
    // Adding this leaves no bits for a fraction, which rounds; the lowest bits then are those of the integer.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // Pi / 2 in two parts; the first has 33 bits, so that its product with up to 2^20 quarters is exact.
    const QUARTER: f64 = 1.570_796_326_734_125_6;
    const QUARTER_REST: f64 = 6.077_100_506_506_192e-11;
    let rounded = x * FRAC_2_PI + ROUND;
    let (quarters, turn) = (rounded - ROUND, rounded.to_bits());
    let r = (x - quarters * QUARTER) - quarters * QUARTER_REST;
    let r2 = r * r;
    // Taylor series on [-pi / 4, pi / 4].
    let s = -1.0 / 39_916_800.0;
    let s = s * r2 + 1.0 / 362_880.0;
    let s = s * r2 - 1.0 / 5040.0;
    let s = s * r2 + 1.0 / 120.0;
    let s = s * r2 - 1.0 / 6.0;
    let s = r + r * r2 * s;
    let c = 1.0 / 479_001_600.0;
    let c = c * r2 - 1.0 / 3_628_800.0;
    let c = c * r2 + 1.0 / 40_320.0;
    let c = c * r2 - 1.0 / 720.0;
    let c = c * r2 + 1.0 / 24.0;
    let c = 1.0 - 0.5 * r2 + r2 * r2 * c;
    // Odd quadrants swap sine and cosine; quadrants 2 and 3 negate the sine, 1 and 2 the cosine.
    let swapped = turn & 1 == 1;
    let (sin, cos) = if swapped { (c, s) } else { (s, c) };
    let sin_sign = (turn & 2) << 62;
    let cos_sign = (turn.wrapping_add(1) & 2) << 62;
    (
        f64::from_bits(sin.to_bits() ^ sin_sign),
        f64::from_bits(cos.to_bits() ^ cos_sign),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sines_and_cosines() {
        for (limit, tolerance) in [(1e3, 1e-10), (1e6, 1e-10), (2f64.powi(31), 1e-6)] {
            for i in -10_000..=10_000 {
                let x = f64::from(i) * limit / 10_000.0;
                let (s, c) = sin_cos(x);
                assert!((s - x.sin()).abs() < tolerance, "sin {x} = {s} instead of {}", x.sin());
                assert!((c - x.cos()).abs() < tolerance, "cos {x} = {c} instead of {}", x.cos());
            }
        }
    }
}
