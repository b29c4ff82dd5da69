//! Planning of rotary position embeddings (RoPE).

use std::f64::consts::PI;

use bytemuck::{Pod, Zeroable};

use super::super::kernel::{ANGLES, Kernel, ROPE};
use super::arguments::{RopeArg, TensorArg};
use super::task::Task;
use super::unplanned::{Unplanned, size};
use crate::graph::{ROPE_AXES, Rope, RopeKind};

/// Maximum size of a table in bytes. Larger steps compute the angles of each layer.
const MAX_TABLE: usize = 1 << 20;

/// Threads per block of `angles.cu`.
const ANGLE_THREADS: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct AngleParams {
    rope: RopeArg,
    n: i32,
    padding: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    x: TensorArg,
    y: TensorArg,
    rope: RopeArg,
}

/// Returns the angles for a task's node.
pub(super) fn angles(task: &mut Task<'_>, p: &Rope) -> Result<RopeArg, Unplanned> {
    let (low, high) = ramp(p);
    let mut sections = [0; ROPE_AXES];
    for (to, from) in sections.iter_mut().zip(p.sections) {
        *to = size(from)? as i32;
    }
    let mut arg = RopeArg {
        positions: task.source(1)?,
        factors: task.source_or_none(2)?,
        step: p.freq_base.powf(-2.0 / p.n_dims as f32),
        freq_scale: p.freq_scale,
        ext_factor: p.ext_factor,
        magnitude: magnitude(p),
        low,
        high,
        n_dims: size(p.n_dims)? as i32,
        n_axes: p.kind.n_axes() as i32,
        every: i32::try_from(p.every).unwrap_or(i32::MAX),
        inverse: p.inverse.into(),
        sections,
        interleaved: (p.kind == RopeKind::Imrope).into(),
        padding: 0,
        table: 0,
    };
    let n = p.n_dims / 2 * task.node.ne[2];
    let n_bytes = 2 * size_of::<f32>() * n;
    if n == 0 || n_bytes > MAX_TABLE {
        return Ok(arg);
    }
    let (table, is_new) = task.target.angles(&arg, n_bytes)?;
    arg.table = table;
    if is_new {
        let params = AngleParams {
            rope: arg,
            n: size(n)? as i32,
            padding: 0,
        };
        let grid = [size(n)?.div_ceil(ANGLE_THREADS), 1, 1];
        task.launch(Kernel::new(&ANGLES, "angles"), grid, ANGLE_THREADS, &params)?;
    }
    Ok(arg)
}

/// Returns 1 if the elements of a pair are adjacent, otherwise 0.
pub(super) fn neighbors(p: &Rope) -> i64 {
    (p.kind == RopeKind::Norm).into()
}

pub(super) fn plan(task: &mut Task<'_>, p: &Rope) -> Result<(), Unplanned> {
    let params = Params {
        x: task.source(0)?,
        y: task.result()?,
        rope: angles(task, p)?,
    };
    let [n, n_head, n_tokens, _] = task.node.ne;
    let kernel = Kernel::new(&ROPE, "rope").with_int("NEIGHBORS", neighbors(p));
    let work = (p.n_dims / 2).max((n - p.n_dims) * n_head);
    let threads = size(work.next_multiple_of(32).clamp(32, 256))?;
    task.launch(kernel, [size(n_tokens)?, 1, 1], threads, &params)
}

/// Returns the magnitude of rotated pairs.
fn magnitude(p: &Rope) -> f32 {
    let scaled = match p.ext_factor {
        0.0 => 1.0,
        _ => 1.0 + 0.1 * (1.0 / f64::from(p.freq_scale)).ln(),
    };
    (f64::from(p.attn_factor) * scaled) as f32
}

/// Returns the pairs between which YaRN blends extrapolated and interpolated angles.
fn ramp(p: &Rope) -> (f32, f32) {
    // Returns the pair with this number of rotations over the original context.
    let pair_with = |rotations: f32| {
        let wave = p.n_ctx_orig as f64 / (f64::from(rotations) * 2.0 * PI);
        p.n_dims as f64 * wave.ln() / (2.0 * f64::from(p.freq_base).ln())
    };
    let low = pair_with(p.beta_fast).floor().max(0.0);
    let high = pair_with(p.beta_slow).ceil().min(p.n_dims as f64 - 1.0);
    (low as f32, high as f32)
}
