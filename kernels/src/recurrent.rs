//! Steps of recurrent state for one token and some heads. The state is a matrix of floats that is updated in
//! place.
//!
//! All functions panic if the lengths of their arguments disagree.

use crate::dispatch::kernels;
use crate::generic::recurrent::{ChannelScan, Scan, Wkv6, Wkv7};
use crate::lengths::same_length;

/// Computes one token of one head of a state space model (Mamba-2). The state has a row of `b.len()` floats
/// for each element of `x`.
///
/// ```text
/// state[j][i] = decay[i] * state[j][i] + scale * x[j] * b[i]
/// y[j]        = sum_i state[j][i] * c[i]
/// ```
///
/// # Panics
/// Panics if lengths disagree.
pub fn scan(decay: &[f32], scale: f32, x: &[f32], b: &[f32], c: &[f32], state: &mut [f32], y: &mut [f32]) {
    let (m, n) = (x.len(), b.len());
    for (a, b) in [(decay.len(), n), (c.len(), n), (y.len(), m), (state.len(), m * n)] {
        same_length(a, b);
    }
    let args = Scan {
        decay: decay.as_ptr(),
        x: x.as_ptr(),
        scale,
        b: b.as_ptr(),
        c: c.as_ptr(),
        state: state.as_mut_ptr(),
        y: y.as_mut_ptr(),
        m,
        n,
    };
    // SAFETY: the lengths were checked above; `kernels()` matches this CPU.
    unsafe { (kernels().scan)(&args) }
}

/// Computes one token of the channels of a state space model (Mamba). Each channel has a row of `b.len()`
/// floats as its state.
///
/// ```text
/// state[j][i] = e^(dt[j] * a[j][i]) * state[j][i] + dt[j] * x[j] * b[i]
/// y[j]        = sum_i state[j][i] * c[i]
/// ```
///
/// # Panics
/// Panics if lengths disagree.
pub fn scan_channels(dt: &[f32], a: &[f32], x: &[f32], b: &[f32], c: &[f32], state: &mut [f32], y: &mut [f32]) {
    let (m, n) = (x.len(), b.len());
    let lengths = [
        (dt.len(), m),
        (a.len(), m * n),
        (c.len(), n),
        (y.len(), m),
        (state.len(), m * n),
    ];
    for (a, b) in lengths {
        same_length(a, b);
    }
    let args = ChannelScan {
        dt: dt.as_ptr(),
        a: a.as_ptr(),
        x: x.as_ptr(),
        b: b.as_ptr(),
        c: c.as_ptr(),
        state: state.as_mut_ptr(),
        y: y.as_mut_ptr(),
        m,
        n,
    };
    // SAFETY: the lengths were checked above; `kernels()` matches this CPU.
    unsafe { (kernels().scan_channels)(&args) }
}

/// Computes one token of one head of RWKV-6. The state has a row of keys for each channel of the value. All
/// rows have the same length.
///
/// ```text
/// y[j]        = sum_i state[j][i] * r[i] + bonus * v[j]
/// state[j][i] = w[i] * state[j][i] + v[j] * k[i]
/// ```
///
/// # Panics
/// Panics if lengths disagree.
pub fn wkv6([r, w, k, v]: [&[f32]; 4], bonus: f32, state: &mut [f32], y: &mut [f32]) {
    let n = r.len();
    for (a, b) in [
        (w.len(), n),
        (k.len(), n),
        (v.len(), n),
        (y.len(), n),
        (state.len(), n * n),
    ] {
        same_length(a, b);
    }
    let args = Wkv6 {
        r: r.as_ptr(),
        w: w.as_ptr(),
        k: k.as_ptr(),
        v: v.as_ptr(),
        bonus,
        state: state.as_mut_ptr(),
        y: y.as_mut_ptr(),
        n,
    };
    // SAFETY: the lengths were checked above; `kernels()` matches this CPU.
    unsafe { (kernels().wkv6)(&args) }
}

/// Computes one token of one head of RWKV-7. The state has a row of keys for each channel of the value. All
/// rows have the same length.
///
/// ```text
/// held[j]     = sum_i state[j][i] * a[i]
/// state[j][i] = w[i] * state[j][i] + v[j] * k[i] + held[j] * b[i]
/// y[j]        = sum_i state[j][i] * r[i]
/// ```
///
/// # Panics
/// Panics if lengths disagree.
pub fn wkv7([r, w, k, v, a, b]: [&[f32]; 6], state: &mut [f32], y: &mut [f32]) {
    let n = r.len();
    for len in [w, k, v, a, b].map(<[f32]>::len) {
        same_length(len, n);
    }
    same_length(y.len(), n);
    same_length(state.len(), n * n);
    let args = Wkv7 {
        r: r.as_ptr(),
        w: w.as_ptr(),
        k: k.as_ptr(),
        v: v.as_ptr(),
        a: a.as_ptr(),
        b: b.as_ptr(),
        state: state.as_mut_ptr(),
        y: y.as_mut_ptr(),
        n,
    };
    // SAFETY: the lengths were checked above; `kernels()` matches this CPU.
    unsafe { (kernels().wkv7)(&args) }
}
