//! Flags set through environment variables. `LLAMA_ARG_CTX_SIZE` sets `--ctx-size` unless the flag is given.
//! If llama.cpp uses another variable name, such as `LLAMA_ARG_BATCH`, that variable is the fallback.

use std::ffi::OsString;

use clap::builder::BoolishValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use kernels::Isa;

use crate::failure::{Failure, Outcome};
use crate::llama_cpp;

/// Prefix of the environment variables for flags.
const PREFIX: &str = "LLAMA_ARG_";

/// Binds the flags of a command and its subcommands to environment variables.
pub fn with_variables(command: Command) -> Command {
    command
        .mut_args(|arg| {
            match names(&arg)
                .into_iter()
                .reduce(|a, b| if !is_set(&a) && is_set(&b) { b } else { a })
            {
                Some(name) => with_variable(arg, name),
                None => arg,
            }
        })
        .mut_subcommands(with_variables)
}

/// Returns the variables of a flag in order of precedence: its own, llama.cpp's, and those of its old
/// spellings.
fn names(arg: &Arg) -> Vec<String> {
    let Some(flag) = arg.get_long() else {
        return Vec::new();
    };
    let theirs = llama_cpp::variable_of(flag).map(str::to_owned);
    let old = arg.get_all_aliases().unwrap_or_default().into_iter().map(variable);
    [variable(flag)].into_iter().chain(theirs).chain(old).collect()
}

/// A flag set through an environment variable.
#[derive(Debug)]
pub struct FromVariable {
    flag: String,
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
        Some(FromVariable {
            flag: format!("--{}", arg.get_long()?),
            variable: arg.get_env()?.to_string_lossy().into_owned(),
            values: values.map(|value| value.to_string_lossy().into_owned()).collect(),
        })
    };
    command.get_arguments().filter(is_set).filter_map(of_arg).collect()
}

impl FromVariable {
    /// Returns true if an error message is about this flag: it contains the flag or one of its values.
    fn is_mentioned(&self, message: &str) -> bool {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let mut words = message.split(|c| !is_word(c));
        let is_specific = |value: &&String| {
            value.len() > 2 && value.parse::<f64>().is_err() && !matches!(value.as_str(), "true" | "false" | "auto")
        };
        let has_value = self
            .values
            .iter()
            .filter(is_specific)
            .any(|value| message.contains(value.as_str()));
        has_value || words.any(|word| word == self.flag)
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

/// Replaces the flag in a clap error by its environment variable, unless the flag is on the command line.
pub fn name_variable(mut error: clap::Error, command: &Command, args: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(invalid)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let is_given = |arg: &Arg| {
        let long = arg.get_long().map(|long| format!("--{long}"));
        let short = arg.get_short().map(|short| format!("-{short}"));
        args.iter().filter_map(|text| text.to_str()).any(|text| {
            let is_long = long.as_ref().is_some_and(|long| text.split('=').next() == Some(long));
            is_long || short.as_ref().is_some_and(|short| text.starts_with(short))
        })
    };
    let variable = command
        .get_arguments()
        .find(|arg| arg.to_string() == *invalid && !is_given(arg))
        .and_then(|arg| arg.get_env()?.to_str().filter(|name| is_set(name)));
    if let Some(name) = variable {
        let named = format!("{name} ({invalid})");
        error.insert(ContextKind::InvalidArg, ContextValue::String(named));
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

fn with_variable(arg: Arg, name: String) -> Arg {
    match arg.get_long() {
        // These flags print information and exit.
        Some("help" | "version") => arg,
        _ if matches!(arg.get_action(), ArgAction::SetTrue) => {
            // In the environment, a boolean flag takes 1, on, yes or true, or their opposites.
            arg.value_parser(BoolishValueParser::new()).env(name).hide_env(true)
        }
        _ => arg.env(name).hide_env(true),
    }
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some()
}

fn variable(flag: &str) -> String {
    format!("{PREFIX}{}", flag.to_ascii_uppercase().replace('-', "_"))
}
