//! Precedence of the command line over environment variables. A flag on the command line also overrides variables of
//! flags that cannot be combined with it.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgGroup, ArgMatches, Command};

use super::variables::{is_set, names};
use crate::argv;
use crate::naming::names_a_model;

/// Id of a model given as a positional argument.
const MODEL: &str = "MODEL";
/// Id of a text given as a positional argument.
const TEXT: &str = "TEXT";

/// Sets of alternatives. An argument of one alternative overrides variables of the other alternatives.
const ALTERNATIVES: &[&[&[&str]]] = &[
    // Sources of the model.
    &[
        &[MODEL],
        &["model"],
        &["hf_repo", "hf_file"],
        &["model_url"],
        &["models_dir", "models_preset"],
    ],
    // The prompt.
    &[&[TEXT], &["prompt"]],
    // Levels of the log.
    &[&["verbose"], &["verbosity"], &["log_disable"]],
    // Experts in host memory.
    &[&["cpu_moe"], &["n_cpu_moe"]],
];

/// Arguments on the command line.
pub struct Given {
    /// The selected command.
    command: Command,
    ids: Vec<String>,
}

impl Given {
    /// Parses the command line. Arguments after a syntax error may be missing; the error is reported later.
    pub fn of(program: &Command, line: &[OsString]) -> Given {
        // Only a built command lists the members of its groups.
        let mut program = program.clone().ignore_errors(true);
        program.build();
        let command = argv::command_of(&program, line).clone();
        let parsed = program.try_get_matches_from(line);
        let mut ids = Vec::new();
        if let Ok(matches) = &parsed {
            let mut matches = matches;
            while let Some((_, nested)) = matches.subcommand() {
                matches = nested;
            }
            ids = ids_of(&command, matches);
        }
        Given { command, ids }
    }

    /// Returns true if the command line overrides the variable of `arg`.
    pub fn overrides(&self, arg: &Arg) -> bool {
        let (command, id) = (&self.command, arg.get_id().as_str());
        let is_replaced = self.has("hf_repo") && id == "hf_file" && is_variable_set(command, "hf_repo");
        is_replaced
            || self
                .ids
                .iter()
                .any(|given| given == id || excludes(command, given, arg))
    }

    fn has(&self, id: &str) -> bool {
        self.ids.iter().any(|given| given == id)
    }
}

fn is_variable_set(command: &Command, id: &str) -> bool {
    let arg = command.get_arguments().find(|arg| arg.get_id() == id);
    arg.is_some_and(|arg| names(arg).iter().any(|name| is_set(name)))
}

/// Returns the ids of the arguments on the command line. A positional argument is also [`MODEL`] or [`TEXT`].
fn ids_of(command: &Command, matches: &ArgMatches) -> Vec<String> {
    let is_given = |arg: &&Arg| {
        let id = arg.get_id().as_str();
        matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    let mut ids: Vec<String> = command
        .get_arguments()
        .filter(is_given)
        .map(|arg| arg.get_id().to_string())
        .collect();
    let positional: Vec<&Arg> = command.get_positionals().filter(is_given).collect();
    let texts = positional
        .iter()
        .filter_map(|arg| matches.get_raw(arg.get_id().as_str()));
    let texts: Vec<_> = texts.flatten().collect();
    // A command with one positional argument takes a model; other commands decide by the text.
    let takes_one = command.get_positionals().count() == 1;
    let has_model = texts.first().is_some_and(|first| {
        let is_list = positional
            .iter()
            .any(|arg| arg.get_num_args().is_some_and(|n| n.max_values() > 1));
        (takes_one && !is_list) || names_a_model(first)
    });
    if has_model {
        ids.push(MODEL.to_owned());
    }
    if texts.len() > usize::from(has_model) {
        ids.push(TEXT.to_owned());
    }
    ids
}

/// Returns true if the argument with the id `given` cannot be combined with `arg`.
fn excludes(command: &Command, given: &str, arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    if is_alternative(given, id) || given.strip_prefix("no_") == Some(id) || id.strip_prefix("no_") == Some(given) {
        return true;
    }
    let has = |conflicts: Vec<&Arg>, id: &str| conflicts.iter().any(|arg| arg.get_id() == id);
    let Some(other) = command.get_arguments().find(|arg| arg.get_id() == given) else {
        return false;
    };
    let mut groups = command.get_groups();
    has(command.get_arg_conflicts_with(arg), given)
        || has(command.get_arg_conflicts_with(other), id)
        || groups.any(|group| is_exclusive(group) && [given, id].iter().all(|id| group.get_args().any(|arg| arg == id)))
}

fn is_alternative(given: &str, id: &str) -> bool {
    let place = |set: &[&[&str]], id: &str| set.iter().position(|ids| ids.contains(&id));
    let differ = |set: &&[&[&str]]| matches!((place(set, given), place(set, id)), (Some(a), Some(b)) if a != b);
    ALTERNATIVES.iter().any(differ)
}

fn is_exclusive(group: &ArgGroup) -> bool {
    // `is_multiple` takes a mutable reference.
    !group.clone().is_multiple()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::command_line::Cli;

    fn is_overridden(line: &[&str], flag: &str) -> bool {
        let line: Vec<OsString> = line.iter().map(OsString::from).collect();
        let program = Cli::command();
        let command = argv::command_of(&program, &line);
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag));
        Given::of(&program, &line).overrides(arg.unwrap_or_else(|| panic!("{flag}")))
    }

    #[test]
    fn line_overrides_variables_of_exclusive_flags() {
        for (line, flag) in [
            (&["llama", "run", "-m", "a.gguf"][..], "hf-repo"),
            (&["llama", "run", "-m", "a.gguf"], "hf-file"),
            (&["llama", "run", "-m", "a.gguf"], "model-url"),
            (&["llama", "run", "-m", "a.gguf"], "model"),
            (&["llama", "run", "--hf-repo", "a/b"], "model"),
            (&["llama", "run", "a.gguf", "hi"], "model"),
            (&["llama", "run", "a.gguf", "hi"], "hf-repo"),
            (&["llama", "run", "qwen3:0.6b"], "model"),
            (&["llama", "run", "hi there"], "prompt"),
            (&["llama", "tokenize", "a.gguf", "abc"], "hf-repo"),
            (&["llama", "embed", "a.gguf", "abc"], "model"),
            (&["llama", "serve", "a.gguf"], "models-dir"),
            (&["llama", "serve", "a"], "hf-repo"),
            (&["llama", "serve", "--models-dir", "d"], "model"),
            (&["llama", "inspect", "a"], "hf-repo"),
            (&["llama", "run", "--regex", "a"], "grammar"),
            (&["llama", "run", "--regex", "a"], "json-schema-file"),
            (&["llama", "run", "--ignore-eos"], "choice"),
            (&["llama", "run", "--raw"], "chat-template"),
            (&["llama", "run", "--chat-template", "a"], "chat-template-file"),
            (&["llama", "run", "--mtp"], "draft"),
            (&["llama", "run", "--prompt-lookup"], "draft"),
            (&["llama", "run", "--load-mode", "mmap"], "no-mmap"),
            (&["llama", "run", "--rope-scale", "2"], "rope-freq-scale"),
            (&["llama", "run", "--kv-offload"], "no-kv-offload"),
            (&["llama", "run", "--no-repack"], "repack"),
            (&["llama", "run", "-v"], "log-disable"),
            (&["llama", "run", "--n-cpu-moe", "1"], "cpu-moe"),
            (&["llama", "run", "--system", "a"], "system-file"),
            (&["llama", "logits", "--tokens", "1"], "tokens-file"),
        ] {
            assert!(is_overridden(line, flag), "{line:?} {flag}");
        }
        for (line, flag) in [
            (&["llama", "run", "hi there"][..], "model"),
            (&["llama", "run", "hi there"], "hf-repo"),
            (&["llama", "run", "-m", "a.gguf"], "ctx-size"),
            (&["llama", "run", "--hf-repo", "a/b"], "hf-file"),
            (&["llama", "embed", "abc"], "model"),
            (&["llama", "serve", "--models-dir", "d"], "models-preset"),
            (&["llama", "run", "--grammar", "a"], "chat-template"),
            (&["llama", "run", "--temp", "wrong", "-t", "2"], "top-k"),
        ] {
            assert!(!is_overridden(line, flag), "{line:?} {flag}");
        }
    }

    #[test]
    fn ids_of_alternatives_exist() {
        let program = Cli::command();
        let known = |id: &str| {
            program
                .get_subcommands()
                .any(|c| c.get_arguments().any(|arg| arg.get_id() == id))
        };
        for id in ALTERNATIVES
            .iter()
            .flat_map(|set| set.iter())
            .flat_map(|ids| ids.iter())
        {
            assert!([MODEL, TEXT].contains(id) || known(id), "{id}");
        }
    }

    #[test]
    fn file_that_exists_is_a_model() {
        assert!(std::path::Path::new("Cargo.toml").is_file());
        assert!(is_overridden(&["llama", "run", "Cargo.toml", "hi"], "model"));
    }
}
