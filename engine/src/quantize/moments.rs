//! Second moments of the inputs of matrices, collected while a context decodes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use kernels::Feedback;
use rayon::prelude::*;

use super::role::{self, Role};
use crate::importance::{ImportanceError, InputSink, MatmulInputs, Use};

/// Fraction of the mean variance that is added to all variances, as in GPTQ. It keeps the weights of rarely used
/// inputs close to their original values.
const DAMPING: f64 = 0.01;

/// Damping of a token embedding that is also the output matrix. Its rows are also inputs of the model, so its weights
/// must stay closer to their original values.
const TIED_DAMPING: f64 = 0.3;

/// Weight of the first token of a sequence in the moments of attention inputs. Many heads attend mainly to this token,
/// an attention sink (arXiv 2309.17453), so an error in its value affects all tokens. As one of hundreds of tokens, it
/// would hardly count in the moments: without this weight, calibrating `attn_v` increased the KL divergence of SmolLM2.
const FIRST_WEIGHT: f32 = 256.0;

/// Rows of a moment that a thread takes at a time.
const ROWS: usize = 16;

/// Factors for the rounding errors of each matrix of a tensor; `None` for matrices without inputs.
pub(super) type MatrixFactors = Vec<Option<Arc<Feedback>>>;

/// Maximum number of elements in a block. Ranges of columns consist of whole blocks.
const BLOCK: usize = 256;

/// Size of the moments of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// Number of moments: one per matrix, or one for all matrices.
    n_moments: usize,
    /// Maximum number of columns of a range. Products of columns in different ranges are not collected.
    width: usize,
    /// Size in memory.
    pub bytes: usize,
}

impl Size {
    /// Returns the size of the moments of matrices with `n_in` columns. The columns of a matrix are divided into ranges
    /// if the moment of a single matrix exceeds `max_bytes`.
    pub fn of(n_in: usize, n_matrices: usize, max_bytes: usize) -> Size {
        let column = n_in.saturating_mul(size_of::<f32>());
        let most = max_bytes / column.max(1);
        if n_in > most {
            let n_ranges = n_in.div_ceil((most / BLOCK * BLOCK).max(BLOCK));
            let width = n_in.div_ceil(n_ranges.max(1)).next_multiple_of(BLOCK).min(n_in);
            return Size {
                n_moments: 1,
                width,
                bytes: column.saturating_mul(width),
            };
        }
        let of_all = column.saturating_mul(n_in).saturating_mul(n_matrices);
        let n_moments = if of_all <= max_bytes { n_matrices } else { 1 };
        Size {
            n_moments,
            width: n_in,
            bytes: column * n_in * n_moments,
        }
    }
}

/// Sums of the outer products of a matrix's inputs, for each range of columns; empty before the first input.
#[derive(Default)]
struct Moment {
    ranges: Vec<Vec<f32>>,
}

/// Moments of the matrices of a tensor, or of several tensors with the same inputs.
struct TensorMoments {
    n_in: usize,
    /// Maximum number of columns of a range.
    width: usize,
    /// Moments of each matrix, or a moment shared by all matrices.
    matrices: Vec<Moment>,
}

/// Moments of the tensors of one pass over the text.
pub(super) struct Moments {
    /// Tensors to collect.
    wanted: BTreeSet<String>,
    /// Maximum size of the moments of a tensor.
    max_bytes: usize,
    /// Whether to stop a graph after the last tensor.
    stops_early: bool,
    /// Moments by the name of the first tensor that reads the inputs.
    collected: BTreeMap<String, TensorMoments>,
    /// First tensor with the same inputs, for each tensor.
    leaders: BTreeMap<String, String>,
    /// Tensors of the current graph whose inputs were received.
    seen: BTreeSet<String>,
    /// Flags of the tokens of the current batch that are the first of their sequence.
    is_first: Vec<bool>,
    failure: Option<ImportanceError>,
}

impl Moments {
    /// Creates moments without data. `stops_early` permits stopping a graph after the last tensor.
    pub fn new(wanted: BTreeSet<String>, max_bytes: usize, stops_early: bool) -> Moments {
        Moments {
            wanted,
            max_bytes,
            stops_early,
            collected: BTreeMap::new(),
            leaders: BTreeMap::new(),
            seen: BTreeSet::new(),
            is_first: Vec::new(),
            failure: None,
        }
    }

    /// Starts a batch. `is_first` has a flag for each token: whether the token is the first of its sequence.
    pub fn start_batch(&mut self, is_first: impl Iterator<Item = bool>) {
        self.is_first.clear();
        self.is_first.extend(is_first);
    }

    /// Returns the reason why the collection stopped, if it failed.
    pub fn failure(&mut self) -> Option<ImportanceError> {
        self.failure.take()
    }

    /// Returns true if the rest of the current graph is not needed, because the inputs of all tensors were received.
    pub fn is_complete(&self) -> bool {
        self.stops_early && self.seen.len() == self.wanted.len()
    }

    /// Returns the factors of all moments by leader, and the leader of each tensor.
    pub fn into_factors(self) -> (BTreeMap<String, MatrixFactors>, BTreeMap<String, String>) {
        let factors = self.collected.into_iter().map(|(name, moments)| {
            let (n_in, width) = (moments.n_in, moments.width);
            let matrices = moments.matrices.into_iter();
            let damping = match role::role(&name) {
                Role::Embedding => TIED_DAMPING,
                _ => DAMPING,
            };
            let factors = matrices.map(|moment| moment.feedback(n_in, width, damping)).collect();
            (name, factors)
        });
        (factors.collect(), self.leaders)
    }

    fn add(&mut self, uses: &[&Use], inputs: &MatmulInputs<'_>) -> Result<(), ImportanceError> {
        let wanted: Vec<&Use> = uses
            .iter()
            .copied()
            .filter(|found| self.wanted.contains(&found.tensor))
            .collect();
        let Some(first) = wanted.first() else {
            return Ok(());
        };
        let leader = self.leaders.get(&first.tensor).unwrap_or(&first.tensor).clone();
        for found in &wanted {
            self.seen.insert(found.tensor.clone());
            self.leaders.insert(found.tensor.clone(), leader.clone());
        }
        let n_in = inputs.x.tensor.ne[0];
        let [m2, m3] = first.matrices;
        let size = Size::of(n_in, m2 * m3, self.max_bytes);
        let moments = self.collected.entry(leader.clone()).or_insert_with(|| TensorMoments {
            n_in,
            width: size.width,
            matrices: (0..size.n_moments).map(|_| Moment::default()).collect(),
        });
        let mut rows: Vec<Vec<f32>> = vec![Vec::new(); moments.matrices.len()];
        inputs.for_each(first, &mut |matrix, at| {
            let matrix = matrix.min(rows.len() - 1);
            rows[matrix].extend(inputs.x.floats(at));
        });
        let is_attention = |found: &&Use| is_attention_input(role::role(&found.tensor));
        if wanted.iter().any(is_attention) {
            rows.iter_mut().for_each(|x| weight_first(x, n_in, &self.is_first));
        }
        for (moment, rows) in moments.matrices.iter_mut().zip(&rows) {
            if !moment.add(rows, n_in, moments.width) {
                return Err(ImportanceError::NotFinite {
                    tensor: first.tensor.clone(),
                });
            }
        }
        Ok(())
    }
}

/// Returns true for projections whose outputs attention reads.
fn is_attention_input(role: Role) -> bool {
    matches!(
        role,
        Role::Query | Role::Key | Role::Value | Role::QueryKeyValue | Role::KeyValue
    )
}

/// Scales the inputs of first tokens, so that their products have [`FIRST_WEIGHT`]. Does not change inputs of only a
/// part of the tokens.
fn weight_first(x: &mut [f32], n_in: usize, is_first: &[bool]) {
    if x.len() != n_in * is_first.len() {
        return;
    }
    for (row, is_first) in x.chunks_exact_mut(n_in).zip(is_first) {
        if *is_first {
            row.iter_mut().for_each(|x| *x *= FIRST_WEIGHT.sqrt());
        }
    }
}

impl Moment {
    /// Adds the products of inputs. Returns false if an input is not finite.
    fn add(&mut self, x: &[f32], n_in: usize, width: usize) -> bool {
        if x.is_empty() {
            return true;
        }
        let ranges = || (0..n_in).step_by(width).map(|start| start..n_in.min(start + width));
        if self.ranges.is_empty() {
            self.ranges = ranges().map(|range| vec![0.0; range.len() * range.len()]).collect();
        }
        for (sums, range) in self.ranges.iter_mut().zip(ranges()) {
            let n = range.len();
            let columns = x.chunks_exact(n_in).flat_map(|x| &x[range.clone()]);
            let x = if n == n_in {
                Cow::Borrowed(x)
            } else {
                columns.copied().collect()
            };
            sums.par_chunks_mut(ROWS * n)
                .enumerate()
                .for_each(|(i, rows)| kernels::add_moments(rows, i * ROWS, n, &x));
            if !(0..n).all(|i| sums[i * n + i].is_finite()) {
                return false;
            }
        }
        true
    }

    /// Factors the moment in place. Returns `None` without data.
    fn feedback(self, n_in: usize, width: usize, damping: f64) -> Option<Arc<Feedback>> {
        let floor = floor(&self.ranges, n_in, damping)?;
        let factors = self.ranges.into_iter().map(|sums| factor(sums, floor));
        Some(Arc::new(Feedback::new(factors.collect(), n_in, width)))
    }
}

/// Returns the addition to the diagonal of a moment with these ranges; `None` if the moment is zero or not finite.
fn floor(ranges: &[Vec<f32>], n_in: usize, damping: f64) -> Option<f32> {
    let diagonals = ranges
        .iter()
        .flat_map(|sums| sums.iter().step_by(sums.len().isqrt() + 1));
    let trace: f64 = diagonals.map(|&v| f64::from(v)).sum();
    let floor = (damping * trace / n_in as f64) as f32;
    (floor > 0.0 && floor.is_finite()).then_some(floor)
}

/// Factors a square matrix in place, after adding `floor` to its diagonal.
fn factor(mut sums: Vec<f32>, floor: f32) -> Vec<f32> {
    let n = sums.len().isqrt();
    for i in 0..n {
        sums[i * n + i] += floor;
    }
    let starts: Vec<usize> = (0..n).step_by(kernels::FACTOR_ROWS).collect();
    for first in starts.into_iter().rev() {
        let (above, block) = sums.split_at_mut(first * n);
        let n_block = kernels::FACTOR_ROWS.min(n - first);
        let block = &mut block[..n_block * n];
        kernels::factor_diagonal(block, first, n, floor);
        let block = &*block;
        above
            .par_chunks_mut(ROWS * n)
            .for_each(|rows| kernels::factor_rows(rows, block, first, n));
    }
    sums
}

/// Moments that an observer and its caller share.
#[derive(Clone)]
pub(super) struct SharedMoments(Arc<Mutex<Moments>>);

impl SharedMoments {
    /// Shares moments.
    pub fn new(moments: Moments) -> SharedMoments {
        SharedMoments(Arc::new(Mutex::new(moments)))
    }

    /// Calls `f` with the moments.
    pub fn with<T>(&self, f: impl FnOnce(&mut Moments) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the moments.
    pub fn take(&self) -> Moments {
        self.with(|moments| std::mem::replace(moments, Moments::new(BTreeSet::new(), 0, false)))
    }
}

impl InputSink for SharedMoments {
    fn begin(&mut self) {
        self.with(|moments| moments.seen.clear());
    }

    fn add(&mut self, uses: &[&Use], inputs: &MatmulInputs<'_>) -> ControlFlow<()> {
        self.with(|moments| {
            let result = moments.add(uses, inputs);
            moments.failure = result.err();
            if moments.failure.is_some() || moments.is_complete() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_limited_by_sharing_a_moment_and_by_ranges() {
        let size = |n_moments, width, bytes| Size {
            n_moments,
            width,
            bytes,
        };
        assert_eq!(Size::of(100, 3, 120_000), size(3, 100, 120_000));
        assert_eq!(Size::of(100, 3, 119_999), size(1, 100, 40_000));
        // Ranges consist of whole blocks.
        assert_eq!(Size::of(1024, 1, 1024 * 4 * 1023), size(1, 512, 1024 * 4 * 512));
        let wide = Size::of(28_672, 1, 1 << 30);
        assert_eq!(wide, size(1, 7168, 28_672 * 4 * 7168));
        assert!(wide.bytes <= 1 << 30);
        assert_eq!(Size::of(1000, 8, 1), size(1, 256, 1000 * 4 * 256));
        assert_eq!(Size::of(64, 8, 1), size(1, 64, 64 * 4 * 64));
    }

    /// Tokens (1, 2) and (0, 1) are first; tokens (3, 1) and (1, 1) are not.
    #[test]
    fn first_tokens_have_a_larger_weight_in_attention_inputs() {
        let tokens = [1f32, 2.0, 3.0, 1.0, 0.0, 1.0, 1.0, 1.0];
        let moment = |is_first: &[bool]| {
            let (mut x, mut moment) = (tokens, Moment::default());
            weight_first(&mut x, 2, is_first);
            assert!(moment.add(&x, 2, 2));
            [moment.ranges[0][0], moment.ranges[0][1], moment.ranges[0][3]]
        };
        let expected = [256.0 + 10.0, 512.0 + 4.0, 1024.0 + 256.0 + 2.0];
        assert_eq!(moment(&[true, false, true, false]), expected);
        // Rows of a part of the tokens cannot be assigned to tokens.
        assert_eq!(moment(&[true, false, true]), [11.0, 6.0, 7.0]);

        let weighted = ["attn_q", "attn_k", "attn_v", "attn_qkv", "attn_kv_b"];
        let others = ["attn_output", "ffn_up", "ffn_gate", "ffn_down"];
        for kind in weighted.iter().chain(&others) {
            let role = role::role(&format!("blk.3.{kind}.weight"));
            assert_eq!(is_attention_input(role), weighted.contains(kind), "{kind}");
        }
        assert!(!is_attention_input(role::role("token_embd.weight")));
    }

    /// Products of columns in different ranges are missing; all others equal the products of a single range.
    #[test]
    fn ranges_have_the_products_of_their_columns() {
        let x: Vec<f32> = (0..3 * 600).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        let (mut whole, mut divided) = (Moment::default(), Moment::default());
        assert!(whole.add(&x, 600, 600) && divided.add(&x, 600, 256));
        assert_eq!(
            divided.ranges.iter().map(Vec::len).collect::<Vec<_>>(),
            [256 * 256, 256 * 256, 88 * 88]
        );
        for (r, sums) in divided.ranges.iter().enumerate() {
            let n = sums.len().isqrt();
            for i in 0..n {
                for j in i..n {
                    let expected = whole.ranges[0][(256 * r + i) * 600 + 256 * r + j];
                    assert!((sums[i * n + j] - expected).abs() < 1e-5, "{r}: {i}, {j}");
                }
            }
        }
        assert_eq!(floor(&divided.ranges, 600, DAMPING), floor(&whole.ranges, 600, DAMPING));
        assert!(!divided.add(&[f32::NAN; 600], 600, 256));
    }
}
