//! Tests of row operations.

use super::*;

#[test]
fn reductions_match_f64() {
    for kernels in all_kernels() {
        for n in LENGTHS {
            let (a, b) = (noise(1, n), noise(2, n));
            let what = format!("{:?} {n}", kernels.isa);
            // SAFETY: `a` and `b` have `n` elements, and the CPU supports `kernels`.
            unsafe {
                let products = wide(&a).zip(wide(&b)).map(|(a, b)| a * b);
                let magnitude = products.clone().map(f64::abs).sum();
                assert_close(
                    &what,
                    (kernels.dot)(a.as_ptr(), b.as_ptr(), n),
                    products.sum(),
                    magnitude,
                );
                assert_close(
                    &what,
                    (kernels.sum)(a.as_ptr(), n),
                    wide(&a).sum(),
                    wide(&a).map(f64::abs).sum(),
                );
                let squares: f64 = wide(&a).map(|a| a * a).sum();
                assert_close(&what, (kernels.sum_of_squares)(a.as_ptr(), n), squares, squares);
            }
        }
    }
}

/// Returns the probability that a standard normal variable is below `x`, by a series near 0 and by a continued
/// fraction in the tails.
fn normal_below(x: f64) -> f64 {
    let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() < 3.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..100 {
            term *= x * x / f64::from(2 * n + 1);
            sum += term;
        }
        return 0.5 + density * sum;
    }
    let tail = density / (1..200).rev().fold(x.abs(), |rest, k| x.abs() + f64::from(k) / rest);
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// Compares an element-wise kernel, both out of place and in place, with its definition in double precision.
fn check_map(
    isa: Isa,
    name: &str,
    a: &[f32],
    run: impl Fn(*const f32, *mut f32),
    definition: impl Fn(usize, f64) -> f64,
) {
    let mut out = vec![f32::NAN; a.len() + 1];
    run(a.as_ptr(), out.as_mut_ptr());
    assert!(
        out.pop().unwrap().is_nan(),
        "{isa:?} {name}: wrote past {} elements",
        a.len()
    );
    let mut in_place = a.to_vec();
    let ptr = in_place.as_mut_ptr();
    run(ptr, ptr);
    assert_eq!(in_place, out, "{isa:?} {name} in place");
    for (i, (&a, &out)) in a.iter().zip(&out).enumerate() {
        let expected = definition(i, f64::from(a));
        let error = (f64::from(out) - expected).abs();
        // The relative error of an exponential is the absolute error of its exponent.
        assert!(
            error <= 6e-7 * expected.abs() * f64::from(a * a).max(1.0),
            "{isa:?} {name}({a}): {out} instead of {expected}"
        );
    }
}

#[test]
fn element_wise_matches_f64() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let gelu = |x: f64| x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x));
    for k in all_kernels() {
        for n in LENGTHS {
            let a: Vec<f32> = noise(1, n).iter().map(|x| x * 9.0).collect();
            let b = noise(2, n);
            let up = |i: usize| f64::from(b[i]);
            let b = b.as_ptr();
            // SAFETY: all rows have `n` elements, and the CPU supports `kernels`.
            unsafe {
                check_map(k.isa, "exp", &a, |x, out| (k.exp)(x, out, n), |_, x| x.exp());
                check_map(k.isa, "sigmoid", &a, |x, out| (k.sigmoid)(x, out, n), |_, x| sigmoid(x));
                check_map(k.isa, "silu", &a, |x, out| (k.silu)(x, out, n), |_, x| x * sigmoid(x));
                let softplus = |_, x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
                check_map(k.isa, "softplus", &a, |x, out| (k.softplus)(x, out, n), softplus);
                check_map(k.isa, "gelu", &a, |x, out| (k.gelu)(x, out, n), |_, x| gelu(x));
                let exact = |_, x: f64| x * normal_below(x);
                check_map(k.isa, "gelu_erf", &a, |x, out| (k.gelu_erf)(x, out, n), exact);
                check_map(
                    k.isa,
                    "silu_mul",
                    &a,
                    |x, out| (k.silu_mul)(x, b, out, n),
                    |i, x| x * sigmoid(x) * up(i),
                );
                check_map(
                    k.isa,
                    "gelu_mul",
                    &a,
                    |x, out| (k.gelu_mul)(x, b, out, n),
                    |i, x| gelu(x) * up(i),
                );
                check_map(
                    k.isa,
                    "gelu_erf_mul",
                    &a,
                    |x, out| (k.gelu_erf_mul)(x, b, out, n),
                    |i, x| x * normal_below(x) * up(i),
                );
                check_map(k.isa, "mul", &a, |x, out| (k.mul)(x, b, out, n), |i, x| x * up(i));
                check_map(
                    k.isa,
                    "add",
                    &a,
                    |x, out| (k.add)(x, b, out, n),
                    |i, x| f64::from((x + up(i)) as f32),
                );
                let softcap = |x: *const f32, out: *mut f32| (k.softcap)(3.0, x, out, n);
                check_map(k.isa, "softcap", &a, softcap, |_, x| 3.0 * (x / 3.0).tanh());
                let small: Vec<f32> = a.iter().map(|x| x * 1e-3).collect();
                check_map(k.isa, "softcap", &small, softcap, |_, x| 3.0 * (x / 3.0).tanh());
                check_map(
                    k.isa,
                    "scale",
                    &a,
                    |x, out| (k.scale)(3.0, 0.0, x, out, n),
                    |_, x| 3.0 * x,
                );
            }
        }
    }
}

#[test]
fn axpy_matches_f64() {
    for kernels in all_kernels() {
        for n in LENGTHS {
            let (x, mut y) = (noise(1, n), noise(2, n));
            let expected: Vec<f64> = wide(&x).zip(wide(&y)).map(|(x, y)| 0.7f32 as f64 * x + y).collect();
            // SAFETY: both rows have `n` elements, and the CPU supports `kernels`.
            unsafe { (kernels.axpy)(0.7, x.as_ptr(), y.as_mut_ptr(), n) };
            for (y, expected) in y.iter().zip(expected) {
                assert_close("axpy", *y, expected, 1.0);
            }
        }
    }
}

#[test]
fn axpy_rows_matches_f64() {
    for kernels in all_kernels() {
        for n in LENGTHS {
            for m in [0, 1, 2, 7] {
                let stride = n + 3;
                let (a, x, mut y) = (noise(1, m), noise(2, m * stride), noise(3, n));
                let column = |i: usize| {
                    (0..m)
                        .map(|j| f64::from(a[j]) * f64::from(x[j * stride + i]))
                        .sum::<f64>()
                };
                let expected: Vec<f64> = wide(&y).enumerate().map(|(i, y)| y + column(i)).collect();
                // SAFETY: the factors and rows have the given number, and the CPU supports `kernels`.
                unsafe { (kernels.axpy_rows)(a.as_ptr(), m, x.as_ptr(), stride, y.as_mut_ptr(), n) };
                for (y, expected) in y.iter().zip(expected) {
                    assert_close("axpy_rows", *y, expected, 1.0);
                }
            }
        }
    }
}

#[test]
fn scale_add_outer_matches_f64() {
    for kernels in all_kernels() {
        for n in LENGTHS {
            for m in [0, 1, 5] {
                let (c, a, d, x) = (noise(1, m), noise(2, m), noise(3, n), noise(4, m * n));
                let mut got = x.clone();
                // SAFETY: the factors and rows have the given number, and the CPU supports `kernels`.
                unsafe {
                    let (c, a) = (c.as_ptr(), a.as_ptr());
                    (kernels.scale_add_outer)(c, a, m, d.as_ptr(), got.as_mut_ptr(), n);
                }
                for (at, (got, x)) in got.iter().zip(wide(&x)).enumerate() {
                    let (j, i) = (at / n, at % n);
                    let want = f64::from(c[j]) * x + f64::from(a[j]) * f64::from(d[i]);
                    assert_close("scale_add_outer", *got, want, 1.0);
                }
            }
        }
    }
}

#[test]
fn norms_match_f64() {
    for k in all_kernels() {
        for n in LENGTHS.into_iter().skip(1) {
            let (x, weight) = (noise(1, n), noise(2, n));
            let eps = 1e-5f32;
            let mean = wide(&x).sum::<f64>() / n as f64;
            let mean_square = wide(&x).map(|x| x * x).sum::<f64>() / n as f64;
            let variance = wide(&x).map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
            let rms = 1.0 / (mean_square + f64::from(eps)).sqrt();
            let deviation = 1.0 / (variance + f64::from(eps)).sqrt();
            let w = weight.as_ptr();
            // SAFETY: all rows have `n` elements, and the CPU supports `kernels`.
            unsafe {
                let run = |x: *const f32, out: *mut f32| (k.rms_norm)(x, std::ptr::null(), eps, out, n);
                check_map(k.isa, "rms_norm", &x, run, |_, x| x * rms);
                let run = |x: *const f32, out: *mut f32| (k.rms_norm)(x, w, eps, out, n);
                check_map(k.isa, "rms_norm", &x, run, |i, x| x * rms * f64::from(weight[i]));
                let mut out = vec![f32::NAN; n];
                (k.norm)(x.as_ptr(), eps, out.as_mut_ptr(), n);
                for (out, x) in out.iter().zip(wide(&x)) {
                    // Rounding of the mean matters if the variance is small.
                    assert_close("norm", *out, (x - mean) * deviation, deviation);
                }
                let mut in_place = x.clone();
                let ptr = in_place.as_mut_ptr();
                (k.norm)(ptr, eps, ptr, n);
                assert_eq!(in_place, out);
            }
        }
    }
}

#[test]
fn softmax_handles_hidden_elements() {
    for kernels in all_kernels() {
        for n in LENGTHS.into_iter().skip(1) {
            let mut x: Vec<f32> = noise(1, n).iter().map(|x| x * 20.0).collect();
            for hidden in (1..n).step_by(3) {
                x[hidden] = f32::NEG_INFINITY;
            }
            let scale = 0.25;
            let max = wide(&x).map(|x| x * scale).fold(f64::NEG_INFINITY, f64::max);
            let expected: Vec<f64> = wide(&x).map(|x| (x * scale - max).exp()).collect();
            let sum: f64 = expected.iter().sum();
            // SAFETY: `x` has `n` elements, and the CPU supports `kernels`.
            unsafe { (kernels.softmax)(x.as_mut_ptr(), scale as f32, n) };
            for (x, expected) in x.iter().zip(expected) {
                assert_close("softmax", *x, expected / sum, 4.0 * expected / sum);
            }
        }
    }
}

#[test]
fn exp_error_is_at_most_2_ulp() {
    for kernels in all_kernels() {
        // Tests every 8191st float.
        let x: Vec<f32> = (0..=u32::MAX).step_by(8191).map(f32::from_bits).collect();
        let mut out = vec![0.0; x.len()];
        // SAFETY: both rows have the same length, and the CPU supports `kernels`.
        unsafe { (kernels.exp)(x.as_ptr(), out.as_mut_ptr(), x.len()) };
        for (&x, &out) in x.iter().zip(&out) {
            let expected = f64::from(x).exp();
            if x.is_nan() {
                assert!(out.is_nan(), "{:?} exp({x}): {out}", kernels.isa);
            } else if expected > f64::from(f32::MAX) {
                assert!(
                    out == f32::INFINITY || out == f32::MAX,
                    "{:?} exp({x}): {out}",
                    kernels.isa
                );
            } else {
                // One ulp is at most 2^-23 of the value, and at least the smallest subnormal number.
                let ulp = (expected * 2f64.powi(-23)).max(2f64.powi(-149));
                let error = (f64::from(out) - expected).abs();
                assert!(
                    error <= 2.0 * ulp,
                    "{:?} exp({x}): {out} instead of {expected}",
                    kernels.isa
                );
            }
        }
    }
}
