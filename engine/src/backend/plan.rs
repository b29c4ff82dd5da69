//! Plans: what a backend makes of some nodes of a graph once, to compute them many times.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};

use super::BackendError;
use crate::graph::{Graph, TensorId, Uses};

/// Nodes of a graph that one backend computes, in order.
#[derive(Clone, Copy)]
pub struct GraphView<'a> {
    /// The graph. All operands have homes in buffers that the device supports.
    pub graph: &'a Graph,
    /// The nodes. Views among them compute nothing.
    pub nodes: &'a [TensorId],
    /// Who reads each tensor, over the whole graph.
    pub uses: &'a Uses,
}

impl<'a> GraphView<'a> {
    /// The nodes that are neither leafs nor views.
    pub fn computing(&self) -> impl Iterator<Item = TensorId> + Clone + use<'a> {
        let graph = self.graph;
        let computes = move |id: &TensorId| graph.tensor(*id).op.computes();
        self.nodes.iter().copied().filter(computes)
    }
}

/// What [`Backend::prepare`](super::Backend::prepare) makes of a [`GraphView`], a type of each backend's own: nodes that were checked,
/// addresses, what is fused, a captured graph of the device. It stands for one view of one graph until it is prepared again.
pub trait Plan: Any + Send {}

impl dyn Plan {
    /// The plan as `P`; an error for the plan of another kind of backend.
    pub fn downcast_mut<P: Plan>(&mut self, device: &str) -> Result<&mut P, BackendError> {
        let plan: &mut dyn Any = self;
        plan.downcast_mut().ok_or_else(|| BackendError::Device {
            device: device.to_owned(),
            message: "the plan was prepared by another backend".to_owned(),
        })
    }

    /// The memory of a plan that is no longer wanted, if it is a `P`; a new one otherwise.
    pub fn recycle<P: Plan + Default>(plan: Option<Box<dyn Plan>>) -> Box<P> {
        let any: Option<Box<dyn Any>> = plan.map(|plan| plan as _);
        any.and_then(|any| any.downcast().ok()).unwrap_or_default()
    }
}

/// The plan of a backend that computes one node after the other: nodes that were checked, of the graph with this version.
#[derive(Default)]
pub(crate) struct NodePlan {
    nodes: Vec<TensorId>,
    version: u64,
}

impl Plan for NodePlan {}

impl NodePlan {
    /// A plan for the nodes that compute something, each of which `check` looked at, in the memory of an `old` one.
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

    /// Computes the nodes in order, until one fails or the flag is set. Nothing if the graph was changed since.
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
