//! Rotary position embeddings, as defined by Su et al. (arXiv 2104.09864) and, for scaled contexts, Peng et
//! al. (arXiv 2309.00071).

use std::f64::consts::PI;

use super::array::{Array, Ints};
use crate::graph::{ROPE_AXES, Rope, RopeKind};

pub(super) fn rope(x: &Array, positions: &Ints, factors: Option<&Array>, p: &Rope) -> Array {
    let mut out = x.derive(x.ne, |i| x.at(i));
    let [head_dim, n_head, n_tokens, _] = x.ne;
    let step = p.freq_base.powf(-2.0 / p.n_dims as f32);
    for t in 0..n_tokens {
        // Each pair's angle is computed in f32 from the previous pair's angle, as in training and in other
        // engines.
        let mut thetas = [0.0; ROPE_AXES];
        for (axis, theta) in thetas[..p.kind.n_axes()].iter_mut().enumerate() {
            *theta = p.place(positions.at([t, axis, 0, 0]) as i32) as f32;
        }
        for pair in 0..p.n_dims / 2 {
            let factor = factors.map_or(1.0, |f| f.at([pair, 0, 0, 0]) as f32);
            let (sin, cos) = rotation(p, thetas[p.axis(pair)] / factor, pair);
            thetas = thetas.map(|theta| theta * step);
            let (a, b) = match p.kind {
                RopeKind::Norm => (2 * pair, 2 * pair + 1),
                RopeKind::Neox | RopeKind::Mrope | RopeKind::Imrope => (pair, pair + p.n_dims / 2),
            };
            for h in 0..n_head {
                let (xa, xb) = (x.at([a, h, t, 0]), x.at([b, h, t, 0]));
                let head = head_dim * (h + n_head * t);
                out.data[head + a] = (xa * cos - xb * sin) as f32;
                out.data[head + b] = (xa * sin + xb * cos) as f32;
            }
        }
    }
    out
}

/// Returns the sine and cosine of a pair's angle, times the magnitude.
fn rotation(p: &Rope, extrapolated: f32, pair: usize) -> (f64, f64) {
    let interpolated = p.freq_scale * extrapolated;
    let mut angle = interpolated;
    let mut magnitude = f64::from(p.attn_factor);
    if p.ext_factor != 0.0 {
        let mix = extrapolation_share(p, pair) as f32 * p.ext_factor;
        angle = interpolated * (1.0 - mix) + extrapolated * mix;
        magnitude *= 1.0 + 0.1 * (1.0 / f64::from(p.freq_scale)).ln();
    }
    let angle = f64::from(angle);
    (angle.sin() * magnitude, angle.cos() * magnitude)
}

/// Returns the YaRN ramp: 1 for pairs with many rotations within the original context (extrapolated), and 0 for pairs
/// with few (interpolated). In between, it is linear.
fn extrapolation_share(p: &Rope, pair: usize) -> f64 {
    // Returns the pair with this number of rotations over the original context.
    let pair_with = |rotations: f32| {
        let wave = p.n_ctx_orig as f64 / (f64::from(rotations) * 2.0 * PI);
        p.n_dims as f64 * wave.ln() / (2.0 * f64::from(p.freq_base).ln())
    };
    let low = pair_with(p.beta_fast).floor().max(0.0);
    let high = pair_with(p.beta_slow).ceil().min(p.n_dims as f64 - 1.0);
    1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
}
