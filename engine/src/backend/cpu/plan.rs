//! Plans: nodes that were checked and found in memory, with barriers and fusions decided, and the scratch memory they need.

use kernels::Precision;

use super::NAME;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::activations::{Held, Quantized, Room};
use super::ahead::Ahead;
use super::barriers::{Access, Barriers};
use super::fuse::{Fusion, MAX_FUSED, Outlook};
use super::ops::{self, Need};
use super::queue::Counters;
use super::view::{NodePart, PlannedNode, locate};
use crate::backend::{BackendError, GraphView, MemoryMap, Plan, rules};
use crate::graph::{Graph, MAX_SRC, Op, TensorId};

/// What the CPU computes in a run.
#[derive(Default)]
pub(super) struct CpuPlan {
    pub(super) nodes: Vec<PlannedNode>,
    /// Norms that are no nodes of any phase, because every thread computes them for itself when it comes to a product of them. What they are made of is not
    /// written in the phases of these products.
    pub(super) norms: Vec<PlannedNode>,
    /// Neighbouring nodes between barriers.
    pub(super) phases: Vec<Phase>,
    pub(super) ahead: Ahead,
    /// Of the nodes.
    pub(super) taken: Counters,
    pub(super) need: Need,
    /// Memory for quantized activations.
    pub(super) need_quantized: Need,
    /// Version of the graph that the nodes belong to, and stamp of the memory where their operands and results lie.
    made_for: (u64, u64),
}

impl Plan for CpuPlan {}

/// Nodes that need no barrier between them.
pub(super) struct Phase {
    pub(super) nodes: Range<usize>,
    /// A thread has come to the first node that one thread alone computes, and so will compute all of these.
    has_solo: AtomicBool,
}

impl Phase {
    /// True for one thread of those that ask in a run.
    pub(super) fn take_solo(&self) -> bool {
        !self.has_solo.swap(true, Ordering::Relaxed)
    }
}

impl CpuPlan {
    /// Before a run: nothing is taken.
    pub(super) fn start(&mut self) {
        self.taken.start();
        self.phases
            .iter_mut()
            .for_each(|phase| *phase.has_solo.get_mut() = false);
    }

    /// Makes an empty plan for a view of so many nodes, in the memory that there is.
    fn clear(&mut self, view: &GraphView<'_>, memory: &MemoryMap) {
        let n = view.nodes.len();
        self.nodes.clear();
        // A node may have a step before it or after it.
        self.nodes.reserve(2 * n);
        self.norms.clear();
        self.norms.reserve(n);
        self.phases.clear();
        self.phases.reserve(2 * n);
        self.need = Need::default();
        self.need_quantized = Need::default();
        self.made_for = (view.graph.version(), memory.stamp());
    }

    /// Adds a node, in a new phase if it needs a barrier before it.
    fn push(&mut self, node: PlannedNode, barrier: bool) {
        let at = self.nodes.len();
        if barrier || self.phases.is_empty() {
            self.phases.push(Phase {
                nodes: at..at,
                has_solo: AtomicBool::new(false),
            });
        }
        self.nodes.push(node);
        self.phases.iter_mut().next_back().expect("there is one").nodes.end = at + 1;
    }

    /// Notes which weights each phase reads that threads may fetch before it: those of products that are bound by memory.
    fn look_ahead(&mut self, graph: &Graph) {
        self.ahead.clear(self.nodes.len());
        for phase in &self.phases {
            let products = self.nodes[phase.nodes.clone()].iter().filter(|node| node.offers);
            let matrices = products.filter(|node| graph.tensor(node.id).op == Op::MulMat);
            self.ahead
                .add_phase(matrices.map(|node| ops::weights_ahead(graph, node)));
        }
    }

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
            // Results, operands and shared scratch memory of fused nodes, and operands of a norm.
            accesses: Vec::with_capacity(MAX_FUSED * (MAX_SRC + 2) + MAX_SRC),
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
        plan.clear(view, memory);
        self.barriers.start();
        self.held.start(view.nodes.len());
        let not_empty = |id: &TensorId| !view.graph.tensor(*id).ne.contains(&0);
        let mut nodes = view.computing().filter(not_empty);
        while let Some(id) = nodes.next() {
            self.accesses.clear();
            let mut first = self.plan_node(plan, view, memory, id, n_threads)?;
            let after = nodes.clone().take_while(|&next| ops::check(view.graph, next).is_ok());
            let outlook = self.outlook(view, memory);
            if let Some(read) = outlook.own_norm(id, nodes.clone()) {
                self.held.add_norm(read, id, plan.norms.len());
                plan.norms.push(first);
                continue;
            }
            first.fusion = outlook.fusion(id, after);
            let mut others = [const { None }; MAX_FUSED - 1];
            for other in others
                .iter_mut()
                .take(first.fusion.map_or(0, |fusion| fusion.n_nodes() - 1))
            {
                let next = nodes.next().expect("what was fused is there");
                let node = self.plan_node(plan, view, memory, next, n_threads)?;
                first.solo &= node.solo;
                plan.need = plan.need.max(ops::fused_need(view.graph, first.fusion, next));
                *other = Some(node);
            }
            let outlook = self.outlook(view, memory);
            let fusion = first.fusion;
            let last = others.iter_mut().flatten().next_back().unwrap_or(&mut first);
            if let Some((read, form)) = outlook.stored_form(id, fusion, last.id, nodes.clone()) {
                last.stores = Some(form);
                self.held.store(read, form.as_operand());
            }
            self.quantize_before(plan, view, memory, &mut first)?;
            if let (Some(Fusion::ProductsGlu { .. }), Some(second)) = (first.fusion, &mut others[0]) {
                first.offers &= self.can_offer(view, memory, second)?;
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
        plan.look_ahead(view.graph);
        Ok(())
    }

    fn outlook<'a>(&'a self, view: &'a GraphView<'a>, memory: &'a MemoryMap) -> Outlook<'a> {
        Outlook {
            view,
            memory,
            precision: self.precision,
            held: &self.held,
        }
    }

    /// Adds the step that quantizes the activations of a product in memory that threads share, if it has any that no earlier product had. Adds
    /// what the product itself reads to its accesses.
    fn quantize_before(
        &mut self,
        plan: &mut CpuPlan,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        node: &mut PlannedNode,
    ) -> Result<(), BackendError> {
        let tensor = view.graph.tensor(node.id);
        if tensor.op.state_operand().is_some() {
            self.held.forget();
        }
        let Some(quantized) = node.activations else {
            return Ok(());
        };
        plan.need_quantized = plan.need_quantized.max(quantized.need());
        let x = tensor.source(1);
        if let Some(stored) = self.held.stored(x) {
            debug_assert_eq!(stored, quantized.as_operand());
            node.activations = Some(stored);
            return Ok(());
        }
        let (number, is_new) = self.held.number(x, quantized);
        node.activations_number = number;
        if quantized.room == Room::Own {
            node.offers = !node.solo && self.can_offer(view, memory, node)?;
            if let Some((norm, i)) = self.held.norm(x) {
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

    /// True if threads may take over pieces of a product whose activations are in each thread's own memory.
    fn can_offer(&self, view: &GraphView<'_>, memory: &MemoryMap, product: &PlannedNode) -> Result<bool, BackendError> {
        let tensor = view.graph.tensor(product.id);
        let weights = locate(view.graph, memory, tensor.source(0))?;
        Ok(ops::can_offer(view.graph, tensor, &weights))
    }

    /// What is left of attention whose parts threads may share.
    fn merging(&self, graph: &Graph, node: &PlannedNode, n_threads: usize) -> Option<PlannedNode> {
        let is_attention = matches!(graph.tensor(node.id).op, Op::Attention(_));
        (is_attention && !node.solo && n_threads > 1).then(|| node.part(NodePart::Merge))
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
        node.any_order = self.precision == Precision::Fast;
        Ok(node)
    }
}
