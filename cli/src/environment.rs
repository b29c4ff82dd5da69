//! Flags that are given by the environment: `--ctx-size` is also `LLAMA_ARG_CTX_SIZE`, where it is not on the command line. Where llama.cpp has
//! another name for a variable, such as `LLAMA_ARG_BATCH`, that is looked for if the first one is not set.

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command};
use kernels::Isa;

use crate::failure::{Failure, Outcome};
use crate::llama_cpp;

/// Before the name of each flag.
const PREFIX: &str = "LLAMA_ARG_";

/// The command, whose flags and those of its commands are looked for in the environment.
pub fn with_variables(command: Command) -> Command {
    command
        .mut_args(|arg| {
            match arg
                .get_long()
                .map(|flag| (variable(flag), llama_cpp::variable_of(flag)))
            {
                Some((name, Some(other))) if !is_set(&name) && is_set(other) => with_variable(arg, other.to_owned()),
                Some((name, _)) => with_variable(arg, name),
                None => arg,
            }
        })
        .mut_subcommands(with_variables)
}

/// The variable by which a user keeps kernels from instructions that the CPU has.
const INSTRUCTION_SET: &str = "LLAMA_CPU_ISA";

/// Refuses a name of an instruction set that there is not: kernels would ignore it. No name is as if the variable were not set.
pub fn check_instruction_set() -> Outcome {
    let name = std::env::var_os(INSTRUCTION_SET).unwrap_or_default();
    let name = name.to_string_lossy();
    if name.is_empty() || Isa::from_name(&name).is_some() {
        return Ok(());
    }
    Err(Failure::new(format_args!(
        "{INSTRUCTION_SET}: there is no instruction set `{name}`; expected one of {}",
        Isa::ALL.map(Isa::name).join(", ")
    )))
}

fn with_variable(arg: Arg, name: String) -> Arg {
    match arg.get_long() {
        // What asks about the program itself.
        Some("help" | "version") => arg,
        _ if matches!(arg.get_action(), ArgAction::SetTrue) => {
            // In the environment a flag without a value has one: 1, on, yes, true or their opposites.
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
