//! Execution plans: nodes with resolved addresses, fusions, barriers, and scratch sizes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::activations::Quantization;
use super::error::NAME;
use super::queue::Counters;
use super::scratch::ScratchSize;
use super::view::NodeMemory;
use super::weight_prefetch::WeightPrefetcher;
use crate::backend::{BackendError, GraphView, MemoryMap, Plan};
use crate::graph::{Graph, Unary};

/// A group of adjacent nodes that are computed together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Fusion {
    /// A sum followed by its RMS norm.
    AddRmsNorm {
        /// Epsilon of the norm.
        eps: f32,
        /// True if the sum has other readers and must therefore also be stored.
        stores_sum: bool,
    },
    /// A matmul with few columns, and the sum of its result and another tensor. The matmul's result is not
    /// stored.
    MatmulAdd {
        /// Index of the other tensor among the operands of the sum.
        other: usize,
    },
    /// Two matmuls with the same activations, combined as `f(gate) * up`. Neither matmul's result is stored.
    MatmulGlu {
        f: Unary,
        /// True if the first matmul is the gate.
        gate_is_first: bool,
    },
}

/// Maximum number of nodes in a fusion.
pub(super) const MAX_FUSED: usize = 3;

impl Fusion {
    /// Returns the number of fused nodes.
    pub(super) fn n_nodes(&self) -> usize {
        match self {
            Fusion::AddRmsNorm { .. } | Fusion::MatmulAdd { .. } => 2,
            Fusion::MatmulGlu { .. } => 3,
        }
    }
}

/// Step of a node that threads execute in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodePart {
    /// Computation of the node.
    Compute,
    /// Quantization of a matmul's activations into the shared buffer.
    Quantize,
    /// Merge of partial attention results.
    Merge,
}

/// A node of a plan.
pub(super) struct PlannedNode {
    pub(super) memory: NodeMemory,
    /// True for a small node: a single thread computes all small nodes of a phase.
    pub(super) solo: bool,
    /// Fusion with the next nodes of the plan, if any.
    pub(super) fusion: Option<Fusion>,
    /// Quantized form in which to store the result; `None` for f32.
    pub(super) stores: Option<Quantization>,
    /// Quantization of a matmul's activations; `None` for f32.
    pub(super) activations: Option<Quantization>,
    /// Index of the plan's norm that threads recompute to get the matmul's activations.
    pub(super) norm: Option<usize>,
    /// True if a matmul with f32 activations may accumulate in [any
    /// order](kernels::MatMul::allow_reassociation).
    pub(super) allow_reassociation: bool,
    /// Version of the quantized activations. A thread compares it to detect whether its buffer already holds them.
    pub(super) activations_number: u32,
    pub(super) part: NodePart,
    /// True if the node's function supports [stealing](super::queue::WorkQueue::finish) of its chunks.
    pub(super) offers: bool,
}

impl PlannedNode {
    /// Creates a node that is computed alone, from and to f32 values.
    pub(super) fn new(memory: NodeMemory) -> PlannedNode {
        PlannedNode {
            memory,
            solo: false,
            fusion: None,
            stores: None,
            activations: None,
            norm: None,
            allow_reassociation: false,
            activations_number: 0,
            part: NodePart::Compute,
            offers: false,
        }
    }

    /// Returns a copy of this node for another step.
    pub(super) fn part(&self, part: NodePart) -> PlannedNode {
        PlannedNode {
            fusion: None,
            part,
            offers: false,
            ..*self
        }
    }
}

/// An execution plan for the CPU backend.
#[derive(Default)]
pub(super) struct CpuPlan {
    pub(super) nodes: Vec<PlannedNode>,
    /// Norms that belong to no phase, since every thread recomputes them when it reaches a matmul of their
    /// result. Their inputs are not written in the phases of these matmuls.
    pub(super) norms: Vec<PlannedNode>,
    /// Phases: ranges of nodes between barriers.
    pub(super) phases: Vec<Phase>,
    pub(super) ahead: WeightPrefetcher,
    /// Work counters of the nodes.
    pub(super) taken: Counters,
    pub(super) scratch_size: ScratchSize,
    /// Scratch memory for quantized activations.
    pub(super) quantized_scratch_size: ScratchSize,
    /// Version of the graph, and stamp of the memory that the addresses refer to.
    valid_for: (u64, u64),
}

impl Plan for CpuPlan {}

/// A range of nodes that need no barrier in between.
pub(super) struct Phase {
    pub(super) nodes: Range<usize>,
    /// True once a thread has claimed the small nodes of this phase.
    has_solo: AtomicBool,
}

impl Phase {
    /// Claims the small nodes of this phase. Returns true for exactly one thread per run.
    pub(super) fn take_solo(&self) -> bool {
        // Most threads only read the flag, so that its cache line is shared.
        !self.has_solo.load(Ordering::Relaxed) && !self.has_solo.swap(true, Ordering::Relaxed)
    }
}

impl CpuPlan {
    /// Resets the work counters before a run.
    pub(super) fn start(&mut self) {
        self.taken.start();
        self.phases
            .iter_mut()
            .for_each(|phase| *phase.has_solo.get_mut() = false);
    }

    /// Clears the plan and reserves capacity for the nodes of a view.
    pub(super) fn clear(&mut self, view: &GraphView<'_>, memory: &MemoryMap) {
        let n = view.nodes.len();
        self.nodes.clear();
        // A node may add a quantize step before it or a merge step after it.
        self.nodes.reserve(2 * n);
        self.norms.clear();
        self.norms.reserve(n);
        self.phases.clear();
        self.phases.reserve(2 * n);
        self.scratch_size = ScratchSize::default();
        self.quantized_scratch_size = ScratchSize::default();
        self.valid_for = (view.graph.version(), memory.stamp());
    }

    /// Appends a node, in a new phase if it needs a barrier before it.
    pub(super) fn push(&mut self, node: PlannedNode, barrier: bool) {
        let at = self.nodes.len();
        if barrier || self.phases.is_empty() {
            self.phases.push(Phase {
                nodes: at..at,
                has_solo: AtomicBool::new(false),
            });
        }
        self.nodes.push(node);
        self.phases
            .iter_mut()
            .next_back()
            .expect("a phase was pushed above")
            .nodes
            .end = at + 1;
    }

    /// Returns an error unless graph and memory are unchanged since planning, which guarantees that all
    /// addresses are valid.
    pub(super) fn check_fresh(&self, graph: &Graph, memory: &MemoryMap) -> Result<(), BackendError> {
        if (graph.version(), memory.stamp()) == self.valid_for {
            return Ok(());
        }
        Err(BackendError::StalePlan {
            device: NAME.to_string(),
        })
    }
}
