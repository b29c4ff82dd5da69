//! Execution plans: checked nodes with resolved addresses, barriers, fusions, and scratch sizes.

use kernels::Precision;

use super::NAME;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::activations::{Quantization, QuantizedCache, Storage};
use super::barriers::{Access, Barriers};
use super::fuse::{Fusion, FusionContext, MAX_FUSED};
use super::ops::{self, ScratchSize};
use super::queue::Counters;
use super::view::{NodePart, PlannedNode, locate};
use super::weight_prefetch::WeightPrefetcher;
use crate::backend::{BackendError, GraphView, MemoryMap, Plan, rules};
use crate::graph::{Graph, MAX_SRC, Op, TensorId};

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
        !self.has_solo.swap(true, Ordering::Relaxed)
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
    fn clear(&mut self, view: &GraphView<'_>, memory: &MemoryMap) {
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
    fn push(&mut self, node: PlannedNode, barrier: bool) {
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

    /// Records the weights that threads may prefetch before each phase: those of memory-bound matmuls.
    fn plan_prefetch(&mut self, graph: &Graph) {
        self.ahead.clear(self.nodes.len());
        for phase in &self.phases {
            let products = self.nodes[phase.nodes.clone()].iter().filter(|node| node.offers);
            let matrices = products.filter(|node| graph.tensor(node.id).op == Op::MulMat);
            self.ahead
                .add_phase(matrices.map(|node| ops::next_weights(graph, node)));
        }
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

/// Builds plans, and reuses its buffers between plans.
pub(super) struct Planner {
    precision: Precision,
    quantized_cache: QuantizedCache,
    barriers: Barriers,
    accesses: Vec<Access>,
}

impl Planner {
    pub(super) fn new(precision: Precision) -> Planner {
        Planner {
            precision,
            quantized_cache: QuantizedCache::default(),
            barriers: Barriers::new(),
            // Results, operands, and shared scratch memory of the fused nodes, plus the operands of a norm.
            accesses: Vec::with_capacity(MAX_FUSED * (MAX_SRC + 2) + MAX_SRC),
        }
    }

    /// Builds a plan for the nodes of a view, on up to `n_threads` threads. Running the plan can only fail
    /// because of row or expert indices out of range.
    pub(super) fn plan(
        &mut self,
        plan: &mut CpuPlan,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        n_threads: usize,
    ) -> Result<(), BackendError> {
        plan.clear(view, memory);
        self.barriers.start();
        self.quantized_cache.start(view.nodes.len());
        let not_empty = |id: &TensorId| !view.graph.tensor(*id).ne.contains(&0);
        let mut nodes = view.computing().filter(not_empty);
        while let Some(id) = nodes.next() {
            self.accesses.clear();
            let mut first = self.plan_node(plan, view, memory, id, n_threads)?;
            let after = nodes.clone().take_while(|&next| ops::check(view.graph, next).is_ok());
            let outlook = self.outlook(view, memory);
            if let Some(read) = outlook.recomputable_norm(id, nodes.clone()) {
                self.quantized_cache.add_norm(read, id, plan.norms.len());
                plan.norms.push(first);
                continue;
            }
            first.fusion = outlook.fusion(id, after);
            let mut others = [const { None }; MAX_FUSED - 1];
            for other in others
                .iter_mut()
                .take(first.fusion.map_or(0, |fusion| fusion.n_nodes() - 1))
            {
                let next = nodes.next().expect("fused nodes were taken from this iterator");
                let node = self.plan_node(plan, view, memory, next, n_threads)?;
                first.solo &= node.solo;
                plan.scratch_size = plan
                    .scratch_size
                    .max(ops::fused_scratch_size(view.graph, first.fusion, next));
                *other = Some(node);
            }
            let outlook = self.outlook(view, memory);
            let fusion = first.fusion;
            let last = others.iter_mut().flatten().next_back().unwrap_or(&mut first);
            if let Some((read, form)) = outlook.output_format(id, fusion, last.id, nodes.clone()) {
                last.stores = Some(form);
                self.quantized_cache.store(read, form.in_place());
            }
            self.quantize_before(plan, view, memory, &mut first)?;
            if let (Some(Fusion::MatmulGlu { .. }), Some(second)) = (first.fusion, &mut others[0]) {
                first.offers &= self.is_stealable(view, memory, second)?;
                second.offers = first.offers;
            }
            let barrier = self.barriers.before(&self.accesses, first.solo);
            let merging = self.merging(view.graph, &first, n_threads);
            plan.push(first, barrier);
            for other in others.into_iter().flatten() {
                plan.push(other, false);
            }
            if let Some(merging) = merging {
                let barrier = self.barriers.before(&self.accesses, merging.solo);
                plan.push(merging, barrier);
            }
        }
        plan.taken.resize(plan.nodes.len(), n_threads);
        plan.plan_prefetch(view.graph);
        Ok(())
    }

    fn outlook<'a>(&'a self, view: &'a GraphView<'a>, memory: &'a MemoryMap) -> FusionContext<'a> {
        FusionContext {
            view,
            memory,
            precision: self.precision,
            quantized_cache: &self.quantized_cache,
        }
    }

    /// Adds a step that quantizes the activations of a matmul into the shared buffer, unless an earlier
    /// matmul already did. Adds the matmul's reads to its accesses.
    fn quantize_before(
        &mut self,
        plan: &mut CpuPlan,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        node: &mut PlannedNode,
    ) -> Result<(), BackendError> {
        let tensor = view.graph.tensor(node.id);
        if tensor.op.state_operand().is_some() {
            self.quantized_cache.forget();
        }
        let Some(quantized) = node.activations else {
            return Ok(());
        };
        plan.quantized_scratch_size = plan.quantized_scratch_size.max(quantized.scratch_size());
        let x = tensor.source(1);
        if let Some(stored) = self.quantized_cache.stored(x) {
            debug_assert_eq!(stored, quantized.in_place());
            node.activations = Some(stored);
            return Ok(());
        }
        let (number, is_new) = self.quantized_cache.number(x, quantized);
        node.activations_number = number;
        if quantized.storage == Storage::PerThread {
            node.offers = !node.solo && self.is_stealable(view, memory, node)?;
            if let Some((norm, i)) = self.quantized_cache.norm(x) {
                node.norm = Some(i);
                for source in view.graph.tensor(norm).sources() {
                    self.accesses.push(locate(view.graph, memory, source)?.access(false));
                }
            }
            return Ok(());
        }
        self.accesses.push(Access::shared_activations(false));
        if is_new {
            let reads = locate(view.graph, memory, x)?.access(false);
            let mut part = node.part(NodePart::Quantize);
            part.solo = false;
            let barrier = self.barriers.before(&[reads, Access::shared_activations(true)], false);
            plan.push(part, barrier);
        }
        Ok(())
    }

    /// Returns true if threads may steal chunks of a matmul, given that each thread has the quantized
    /// activations in its own buffer.
    fn is_stealable(
        &self,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        product: &PlannedNode,
    ) -> Result<bool, BackendError> {
        let tensor = view.graph.tensor(product.id);
        let weights = locate(view.graph, memory, tensor.source(0))?;
        Ok(ops::is_stealable(view.graph, tensor, &weights))
    }

    /// Returns the merge step of attention if threads may share the parts of a unit.
    fn merging(&self, graph: &Graph, node: &PlannedNode, n_threads: usize) -> Option<PlannedNode> {
        let is_attention = matches!(graph.tensor(node.id).op, Op::Attention(_));
        (is_attention && !node.solo && n_threads > 1).then(|| node.part(NodePart::Merge))
    }

    /// Checks a node, resolves the addresses of its operands, and updates the plan's scratch sizes.
    fn plan_node(
        &mut self,
        plan: &mut CpuPlan,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        id: TensorId,
        n_threads: usize,
    ) -> Result<PlannedNode, BackendError> {
        let graph = view.graph;
        ops::check(graph, id).map_err(|_| rules::unsupported(graph, id))?;
        let scratch_size = ops::scratch_size(graph, id, n_threads);
        plan.scratch_size = plan.scratch_size.max(scratch_size);
        let mut node = PlannedNode::new(graph, memory, id, &mut self.accesses)?;
        if scratch_size.shared > 0 {
            self.accesses.push(Access::SHARED_SCRATCH);
        }
        node.solo = ops::is_small(graph, id);
        node.activations = Quantization::for_matmul(graph, graph.tensor(id), self.precision);
        node.allow_reassociation = self.precision == Precision::Fast;
        Ok(node)
    }
}
