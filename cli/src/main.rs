//! The `llama` command line. Nothing below this package prints, exits, or knows terminals, HTTP or JSON. Modules stand
//! in the order the data flows:
//!
//! - [`argv`], [`args`], [`loading`], [`sampling`]: the command line, one declaration
//! - [`commands`]: what each command does
//! - [`fetch`]: the default model
//! - [`conversation`], [`session`]: messages to prompts, prompts to text
//! - [`interrupt`], [`failure`], [`say`], [`dirs`], [`human`]: Ctrl-C, errors, stderr, folders, numbers for people

mod args;
mod argv;
mod commands;
mod conversation;
mod dirs;
mod failure;
mod fetch;
mod human;
mod interrupt;
mod loading;
mod sampling;
mod say;
mod session;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use failure::Outcome;

fn main() -> ExitCode {
    let cli = Cli::parse_from(argv::normalize(std::env::args_os()));
    match dispatch(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Arch(args) => commands::arch::run(&args),
        Command::Reference => commands::reference::run(),
        Command::Run(args) => commands::run::run(&args),
        Command::Tokenize(args) => commands::tokenize::run(&args),
        Command::Embed(args) => commands::embed::run(&args),
        Command::Logits(args) => commands::logits::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Synth(args) => commands::synth::run(&args),
    }
}
