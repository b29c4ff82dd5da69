//! Prints a declaration: hyperparameters, tensors with symbolic shapes, and the values of the graph.

use std::io::Write;

use arch_lang::{FlowNode, FlowPart};
use engine::model::{Architecture, HparamDecl, MediaDecl, Registered, TensorDecl, TextPart};

use super::about;
use crate::failure::Outcome;

pub fn show(out: &mut dyn Write, registered: &Registered, graph: &[FlowNode]) -> Outcome {
    let arch = registered.arch;
    writeln!(out, "{}: {}", arch.name, about(registered))?;
    if !arch.like.is_empty() {
        writeln!(out, "like: {}", arch.like.join(", which is like "))?;
    }
    match arch.media {
        Some(media) => writeln!(out, "text: {}", prompt(&media))?,
        None => writeln!(out, "rope: {}", rope(arch))?,
    }
    if arch.bidirectional {
        writeln!(out, "attention: bidirectional")?;
    }
    if !arch.models.is_empty() {
        writeln!(out, "\nmodels, identified by their sizes")?;
        table(
            out,
            arch.models
                .iter()
                .map(|(name, condition)| [format!("{name:?}"), (*condition).to_owned()]),
        )?;
    }
    writeln!(
        out,
        "\nhyperparameters (in addition to those common to all architectures)"
    )?;
    table(out, arch.hparams.iter().map(|h| hparam(arch, h)))?;
    for (title, in_layer) in [("tensors", false), ("tensors per layer", true)] {
        writeln!(out, "\n{title}: name in the file, name in the graph, kind, shape")?;
        let here = arch.tensors.iter().filter(|t| t.group.is_some() == in_layer);
        table(out, here.map(tensor))?;
    }
    for (title, part) in [
        ("encoder", FlowPart::Encoder),
        (if arch.encoder { "decoder" } else { "graph" }, FlowPart::Graph),
        ("multi-token prediction, in an additional layer", FlowPart::Mtp),
    ] {
        let nodes = || graph.iter().enumerate().filter(|(_, n)| n.part == part);
        if nodes().next().is_some() {
            writeln!(out, "\n{title}")?;
            table(out, nodes().map(|(i, node)| value(graph, i, node)))?;
        }
    }
    Ok(())
}

/// Returns the text around the rows of a medium.
fn prompt(media: &MediaDecl) -> String {
    let medium = format!("{:?}", media.medium).to_lowercase();
    let part = |part: &TextPart| match part {
        TextPart::Text(text) => format!("{text:?}"),
        TextPart::Medium => medium.clone(),
    };
    media.text.iter().map(part).collect::<Vec<_>>().join(", ")
}

/// Describes the RoPE variant and base.
fn rope(arch: &Architecture) -> String {
    let name = |kind| format!("{kind:?}").to_lowercase();
    let Some(kind) = arch.rope else {
        return "none".to_owned();
    };
    let sections = arch
        .rope_with_sections
        .map(|kind| format!(", {} in files with sections", name(kind)));
    format!(
        "{}{}, base rope_freq_base unless noted below",
        name(kind),
        sections.unwrap_or_default()
    )
}

/// Returns the columns name, key, type, and default.
fn hparam(arch: &Architecture, h: &HparamDecl) -> [String; 4] {
    let key = if h.key.is_empty() {
        "derived".to_owned()
    } else {
        format!("{}.{}", arch.key_prefix(arch.name), h.key)
    };
    let default = match h.default {
        Some(text) if h.key.is_empty() => format!("= {text}"),
        Some(text) => format!("or {text}"),
        None => String::new(),
    };
    [h.name.to_owned(), key, h.ty.to_owned(), default]
}

/// Returns the columns name in the file, name in the graph, kind, shape, and presence.
fn tensor(t: &TensorDecl) -> [String; 5] {
    let suffix = if t.kind == "raw" { "" } else { ".weight" };
    let name = match t.group {
        Some(group) => format!("{group}.N.{}{suffix}", t.gguf),
        None => format!("{}{suffix}", t.gguf),
    };
    let mut presence = Vec::new();
    if t.optional {
        presence.push("optional".to_owned());
    }
    presence.extend(t.tied.map(|field| format!("or {field}")));
    presence.extend(t.other_name.map(|name| format!("or {name:?}")));
    presence.extend(t.condition.map(|condition| format!("if {condition}")));
    [
        name,
        t.field.to_owned(),
        t.kind.to_owned(),
        t.shape.to_owned(),
        presence.join(", "),
    ]
}

/// Returns the columns number, value, shape, inputs, and condition.
fn value(graph: &[FlowNode], index: usize, node: &FlowNode) -> [String; 5] {
    let number = if node.in_layer {
        format!("  {index}")
    } else {
        index.to_string()
    };
    let inputs: Vec<_> = node
        .inputs
        .iter()
        .filter(|&&i| i < graph.len())
        .map(ToString::to_string)
        .collect();
    let from = if inputs.is_empty() {
        String::new()
    } else {
        format!("from {}", inputs.join(", "))
    };
    let condition = match &*node.condition {
        "" => String::new(),
        condition => format!("if {condition}"),
    };
    [number, node.label.clone(), node.shape.clone(), from, condition]
}

/// Prints rows with aligned columns.
fn table<const N: usize>(out: &mut dyn Write, rows: impl Iterator<Item = [String; N]>) -> Outcome {
    let rows: Vec<_> = rows.collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("  {cell:<width$}"));
        writeln!(out, "{}", cells.collect::<String>().trim_end())?;
    }
    Ok(())
}
