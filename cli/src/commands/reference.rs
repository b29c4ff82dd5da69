//! The reference of all commands as markdown, from the same declaration as the help; `docs/cli.md` is its output.

use std::io::Write;

use clap::{Arg, ArgAction, Command, CommandFactory};
use kernels::Isa;

use crate::args::Cli;
use crate::argv;
use crate::commands::stdout;
use crate::failure::Outcome;
use crate::llama_cpp;

/// Prints it.
pub fn run() -> Outcome {
    let mut out = stdout();
    let mut root = Cli::command();
    root.build();
    writeln!(
        out,
        "# Command line\n\nPrinted by `llama reference`; a test keeps this page and the program in step.\n\nWhat a flag says can also come from the environment: `LLAMA_ARG_CTX_SIZE=8192` is `--ctx-size 8192` where that is not given.\n`LLAMA_CPU_ISA` names the strongest instruction set that kernels of the CPU may use: {}.",
        Isa::ALL.map(Isa::name).join(", ")
    )?;
    for command in visible(&root) {
        print(&mut out, command)?;
    }
    writeln!(
        out,
        "\n## Options of llama.cpp\n\nAll options of its programs (b11434): under what name they are here, or why they are not.\n\n{}",
        llama_cpp::table(&Cli::command()).trim_end()
    )?;
    Ok(out.flush()?)
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|c| !c.is_hide_set())
}

fn print(out: &mut dyn Write, command: &Command) -> Outcome {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    writeln!(out, "\n## `{name}`\n")?;
    if let Some(about) = command.get_about() {
        writeln!(out, "{about}.")?;
    }
    if let Some(notes) = command.get_after_help() {
        writeln!(out, "{notes}")?;
    }
    writeln!(out, "\n```text\n{}\n```", command.clone().render_usage())?;
    let positionals: Vec<_> = command.get_positionals().collect();
    section(out, None, &positionals)?;
    // In the order of their declaration, which puts the headings of flattened groups in turn.
    let mut headings: Vec<Option<&str>> = Vec::new();
    let options: Vec<_> = command.get_opts().chain(flags(command)).collect();
    for arg in &options {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    for heading in headings {
        let args: Vec<_> = options
            .iter()
            .copied()
            .filter(|a| a.get_help_heading() == heading)
            .collect();
        section(out, heading, &args)?;
    }
    for nested in visible(command) {
        print(out, nested)?;
    }
    Ok(())
}

/// Options without a value, but for `--help`, which every command has.
fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_help = |a: &Arg| {
        matches!(
            a.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong
        )
    };
    command
        .get_arguments()
        .filter(move |a| !a.is_positional() && !a.get_action().takes_values() && !is_help(a))
}

fn section(out: &mut dyn Write, heading: Option<&str>, args: &[&Arg]) -> Outcome {
    if args.is_empty() {
        return Ok(());
    }
    match heading {
        Some(heading) => writeln!(out, "\n{heading}:\n\n| | |\n|---|---|")?,
        None => writeln!(out, "\n| | |\n|---|---|")?,
    }
    for arg in args {
        let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        if let Some(short) = short_form(arg) {
            // The spelling tells it here.
            help = help.replace(&format!(" ({short})"), "");
        }
        let defaults: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
        let default = if defaults.is_empty() || !arg.get_action().takes_values() {
            String::new()
        } else {
            format!(" [default: {}]", defaults.join(" "))
        };
        writeln!(out, "| `{}` | {}{default} |", spelling(arg), help.replace('|', "\\|"))?;
    }
    Ok(())
}

/// The spellings of a flag, and what value it takes.
fn spelling(arg: &Arg) -> String {
    let value = || arg.get_value_names().unwrap_or_default().join(" ");
    if arg.is_positional() {
        return value();
    }
    let long = arg.get_long().map(|l| format!("--{l}"));
    let short = arg.get_short().map(|s| format!("-{s}"));
    let many = short_form(arg).map(str::to_owned);
    let mut text = [short, many, long].into_iter().flatten().collect::<Vec<_>>().join(", ");
    if arg.get_action().takes_values() {
        text += &format!(" {}", value());
    }
    text
}

/// The short form of several letters.
fn short_form(arg: &Arg) -> Option<&'static str> {
    argv::short_form(arg.get_long()?)
}
