//! Prepares nodes and computes them once.

use std::sync::atomic::AtomicBool;

use engine::backend::{Backend, BackendError, GraphView, MemoryMap};
use engine::graph::{Graph, TensorId, Uses};

/// Computes `nodes`, which may differ from the nodes that the graph evaluates.
pub fn compute(
    backend: &mut dyn Backend,
    graph: &Graph,
    nodes: &[TensorId],
    memory: &mut MemoryMap,
) -> Result<(), BackendError> {
    let mut uses = Uses::default();
    uses.count(graph, []);
    let view = GraphView {
        graph,
        nodes,
        uses: &uses,
    };
    let mut plan = backend.prepare(&view, memory, None)?;
    backend.run(&mut *plan, graph, memory, &AtomicBool::new(false))
}
