//! Plans: what a backend makes of some nodes of a graph once, to compute them many times.

use std::any::Any;

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
    pub fn computing(&self) -> impl Iterator<Item = TensorId> + use<'a> {
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
