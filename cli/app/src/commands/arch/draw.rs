//! Draws the graph of an architecture.

use std::io::Write;

use arch_lang::{FlowNode, FlowPart};
use clap::ValueEnum;
use engine::model::Architecture;

use crate::failure::Outcome;

/// Graph drawing languages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Drawing {
    /// Mermaid, rendered by GitHub and many Markdown editors
    Mermaid,
    /// Graphviz DOT
    Dot,
}

pub fn draw(out: &mut dyn Write, arch: &Architecture, graph: &[FlowNode], drawing: Drawing) -> Outcome {
    match drawing {
        Drawing::Mermaid => mermaid(out, arch, graph),
        Drawing::Dot => dot(out, arch, graph),
    }
}

/// A group of values in the drawing.
struct Frame {
    title: &'static str,
    id: &'static str,
    depth: usize,
}

/// An element of the drawing.
enum Item<'a> {
    Begin(Frame),
    Node(usize, usize, &'a FlowNode),
    End(usize),
}

/// Returns the values grouped by layer loop and, if there are several graphs, by graph.
fn items<'a>(arch: &Architecture, graph: &'a [FlowNode]) -> Vec<Item<'a>> {
    let mut items = Vec::new();
    let parts = [
        ("encoder", "encoder_layer", FlowPart::Encoder),
        (if arch.encoder { "decoder" } else { "graph" }, "layer", FlowPart::Graph),
        ("mtp", "mtp_layer", FlowPart::Mtp),
    ];
    let has = |part| graph.iter().any(|n| n.part == part);
    let is_one = !has(FlowPart::Encoder) && !has(FlowPart::Mtp);
    let depth = if is_one { 1 } else { 2 };
    for (title, layer, part) in parts.into_iter().filter(|&(_, _, part)| has(part)) {
        let nodes = |in_layer| {
            let all = graph.iter().enumerate();
            all.filter(move |(_, n)| (n.part, n.in_layer) == (part, in_layer))
        };
        if !is_one {
            items.push(Item::Begin(Frame {
                title,
                id: title,
                depth: 1,
            }));
        }
        items.extend(nodes(false).map(|(i, n)| Item::Node(depth, i, n)));
        if nodes(true).next().is_some() {
            items.push(Item::Begin(Frame {
                title: "each layer",
                id: layer,
                depth,
            }));
            items.extend(nodes(true).map(|(i, n)| Item::Node(depth + 1, i, n)));
            items.push(Item::End(depth));
        }
        if !is_one {
            items.push(Item::End(1));
        }
    }
    items
}

fn mermaid(out: &mut dyn Write, arch: &Architecture, graph: &[FlowNode]) -> Outcome {
    writeln!(out, "flowchart TD")?;
    for item in items(arch, graph) {
        match item {
            Item::Begin(Frame { title, id, depth }) => {
                writeln!(out, "{}subgraph {id} [\"{title}\"]", "  ".repeat(depth))?;
            }
            Item::Node(depth, i, n) => {
                let lines = lines(n).map(mermaid_text).join("<br/>");
                writeln!(out, "{}n{i}[\"{lines}\"]", "  ".repeat(depth))?;
            }
            Item::End(depth) => writeln!(out, "{}end", "  ".repeat(depth))?,
        }
    }
    for (from, to) in edges(graph) {
        writeln!(out, "  n{from} --> n{to}")?;
    }
    Ok(())
}

fn dot(out: &mut dyn Write, arch: &Architecture, graph: &[FlowNode]) -> Outcome {
    writeln!(
        out,
        "digraph \"{}\" {{\n  node [shape=box, fontname=\"monospace\"];",
        dot_text(arch.name)
    )?;
    for item in items(arch, graph) {
        match item {
            Item::Begin(Frame { title, id, depth }) => {
                let indent = "  ".repeat(depth);
                writeln!(out, "{indent}subgraph cluster_{id} {{\n{indent}  label=\"{title}\";")?;
            }
            Item::Node(depth, i, n) => {
                let lines = lines(n).map(dot_text).join("\\n");
                writeln!(out, "{}n{i} [label=\"{lines}\"];", "  ".repeat(depth))?;
            }
            Item::End(depth) => writeln!(out, "{}}}", "  ".repeat(depth))?,
        }
    }
    for (from, to) in edges(graph) {
        writeln!(out, "  n{from} -> n{to};")?;
    }
    Ok(writeln!(out, "}}")?)
}

/// Returns the label and shape of a value.
fn lines(node: &FlowNode) -> [&str; 2] {
    [&node.label, &node.shape]
}

fn edges(graph: &[FlowNode]) -> impl Iterator<Item = (usize, usize)> {
    graph
        .iter()
        .enumerate()
        .flat_map(|(to, n)| n.inputs.iter().map(move |&from| (from, to)))
}

/// Escapes text for Mermaid, which parses labels as HTML with its own entities.
fn mermaid_text(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('"', "#quot;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn dot_text(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(mermaid_text("[a -> \"b\"]"), "[a -&gt; #quot;b#quot;]");
        assert_eq!(dot_text("a\"\\"), "a\\\"\\\\");
    }
}
