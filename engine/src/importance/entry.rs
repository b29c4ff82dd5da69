//! Sums over the inputs of matrices.

use std::collections::BTreeMap;

use super::error::ImportanceError;

/// Sums over the inputs of a tensor's matrices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Sum of squares for each column of each matrix.
    pub squares: Vec<f64>,
    /// Sum for each column of each matrix; empty if unknown.
    pub sums: Vec<f64>,
    /// Number of inputs of each expert, or one number for all matrices.
    pub counts: Vec<u64>,
}

/// Importance of the columns of a tensor's matrices.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Mean square of each column of each matrix.
    pub values: Vec<f32>,
    /// Number of matrices without data; their columns get the mean of the other matrices.
    pub n_filled: usize,
}

impl Entry {
    /// Creates an entry without data.
    pub(super) fn new(n_values: usize, n_counts: usize) -> Entry {
        Entry {
            squares: vec![0.0; n_values],
            sums: vec![0.0; n_values],
            counts: vec![0; n_counts],
        }
    }

    /// Adds the sums of an entry of equal size.
    fn merge(&mut self, other: &Entry) -> bool {
        let n_values = self.squares.len();
        if other.squares.len() != n_values || n_values == 0 {
            return false;
        }
        let n_counts = self.counts.len().max(other.counts.len());
        let Some(counts) = broadcast(&other.counts, n_counts) else {
            return false;
        };
        let Some(own) = broadcast(&self.counts, n_counts) else {
            return false;
        };
        self.counts = own;
        add(&mut self.squares, &other.squares);
        if other.sums.len() == self.sums.len() {
            add(&mut self.sums, &other.sums);
        } else {
            self.sums.clear();
        }
        for (count, other) in self.counts.iter_mut().zip(counts) {
            *count = count.saturating_add(other);
        }
        true
    }

    /// Returns the number of experts without inputs.
    pub fn n_unused(&self) -> usize {
        self.counts.iter().filter(|&&count| count == 0).count()
    }

    /// Returns the mean square of each column. Matrices without data get the mean of the other matrices.
    fn weights(&self) -> Option<Weights> {
        let n = self.squares.len() / self.counts.len().max(1);
        if n == 0 || self.n_unused() == self.counts.len() {
            return None;
        }
        let mut mean = vec![0.0; n];
        let matrices = || self.squares.chunks_exact(n).zip(&self.counts);
        for (squares, &count) in matrices().filter(|(_, count)| **count > 0) {
            for (mean, square) in mean.iter_mut().zip(squares) {
                *mean += square / count as f64;
            }
        }
        let n_used = self.counts.len() - self.n_unused();
        mean.iter_mut().for_each(|mean| *mean /= n_used as f64);
        let values = matrices().flat_map(|(squares, &count)| {
            let from = if count > 0 { squares } else { &mean };
            from.iter().map(move |square| (square / count.max(1) as f64) as f32)
        });
        Some(Weights {
            values: values.collect(),
            n_filled: self.n_unused(),
        })
    }
}

fn add(to: &mut [f64], from: &[f64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

/// Repeats one count for all matrices.
fn broadcast(counts: &[u64], n: usize) -> Option<Vec<u64>> {
    match counts {
        [one] => Some(vec![*one; n]),
        counts => (counts.len() == n).then(|| counts.to_vec()),
    }
}

/// Importance of all matrices of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportanceMatrix {
    /// Sums by tensor name.
    pub entries: BTreeMap<String, Entry>,
    /// Names of the texts.
    pub datasets: Vec<String>,
    /// Number of chunks.
    pub n_chunks: u32,
    /// Tokens of a chunk; 0 if unknown.
    pub chunk_size: u32,
}

impl ImportanceMatrix {
    /// Adds the sums of another matrix of the same model.
    ///
    /// # Errors
    /// Returns an error if a tensor has a different size.
    pub fn merge(&mut self, other: &ImportanceMatrix) -> Result<(), ImportanceError> {
        for (name, entry) in &other.entries {
            match self.entries.get_mut(name) {
                None => {
                    self.entries.insert(name.clone(), entry.clone());
                }
                Some(own) => {
                    let expected = own.squares.len();
                    if !own.merge(entry) {
                        return Err(ImportanceError::OtherModel {
                            tensor: name.clone(),
                            expected,
                            found: entry.squares.len(),
                        });
                    }
                }
            }
        }
        for dataset in &other.datasets {
            if !self.datasets.contains(dataset) {
                self.datasets.push(dataset.clone());
            }
        }
        self.n_chunks = self.n_chunks.saturating_add(other.n_chunks);
        self.chunk_size = self.chunk_size.max(other.chunk_size);
        Ok(())
    }

    /// Returns the importance of a tensor of `n_matrices` with rows of `n_in` elements; `None` without data.
    ///
    /// # Errors
    /// Returns an error if the sizes differ, so that the matrix belongs to another model.
    pub fn weights(&self, name: &str, n_in: usize, n_matrices: usize) -> Result<Option<Weights>, ImportanceError> {
        let Some(entry) = self.entries.get(name) else {
            return Ok(None);
        };
        let (expected, found) = (n_in.saturating_mul(n_matrices), entry.squares.len());
        if found != expected && found != n_in {
            return Err(ImportanceError::OtherModel {
                tensor: name.to_owned(),
                expected,
                found,
            });
        }
        let mut weights = entry.weights();
        if found != expected
            && let Some(weights) = &mut weights
        {
            weights.values = weights.values.repeat(n_matrices);
        }
        Ok(weights)
    }
}
