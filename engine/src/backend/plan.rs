//! Execution plans: a backend prepares some nodes of a graph once, and computes them many times.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};

use super::BackendError;
use crate::graph::{Graph, TensorId, Uses};

/// Nodes of a graph that one backend computes, in order.
#[derive(Clone, Copy)]
pub struct GraphView<'a> {
    /// The graph. All operands are allocated in buffers that the device supports.
    pub graph: &'a Graph,
    /// The nodes. Views among them need no computation.
    pub nodes: &'a [TensorId],
    /// Readers of each tensor in the whole graph.
    pub uses: &'a Uses,
}

impl<'a> GraphView<'a> {
    /// Returns the nodes that are neither leafs nor views.
    pub fn computing(&self) -> impl Iterator<Item = TensorId> + Clone + use<'a> {
        let graph = self.graph;
        let computes = move |id: &TensorId| graph.tensor(*id).op.computes();
        self.nodes.iter().copied().filter(computes)
    }
}

/// The result of [`Backend::prepare`](super::Backend::prepare) for a [`GraphView`], with a type specific to
/// the backend.
///
/// A plan holds checked nodes, addresses, fusions, and possibly a captured device graph. It is valid for one
/// view of one graph until that view is prepared again.
pub trait Plan: Any + Send {}

impl dyn Plan {
    /// Downcasts the plan to `P`. Returns an error if another kind of backend prepared the plan.
    pub fn downcast_mut<P: Plan>(&mut self, device: &str) -> Result<&mut P, BackendError> {
        let plan: &mut dyn Any = self;
        plan.downcast_mut().ok_or_else(|| BackendError::Device {
            device: device.to_owned(),
            message: "cannot run the plan: it was prepared by another backend".to_owned(),
        })
    }

    /// Returns a discarded plan for reuse if it is a `P`, otherwise a new plan.
    pub fn recycle<P: Plan + Default>(plan: Option<Box<dyn Plan>>) -> Box<P> {
        let any: Option<Box<dyn Any>> = plan.map(|plan| plan as _);
        any.and_then(|any| any.downcast().ok()).unwrap_or_default()
    }
}

/// Plan of a backend that computes one node after the other: the checked nodes and the version of their
/// graph.
#[derive(Default)]
pub(crate) struct NodePlan {
    nodes: Vec<TensorId>,
    version: u64,
}

impl Plan for NodePlan {}

impl NodePlan {
    /// Prepares a plan of the nodes that need computation. Calls `check` for each node, and reuses the memory
    /// of an `old` plan.
    pub fn prepare(
        view: &GraphView<'_>,
        old: Option<Box<dyn Plan>>,
        mut check: impl FnMut(TensorId) -> Result<(), BackendError>,
    ) -> Result<Box<dyn Plan>, BackendError> {
        let mut plan = <dyn Plan>::recycle::<NodePlan>(old);
        plan.version = view.graph.version();
        plan.nodes.clear();
        for id in view.computing() {
            check(id)?;
            plan.nodes.push(id);
        }
        Ok(plan)
    }

    /// Computes the nodes in order until a node fails or `cancel` is set. Returns an error without computing
    /// anything if the graph changed.
    pub fn run(
        plan: &mut dyn Plan,
        device: &str,
        graph: &Graph,
        cancel: &AtomicBool,
        mut compute: impl FnMut(TensorId) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let plan = plan.downcast_mut::<NodePlan>(device)?;
        if plan.version != graph.version() {
            return Err(BackendError::StalePlan {
                device: device.to_owned(),
            });
        }
        for &id in &plan.nodes {
            if cancel.load(Ordering::Relaxed) {
                return Err(BackendError::Cancelled);
            }
            compute(id)?;
        }
        Ok(())
    }
}
