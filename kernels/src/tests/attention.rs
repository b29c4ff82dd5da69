//! Tests of attention to one page of keys.

use super::*;
use crate::attention::{CacheRows, KEYS, add_values_with, scores_with, scratch, softmax_step_with};

pub(super) const TYPES: [GgmlType; 5] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q8_0,
    GgmlType::Q4_0,
];

/// Visible cells of a page per token: everything, a prefix, holes, a single cell at either end, nothing.
const SEEN: [u64; 7] = [u64::MAX, 0x1ff, 0xf0f0_0000_8001_0ff0, 1, 1 << 63, 0, u64::MAX >> 3];

/// A page of noise with its dequantized values.
pub(super) struct Page {
    ty: GgmlType,
    bytes: Vec<u8>,
    stride: usize,
    n: usize,
    d: usize,
    floats: Vec<f32>,
}

impl Page {
    pub(super) fn new(ty: GgmlType, n: usize, d: usize, seed: u64) -> Page {
        let row_bytes = ty.row_bytes(d).unwrap();
        // Tests rows that are neither contiguous nor aligned.
        let stride = row_bytes + 3;
        let (mut bytes, mut floats) = (vec![0xff; n * stride], vec![0.0; n * d]);
        let rows = bytes.chunks_exact_mut(stride).zip(floats.chunks_exact_mut(d));
        for ((bytes, floats), x) in rows.zip(noise(seed, n * d).chunks_exact(d)) {
            crate::quantize_row(ty, x, &mut bytes[..row_bytes]);
            crate::dequantize_row(ty, &bytes[..row_bytes], floats);
        }
        Page {
            ty,
            bytes,
            stride,
            n,
            d,
            floats,
        }
    }

    pub(super) fn rows(&self) -> CacheRows<'_> {
        CacheRows {
            ty: self.ty,
            bytes: &self.bytes,
            stride: self.stride,
            heads: 1,
            head_stride: self.stride,
            n: self.n,
            d: self.d,
            next: &self.bytes,
        }
    }

    /// Returns the rows as rows of several heads of `d` elements.
    fn rows_of(&self, heads: usize, d: usize) -> CacheRows<'_> {
        CacheRows {
            heads,
            head_stride: self.ty.row_bytes(d).unwrap(),
            d,
            ..self.rows()
        }
    }

    /// Fills the rows that no token sees with bytes that are NaN in every type.
    pub(super) fn spoil(&mut self, seen: &[u64]) {
        let any = seen.iter().fold(0, |any, seen| any | seen);
        for (i, row) in self.bytes.chunks_exact_mut(self.stride).enumerate() {
            if any >> i & 1 == 0 {
                row.fill(0xff);
            }
        }
    }

    /// Sets an element of an F32 page.
    pub(super) fn set(&mut self, i: usize, c: usize, x: f32) {
        assert!(self.ty == GgmlType::F32);
        self.floats[i * self.d + c] = x;
        self.bytes[i * self.stride + 4 * c..][..4].copy_from_slice(&x.to_le_bytes());
    }

    /// Sets all elements of an F32 page.
    pub(super) fn fill(&mut self, x: f32) {
        (0..self.n).for_each(|i| (0..self.d).for_each(|c| self.set(i, c, x)));
    }

    pub(super) fn row(&self, i: usize) -> &[f32] {
        &self.floats[i * self.d..(i + 1) * self.d]
    }
}

/// Attention results of the queries: largest score, sum of weights, and weighted values.
#[derive(Debug, PartialEq)]
struct Results {
    max: Vec<f32>,
    sum: Vec<f32>,
    values: Vec<f32>,
}

/// Computes attention of queries to some pages of keys and values, with the same number of queries per token.
fn attend(kernels: &'static Kernels, pages: &[(Page, Page)], seen: &[u64], queries: &[f32]) -> Results {
    let pages: Vec<_> = pages
        .iter()
        .map(|(keys, values)| [keys.rows(), values.rows()])
        .collect();
    attend_to(kernels, &pages, seen, queries)
}

/// Computes attention like [`attend`] for one or several heads.
fn attend_to(kernels: &'static Kernels, pages: &[[CacheRows<'_>; 2]], seen: &[u64], queries: &[f32]) -> Results {
    let [dk, dv] = pages[0].map(|rows| rows.d);
    let n = queries.len() / dk;
    let mut scratch = vec![f32::NAN; scratch(dk).max(scratch(dv))];
    let (mut scores, mut factors) = (vec![f32::NAN; n * KEYS], vec![f32::NAN; n]);
    let mut r = Results {
        max: vec![f32::NEG_INFINITY; n],
        sum: vec![0.0; n],
        values: vec![0.0; n * dv],
    };
    let any = seen.iter().fold(0, |any, seen| any | seen);
    for [keys, values] in pages {
        // The mask is repeated for each head.
        let seen_by_all = seen.repeat(keys.heads);
        // SAFETY: the CPU supports `kernels` (see `all_kernels`).
        unsafe {
            scores_with(kernels, keys, any, queries, &mut scores, &mut scratch);
            softmax_step_with(kernels, &mut scores, &seen_by_all, &mut r.max, &mut r.sum, &mut factors);
            add_values_with(kernels, values, seen, &scores, &factors, &mut r.values, &mut scratch);
        }
    }
    r
}

/// Returns pages whose cells that no token sees are NaN.
fn pages(ty: GgmlType, n: usize, dk: usize, dv: usize, seen: &[u64]) -> Vec<(Page, Page)> {
    (0..3)
        .map(|i| {
            let (mut keys, mut values) = (Page::new(ty, n, dk, 2 * i), Page::new(ty, n, dv, 2 * i + 1));
            keys.spoil(seen);
            values.spoil(seen);
            (keys, values)
        })
        .collect()
}

/// Computes attention of one query in double precision: the sum of weights `e^score` and the weighted values.
fn reference(pages: &[(Page, Page)], seen: u64, query: &[f32]) -> (f64, Vec<f64>) {
    let dv = pages[0].1.d;
    let (mut sum, mut out) = (0.0, vec![0.0; dv]);
    for (keys, values) in pages {
        for i in (0..keys.n).filter(|i| seen >> i & 1 == 1) {
            let score: f64 = keys
                .row(i)
                .iter()
                .zip(query)
                .map(|(k, q)| f64::from(*k) * f64::from(*q))
                .sum();
            sum += score.exp();
            for (out, v) in out.iter_mut().zip(values.row(i)) {
                *out += score.exp() * f64::from(*v);
            }
        }
    }
    (sum, out)
}

fn check(kernels: &'static Kernels, ty: GgmlType, n: usize, [dk, dv]: [usize; 2], n_tokens: usize, group: usize) {
    let existing = if n < KEYS { (1 << n) - 1 } else { u64::MAX };
    let seen: Vec<u64> = (0..n_tokens)
        .map(|t| SEEN[(t * t + n) % SEEN.len()] & existing)
        .collect();
    let pages = pages(ty, n, dk, dv, &seen);
    let queries: Vec<f32> = noise(9, n_tokens * group * dk).iter().map(|x| 0.5 * x).collect();
    let found = attend(kernels, &pages, &seen, &queries);
    let what = format!(
        "{:?} {ty} {n} cells, {dk} and {dv}, {n_tokens} tokens of {group}",
        kernels.isa
    );
    for (q, query) in queries.chunks_exact(dk).enumerate() {
        let seen = seen[q / group];
        let values = &found.values[q * dv..(q + 1) * dv];
        if seen == 0 {
            assert!(
                found.sum[q] == 0.0 && values.iter().all(|v| *v == 0.0),
                "{what}: query {q}"
            );
            continue;
        }
        let (sum, expected) = reference(&pages, seen, query);
        let scale = f64::from(found.max[q]).exp();
        let magnitude = 4.0 * sum * (1.0 + f64::from(found.max[q]).abs());
        assert_close(&what, (f64::from(found.sum[q]) * scale) as f32, sum, magnitude);
        for (v, expected) in values.iter().zip(&expected) {
            assert_close(&what, (f64::from(*v) * scale) as f32, *expected, magnitude);
        }
        // A query must have the same bits alone and together with other queries.
        let alone = attend(kernels, &pages, &[seen], query);
        assert!(
            alone.max[0] == found.max[q] && alone.sum[0] == found.sum[q] && alone.values == values,
            "{what}: query {q} alone has a different result"
        );
    }
}

#[test]
fn attention_matches_f64_for_visible_cells() {
    for kernels in all_kernels() {
        for ty in TYPES {
            let mut sizes = vec![[64, 64], [96, 32], [128, 256]];
            if !ty.is_quantized() {
                sizes.extend([[1, 5], [80, 72], [100, 33], [576, 512]]);
            }
            for size in sizes {
                for (n_tokens, group) in [(1, 1), (1, 3), (2, 2), (7, 1), (3, 5), (6, 8)] {
                    check(kernels, ty, 64, size, n_tokens, group);
                }
                for n in [1, 5, 63] {
                    check(kernels, ty, n, size, 2, 3);
                }
            }
        }
    }
}

/// Checks that heads with adjacent rows give the same results as each head alone, for few and many queries
/// and masks with holes.
#[test]
fn attention_adjacent_heads_match_single_heads() {
    const HEADS: usize = 3;
    for kernels in all_kernels() {
        for ty in TYPES {
            for (n, n_tokens, group) in [(64, 1, 1), (64, 1, 3), (37, 2, 4), (64, 3, 8), (5, 1, 7)] {
                let (d, n_queries) = (64, n_tokens * group);
                let existing = if n < KEYS { (1 << n) - 1 } else { u64::MAX };
                let seen: Vec<u64> = (0..n_tokens).map(|t| SEEN[t] & existing).collect();
                let (all, each) = heads_of_pages::<HEADS>(ty, n, d);
                let queries = noise(9, HEADS * n_queries * d);
                let found = attend_to(
                    kernels,
                    &[all.each_ref().map(|page| page.rows_of(HEADS, d))],
                    &seen,
                    &queries,
                );
                for (head, [keys, values]) in each.iter().enumerate() {
                    let of_head = head * n_queries * d..(head + 1) * n_queries * d;
                    let alone = attend_to(
                        kernels,
                        &[[keys.rows(), values.rows()]],
                        &seen,
                        &queries[of_head.clone()],
                    );
                    let what = format!(
                        "{:?} {ty} {n} cells, {n_tokens} tokens of {group}, head {head}",
                        kernels.isa
                    );
                    let of_queries = head * n_queries..(head + 1) * n_queries;
                    assert_eq!(found.max[of_queries.clone()], alone.max, "{what}");
                    assert_eq!(found.sum[of_queries], alone.sum, "{what}");
                    assert_eq!(found.values[of_head], alone.values, "{what}");
                }
            }
        }
    }
}

/// Keys and values of `N` heads with adjacent rows, and separately of each head.
fn heads_of_pages<const N: usize>(ty: GgmlType, n: usize, d: usize) -> ([Page; 2], [[Page; 2]; N]) {
    let all = [1, 2].map(|seed| Page::new(ty, n, N * d, seed));
    let row_bytes = ty.row_bytes(d).unwrap();
    let each = std::array::from_fn(|head| {
        all.each_ref().map(|all| {
            let mut page = Page::new(ty, n, d, 3);
            for (to, from) in page
                .bytes
                .chunks_exact_mut(page.stride)
                .zip(all.bytes.chunks_exact(all.stride))
            {
                to[..row_bytes].copy_from_slice(&from[head * row_bytes..(head + 1) * row_bytes]);
            }
            page
        })
    });
    (all, each)
}

/// Checks that an earlier token ignores the value of a later token even if that is NaN.
#[test]
fn attention_ignores_nan_in_hidden_values() {
    for kernels in all_kernels() {
        for ty in TYPES {
            let seen = [1, 3];
            let mut pages = pages(ty, 2, 64, 64, &seen);
            for (keys, values) in &mut pages {
                let stride = keys.stride;
                keys.bytes[stride..].fill(0xff);
                values.bytes[stride..].fill(0xff);
            }
            let queries = noise(9, 2 * 64);
            let found = attend(kernels, &pages, &seen, &queries);
            let alone = attend(kernels, &pages, &seen[..1], &queries[..64]);
            assert!(alone.values.iter().all(|v| v.is_finite()), "{:?} {ty}", kernels.isa);
            assert_eq!(found.values[..64], alone.values, "{:?} {ty}", kernels.isa);
        }
    }
}

/// Uses scores that are far apart or minus infinity.
#[test]
fn softmax_step_handles_extreme_scores() {
    for kernels in all_kernels() {
        let mut scores = vec![f32::NEG_INFINITY; 2 * KEYS];
        scores[KEYS..KEYS + 3].copy_from_slice(&[3000.0, -3000.0, 2999.0]);
        let (mut max, mut sum, mut factors) = ([f32::NEG_INFINITY, 2000.0], [0.0, 1.0], [f32::NAN; 2]);
        // SAFETY: the CPU supports `kernels` (see `all_kernels`).
        unsafe { softmax_step_with(kernels, &mut scores, &[u64::MAX], &mut max, &mut sum, &mut factors) };
        assert_eq!(
            (max, factors),
            ([f32::NEG_INFINITY, 3000.0], [1.0, 0.0]),
            "{:?}",
            kernels.isa
        );
        assert_eq!(sum[0], 0.0);
        assert!(scores[..KEYS].iter().all(|weight| *weight == 0.0));
        assert_close("sum", sum[1], 1.0 + (-1f64).exp(), 2.0);
        assert_close("weight", scores[KEYS + 2], (-1f64).exp(), 1.0);
        assert!(scores[KEYS + 1] < 2e-38 && scores[KEYS] == 1.0);
    }
}
