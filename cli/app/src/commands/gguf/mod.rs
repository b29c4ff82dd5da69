//! `llama gguf`: splits, merges, edits, compares, and checks GGUF files.

mod compare;
mod edit;
mod hash;
mod parts;
mod value;
mod verify;

use std::path::Path;

use clap::{Args, Subcommand};

pub use hash::{hexadecimal, model_sha256};

use crate::checkpoints;
use crate::commands::inspect;
use crate::failure::Outcome;

/// Arguments of `llama gguf`.
#[derive(Debug, Args)]
pub struct GgufArgs {
    #[command(subcommand)]
    pub command: GgufCommand,
}

/// Subcommands of `llama gguf`.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one value per process")]
pub enum GgufCommand {
    /// Print the metadata with whole arrays, and all tensors
    Dump(inspect::DumpArgs),
    /// Set metadata keys
    Set(edit::SetArgs),
    /// Remove metadata keys
    Remove(edit::RemoveArgs),
    /// Rename a metadata key or a tensor
    Rename(edit::RenameArgs),
    /// Split a model into several files
    Split(parts::SplitArgs),
    /// Merge the files of a split model
    Merge(parts::MergeArgs),
    /// Compare metadata and weights of two models
    Diff(compare::DiffArgs),
    /// Print a SHA-256 digest of each tensor, independent of order and padding
    Hash(hash::HashArgs),
    /// Check all tensors and the architecture of a model
    Verify(verify::VerifyArgs),
}

impl GgufCommand {
    /// Returns the files that the command reads.
    fn files(&self) -> Vec<&Path> {
        match self {
            GgufCommand::Dump(args) => vec![&args.file],
            GgufCommand::Set(args) => vec![&args.file],
            GgufCommand::Remove(args) => vec![&args.file],
            GgufCommand::Rename(args) => vec![&args.file],
            GgufCommand::Split(args) => vec![&args.file],
            GgufCommand::Merge(args) => vec![&args.file],
            GgufCommand::Diff(args) => vec![&args.a, &args.b],
            GgufCommand::Hash(args) => vec![&args.file],
            GgufCommand::Verify(args) => vec![&args.file],
        }
    }
}

/// Runs the selected subcommand.
pub fn run(args: &GgufArgs) -> Outcome {
    args.command.files().into_iter().try_for_each(checkpoints::refuse)?;
    match &args.command {
        GgufCommand::Dump(args) => inspect::dump(args),
        GgufCommand::Set(args) => edit::set(args),
        GgufCommand::Remove(args) => edit::remove(args),
        GgufCommand::Rename(args) => edit::rename(args),
        GgufCommand::Split(args) => parts::split(args),
        GgufCommand::Merge(args) => parts::merge(args),
        GgufCommand::Diff(args) => compare::run(args),
        GgufCommand::Hash(args) => hash::run(args),
        GgufCommand::Verify(args) => verify::run(args),
    }
}
