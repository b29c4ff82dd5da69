//! A declaration as text: hyper-parameters, tensors with symbolic shapes, the graph's values.

use std::io::Write;

use engine::model::{Architecture, FlowNode, HparamDecl, Registered, TensorDecl};

use super::about;
use crate::failure::Outcome;

pub fn show(out: &mut dyn Write, registered: &Registered) -> Outcome {
    let arch = registered.arch;
    writeln!(out, "{}: {}", arch.name, about(registered))?;
    match arch.rope {
        Some(kind) => {
            let name = |kind| format!("{kind:?}").to_lowercase();
            write!(out, "rotary positions: {}", name(kind))?;
            match arch.rope_with_sections {
                Some(kind) => writeln!(out, ", {} in files with sections", name(kind))?,
                None => writeln!(out)?,
            }
        }
        None => writeln!(out, "rotary positions: none")?,
    }
    writeln!(out, "\nhyper-parameters (beside those that all architectures share)")?;
    table(out, arch.hparams.iter().map(|h| hparam(arch, h)))?;
    for (title, in_layer) in [("tensors", false), ("tensors of each layer", true)] {
        writeln!(out, "\n{title}")?;
        let here = arch.tensors.iter().filter(|t| t.group.is_some() == in_layer);
        table(out, here.map(tensor))?;
    }
    writeln!(out, "\ngraph")?;
    table(
        out,
        arch.flow.iter().enumerate().map(|(i, node)| value(arch.flow, i, node)),
    )
}

/// Columns are name, key, type and default.
fn hparam(arch: &Architecture, h: &HparamDecl) -> [String; 4] {
    let key = if h.key.is_empty() {
        "derived".to_owned()
    } else {
        format!("{}.{}", arch.name, h.key)
    };
    let default = match h.default {
        Some(text) if h.key.is_empty() => format!("= {text}"),
        Some(text) => format!("or {text}"),
        None => String::new(),
    };
    [h.name.to_owned(), key, h.ty.to_owned(), default]
}

/// Columns are GGUF name, kind, shape and presence.
fn tensor(t: &TensorDecl) -> [String; 4] {
    let name = match t.group {
        Some(group) => format!("{group}.N.{}", t.gguf),
        None => t.gguf.to_owned(),
    };
    let mut presence = Vec::new();
    if t.optional {
        presence.push("optional".to_owned());
    }
    presence.extend(t.tied.map(|field| format!("or {field}")));
    presence.extend(t.other_name.map(|name| format!("or {name:?}")));
    presence.extend(t.condition.map(|condition| format!("if {condition}")));
    [name, t.kind.to_owned(), t.shape.to_owned(), presence.join(", ")]
}

/// Columns are number, value, shape and what it is computed from.
fn value(flow: &[FlowNode], index: usize, node: &FlowNode) -> [String; 4] {
    let number = if node.in_layer {
        format!("  {index}")
    } else {
        index.to_string()
    };
    let inputs: Vec<_> = node
        .inputs
        .iter()
        .filter(|&&i| i < flow.len())
        .map(ToString::to_string)
        .collect();
    let from = if inputs.is_empty() {
        String::new()
    } else {
        format!("from {}", inputs.join(", "))
    };
    [number, node.label.to_owned(), node.shape.to_owned(), from]
}

/// Prints rows with aligned columns.
fn table(out: &mut dyn Write, rows: impl Iterator<Item = [String; 4]>) -> Outcome {
    let rows: Vec<_> = rows.collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (a, b, c) = (width(0), width(1), width(2));
    for [w, x, y, z] in &rows {
        writeln!(out, "{}", format!("  {w:<a$}  {x:<b$}  {y:<c$}  {z}").trim_end())?;
    }
    Ok(())
}
