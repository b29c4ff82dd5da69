//! Second moments of the inputs of matrices, collected while a context decodes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use kernels::Feedback;
use rayon::prelude::*;

use crate::importance::{ImportanceError, InputSink, MatmulInputs, Use};

/// Share of the mean variance that is added to all variances, as in GPTQ. Rarely used inputs therefore keep the weights
/// of their columns near the original ones.
const DAMPING: f64 = 0.01;

/// Rows of a moment that a thread takes at a time.
const ROWS: usize = 16;

/// Factors for the rounding errors of each matrix of a tensor; `None` for matrices without inputs.
pub(super) type MatrixFactors = Vec<Option<Arc<Feedback>>>;

/// Sum of the outer products of a matrix's inputs; empty before the first input.
#[derive(Default)]
struct Moment {
    sums: Vec<f32>,
}

/// Moments of the matrices of a tensor, or of several tensors with the same inputs.
struct TensorMoments {
    n_in: usize,
    /// Moments of each matrix, or a moment shared by all matrices.
    matrices: Vec<Moment>,
}

/// Moments of the tensors of one pass over the text.
pub(super) struct Moments {
    /// Tensors to collect.
    wanted: BTreeSet<String>,
    /// Maximum size of the moments of a tensor with a moment per matrix.
    max_bytes: usize,
    /// Moments by the name of the first tensor that reads the inputs.
    collected: BTreeMap<String, TensorMoments>,
    /// First tensor with the same inputs, for each tensor.
    leaders: BTreeMap<String, String>,
    /// Tensors of the current graph whose inputs were received.
    seen: BTreeSet<String>,
    failure: Option<ImportanceError>,
}

impl Moments {
    /// Creates moments without data.
    pub fn new(wanted: BTreeSet<String>, max_bytes: usize) -> Moments {
        Moments {
            wanted,
            max_bytes,
            collected: BTreeMap::new(),
            leaders: BTreeMap::new(),
            seen: BTreeSet::new(),
            failure: None,
        }
    }

    /// Returns the reason why the collection stopped, if it failed.
    pub fn failure(&mut self) -> Option<ImportanceError> {
        self.failure.take()
    }

    /// Returns true if the inputs of all tensors of the current graph were received, so that the rest of the graph is
    /// not needed.
    pub fn is_complete(&self) -> bool {
        self.seen.len() == self.wanted.len()
    }

    /// Returns the factors of all moments by leader, and the leader of each tensor.
    pub fn into_factors(self) -> (BTreeMap<String, MatrixFactors>, BTreeMap<String, String>) {
        let factors = self.collected.into_iter().map(|(name, moments)| {
            let n_in = moments.n_in;
            let matrices = moments.matrices.into_iter();
            (name, matrices.map(|moment| factor(moment.sums, n_in)).collect())
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
        let of_matrix = n_in.saturating_mul(n_in).saturating_mul(size_of::<f32>());
        let n_moments = if of_matrix.saturating_mul(m2 * m3) <= self.max_bytes {
            m2 * m3
        } else {
            1
        };
        let moments = self.collected.entry(leader.clone()).or_insert_with(|| TensorMoments {
            n_in,
            matrices: (0..n_moments).map(|_| Moment::default()).collect(),
        });
        let mut rows: Vec<Vec<f32>> = vec![Vec::new(); moments.matrices.len()];
        inputs.for_each(first, &mut |matrix, at| {
            let matrix = matrix.min(rows.len() - 1);
            rows[matrix].extend(inputs.x.floats(at));
        });
        for (moment, rows) in moments.matrices.iter_mut().zip(&rows) {
            if !moment.add(rows, n_in) {
                return Err(ImportanceError::NotFinite {
                    tensor: first.tensor.clone(),
                });
            }
        }
        Ok(())
    }
}

impl Moment {
    /// Adds the products of inputs. Returns false if an input is not finite.
    fn add(&mut self, x: &[f32], n_in: usize) -> bool {
        if x.is_empty() {
            return true;
        }
        if self.sums.is_empty() {
            self.sums = vec![0.0; n_in * n_in];
        }
        self.sums
            .par_chunks_mut(ROWS * n_in)
            .enumerate()
            .for_each(|(i, rows)| kernels::add_moments(rows, i * ROWS, n_in, x));
        (0..n_in).all(|i| self.sums[i * n_in + i].is_finite())
    }
}

/// Factors a moment in place. Returns `None` without data.
fn factor(mut sums: Vec<f32>, n_in: usize) -> Option<Arc<Feedback>> {
    let trace: f64 = (0..n_in)
        .filter_map(|i| sums.get(i * n_in + i))
        .map(|v| f64::from(*v))
        .sum();
    let floor = (DAMPING * trace / n_in as f64) as f32;
    if floor <= 0.0 || !floor.is_finite() {
        return None;
    }
    for i in 0..n_in {
        sums[i * n_in + i] += floor;
    }
    let starts: Vec<usize> = (0..n_in).step_by(kernels::FACTOR_ROWS).collect();
    for first in starts.into_iter().rev() {
        let (above, block) = sums.split_at_mut(first * n_in);
        let n_block = kernels::FACTOR_ROWS.min(n_in - first);
        let block = &mut block[..n_block * n_in];
        kernels::factor_diagonal(block, first, n_in, floor);
        let block = &*block;
        above
            .par_chunks_mut(ROWS * n_in)
            .for_each(|rows| kernels::factor_rows(rows, block, first, n_in));
    }
    Some(Arc::new(Feedback::new(sums, n_in)))
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
        self.with(|moments| std::mem::replace(moments, Moments::new(BTreeSet::new(), 0)))
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
