//! Tests of attention in bf16 tiles, with the software model and, if the CPU supports it, with AMX.

use half::bf16;

use super::attention::{Page, TYPES};
use super::tiles::{U, tile_kernels};
use super::*;
use crate::attention::KEYS;
use crate::attention::tiles::{
    OperandPage, ScoreOperands, SoftmaxState, ValueOperands, WeightOperands, add_values_with, n_scores, pack_keys_with,
    pack_queries_with, pack_values_with, score_stride, scores_with, scratch, weights_with,
};
use crate::generic::tile_attention::weight_stride;

/// Number of queries, keys, and elements of a row, for full and partial tiles.
const SIZES: [(usize, usize, usize); 6] = [
    (1, 1, 32),
    (31, 64, 64),
    (32, 33, 96),
    (33, 16, 128),
    (96, 63, 64),
    (70, 64, 256),
];

/// Row lengths for types without blocks.
const ODD: [usize; 3] = [1, 40, 80];

/// Number of pages of an operand, and the page under test.
const AT: OperandPage = OperandPage { page: 1, n_pages: 3 };

/// Computes the scores of the queries starting at query `first` with the keys of a page, [`KEYS`] per query.
fn products(kernels: &'static Kernels, page: &Page, first: usize, queries: &[f32], d: usize) -> Vec<f32> {
    let all = queries.len() / d;
    let n = all - first;
    let mut operand = vec![
        0xff;
        kernels
            .tiled_attention()
            .bytes_of_queries(first + n.next_multiple_of(32), d)
    ];
    let mut out = vec![f32::NAN; n_scores(n, AT.n_pages)];
    let (mut keys, mut memory) = (
        vec![0xff; kernels.tiled_attention().bytes_of_keys(d, AT.n_pages)],
        vec![f32::NAN; scratch(d)],
    );
    // SAFETY: the CPU supports `kernels` (see `tile_kernels`).
    unsafe {
        pack_queries_with(kernels, queries, d, &mut operand);
        assert!(pack_keys_with(
            kernels,
            &page.rows(),
            u64::MAX,
            AT,
            &mut keys,
            &mut memory
        ));
        let operands = ScoreOperands {
            keys: &keys,
            d,
            mask: &[0, u64::MAX, 0],
            queries: &operand,
            first,
            n,
        };
        scores_with(kernels, &operands, &mut out);
    }
    let rows = out.chunks(score_stride(AT.n_pages)).take(n);
    rows.flat_map(|row| row[AT.page * KEYS..][..KEYS].to_vec()).collect()
}

fn check_scores(kernels: &'static Kernels, ty: GgmlType, n: usize, n_keys: usize, d: usize) {
    let page = Page::new(ty, n_keys, d, 3);
    let queries = noise(4, n * d);
    let got = products(kernels, &page, 0, &queries, d);
    for (q, query) in queries.chunks_exact(d).enumerate() {
        for i in 0..n_keys {
            let products = query
                .iter()
                .zip(page.row(i))
                .map(|(q, k)| f64::from(*q) * f64::from(*k));
            let magnitude: f64 = products.clone().map(f64::abs).sum();
            // Error of the omitted product of residuals and of the residuals' rounding, then of the
            // additions.
            let bound = (3.0 * U * U + (18 + 3 * d / 32) as f64 * 2f64.powi(-23)) * magnitude + 1e-37;
            let (got, expected) = (f64::from(got[q * KEYS + i]), products.sum::<f64>());
            assert!(
                (got - expected).abs() <= bound,
                "{:?} {ty} {n} queries of {d}, {n_keys} keys, query {q} key {i}: {got} instead of {expected} +- {bound}",
                kernels.isa
            );
        }
    }
}

#[test]
fn tile_scores_have_16_bits() {
    for kernels in tile_kernels() {
        for (n, n_keys, d) in SIZES {
            TYPES.iter().for_each(|&ty| check_scores(kernels, ty, n, n_keys, d));
        }
        for d in ODD {
            check_scores(kernels, GgmlType::F16, 33, 40, d);
        }
    }
}

/// Returns scores of 70 queries with three pages and the masks of their tokens. Tokens have three queries,
/// except that only one of the first token's is included.
fn scores_and_seen() -> (Vec<f32>, Vec<u64>) {
    let mut scores = noise(11, n_scores(70, 3));
    scores.iter_mut().for_each(|x| *x *= 30.0);
    let seen = (0..24 * 3u64)
        .map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect();
    (scores, seen)
}

#[test]
fn tile_softmax_weights_have_8_bits() {
    let (n, group, before, pages) = (70, 3, 2, 1..3);
    let (scores, mut seen) = scores_and_seen();
    seen[3 * 5..3 * 6].fill(0);
    for kernels in tile_kernels() {
        let (mut max, mut sum, mut factors) = (vec![-3.0; n], vec![0.5; n], vec![f32::NAN; n]);
        let (mut of_kernel, mut out) = (
            scores.clone(),
            vec![0xff; kernels.tiled_attention().bytes_of_weights(n, 3)],
        );
        let operands = WeightOperands {
            scores: &mut of_kernel,
            n_pages: 3,
            pages: pages.clone(),
            seen: &seen,
            group,
            before,
            values: &vec![0; kernels.tiled_attention().bytes_of_values(1, 3)],
            d: 1,
            running: SoftmaxState {
                max: &mut max,
                sum: &mut sum,
                factors: &mut factors,
            },
        };
        // SAFETY: the CPU supports `kernels` (see `tile_kernels`).
        unsafe { weights_with(kernels, operands, &mut out) };
        let start = out.as_ptr().align_offset(64);
        for q in 0..n {
            let row = &scores[q * score_stride(3)..][..3 * KEYS];
            let words = &seen[(before + q) / group * 3..][..3];
            let is_seen = |i: usize| pages.contains(&(i / KEYS)) && words[i / KEYS] >> (i % KEYS) & 1 == 1;
            let largest = (0..3 * KEYS)
                .filter(|&i| is_seen(i))
                .map(|i| row[i])
                .fold(-3.0, f32::max);
            assert_eq!(max[q], largest);
            let exact = |i: usize| {
                if is_seen(i) {
                    f64::from(row[i] - largest).exp()
                } else {
                    0.0
                }
            };
            let factor = f64::from(-3.0 - largest).exp();
            let total = 0.5 * factor + (0..3 * KEYS).map(exact).sum::<f64>();
            assert!(
                (f64::from(sum[q]) / total - 1.0).abs() < 3e-5,
                "{:?} query {q}: {}",
                kernels.isa,
                sum[q]
            );
            assert!((f64::from(factors[q]) - factor).abs() <= 1e-6 * factor + 1e-37);
            for i in pages.start * KEYS..pages.end * KEYS {
                let at = start + q * weight_stride(3) + 2 * i;
                let got = f64::from(bf16::from_le_bytes([out[at], out[at + 1]]));
                assert!(
                    (got - exact(i)).abs() <= (U + 2f64.powi(-16)) * exact(i) + 1e-37,
                    "query {q} key {i}: {got}"
                );
            }
        }
    }
}

/// Weights of queries, previous sums, and the values to add.
struct Sums {
    page: Page,
    d: usize,
    seen: Vec<u64>,
    weights: Vec<f32>,
    factors: Vec<f32>,
    before: Vec<f32>,
}

impl Sums {
    /// Creates `n` tokens that each see about half of the values. No token sees the last value.
    fn new(ty: GgmlType, n: usize, n_values: usize, d: usize) -> Sums {
        let existing = u64::MAX >> (KEYS - n_values) >> 1;
        let seen: Vec<u64> = (0..n as u64)
            .map(|q| (q + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) & existing)
            .collect();
        let mut weights: Vec<f32> = noise(5, n * KEYS).iter().map(|x| x.abs()).collect();
        for (weights, seen) in weights.chunks_exact_mut(KEYS).zip(&seen) {
            let hidden = weights.iter_mut().enumerate().filter(|(i, _)| seen >> i & 1 == 0);
            hidden.for_each(|(_, weight)| *weight = 0.0);
        }
        let mut page = Page::new(ty, n_values, d, 6);
        page.spoil(&seen);
        Sums {
            page,
            d,
            seen,
            weights,
            factors: noise(7, n).iter().map(|x| x.abs()).collect(),
            before: noise(8, n * d),
        }
    }

    /// Returns the packed weights. Other pages have arbitrary weights.
    fn weights(&self, kernels: &'static Kernels) -> Vec<u8> {
        let mut out = vec![0xff; kernels.tiled_attention().bytes_of_weights(self.seen.len(), AT.n_pages)];
        let start = out.as_ptr().align_offset(64);
        for (q, weights) in self.weights.chunks_exact(KEYS).enumerate() {
            let row = start + q * weight_stride(AT.n_pages) + 2 * AT.page * KEYS;
            for (to, &weight) in out[row..].chunks_exact_mut(2).zip(weights) {
                to.copy_from_slice(&bf16::from_f32(weight).to_le_bytes());
            }
        }
        out
    }

    fn add(&self, kernels: &'static Kernels) -> Option<Vec<f32>> {
        let (mut out, mut memory) = (self.before.clone(), vec![f32::NAN; scratch(self.d)]);
        let seen = self.seen.iter().fold(0, |any, seen| any | seen);
        let mut values = vec![0xff; kernels.tiled_attention().bytes_of_values(self.d, AT.n_pages)];
        // SAFETY: the CPU supports `kernels` (see `tile_kernels`).
        unsafe {
            if !pack_values_with(kernels, &self.page.rows(), seen, AT, &mut values, &mut memory) {
                return None;
            }
            let weights = self.weights(kernels);
            let operands = ValueOperands {
                values: &values,
                d: self.d,
                n_pages: AT.n_pages,
                pages: AT.page..AT.page + 1,
                weights: &weights,
                factors: &self.factors,
            };
            add_values_with(kernels, &operands, &mut out, &mut memory);
        }
        Some(out)
    }

    /// Returns the sum of query `q` at column `c`, and the sum of the products' magnitudes.
    fn expected(&self, q: usize, c: usize) -> (f64, f64) {
        let seen = (0..KEYS).filter(|i| self.seen[q] >> i & 1 == 1);
        let products = seen.map(|i| f64::from(self.weights[q * KEYS + i]) * f64::from(self.page.row(i)[c]));
        let before = f64::from(self.factors[q]) * f64::from(self.before[q * self.d + c]);
        let magnitude: f64 = products.clone().map(f64::abs).sum();
        (before + products.sum::<f64>(), magnitude + before.abs())
    }

    fn check(&self, kernels: &'static Kernels) {
        let got = self.add(kernels).expect("all values are finite");
        for (at, got) in got.into_iter().enumerate() {
            let (expected, magnitude) = self.expected(at / self.d, at % self.d);
            let bound = (2.0 * U + U * U + 1e-5) * magnitude;
            assert!(
                (f64::from(got) - expected).abs() <= bound,
                "{:?} element {at}: {got} instead of {expected} +- {bound}",
                kernels.isa
            );
        }
    }
}

#[test]
fn tile_values_have_8_bits_and_ignore_hidden_cells() {
    for kernels in tile_kernels() {
        for (n, n_values, d) in SIZES {
            TYPES
                .iter()
                .for_each(|&ty| Sums::new(ty, n, n_values, d).check(kernels));
        }
        for d in ODD {
            Sums::new(GgmlType::F16, 33, 40, d).check(kernels);
        }
    }
}

#[test]
fn tile_values_add_several_pages() {
    let (n, d) = (33, 80);
    for kernels in tile_kernels() {
        let pages = [Page::new(GgmlType::F16, KEYS, d, 1), Page::new(GgmlType::F16, 20, d, 2)];
        let (mut values, mut memory) = (
            vec![0xff; kernels.tiled_attention().bytes_of_values(d, 3)],
            vec![f32::NAN; scratch(d)],
        );
        let mut weights = vec![0xff; kernels.tiled_attention().bytes_of_weights(n, 3)];
        let start = weights.as_ptr().align_offset(64);
        let weight = |q: usize, i: usize| ((q * 7 + i * 5) % 13) as f32 / 16.0;
        for q in 0..n {
            for i in KEYS..3 * KEYS {
                let at = start + q * weight_stride(3) + 2 * i;
                weights[at..at + 2].copy_from_slice(&bf16::from_f32(weight(q, i)).to_le_bytes());
            }
        }
        let mut out = vec![1.0; n * d];
        // SAFETY: the CPU supports `kernels` (see `tile_kernels`).
        unsafe {
            for (i, page) in pages.iter().enumerate() {
                let at = OperandPage {
                    page: 1 + i,
                    n_pages: 3,
                };
                assert!(pack_values_with(
                    kernels,
                    &page.rows(),
                    u64::MAX,
                    at,
                    &mut values,
                    &mut memory
                ));
            }
            let operands = ValueOperands {
                values: &values,
                d,
                n_pages: 3,
                pages: 1..3,
                weights: &weights,
                factors: &vec![0.5; n],
            };
            add_values_with(kernels, &operands, &mut out, &mut memory);
        }
        for (at, got) in out.into_iter().enumerate() {
            let (q, c) = (at / d, at % d);
            let of_page = |p: usize, i: usize| weight(q, (p + 1) * KEYS + i) * pages[p].row(i)[c];
            let products = (0..KEYS).map(|i| of_page(0, i)).chain((0..20).map(|i| of_page(1, i)));
            let magnitude = 0.5 + products.clone().map(f32::abs).sum::<f32>();
            let expected = 0.5 + products.sum::<f32>();
            assert!(
                (got - expected).abs() <= (U as f32 + 1e-5) * magnitude,
                "query {q} column {c}: {got}, {expected}"
            );
        }
    }
}

/// Checks that non-finite values are rejected, because zero times infinity is not zero. The f32 kernels,
/// which skip hidden cells, handle them.
#[test]
fn pack_values_rejects_non_finite_rows() {
    for kernels in tile_kernels() {
        let mut sums = Sums::new(GgmlType::F32, 33, 40, 40);
        sums.seen.fill(u64::MAX >> 30);
        sums.page.spoil(&[!(1 << 7)]);
        assert_eq!(sums.add(kernels), None);
        sums.seen.fill(1);
        assert!(sums.add(kernels).is_some());
    }
}

/// Checks that the result of a query depends neither on other queries nor on its position in the operand.
#[test]
fn tile_attention_query_bits_are_independent() {
    let (n, d) = (70, 80);
    for kernels in tile_kernels() {
        let page = Page::new(GgmlType::F16, KEYS, d, 9);
        let queries = noise(10, n * d);
        let all = products(kernels, &page, 0, &queries, d);
        for q in [0, 31, 32, 69] {
            let alone = products(kernels, &page, 0, &queries[q * d..(q + 1) * d], d);
            assert_eq!(alone, all[q * KEYS..(q + 1) * KEYS]);
            assert_eq!(products(kernels, &page, q, &queries, d), all[q * KEYS..]);
        }
    }
}
