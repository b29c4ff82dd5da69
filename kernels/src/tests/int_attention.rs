//! Tests of attention with 16-bit integers against sums in f64.

use std::ops::Range;

use super::attention::{Page, TYPES};
use super::*;
use crate::attention::KEYS;
use crate::attention::tiles::{
    OperandPage, ScoreOperands, SoftmaxState, ValueOperands, WeightOperands, add_values_with, n_scores, pack_keys_with,
    pack_queries_with, pack_values_with, score_stride, scores_with, scratch, weights_with,
};
use crate::dispatch::INT_ATTENTION_MODEL;

fn int_kernels() -> impl Iterator<Item = &'static Kernels> {
    let by_integers = |kernels: &&'static Kernels| kernels.attention_tiles.is_some() && kernels.tile_unit.is_none();
    std::iter::once(&INT_ATTENTION_MODEL).chain(all_kernels().filter(by_integers))
}

/// Number of queries, keys of the second page, elements of a key, and elements of a value.
const SIZES: [(usize, usize, usize, usize); 8] = [
    (1, 1, 32, 32),
    (2, 15, 64, 64),
    (31, 64, 64, 128),
    (32, 33, 96, 96),
    (33, 16, 128, 80),
    (70, 64, 256, 256),
    (17, 40, 1, 40),
    (33, 31, 80, 1),
];

/// Pages of an operand that are tested; the first page is empty.
const N_PAGES: usize = 3;
const PAGES: Range<usize> = 1..N_PAGES;

/// Number of queries per token.
const GROUP: usize = 3;

/// Attention of some queries to two pages.
struct Case {
    d: usize,
    dv: usize,
    queries: Vec<f32>,
    keys: Vec<Page>,
    values: Vec<Page>,
    /// Cells of each page that each token sees.
    seen: Vec<u64>,
}

/// Softmax state and results of some queries.
struct Gathered {
    max: Vec<f32>,
    sum: Vec<f32>,
    factors: Vec<f32>,
    values: Vec<f32>,
}

impl Case {
    fn new(ty: GgmlType, (n, n_keys, d, dv): (usize, usize, usize, usize)) -> Case {
        let page = |n, d, seed| Page::new(ty, n, d, seed);
        let mut seen = vec![0; n.div_ceil(GROUP) * N_PAGES];
        for (i, seen) in seen.iter_mut().enumerate() {
            let existing = match i % N_PAGES {
                0 => 0,
                1 => u64::MAX,
                _ => u64::MAX >> (KEYS - n_keys),
            };
            // The first token sees one cell of a page, the second token all cells, and the remaining tokens
            // some cells.
            *seen = existing
                & match i / N_PAGES {
                    0 => u64::from(i % N_PAGES == 1),
                    1 => u64::MAX,
                    t => (t as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
                };
        }
        Case {
            d,
            dv,
            queries: noise(4, n * d),
            keys: vec![page(KEYS, d, 3), page(n_keys, d, 5)],
            values: vec![page(KEYS, dv, 6), page(n_keys, dv, 7)],
            seen,
        }
    }

    fn n(&self) -> usize {
        self.queries.len() / self.d
    }

    fn any(&self, page: usize) -> u64 {
        self.seen
            .iter()
            .skip(page)
            .step_by(N_PAGES)
            .fold(0, |any, seen| any | seen)
    }

    /// Packs keys and values. Returns `None` if an element is not finite.
    fn prepare(&self, kernels: &'static Kernels) -> Option<[Vec<u8>; 2]> {
        let tiles = kernels.tiled_attention();
        let (mut keys, mut values) = (
            vec![0xff; tiles.bytes_of_keys(self.d, N_PAGES)],
            vec![0xff; tiles.bytes_of_values(self.dv, N_PAGES)],
        );
        let mut memory = vec![f32::NAN; scratch(self.d.max(self.dv))];
        for page in PAGES {
            let (mask, at) = (self.any(page), OperandPage { page, n_pages: N_PAGES });
            let (k, v) = (self.keys[page - 1].rows(), self.values[page - 1].rows());
            // SAFETY: the CPU supports `kernels` (see `int_kernels`).
            let is_finite = unsafe {
                pack_keys_with(kernels, &k, mask, at, &mut keys, &mut memory)
                    && pack_values_with(kernels, &v, mask, at, &mut values, &mut memory)
            };
            if !is_finite {
                return None;
            }
        }
        Some([keys, values])
    }

    /// Computes the scores of all queries with packed keys.
    fn scores(&self, kernels: &'static Kernels, keys: &[u8]) -> Vec<f32> {
        let (n, tiles) = (self.n(), kernels.tiled_attention());
        let mut queries = vec![0xff; tiles.bytes_of_queries(n, self.d)];
        let mut out = vec![f32::NAN; n_scores(n, N_PAGES)];
        let mask: Vec<u64> = (0..N_PAGES).map(|page| self.any(page)).collect();
        // SAFETY: the CPU supports `kernels` (see `int_kernels`).
        unsafe {
            pack_queries_with(kernels, &self.queries, self.d, &mut queries);
            let operands = ScoreOperands {
                keys,
                d: self.d,
                mask: &mask,
                queries: &queries,
                first: 0,
                n,
            };
            scores_with(kernels, &operands, &mut out);
        }
        out
    }

    /// Computes the results for these scores, starting from a previous softmax state.
    fn gather(&self, kernels: &'static Kernels, scores: &[f32], values: &[u8]) -> Gathered {
        self.gather_onto(0.25, kernels, scores, values)
    }

    /// Computes the results for these scores, starting from the state `before`.
    fn gather_onto(&self, before: f32, kernels: &'static Kernels, scores: &[f32], values: &[u8]) -> Gathered {
        let (n, tiles) = (self.n(), kernels.tiled_attention());
        let mut weights = vec![0xff; tiles.bytes_of_weights(n, N_PAGES)];
        let mut memory = vec![f32::NAN; scratch(self.dv)];
        let mut all = Gathered {
            max: vec![-3.0; n],
            sum: vec![0.5; n],
            factors: vec![f32::NAN; n],
            values: vec![before; n * self.dv],
        };
        let operands = WeightOperands {
            scores: &mut scores.to_vec(),
            n_pages: N_PAGES,
            pages: PAGES,
            seen: &self.seen,
            group: GROUP,
            before: 0,
            values,
            d: self.dv,
            running: SoftmaxState {
                max: &mut all.max,
                sum: &mut all.sum,
                factors: &mut all.factors,
            },
        };
        // SAFETY: the CPU supports `kernels` (see `int_kernels`).
        unsafe {
            weights_with(kernels, operands, &mut weights);
            let operands = ValueOperands {
                values,
                d: self.dv,
                n_pages: N_PAGES,
                pages: PAGES,
                weights: &weights,
                factors: &all.factors,
            };
            add_values_with(kernels, &operands, &mut all.values, &mut memory);
        }
        all
    }

    /// Yields the page and cell of everything that query `q` sees.
    fn seen_by(&self, q: usize) -> Vec<(usize, usize)> {
        let words = &self.seen[q / GROUP * N_PAGES..][..N_PAGES];
        let cells = PAGES.flat_map(|page| (0..KEYS).map(move |i| (page, i)));
        cells.filter(|&(page, i)| words[page] >> i & 1 == 1).collect()
    }

    fn check_scores(&self, kernels: &'static Kernels, scores: &[f32]) {
        let largest = |x: &[f32]| x.iter().fold(0.0f32, |a, x| a.max(x.abs()));
        let max = ((1u64 << 31) as f64 / self.d as f64).sqrt().min(32767.0).floor() - 1.0;
        for (q, query) in self.queries.chunks_exact(self.d).enumerate() {
            for (page, i) in self.seen_by(q) {
                let key = self.keys[page - 1].row(i);
                // The error bound is half a quantization step of either operand, and of both.
                let steps = [largest(query), largest(key)].map(|x| f64::from(x) / max / 2.0);
                let (mut expected, mut bound) = (0.0, 1e-37);
                for (x, y) in query.iter().zip(key).map(|(x, y)| (f64::from(*x), f64::from(*y))) {
                    expected += x * y;
                    bound += x.abs() * steps[1] + y.abs() * steps[0] + steps[0] * steps[1] + 1e-6 * (x * y).abs();
                }
                let got = f64::from(scores[q * score_stride(N_PAGES) + page * KEYS + i]);
                assert!(
                    (got - expected).abs() <= bound,
                    "{:?} query {q} of {}, page {page} key {i}: {got} instead of {expected} +- {bound}",
                    kernels.isa,
                    self.d
                );
            }
        }
    }

    fn check_gathered(&self, kernels: &'static Kernels, scores: &[f32], got: &Gathered) {
        for q in 0..self.n() {
            let seen = self.seen_by(q);
            let score = |&(page, i): &(usize, usize)| scores[q * score_stride(N_PAGES) + page * KEYS + i];
            let max = seen.iter().map(score).fold(-3.0, f32::max);
            assert_eq!(got.max[q], max, "{:?} query {q}", kernels.isa);
            let weight = |score: f32| f64::from(score - max).exp();
            let before = f64::from(-3.0 - max).exp();
            let sum = 0.5 * before + seen.iter().map(|at| weight(score(at))).sum::<f64>();
            let off = (f64::from(got.sum[q]) - sum).abs();
            let steps = seen.len() as f64 / 8191.0 / 2.0;
            assert!(
                off <= 3e-5 * sum + steps,
                "{:?} query {q}: {}, {sum}",
                kernels.isa,
                got.sum[q]
            );
            // Values are off by half a step of their largest element. Weights times these steps are off by half a step
            // of the largest product of the page.
            let mut expected = vec![0.25 * before; self.dv];
            let mut bound = vec![1e-5 * (0.25 * before) + 1e-36; self.dv];
            for page in PAGES {
                let cells = seen.iter().filter(|at| at.0 == page);
                let row = |at: &(usize, usize)| self.values[page - 1].row(at.1);
                let step = |at| f64::from(row(at).iter().fold(0.0f32, |a, x| a.max(x.abs()))) / 4095.0;
                let scaled = cells.clone().map(|at| weight(score(at)) * step(at));
                let largest = scaled.fold(0.0, f64::max) / 8191.0 / 2.0;
                for at in cells {
                    let (weight, step) = (weight(score(at)), step(at));
                    for (c, value) in row(at).iter().map(|x| f64::from(*x)).enumerate() {
                        expected[c] += weight * value;
                        let steps = if step > 0.0 { value.abs() / step } else { 0.0 };
                        bound[c] += (steps + 0.5) * largest + 4e-5 * weight * value.abs() + weight * step / 2.0;
                    }
                }
            }
            for c in 0..self.dv {
                let got = f64::from(got.values[q * self.dv + c]);
                assert!(
                    (got - expected[c]).abs() <= bound[c],
                    "{:?} query {q} column {c}: {got} instead of {} +- {}",
                    kernels.isa,
                    expected[c],
                    bound[c]
                );
            }
        }
    }
}

#[test]
fn int_attention_error_is_bounded_by_half_steps() {
    for kernels in int_kernels() {
        for sizes in SIZES {
            let has_blocks = |ty: GgmlType| ty.row_bytes(sizes.2).is_none() || ty.row_bytes(sizes.3).is_none();
            for &ty in TYPES.iter().filter(|&&ty| !has_blocks(ty)) {
                let mut case = Case::new(ty, sizes);
                // Cells that no token sees must not be read.
                for page in PAGES {
                    let any = case.any(page);
                    case.keys[page - 1].spoil(&[any]);
                    case.values[page - 1].spoil(&[any]);
                }
                let [keys, values] = case.prepare(kernels).expect("all visible keys and values are finite");
                let scores = case.scores(kernels, &keys);
                case.check_scores(kernels, &scores);
                let got = case.gather(kernels, &scores, &values);
                case.check_gathered(kernels, &scores, &got);
            }
        }
    }
}

/// Checks that rows that a query does not see change nothing, not even the rounding of its result.
#[test]
fn int_attention_ignores_hidden_values() {
    for kernels in int_kernels() {
        let mut case = Case::new(GgmlType::F32, (33, KEYS, 80, 40));
        let [keys, values] = case.prepare(kernels).expect("keys and values are finite");
        let scores = case.scores(kernels, &keys);
        let before = case.gather(kernels, &scores, &values);
        let hidden = |case: &Case, q| (0..KEYS).find(|i| !case.seen_by(q).contains(&(2, *i)));
        let mut n_hidden = 0;
        for q in 0..case.n() {
            let Some(i) = hidden(&case, q) else { continue };
            n_hidden += 1;
            for x in [1e30, 0.0] {
                case.values[1].set(i, 3, x);
                let [_, values] = case.prepare(kernels).expect("keys and values are finite");
                let after = case.gather(kernels, &scores, &values);
                let of_query = |all: &Gathered| (all.sum[q], all.values[q * 40..(q + 1) * 40].to_vec());
                assert_eq!(
                    of_query(&after),
                    of_query(&before),
                    "{:?} query {q}, cell {i}: {x}",
                    kernels.isa
                );
            }
            case = Case::new(GgmlType::F32, (33, KEYS, 80, 40));
        }
        assert!(n_hidden > 20, "{n_hidden}");
    }
}

/// Uses the largest elements, weights, and values, which give the largest integer sums.
#[test]
fn int_attention_largest_operands_do_not_overflow() {
    for kernels in int_kernels() {
        for d in [1, 2, 64, 100, 128, 256, 576] {
            let mut case = Case::new(GgmlType::F32, (32, KEYS, d, 40));
            case.queries.fill(2.0);
            case.keys.iter_mut().for_each(|page| page.fill(-3.0));
            case.values.iter_mut().for_each(|page| page.fill(5.0));
            case.seen
                .chunks_exact_mut(N_PAGES)
                .for_each(|seen| seen.copy_from_slice(&[0, u64::MAX, u64::MAX]));
            let [keys, values] = case.prepare(kernels).expect("keys and values are finite");
            let scores = case.scores(kernels, &keys);
            case.check_scores(kernels, &scores);
            let got = case.gather(kernels, &scores, &values);
            case.check_gathered(kernels, &scores, &got);
        }
    }
}

/// Checks that a page with negligible weights adds nothing, because arithmetic on subnormal numbers is a
/// hundred times slower on some CPUs.
#[test]
fn int_attention_tiny_weights_give_no_subnormals() {
    for kernels in int_kernels() {
        let mut case = Case::new(GgmlType::F32, (32, KEYS, 64, 40));
        case.values[0].fill(0.0);
        case.seen
            .chunks_exact_mut(N_PAGES)
            .for_each(|seen| seen.copy_from_slice(&[0, u64::MAX, u64::MAX]));
        let [_, values] = case.prepare(kernels).expect("keys and values are finite");
        let mut scores = vec![0.0; n_scores(case.n(), N_PAGES)];
        for below in 60..110 {
            for of_query in scores.chunks_mut(score_stride(N_PAGES)) {
                of_query[2 * KEYS..3 * KEYS].fill(-below as f32);
            }
            let got = case.gather_onto(0.0, kernels, &scores, &values);
            let are_fine = got.values.iter().all(|x| *x == 0.0 || x.is_normal());
            assert!(are_fine, "{:?}: scores {below} below the largest", kernels.isa);
            assert!(below > 70 || got.values.iter().any(|x| *x != 0.0), "{below}");
        }
    }
}

#[test]
fn pack_rejects_visible_non_finite_rows() {
    for kernels in int_kernels() {
        for x in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let sizes = (33, 40, 80, 40);
            let mut case = Case::new(GgmlType::F32, sizes);
            case.keys[1].set(7, 3, x);
            assert!(case.prepare(kernels).is_none(), "{:?} key {x}", kernels.isa);
            case.seen.iter_mut().for_each(|seen| *seen &= !(1 << 7));
            assert!(case.prepare(kernels).is_some(), "{:?} key {x}", kernels.isa);
            let mut case = Case::new(GgmlType::F32, sizes);
            case.values[1].set(7, 39, x);
            assert!(case.prepare(kernels).is_none(), "{:?} value {x}", kernels.isa);
        }
    }
}

/// Checks that a non-finite query has no finite score and does not affect other queries.
#[test]
fn int_attention_non_finite_query_is_isolated() {
    for kernels in int_kernels() {
        let mut case = Case::new(GgmlType::F16, (33, 40, 80, 40));
        let [keys, _] = case.prepare(kernels).expect("keys and values are finite");
        let before = case.scores(kernels, &keys);
        case.queries[80 * 9 + 5] = f32::INFINITY;
        let after = case.scores(kernels, &keys);
        for q in 0..case.n() {
            for (page, i) in case.seen_by(q) {
                let at = q * score_stride(N_PAGES) + page * KEYS + i;
                if q == 9 {
                    assert!(after[at].is_nan());
                } else {
                    assert_eq!(after[at], before[at]);
                }
            }
        }
    }
}
