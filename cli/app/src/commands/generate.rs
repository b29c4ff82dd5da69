//! `llama completions` and `llama man`: generates shell completions and man pages from the clap declaration.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Command};

use crate::commands::stdout;
use crate::failure::{Failure, Outcome};

/// Arguments of `llama completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to print completions for
    pub shell: clap_complete::Shell,
}

/// Arguments of `llama man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Output directory for llama.1, llama-run.1 and so on
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    pub output: PathBuf,
}

/// Prints the completions for a shell.
pub fn completions(args: &CompletionsArgs, mut program: Command) -> Outcome {
    let mut out = stdout();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "llama", &mut script);
    out.write_all(&script)?;
    Ok(out.flush()?)
}

/// Writes a man page for the program and for each command.
pub fn man(args: &ManArgs, mut program: Command) -> Outcome {
    program.build();
    page(&program, "llama", &args.output)?;
    pages_of_commands(&program, "llama", &args.output)
}

fn pages_of_commands(command: &Command, name: &str, directory: &Path) -> Outcome {
    for nested in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        let name = format!("{name}-{}", nested.get_name());
        page(nested, &name, directory)?;
        pages_of_commands(nested, &name, directory)?;
    }
    Ok(())
}

fn page(command: &Command, name: &str, directory: &Path) -> Outcome {
    let path = directory.join(format!("{name}.1"));
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name).render(&mut text)?;
    fs::write(&path, text).map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))
}
