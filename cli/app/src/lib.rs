//! The `llama` command line. Only this crate prints and exits, and only the `server` crate implements HTTP.
//! Modules follow the data flow:
//!
//! - [`command_line`], [`argv`], [`llama_cpp`], [`args`], [`environment`], [`naming`], [`suggest`]: argument parsing
//! - [`commands`]: implementations of the subcommands, with their arguments
//! - [`hub`], [`fetch`]: model downloads, the default model
//! - [`loading`], [`declared`], [`checkpoints`], [`adapters`], [`grammar`], [`drafting`], [`serving`]: models with the
//!   options of a command
//! - [`input`], [`interrupt`], [`failure`], [`log`], [`terminal`], [`progress`], [`dirs`], [`format`],
//!   [`printable`], [`version`]: text from files, Ctrl-C, errors, logging, colors, directories, formatting, version

mod adapters;
mod args;
mod argv;
mod checkpoints;
mod command_line;
mod commands;
mod declared;
mod dirs;
mod drafting;
mod environment;
mod failure;
mod fetch;
mod format;
mod grammar;
mod hub;
mod images;
mod input;
mod interrupt;
mod llama_cpp;
mod loading;
mod log;
mod naming;
mod output;
mod printable;
mod progress;
mod serving;
mod suggest;
mod terminal;
mod version;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use command_line::{Cli, Command};
use environment::FromVariable;
use failure::{Failure, Outcome};
use log::LogOptions;

/// Runs the program: parses its arguments and environment variables, and reports failures on stderr.
pub fn main() -> ExitCode {
    let (cli, from_variables) = parse().unwrap_or_else(|e| suggest::commands(e, &Cli::command()).exit());
    let outcome = run(cli.command);
    interrupt::end_if_terminated();
    let Err(failure) = outcome else {
        return ExitCode::SUCCESS;
    };
    // Has no effect unless the options of the log are invalid.
    log::init(LogOptions::default());
    match failure {
        Failure::Message(message) => Failure::Message(environment::name_variables(message, &from_variables)).report(),
        failure => failure.report(),
    }
}

/// Starts the log and runs a command.
fn run(command: Command) -> Outcome {
    terminal::init(command.style());
    log::init(command.log()?);
    environment::check_instruction_set()?;
    if let Some(numa) = command.load().and_then(|load| load.numa) {
        numa.apply()?;
    }
    command_line::dispatch(command)
}

/// Parses the command line and environment variables. Also returns the flags that environment variables set.
fn parse() -> Result<(Cli, Vec<FromVariable>), clap::Error> {
    let mut command = Cli::program().version(version::short());
    // Listing devices is slow, so only `--version` does it.
    if std::env::args_os().nth(1).is_some_and(|arg| arg == "--version") {
        command = command.long_version(version::long());
    }
    let args = argv::normalize(std::env::args_os(), &command)?;
    let mut command = environment::with_variables(command, &args);
    let matches = command.try_get_matches_from_mut(&args);
    let matches = matches.map_err(|e| environment::name_variable(e, argv::command_of(&command, &args)))?;
    let from_variables = environment::set_by_variables(&command, &matches);
    // The error ends with the usage of the selected command.
    let cli = Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut argv::command_of(&command, &args).clone()))?;
    Ok((cli, from_variables))
}
