//! Formats a prepared graph for humans and snapshot tests.

use std::fmt::Write;

use crate::graph::{Graph, TensorId};

use super::Scheduler;

impl Scheduler {
    /// Formats the splits of the last prepared graph: backend, inputs copied at the start, and nodes with
    /// their operands. Views are omitted. Copies appear as `backend#name`.
    pub fn describe(&self, graph: &Graph) -> String {
        let mut text = String::new();
        let splits = &self.schedules.last().splits;
        for (i, split) in splits.splits.iter().enumerate() {
            let device = self.sites[split.backend.index()].device.name();
            let _ = write!(text, "split {i}: {device}");
            for (n, input) in splits.inputs[split.inputs.clone()].iter().enumerate() {
                let separator = if n == 0 { ", copies" } else { "," };
                let _ = write!(text, "{separator} {} ({} B)", self.label(graph, input.from), {
                    graph.tensor(input.from).nbytes()
                });
            }
            text.push('\n');
            for &node in &graph.nodes()[split.nodes.clone()] {
                let tensor = graph.tensor(node);
                if tensor.op.is_view() {
                    continue;
                }
                let operands: Vec<String> = tensor.sources().map(|s| self.label(graph, s)).collect();
                let name = self.label(graph, node);
                let _ = writeln!(text, "  {name} = {}({})", tensor.op.name(), operands.join(", "));
            }
        }
        text
    }

    /// Formats the memory plan of the last prepared graph.
    pub fn describe_memory(&self, graph: &Graph) -> String {
        self.allocator.describe(graph, self.schedules.last().splits.order())
    }

    fn label(&self, graph: &Graph, id: TensorId) -> String {
        let splits = &self.schedules.last().splits;
        for split in &splits.splits {
            for input in &splits.inputs[split.inputs.clone()] {
                if id == input.to {
                    let device = self.sites[split.backend.index()].device.name();
                    return format!("{device}#{}", graph.tensor(id).name);
                }
            }
        }
        let tensor = graph.tensor(id);
        match tensor.name.base {
            "" => format!("%{}", id.0),
            _ => tensor.name.to_string(),
        }
    }
}
