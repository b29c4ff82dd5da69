//! State of the fusion pass: the nodes of a split, their readers, and the steps.

use std::collections::HashMap;

use kernels::Precision;

use super::super::buffer::CudaBuffer;
use super::super::gpu::Gpu;
use super::super::ops::{self, Step};
use super::super::planned_memory::PlannedBuffer;
use crate::backend::{GraphView, MemoryMap};
use crate::graph::{Graph, Tensor, TensorId};

/// Number of following nodes to search for members of a step.
const NEAR: usize = 16;

/// Results relocated to scratch memory, with their byte offsets there.
pub(in super::super) type ScratchOffsets = HashMap<TensorId, usize>;

/// Steps computed for a split of the graph.
#[derive(Default)]
pub(in super::super) struct Steps {
    pub(in super::super) steps: Vec<Step>,
    pub(in super::super) moved: ScratchOffsets,
    /// Scratch memory for relocated results, in bytes.
    pub(in super::super) moved_bytes: usize,
}

/// State of the fusion pass.
pub(super) struct FusionPass<'a> {
    pub(super) graph: &'a Graph,
    view: &'a GraphView<'a>,
    memory: &'a MemoryMap,
    pub(super) precision: Precision,
    gpu: Gpu,
    /// Nodes that need computation, in order.
    pub(super) nodes: Vec<TensorId>,
    pub(super) positions: HashMap<TensorId, usize>,
    /// Readers of each tensor, including views. A node that reads a tensor twice is listed twice.
    readers: HashMap<TensorId, Vec<TensorId>>,
    /// True for nodes that belong to a step.
    pub(super) taken: Vec<bool>,
    /// Position of the last reader of a relocated result.
    pub(super) moved_until: usize,
    /// Bytes of scratch memory in use for relocated results.
    pub(super) moved_bytes: usize,
    pub(super) found: Steps,
}

impl<'a> FusionPass<'a> {
    pub(super) fn new(
        view: &'a GraphView<'a>,
        memory: &'a MemoryMap,
        precision: Precision,
        gpu: Gpu,
    ) -> FusionPass<'a> {
        let nodes: Vec<TensorId> = view.computing().collect();
        let mut readers: HashMap<TensorId, Vec<TensorId>> = HashMap::new();
        for &node in view.nodes {
            for source in view.graph.tensor(node).sources() {
                readers.entry(source).or_default().push(node);
            }
        }
        FusionPass {
            graph: view.graph,
            view,
            memory,
            precision,
            gpu,
            positions: nodes.iter().enumerate().map(|(i, &id)| (id, i)).collect(),
            taken: vec![false; nodes.len()],
            readers,
            nodes,
            moved_until: 0,
            moved_bytes: 0,
            found: Steps::default(),
        }
    }

    pub(super) fn tensor(&self, i: usize) -> &'a Tensor {
        self.graph.tensor(self.nodes[i])
    }

    /// Returns true if kernels for few columns compute this matmul.
    pub(super) fn has_few_columns(&self, product: &Tensor) -> bool {
        ops::has_few_columns(self.gpu, self.precision, self.graph, product)
    }

    /// Returns the positions of the next [`NEAR`] nodes starting at `i` that belong to no step yet.
    pub(super) fn near(&self, i: usize) -> impl Iterator<Item = usize> + '_ {
        (i..self.nodes.len()).take(NEAR).filter(|&at| !self.taken[at])
    }

    /// Returns the nodes that read a result or views of it. Returns `None` if it also has readers outside
    /// this split.
    pub(super) fn readers_of(&self, id: TensorId) -> Option<Vec<usize>> {
        let mut found = Vec::new();
        let mut left = vec![id];
        while let Some(id) = left.pop() {
            let readers = self.readers.get(&id).map_or(&[][..], |readers| readers);
            if readers.len() != self.view.uses.n_readers(id) {
                return None;
            }
            for reader in readers {
                match self.positions.get(reader) {
                    Some(&at) => found.push(at),
                    None => left.push(*reader),
                }
            }
        }
        Some(found)
    }

    /// Returns the only reader of a result, if that belongs to no step yet.
    pub(super) fn only_reader(&self, id: TensorId) -> Option<usize> {
        match self.readers_of(id)?[..] {
            [at] if !self.taken[at] => Some(at),
            _ => None,
        }
    }

    /// Returns the address of a tensor's first byte.
    pub(super) fn address(&self, id: TensorId) -> Option<u64> {
        let home = self.graph.home(id)?;
        let buffer = self.memory.get(home.buffer).ok()?;
        let any = buffer.as_any();
        let ours = any.downcast_ref::<CudaBuffer>().map(|ours| ours.memory().address());
        let start = ours.or_else(|| any.downcast_ref::<PlannedBuffer>().map(|planned| planned.address))?;
        Some(start + home.offset as u64)
    }
}
