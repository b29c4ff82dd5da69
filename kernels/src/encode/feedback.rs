//! Encoding with error feedback: the rounding error of each column is compensated by the columns after it.
//!
//! A matrix with rows `w` and inputs of second moment `H` has the expected squared output error `e H e^T`, for the
//! rounding errors `e = w - q`. With `H = U D U^T`, where `U` is upper triangular with a unit diagonal and `D` is
//! diagonal, the error equals the sum of `D[k] (e U)[k]^2`. Column `k` is therefore rounded to the value nearest to
//! `w[k]` plus the sum of `e[j] U[j][k]` over all earlier columns `j`. This is the procedure of GPTQ
//! (arXiv 2210.17323) in the form of LDLQ (arXiv 2307.13304), which needs no inverse of `H`.
//!
//! Columns that are rounded together, as points of a grid, have targets that assume exact values for the columns before
//! them in the same point. This makes `U` block triangular.
//!
//! Scales of a block are searched on its corrected columns, with the weights `D`. The first search assumes that the
//! block has exact values. It is repeated on the targets of the first rounding, and the better result is kept.

use std::ops::Range;

use super::cpu::for_this_cpu;
use super::lanes::N;

/// Factors of the second moment of a matrix's inputs.
#[derive(Clone, Debug)]
pub struct Feedback {
    n: usize,
    /// Number of columns of each range but the last. Errors are compensated within a range.
    width: usize,
    /// `U` of each range: row `j` has the shares of the error of column `j` that later columns compensate.
    shares: Vec<Vec<f32>>,
    /// `D`: variance of each input that later inputs do not explain.
    variances: Vec<f32>,
}

impl Feedback {
    /// Creates the factors from the upper triangular `C` with `H = C C^T` of each range of `width` columns, by rows.
    /// The last range may have fewer columns. Columns of different ranges are treated as independent.
    ///
    /// # Panics
    /// Panics if a matrix is not square, or the matrices do not have `n` columns in total.
    pub fn new(mut factors: Vec<Vec<f32>>, n: usize, width: usize) -> Feedback {
        assert_eq!(
            factors.len(),
            n.div_ceil(width),
            "a matrix for each {width} of {n} columns"
        );
        let mut variances = Vec::with_capacity(n);
        for (range, factor) in factors.iter_mut().enumerate() {
            let n = width.min(n - range * width);
            assert_eq!(factor.len(), n * n, "a square matrix of {n} rows");
            let diagonal: Vec<f32> = (0..n).map(|k| factor[k * n + k]).collect();
            for (j, row) in factor.chunks_exact_mut(n).enumerate() {
                for (share, pivot) in row.iter_mut().zip(&diagonal).skip(j) {
                    *share = if *pivot > 0.0 { *share / pivot } else { 0.0 };
                }
            }
            variances.extend(diagonal.iter().map(|pivot| pivot * pivot));
        }
        Feedback {
            n,
            width,
            shares: factors,
            variances,
        }
    }

    /// Returns the number of columns.
    pub fn n_in(&self) -> usize {
        self.n
    }

    /// Returns the weight of each column in searches for scales.
    pub(super) fn variances(&self) -> &[f32] {
        &self.variances
    }

    /// Returns the shares of the error of column `j` that later columns of the same range compensate.
    #[inline(always)]
    fn shares(&self, j: usize, columns: Range<usize>) -> &[f32] {
        let (range, row) = (j / self.width, j % self.width);
        let first = j - row;
        let n = self.width.min(self.n - first);
        &self.shares[range][row * n..][columns.start - first..columns.end - first]
    }
}

/// Rounding of the blocks of a type.
pub(super) trait Rounding {
    /// Number of elements of a block.
    const LEN: usize;

    /// Number of elements that are rounded together.
    const STEP: usize;

    /// Scales of a block, and its rounded elements.
    type State: Clone;

    /// Searches for scales of the blocks of up to [`N`] rows, with weights for each element.
    fn start(&self, x: &[f32], w: &[f32]) -> Vec<Self::State>;

    /// Rounds the elements starting at index `at`, and returns their values.
    fn round(&self, state: &mut Self::State, at: usize, x: &[f32], w: &[f32], values: &mut [f32]);

    /// Stores the block.
    fn finish(&self, state: &Self::State, out: &mut [u8]);
}

/// Number of searches for the scales of a block.
const SEARCHES: usize = 2;

/// Largest [`Rounding::STEP`].
const MAX_STEP: usize = 8;

for_this_cpu! {
    /// Adds the feedback of the errors of all columns before `start` to `corrected`, which has `len` columns per row.
    fn correct[][](feedback: &Feedback, errors: &[f32], corrected: &mut [f32], start: usize, len: usize) -> () = correct_rows;
    /// Completes the targets of the columns starting at `start`, assuming that these columns are rounded exactly.
    fn settle[][](feedback: &Feedback, start: usize, original: &[f32], targets: &mut [f32]) -> () = settle_columns;
    /// Rounds the columns of a block in order. Returns the weighted squared error.
    fn round_block[R: Rounding][R](rounding: &R, columns: &Columns<'_>, row: &mut Row<'_, R::State>) -> f64 = round_columns;
}

/// Encodes rows of a matrix with error feedback. Results are the same on every CPU.
pub(super) fn encode<R: Rounding>(rounding: &R, feedback: &Feedback, x: &[f32], out: &mut [u8]) {
    let n = feedback.n;
    let is_whole = feedback.width >= n || feedback.width.is_multiple_of(R::LEN);
    assert!(
        is_whole,
        "ranges of {} columns divide blocks of {}",
        feedback.width,
        R::LEN
    );
    let row_bytes = out.len() / (x.len() / n).max(1);
    for (x, out) in x.chunks(N * n).zip(out.chunks_mut(N * row_bytes)) {
        encode_group(rounding, feedback, x, out);
    }
}

/// Factors of the columns of a block.
struct Columns<'a> {
    feedback: &'a Feedback,
    start: usize,
    /// Weight of each column when its step is rounded.
    weights: &'a [f32],
}

/// Block of a row.
struct Row<'a, S> {
    original: &'a [f32],
    /// Corrected columns, which become the targets of rounding.
    targets: &'a mut [f32],
    errors: &'a mut [f32],
    state: S,
}

/// Encodes up to [`N`] rows.
fn encode_group<R: Rounding>(rounding: &R, feedback: &Feedback, x: &[f32], out: &mut [u8]) {
    let (n, len) = (feedback.n, R::LEN);
    let n_rows = x.len() / n;
    let row_bytes = out.len() / n_rows;
    let block_bytes = row_bytes / (n / len);
    let mut errors = vec![0f32; x.len()];
    let [mut corrected, mut targets, mut weights] = [const { Vec::new() }; 3];
    let mut found = vec![0f32; len];
    for start in (0..n).step_by(len) {
        corrected.clear();
        x.chunks_exact(n)
            .for_each(|x| corrected.extend_from_slice(&x[start..start + len]));
        correct(feedback, &errors, &mut corrected, start, len);
        targets.clone_from(&corrected);
        for (x, targets) in x.chunks_exact(n).zip(targets.chunks_exact_mut(len)) {
            settle(feedback, start, &x[start..start + len], targets);
        }
        step_weights(feedback, start, len, R::STEP, &mut weights);
        let columns = Columns {
            feedback,
            start,
            weights: &weights,
        };
        let all_weights = weights.repeat(n_rows);
        let mut best = vec![f64::INFINITY; n_rows];
        for search in 0..SEARCHES {
            let states = rounding.start(&targets, &all_weights);
            targets.clone_from(&corrected);
            for (r, state) in states.into_iter().enumerate().take(n_rows) {
                let mut row = Row {
                    original: &x[r * n + start..][..len],
                    targets: &mut targets[r * len..][..len],
                    errors: &mut found,
                    state,
                };
                let error = round_block(rounding, &columns, &mut row);
                if search == 0 || error < best[r] {
                    best[r] = error;
                    rounding.finish(
                        &row.state,
                        &mut out[r * row_bytes + start / len * block_bytes..][..block_bytes],
                    );
                    errors[r * n + start..][..len].copy_from_slice(&found);
                }
            }
        }
    }
}

/// Returns the weights of columns that are rounded together. The weight of a column is the variance that later steps
/// cannot compensate, relative to the largest.
fn step_weights(feedback: &Feedback, start: usize, len: usize, step: usize, weights: &mut Vec<f32>) {
    weights.clear();
    for first in (start..start + len).step_by(step) {
        for i in first..first + step {
            let shares = feedback
                .shares(i, i + 1..first + step)
                .iter()
                .zip(&feedback.variances[i + 1..]);
            let inner: f32 = shares.map(|(share, variance)| share * share * variance).sum();
            weights.push(feedback.variances[i] + inner);
        }
    }
    let largest = weights.iter().fold(f32::MIN_POSITIVE, |max, w| max.max(*w));
    weights.iter_mut().for_each(|w| *w /= largest);
}

/// See [`correct`].
#[inline(always)]
fn correct_rows(feedback: &Feedback, errors: &[f32], corrected: &mut [f32], start: usize, len: usize) {
    let n = feedback.n;
    for j in start / feedback.width * feedback.width..start {
        let shares = feedback.shares(j, start..start + len);
        for (row, corrected) in corrected.chunks_exact_mut(len).enumerate() {
            let error = errors[row * n + j];
            for (x, share) in corrected.iter_mut().zip(shares) {
                *x += error * share;
            }
        }
    }
}

/// See [`settle`].
#[inline(always)]
fn settle_columns(feedback: &Feedback, start: usize, original: &[f32], targets: &mut [f32]) {
    for (i, original) in original.iter().enumerate() {
        let error = original - targets[i];
        let shares = feedback.shares(start + i, start + i + 1..start + targets.len());
        for (target, share) in targets[i + 1..].iter_mut().zip(shares) {
            *target += error * share;
        }
    }
}

/// See [`round_block`].
#[inline(always)]
fn round_columns<R: Rounding>(rounding: &R, columns: &Columns<'_>, row: &mut Row<'_, R::State>) -> f64 {
    let (feedback, start, len) = (columns.feedback, columns.start, row.targets.len());
    let [mut x, mut values] = [[0f32; MAX_STEP]; 2];
    let mut sum = 0f64;
    for at in (0..len).step_by(R::STEP) {
        let step = at..at + R::STEP;
        let x = &mut x[..R::STEP];
        x.copy_from_slice(&row.targets[step.clone()]);
        if R::STEP > 1 {
            settle_columns(feedback, start + at, &row.original[step.clone()], x);
        }
        let weights = &columns.weights[step.clone()];
        rounding.round(&mut row.state, at, x, weights, &mut values[..R::STEP]);
        for (i, value) in step.clone().zip(values) {
            let error = row.original[i] - value;
            row.errors[i] = error;
            let rest = f64::from(row.targets[i] - value);
            sum += f64::from(feedback.variances[start + i]) * rest * rest;
            let shares = feedback.shares(start + i, start + i + 1..start + len);
            for (target, share) in row.targets[i + 1..].iter_mut().zip(shares) {
                *target += error * share;
            }
        }
        row.targets[step].copy_from_slice(x);
    }
    sum
}
