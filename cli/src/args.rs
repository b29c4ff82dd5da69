//! Command-line arguments. Parsing, `--help` and `docs/cli.md` are all generated from these declarations.

mod arch;
mod context;
mod display;
mod preset;
mod serve;
mod speculation;
mod template;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use engine::builder::Pooling;
use engine::context::MAX_SEQUENCES;
use engine::synth::{Mix, ModelShape, SHAPES};
use kernels::GgmlType;

use crate::commands::models::{ListArgs, PsArgs, PullArgs, RmArgs};
use crate::grammar::GrammarArgs;
use crate::hub::HubArgs;
use crate::loading::{AdapterArgs, LoadArgs, PlacementArgs};
use crate::sampling::{SamplerArgs, TextBiasArgs};

pub use context::{ContextArgs, PrecisionArg};
pub use display::{DisplayArgs, LogArgs};
pub use preset::{Preset, Presets};
pub use speculation::SpeculationArgs;
pub use template::TemplateArgs;
use values::{cache_type, context_size, positive, threads};

pub use arch::{ArchArgs, ArchCommand, CheckArgs, Drawing, FmtArgs, SeedArgs};
pub use serve::{BatchArgs, ServeArgs, ServingArgs};

/// Run language models from GGUF files
#[derive(Debug, Parser)]
#[command(name = "llama", version, args_override_self = true, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one value per process")]
pub enum Command {
    /// Answer a prompt, or start a chat if no prompt is given
    #[command(visible_alias = "cli")]
    Run(RunArgs),
    /// Serve models over the OpenAI, Anthropic, Ollama and llama-server APIs
    #[command(visible_alias = "server")]
    Serve(ServeArgs),
    /// Process a JSONL file of requests in parallel
    Batch(BatchArgs),
    /// Show the metadata and tensors of a GGUF file
    #[command(visible_alias = "show")]
    Inspect(InspectArgs),
    /// Compute embeddings, compare texts, or rerank documents
    Embed(EmbedArgs),
    /// Tokenize a string
    Tokenize(TokenizeArgs),
    /// List, show and check model architectures
    Arch(ArchArgs),
    /// Write the logits of every position of a token sequence to a file
    Logits(LogitsArgs),
    /// Benchmark prefill and decoding
    Bench(BenchArgs),
    /// Write a model file with random weights, for benchmarks
    Synth(SynthArgs),
    /// Download models
    Pull(PullArgs),
    /// List local models
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Remove downloaded models
    Rm(RmArgs),
    /// List running llama processes and their models
    Ps(PsArgs),
    /// List available devices, and why others are unavailable
    Devices(crate::commands::devices::DevicesArgs),
    /// Report this machine's capabilities and how a model would run on it
    Doctor(crate::commands::doctor::DoctorArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write man pages
    #[command(hide = true)]
    Man(ManArgs),
    /// Print the Markdown reference of all commands
    #[command(hide = true)]
    Reference,
}

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

/// Arguments of `llama run`.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = RUN_NOTES)]
pub struct RunArgs {
    /// GGUF file or model name, such as qwen3:0.6b or user/repo:Q4_K_M
    ///
    /// Without a model, the default model is used. It is downloaded on first use.
    #[arg(value_name = "MODEL")]
    pub first: Option<String>,
    /// Prompt to answer
    ///
    /// Without a prompt, `llama run` reads standard input, or starts a chat if standard input is a terminal.
    #[arg(value_name = "PROMPT")]
    pub second: Option<String>,
    /// GGUF file or model name; replaces the first argument
    #[arg(short, long, value_name = "FILE|NAME")]
    pub model: Option<PathBuf>,
    /// Prompt to answer; replaces the second argument
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// File to append to the prompt; `-` reads standard input
    #[arg(short, long, value_name = "FILE", alias = "prompt-file")]
    pub file: Option<PathBuf>,
    /// Like --file, but keep the trailing newline (-bf)
    #[arg(long, value_name = "FILE", conflicts_with = "file", hide_short_help = true)]
    pub binary_file: Option<PathBuf>,
    /// Maximum tokens to generate (-1: unlimited, -2: fill the context) [default: 2048]
    #[arg(short = 'n', long, value_name = "N", alias = "n-predict", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-2..))]
    pub predict: Option<i64>,
    /// When the context is full, drop the older half and continue
    #[arg(long, overrides_with = "no_context_shift", hide_short_help = true)]
    pub context_shift: bool,
    /// Stop when the context is full (default)
    #[arg(long, hide_short_help = true)]
    pub no_context_shift: bool,
    /// Prompt tokens that --context-shift never drops; -1: the whole prompt
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, hide_short_help = true,
          value_parser = clap::value_parser!(i64).range(-1..))]
    pub keep: i64,
    /// Keep generating even if the output loops
    #[arg(long, alias = "allow-loops", hide_short_help = true)]
    pub no_loop_detection: bool,
    /// System prompt
    #[arg(long, value_name = "TEXT", alias = "system-prompt")]
    pub system: Option<String>,
    /// File with the system prompt (-sysf)
    #[arg(
        long,
        value_name = "FILE",
        alias = "system-prompt-file",
        conflicts_with = "system",
        hide_short_help = true
    )]
    pub system_file: Option<PathBuf>,
    /// Stop generating before this string (may be repeated)
    #[arg(short, long, value_name = "TEXT", hide_short_help = true)]
    pub reverse_prompt: Vec<String>,
    /// Ignore end-of-sequence tokens and keep generating
    #[arg(long, conflicts_with = "grammar_flags", hide_short_help = true)]
    pub ignore_eos: bool,
    #[command(flatten)]
    pub template: TemplateArgs,
    /// Complete the prompt without applying the chat template (-no-cnv)
    #[arg(long, alias = "no-conversation", conflicts_with_all = ["chat_template", "chat_template_file"])]
    pub raw: bool,
    /// Continue as a chat after the first response (-cnv)
    #[arg(long, hide_short_help = true)]
    pub conversation: bool,
    /// Exit after the first response, even in a chat (-st)
    #[arg(long, conflicts_with = "conversation", hide_short_help = true)]
    pub single_turn: bool,
    /// Process escape sequences in --prompt and --system
    ///
    /// Supported sequences: \n, \r, \t, \", \', \\ and \xHH.
    #[arg(short, long, overrides_with = "no_escape", hide_short_help = true)]
    pub escape: bool,
    /// Do not process escape sequences (default)
    #[arg(long, hide_short_help = true)]
    pub no_escape: bool,
    /// Number of tokens that a chat with a recurrent model can rewind
    ///
    /// A chat rewinds when the next turn shares only part of the previous context. Without checkpoints, the
    /// whole prompt is processed again. Each checkpoint takes the memory of one recurrent state.
    #[arg(long, alias = "rollback", value_name = "N", default_value_t = 0, hide_short_help = true, value_parser = clap::value_parser!(u16).range(..=1024))]
    pub state_checkpoints: u16,
    /// File that caches the computed context, loaded at startup and saved at exit
    ///
    /// A chat also saves its messages to FILE.messages.json and resumes from them.
    #[arg(long, alias = "session", value_name = "FILE", hide_short_help = true)]
    pub prompt_cache: Option<PathBuf>,
    /// Do not update the prompt cache file
    #[arg(long, alias = "session-read-only", requires = "prompt_cache", hide_short_help = true)]
    pub prompt_cache_ro: bool,
    #[command(flatten)]
    pub display: DisplayArgs,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub adapters: AdapterArgs,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub grammar: GrammarArgs,
    #[command(flatten)]
    pub sampler: SamplerArgs,
    #[command(flatten)]
    pub text_bias: TextBiasArgs,
}

const RUN_NOTES: &str = "The first argument is the model if it is an existing file, contains a path separator, ends in .gguf or is a name accepted by `llama pull`. Otherwise it is the prompt.";

/// Arguments of `llama inspect`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct InspectArgs {
    /// GGUF file (tensor data may be missing) or model name
    #[arg(value_name = "MODEL", required_unless_present_any = ["hf_repo", "model_url"])]
    pub file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print long arrays in full
    #[arg(long)]
    pub arrays: bool,
    /// Print where each part of the model would be placed, without loading it
    #[arg(long)]
    pub plan: bool,
    /// Print the planned device and size of each tensor
    #[arg(long)]
    pub plan_tensors: bool,
    #[command(flatten)]
    pub planned: PlanArgs,
}

/// Model, context and placement options for a memory plan.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// Context size in tokens; 0: training context [default: 4096; serve: 8192]
    ///
    /// `llama serve` uses the training context if it is smaller than 8192.
    #[arg(short = 'c', long, value_name = "N", value_parser = context_size, allow_negative_numbers = true)]
    pub ctx_size: Option<usize>,
    /// Number of sequences to plan for (-np)
    #[arg(long, value_name = "N", default_value = "1", value_parser = sequences)]
    pub n_parallel: usize,
    /// Logical batch size: maximum tokens per decode call
    #[arg(short, long, value_name = "N", default_value = "2048", value_parser = positive)]
    pub batch_size: usize,
    /// Physical batch size (-ub): maximum tokens per ubatch
    #[arg(long, value_name = "N", default_value = "512", value_parser = positive)]
    pub ubatch_size: usize,
    /// Data type of the K cache (-ctk)
    ///
    /// Values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    pub cache_type_k: GgmlType,
    /// Data type of the V cache (-ctv)
    ///
    /// Values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    pub cache_type_v: GgmlType,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub placement: PlacementArgs,
}

/// Arguments of `llama embed`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct EmbedArgs {
    /// GGUF file [default: the default model]
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// GGUF file (unless -m is given), then texts to embed [default: standard input]
    #[arg(value_name = "MODEL|TEXT")]
    pub words: Vec<String>,
    /// Text to embed (may be repeated)
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// File with one text per line; `-` reads standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Separator between the texts of --file [default: newline]
    #[arg(long, value_name = "TEXT", default_value = "\n", hide_default_value = true)]
    pub separator: String,
    /// Pooling of token embeddings: none, mean, cls, last or rank
    ///
    /// `rank` returns the scores of a classifier. The default is the pooling that the file specifies,
    /// otherwise `mean` for encoders and `last` for other models.
    #[arg(long, value_name = "MODE", value_parser = pooling)]
    pub pooling: Option<Pooling>,
    /// Norm to divide vectors by: l2, l1, max or none
    #[arg(long, value_name = "NORM", default_value = "l2", value_parser = norm, allow_negative_numbers = true)]
    pub normalize: Norm,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: EmbedFormat,
    /// Print the cosine similarity of each pair of texts
    #[arg(long)]
    pub similarity: bool,
    /// Rank the texts as documents by relevance to this query, best first
    #[arg(long, value_name = "QUESTION", conflicts_with = "similarity")]
    pub rerank: Option<String>,
    /// Truncate texts that exceed the model's context
    #[arg(long)]
    pub truncate: bool,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// Precision of activations in matmuls with quantized weights
    ///
    /// `exact` uses f32 and `high` uses 16-bit integers. `fast` also uses 8-bit integers (bf16 with AMX) in
    /// batches of at least 32 tokens, and bf16 on GPUs from 9 tokens on.
    #[arg(long, value_name = "MODE", default_value = "fast")]
    pub precision: PrecisionArg,
    /// Number of threads [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Maximum tokens per ubatch; a longer text gets a larger ubatch
    #[arg(short, long, value_name = "N", default_value = "2048", value_parser = positive)]
    pub batch_size: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EmbedFormat {
    /// Numbers separated by spaces, a line per vector
    Text,
    /// OpenAI-style list of objects
    Json,
    /// JSON array of arrays
    Array,
}

/// Order of the norm that embeddings are divided by; 0 disables normalization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm(pub f32);

fn norm(text: &str) -> Result<Norm, String> {
    match text {
        "none" => Ok(Norm(0.0)),
        "l1" => Ok(Norm(1.0)),
        "l2" => Ok(Norm(2.0)),
        "max" => Ok(Norm(f32::INFINITY)),
        // llama.cpp uses -1 for no normalization. Its 0 scales vectors to 16-bit integers and is not
        // supported.
        "-1" => Ok(Norm(0.0)),
        _ => {
            let order = text.parse().ok().filter(|order| (1..=100_u8).contains(order));
            let wrong = "expected l2, l1, max, none, or the order of the norm from 1 to 100 (-1: none)";
            order.map(|order| Norm(order.into())).ok_or_else(|| wrong.to_owned())
        }
    }
}

fn pooling(text: &str) -> Result<Pooling, String> {
    let found = Pooling::ALL.iter().find(|(name, _)| *name == text);
    found.map(|&(_, pooling)| pooling).ok_or_else(|| {
        let names: Vec<_> = Pooling::ALL.iter().map(|(name, _)| *name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// Arguments of `llama tokenize`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct TokenizeArgs {
    /// GGUF file; only its metadata is read [default: the default model]
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// GGUF file, unless -m is given
    #[arg(value_name = "MODEL", allow_hyphen_values = true)]
    pub first: Option<String>,
    /// String to tokenize [default: standard input]
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    pub second: Option<String>,
    /// String to tokenize; replaces the argument
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Print only token ids, separated by commas
    #[arg(long)]
    pub ids: bool,
    /// Do not add BOS and EOS tokens
    #[arg(long)]
    pub no_bos: bool,
    /// Treat the names of special tokens as plain text
    #[arg(long)]
    pub no_parse_special: bool,
    /// Combine --no-bos and --no-parse-special
    #[arg(long)]
    pub no_special: bool,
    #[command(flatten)]
    pub hub: HubArgs,
}

/// Arguments of `llama logits`.
#[derive(Debug, Args)]
#[command(args_override_self = true, group = clap::ArgGroup::new("sequence").required(true))]
pub struct LogitsArgs {
    /// GGUF file or model name
    #[arg(value_name = "MODEL", required_unless_present_any = ["model", "hf_repo", "model_url"], conflicts_with = "model")]
    pub first: Option<PathBuf>,
    /// GGUF file; replaces the argument
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Token ids, separated by commas or whitespace
    #[arg(long, value_name = "IDS", group = "sequence")]
    pub tokens: Option<String>,
    /// File of token ids, separated by commas or whitespace; `-` reads standard input
    #[arg(long, value_name = "FILE", group = "sequence")]
    pub tokens_file: Option<PathBuf>,
    /// Output file: u32 n_tokens, u32 n_vocab, i32 tokens, f32 logits (little-endian)
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// Precision of activations in matmuls with quantized weights
    ///
    /// `exact` uses f32 and `high` uses 16-bit integers. `fast` also uses 8-bit integers (bf16 with AMX) in
    /// batches of at least 32 tokens, and bf16 on GPUs from 9 tokens on.
    #[arg(long, value_name = "MODE", default_value = "fast")]
    pub precision: PrecisionArg,
    /// Data type of the K cache (-ctk)
    ///
    /// Values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl.
    #[arg(long, value_name = "TYPE", alias = "ctk", default_value = "f16", value_parser = cache_type)]
    pub cache_type_k: GgmlType,
    /// Data type of the V cache (-ctv)
    ///
    /// Values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl.
    #[arg(long, value_name = "TYPE", alias = "ctv", default_value = "f16", value_parser = cache_type)]
    pub cache_type_v: GgmlType,
    /// Physical batch size (-ub): maximum tokens per ubatch
    #[arg(long, value_name = "N", alias = "ubatch", default_value = "512", value_parser = positive)]
    pub ubatch_size: usize,
    /// Number of threads [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

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
    /// Thread counts, separated by commas [default: one per core]
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = threads)]
    pub threads: Vec<usize>,
    /// Measured repetitions of each test, after one warmup run
    #[arg(short, long, value_name = "N", default_value = "5", value_parser = positive)]
    pub repetitions: usize,
    /// Logical batch size: maximum tokens per decode call
    #[arg(short, long, value_name = "N", default_value = "2048", value_parser = positive)]
    pub batch_size: usize,
    /// Physical batch size (-ub): maximum tokens per ubatch
    #[arg(long, value_name = "N", default_value = "512", value_parser = positive)]
    pub ubatch_size: usize,
    /// Data type of the K cache (-ctk)
    ///
    /// Values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl.
    #[arg(long, value_name = "TYPE", alias = "ctk", default_value = "f16", value_parser = cache_type)]
    pub cache_type_k: GgmlType,
    /// Data type of the V cache (-ctv)
    ///
    /// Values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl.
    #[arg(long, value_name = "TYPE", alias = "ctv", default_value = "f16", value_parser = cache_type)]
    pub cache_type_v: GgmlType,
    /// Precision of activations in matmuls with quantized weights
    ///
    /// `exact` uses f32 and `high` uses 16-bit integers. `fast` also uses 8-bit integers (bf16 with AMX) in
    /// batches of at least 32 tokens, and bf16 on GPUs from 9 tokens on.
    #[arg(long, value_name = "MODE", default_value = "fast")]
    pub precision: PrecisionArg,
    /// Print a per-op time profile after each test
    #[arg(long, conflicts_with = "compare")]
    pub profile: bool,
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
    Multiply-adds are compared with peak f32, integer and bf16 rates. All peaks are measured just before each test. \
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

fn sequences(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=MAX_SEQUENCES).contains(n));
    n.ok_or_else(|| format!("expected an integer from 1 to {MAX_SEQUENCES}"))
}

/// Arguments of `llama synth`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct SynthArgs {
    /// Architecture of the model
    #[arg(long, value_name = "NAME", default_value = "llama")]
    pub arch: String,
    /// Shape of a published model: tiny, 135m, 270m, 0.5b, 1b, 3b or 8b
    #[arg(long, value_name = "SHAPE", value_parser = shape)]
    pub shape: ModelShape,
    /// Weight type (q8_0, q4_K, f16, ...) or mix of types (q4_k_m, q5_k_m)
    #[arg(long = "type", value_name = "TYPE", value_parser = mix)]
    pub mix: Mix,
    /// Type of the output matrix or tied token embedding [default: --type]
    #[arg(long, value_name = "TYPE", value_parser = weight_type)]
    pub output_type: Option<GgmlType>,
    /// Override a size or hyperparameter, such as n_layer=4 (may be repeated)
    #[arg(long, value_name = "NAME=NUMBER", value_parser = setting)]
    pub set: Vec<(String, f64)>,
    /// Seed of the random weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

fn shape(text: &str) -> Result<ModelShape, String> {
    ModelShape::find(text).copied().ok_or_else(|| {
        let names: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

fn mix(text: &str) -> Result<Mix, String> {
    Mix::find(text).ok_or_else(|| format!("expected one of {}", Mix::names().join(", ")))
}

fn weight_type(text: &str) -> Result<GgmlType, String> {
    let ty = GgmlType::from_name(text).filter(|&ty| kernels::can_dequantize(ty));
    ty.ok_or_else(|| "expected a weight type, such as q6_K or f16".to_owned())
}

fn setting(text: &str) -> Result<(String, f64), String> {
    let (name, number) = text.split_once('=').ok_or("expected NAME=NUMBER")?;
    let number = number.parse().ok().filter(|x: &f64| x.is_finite());
    let number = number.ok_or("expected NAME=NUMBER with a finite number; booleans are 0 and 1")?;
    Ok((name.to_owned(), number))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn clap_declaration_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn old_flag_spellings_equal_new_ones() {
        for (command, old, new) in [
            ("run", &["--allow-loops"][..], &["--no-loop-detection"][..]),
            ("run", &["--rollback", "3"], &["--state-checkpoints", "3"]),
            ("run", &["--session", "s"], &["--prompt-cache", "s"]),
            (
                "run",
                &["--session", "s", "--session-read-only"],
                &["--prompt-cache", "s", "--prompt-cache-ro"],
            ),
            ("run", &["--lookup"], &["--prompt-lookup"]),
            ("serve", &["--lookup"], &["--prompt-lookup"]),
            ("serve", &["--max-waiting", "7"], &["--max-queue", "7"]),
            ("serve", &["--prompt-step", "50"], &["--prefill-budget-ms", "50"]),
            ("serve", &["--drain", "5"], &["--shutdown-timeout", "5"]),
        ] {
            let parse = |args: &[&str]| {
                let line = [&["llama", command], args].concat();
                let cli = Cli::try_parse_from(line).unwrap_or_else(|e| panic!("{args:?}: {e}"));
                format!("{:?}", cli.command)
            };
            assert_eq!(parse(old), parse(new), "{old:?}");
            assert_ne!(parse(old), parse(&[]), "{old:?}");
            let mut program = Cli::command();
            let command = program.find_subcommand_mut(command).expect("the command exists");
            let help = command.render_long_help().to_string();
            assert!(
                !help.contains(&format!("{} ", old[0])) && help.contains(new[0]),
                "{old:?}"
            );
        }
    }

    #[test]
    fn arch_prefers_subcommands_over_architecture_names() {
        let arch = |args: &[&str]| {
            let args = ["llama", "arch"].iter().chain(args);
            match Cli::try_parse_from(args).map(|cli| cli.command) {
                Ok(Command::Arch(args)) => Some(args),
                _ => None,
            }
        };
        assert!(arch(&[]).is_some_and(|a| a.name.is_none() && a.command.is_none()));
        assert!(arch(&["qwen3", "--draw", "dot"]).is_some_and(|a| a.draw == Some(Drawing::Dot)));
        assert!(arch(&["list"]).is_some_and(|a| a.command.is_some()));
        assert!(arch(&["--draw", "dot"]).is_none(), "--draw requires an architecture");
    }
}
