//! `llama arch`: the architectures that are declared, what a declaration says, and whether it computes what it should.

mod check;
mod check_declaration;
mod check_file;
mod draw;
mod fmt;
mod seed;
mod show;

use std::io::Write;

use engine::model::{Registered, did_you_mean, nearest_names};

use crate::args::{ArchArgs, ArchCommand};
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};

/// Where the project keeps its declarations, seen from its root.
const ARCHS: &str = "archs";

/// Dispatches on the command or name given.
pub fn run(args: &ArchArgs) -> Outcome {
    match (&args.command, &args.name) {
        (Some(ArchCommand::List { markdown: true }), _) => list_markdown(),
        (Some(ArchCommand::List { markdown: false }), _) | (None, None) => list(),
        (Some(ArchCommand::Check(args)), _) => check::run(args),
        (Some(ArchCommand::Seed(args)), _) => seed::run(args),
        (Some(ArchCommand::Fmt(args)), _) => fmt::run(args),
        (None, Some(name)) => {
            let registered = find(name)?;
            let mut out = stdout();
            match args.draw {
                Some(drawing) => draw::draw(&mut out, registered.arch, drawing)?,
                None => show::show(&mut out, registered)?,
            }
            Ok(out.flush()?)
        }
    }
}

fn find(name: &str) -> Outcome<&'static Registered> {
    archs::find(name).ok_or_else(|| {
        let nearest = nearest_names(name, archs::ALL.iter().map(|r| r.arch.name));
        Failure::new(format_args!(
            "architecture `{name}` is not declared{}; `llama arch list` prints those that are",
            did_you_mean(&nearest)
        ))
    })
}

fn list() -> Outcome {
    let mut out = stdout();
    let width = archs::ALL.iter().map(|r| r.arch.name.len()).max().unwrap_or(0);
    for r in archs::ALL {
        writeln!(out, "{:<width$}  {}", r.arch.name, about(r))?;
    }
    Ok(out.flush()?)
}

/// The page `docs/architectures.md`, which a test holds against this.
fn list_markdown() -> Outcome {
    let mut out = stdout();
    writeln!(
        out,
        "# Architectures\n\nPrinted by `llama arch list --markdown`; a test keeps this page and the declarations in step.\n"
    )?;
    writeln!(out, "| architecture | what it is |\n|---|---|")?;
    for r in archs::ALL {
        writeln!(out, "| `{}` | {} |", r.arch.name, about(r))?;
    }
    Ok(out.flush()?)
}

/// What the file says of the model, on one line.
fn about(r: &Registered) -> String {
    r.about.split_whitespace().collect::<Vec<_>>().join(" ")
}
