//! Behavior of plans, an independent check on random graphs, and snapshots.

mod behavior;
mod random;

use std::sync::Arc;

use kernels::GgmlType;

use crate::backend::BufferType;
use crate::graph::{BufferSlice, Flags, Graph, Name, Op, Tensor, TensorId, Unary};

use super::*;

/// Names of test tensors, by position in the graph.
const NAMES: [&str; 16] = [
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
];

/// A graph of f32 vectors whose sizes are given in bytes.
#[derive(Default)]
struct Sketch {
    graph: Graph,
    steps: Vec<AllocStep>,
    leafs: Vec<TensorId>,
}

impl Sketch {
    fn name(&self) -> Name {
        Name {
            base: NAMES[self.graph.len() % NAMES.len()],
            layer: None,
        }
    }

    fn shape(bytes: usize) -> [usize; 4] {
        assert!(bytes.is_multiple_of(4));
        [bytes / 4, 1, 1, 1]
    }

    fn input(&mut self, bytes: usize) -> TensorId {
        let name = self.name().base;
        self.graph.input(GgmlType::F32, Self::shape(bytes), name)
    }

    fn external(&mut self, bytes: usize, home: BufferSlice) -> TensorId {
        let name = self.name();
        self.graph
            .external(GgmlType::F32, Self::shape(bytes), name, home, Flags::default())
    }

    fn op(&mut self, op: Op, bytes: usize, sources: &[TensorId]) -> TensorId {
        let mut t = Tensor::new(GgmlType::F32, Self::shape(bytes), self.name());
        t.op = op;
        for (i, &s) in sources.iter().enumerate() {
            t.src[i] = Some(s);
        }
        self.graph.push(t)
    }

    /// Adds an op that can run in place.
    fn add(&mut self, a: TensorId, b: TensorId) -> TensorId {
        let bytes = self.graph.tensor(a).nbytes();
        self.op(Op::Add, bytes, &[a, b])
    }

    /// Adds a unary op that can run in place.
    fn neg(&mut self, a: TensorId) -> TensorId {
        let bytes = self.graph.tensor(a).nbytes();
        self.op(Op::Unary(Unary::Neg), bytes, &[a])
    }

    /// Adds an op that cannot run in place and has a result of a different size.
    fn repeat(&mut self, a: TensorId, bytes: usize) -> TensorId {
        self.op(Op::Repeat, bytes, &[a])
    }

    fn view(&mut self, a: TensorId, bytes: usize, offset: usize) -> TensorId {
        let base = self.graph.tensor(a).view.map_or(0, |(_, o)| o);
        let owner = self.graph.memory_owner(a);
        let id = self.op(Op::View, bytes, &[a]);
        self.graph.tensor_mut(id).view = Some((owner, base + offset));
        id
    }

    fn expand(&mut self, output: TensorId) {
        self.graph.tensor_mut(output).flags.output = true;
        self.graph.expand(output);
        self.leafs = self.graph.leafs().to_vec();
        self.steps = self.graph.nodes().iter().map(|&n| AllocStep::Compute(n)).collect();
    }

    fn order(&self) -> Order<'_> {
        Order {
            leafs: &self.leafs,
            steps: &self.steps,
        }
    }

    fn plan_text(&self, types: &[Arc<dyn BufferType>], type_of: impl Fn(TensorId) -> usize) -> String {
        let mut allocator = GraphAllocator::new(types);
        allocator.plan(&self.graph, self.order(), type_of).unwrap();
        random::check(self, &allocator.plan);
        allocator.describe(&self.graph, self.order())
    }
}
