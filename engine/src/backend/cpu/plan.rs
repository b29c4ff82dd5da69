//! Plans: nodes that were checked and found in memory, with barriers and fusions decided, and the scratch memory they need.

use kernels::Precision;

use super::NAME;
use super::activations::{Held, Quantized};
use super::barriers::{Access, Barriers};
use super::fuse::fusion;
use super::ops::{self, Need, norm};
use super::view::{PlannedNode, locate};
use crate::backend::{BackendError, GraphView, MemoryMap, Plan, rules};
use crate::graph::{Graph, MAX_SRC, TensorId};

/// What the CPU computes in a run.
#[derive(Default)]
pub(super) struct CpuPlan {
    pub(super) nodes: Vec<PlannedNode>,
    pub(super) need: Need,
    /// Memory for quantized activations.
    pub(super) need_quantized: Need,
    /// Version of the graph that the nodes belong to, and stamp of the memory where their operands and results lie.
    made_for: (u64, u64),
}

impl Plan for CpuPlan {}

impl CpuPlan {
    /// An error unless graph and memory are what the plan was made for: then all its addresses are good.
    pub(super) fn check_fresh(&self, graph: &Graph, memory: &MemoryMap) -> Result<(), BackendError> {
        if (graph.version(), memory.stamp()) == self.made_for {
            return Ok(());
        }
        Err(BackendError::StalePlan {
            device: NAME.to_string(),
        })
    }
}

/// Makes plans; keeps its tables from plan to plan.
pub(super) struct Planner {
    precision: Precision,
    held: Held,
    barriers: Barriers,
    accesses: Vec<Access>,
}

impl Planner {
    pub(super) fn new(precision: Precision) -> Planner {
        Planner {
            precision,
            held: Held::default(),
            barriers: Barriers::new(),
            // Results, operands and shared scratch memory of two fused nodes.
            accesses: Vec::with_capacity(2 * (MAX_SRC + 2)),
        }
    }

    /// Makes `plan` one for these nodes, on up to `n_threads`. After this, only numbers of rows and experts can be wrong.
    pub(super) fn plan(
        &mut self,
        plan: &mut CpuPlan,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        n_threads: usize,
    ) -> Result<(), BackendError> {
        plan.nodes.clear();
        plan.nodes.reserve(view.nodes.len());
        plan.need = Need::default();
        plan.need_quantized = Need::default();
        plan.made_for = (view.graph.version(), memory.stamp());
        self.barriers.start();
        self.held.forget();
        let not_empty = |id: &TensorId| !view.graph.tensor(*id).ne.contains(&0);
        let mut nodes = view.computing().filter(not_empty).peekable();
        while let Some(id) = nodes.next() {
            self.accesses.clear();
            let mut first = self.plan_node(plan, view, memory, id, n_threads)?;
            let second = nodes.next_if(|&next| {
                first.fusion = fusion(view, memory, id, next).filter(|_| ops::check(view.graph, next).is_ok());
                first.fusion.is_some()
            });
            let second = second.map(|next| self.plan_node(plan, view, memory, next, n_threads));
            let second = second.transpose()?;
            if let Some(second) = &second {
                first.solo &= second.solo;
                plan.need = plan.need.max(norm::add_rms_norm_need(view.graph.tensor(second.id)));
            }
            if let Some(quantizing) = self.quantizing(plan, view, memory, &first)? {
                plan.nodes.push(quantizing);
            }
            first.barrier = self.barriers.before(&self.accesses, first.solo);
            plan.nodes.push(first);
            plan.nodes.extend(second);
        }
        Ok(())
    }

    /// The step that quantizes the activations of a product, if it has any that no earlier product had. Adds what the product itself reads
    /// to its accesses.
    fn quantizing(
        &mut self,
        plan: &mut CpuPlan,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        node: &PlannedNode,
    ) -> Result<Option<PlannedNode>, BackendError> {
        let tensor = view.graph.tensor(node.id);
        if tensor.op.state_operand().is_some() {
            self.held.forget();
        }
        let Some(quantized) = node.activations else {
            return Ok(None);
        };
        plan.need_quantized = plan.need_quantized.max(quantized.need());
        self.accesses.extend(quantized.access(false));
        let x = tensor.source(1);
        if !self.held.lacks(x, quantized, node.solo) {
            return Ok(None);
        }
        let mut step = node.quantizing();
        let reads = locate(view.graph, memory, x)?.access(false);
        let writes = quantized.access(true);
        let (both, one) = ([reads, writes.unwrap_or(reads)], [reads]);
        let accesses: &[Access] = if writes.is_some() { &both } else { &one };
        step.barrier = self.barriers.before(accesses, step.solo);
        Ok(Some(step))
    }

    /// Checks a node and finds its operands. Adds to the plan's buffers and scratch memory.
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
        let need = ops::need(graph, id, n_threads);
        plan.need = plan.need.max(need);
        let mut node = PlannedNode::new(graph, memory, id, &mut self.accesses)?;
        if need.shared > 0 {
            self.accesses.push(Access::SHARED_SCRATCH);
        }
        node.solo = ops::is_small(graph, id);
        node.activations = Quantized::for_product(graph, graph.tensor(id), self.precision);
        Ok(node)
    }
}
