//! Collection of sums while a context decodes.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use super::entry::{Entry, ImportanceMatrix};
use super::error::ImportanceError;
use super::inputs::{InputObserver, InputSink, MatmulInputs, Use};
use crate::model::{Consumer, Model, TableRow};
use crate::sched::Observer;

/// Result of a collection, shared between a context and its caller.
#[derive(Clone)]
pub struct Collector(Arc<Mutex<Collected>>);

#[derive(Default)]
struct Collected {
    matrix: ImportanceMatrix,
    failure: Option<ImportanceError>,
}

impl Collector {
    /// Continues a matrix, which may be empty.
    pub fn new(matrix: ImportanceMatrix) -> Collector {
        let failure = None;
        Collector(Arc::new(Mutex::new(Collected { matrix, failure })))
    }

    /// Returns an observer for contexts of this model. The matrices outside of layers, such as the output
    /// projection, are included if `outputs` is true. A token embedding that is also the output projection is always
    /// included: without importance, it would be the only such matrix of a quantized file.
    pub fn observer(&self, model: &Model, outputs: bool) -> Box<dyn Observer> {
        let lookups = model.tensors().iter().filter(|row| row.consumer == Consumer::GetRows);
        let tables: HashSet<usize> = lookups.map(|row| row.file_index).collect();
        let is_observed = |row: &TableRow| outputs || row.layer.is_some() || tables.contains(&row.file_index);
        Box::new(InputObserver::new(model, &is_observed, self.clone()))
    }

    /// Calls `f` with the matrix.
    pub fn with<T>(&self, f: impl FnOnce(&mut ImportanceMatrix) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).matrix)
    }

    /// Returns the reason why the observer stopped decoding, if it did.
    pub fn failure(&self) -> Option<ImportanceError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).failure.take()
    }
}

impl InputSink for Collector {
    fn add(&mut self, uses: &[&Use], inputs: &MatmulInputs<'_>) -> ControlFlow<()> {
        let mut collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match uses
            .iter()
            .try_for_each(|found| add(&mut collected.matrix, found, inputs))
        {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                collected.failure = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}

/// Sums of squares and sums of a few rows, which are exact enough in 64 bits.
fn add_row(entry: &mut Entry, matrix: usize, row: impl Iterator<Item = f32>, n: usize) {
    let range = matrix * n..(matrix + 1) * n;
    let Entry { squares, sums, .. } = entry;
    let mut sums = sums.get_mut(range.clone()).map(<[f64]>::iter_mut);
    for (square, x) in squares[range].iter_mut().zip(row) {
        let x = f64::from(x);
        *square += x * x;
        if let Some(sum) = sums.as_mut().and_then(Iterator::next) {
            *sum += x;
        }
    }
}

/// Returns the entry of a tensor.
fn entry<'a>(
    matrix: &'a mut ImportanceMatrix,
    found: &Use,
    n_values: usize,
    n_counts: usize,
) -> Result<&'a mut Entry, ImportanceError> {
    let entry = matrix
        .entries
        .entry(found.tensor.clone())
        .or_insert_with(|| Entry::new(n_values, n_counts));
    if entry.squares.len() != n_values || entry.counts.len() != n_counts {
        return Err(ImportanceError::OtherModel {
            tensor: found.tensor.clone(),
            expected: n_values,
            found: entry.squares.len(),
        });
    }
    Ok(entry)
}

fn add(matrix: &mut ImportanceMatrix, found: &Use, inputs: &MatmulInputs<'_>) -> Result<(), ImportanceError> {
    let ([n, rows, n2, n3], [m2, m3]) = (inputs.x.tensor.ne, found.matrices);
    let n_matrices = m2 * m3;
    let of_experts = inputs.ids.is_some();
    let entry = entry(matrix, found, n * n_matrices, if of_experts { m2 } else { 1 })?;
    inputs.for_each(found, &mut |matrix, at| {
        add_row(entry, matrix, inputs.x.floats(at), n);
        if of_experts {
            entry.counts[matrix] += 1;
        }
    });
    if !of_experts {
        entry.counts[0] += (rows * n2 * n3 / n_matrices) as u64;
    }
    check(found, &entry.squares)
}

fn check(found: &Use, squares: &[f64]) -> Result<(), ImportanceError> {
    if squares.iter().all(|square| square.is_finite()) {
        return Ok(());
    }
    Err(ImportanceError::NotFinite {
        tensor: found.tensor.clone(),
    })
}
