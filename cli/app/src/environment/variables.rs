//! Names and values of the environment variables of flags.

use clap::builder::TypedValueParser;
use clap::{Arg, ArgAction};

use crate::args::values::boolean;
use crate::llama_cpp;

/// Prefix of the environment variables for flags.
const PREFIX: &str = "LLAMA_ARG_";

/// Returns the variables of a flag in order of precedence: its own, llama.cpp's, and the variables of its old
/// spellings.
pub fn names(arg: &Arg) -> Vec<String> {
    let Some(flag) = arg.get_long() else {
        return Vec::new();
    };
    let theirs = llama_cpp::variable_of(flag).map(str::to_owned);
    let old = arg.get_all_aliases().unwrap_or_default().into_iter().map(variable);
    [variable(flag)].into_iter().chain(theirs).chain(old).collect()
}

/// Returns true if the variable has a value.
pub fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// Returns true for a flag without a value.
pub fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Returns the variables whose false values set the flag: those of `--x` for `--no-x`, and those of `--no-x` for
/// `--x`. The other flag need not exist.
pub fn opposite(arg: &Arg, all: &[&Arg]) -> Option<Vec<String>> {
    let long = arg.get_long()?;
    let other = match long.strip_prefix("no-") {
        Some(positive) => positive.to_owned(),
        None => format!("no-{long}"),
    };
    Some(match all.iter().find(|arg| arg.get_long() == Some(&other)) {
        Some(other) => names(other),
        None => vec![variable(&other)],
    })
}

/// Returns a parser of the variable of a flag without a value. With `is_negated`, false values set the flag.
pub fn switch_parser(is_negated: bool) -> impl TypedValueParser<Value = bool> {
    move |text: &str| match boolean(text) {
        Some(is_on) => Ok(is_on != is_negated),
        None => Err("expected on or off, true or false, 1 or 0, enabled or disabled"),
    }
}

fn variable(flag: &str) -> String {
    format!("{PREFIX}{}", flag.to_ascii_uppercase().replace('-', "_"))
}
