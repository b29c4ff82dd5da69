//! Arguments of `llama bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::pixel_size::PixelSize;
use crate::args::values::{positive, sequences, threads};
use crate::args::{BatchSizeArgs, CacheTypeArgs, HubArgs, LoadArgs, PrecisionArgs};

/// Arguments of `llama bench`.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = BENCH_NOTES)]
pub struct BenchArgs {
    /// GGUF file (may be repeated) [default: the default model]
    #[arg(short, long, value_name = "FILE")]
    pub model: Vec<PathBuf>,
    /// Prompt lengths in tokens, separated by commas; 0: no prefill test
    #[arg(short = 'p', long, value_name = "N", default_value = "512", value_delimiter = ',')]
    pub n_prompt: Vec<usize>,
    /// Tokens to generate, separated by commas; 0: no decode test
    #[arg(short = 'n', long, value_name = "N", default_value = "128", value_delimiter = ',')]
    pub n_gen: Vec<usize>,
    /// Tokens already in the context before each test, separated by commas
    #[arg(short = 'd', long, value_name = "N", default_value = "0", value_delimiter = ',')]
    pub n_depth: Vec<usize>,
    /// Numbers of parallel sequences (-np), separated by commas
    #[arg(long, value_name = "N", default_value = "1", value_delimiter = ',', value_parser = sequences)]
    pub n_parallel: Vec<usize>,
    /// Encode images of these sizes with the projector given by -m, instead of tests with tokens
    ///
    /// Resizing and decoding are not measured.
    #[arg(long, value_name = "WxH", value_delimiter = ',', conflicts_with_all = ["compare", "times"])]
    pub image: Vec<PixelSize>,
    /// Thread counts, separated by commas [default: one per core]
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = threads)]
    pub threads: Vec<usize>,
    /// Measured repetitions of each test, after one warmup run
    #[arg(short, long, value_name = "N", default_value = "5", value_parser = positive)]
    pub repetitions: usize,
    #[command(flatten)]
    pub batch: BatchSizeArgs,
    #[command(flatten)]
    pub cache: CacheTypeArgs,
    #[command(flatten)]
    pub precision: PrecisionArgs,
    /// Print a per-op time profile after each test
    #[arg(long, conflicts_with = "compare")]
    pub profile: bool,
    /// Print the time of each GPU kernel after each test
    ///
    /// Each kernel runs between two events and not as part of a CUDA graph, so speeds are lower than without this
    /// option.
    #[arg(long, conflicts_with_all = ["compare", "profile"])]
    pub times: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: BenchFormat,
    /// Shell command that runs the same tests with another engine
    ///
    /// The command must print JSON like `llama-bench -o json`. For several sequences, it must print JSON
    /// lines like `llama-batched-bench --output-format jsonl`, which measures generation after its prompts
    /// (-d). The command runs after each repetition, and speeds are compared round by round.
    #[arg(long, value_name = "COMMAND")]
    pub compare: Option<String>,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub load: LoadArgs,
}

const BENCH_NOTES: &str = "Speeds are medians. Memory traffic (weights and KV cache) is compared with the read bandwidth of the same number of threads. \
    Multiply-adds are compared with peak f32, integer, and bf16 rates. All peaks are measured just before each test. \
    With --compare, peaks are measured in each round and their median is used.";

/// Output formats of `llama bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchFormat {
    /// Aligned columns
    Table,
    /// JSON list of objects
    Json,
    /// Comma-separated values
    Csv,
    /// Markdown table
    Md,
}
