//! The `llama` command line. Nothing below this package prints, exits or knows terminals, and nothing but `server` knows HTTP. Modules stand
//! in the order the data flows:
//!
//! - [`argv`], [`llama_cpp`], [`args`], [`loading`], [`sampling`], [`grammar`], [`naming`], [`environment`], [`suggest`]: the command line, one declaration
//! - [`commands`]: what each command does
//! - [`hub`]: models by name; [`fetch`]: the default model
//! - [`conversation`], [`drafting`], [`session`], [`output`], [`reasoning`], [`markdown`]: messages to prompts, tokens that are guessed, prompts to text,
//!   what of it is thought, and how it looks
//! - [`interrupt`], [`failure`], [`say`], [`progress`], [`dirs`], [`human`], [`version`]: Ctrl-C, errors, stderr, folders, numbers for people, the program itself

mod args;
mod argv;
mod commands;
mod conversation;
mod dirs;
mod drafting;
mod environment;
mod failure;
mod fetch;
mod grammar;
mod hub;
mod human;
mod interrupt;
mod llama_cpp;
mod loading;
mod markdown;
mod naming;
mod output;
mod progress;
mod reasoning;
mod sampling;
mod say;
mod session;
mod suggest;
mod version;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{Cli, Command};
use failure::Outcome;

fn main() -> ExitCode {
    let cli = parse().unwrap_or_else(|e| suggest::commands(e).exit());
    match environment::check_instruction_set().and_then(|()| dispatch(cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// The command line and what the environment adds to it.
fn parse() -> Result<Cli, clap::Error> {
    let mut command = environment::with_variables(Cli::command()).version(version::short());
    // Devices are looked for only where they are asked for.
    if std::env::args_os().nth(1).is_some_and(|arg| arg == "--version") {
        command = command.long_version(version::long());
    }
    let args = argv::normalize(std::env::args_os(), &command)?;
    let matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut command))
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
