//! The definition of every op as a small function over contiguous arrays. Arithmetic is in f64, rounded once
//! to f32.
//!
//! Callers have checked the shapes, but not the row and expert indices, which are data.

use std::f64::consts::PI;

use super::array::{Array, Index, Ints, indices};
use super::scratch::Scratch;
use crate::graph::NgramHash;
use crate::graph::Unary;

/// A row or expert index is outside the table.
#[derive(Debug, PartialEq)]
pub(super) struct IndexOutOfRange {
    pub(super) row: i64,
    pub(super) rows: usize,
}

pub(super) fn row_number(row: i64, rows: usize) -> Result<usize, IndexOutOfRange> {
    usize::try_from(row)
        .ok()
        .filter(|&r| r < rows)
        .ok_or(IndexOutOfRange { row, rows })
}

/// Returns a function that looks up a row index in `ids`. All indices are less than `rows`.
fn row_numbers(ids: &Ints, rows: usize) -> Result<impl Fn(Index) -> usize + '_, IndexOutOfRange> {
    ids.data.iter().try_for_each(|&id| row_number(id, rows).map(drop))?;
    Ok(|i| ids.at(i) as usize)
}

pub(super) fn get_rows(table: &Array, ids: &Ints) -> Result<Array, IndexOutOfRange> {
    let row = row_numbers(ids, table.ne[1])?;
    let [n_tokens, b2, b3, _] = ids.ne;
    let ne = [table.ne[0], n_tokens, b2, b3];
    Ok(table.derive(ne, |[i0, t, i2, i3]| table.at([i0, row([t, i2, i3, 0]), i2, i3])))
}

/// Implements [`get_rows`] for a table of integers.
pub(super) fn get_int_rows(table: &Ints, ids: &Ints, scratch: &Scratch) -> Result<Ints, IndexOutOfRange> {
    let row = row_numbers(ids, table.ne[1])?;
    let [n_tokens, b2, b3, _] = ids.ne;
    let ne = [table.ne[0], n_tokens, b2, b3];
    let mut data = scratch.take(ne.iter().product());
    for (x, [i0, t, i2, i3]) in data.iter_mut().zip(indices(ne)) {
        *x = table.at([i0, row([t, i2, i3, 0]), i2, i3]);
    }
    Ok(Ints { ne, data })
}

pub(super) fn mul_mat(w: &Array, x: &Array) -> Array {
    let ne = [w.ne[1], x.ne[1], x.ne[2], x.ne[3]];
    // Adjacent outer indices of x share a matrix of w (grouped-query broadcast).
    let (group2, group3) = (x.ne[2] / w.ne[2].max(1), x.ne[3] / w.ne[3].max(1));
    x.derive(ne, |[row, col, i2, i3]| {
        dot(w.row([0, row, i2 / group2, i3 / group3]), x.row([0, col, i2, i3]))
    })
}

pub(super) fn mul_mat_id(w: &Array, x: &Array, ids: &Ints) -> Result<Array, IndexOutOfRange> {
    let expert = row_numbers(ids, w.ne[2])?;
    let [n_used, n_tokens, ..] = ids.ne;
    Ok(x.derive([w.ne[1], n_used, n_tokens, 1], |[row, slot, t, _]| {
        let w_row = w.row([0, row, expert([slot, t, 0, 0]), 0]);
        dot(w_row, x.row([0, slot % x.ne[1], t, 0]))
    }))
}

pub(super) fn add_id(x: &Array, bias: &Array, ids: &Ints) -> Result<Array, IndexOutOfRange> {
    let expert = row_numbers(ids, bias.ne[1])?;
    Ok(x.derive(x.ne, |i @ [i0, slot, t, _]| {
        x.at(i) + bias.at([i0, expert([slot, t, 0, 0]), 0, 0])
    }))
}

/// Computes `f(a, b)` with `b` broadcast to the shape of `a`.
pub(super) fn binary(a: &Array, b: &Array, f: impl Fn(f64, f64) -> f64) -> Array {
    a.derive(a.ne, |i| f(a.at(i), b.at_repeated(i)))
}

pub(super) fn map(x: &Array, f: impl Fn(f64) -> f64) -> Array {
    x.derive(x.ne, |i| f(x.at(i)))
}

pub(super) fn rms_norm(x: &Array, weight: Option<&Array>, eps: f32) -> Array {
    let normed = x.map_rows(|row| {
        let mean_square = dot(row, row) / row.len() as f64;
        let factor = 1.0 / (mean_square + f64::from(eps)).sqrt();
        row.iter().map(move |&x| f64::from(x) * factor)
    });
    match weight {
        Some(w) => binary(&normed, w, |x, w| x * w),
        None => normed,
    }
}

pub(super) fn norm(x: &Array, eps: f32) -> Array {
    x.map_rows(|row| {
        let n = row.len() as f64;
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
        let factor = 1.0 / (variance + f64::from(eps)).sqrt();
        row.iter().map(move |&x| (f64::from(x) - mean) * factor)
    })
}

pub(super) fn l2_norm(x: &Array, eps: f32) -> Array {
    x.map_rows(|row| {
        let length = dot(row, row).sqrt().max(f64::from(eps));
        row.iter().map(move |&x| f64::from(x) / length)
    })
}

pub(super) fn sinkhorn(x: &Array, n: usize, iterations: usize, eps: f32) -> Array {
    let eps = f64::from(eps);
    let lists = Array {
        ne: [n, n * x.ne[1], x.ne[2], x.ne[3]],
        data: x.derive(x.ne, |at| x.at(at)).data,
    };
    let mut m = map(&soft_max(&lists, 1.0), |x| x + eps);
    for i in 0..iterations.max(1) {
        if i > 0 {
            m = m.derive(m.ne, |at| {
                let sum: f64 = m.row(at).iter().map(|&x| f64::from(x)).sum();
                m.at(at) / (sum + eps)
            });
        }
        m = m.derive(m.ne, |at @ [j, row, i2, i3]| {
            let first = row / n * n;
            let sum: f64 = (first..first + n).map(|row| m.at([j, row, i2, i3])).sum();
            m.at(at) / (sum + eps)
        });
    }
    Array { ne: x.ne, data: m.data }
}

pub(super) fn soft_max(x: &Array, scale: f32) -> Array {
    x.map_rows(|row| {
        let scaled = move |&x: &f32| f64::from(x) * f64::from(scale);
        let max = row.iter().map(scaled).fold(f64::NEG_INFINITY, f64::max);
        let exp = move |x| (scaled(x) - max).exp();
        let sum: f64 = row.iter().map(exp).sum();
        row.iter().map(move |x| exp(x) / sum)
    })
}

pub(super) fn top_k(x: &Array, k: usize) -> Ints {
    let [n, n1, n2, n3] = x.ne;
    let scratch = x.data.scratch();
    let (mut order, mut data) = (scratch.take(n), scratch.take(k * n1 * n2 * n3));
    let rows = indices([1, n1, n2, n3]);
    for (best, i) in data.chunks_exact_mut(k.max(1)).zip(rows) {
        let row = x.row(i);
        (order.iter_mut().zip(0..)).for_each(|(o, i)| *o = i);
        // Equal values are ordered by ascending index.
        order.sort_unstable_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
        best.copy_from_slice(&order[..k]);
    }
    Ints {
        ne: [k, n1, n2, n3],
        data,
    }
}

pub(super) fn int_div(mut ids: Ints, by: usize) -> Ints {
    ids.data.iter_mut().for_each(|id| *id /= by as i64);
    ids
}

pub(super) fn cast(ids: &Ints, scratch: &Scratch) -> Array {
    let mut data = scratch.take(ids.data.len());
    (data.iter_mut().zip(&*ids.data)).for_each(|(x, &id)| *x = id as f32);
    Array { ne: ids.ne, data }
}

pub(super) fn ngram_hash(numbers: &Array, hash: &NgramHash) -> Ints {
    let n_tokens = numbers.ne[1];
    let mut data = numbers.data.scratch().take(n_tokens);
    for (t, row) in data.iter_mut().enumerate() {
        *row = i64::from(hash.row(|i| numbers.row([0, t, 0, 0])[i]));
    }
    let ne = [n_tokens, 1, 1, 1];
    Ints { ne, data }
}

/// Computes the attention temperature of each token. The step is computed in f32, as in training.
pub(super) fn attention_temperature(
    positions: &Ints,
    scratch: &Scratch,
    scale: f32,
    length: usize,
    offset: f32,
) -> Array {
    let mut data = scratch.take(positions.data.len());
    for (out, &p) in data.iter_mut().zip(&*positions.data) {
        let steps = ((p as f32 + offset) / length as f32).floor();
        *out = (1.0 + f64::from(scale) * (f64::from(steps) + 1.0).ln()) as f32;
    }
    let ne = [1, 1, positions.ne[0], 1];
    Array { ne, data }
}

pub(super) fn top_mask(x: &Array, k: usize) -> Array {
    // Rank of an element: the number of elements before it, with equal values ordered by index.
    let rank = |row: &[f32], i: usize| {
        let is_before = |&(j, y): &(usize, &f32)| y.total_cmp(&row[i]).then(i.cmp(&j)).is_gt();
        row.iter().enumerate().filter(is_before).count()
    };
    x.map_rows(|row| (0..row.len()).map(move |i| if rank(row, i) < k { 1.0 } else { 0.0 }))
}

pub(super) fn sum_rows(x: &Array) -> Array {
    let [_, n1, n2, n3] = x.ne;
    x.derive([1, n1, n2, n3], |i| x.row(i).iter().map(|&x| f64::from(x)).sum())
}

pub(super) fn concat(a: &Array, b: &Array, dim: usize) -> Array {
    let mut ne = a.ne;
    ne[dim] += b.ne[dim];
    a.derive(ne, |mut i: Index| {
        if i[dim] < a.ne[dim] {
            a.at(i)
        } else {
            i[dim] -= a.ne[dim];
            b.at(i)
        }
    })
}

pub(super) fn repeat(x: &Array, ne: [usize; 4]) -> Array {
    x.derive(ne, |i| x.at_repeated(i))
}

pub(super) fn unary(f: Unary, x: f64) -> f64 {
    match f {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sqr => x * x,
        Unary::Sqrt => x.sqrt(),
        Unary::Exp => x.exp(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => sigmoid(x),
        Unary::Relu => x.max(0.0),
        Unary::ReluSqr => x.max(0.0).powi(2),
        Unary::Silu => x * sigmoid(x),
        Unary::Gelu => 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
        Unary::GeluErf => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
        Unary::GeluQuick => x * sigmoid(1.702 * x),
        // ln(1 + e^x) without overflow: for large x this is x + ln(1 + e^-x).
        Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Computes the error function by its series of positive terms: erf(x) = 2/sqrt(pi) e^(-x^2) sum of 2^n
/// x^(2n+1) / (2n+1)!!
pub(super) fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

/// Returns the dot product of two rows.
///
/// Most of the reference device's time is spent here, so the CPU's widest vectors are used. All variants add in the
/// same order without fused operations, so their results are bit-identical.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has AVX-512F.
            return unsafe { dot_avx512(a, b) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has AVX2.
            return unsafe { dot_avx2(a, b) };
        }
    }
    dot_in_order(a, b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn dot_avx512(a: &[f32], b: &[f32]) -> f64 {
    dot_in_order(a, b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn dot_avx2(a: &[f32], b: &[f32]) -> f64 {
    dot_in_order(a, b)
}

/// Adds the products. Eight partial sums avoid a single long dependency chain.
#[inline(always)]
fn dot_in_order(a: &[f32], b: &[f32]) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            *sum += f64::from(a) * f64::from(b);
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(&a, &b)| f64::from(a) * f64::from(b));
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    #[test]
    fn dot_products_of_all_instruction_sets_are_identical() {
        let mut random = SplitMix64(7);
        let mut number = || (random.next_u64() as i32 as f32) * 1e-7;
        for n in (0..40).chain([576, 1000]) {
            let (a, b): (Vec<f32>, Vec<f32>) = (0..n).map(|_| (number(), number())).unzip();
            let expected = dot_in_order(&a, &b).to_bits();
            assert_eq!(dot(&a, &b).to_bits(), expected, "{n}");
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the CPU has AVX2.
                assert_eq!(unsafe { dot_avx2(&a, &b) }.to_bits(), expected, "{n}");
            }
        }
    }
}
