//! The `llama` command line. Only this crate prints and exits, and only the `server` crate implements HTTP.
//! Modules follow the data flow:
//!
//! - [`argv`], [`llama_cpp`], [`args`], [`loading`], [`sampling`], [`grammar`], [`naming`], [`environment`],
//!   [`suggest`]: argument parsing
//! - [`commands`]: implementations of the subcommands
//! - [`hub`], [`fetch`]: model downloads, the default model
//! - [`conversation`], [`drafting`], [`session`], [`reasoning`], [`markdown`]: chat templates,
//!   speculative decoding, generation, reasoning, terminal rendering
//! - [`interrupt`], [`failure`], [`log`], [`progress`], [`dirs`], [`format`], [`version`]: Ctrl-C, errors,
//!   logging, directories, formatting, version

mod args;
mod argv;
mod commands;
mod conversation;
mod dirs;
mod drafting;
mod environment;
mod failure;
mod fetch;
mod format;
mod grammar;
mod hub;
mod interrupt;
mod llama_cpp;
mod loading;
mod log;
mod markdown;
mod naming;
mod progress;
mod reasoning;
mod sampling;
mod session;
mod suggest;
mod version;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{Cli, Command};
use environment::FromVariable;
use failure::{Failure, Outcome};

fn main() -> ExitCode {
    let (cli, from_variables) = parse().unwrap_or_else(|e| suggest::commands(e).exit());
    match environment::check_instruction_set().and_then(|()| dispatch(cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Message(message)) => {
            Failure::Message(environment::name_variables(message, &from_variables)).report()
        }
        Err(failure) => failure.report(),
    }
}

/// Parses the command line and environment variables. Also returns the flags that environment variables set.
fn parse() -> Result<(Cli, Vec<FromVariable>), clap::Error> {
    let mut command = environment::with_variables(Cli::command()).version(version::short());
    // Listing devices is slow, so only `--version` does it.
    if std::env::args_os().nth(1).is_some_and(|arg| arg == "--version") {
        command = command.long_version(version::long());
    }
    let args = argv::normalize(std::env::args_os(), &command)?;
    let matches = command.try_get_matches_from_mut(&args);
    let matches = matches.map_err(|e| environment::name_variable(e, argv::command_of(&command, &args), &args))?;
    let from_variables = environment::set_by_variables(&command, &matches);
    let cli = Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut command))?;
    Ok((cli, from_variables))
}

fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Arch(args) => commands::arch::run(&args),
        Command::Reference => commands::reference::run(),
        Command::Completions(args) => commands::generate::completions(&args),
        Command::Man(args) => commands::generate::man(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Batch(args) => commands::batch::run(&args),
        Command::Tokenize(args) => commands::tokenize::run(&args),
        Command::Embed(args) => commands::embed::run(&args),
        Command::Logits(args) => commands::logits::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Pull(args) => commands::models::pull(&args),
        Command::List(args) => commands::models::list(&args),
        Command::Rm(args) => commands::models::rm(&args),
        Command::Ps(args) => commands::models::ps(&args),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Synth(args) => commands::synth::run(&args),
    }
}
