//! The planner: checks nodes, resolves their addresses, and decides about barriers, fusions, and scratch sizes.

use std::sync::Arc;

use kernels::Precision;

use super::activations::{Quantization, QuantizedCache, Storage};
use super::barriers::{Access, Barriers};
use super::fuse::FusionContext;
use super::groups::Groups;
use super::ops::{self, mul_mat};
use super::plan::{CpuPlan, Fusion, MAX_FUSED, NodePart, PlannedNode};
use super::view::{NodeMemory, locate};
use crate::backend::{BackendError, GraphView, MemoryMap, rules};
use crate::graph::{Graph, MAX_SRC, Op, TensorId};

/// Builds plans, and reuses its buffers between plans.
pub(super) struct Planner {
    precision: Precision,
    n_nodes: usize,
    quantized_cache: QuantizedCache,
    barriers: Barriers,
    accesses: Vec<Access>,
}

impl Planner {
    /// Creates a planner for threads on `n_nodes` NUMA nodes.
    pub(super) fn new(precision: Precision, n_nodes: usize) -> Planner {
        Planner {
            precision,
            n_nodes,
            quantized_cache: QuantizedCache::default(),
            barriers: Barriers::new(),
            // Results, operands, and shared scratch memory of the fused nodes, plus the operands of a norm.
            accesses: Vec::with_capacity(MAX_FUSED * (MAX_SRC + 2) + MAX_SRC),
        }
    }

    /// Builds a plan for the nodes of a view, on the threads of `groups`. Running the plan can only fail
    /// because of row or expert indices out of range.
    pub(super) fn plan(
        &mut self,
        plan: &mut CpuPlan,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        groups: &Arc<Groups>,
    ) -> Result<(), BackendError> {
        let n_threads = groups.n_workers();
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
            if self.n_nodes == 1
                && let Some((read, form)) = outlook.output_format(id, fusion, last.memory.id, nodes.clone())
            {
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
        plan.taken.resize(plan.nodes.len(), groups);
        plan_prefetch(plan, view.graph);
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
        let tensor = view.graph.tensor(node.memory.id);
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
        let tensor = view.graph.tensor(product.memory.id);
        let weights = locate(view.graph, memory, tensor.source(0))?;
        Ok(mul_mat::is_stealable(view.graph, tensor, &weights))
    }

    /// Returns the merge step of attention if threads may share the parts of a unit.
    fn merging(&self, graph: &Graph, node: &PlannedNode, n_threads: usize) -> Option<PlannedNode> {
        let is_attention = matches!(graph.tensor(node.memory.id).op, Op::Attention(_));
        if is_attention && !node.solo && n_threads > 1 {
            Some(node.part(NodePart::Merge))
        } else {
            None
        }
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
        let memory = NodeMemory::new(graph, memory, id, &mut self.accesses)?;
        if scratch_size.shared > 0 {
            self.accesses.push(Access::SHARED_SCRATCH);
        }
        Ok(PlannedNode {
            solo: ops::is_small(graph, id),
            activations: Quantization::for_matmul(graph, graph.tensor(id), self.precision),
            allow_reassociation: self.precision.is_fast(),
            ..PlannedNode::new(memory)
        })
    }
}

/// Records the weights that threads may prefetch before each phase: the weights of memory-bound matmuls.
fn plan_prefetch(plan: &mut CpuPlan, graph: &Graph) {
    plan.ahead.clear(plan.nodes.len());
    for phase in &plan.phases {
        let products = plan.nodes[phase.nodes.clone()].iter().filter(|node| node.offers);
        let matrices = products.filter(|node| graph.tensor(node.memory.id).op == Op::MulMat);
        plan.ahead
            .add_phase(matrices.map(|node| mul_mat::next_weights(graph, &node.memory)));
    }
}
