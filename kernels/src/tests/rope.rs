//! Tests of rotary position embeddings.

use super::*;
use crate::generic::rope::sin_cos;

#[test]
fn sin_cos_matches_std() {
    for (limit, tolerance) in [(1e3, 1e-10), (1e6, 1e-10), (2f64.powi(31), 1e-6)] {
        for i in -10_000..=10_000 {
            let x = f64::from(i) * limit / 10_000.0;
            let (s, c) = sin_cos(x);
            assert!((s - x.sin()).abs() < tolerance, "sin {x} = {s} instead of {}", x.sin());
            assert!((c - x.cos()).abs() < tolerance, "cos {x} = {c} instead of {}", x.cos());
        }
    }
}

/// Checks that every instruction set produces the bits of the definition.
#[test]
fn rotate_matches_across_isas() {
    for kernels in all_kernels() {
        for n in LENGTHS {
            let angles: Vec<f32> = noise(1, n).iter().map(|x| 1000.0 * x).collect();
            let of_angles = |f: fn((f64, f64)) -> f64| -> Vec<f32> {
                let parts = angles.iter().map(|&angle| f(sin_cos(f64::from(angle))) as f32 * 1.25);
                parts.collect()
            };
            let (expected_sin, expected_cos) = (of_angles(|(sin, _)| sin), of_angles(|(_, cos)| cos));
            let (mut sin, mut cos) = (angles.clone(), vec![f32::NAN; n]);
            // SAFETY: both slices have the same length, and the CPU supports `kernels`.
            unsafe { (kernels.sin_cos_in_place)(sin.as_mut_ptr(), 1.25, cos.as_mut_ptr(), n) }
            assert_eq!((&sin, &cos), (&expected_sin, &expected_cos), "{:?} {n}", kernels.isa);

            let x = noise(2, 2 * n);
            let rotated = |a: f32, b: f32, i: usize| (a * cos[i] - b * sin[i], a * sin[i] + b * cos[i]);
            let (mut pairs, mut halves) = (x.clone(), x.clone());
            // SAFETY: there are two elements per sine and cosine, and the CPU supports `kernels`.
            unsafe {
                (kernels.rotate_pairs)(pairs.as_mut_ptr(), sin.as_ptr(), cos.as_ptr(), n);
                (kernels.rotate_halves)(halves.as_mut_ptr(), sin.as_ptr(), cos.as_ptr(), n);
            }
            for i in 0..n {
                let (a, b) = rotated(x[2 * i], x[2 * i + 1], i);
                assert_eq!(
                    (pairs[2 * i], pairs[2 * i + 1]),
                    (a, b),
                    "{:?} pair {i} of {n}",
                    kernels.isa
                );
                let (a, b) = rotated(x[i], x[n + i], i);
                assert_eq!((halves[i], halves[n + i]), (a, b), "{:?} half {i} of {n}", kernels.isa);
            }
        }
    }
}
