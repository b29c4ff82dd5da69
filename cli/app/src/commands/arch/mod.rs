//! `llama arch`: lists, shows, and checks architectures.

mod check;
mod check_declaration;
mod check_encoder;
mod check_file;
pub mod draw;
mod fmt;
mod mapping;
mod new;
mod rustc_message;
mod seed;
mod show;

use std::io::Write;
use std::path::Path;

use arch_lang::FlowNode;
use clap::{Args, Subcommand};
use engine::model::{Registered, did_you_mean, nearest_names};

use crate::commands::stdout;
use crate::declared;
use crate::failure::{Failure, Outcome};
use crate::printable::printable;
use check::CheckArgs;
use draw::Drawing;
use fmt::FmtArgs;
use new::NewArgs;
use seed::SeedArgs;

/// Arguments of `llama arch`. Without a subcommand or name, `llama arch` lists all architectures.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ArchArgs {
    #[command(subcommand)]
    pub command: Option<ArchCommand>,
    /// Architecture, encoder, or declaration file (FILE.rs), whose hyperparameters, tensors, and graph to print
    pub name: Option<String>,
    /// Print only the graph, as a drawing
    #[arg(long, value_name = "FORMAT", requires = "name")]
    pub draw: Option<Drawing>,
    /// Print only the sources of keys and tensors in published checkpoints, as JSON
    #[arg(long, requires = "name", conflicts_with = "draw")]
    pub mapping: bool,
}

/// Subcommands of `llama arch`.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one value per process")]
pub enum ArchCommand {
    /// List all architectures
    List {
        /// Print the list as Markdown, as in docs/architectures.md
        #[arg(long)]
        markdown: bool,
    },
    /// Compare model outputs with recorded logits, or check a declaration file
    Check(CheckArgs),
    /// Write tiny models with deterministic random weights
    Seed(SeedArgs),
    /// Format declaration and fragment files
    Fmt(FmtArgs),
    /// Write the declaration of a new architecture
    New(NewArgs),
}

/// Directory of declarations, relative to the root of the project.
const ARCHS: &str = "archs";

/// Prefix of the names of encoders, which may equal names of architectures.
const ENCODERS: &str = "encoders/";

/// Runs the selected subcommand, or shows the named architecture.
pub fn run(args: &ArchArgs) -> Outcome {
    match (&args.command, &args.name) {
        (Some(ArchCommand::List { markdown: true }), _) => list_markdown(),
        (Some(ArchCommand::List { markdown: false }), _) | (None, None) => list(),
        (Some(ArchCommand::Check(args)), _) => check::run(args),
        (Some(ArchCommand::Seed(args)), _) => seed::run(args),
        (Some(ArchCommand::Fmt(args)), _) => fmt::run(args),
        (Some(ArchCommand::New(args)), _) => new::run(args),
        (None, Some(name)) => {
            let registered = find(name)?;
            let mut out = stdout();
            if args.mapping {
                mapping::mapping(&mut out, registered.arch)?;
                return Ok(out.flush()?);
            }
            match args.draw {
                Some(drawing) => draw::draw(&mut out, registered.arch, &graph(name)?, drawing)?,
                None => show::show(&mut out, &registered, &graph(name)?)?,
            }
            Ok(out.flush()?)
        }
    }
}

/// Returns the architecture or encoder with this name, the encoder after `encoders/`, or the entry of a declaration
/// file.
pub fn find(name: &str) -> Outcome<Registered> {
    if declared::is_file(name) {
        return Ok(*declared::load(Path::new(name))?);
    }
    let (bare, is_encoder) = without_prefix(name);
    let built_in = if is_encoder {
        archs::find_encoder(bare)
    } else {
        archs::find(bare)
    };
    let found = match built_in {
        Some(registered) => Some(*registered),
        None => declared::find(bare, is_encoder).map_err(Failure::new)?,
    };
    found.ok_or_else(|| {
        let encoders = archs::ENCODERS.iter().map(shown_name);
        let names: Vec<String> = archs::ALL.iter().map(shown_name).chain(encoders).collect();
        let nearest = nearest_names(name, names.iter().map(String::as_str));
        Failure::new(format_args!(
            "unknown architecture `{name}`{}; `llama arch list` lists all",
            did_you_mean(&nearest)
        ))
    })
}

/// Returns a name without the prefix of encoders, and true if it names an encoder. Without the prefix, an architecture
/// takes precedence over an encoder with its name.
fn without_prefix(name: &str) -> (&str, bool) {
    if let Some(encoder) = name.strip_prefix(ENCODERS) {
        return (encoder, true);
    }
    let is_arch = archs::find(name).is_some() || declared::path(name, false).is_some();
    let is_encoder = archs::find_encoder(name).is_some() || declared::path(name, true).is_some();
    (name, is_encoder && !is_arch)
}

/// Returns the values of the graph of an architecture that [`find`] finds.
fn graph(name: &str) -> Outcome<Vec<FlowNode>> {
    if declared::is_file(name) {
        return declared::graph(Path::new(name));
    }
    let (name, is_encoder) = without_prefix(name);
    match arch_runtime::built_in_graph(name, is_encoder).map_err(Failure::new)? {
        Some(graph) => Ok(graph),
        None => match declared::path(name, is_encoder) {
            Some(path) => declared::graph(&path),
            None => Err(Failure::new(format_args!("the declaration of `{name}` was removed"))),
        },
    }
}

/// Returns the name under which [`find`] finds an entry.
pub fn shown_name(r: &Registered) -> String {
    let prefix = if r.arch.media.is_some() { ENCODERS } else { "" };
    format!("{prefix}{}", r.arch.name)
}

fn list() -> Outcome {
    let mut out = stdout();
    let all = || archs::ALL.iter().chain(archs::ENCODERS);
    let width = all().map(|r| shown_name(r).len()).max().unwrap_or(0);
    for r in all() {
        writeln!(out, "{:<width$}  {}", shown_name(r), about(r))?;
    }
    for (name, path) in declared::list() {
        writeln!(out, "{:<width$}  {}", printable(&name), path.display())?;
    }
    Ok(out.flush()?)
}

/// Prints `docs/architectures.md`; a test compares the file with this output.
fn list_markdown() -> Outcome {
    let mut out = stdout();
    writeln!(
        out,
        "# Architectures\n\nGenerated by `llama arch list --markdown`; a test keeps this file up to date. `llama arch NAME` prints the description, hyperparameters, tensors, and graph of an architecture.\n"
    )?;
    writeln!(out, "| architecture | models | based on | notes |\n|---|---|---|---|")?;
    for r in archs::ALL {
        let about = about(r);
        let (models, description) = about.split_once(": ").unwrap_or((&about, ""));
        let parent = r.arch.like.first().map_or_else(String::new, |name| format!("`{name}`"));
        writeln!(
            out,
            "| `{}` | {models} | {parent} | {} |",
            r.arch.name,
            limits(description)
        )?;
    }
    writeln!(out, "\n## Image and audio encoders\n\nSee [encoders](encoders.md).\n")?;
    writeln!(out, "| projector type | models |\n|---|---|")?;
    for r in archs::ENCODERS {
        let about = about(r);
        let models = about.split_once(": ").map_or(&*about, |(models, _)| models);
        writeln!(out, "| `{}` | {models} |", r.arch.name)?;
    }
    Ok(out.flush()?)
}

/// Returns the sentences of a description that state limits of the implementation.
fn limits(description: &str) -> String {
    let sentences = description.split_inclusive(". ");
    let is_limit = |sentence: &&str| sentence.starts_with("Text only") || sentence.contains("no recorded");
    sentences.filter(is_limit).collect::<String>().trim_end().to_owned()
}

/// Returns the description of an architecture on one line.
fn about(r: &Registered) -> String {
    r.about.split_whitespace().collect::<Vec<_>>().join(" ")
}
