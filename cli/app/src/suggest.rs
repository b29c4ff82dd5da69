//! Suggestions for mistyped commands.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use engine::model::nearest_names;

/// Commands of other programs, with the equivalent commands.
const SYNONYMS: [(&str, &str); 12] = [
    ("chat", "run"),
    ("ask", "run"),
    ("generate", "run"),
    ("complete", "run"),
    ("start", "serve"),
    ("download", "pull"),
    ("fetch", "pull"),
    ("models", "list"),
    ("info", "inspect"),
    ("embeddings", "embed"),
    ("remove", "rm"),
    ("delete", "rm"),
];

/// Adds similar command names to an unknown-command error.
pub fn commands(mut error: clap::Error, program: &Command) -> clap::Error {
    let typed = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(typed)) if error.kind() == ErrorKind::InvalidSubcommand => typed.clone(),
        _ => return error,
    };
    let known: Vec<&str> = program
        .get_subcommands()
        .filter(|c| !c.is_hide_set())
        .map(|c| c.get_name())
        .collect();
    let synonym = SYNONYMS.iter().find(|(name, _)| *name == typed);
    let mut near = match synonym {
        Some((_, command)) => vec![(*command).to_owned()],
        None => nearest_names(&typed, known.iter().copied()),
    };
    if near.is_empty() {
        // Transposed letters count as two edits, so sorted letters are also compared.
        let sorted = |name: &str| {
            let mut letters: Vec<char> = name.chars().collect();
            letters.sort_unstable();
            letters
        };
        let same = known.iter().filter(|name| sorted(name) == sorted(&typed));
        near = same.map(|name| (*name).to_owned()).collect();
    }
    if !near.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(near));
    }
    error
}
