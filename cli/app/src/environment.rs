//! Flags set through environment variables. `LLAMA_ARG_CTX_SIZE` sets `--ctx-size` unless the command line sets
//! this flag or a flag that excludes it. If llama.cpp uses another variable name, such as `LLAMA_ARG_BATCH`, that
//! variable is the fallback. A false value of a boolean variable sets the negated flag. Empty variables are unset.

mod given;
mod variables;

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Id};
use kernels::Isa;

use crate::args::values::boolean;
use crate::argv;
use crate::failure::{Failure, Outcome};
use given::Given;
use variables::{is_set, is_switch, names, opposite, switch_parser};

/// Binds the flags of the command that `line` selects to environment variables, except flags that `line` overrides.
pub fn with_variables(program: Command, line: &[OsString]) -> Command {
    let bound = bound(&program, line);
    let path = argv::path_of(&program, line);
    bind(program, &path, bound)
}

fn bind(mut command: Command, path: &[String], bound: Vec<(Id, Source)>) -> Command {
    if let Some((name, rest)) = path.split_first() {
        return command.mut_subcommand(name, |nested| bind(nested, rest, bound));
    }
    for (id, source) in bound {
        command = command.mut_arg(id, |arg| source.bind(arg));
    }
    command
}

/// Returns the flags of the selected command that variables set.
fn bound(program: &Command, line: &[OsString]) -> Vec<(Id, Source)> {
    let command = argv::command_of(program, line);
    let all: Vec<&Arg> = command.get_arguments().collect();
    let mut bound: Vec<(&Arg, Source)> = all
        .iter()
        .filter_map(|&arg| Some((arg, Source::of(arg, &all)?)))
        .collect();
    if !bound.is_empty() {
        let given = Given::of(program, line);
        bound.retain(|(arg, _)| !given.overrides(arg));
    }
    bound
        .into_iter()
        .map(|(arg, source)| (arg.get_id().clone(), source))
        .collect()
}

/// An environment variable that sets a flag.
struct Source {
    variable: String,
    /// A false value sets the flag.
    is_negated: bool,
}

impl Source {
    /// Returns the variable of a flag, if the variable is set. `all` are the flags of the command.
    fn of(arg: &Arg, all: &[&Arg]) -> Option<Source> {
        // These flags print information and exit.
        if matches!(arg.get_long(), None | Some("help" | "version")) {
            return None;
        }
        let source = |names: Vec<String>, is_negated| {
            let variable = names.into_iter().find(|name| is_set(name))?;
            Some(Source { variable, is_negated })
        };
        let own = source(names(arg), false);
        if !is_switch(arg) {
            return own;
        }
        let source = own.or_else(|| source(opposite(arg, all)?, true))?;
        // A false value leaves the flag unset. Clap reports an invalid value.
        let is_on = std::env::var(&source.variable).ok().and_then(|value| boolean(&value));
        if is_on == Some(source.is_negated) {
            None
        } else {
            Some(source)
        }
    }

    fn bind(&self, arg: Arg) -> Arg {
        let arg = if is_switch(&arg) {
            arg.value_parser(switch_parser(self.is_negated))
        } else {
            arg
        };
        arg.env(&self.variable).hide_env(true)
    }
}

/// A flag set through an environment variable.
#[derive(Debug)]
pub struct FromVariable {
    /// Spellings of the flag.
    flags: Vec<String>,
    variable: String,
    values: Vec<String>,
}

/// Returns the flags of the selected command that were set through environment variables.
pub fn set_by_variables(program: &Command, matches: &ArgMatches) -> Vec<FromVariable> {
    let (mut command, mut matches) = (program, matches);
    while let Some((name, nested)) = matches.subcommand() {
        match command.find_subcommand(name) {
            Some(found) => (command, matches) = (found, nested),
            None => break,
        }
    }
    let is_set = |arg: &&Arg| {
        let id = arg.get_id();
        matches.ids().any(|known| known == id) && matches.value_source(id.as_str()) == Some(ValueSource::EnvVariable)
    };
    let of_arg = |arg: &Arg| {
        let values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
        let long = arg.get_long()?;
        let short = arg.get_short().map(|short| format!("-{short}"));
        let letters = argv::short_form(long).map(str::to_owned);
        Some(FromVariable {
            flags: [format!("--{long}")].into_iter().chain(short).chain(letters).collect(),
            variable: arg.get_env()?.to_string_lossy().into_owned(),
            values: values.map(|value| value.to_string_lossy().into_owned()).collect(),
        })
    };
    command.get_arguments().filter(is_set).filter_map(of_arg).collect()
}

/// Values that many flags have, so that they do not identify a flag in a message.
const COMMON_VALUES: [&str; 6] = ["true", "false", "auto", "off", "none", "default"];

impl FromVariable {
    /// Returns true if an error message is about this flag: it contains the flag or one of its values.
    fn is_mentioned(&self, message: &str) -> bool {
        let has_word = |wanted: &str| {
            let is_letter = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            let mut words = message.split(|c| !is_letter(c));
            words.any(|word| word.trim_end_matches(['.', '-']) == wanted)
        };
        let is_specific = |value: &&String| value.len() > 2 && !COMMON_VALUES.contains(&value.as_str());
        let has_value = self.values.iter().filter(is_specific).any(|value| {
            let is_number = value.parse::<f64>().is_ok();
            has_word(value) || (!is_number && message.contains(value.as_str()))
        });
        has_value || self.flags.iter().any(|flag| has_word(flag))
    }
}

/// Adds the environment variables that caused an error to its message.
pub fn name_variables(message: String, given: &[FromVariable]) -> String {
    let names: Vec<&str> = given
        .iter()
        .filter(|given| given.is_mentioned(&message) && !message.contains(&given.variable))
        .map(|given| given.variable.as_str())
        .collect();
    if names.is_empty() {
        message
    } else {
        format!("{message} (set by {})", names.join(", "))
    }
}

/// Replaces the flags in a clap error that environment variables set by these variables. Only these flags of `command`
/// are bound to a variable.
pub fn name_variable(mut error: clap::Error, command: &Command) -> clap::Error {
    let bound = || {
        let variables = command.get_arguments().filter_map(|arg| Some((arg, arg.get_env()?)));
        variables.map(|(arg, variable)| (arg.to_string(), variable.to_string_lossy().into_owned()))
    };
    let named = |flag: &str| match bound().find(|(shown, _)| shown == flag) {
        Some((_, variable)) => format!("{variable} ({flag})"),
        None => flag.to_owned(),
    };
    for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
        let renamed = match error.get(kind) {
            Some(ContextValue::String(flag)) => ContextValue::String(named(flag)),
            Some(ContextValue::Strings(flags)) => ContextValue::Strings(flags.iter().map(|flag| named(flag)).collect()),
            _ => continue,
        };
        error.insert(kind, renamed);
    }
    if error.kind() == ErrorKind::MissingRequiredArgument {
        // A flag that a variable sets may be the one that requires another flag.
        let tips: Vec<_> = bound()
            .map(|(flag, variable)| format!("{variable} sets {flag}").into())
            .collect();
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    error
}

/// Variable that limits the CPU instruction sets used by the kernels.
const INSTRUCTION_SET: &str = "LLAMA_CPU_ISA";

/// Rejects unknown instruction set names, which the kernels would ignore. An empty name means unset.
pub fn check_instruction_set() -> Outcome {
    let name = std::env::var_os(INSTRUCTION_SET).unwrap_or_default();
    let name = name.to_string_lossy();
    if name.is_empty() || Isa::from_name(&name).is_some() {
        return Ok(());
    }
    Err(Failure::new(format_args!(
        "{INSTRUCTION_SET}: unknown instruction set `{name}`; expected one of {}",
        Isa::ALL.map(Isa::name).join(", ")
    )))
}
