//! A declared graph as a drawing.

use std::io::Write;

use engine::model::{Architecture, FlowNode};

use crate::args::Drawing;
use crate::failure::Outcome;

pub fn draw(out: &mut dyn Write, arch: &Architecture, drawing: Drawing) -> Outcome {
    match drawing {
        Drawing::Mermaid => mermaid(out, arch),
        Drawing::Dot => dot(out, arch),
    }
}

fn mermaid(out: &mut dyn Write, arch: &Architecture) -> Outcome {
    let node =
        |(i, n): (usize, &FlowNode)| format!("n{i}[\"{}<br/>{}\"]", mermaid_text(n.label), mermaid_text(n.shape));
    writeln!(out, "flowchart TD")?;
    for n in outside(arch) {
        writeln!(out, "  {}", node(n))?;
    }
    writeln!(out, "  subgraph layer [\"each layer\"]")?;
    for n in inside(arch) {
        writeln!(out, "    {}", node(n))?;
    }
    writeln!(out, "  end")?;
    for (from, to) in edges(arch) {
        writeln!(out, "  n{from} --> n{to}")?;
    }
    Ok(())
}

fn dot(out: &mut dyn Write, arch: &Architecture) -> Outcome {
    let node = |(i, n): (usize, &FlowNode)| format!("n{i} [label=\"{}\\n{}\"];", dot_text(n.label), dot_text(n.shape));
    writeln!(
        out,
        "digraph \"{}\" {{\n  node [shape=box, fontname=\"monospace\"];",
        dot_text(arch.name)
    )?;
    for n in outside(arch) {
        writeln!(out, "  {}", node(n))?;
    }
    writeln!(out, "  subgraph cluster_layer {{\n    label=\"each layer\";")?;
    for n in inside(arch) {
        writeln!(out, "    {}", node(n))?;
    }
    writeln!(out, "  }}")?;
    for (from, to) in edges(arch) {
        writeln!(out, "  n{from} -> n{to};")?;
    }
    Ok(writeln!(out, "}}")?)
}

fn outside(arch: &Architecture) -> impl Iterator<Item = (usize, &FlowNode)> {
    arch.flow.iter().enumerate().filter(|(_, n)| !n.in_layer)
}

fn inside(arch: &Architecture) -> impl Iterator<Item = (usize, &FlowNode)> {
    arch.flow.iter().enumerate().filter(|(_, n)| n.in_layer)
}

fn edges(arch: &Architecture) -> impl Iterator<Item = (usize, usize)> {
    arch.flow
        .iter()
        .enumerate()
        .flat_map(|(to, n)| n.inputs.iter().map(move |&from| (from, to)))
}

/// Mermaid reads labels as HTML with entities of its own.
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
    fn labels_cannot_leave_their_quotes() {
        assert_eq!(mermaid_text("[a -> \"b\"]"), "[a -&gt; #quot;b#quot;]");
        assert_eq!(dot_text("a\"\\"), "a\\\"\\\\");
    }
}
