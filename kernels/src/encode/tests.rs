//! Tests against the errors of llama.cpp's quantizers, recorded in `tests/data/quants/errors.txt` from its
//! release b11434. The errors of IQ4_K and IQ4_KS are from ik_llama.cpp.

use super::*;
use crate::dequantize_row;

/// Rows and columns of a recorded matrix.
const ROWS: usize = 4;
const COLUMNS: usize = 512;

/// Random number generator with the same results in every language and on every platform.
pub(super) struct Random(pub u64);

impl Random {
    /// Returns a number from 0 to 1 with 24 bits.
    fn uniform(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / 16_777_216.0
    }

    /// Returns a nearly normally distributed number: the sum of 12 uniform numbers.
    pub(super) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }
}

/// Returns a recorded matrix and the importance of its columns.
fn matrix(index: usize) -> (Vec<f32>, Vec<f32>) {
    let mut r = Random(index as u64 + 1);
    let size = [0.02, 1.0, 1e-4, 300.0][index / 16];
    let mut x: Vec<f32> = (0..ROWS * COLUMNS)
        .map(|i| {
            let n = r.normal();
            size * match index % 16 {
                0 | 1 => n,
                2 | 3 => n * n * n,
                4 => n * r.normal() * r.normal() * r.normal() * r.normal(),
                5 => n.abs(),
                6 => n + 3.0,
                7 => n - 5.0,
                8 => 2.0 * r.uniform() - 1.0,
                9 if i % COLUMNS == 77 => 50.0 * n,
                10 if i % 32 == 5 => 20.0 * n,
                11 if r.uniform() < 0.7 => 0.0,
                12 => (n * 1.5).clamp(-1.0, 1.0).round_ties_even(),
                13 if i / COLUMNS == 2 => 0.0,
                _ => n,
            }
        })
        .collect();
    match index {
        14 => x.fill(0.0),
        30 => x.iter_mut().for_each(|x| *x *= 1e-41),
        46 => x.iter_mut().for_each(|x| *x *= 1e-4),
        62 => x.fill(-0.75),
        _ => {}
    }
    let w = (0..COLUMNS)
        .map(|_| 1e-3 + r.normal() * r.normal() * r.normal() * r.normal())
        .map(f32::abs)
        .collect();
    (x, w)
}

/// Returns the squared error of a matrix after encoding, weighted by the importance of its columns.
fn error_of(ty: GgmlType, x: &[f32], w: Option<&[f32]>) -> f64 {
    let mut row = vec![0; ty.row_bytes(COLUMNS).unwrap()];
    let mut found = vec![f32::NAN; x.len()];
    for (x, found) in x.chunks_exact(COLUMNS).zip(found.chunks_exact_mut(COLUMNS)) {
        encode_row(ty, x, w, &mut row);
        dequantize_row(ty, &row, found);
    }
    weighted_squares(x, w, |i| f64::from(found[i]))
}

/// Returns the sum of the weighted squared differences to `other`.
fn weighted_squares(x: &[f32], w: Option<&[f32]>, other: impl Fn(usize) -> f64) -> f64 {
    let w = |i: usize| w.map_or(1.0, |w| f64::from(w[i % COLUMNS]));
    x.iter()
        .enumerate()
        .map(|(i, &x)| w(i) * (f64::from(x) - other(i)).powi(2))
        .sum()
}

/// Yields the type, whether columns are weighted, and the recorded error of each matrix.
fn recorded() -> Vec<(GgmlType, bool, Vec<f64>)> {
    let text = include_str!("../../../tests/data/quants/errors.txt");
    text.lines()
        .map(|line| {
            let mut fields = line.split(' ');
            let ty = GgmlType::from_name(fields.next().unwrap()).unwrap();
            let weighted = fields.next() == Some("1");
            (ty, weighted, fields.map(|field| field.parse().unwrap()).collect())
        })
        .collect()
}

/// Checks that no error exceeds the recorded one by more than `slack`, unless the rounding of scales to F16
/// explains the error. Returns the number of matrices with a larger error.
fn count_worse(weighted: bool, slack: f64) -> Vec<(GgmlType, usize)> {
    let matrices: Vec<_> = (0..64).map(matrix).collect();
    let mut counts = Vec::new();
    for (ty, _, errors) in recorded().into_iter().filter(|recorded| recorded.1 == weighted) {
        assert_eq!(errors.len(), 64);
        let mut worse = 0;
        for (i, ((x, w), theirs)) in matrices.iter().zip(errors).enumerate() {
            let w = weighted.then_some(&w[..]);
            let ours = error_of(ty, x, w);
            // Recorded errors have 6 digits.
            let exact = 1e-7 * weighted_squares(x, w, |_| 0.0);
            if ours > theirs * 1.000_01 && ours > exact {
                worse += 1;
                assert!(
                    ours <= theirs * (1.0 + slack),
                    "{ty}, matrix {i}: {ours:e} exceeds {theirs:e}"
                );
            }
        }
        counts.push((ty, worse));
    }
    // llama.cpp does not encode IQ1 and the small IQ2 types without importance.
    assert_eq!(counts.len(), if weighted { 27 } else { 23 });
    counts
}

#[test]
fn encode_row_has_at_most_the_recorded_errors() {
    count_worse(false, 1e-5);
}

#[test]
fn encode_row_with_importance_has_at_most_the_recorded_errors() {
    for (ty, worse) in count_worse(true, WEIGHTED_SLACK) {
        // At most 5 % of the matrices.
        assert!(worse <= 3, "{ty}: {worse} matrices");
    }
}

/// Largest excess over a recorded error for columns of different importance.
const WEIGHTED_SLACK: f64 = 0.01;

#[test]
fn encode_row_is_independent_of_the_instruction_set() {
    let (x, w) = matrix(2);
    for ty in GgmlType::ALL
        .iter()
        .copied()
        .filter(|&ty| can_encode(ty) && ty.block_size() > 1)
    {
        for w in [None, Some(&w[..])] {
            let mut blocks = [
                vec![0; ty.row_bytes(COLUMNS).unwrap()],
                vec![0; ty.row_bytes(COLUMNS).unwrap()],
            ];
            for (blocks, portable) in blocks.iter_mut().zip([true, false]) {
                cpu::USE_BASELINE.set(portable);
                encode_row(ty, &x[..COLUMNS], w, blocks);
            }
            assert_eq!(blocks[0], blocks[1], "{ty}");
        }
    }
}

#[test]
fn encode_row_of_a_block_is_independent_of_other_blocks() {
    let (mut x, _) = matrix(2);
    // Groups of zeros need the search in floats.
    x[768..1024].fill(0.0);
    for ty in [GgmlType::Q4_0, GgmlType::Q5_0, GgmlType::Q4_1, GgmlType::Q5_1] {
        let bytes = ty.row_bytes(256).unwrap();
        let mut blocks = vec![0; ty.row_bytes(x.len()).unwrap()];
        encode_row(ty, &x, None, &mut blocks);
        for (x, blocks) in x.chunks(256).zip(blocks.chunks(bytes)) {
            let mut alone = vec![0; bytes];
            encode_row(ty, x, None, &mut alone);
            assert_eq!(blocks, alone, "{ty}");
        }
        let odd = &mut blocks[..ty.row_bytes(800).unwrap()];
        let expected = odd.to_vec();
        encode_row(ty, &x[..800], None, odd);
        assert_eq!(odd[..3 * bytes], expected[..3 * bytes], "{ty}");
    }
}

#[test]
fn candidates_of_equal_weights_round_to_levels() {
    for ends in [
        <Integers<-8, 7> as Levels>::EQUAL.unwrap(),
        <Integers<-16, 15> as Levels>::EQUAL.unwrap(),
    ] {
        // Integers round half up.
        let is_low = |end: &f32| (0.5 - end.abs()).floor() < f32::from(ends.low);
        let is_high = |end: &f32| (0.5 + end.abs()).floor() > f32::from(ends.high);
        assert!(ends.clipped.iter().all(is_low));
        assert!(ends.clipped_above.iter().all(|end| is_high(end) && !is_low(end)));
        assert!(ends.whole.iter().all(|end| !is_high(end) && !is_low(end)));
    }
}

#[test]
fn encode_row_accepts_any_float() {
    let values = [
        0.0,
        1e-45,
        1e-30,
        -1e30,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    for ty in GgmlType::ALL.iter().copied().filter(|&ty| can_encode(ty)) {
        for x in values {
            for w in [None, Some(0.0), Some(1e30), Some(f32::MAX)] {
                let row = [x; 256];
                let w = w.map(|w| [w; 256]);
                let mut blocks = vec![0; ty.row_bytes(256).unwrap()];
                encode_row(ty, &row, w.as_ref().map(|w| &w[..]), &mut blocks);
                let mut out = [f32::NAN; 256];
                dequantize_row(ty, &blocks, &mut out);
                assert!(x != 0.0 || out == row, "{ty}: zeros were encoded as {out:?}");
                let finite = out.iter().all(|out| out.is_finite());
                assert!(
                    finite || !x.is_finite() || ty.block_size() == 1,
                    "{ty}: {x} was encoded as {out:?}"
                );
            }
        }
    }
}

#[test]
#[should_panic(expected = "rows must have the same length, found 32 and 31 elements")]
fn encode_row_rejects_importance_of_wrong_length() {
    encode_row(GgmlType::Q4_0, &[0.0; 32], Some(&[1.0; 31]), &mut [0; 18]);
}
