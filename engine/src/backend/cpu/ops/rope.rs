//! RoPE and attention temperature. Sines and cosines are computed once per token and shared by all heads.

use std::f64::consts::PI;

use kernels::rope as kernel;

use super::task::Task;
use crate::backend::cpu::scratch::{ScratchSize, take};
use crate::backend::cpu::view::Source;
use crate::graph::{ROPE_AXES, Rope, RopeKind, Tensor};

/// Returns the scratch memory for the frequency factor, YaRN ramp, sine, and cosine of each pair.
pub(super) fn scratch_size(node: &Tensor) -> ScratchSize {
    ScratchSize {
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
            RopeKind::Norm => kernel::rotate_pairs(&mut out[..2 * n_pairs], sin, cos),
            RopeKind::Neox | RopeKind::Mrope | RopeKind::Imrope => {
                kernel::rotate_halves(&mut out[..2 * n_pairs], sin, cos);
            }
        }
    }
}

/// Computes the attention temperature of each token. The step is computed in f32, as in training.
pub(super) fn attention_temperature(task: Task<'_>, scale: f32, length: usize, offset: f32) {
    let positions = task.source(0).list::<i32>();
    for ([_, t, _], out) in task.target.rows() {
        let steps = ((positions[t] as f32 + offset) / length as f32).floor();
        out[0] = (1.0 + f64::from(scale) * (f64::from(steps) + 1.0).ln()) as f32;
    }
}

/// Computes the position-independent part of each pair's angle: frequency factor and YaRN mix.
fn fill_pairs(divisors: &mut [f32], mix: &mut [f32], p: &Rope, factors: Option<Source<'_>>) {
    let ramp = if p.ext_factor == 0.0 { None } else { Some(ramp(p)) };
    for (i, (divisor, mix)) in divisors.iter_mut().zip(mix).enumerate() {
        *divisor = factors.map_or(1.0, |f| f.float([i, 0, 0, 0]));
        *mix = ramp.map_or(0.0, |(low, high)| {
            let interpolation = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            (1.0 - interpolation) as f32 * p.ext_factor
        });
    }
}

/// Returns YaRN's ramp from extrapolation to interpolation: the pairs with `beta_fast` and `beta_slow`
/// rotations over the original context.
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

/// Computes the unscaled angles of token `t`.
///
/// Angles are computed in f32, each from the previous angle, as in training and in other engines. At large
/// angles (long contexts, small frequency factors), this determines the last digits of the logits.
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

/// Computes sines and cosines from the unscaled angles in `sin`.
fn rotations(freq_scale: f32, mix: &[f32], magnitude: f32, sin: &mut [f32], cos: &mut [f32]) {
    for (mix, angle) in mix.iter().zip(sin.iter_mut()) {
        let (extrapolated, interpolated) = (*angle, freq_scale * *angle);
        *angle = if *mix == 0.0 {
            interpolated
        } else {
            interpolated * (1.0 - mix) + extrapolated * mix
        };
    }
    kernel::sin_cos_in_place(sin, magnitude, cos);
}
