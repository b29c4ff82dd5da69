//! Drawings of a declared graph, from the nodes that the macro leaves in [`Architecture::flow`].

use std::fmt::Write as _;

use super::{Architecture, FlowNode};

impl Architecture {
    /// The graph as a Mermaid flowchart. The value that a layer hands to the next is a dotted arrow.
    pub fn mermaid(&self) -> String {
        let text = |s: &str| {
            s.replace('&', "&amp;")
                .replace('"', "&quot;")
                .replace('<', "&lt;")
                .replace('>', "&gt;")
        };
        let mut out = String::from("flowchart TD\n");
        let node = |i: usize, n: &FlowNode| format!("n{i}[\"{}<br/>{}\"]\n", text(n.label), text(n.shape));
        for (i, n) in self.nodes(false) {
            let _ = write!(out, "    {}", node(i, n));
        }
        out += "    subgraph layer [\"each layer\"]\n";
        for (i, n) in self.nodes(true) {
            let _ = write!(out, "        {}", node(i, n));
        }
        out += "    end\n";
        for (from, to) in self.edges() {
            let arrow = if from < to { "-->" } else { "-.->" };
            let _ = writeln!(out, "    n{from} {arrow} n{to}");
        }
        out
    }

    /// The graph for Graphviz' `dot`. The value that a layer hands to the next is a dashed arrow.
    pub fn dot(&self) -> String {
        let text = |s: &str| s.replace('\\', "\\\\").replace('"', "\\\"");
        let mut out = format!("digraph \"{}\" {{\n    node [shape=box];\n", text(self.name));
        let node = |i: usize, n: &FlowNode| format!("n{i} [label=\"{}\\n{}\"];\n", text(n.label), text(n.shape));
        for (i, n) in self.nodes(false) {
            let _ = write!(out, "    {}", node(i, n));
        }
        out += "    subgraph cluster_layer {\n        label=\"each layer\";\n";
        for (i, n) in self.nodes(true) {
            let _ = write!(out, "        {}", node(i, n));
        }
        out += "    }\n";
        for (from, to) in self.edges() {
            let style = if from < to {
                ""
            } else {
                " [style=dashed, constraint=false]"
            };
            let _ = writeln!(out, "    n{from} -> n{to}{style};");
        }
        out + "}\n"
    }

    fn nodes(&self, in_layer: bool) -> impl Iterator<Item = (usize, &'static FlowNode)> {
        self.flow
            .iter()
            .enumerate()
            .filter(move |(_, n)| n.in_layer == in_layer)
    }

    /// Pairs of indices: (computed first, computed from it).
    fn edges(&self) -> impl Iterator<Item = (usize, usize)> {
        let of = |(to, n): (usize, &'static FlowNode)| n.inputs.iter().map(move |&from| (from, to));
        self.flow.iter().enumerate().flat_map(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn node(label: &'static str, in_layer: bool, inputs: &'static [usize]) -> FlowNode {
        FlowNode {
            label,
            shape: "[n_embd, T]",
            in_layer,
            inputs,
        }
    }

    static TINY: Architecture = Architecture {
        name: "tiny",
        rope: None,
        hparams: &[],
        tensors: &[],
        test: &[],
        flow: &[
            node("x = token_embd[tokens]", false, &[]),
            node("x of each layer", true, &[0, 2]),
            node("x = if a > \"b\"", true, &[1]),
            node("result = linear output", false, &[2]),
        ],
        load: |_, _| None,
    };

    #[test]
    fn mermaid_has_every_node_once_and_draws_the_loop_back() {
        let text = TINY.mermaid();
        assert!(text.starts_with("flowchart TD\n"));
        assert!(
            text.contains("n2[\"x = if a &gt; &quot;b&quot;<br/>[n_embd, T]\"]"),
            "{text}"
        );
        assert!(
            text.contains("n0 --> n1") && text.contains("n2 -.-> n1") && text.contains("n2 --> n3"),
            "{text}"
        );
        assert_eq!(text.matches("<br/>").count(), TINY.flow.len());
    }

    #[test]
    fn dot_puts_the_layer_into_a_cluster() {
        let text = TINY.dot();
        let cluster = text
            .split("subgraph cluster_layer {")
            .nth(1)
            .unwrap()
            .split("    }\n")
            .next()
            .unwrap();
        assert!(
            cluster.contains("n1 [") && cluster.contains("n2 [") && !cluster.contains("n3 ["),
            "{text}"
        );
        assert!(
            text.contains("n2 -> n1 [style=dashed, constraint=false];") && text.contains("\\\"b\\\""),
            "{text}"
        );
    }
}
