//! Attention of many queries to pages, each query in a lane.

use super::attention::{Page, TYPES};
use super::*;
use crate::attention::KEYS;
use crate::attention::prompt::{Prompt, PromptPage};

/// What tokens see of a page: everything, a prefix, holes, single cells at the ends and in the middle, nothing, a suffix.
const SEEN: [u64; 9] = [
    u64::MAX,
    0x1ff,
    0xf0f0_0000_8001_0ff0,
    1,
    1 << 63,
    0,
    u64::MAX >> 3,
    1 << 31 | 1 << 32,
    u64::MAX << 41,
];

/// Tokens and queries of each.
const QUERIES: [(usize, usize); 9] = [
    (1, 1),
    (2, 1),
    (7, 1),
    (8, 3),
    (25, 1),
    (47, 1),
    (16, 3),
    (13, 5),
    (100, 1),
];

/// Results of the queries: their largest score, the sum of weights, and the weighted values.
#[derive(Debug, PartialEq)]
struct Results {
    max: Vec<f32>,
    sum: Vec<f32>,
    values: Vec<f32>,
}

/// Attends queries to some pages of keys and values, as many for each token.
fn attend(kernels: &'static Kernels, pages: &[(Page, Page)], seen: &[u64], queries: &[f32], softcap: f32) -> Results {
    let (dk, dv) = (pages[0].0.d, pages[0].1.d);
    let n = queries.len() / dk;
    let mut memory = vec![f32::NAN; Prompt::floats(n + 5, dk, dv)];
    // SAFETY: the CPU has the instructions.
    let mut prompt = unsafe { Prompt::with(kernels, &mut memory, n + 5, dk, dv) };
    prompt.set_queries(queries);
    for (keys, values) in pages {
        let page = PromptPage {
            keys: keys.rows(),
            values: values.rows(),
            seen,
            softcap,
        };
        assert!(prompt.attend(&page), "{:?}", kernels.isa);
    }
    results(&prompt, n, dv)
}

fn results(prompt: &Prompt<'_>, n: usize, dv: usize) -> Results {
    let mut r = Results {
        max: vec![f32::NAN; n],
        sum: vec![f32::NAN; n],
        values: vec![f32::NAN; n * dv],
    };
    prompt.put_results(&mut r.max, &mut r.sum, &mut r.values);
    r
}

/// Two pages with cells that are seen by nobody spoiled.
fn pages(ty: GgmlType, n: usize, [dk, dv]: [usize; 2], seen: &[u64]) -> Vec<(Page, Page)> {
    let page = |i: u64| {
        let (mut keys, mut values) = (Page::new(ty, n, dk, 2 * i), Page::new(ty, n, dv, 2 * i + 1));
        keys.spoil(seen);
        values.spoil(seen);
        (keys, values)
    };
    (0..2).map(page).collect()
}

/// Attention of one query in double precision: the scores that are seen with their cells' values.
fn truth<'a>(pages: &'a [(Page, Page)], seen: u64, query: &[f32], softcap: f32) -> Vec<(f64, &'a [f32])> {
    let mut all = Vec::new();
    for (keys, values) in pages {
        for i in (0..keys.n).filter(|i| seen >> i & 1 == 1) {
            let score: f64 = wide(keys.row(i)).zip(wide(query)).map(|(k, q)| k * q).sum();
            let cap = f64::from(softcap);
            all.push((
                if cap == 0.0 { score } else { cap * (score / cap).tanh() },
                values.row(i),
            ));
        }
    }
    all
}

/// Compares the results of one query.
fn check_query(what: &str, expected: &[(f64, &[f32])], max: f32, sum: f32, values: &[f32]) {
    if expected.is_empty() {
        let nothing = sum == 0.0 && max == f32::NEG_INFINITY && values.iter().all(|v| *v == 0.0);
        assert!(nothing, "{what}: {max} {sum} {values:?}");
        return;
    }
    let largest = expected
        .iter()
        .map(|(score, _)| *score)
        .fold(f64::NEG_INFINITY, f64::max);
    assert_close(what, max, largest, 8.0 * (1.0 + largest.abs()));
    // Relative to what was found to be largest.
    let weight = |score: f64| (score - f64::from(max)).exp();
    let total: f64 = expected.iter().map(|(score, _)| weight(*score)).sum();
    let magnitude = 4.0 * total * (1.0 + largest.abs());
    assert_close(what, sum, total, magnitude);
    for (c, v) in values.iter().enumerate() {
        let value = expected
            .iter()
            .map(|(score, row)| weight(*score) * f64::from(row[c]))
            .sum();
        assert_close(what, *v, value, magnitude);
    }
}

fn check(
    kernels: &'static Kernels,
    ty: GgmlType,
    n: usize,
    d: [usize; 2],
    (n_tokens, group): (usize, usize),
    softcap: f32,
) {
    let there = u64::MAX >> (KEYS - n);
    let seen: Vec<u64> = (0..n_tokens).map(|t| SEEN[(t * t + n) % SEEN.len()] & there).collect();
    let pages = pages(ty, n, d, &seen);
    let [dk, dv] = d;
    let queries: Vec<f32> = noise(9, n_tokens * group * dk).iter().map(|x| 0.5 * x).collect();
    let found = attend(kernels, &pages, &seen, &queries, softcap);
    for (q, query) in queries.chunks_exact(dk).enumerate() {
        let what = format!(
            "{:?} {ty} {n} cells of {d:?}, {n_tokens} tokens of {group}, query {q}",
            kernels.isa
        );
        let (seen, values) = (seen[q / group], &found.values[q * dv..][..dv]);
        check_query(
            &what,
            &truth(&pages, seen, query, softcap),
            found.max[q],
            found.sum[q],
            values,
        );
        // Alone, or with others: the same bits.
        if q % 11 == 3 {
            let alone = attend(kernels, &pages, &[seen], query, softcap);
            let same = alone.max[0] == found.max[q] && alone.sum[0] == found.sum[q] && alone.values == values;
            assert!(same, "{what}: alone it has another result");
        }
    }
}

#[test]
fn queries_in_lanes_attend_to_what_they_see() {
    for kernels in all_kernels() {
        for ty in TYPES {
            let quantized = ty.block_size() > 1;
            let sizes = [[64, 64], [128, 96], [256, 256]];
            let odd = [[1, 5], [40, 40], [80, 72], [576, 512]];
            for d in sizes.into_iter().chain(odd.into_iter().filter(|_| !quantized)) {
                for queries in if d[0] == 64 { &QUERIES[..] } else { &QUERIES[6..7] } {
                    check(kernels, ty, 64, d, *queries, 0.0);
                }
                for n in [1, 3, 4, 33, 63] {
                    check(kernels, ty, n, d, (5, 3), 0.0);
                }
            }
            check(kernels, ty, 64, [64, 64], (16, 3), 0.7);
        }
    }
}

/// All cells of the page by all queries, without a mask.
#[test]
fn queries_in_lanes_that_see_all() {
    for kernels in all_kernels() {
        for n in [4, 64] {
            let (d, all) = ([64, 80], u64::MAX >> (KEYS - n));
            let (pages, queries) = (pages(GgmlType::F16, n, d, &[all]), noise(9, 30 * 64));
            let found = attend(kernels, &pages, &[all; 30], &queries, 0.0);
            for (q, query) in queries.chunks_exact(64).enumerate() {
                let (what, values) = (format!("{:?} query {q}", kernels.isa), &found.values[q * 80..][..80]);
                check_query(
                    &what,
                    &truth(&pages, all, query, 0.0),
                    found.max[q],
                    found.sum[q],
                    values,
                );
            }
        }
    }
}

/// Weights far below those of others vanish, also next to very large values, and nothing overflows.
#[test]
fn scores_of_queries_in_lanes_may_be_far_apart() {
    for kernels in all_kernels() {
        let seen = [u64::MAX, 3, 0, u64::MAX << 9];
        let mut pages = pages(GgmlType::F32, 64, [8, 8], &seen);
        for (_, values) in &mut pages {
            values.bytes[9 * values.stride..][..4].copy_from_slice(&3e38f32.to_le_bytes());
            values.floats[9 * values.d] = 3e38;
        }
        let queries: Vec<f32> = noise(5, 4 * 8).iter().map(|x| 900.0 * x).collect();
        let found = attend(kernels, &pages, &seen, &queries, 0.0);
        for (q, query) in queries.chunks_exact(8).enumerate() {
            let expected = truth(&pages, seen[q], query, 0.0);
            let what = format!("{:?} query {q}", kernels.isa);
            check_query(
                &what,
                &expected,
                found.max[q],
                found.sum[q],
                &found.values[q * 8..][..8],
            );
        }
    }
}

/// What a later token stands for is not multiplied by zero for an earlier one if it is not finite: nothing is done then.
#[test]
fn values_that_are_not_finite_are_left_to_others() {
    for kernels in all_kernels() {
        for (ty, d) in [
            (GgmlType::F32, 8),
            (GgmlType::F16, 41),
            (GgmlType::BF16, 64),
            (GgmlType::Q8_0, 64),
        ] {
            let seen = [1, 3];
            let mut pages = pages(ty, 2, [d, d], &seen);
            let queries = noise(9, 2 * d);
            let mut memory = vec![f32::NAN; Prompt::floats(2, d, d)];
            // SAFETY: the CPU has the instructions.
            let mut prompt = unsafe { Prompt::with(kernels, &mut memory, 2, d, d) };
            prompt.set_queries(&queries);
            let attend_to = |prompt: &mut Prompt<'_>, page: &(Page, Page), seen: &[u64]| {
                let (keys, values) = (page.0.rows(), page.1.rows());
                prompt.attend(&PromptPage {
                    keys,
                    values,
                    seen,
                    softcap: 0.0,
                })
            };
            assert!(attend_to(&mut prompt, &pages[0], &seen));
            let before = results(&prompt, 2, d);
            // Keys may be anything: only who sees them has them.
            let (keys, values) = &mut pages[1];
            let (stride, row_bytes) = (keys.stride, ty.row_bytes(d).unwrap());
            keys.bytes[stride..].fill(0xff);
            values.bytes[stride..][..row_bytes].fill(0xff);
            assert!(!attend_to(&mut prompt, &pages[1], &seen), "{:?} {ty}", kernels.isa);
            assert_eq!(results(&prompt, 2, d), before, "{:?} {ty}", kernels.isa);
            // Seen by nobody they are not looked at.
            assert!(attend_to(&mut prompt, &pages[1], &[1, 1]));
            let after = results(&prompt, 2, d);
            assert!(after.values.iter().all(|v| v.is_finite()) && after != before);
        }
    }
}

/// Keys that are not finite spoil the queries that see them, and no others.
#[test]
fn keys_that_are_not_finite_stay_with_who_sees_them() {
    for kernels in all_kernels() {
        let seen = [1, 3, 0];
        let mut pages = pages(GgmlType::F16, 2, [64, 64], &seen);
        let stride = pages[0].0.stride;
        pages[0].0.bytes[stride..].fill(0xff);
        let queries = noise(9, 3 * 64);
        let found = attend(kernels, &pages, &seen, &queries, 0.0);
        let alone = attend(kernels, &pages, &seen[..1], &queries[..64], 0.0);
        assert!(alone.values.iter().all(|v| v.is_finite()), "{:?}", kernels.isa);
        assert_eq!(found.values[..64], alone.values, "{:?}", kernels.isa);
        assert!(found.values[64..128].iter().all(|v| v.is_nan()), "{:?}", kernels.isa);
        assert!(found.values[128..].iter().all(|v| *v == 0.0), "{:?}", kernels.isa);
    }
}
