//! Prints the `checkpoint` sections of a declaration as JSON, for programs that map weights in the other direction.

use std::io::Write;

use engine::model::{Architecture, Checkpoint, CheckpointOrigin, CheckpointSetting, CheckpointSource, ConfigTerm};
use serde_json::{Value as Json, json};

use crate::failure::Outcome;

/// Prints all sections.
pub fn mapping(out: &mut dyn Write, arch: &Architecture) -> Outcome {
    let sections: Vec<Json> = arch.checkpoints.iter().map(section).collect();
    serde_json::to_writer_pretty(&mut *out, &sections)?;
    Ok(writeln!(out)?)
}

fn section(c: &Checkpoint) -> Json {
    json!({
        "classes": c.classes,
        "settings": c.settings.iter().map(setting).collect::<Vec<_>>(),
        "sources": c.sources.iter().map(source).collect::<Vec<_>>(),
    })
}

fn setting(s: &CheckpointSetting) -> Json {
    json!({ "symbol": s.symbol, "key": s.key, "values": terms(s.value) })
}

fn source(s: &CheckpointSource) -> Json {
    json!({
        "gguf": s.gguf,
        "part": s.part,
        "kind": s.kind,
        "group": s.group,
        "alternatives": s.origins.iter().map(chain).collect::<Vec<_>>(),
    })
}

/// Returns the sources whose rows are concatenated.
fn chain(o: &CheckpointOrigin) -> Json {
    let links = std::iter::successors(Some(o), |o| o.and).map(|o| {
        let steps = o.steps.iter().map(|(word, args)| json!([word, terms(args)]));
        json!({ "name": o.name, "stack": o.stack, "steps": steps.collect::<Vec<_>>() })
    });
    links.collect()
}

fn terms(terms: &[ConfigTerm]) -> Vec<Json> {
    terms.iter().map(term).collect()
}

fn term(t: &ConfigTerm) -> Json {
    match t {
        ConfigTerm::Path(path) => json!({ "path": path }),
        ConfigTerm::Int(n) => json!(n),
        ConfigTerm::Float(x) => json!(x),
        ConfigTerm::Bool(b) => json!(b),
        ConfigTerm::Text(text) => json!(text),
        ConfigTerm::Symbol(name) => json!({ "symbol": name }),
        ConfigTerm::Call(name, args) => json!({ "call": name, "args": terms(args) }),
    }
}
