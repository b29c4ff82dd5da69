//! The command line of `llama arch` and its commands.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use kernels::GgmlType;

use super::values::{cache_type, positive, positive_float, positive_float_64, threads};
use crate::loading::LoadArgs;

/// `llama arch`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ArchArgs {
    /// What to do; without a command or name, the architectures are listed
    #[command(subcommand)]
    pub command: Option<ArchCommand>,
    /// Architecture whose hyper-parameters, tensors and graph to print
    pub name: Option<String>,
    /// Print the graph only, as a drawing
    #[arg(long, value_name = "FORMAT", requires = "name")]
    pub draw: Option<Drawing>,
}

/// Languages of drawings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Drawing {
    /// As GitHub and many editors render it in markdown
    Mermaid,
    /// As Graphviz renders it
    Dot,
}

/// The commands of `llama arch`.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one, made once")]
pub enum ArchCommand {
    /// List the architectures
    List {
        /// Print the page docs/architectures.md
        #[arg(long)]
        markdown: bool,
    },
    /// Compare seeded models with recorded logits, or look at what can be said of a model without any
    Check(CheckArgs),
    /// Write the tiny models of declarations, with weights that follow from the names of their tensors
    Seed(SeedArgs),
    /// Lay out the files of declarations and fragments
    Fmt(FmtArgs),
}

/// `llama arch fmt`
#[derive(Debug, Args)]
pub struct FmtArgs {
    /// Files to lay out [default: all in archs and archs/fragments]
    #[arg(value_name = "FILE.rs")]
    pub files: Vec<PathBuf>,
    /// Change nothing; name the files that would change, and fail if there are any
    #[arg(long)]
    pub check: bool,
}

/// `llama arch seed`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct SeedArgs {
    /// Architectures [default: all]
    pub names: Vec<String>,
    /// Folder for NAME.gguf and NAME.header.gguf
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    pub output: PathBuf,
    /// Leave out the tensors that files may lack
    #[arg(long)]
    pub bare: bool,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Factor on all weights, below 1 for graphs that magnify rounding
    #[arg(long, value_name = "X", value_parser = positive_float)]
    pub weight_scale: Option<f32>,
}

/// `llama arch check`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct CheckArgs {
    /// Model files, beside which NAME.logits may lie; with --fixtures configurations (`llama-moe`) or architectures (`llama`) [default: all]
    #[arg(value_name = "FILE", required_unless_present_any = ["fixtures", "file"])]
    pub names: Vec<String>,
    /// Declaration or fragment (`archs/my.rs`) whose faults to tell, without building it (may be repeated)
    #[arg(long, value_name = "FILE.rs", conflicts_with_all = ["fixtures", "names"])]
    pub file: Vec<PathBuf>,
    /// Folder of NAME.header.gguf and NAME.logits files
    #[arg(long, value_name = "DIR")]
    pub fixtures: Option<PathBuf>,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Leave out architectures that are not declared, which otherwise fail
    #[arg(long)]
    pub known: bool,
    /// Type of the K cache (-ctk): f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl
    #[arg(long, value_name = "TYPE", alias = "ctk", default_value = "f32", value_parser = cache_type)]
    pub cache_type_k: GgmlType,
    /// Type of the V cache (-ctv): f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl
    #[arg(long, value_name = "TYPE", alias = "ctv", default_value = "f32", value_parser = cache_type)]
    pub cache_type_v: GgmlType,
    /// Physical batch size (-ub): most tokens in one ubatch
    #[arg(long, value_name = "N", alias = "ubatch", default_value = "512", value_parser = positive)]
    pub ubatch_size: usize,
    /// Largest normalized mean squared error that passes [default: 1e-8 with an f32 cache, else 1e-4]
    #[arg(long, value_name = "X", value_parser = positive_float_64)]
    pub limit: Option<f64>,
    /// Write each model to this many files and load those
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub shards: Option<u16>,
    /// How to load
    #[command(flatten)]
    pub load: LoadArgs,
    /// Configurations checked at once [default: one for each core]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}
