//! Tests of encoding with error feedback against the expected output error, and against GPTQ with an inverse.

use super::tests::Random;
use super::*;
use crate::dequantize_row;

const ROWS: usize = 9;
const COLUMNS: usize = 512;

/// Returns inputs whose neighbors are correlated, with a few columns of larger magnitude.
fn inputs(n_tokens: usize) -> Vec<f32> {
    let mut r = Random(5);
    let mut x = Vec::with_capacity(n_tokens * COLUMNS);
    for _ in 0..n_tokens {
        let (common, mut last) = (r.normal(), 0.0);
        for column in 0..COLUMNS {
            last = 0.8 * last + r.normal();
            let size = if column % 100 == 7 { 8.0 } else { 1.0 };
            x.push(size * (last + 0.5 * common));
        }
    }
    x
}

fn weights(n_rows: usize) -> Vec<f32> {
    let mut r = Random(6);
    (0..n_rows * COLUMNS).map(|_| 0.02 * r.normal()).collect()
}

/// Returns the second moment of inputs in both triangles, with 1 % of the mean added to the diagonal.
fn moments(x: &[f32]) -> (Vec<f32>, f32) {
    let n = COLUMNS;
    let mut h = vec![0f32; n * n];
    for (i, rows) in h.chunks_mut(7 * n).enumerate() {
        add_moments(rows, 7 * i, n, x);
    }
    let mean = (0..n).map(|i| h[i * n + i]).sum::<f32>() / n as f32;
    for i in 0..n {
        h[i * n + i] += 0.01 * mean;
        for j in 0..i {
            h[i * n + j] = h[j * n + i];
        }
    }
    (h, 0.01 * mean)
}

/// Factors a matrix.
fn factor(mut h: Vec<f32>, floor: f32) -> Vec<f32> {
    let starts: Vec<_> = (0..COLUMNS).step_by(FACTOR_ROWS).collect();
    for first in starts.into_iter().rev() {
        let (above, block) = h.split_at_mut(first * COLUMNS);
        let block = &mut block[..FACTOR_ROWS * COLUMNS];
        factor_diagonal(block, first, COLUMNS, floor);
        above
            .chunks_mut(3 * COLUMNS)
            .for_each(|rows| factor_rows(rows, block, first, COLUMNS));
    }
    h
}

fn decoded(ty: GgmlType, rows: &[u8]) -> Vec<f32> {
    let row_bytes = ty.row_bytes(COLUMNS).unwrap();
    let mut out = vec![f32::NAN; rows.len() / row_bytes * COLUMNS];
    for (row, out) in rows.chunks_exact(row_bytes).zip(out.chunks_exact_mut(COLUMNS)) {
        dequantize_row(ty, row, out);
    }
    out
}

/// Returns space for encoded rows.
fn space(ty: GgmlType, rows: &[f32]) -> Vec<u8> {
    vec![0; rows.len() / COLUMNS * ty.row_bytes(COLUMNS).unwrap()]
}

fn encoded(ty: GgmlType, rows: &[f32], feedback: &Feedback) -> Vec<u8> {
    let mut out = space(ty, rows);
    encode_rows(ty, rows, feedback, &mut out);
    out
}

/// Returns the sum of `e H e^T` over all rows.
fn output_error(h: &[f32], x: &[f32], found: &[f32]) -> f64 {
    let errors: Vec<f64> = x
        .iter()
        .zip(found)
        .map(|(x, q)| f64::from(*x) - f64::from(*q))
        .collect();
    let rows = errors.chunks_exact(COLUMNS).map(|e| {
        let of_row = h.chunks_exact(COLUMNS).zip(e).map(|(h, a)| {
            let dot: f64 = h.iter().zip(e).map(|(h, b)| f64::from(*h) * b).sum();
            a * dot
        });
        of_row.sum::<f64>()
    });
    rows.sum()
}

fn row_types() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL.iter().copied().filter(|&ty| can_encode_rows(ty))
}

#[test]
fn moments_are_sums_of_products() {
    let x = inputs(21);
    let mut h = vec![0.5f32; COLUMNS * COLUMNS];
    for (i, rows) in h.chunks_mut(10 * COLUMNS).enumerate() {
        add_moments(rows, 10 * i, COLUMNS, &x);
    }
    for i in (0..COLUMNS).step_by(17) {
        for j in i..COLUMNS {
            let products = x.chunks_exact(COLUMNS).map(|x| f64::from(x[i]) * f64::from(x[j]));
            let expected = 0.5 + products.sum::<f64>();
            let found = f64::from(h[i * COLUMNS + j]);
            assert!(
                (found - expected).abs() < 1e-5 * (1.0 + expected.abs()),
                "{i}, {j}: {found} {expected}"
            );
        }
    }
}

#[test]
fn factor_times_its_transpose_is_the_moment() {
    let (h, floor) = moments(&inputs(600));
    let c = factor(h.clone(), floor);
    let mut largest = 0f64;
    for i in 0..COLUMNS {
        for j in i..COLUMNS {
            let product: f64 = (j..COLUMNS)
                .map(|m| f64::from(c[i * COLUMNS + m]) * f64::from(c[j * COLUMNS + m]))
                .sum();
            let expected = f64::from(h[i * COLUMNS + j]);
            let scale = f64::from(h[i * COLUMNS + i] * h[j * COLUMNS + j]).sqrt();
            largest = largest.max((product - expected).abs() / scale);
        }
    }
    assert!(largest < 1e-6, "{largest}");
}

#[test]
fn feedback_lowers_the_output_error_of_all_types() {
    let (h, floor) = moments(&inputs(600));
    let importance: Vec<f32> = (0..COLUMNS).map(|i| h[i * COLUMNS + i]).collect();
    let feedback = Feedback::new(vec![factor(h.clone(), floor)], COLUMNS, COLUMNS);
    let x = weights(ROWS);
    let mut n_types = 0;
    for ty in row_types() {
        let mut plain = space(ty, &x);
        let row_bytes = ty.row_bytes(COLUMNS).unwrap();
        for (x, out) in x.chunks_exact(COLUMNS).zip(plain.chunks_exact_mut(row_bytes)) {
            encode_row(ty, x, Some(&importance), out);
        }
        let before = output_error(&h, &x, &decoded(ty, &plain));
        let after = output_error(&h, &x, &decoded(ty, &encoded(ty, &x, &feedback)));
        assert!(after < 0.85 * before, "{ty}: {after} is not less than {before}");
        n_types += 1;
    }
    assert_eq!(n_types, 26);
}

#[test]
fn encode_rows_is_independent_of_the_instruction_set() {
    let (h, floor) = moments(&inputs(600));
    let feedback = Feedback::new(vec![factor(h, floor)], COLUMNS, COLUMNS);
    let x = weights(ROWS);
    for ty in row_types() {
        let vectorized = encoded(ty, &x, &feedback);
        cpu::USE_BASELINE.set(true);
        let portable = encoded(ty, &x, &feedback);
        cpu::USE_BASELINE.set(false);
        assert!(vectorized == portable, "{ty}");
    }
}

/// Inverts a symmetric matrix by elimination.
fn inverse(h: &[f32]) -> Vec<f64> {
    let n = COLUMNS;
    let mut a: Vec<f64> = h.iter().map(|&h| f64::from(h)).collect();
    let mut inverse: Vec<f64> = (0..n * n).map(|i| f64::from(u8::from(i / n == i % n))).collect();
    for k in 0..n {
        let pivot = a[k * n + k];
        for j in 0..n {
            a[k * n + j] /= pivot;
            inverse[k * n + j] /= pivot;
        }
        for i in (0..n).filter(|&i| i != k) {
            let factor = a[i * n + k];
            for j in 0..n {
                a[i * n + j] -= factor * a[k * n + j];
                inverse[i * n + j] -= factor * inverse[k * n + j];
            }
        }
    }
    inverse
}

/// GPTQ as published: after each column, the errors are distributed with the inverse of the moment of the remaining
/// columns.
#[test]
fn rounding_matches_gptq_with_an_inverse() {
    let (h, floor) = moments(&inputs(600));
    let feedback = Feedback::new(vec![factor(h.clone(), floor)], COLUMNS, COLUMNS);
    let x = weights(1);
    let values = decoded(GgmlType::Q4_0, &encoded(GgmlType::Q4_0, &x, &feedback));
    let mut inverse = inverse(&h);
    let mut w: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let (n, mut n_equal) = (COLUMNS, 0);
    for k in 0..n {
        let block = &values[k / 32 * 32..][..32];
        // Every block has elements at neighboring levels, so the smallest distance between elements is the scale.
        let mut sorted = block.to_vec();
        sorted.sort_unstable_by(f32::total_cmp);
        let gaps = sorted.windows(2).map(|pair| pair[1] - pair[0]);
        let scale = f64::from(gaps.filter(|gap| *gap > 1e-6).fold(f32::MAX, f32::min));
        let difference = (w[k] - f64::from(values[k])).abs();
        let is_end = values[k] == sorted[0] || values[k] == sorted[31];
        n_equal += usize::from(difference <= 0.5001 * scale || is_end);
        let error = (w[k] - f64::from(values[k])) / inverse[k * n + k];
        for j in k..n {
            w[j] -= error * inverse[k * n + j];
        }
        let row: Vec<f64> = inverse[k * n..][..n].to_vec();
        for i in k + 1..n {
            for j in k + 1..n {
                inverse[i * n + j] -= row[i] * row[j] / row[k];
            }
        }
    }
    assert_eq!(n_equal, n);
}

/// The errors of uncorrelated inputs cannot compensate each other.
#[test]
fn feedback_of_independent_inputs_barely_changes_error() {
    let identity: Vec<f32> = (0..COLUMNS * COLUMNS)
        .map(|i| f32::from(u8::from(i / COLUMNS == i % COLUMNS)))
        .collect();
    let feedback = Feedback::new(vec![identity.clone()], COLUMNS, COLUMNS);
    let x = weights(ROWS);
    for ty in row_types() {
        let mut plain = space(ty, &x);
        let row_bytes = ty.row_bytes(COLUMNS).unwrap();
        for (x, out) in x.chunks_exact(COLUMNS).zip(plain.chunks_exact_mut(row_bytes)) {
            encode_row(ty, x, Some(&[1.0; COLUMNS]), out);
        }
        let before = output_error(&identity, &x, &decoded(ty, &plain));
        let after = output_error(&identity, &x, &decoded(ty, &encoded(ty, &x, &feedback)));
        assert!(after < 1.001 * before, "{ty}: {after} exceeds {before}");
    }
}

/// Columns of different ranges are treated as independent, so a block-diagonal moment gives the same feedback.
#[test]
fn feedback_of_ranges_equals_block_diagonal_moment() {
    let (mut h, floor) = moments(&inputs(600));
    let n = COLUMNS / 2;
    let mut halves = [vec![0f32; n * n], vec![0f32; n * n]];
    for i in 0..COLUMNS {
        for j in 0..COLUMNS {
            if i / n != j / n {
                h[i * COLUMNS + j] = 0.0;
            } else {
                halves[i / n][i % n * n + j % n] = h[i * COLUMNS + j];
            }
        }
    }
    let c = factor(h, floor);
    for (half, found) in halves.iter_mut().enumerate() {
        for (i, row) in found.chunks_exact_mut(n).enumerate() {
            row.copy_from_slice(&c[(half * n + i) * COLUMNS + half * n..][..n]);
        }
    }
    let whole = Feedback::new(vec![c], COLUMNS, COLUMNS);
    let divided = Feedback::new(halves.to_vec(), COLUMNS, n);
    let x = weights(ROWS);
    for ty in row_types() {
        assert!(encoded(ty, &x, &divided) == encoded(ty, &x, &whole), "{ty}");
    }
}
