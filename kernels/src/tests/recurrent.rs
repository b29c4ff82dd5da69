//! Tests of recurrent state steps against double-precision code.

use super::*;
use crate::generic::recurrent::{ChannelScan, Scan, Wkv6, Wkv7};

/// Numbers of rows around the number computed together.
const ROWS: [usize; 6] = [0, 1, 2, 4, 5, 9];

/// Expected row of the state after a step, and the element of the result computed from it.
fn check_row(what: &str, got: &[f32], want: &[f64], y: f32, want_y: f64) {
    for (got, want) in got.iter().zip(want) {
        assert_close(what, *got, *want, 2.0);
    }
    assert_close(what, y, want_y, 4.0 * (want.len() as f64).sqrt().max(1.0));
}

fn dot(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(wide(b)).map(|(a, b)| a * b).sum()
}

#[test]
fn scan_matches_f64() {
    for (kernels, n, m) in cases() {
        let [decay, b, c] = [1, 2, 3].map(|seed| noise(seed, n));
        let (x, state) = (noise(4, m), noise(5, m * n));
        let (mut got, mut y) = (state.clone(), vec![f32::NAN; m]);
        let args = Scan {
            decay: decay.as_ptr(),
            x: x.as_ptr(),
            scale: 0.3,
            b: b.as_ptr(),
            c: c.as_ptr(),
            state: got.as_mut_ptr(),
            y: y.as_mut_ptr(),
            m,
            n,
        };
        // SAFETY: all lengths match the state's rows and columns, and the CPU supports `kernels`.
        unsafe { (kernels.scan)(&args) };
        for j in 0..m {
            let input = f64::from(0.3f32) * f64::from(x[j]);
            let row = wide(&state[j * n..][..n]).zip(wide(&decay)).zip(wide(&b));
            let want: Vec<f64> = row.map(|((s, decay), b)| decay * s + input * b).collect();
            check_row("scan", &got[j * n..][..n], &want, y[j], dot(&want, &c));
        }
    }
}

#[test]
fn scan_channels_matches_f64() {
    for (kernels, n, m) in cases() {
        let [b, c] = [2, 3].map(|seed| noise(seed, n));
        let [x, dt] = [4, 5].map(|seed| noise(seed, m));
        let [a, state] = [6, 7].map(|seed| noise(seed, m * n));
        let (mut got, mut y) = (state.clone(), vec![f32::NAN; m]);
        let args = ChannelScan {
            dt: dt.as_ptr(),
            a: a.as_ptr(),
            x: x.as_ptr(),
            b: b.as_ptr(),
            c: c.as_ptr(),
            state: got.as_mut_ptr(),
            y: y.as_mut_ptr(),
            m,
            n,
        };
        // SAFETY: all lengths match the state's rows and columns, and the CPU supports `kernels`.
        unsafe { (kernels.scan_channels)(&args) };
        for j in 0..m {
            let dt = f64::from(dt[j]);
            let row = wide(&state[j * n..][..n]).zip(wide(&a[j * n..][..n])).zip(wide(&b));
            let input = dt * f64::from(x[j]);
            let want: Vec<f64> = row.map(|((s, a), b)| (dt * a).exp() * s + input * b).collect();
            check_row("scan_channels", &got[j * n..][..n], &want, y[j], dot(&want, &c));
        }
    }
}

#[test]
fn wkv6_matches_f64() {
    for (kernels, n, _) in cases().filter(|(_, n, m)| *m == 0 && *n < 200) {
        let [r, w, k, v] = [1, 2, 3, 4].map(|seed| noise(seed, n));
        let state = noise(5, n * n);
        let (mut got, mut y) = (state.clone(), vec![f32::NAN; n]);
        let args = Wkv6 {
            r: r.as_ptr(),
            w: w.as_ptr(),
            k: k.as_ptr(),
            v: v.as_ptr(),
            bonus: 0.7,
            state: got.as_mut_ptr(),
            y: y.as_mut_ptr(),
            n,
        };
        // SAFETY: all lengths match the state's rows and columns, and the CPU supports `kernels`.
        unsafe { (kernels.wkv6)(&args) };
        for j in 0..n {
            let (before, v): (Vec<f64>, _) = (wide(&state[j * n..][..n]).collect(), f64::from(v[j]));
            let row = before.iter().zip(wide(&w)).zip(wide(&k));
            let want: Vec<f64> = row.map(|((s, w), k)| w * s + v * k).collect();
            let want_y = dot(&before, &r) + f64::from(0.7f32) * v;
            check_row("wkv6", &got[j * n..][..n], &want, y[j], want_y);
        }
    }
}

#[test]
fn wkv7_matches_f64() {
    for (kernels, n, _) in cases().filter(|(_, n, m)| *m == 0 && *n < 200) {
        let [r, w, k, v, a] = [1, 2, 3, 4, 5].map(|seed| noise(seed, n));
        // Small like the normalized vectors of models, because `held` is a sum over the row.
        let b: Vec<f32> = noise(6, n).iter().map(|b| b / (n as f32).sqrt()).collect();
        let state = noise(7, n * n);
        let (mut got, mut y) = (state.clone(), vec![f32::NAN; n]);
        let args = Wkv7 {
            r: r.as_ptr(),
            w: w.as_ptr(),
            k: k.as_ptr(),
            v: v.as_ptr(),
            a: a.as_ptr(),
            b: b.as_ptr(),
            state: got.as_mut_ptr(),
            y: y.as_mut_ptr(),
            n,
        };
        // SAFETY: all lengths match the state's rows and columns, and the CPU supports `kernels`.
        unsafe { (kernels.wkv7)(&args) };
        for j in 0..n {
            let (before, v): (Vec<f64>, _) = (wide(&state[j * n..][..n]).collect(), f64::from(v[j]));
            let held = dot(&before, &a);
            let row = before.iter().zip(wide(&w)).zip(wide(&k).zip(wide(&b)));
            let want: Vec<f64> = row.map(|((s, w), (k, b))| w * s + v * k + held * b).collect();
            check_row("wkv7", &got[j * n..][..n], &want, y[j], dot(&want, &r));
        }
    }
}

/// Yields kernels, row lengths, and numbers of rows.
fn cases() -> impl Iterator<Item = (&'static Kernels, usize, usize)> {
    let sizes = LENGTHS.into_iter().flat_map(|n| ROWS.map(|m| (n, m)));
    all_kernels().flat_map(move |kernels| sizes.clone().map(move |(n, m)| (kernels, n, m)))
}
