//! The command line: one declaration from which parsing, help and the reference in `docs/` come.

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
use engine::synth::{Mix, SHAPES, Shape};
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

/// Runs language models from GGUF files.
#[derive(Debug, Parser)]
#[command(name = "llama", version, args_override_self = true, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one, made once")]
pub enum Command {
    /// Answer a prompt, or chat when there is none
    #[command(visible_alias = "cli")]
    Run(RunArgs),
    /// Serve a model to many clients, by the interfaces of OpenAI, Anthropic, Ollama and llama-server
    #[command(visible_alias = "server")]
    Serve(ServeArgs),
    /// Answer the requests of a file, many at a time
    Batch(BatchArgs),
    /// Show what a GGUF file holds
    #[command(visible_alias = "show")]
    Inspect(InspectArgs),
    /// Turn texts into vectors, compare them, or rank documents
    Embed(EmbedArgs),
    /// Turn text into tokens
    Tokenize(TokenizeArgs),
    /// List, draw and check the architectures
    Arch(ArchArgs),
    /// Write the logits of every position of a token sequence
    Logits(LogitsArgs),
    /// Measure prompt processing and generation
    Bench(BenchArgs),
    /// Write a file of random weights in a known shape, for benches
    Synth(SynthArgs),
    /// Fetch models by name
    Pull(PullArgs),
    /// List the models that are there
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Remove models
    Rm(RmArgs),
    /// List the programs of this name that run, and their models
    Ps(PsArgs),
    /// List what computes here, and why something does not
    Devices(crate::commands::devices::DevicesArgs),
    /// Tell what this machine can do, and how a model would run on it
    Doctor(crate::commands::doctor::DoctorArgs),
    /// Print completions of commands and flags for a shell
    Completions(CompletionsArgs),
    /// Write man pages
    #[command(hide = true)]
    Man(ManArgs),
    /// Print the reference of all commands as markdown
    #[command(hide = true)]
    Reference,
}

/// `llama completions`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `llama man`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder for llama.1, llama-run.1 and so on
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    pub output: PathBuf,
}

/// `llama run`
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = RUN_NOTES)]
pub struct RunArgs {
    /// GGUF file, or a model by name, such as qwen3:0.6b or user/repo:Q4_K_M; without one, the default model is used (and fetched once)
    #[arg(value_name = "MODEL")]
    pub first: Option<String>,
    /// What to answer; without it, standard input is read, or a chat begins on a terminal
    #[arg(value_name = "PROMPT")]
    pub second: Option<String>,
    /// GGUF file or name of a model, in place of the first argument
    #[arg(short, long, value_name = "FILE|NAME")]
    pub model: Option<PathBuf>,
    /// What to answer, in place of the argument
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// File added to the prompt; `-` is standard input
    #[arg(short, long, value_name = "FILE", alias = "prompt-file")]
    pub file: Option<PathBuf>,
    /// The same (-bf), with the line feed at its end
    #[arg(long, value_name = "FILE", conflicts_with = "file", hide_short_help = true)]
    pub binary_file: Option<PathBuf>,
    /// Most tokens to generate; -1 has no limit, nor has -2, which ends where the context is full [default: 2048]
    #[arg(short = 'n', long, value_name = "N", alias = "n-predict", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-2..))]
    pub predict: Option<i64>,
    /// When the context is full, forget the older half of what it holds and go on
    #[arg(long, overrides_with = "no_context_shift", hide_short_help = true)]
    pub context_shift: bool,
    /// When the context is full, stop: the default
    #[arg(long, hide_short_help = true)]
    pub no_context_shift: bool,
    /// Tokens from the beginning of the prompt that `--context-shift` does not forget; -1 keeps all of the prompt
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, hide_short_help = true,
          value_parser = clap::value_parser!(i64).range(-1..))]
    pub keep: i64,
    /// Go on where an answer does nothing but repeat itself
    #[arg(long, hide_short_help = true)]
    pub allow_loops: bool,
    /// Instructions before the conversation
    #[arg(long, value_name = "TEXT", alias = "system-prompt")]
    pub system: Option<String>,
    /// The same (-sysf), read from a file
    #[arg(
        long,
        value_name = "FILE",
        alias = "system-prompt-file",
        conflicts_with = "system",
        hide_short_help = true
    )]
    pub system_file: Option<PathBuf>,
    /// End an answer before this text (may be repeated)
    #[arg(short, long, value_name = "TEXT", hide_short_help = true)]
    pub reverse_prompt: Vec<String>,
    /// Never end an answer by itself: tokens that would are not chosen
    #[arg(long, conflicts_with = "grammar_flags", hide_short_help = true)]
    pub ignore_eos: bool,
    /// How conversations become prompts
    #[command(flatten)]
    pub template: TemplateArgs,
    /// Complete the prompt as it stands, without the model's chat template (-no-cnv)
    #[arg(long, alias = "no-conversation", conflicts_with_all = ["chat_template", "chat_template_file"])]
    pub raw: bool,
    /// Go on as a chat after the answer (-cnv)
    #[arg(long, hide_short_help = true)]
    pub conversation: bool,
    /// End after one answer (-st), a chat too
    #[arg(long, conflicts_with = "conversation", hide_short_help = true)]
    pub single_turn: bool,
    /// Read \n, \r, \t, \", \', \\ and \xHH in -p and --system as the characters that they stand for
    #[arg(short, long, overrides_with = "no_escape", hide_short_help = true)]
    pub escape: bool,
    /// Read them as they are: the default
    #[arg(long, hide_short_help = true)]
    pub no_escape: bool,
    /// Checkpoints of recurrent states: how many tokens a recurrent model can be cut back, as where the next turn of a chat begins a little
    /// before the last one ended. Each costs the memory of a state; without them the whole prompt is processed anew
    #[arg(long, value_name = "N", default_value_t = 0, hide_short_help = true, value_parser = clap::value_parser!(u16).range(..=1024))]
    pub rollback: u16,
    /// File that keeps what was computed: read if it is there, written at the end. A chat goes on from the messages in FILE.messages.json
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub session: Option<PathBuf>,
    /// Leave that file as it is
    #[arg(long, requires = "session", hide_short_help = true)]
    pub session_read_only: bool,
    /// What is shown
    #[command(flatten)]
    pub display: DisplayArgs,
    /// Where the model comes from
    #[command(flatten)]
    pub hub: HubArgs,
    /// How to load
    #[command(flatten)]
    pub load: LoadArgs,
    /// What to add to the model
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// How to compute
    #[command(flatten)]
    pub context: ContextArgs,
    /// How to guess tokens
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    /// What answers have to be
    #[command(flatten)]
    pub grammar: GrammarArgs,
    /// How to choose tokens
    #[command(flatten)]
    pub sampler: SamplerArgs,
    /// Which tokens to favour
    #[command(flatten)]
    pub text_bias: TextBiasArgs,
}

const RUN_NOTES: &str = "The first argument is a model if it is a file, has a path, ends in .gguf or is a name that `llama pull` takes, else a prompt.";

/// `llama inspect`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct InspectArgs {
    /// GGUF file, whose tensors' data may be missing, or a model by name
    #[arg(value_name = "MODEL", required_unless_present_any = ["hf_repo", "model_url"])]
    pub file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print long arrays in full
    #[arg(long)]
    pub arrays: bool,
    /// Print what would go where if the file were loaded; the other flags are those of loading
    #[arg(long)]
    pub plan: bool,
    /// The same for each tensor
    #[arg(long)]
    pub plan_tensors: bool,
    /// What is planned for
    #[command(flatten)]
    pub planned: PlanArgs,
}

/// What a plan is made for: a model, its context, and where it may go.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// Tokens of the context that is planned for; 0 takes as many as the model was trained for [default: 4096; with `llama serve` 8192, or what the model was trained for if that is less]
    #[arg(short = 'c', long, value_name = "N", value_parser = context_size, allow_negative_numbers = true)]
    pub ctx_size: Option<usize>,
    /// Sequences (-np) of the context that is planned for
    #[arg(long, value_name = "N", default_value = "1", value_parser = sequences)]
    pub n_parallel: usize,
    /// Logical batch size that is planned for: most tokens decoded in one call
    #[arg(short, long, value_name = "N", default_value = "2048", value_parser = positive)]
    pub batch_size: usize,
    /// Physical batch size (-ub) that is planned for: most tokens in one ubatch
    #[arg(long, value_name = "N", default_value = "512", value_parser = positive)]
    pub ubatch_size: usize,
    /// Type of its K cache (-ctk): f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    pub cache_type_k: GgmlType,
    /// Type of its V cache (-ctv): f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    pub cache_type_v: GgmlType,
    /// Where the model comes from
    #[command(flatten)]
    pub hub: HubArgs,
    /// What would be loaded, and where it would go
    #[command(flatten)]
    pub placement: PlacementArgs,
}

/// `llama embed`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct EmbedArgs {
    /// GGUF file [default: the default model]
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// GGUF file, in place of -m, and texts; without any, standard input
    #[arg(value_name = "MODEL|TEXT")]
    pub words: Vec<String>,
    /// Another text (may be repeated)
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// File of texts, one in each line; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// What stands between the texts of a file [default: a line feed]
    #[arg(long, value_name = "TEXT", default_value = "\n", hide_default_value = true)]
    pub separator: String,
    /// How a text's tokens become one vector: none, mean, cls, last, or rank for the scores of a classifier [default: as the file says,
    /// else mean for encoders and last for other models]
    #[arg(long, value_name = "HOW", value_parser = pooling)]
    pub pooling: Option<Pooling>,
    /// Norm that vectors are divided by: l2, l1, max or none
    #[arg(long, value_name = "NORM", default_value = "l2", value_parser = norm, allow_negative_numbers = true)]
    pub normalize: Norm,
    /// What to print: vectors as lines of numbers, as an array of arrays, or as the list that servers answer with
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: EmbedFormat,
    /// Print the cosine of each pair of texts
    #[arg(long)]
    pub similarity: bool,
    /// Take the texts for documents and print how well they answer a question, best first
    #[arg(long, value_name = "QUESTION", conflicts_with = "similarity")]
    pub rerank: Option<String>,
    /// Cut texts that are too long for the model
    #[arg(long)]
    pub truncate: bool,
    /// Where the model comes from
    #[command(flatten)]
    pub hub: HubArgs,
    /// How to load
    #[command(flatten)]
    pub load: LoadArgs,
    /// What to add to the model
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// Activations in products with quantized weights: exact (f32), high (16-bit integers) or fast (from 32 tokens in a batch on 8-bit, bfloat16 with AMX; on cards bfloat16 from 9 tokens on)
    #[arg(long, value_name = "HOW", default_value = "fast")]
    pub precision: PrecisionArg,
    /// Threads [default: one for each core]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Most tokens in one ubatch, unless a text is longer
    #[arg(short, long, value_name = "N", default_value = "2048", value_parser = positive)]
    pub batch_size: usize,
}

/// How `llama embed` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EmbedFormat {
    /// A line of numbers for each vector
    Text,
    /// A list of objects
    Json,
    /// An array of arrays
    Array,
}

/// Order of a norm; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm(pub f32);

fn norm(text: &str) -> Result<Norm, String> {
    match text {
        "none" => Ok(Norm(0.0)),
        "l1" => Ok(Norm(1.0)),
        "l2" => Ok(Norm(2.0)),
        "max" => Ok(Norm(f32::INFINITY)),
        // As llama.cpp counts, whose 0 makes 16-bit integers of vectors.
        "-1" => Ok(Norm(0.0)),
        _ => {
            let order = text.parse().ok().filter(|order| (1..=100_u8).contains(order));
            let wrong = "expected l2, l1, max or none, or the order of the norm as a whole number, -1 for none";
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

/// `llama tokenize`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct TokenizeArgs {
    /// GGUF file; only its metadata is read [default: the default model]
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// GGUF file, as its only word or before the text
    #[arg(value_name = "MODEL", allow_hyphen_values = true)]
    pub first: Option<String>,
    /// What to tokenize; without it, standard input
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    pub second: Option<String>,
    /// What to tokenize, in place of the argument
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Print the ids only, separated by commas
    #[arg(long)]
    pub ids: bool,
    /// Do not add tokens at begin and end of the text
    #[arg(long)]
    pub no_bos: bool,
    /// Take the names of special tokens as text
    #[arg(long)]
    pub no_parse_special: bool,
    /// Both: add no special tokens and parse none
    #[arg(long)]
    pub no_special: bool,
    /// Where the model comes from
    #[command(flatten)]
    pub hub: HubArgs,
}

/// `llama logits`
#[derive(Debug, Args)]
#[command(args_override_self = true, group = clap::ArgGroup::new("sequence").required(true))]
pub struct LogitsArgs {
    /// GGUF file
    #[arg(value_name = "MODEL", required_unless_present_any = ["model", "hf_repo", "model_url"], conflicts_with = "model")]
    pub first: Option<PathBuf>,
    /// GGUF file, in place of the argument
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Token ids, separated by commas or white space
    #[arg(long, value_name = "IDS", group = "sequence")]
    pub tokens: Option<String>,
    /// File of token ids, separated by commas or white space; `-` is standard input
    #[arg(long, value_name = "FILE", group = "sequence")]
    pub tokens_file: Option<PathBuf>,
    /// Where to write: u32 n_tokens, u32 n_vocab, i32 tokens, f32 logits of each token in turn, little-endian
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// Where the model comes from
    #[command(flatten)]
    pub hub: HubArgs,
    /// How to load
    #[command(flatten)]
    pub load: LoadArgs,
    /// What to add to the model
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// Activations in products with quantized weights: exact (f32), high (16-bit integers) or fast (from 32 tokens in a batch on 8-bit, bfloat16 with AMX; on cards bfloat16 from 9 tokens on)
    #[arg(long, value_name = "HOW", default_value = "fast")]
    pub precision: PrecisionArg,
    /// Type of the K cache (-ctk): f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl
    #[arg(long, value_name = "TYPE", alias = "ctk", default_value = "f16", value_parser = cache_type)]
    pub cache_type_k: GgmlType,
    /// Type of the V cache (-ctv): f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl
    #[arg(long, value_name = "TYPE", alias = "ctv", default_value = "f16", value_parser = cache_type)]
    pub cache_type_v: GgmlType,
    /// Physical batch size (-ub): most tokens in one ubatch
    #[arg(long, value_name = "N", alias = "ubatch", default_value = "512", value_parser = positive)]
    pub ubatch_size: usize,
    /// Threads [default: one for each core]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

/// `llama bench`
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = BENCH_NOTES)]
pub struct BenchArgs {
    /// GGUF file (may be repeated) [default: the default model]
    #[arg(short, long, value_name = "FILE")]
    pub model: Vec<PathBuf>,
    /// Tokens of prompts, separated by commas; 0 for none
    #[arg(short = 'p', long, value_name = "N", default_value = "512", value_delimiter = ',')]
    pub n_prompt: Vec<usize>,
    /// Tokens generated, separated by commas; 0 for none
    #[arg(short = 'n', long, value_name = "N", default_value = "128", value_delimiter = ',')]
    pub n_gen: Vec<usize>,
    /// Tokens that are in the context before, separated by commas
    #[arg(short = 'd', long, value_name = "N", default_value = "0", value_delimiter = ',')]
    pub n_depth: Vec<usize>,
    /// Sequences (-np) computed together, separated by commas
    #[arg(long, value_name = "N", default_value = "1", value_delimiter = ',', value_parser = sequences)]
    pub n_parallel: Vec<usize>,
    /// Threads, separated by commas [default: one for each core]
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = threads)]
    pub threads: Vec<usize>,
    /// Repetitions of each test, after one that does not count
    #[arg(short, long, value_name = "N", default_value = "5", value_parser = positive)]
    pub repetitions: usize,
    /// Logical batch size: most tokens decoded in one call
    #[arg(short, long, value_name = "N", default_value = "2048", value_parser = positive)]
    pub batch_size: usize,
    /// Physical batch size (-ub): most tokens in one ubatch
    #[arg(long, value_name = "N", default_value = "512", value_parser = positive)]
    pub ubatch_size: usize,
    /// Type of the K cache (-ctk): f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl
    #[arg(long, value_name = "TYPE", alias = "ctk", default_value = "f16", value_parser = cache_type)]
    pub cache_type_k: GgmlType,
    /// Type of the V cache (-ctv): f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl
    #[arg(long, value_name = "TYPE", alias = "ctv", default_value = "f16", value_parser = cache_type)]
    pub cache_type_v: GgmlType,
    /// Activations in products with quantized weights: exact (f32), high (16-bit integers) or fast (from 32 tokens in a batch on 8-bit, bfloat16 with AMX; on cards bfloat16 from 9 tokens on)
    #[arg(long, value_name = "HOW", default_value = "fast")]
    pub precision: PrecisionArg,
    /// Print below each test where its time went, op by op; the rest is what no op takes
    #[arg(long, conflicts_with = "compare")]
    pub profile: bool,
    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: BenchFormat,
    /// Shell command that measures another engine with the same tests and prints JSON, as `llama-bench -o json` does, or for several sequences
    /// `llama-batched-bench --output-format jsonl`, whose generations follow its prompts (-d). It is run after each repetition, and speeds are compared
    /// round by round
    #[arg(long, value_name = "COMMAND")]
    pub compare: Option<String>,
    /// Where the model comes from
    #[command(flatten)]
    pub hub: HubArgs,
    /// How to load
    #[command(flatten)]
    pub load: LoadArgs,
}

const BENCH_NOTES: &str = "Speeds are medians. Bytes of weights and cache are compared with what as many threads read from memory, and multiply-adds \
    with weights with what they multiply in f32, in integers and in bfloat16, all measured just before each test; with --compare in each round, of which \
    the median counts.";

/// How `llama bench` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchFormat {
    /// Columns
    Table,
    /// A list of objects
    Json,
    /// Values separated by commas
    Csv,
    /// A table in markdown
    Md,
}

fn sequences(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=MAX_SEQUENCES).contains(n));
    n.ok_or_else(|| format!("expected a whole number from 1 to {MAX_SEQUENCES}"))
}

/// `llama synth`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct SynthArgs {
    /// Architecture
    #[arg(long, value_name = "NAME", default_value = "llama")]
    pub arch: String,
    /// Shape of a published model: tiny, 135m, 270m, 0.5b, 1b, 3b or 8b
    #[arg(long, value_name = "SHAPE", value_parser = shape)]
    pub shape: Shape,
    /// Type of the matrices (q8_0, q4_K, f16, ...), or a mix of types: q4_k_m or q5_k_m
    #[arg(long = "type", value_name = "TYPE", value_parser = mix)]
    pub mix: Mix,
    /// Type of the output matrix, or of the token embeddings that serve as one: q6_K in most published files [default: as --type says]
    #[arg(long, value_name = "TYPE", value_parser = weight_type)]
    pub output_type: Option<GgmlType>,
    /// Size or hyper-parameter in place of the shape's, as the declaration names it: n_layer=4 (may be repeated)
    #[arg(long, value_name = "NAME=NUMBER", value_parser = setting)]
    pub set: Vec<(String, f64)>,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

fn shape(text: &str) -> Result<Shape, String> {
    Shape::find(text).copied().ok_or_else(|| {
        let names: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

fn mix(text: &str) -> Result<Mix, String> {
    Mix::find(text).ok_or_else(|| format!("expected one of {}", Mix::names().join(", ")))
}

fn weight_type(text: &str) -> Result<GgmlType, String> {
    let ty = GgmlType::from_name(text).filter(|&ty| kernels::can_dequantize(ty));
    ty.ok_or_else(|| "expected a type of weights, such as q6_K or f16".to_owned())
}

fn setting(text: &str) -> Result<(String, f64), String> {
    let (name, number) = text.split_once('=').ok_or("expected NAME=NUMBER")?;
    let number = number.parse().ok().filter(|x: &f64| x.is_finite());
    let number = number.ok_or("expected NAME=NUMBER with a finite number, or 0 and 1 for false and true")?;
    Ok((name.to_owned(), number))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_declaration_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn names_of_commands_come_before_names_of_architectures() {
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
        assert!(arch(&["--draw", "dot"]).is_none(), "a drawing of what?");
    }
}
