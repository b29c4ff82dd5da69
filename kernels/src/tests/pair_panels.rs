//! Tests of matmuls of 16-bit floats with pairs of 16-bit integers.
//!
//! Rounding 256 numbers with the scale `s` changes each one by at most `s / 2`. The errors thus have a norm of at most
//! `8 s`. The error of a dot product follows from the norms of both chunks and of their errors (Cauchy–Schwarz).

use super::panels::{Rows, product_of};
use super::*;
use crate::activations::form_with;
use crate::generic::pair_panels;
use crate::{ActivationForm, FAST_COLUMNS, Precision};

const FORM: ActivationForm = ActivationForm::I16Pairs;

/// Elements of a row with one scale.
const CHUNK: usize = 256;

fn with_pairs() -> impl Iterator<Item = &'static Kernels> {
    all_kernels().filter(|kernels| kernels.int.pairs.is_some())
}

fn types() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL.iter().copied().filter(|&ty| pair_panels::is_for(ty))
}

/// Returns the bytes of weights of a type, and the weights as stored.
fn encoded(ty: GgmlType, floats: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = Vec::new();
    for &x in floats {
        let word = match ty {
            GgmlType::F16 => half::f16::from_f32(x).to_bits(),
            _ => half::bf16::from_f32(x).to_bits(),
        };
        bytes.extend(word.to_le_bytes());
    }
    let (_, decode) = scalar_decoders().into_iter().find(|(of, _)| *of == ty).unwrap();
    let mut stored = vec![0.0; floats.len()];
    decode(&bytes, &mut stored);
    (bytes, stored)
}

fn norm(x: &[f32]) -> f64 {
    wide(x).map(|x| x * x).sum::<f64>().sqrt()
}

/// Returns a bound of the norm of the rounding errors of a chunk. The squares of tiny chunks underflow, so their scale
/// follows from the largest magnitude.
fn rounding(x: &[f32]) -> f64 {
    let max = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let bound = if norm(x) > 1e-15 {
        norm(x)
    } else {
        16.0 * f64::from(max)
    };
    let scale = (f64::from(max) / 32_767.0).max(bound / 46_300.0);
    8.001 * scale.max(f64::from(f32::MIN_POSITIVE))
}

/// Compares with the exact products of `m` rows of weights and the rows of `x`.
fn check(ty: GgmlType, k: usize, w: &[f32], x: &[f32]) {
    let (bytes, w) = encoded(ty, w);
    let (m, n) = (w.len() / k, x.len() / k);
    let layout = WeightLayout::Rows { stride: 2 * k };
    for kernels in with_pairs() {
        let out = product_of(kernels, (ty, &bytes, layout), m, &Rows::new(kernels, FORM, k, x), m, n);
        for (j, x) in x.chunks(k).enumerate() {
            for (i, w) in w.chunks(k).enumerate() {
                let exact: f64 = wide(w).zip(wide(x)).map(|(w, x)| w * x).sum();
                let chunks = || w.chunks(CHUNK).zip(x.chunks(CHUNK));
                let of_chunk = |(w, x)| (norm(w) + rounding(w)) * rounding(x) + rounding(w) * norm(x);
                let magnitude: f64 = chunks().map(|(w, x)| norm(w) * norm(x)).sum();
                let bound = chunks().map(of_chunk).sum::<f64>() + 1e-6 * magnitude + 1e-37;
                let got = f64::from(out[j * (m + 2) + i]);
                let isa = kernels.isa;
                let is_close = (got - exact).abs() <= bound;
                assert!(
                    is_close,
                    "{isa:?} {ty} k {k}, row {i}, column {j}: {got} instead of {exact}"
                );
            }
        }
    }
}

#[test]
fn pair_matmul_error_is_bounded() {
    for ty in types() {
        for (m, n, k) in [
            (1, 1, 1),
            (5, 3, 2),
            (16, 7, 255),
            (33, 13, 256),
            (40, 9, 257),
            (64, 35, 700),
        ] {
            let mut x = noise(91, n * k);
            x.iter_mut().step_by(97).for_each(|x| *x *= 50.0);
            check(ty, k, &noise(90, m * k), &x);
        }
    }
}

/// Uses chunks whose dot product is the product of their norms, the largest possible sum of integers.
#[test]
fn pair_matmul_of_parallel_chunks_does_not_overflow() {
    for ty in types() {
        for sign in [1.0, -1.0] {
            check(ty, 512, &vec![1.0; 8 * 512], &vec![sign * 0.7; 2 * 512]);
            let w: Vec<f32> = noise(92, 512)
                .into_iter()
                .map(|x| half::bf16::from_f32(x).to_f32())
                .collect();
            let x: Vec<f32> = w.iter().map(|w| sign * w).collect();
            check(ty, 512, &w, &x);
        }
    }
}

#[test]
fn pair_matmul_of_single_elements_does_not_overflow() {
    for ty in types() {
        let mut w = vec![0.0; 2 * CHUNK];
        w[3] = 1000.0;
        w[CHUNK + 255] = -3.5;
        check(ty, CHUNK, &w, &w);
    }
}

#[test]
fn pair_matmul_handles_extreme_activations() {
    for ty in types() {
        for factor in [0.0, 1e-40, 1e-30, 1e-16, 1e20, 1e34] {
            let x: Vec<f32> = noise(93, 2 * 300).into_iter().map(|x| x * factor).collect();
            check(ty, 300, &noise(94, 8 * 300), &x);
        }
    }
}

#[test]
fn pair_matmul_propagates_non_finite_numbers() {
    let (m, n, k) = (40, 9, 600);
    for ty in types() {
        let mut w = noise(95, m * k);
        w[11 * k + 300] = f32::INFINITY;
        w[38 * k + 599] = f32::NAN;
        let mut x = noise(96, n * k);
        x[3 * k] = f32::NAN;
        x[8 * k + 599] = f32::NEG_INFINITY;
        let (bytes, _) = encoded(ty, &w);
        let layout = WeightLayout::Rows { stride: 2 * k };
        for kernels in with_pairs() {
            let x = Rows::new(kernels, FORM, k, &x);
            let out = product_of(kernels, (ty, &bytes, layout), m, &x, m, n);
            for (j, row) in out.chunks(m + 2).enumerate() {
                for (i, result) in row[..m].iter().enumerate() {
                    let is_bad = [3, 8].contains(&j) || [11, 38].contains(&i);
                    assert_eq!(
                        result.is_finite(),
                        !is_bad,
                        "{:?} {ty}, row {i}, column {j}",
                        kernels.isa
                    );
                }
            }
        }
    }
}

/// Checks that splitting rows and columns, as threads do, does not change a bit.
#[test]
fn pair_matmul_split_keeps_bits() {
    let (m, n, k) = (72, 35, 300);
    for ty in types() {
        let (bytes, _) = encoded(ty, &noise(97, m * k));
        let weights = (ty, &bytes[..], WeightLayout::Rows { stride: 2 * k });
        for kernels in with_pairs() {
            let bits = |out: Vec<f32>| out.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let x = Rows::new(kernels, FORM, k, &noise(98, n * k));
            let expected = bits(product_of(kernels, weights, m, &x, m, n));
            for (rows, columns) in [(8, n), (m, 9), (32, 33), (64, 15)] {
                let split = bits(product_of(kernels, weights, m, &x, rows, columns));
                assert!(
                    split == expected,
                    "{:?} {ty}: {rows} rows, {columns} columns at a time",
                    kernels.isa
                );
            }
        }
    }
}

#[test]
fn activation_form_pairs_needs_many_columns_of_16_bit_floats() {
    for kernels in with_pairs().filter(|kernels| kernels.float_tiles.is_none()) {
        for ty in types() {
            let form = |n, precision| form_with(kernels, ty, n, precision);
            assert_eq!(form(FAST_COLUMNS, Precision::Fast), FORM);
            assert_eq!(form(FAST_COLUMNS - 1, Precision::Fast), ActivationForm::F32);
            assert_eq!(form(512, Precision::High), ActivationForm::F32);
        }
        let form = form_with(kernels, GgmlType::F32, 512, Precision::Fast);
        assert_eq!(form, ActivationForm::F32);
    }
}
