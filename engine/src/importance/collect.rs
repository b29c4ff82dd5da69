//! Collection of sums while a context decodes.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use kernels::GgmlType;

use super::entry::{Entry, ImportanceMatrix};
use super::error::ImportanceError;
use crate::graph::{Graph, Name, Op, Tensor, TensorId};
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
    /// projection, are included if `outputs` is true.
    pub fn observer(&self, model: &Model, outputs: bool) -> Box<dyn Observer> {
        // Rows with an offset are further parts of a tensor in the file, and have the same inputs.
        let is_matrix = |row: &&TableRow| matches!(row.consumer, Consumer::MulMat | Consumer::MulMatId);
        let rows = model.tensors().iter().filter(|row| row.offset == 0).filter(is_matrix);
        let rows = rows.filter(|row| outputs || row.layer.is_some());
        let names = rows.map(|row| {
            let name = Name {
                base: row.base,
                layer: row.layer,
            };
            (name, row.name.clone())
        });
        Box::new(InputObserver {
            names: names.collect(),
            collector: self.clone(),
            version: None,
            uses: HashMap::new(),
            shown: HashMap::new(),
        })
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

/// A matmul whose weights are a tensor of the model.
#[derive(Clone)]
struct Use {
    tensor: String,
    /// Number of matrices of the weights, in both outer dimensions.
    matrices: [usize; 2],
    x: TensorId,
    /// Chosen experts.
    ids: Option<TensorId>,
}

/// Observes the inputs of matmuls.
struct InputObserver {
    names: HashMap<Name, String>,
    collector: Collector,
    /// Version of the graph that `uses` describes.
    version: Option<u64>,
    /// Matmuls by the operands that are observed.
    uses: HashMap<TensorId, Vec<Use>>,
    /// Operands of matmuls with experts in the current run.
    shown: HashMap<TensorId, Vec<u8>>,
}

impl InputObserver {
    fn find_uses(&mut self, graph: &Graph) {
        self.uses.clear();
        for &node in graph.nodes() {
            let Some(found) = self.use_of(graph, graph.tensor(node)) else {
                continue;
            };
            for operand in [Some(found.x), found.ids].into_iter().flatten() {
                let uses = self.uses.entry(operand).or_default();
                // A matrix that is split by rows has several matmuls with the same input.
                if !uses.iter().any(|known| known.tensor == found.tensor) {
                    uses.push(found.clone());
                }
            }
        }
    }

    fn use_of(&self, graph: &Graph, node: &Tensor) -> Option<Use> {
        let is_matmul = matches!(node.op, Op::MulMat | Op::MulMatId);
        let weights = is_matmul.then(|| graph.tensor(graph.memory_owner(node.source(0))))?;
        if !weights.flags.weight || graph.tensor(node.source(1)).ty != GgmlType::F32 {
            return None;
        }
        let tensor = self.names.get(&weights.name)?.clone();
        Some(Use {
            tensor,
            matrices: [weights.ne[2], weights.ne[3]],
            x: node.source(1),
            ids: (node.op == Op::MulMatId).then(|| node.source(2)),
        })
    }

    fn add(&mut self, graph: &Graph, node: TensorId, data: &[u8]) -> Result<(), ImportanceError> {
        let uses = self.uses.remove(&node).unwrap_or_default();
        let result = uses.iter().try_for_each(|found| match found.ids {
            None => {
                let x = Input::new(graph.tensor(node), data);
                self.collector.with(|matrix| add_dense(matrix, found, &x))
            }
            Some(ids) => {
                let other = if node == ids { found.x } else { ids };
                let Some(other_data) = self.shown.get(&other) else {
                    return Ok(());
                };
                let (x, chosen) = if node == ids {
                    (&other_data[..], data)
                } else {
                    (data, &other_data[..])
                };
                let x = Input::new(graph.tensor(found.x), x);
                let chosen = Input::new(graph.tensor(ids), chosen);
                self.collector.with(|matrix| add_experts(matrix, found, &x, &chosen))
            }
        });
        if uses.iter().any(|found| found.ids.is_some()) {
            self.shown.insert(node, data.to_vec());
        }
        self.uses.insert(node, uses);
        result
    }
}

impl Observer for InputObserver {
    fn observes(&mut self, graph: &Graph, node: TensorId) -> bool {
        if self.version != Some(graph.version()) {
            self.find_uses(graph);
            self.version = Some(graph.version());
        }
        if graph.nodes().first() == Some(&node) {
            self.shown.clear();
        }
        self.uses.contains_key(&node)
    }

    fn show(&mut self, graph: &Graph, node: TensorId, data: &[u8]) -> ControlFlow<()> {
        match self.add(graph, node, data) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                let mut collected = self.collector.0.lock().unwrap_or_else(PoisonError::into_inner);
                collected.failure = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}

/// Data of an observed tensor.
struct Input<'a> {
    tensor: &'a Tensor,
    data: &'a [u8],
}

impl<'a> Input<'a> {
    fn new(tensor: &'a Tensor, data: &'a [u8]) -> Input<'a> {
        Input { tensor, data }
    }

    /// Yields the 4-byte elements of a row.
    fn row(&self, at: [usize; 3]) -> impl Iterator<Item = [u8; 4]> + '_ {
        let (ne, nb) = (self.tensor.ne, self.tensor.nb);
        let start = at[0] * nb[1] + at[1] * nb[2] + at[2] * nb[3];
        (0..ne[0]).map(move |i| {
            let bytes = self.data.get(start + i * nb[0]..).and_then(|rest| rest.first_chunk());
            bytes.copied().unwrap_or_default()
        })
    }

    fn floats(&self, at: [usize; 3]) -> impl Iterator<Item = f32> + '_ {
        self.row(at).map(f32::from_le_bytes)
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

fn add_dense(matrix: &mut ImportanceMatrix, found: &Use, x: &Input<'_>) -> Result<(), ImportanceError> {
    let ([n, rows, n2, n3], [m2, m3]) = (x.tensor.ne, found.matrices);
    let entry = entry(matrix, found, n * m2 * m3, 1)?;
    for i3 in 0..n3 {
        for i2 in 0..n2 {
            let index = (i3 % m3) * m2 + i2 % m2;
            for row in 0..rows {
                add_row(entry, index, x.floats([row, i2, i3]), n);
            }
        }
    }
    entry.counts[0] += (rows * n2 * n3 / (m2 * m3)) as u64;
    check(found, &entry.squares)
}

fn add_experts(
    matrix: &mut ImportanceMatrix,
    found: &Use,
    x: &Input<'_>,
    ids: &Input<'_>,
) -> Result<(), ImportanceError> {
    let ([n, n_rows, n_tokens, _], n_experts) = (x.tensor.ne, found.matrices[0]);
    let entry = entry(matrix, found, n * n_experts, n_experts)?;
    for token in 0..n_tokens {
        for (i, id) in ids.row([token, 0, 0]).enumerate() {
            let expert = usize::try_from(i32::from_le_bytes(id)).unwrap_or(usize::MAX);
            if let Some(count) = entry.counts.get_mut(expert) {
                *count += 1;
                add_row(entry, expert, x.floats([i % n_rows.max(1), token, 0]), n);
            }
        }
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
