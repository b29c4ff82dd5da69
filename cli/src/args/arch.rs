//! Arguments of `llama arch` and its subcommands.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use kernels::GgmlType;

use super::values::{cache_type, positive, positive_float, positive_float_64, threads};
use crate::loading::LoadArgs;

/// Arguments of `llama arch`. Without a subcommand or name, `llama arch` lists all architectures.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ArchArgs {
    #[command(subcommand)]
    pub command: Option<ArchCommand>,
    /// Architecture whose hyperparameters, tensors and graph to print
    pub name: Option<String>,
    /// Print only the graph, as a drawing
    #[arg(long, value_name = "FORMAT", requires = "name")]
    pub draw: Option<Drawing>,
}

/// Graph drawing languages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Drawing {
    /// Mermaid, rendered by GitHub and many Markdown editors
    Mermaid,
    /// Graphviz DOT
    Dot,
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
}

/// Arguments of `llama arch fmt`.
#[derive(Debug, Args)]
pub struct FmtArgs {
    /// Files to format [default: all in archs and its subdirectories]
    #[arg(value_name = "FILE.rs")]
    pub files: Vec<PathBuf>,
    /// List files that need formatting and fail if there are any; change nothing
    #[arg(long)]
    pub check: bool,
}

/// Arguments of `llama arch seed`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct SeedArgs {
    /// Architectures to write models for [default: all]
    pub names: Vec<String>,
    /// Output directory for NAME.gguf and NAME.header.gguf
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    pub output: PathBuf,
    /// Omit optional tensors
    #[arg(long)]
    pub bare: bool,
    /// Seed of the random weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Factor on all weights; below 1 for graphs that amplify rounding errors
    #[arg(long, value_name = "X", value_parser = positive_float)]
    pub weight_scale: Option<f32>,
}

/// Arguments of `llama arch check`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct CheckArgs {
    /// Model files, or with --fixtures configurations such as llama-moe [default: all]
    ///
    /// If NAME.logits exists next to a model file, its logits are compared with the model's output. With
    /// --fixtures, an architecture name such as llama selects all of its configurations.
    #[arg(value_name = "FILE", required_unless_present_any = ["fixtures", "file"])]
    pub names: Vec<String>,
    /// Check a declaration or fragment (archs/my.rs) without a build (may be repeated)
    #[arg(long, value_name = "FILE.rs", conflicts_with_all = ["fixtures", "names"])]
    pub file: Vec<PathBuf>,
    /// Directory of NAME.header.gguf and NAME.logits files
    #[arg(long, value_name = "DIR")]
    pub fixtures: Option<PathBuf>,
    /// Seed of the random weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Skip architectures without a declaration instead of failing
    #[arg(long)]
    pub known: bool,
    /// Data type of the K cache (-ctk)
    ///
    /// Values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl.
    #[arg(long, value_name = "TYPE", alias = "ctk", default_value = "f32", value_parser = cache_type)]
    pub cache_type_k: GgmlType,
    /// Data type of the V cache (-ctv)
    ///
    /// Values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl.
    #[arg(long, value_name = "TYPE", alias = "ctv", default_value = "f32", value_parser = cache_type)]
    pub cache_type_v: GgmlType,
    /// Physical batch size (-ub): maximum tokens per ubatch
    #[arg(long, value_name = "N", alias = "ubatch", default_value = "512", value_parser = positive)]
    pub ubatch_size: usize,
    /// Maximum normalized mean squared error [default: 1e-8 with f32 caches, else 1e-4]
    #[arg(long, value_name = "X", value_parser = positive_float_64)]
    pub limit: Option<f64>,
    /// Split each model into this many files and load the shards
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub shards: Option<u16>,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Number of configurations to check in parallel [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}
