//! Observation of the inputs of a model's matmuls while a context decodes.

use std::collections::HashMap;
use std::ops::ControlFlow;

use kernels::GgmlType;

use crate::graph::{Graph, Name, Op, Tensor, TensorId};
use crate::model::{Consumer, Model, TableRow};
use crate::sched::Observer;

/// Receiver of the inputs of matmuls.
pub(crate) trait InputSink: Send {
    /// Called before the first matmul of a graph is computed.
    fn begin(&mut self) {}

    /// Receives inputs. All matmuls of a call share the same inputs and expert ids. `Break` stops the computation.
    fn add(&mut self, uses: &[&Use], inputs: &MatmulInputs<'_>) -> ControlFlow<()>;
}

/// A matmul whose weights are a tensor of the model.
#[derive(Clone)]
pub(crate) struct Use {
    /// Name of the tensor in the file.
    pub tensor: String,
    /// Number of matrices of the weights, in both outer dimensions.
    pub matrices: [usize; 2],
    x: TensorId,
    /// Chosen experts.
    ids: Option<TensorId>,
}

/// Inputs of a matmul.
pub(crate) struct MatmulInputs<'a> {
    pub x: Input<'a>,
    /// Selected experts of each token.
    pub ids: Option<Input<'a>>,
}

impl MatmulInputs<'_> {
    /// Calls `visit` with the index of a matrix and the position of each of its inputs.
    pub fn for_each(&self, found: &Use, visit: &mut dyn FnMut(usize, [usize; 3])) {
        let ([_, n1, n2, n3], [m2, m3]) = (self.x.tensor.ne, found.matrices);
        let Some(ids) = &self.ids else {
            for i3 in 0..n3 {
                for i2 in 0..n2 {
                    let matrix = (i3 % m3) * m2 + i2 % m2;
                    (0..n1).for_each(|i1| visit(matrix, [i1, i2, i3]));
                }
            }
            return;
        };
        for token in 0..n2 {
            for (i, id) in ids.row([token, 0, 0]).enumerate() {
                let expert = usize::try_from(i32::from_le_bytes(id)).unwrap_or(usize::MAX);
                if expert < m2 {
                    visit(expert, [i % n1.max(1), token, 0]);
                }
            }
        }
    }
}

/// Observes the inputs of matmuls.
pub(crate) struct InputObserver<S> {
    names: HashMap<Name, String>,
    sink: S,
    /// Version of the graph to which `uses` belongs; see `Graph::version`.
    version: Option<u64>,
    /// Matmuls by the operands that are observed.
    uses: HashMap<TensorId, Vec<Use>>,
    /// Operands of matmuls with experts in the current run.
    shown: HashMap<TensorId, Vec<u8>>,
}

impl<S: InputSink> InputObserver<S> {
    /// Observes the matrices of a model that `is_observed` returns true for.
    pub fn new(model: &Model, is_observed: &dyn Fn(&TableRow) -> bool, sink: S) -> InputObserver<S> {
        // Rows with a nonzero offset are further parts of the same tensor and read the same inputs.
        let is_matrix = |row: &&TableRow| matches!(row.consumer, Consumer::MulMat | Consumer::MulMatId);
        let rows = model.tensors().iter().filter(|row| row.offset == 0).filter(is_matrix);
        let names = rows.filter(|row| is_observed(row)).map(|row| {
            let name = Name {
                base: row.base,
                layer: row.layer,
            };
            (name, row.name.clone())
        });
        InputObserver {
            names: names.collect(),
            sink,
            version: None,
            uses: HashMap::new(),
            shown: HashMap::new(),
        }
    }

    fn find_uses(&mut self, graph: &Graph) {
        self.uses.clear();
        for &node in graph.nodes() {
            let Some(found) = self.use_of(graph, graph.tensor(node)) else {
                continue;
            };
            for operand in [Some(found.x), found.ids].into_iter().flatten() {
                let uses = self.uses.entry(operand).or_default();
                // A matrix that is split by rows has several matmuls with one input.
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

    fn add(&mut self, graph: &Graph, node: TensorId, data: &[u8]) -> ControlFlow<()> {
        let uses = self.uses.remove(&node).unwrap_or_default();
        let mut rest: Vec<&Use> = uses.iter().collect();
        let mut result = ControlFlow::Continue(());
        while let (Some(first), ControlFlow::Continue(())) = (rest.first().copied(), result) {
            let equal;
            (equal, rest) = rest
                .into_iter()
                .partition(|found| (found.x, found.ids) == (first.x, first.ids));
            let shown = |id: TensorId| {
                let data = if id == node {
                    Some(data)
                } else {
                    self.shown.get(&id).map(Vec::as_slice)
                };
                data.map(|data| Input::new(graph.tensor(id), data))
            };
            let (Some(x), ids) = (shown(first.x), first.ids.map(shown)) else {
                continue;
            };
            if !matches!(ids, Some(None)) {
                let ids = ids.flatten();
                result = self.sink.add(&equal, &MatmulInputs { x, ids });
            }
        }
        if uses.iter().any(|found| found.ids.is_some()) {
            self.shown.insert(node, data.to_vec());
        }
        self.uses.insert(node, uses);
        result
    }
}

impl<S: InputSink> Observer for InputObserver<S> {
    fn observes(&mut self, graph: &Graph, node: TensorId) -> bool {
        if self.version != Some(graph.version()) {
            self.find_uses(graph);
            self.version = Some(graph.version());
        }
        if graph.nodes().first() == Some(&node) {
            self.shown.clear();
            self.sink.begin();
        }
        self.uses.contains_key(&node)
    }

    fn show(&mut self, graph: &Graph, node: TensorId, data: &[u8]) -> ControlFlow<()> {
        self.add(graph, node, data)
    }
}

/// Data of an observed tensor.
pub(crate) struct Input<'a> {
    pub tensor: &'a Tensor,
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

    /// Yields the elements of a row.
    pub fn floats(&self, at: [usize; 3]) -> impl Iterator<Item = f32> + '_ {
        self.row(at).map(f32::from_le_bytes)
    }
}
