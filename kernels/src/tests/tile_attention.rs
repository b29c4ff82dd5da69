//! Attention to a page by tiles, with a model of the unit and, where the CPU has it, with the unit itself.

use super::attention::{Page, TYPES};
use super::tiles::{U, tile_kernels};
use super::*;
use crate::attention::KEYS;
use crate::attention::tiles::{
    ScoreOperands, add_values_with, bytes_of_keys, bytes_of_queries, bytes_of_values, put_keys_with, put_queries_with,
    put_values_with, scores_with, scratch,
};

/// Queries, keys, and elements of a row: tiles that are full and such that are not.
const SIZES: [(usize, usize, usize); 6] = [
    (1, 1, 32),
    (31, 64, 64),
    (32, 33, 96),
    (33, 16, 128),
    (96, 63, 64),
    (70, 64, 256),
];

/// Elements of rows for types without blocks.
const ODD: [usize; 3] = [1, 40, 80];

/// Products of the queries from query `first` on with the keys of a page.
fn products(kernels: &'static Kernels, page: &Page, first: usize, queries: &[f32], d: usize) -> Vec<f32> {
    let all = queries.len() / d;
    let n = all - first;
    let (mut operand, mut out) = (
        vec![0xff; bytes_of_queries(first + n.next_multiple_of(32), d)],
        vec![f32::NAN; n * KEYS],
    );
    let (mut keys, mut memory) = (vec![0xff; bytes_of_keys(d)], vec![f32::NAN; scratch(d, n)]);
    // SAFETY: the CPU has the instructions.
    unsafe {
        put_queries_with(kernels, queries, d, &mut operand);
        put_keys_with(kernels, &page.rows(), u64::MAX, &mut keys, &mut memory);
        let operands = ScoreOperands {
            keys: &keys,
            d,
            wanted: u64::MAX,
            queries: &operand,
            first,
            n,
        };
        scores_with(kernels, &operands, &mut out, &mut memory);
    }
    out
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
            // What the two parts of a query and those of a key leave over, and the product that is left out. Then the additions.
            let bound = (3.0 * U * U + (18 + 3 * d / 32) as f64 * 2f64.powi(-23)) * magnitude + 1e-37;
            let (got, expected) = (f64::from(got[q * KEYS + i]), products.sum::<f64>());
            assert!(
                (got - expected).abs() <= bound,
                "{:?} {ty} {n} queries of {d}, {n_keys} keys, query {q} key {i}: {got} is not {expected} within {bound}",
                kernels.isa
            );
        }
    }
}

#[test]
fn products_with_keys_have_16_bits() {
    for kernels in tile_kernels() {
        for (n, n_keys, d) in SIZES {
            TYPES.iter().for_each(|&ty| check_scores(kernels, ty, n, n_keys, d));
        }
        for d in ODD {
            check_scores(kernels, GgmlType::F16, 33, 40, d);
        }
    }
}

/// Weights of queries, the sums so far, and the values to add.
struct Sums {
    page: Page,
    d: usize,
    seen: Vec<u64>,
    weights: Vec<f32>,
    factors: Vec<f32>,
    before: Vec<f32>,
}

impl Sums {
    /// `n` tokens that see about half of the values each; the last of them nobody sees.
    fn new(ty: GgmlType, n: usize, n_values: usize, d: usize) -> Sums {
        let there = u64::MAX >> (KEYS - n_values) >> 1;
        let seen: Vec<u64> = (0..n as u64)
            .map(|q| (q + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) & there)
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

    fn add(&self, kernels: &'static Kernels) -> Option<Vec<f32>> {
        let (mut out, mut memory) = (self.before.clone(), vec![f32::NAN; scratch(self.d, self.seen.len())]);
        let seen = self.seen.iter().fold(0, |any, seen| any | seen);
        let mut values = vec![0xff; bytes_of_values(self.d)];
        // SAFETY: the CPU has the instructions.
        unsafe {
            if !put_values_with(kernels, &self.page.rows(), seen, &mut values, &mut memory) {
                return None;
            }
            let (weights, factors) = (&self.weights, &self.factors);
            add_values_with(kernels, &values, self.d, weights, factors, &mut out, &mut memory);
        }
        Some(out)
    }

    /// The sum of query `q` at column `c`, and the magnitudes of the products.
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
                "{:?} element {at}: {got} is not {expected} within {bound}",
                kernels.isa
            );
        }
    }
}

#[test]
fn weighted_values_have_8_bits_and_nothing_unseen_gets_in() {
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

/// A weight of zero times infinity is no zero: such values are for the other kernel, which leaves out what is not seen.
#[test]
fn values_that_are_not_finite_are_refused() {
    for kernels in tile_kernels() {
        let mut sums = Sums::new(GgmlType::F32, 33, 40, 40);
        sums.seen.fill(u64::MAX >> 30);
        sums.page.spoil(&[!(1 << 7)]);
        assert_eq!(sums.add(kernels), None);
        sums.seen.fill(1);
        assert!(sums.add(kernels).is_some());
    }
}

/// What queries there are beside makes no difference to a query, and neither does where it lies in the operand.
#[test]
fn a_query_has_the_same_bits_alone_and_among_others() {
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
