//! `llama serve`, with the names that llama-server has for its options.

use std::path::PathBuf;

use clap::Args;
use engine::builder::Pooling;
use engine::context::MAX_SEQUENCES;

use super::{ContextArgs, LogArgs, SpeculationArgs, TemplateArgs, pooling, positive};
use crate::grammar::GrammarArgs;
use crate::hub::HubArgs;
use crate::loading::{AdapterArgs, LoadArgs};
use crate::sampling::SamplerArgs;

/// `llama serve`
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = NOTES)]
pub struct ServeArgs {
    /// GGUF file, or a model by name, such as qwen3:0.6b or user/repo:Q4_K_M; without one, the default model is used (and fetched once)
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub first: Option<PathBuf>,
    /// GGUF file or name of a model, in place of the argument
    #[arg(short, long, value_name = "FILE|NAME")]
    pub model: Option<PathBuf>,
    /// Serve all GGUF files of this folder and all models that were fetched, each by its name, in place of one model: a request's `model` says which, and it is loaded when it is first asked for
    #[arg(long, value_name = "FOLDER")]
    pub models_dir: Option<PathBuf>,
    /// Serve the models of this file, too, with options for each: sections [NAME] of lines OPTION = VALUE, and [*] for all (docs/server.md)
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub models_preset: Option<PathBuf>,
    /// Most of several models that are loaded at once (0: as many as memory takes); the one that was not asked for longest goes for another
    #[arg(long, value_name = "N", default_value_t = 4, hide_short_help = true)]
    pub models_max: usize,
    /// One of several models to load at the start, which then stays (may be repeated, or several separated by commas)
    #[arg(long, value_name = "NAME", value_delimiter = ',', hide_short_help = true)]
    pub models_pin: Vec<String>,
    /// Load one of several models only when POST /models/load says so, and not when it is asked for
    #[arg(long, overrides_with = "models_autoload", hide_short_help = true)]
    pub no_models_autoload: bool,
    /// Load it when it is asked for, which is the default
    #[arg(long, overrides_with = "no_models_autoload", hide = true)]
    pub models_autoload: bool,
    /// Address to listen on; other than of this machine alone only with --api-key or --insecure. A name that ends in .sock is a socket in the file system
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 is any that is free
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// Key that requests have to name (may be repeated, or several separated by commas)
    #[arg(long, value_name = "KEY", value_delimiter = ',', hide_env_values = true)]
    pub api_key: Vec<String>,
    /// File of such keys, one on each line
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Listen on any address without a key
    #[arg(long)]
    pub insecure: bool,
    /// File of the key for TLS, in PEM; connections are encrypted then
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file", hide_short_help = true)]
    pub ssl_key_file: Option<PathBuf>,
    /// File of its certificate and of those that vouch for it, in PEM
    #[arg(long, value_name = "FILE", requires = "ssl_key_file", hide_short_help = true)]
    pub ssl_cert_file: Option<PathBuf>,
    /// Folder in which requests may save what sequences hold (POST /slots/N?action=save) [default: none]
    #[arg(long, value_name = "FOLDER", hide_short_help = true)]
    pub slot_save_path: Option<PathBuf>,
    /// Origins of web pages that may use the model in a browser, separated by commas; '*' is any [default: the server's own page]
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', hide_short_help = true)]
    pub cors_origins: Vec<String>,
    /// Most seconds for requests under way once the server is to end
    #[arg(long, value_name = "SECONDS", default_value_t = 30, hide_short_help = true)]
    pub drain: u64,
    /// Connections at once; further ones wait
    #[arg(long, value_name = "N", default_value_t = 1024, hide_short_help = true, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_connections: u16,
    /// Serve the files of this folder in place of the page for browsers
    #[arg(long, value_name = "FOLDER", hide_short_help = true)]
    pub path: Option<PathBuf>,
    /// What all paths begin with, such as /llama, for servers that pass on what they are asked for
    #[arg(long, value_name = "PATH", default_value = "", value_parser = prefix, hide_short_help = true)]
    pub api_prefix: String,
    /// Serve no page for browsers
    #[arg(long, alias = "no-ui", hide_short_help = true)]
    pub no_webui: bool,
    /// Tell on stderr of every request: its id, path, status and time, and nothing of what was said
    #[arg(short, long, alias = "log-verbose")]
    pub verbose: bool,
    /// How messages are written
    #[command(flatten)]
    pub log: LogArgs,
    /// What others have a choice in
    #[command(flatten)]
    pub without_effect: WithoutEffectArgs,
    // Its last options have a heading of their own, which would be that of whatever follows.
    /// How answers are made
    #[command(flatten)]
    pub serving: ServingArgs,
}

impl ServeArgs {
    /// True if requests say which model answers.
    pub fn serves_several(&self) -> bool {
        self.models_dir.is_some() || self.models_preset.is_some()
    }
}

/// How answers are made, for clients and for files.
#[derive(Debug, Args)]
pub struct ServingArgs {
    /// Name of the model for clients (or several separated by commas, the first of which answers have) [default: that of its file]
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    pub alias: Vec<String>,
    /// Answers (-np) that are worked on at once
    #[arg(long, alias = "parallel", value_name = "N", default_value_t = 4, value_parser = parallel)]
    pub n_parallel: usize,
    /// Requests that may wait; further ones are told to come back later
    #[arg(long, value_name = "N", default_value = "256", value_parser = positive)]
    pub max_waiting: usize,
    /// Milliseconds of computing prompts for which answers under way wait at most, about
    #[arg(long, value_name = "MS", default_value_t = 100, hide_short_help = true)]
    pub prompt_step: u64,
    /// Most tokens of an answer for which the request says none; -1 goes on until the model ends or the context is full [default: 8192, or 32768 if the model thinks]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub predict: Option<i64>,
    /// How what a model thinks is told: `auto` and `deepseek` apart from the answer, `none` as part of it
    #[arg(long, value_name = "HOW", value_parser = ["auto", "deepseek", "none"], default_value = "auto", hide_short_help = true)]
    pub reasoning_format: String,
    /// How a text's tokens become one vector, for /v1/embeddings: none, mean, cls, last or rank [default: as the file says]
    #[arg(long, value_name = "HOW", value_parser = pooling, hide_short_help = true)]
    pub pooling: Option<Pooling>,
    /// How conversations become prompts
    #[command(flatten)]
    pub template: TemplateArgs,
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
    /// How tokens are chosen unless a request says otherwise
    #[command(flatten)]
    pub sampler: SamplerArgs,
    /// What answers are unless a request says otherwise
    #[command(flatten)]
    pub defaults: DefaultsArgs,
}

/// What answers are, unless a request says otherwise.
#[derive(Debug, Args)]
pub struct DefaultsArgs {
    /// End an answer before this text, unless a request has texts of its own (may be repeated)
    #[arg(short, long, value_name = "TEXT", hide_short_help = true)]
    pub reverse_prompt: Vec<String>,
    /// Never end an answer by itself: tokens that would are not chosen
    #[arg(long, conflicts_with = "grammar_flags", hide_short_help = true)]
    pub ignore_eos: bool,
    /// Answers have the names of special tokens where they have some
    #[arg(long, hide_short_help = true)]
    pub special: bool,
    /// Tell all that a model writes as the answer: what it thinks and calls is not told apart
    #[arg(long, hide_short_help = true)]
    pub skip_chat_parsing: bool,
    /// Gaps are asked for with what is behind them before what is before them, as some models were trained
    #[arg(long, hide_short_help = true)]
    pub spm_infill: bool,
    /// Load LoRA adapters without effect, until POST /lora-adapters gives them factors
    #[arg(long, hide_short_help = true)]
    pub lora_init_without_apply: bool,
    /// What answers have to be, but for those to requests that say so themselves or have functions to call
    #[command(flatten)]
    pub grammar: GrammarArgs,
}

/// `llama batch`
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = BATCH_NOTES)]
pub struct BatchArgs {
    /// File of requests, a line each: {"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {…}}
    #[arg(value_name = "IN.JSONL")]
    pub input: PathBuf,
    /// File for the answers, a line each; lines that are there are not done again
    #[arg(value_name = "OUT.JSONL")]
    pub output: PathBuf,
    /// GGUF file or name of a model; without one, the default model is used (and fetched once)
    #[arg(short, long, value_name = "FILE|NAME")]
    pub model: Option<PathBuf>,
    /// How answers are made
    #[command(flatten)]
    pub serving: ServingArgs,
}

const BATCH_NOTES: &str = "Files are those of OpenAI's batches. However the program ends, whole lines of the answers stay, and the same command goes on from there.";

const NOTES: &str = "The context (-c) is shared by all answers, each of which may have as much of it as is free. docs/server.md lists what can be asked for.";

/// Options of llama-server that change nothing here, so that its start scripts go on to work.
#[derive(Debug, Args)]
pub struct WithoutEffectArgs {
    /// What there is to be told of further ones
    #[arg(long = "without-effect", value_name = "TEXT", hide = true)]
    pub told: Vec<String>,
    /// Templates are always Jinja here
    #[arg(long, alias = "no-jinja", hide = true)]
    pub jinja: bool,
    /// Batches are always continuous
    #[arg(long, alias = "no-cont-batching", hide = true)]
    pub cont_batching: bool,
    /// The context is always shared by all answers
    #[arg(long, alias = "no-kv-unified", hide = true)]
    pub kv_unified: bool,
    /// What can be counted is always told
    #[arg(long, hide = true)]
    pub metrics: bool,
    /// The same
    #[arg(long, alias = "no-slots", hide = true)]
    pub slots: bool,
    /// The same
    #[arg(long, hide = true)]
    pub props: bool,
    /// Vectors can always be asked for
    #[arg(long, alias = "embedding", hide = true)]
    pub embeddings: bool,
    /// Beginnings are always reused where requests allow it
    #[arg(long, hide = true)]
    pub cache_prompt: bool,
    /// Beginnings are reused of any length
    #[arg(long, value_name = "N", hide = true)]
    pub cache_reuse: Option<String>,
    /// What was computed stays in the context
    #[arg(long, value_name = "MIB", allow_negative_numbers = true, hide = true)]
    pub cache_ram: Option<String>,
    /// Sequences are chosen by what they hold
    #[arg(long, value_name = "X", hide = true)]
    pub slot_prompt_similarity: Option<String>,
    /// Nothing is computed before the first request
    #[arg(long, alias = "no-warmup", hide = true)]
    pub warmup: bool,
    /// Threads of connections need no number
    #[arg(long, value_name = "N", allow_negative_numbers = true, hide = true)]
    pub threads_http: Option<String>,
    /// Connections have limits of their own
    #[arg(long, value_name = "SECONDS", hide = true)]
    pub timeout: Option<String>,
    /// Nothing is told of requests unless it is asked for
    #[arg(long, hide = true)]
    pub log_disable: bool,
}

impl WithoutEffectArgs {
    /// Those that were given, each with why it has no effect.
    pub fn given(&self) -> Vec<(&'static str, &'static str)> {
        let all = [
            (self.jinja, "--jinja", "templates are always Jinja"),
            (self.cont_batching, "--cont-batching", "batches are always continuous"),
            (
                self.kv_unified,
                "--kv-unified",
                "the context is always shared by all answers",
            ),
            (self.metrics, "--metrics", "/metrics is always there"),
            (self.slots, "--slots", "/slots is always there"),
            (self.props, "--props", "/props is always there, and changes nothing"),
            (
                self.embeddings,
                "--embeddings",
                "/v1/embeddings is always there, beside the rest",
            ),
            (
                self.cache_prompt,
                "--cache-prompt",
                "prompts are reused unless a request forbids it",
            ),
            (
                self.cache_reuse.is_some(),
                "--cache-reuse",
                "beginnings of any length are reused, and nothing else",
            ),
            (
                self.cache_ram.is_some(),
                "--cache-ram",
                "what was computed is kept in the context",
            ),
            (
                self.slot_prompt_similarity.is_some(),
                "--slot-prompt-similarity",
                "the longest common beginning counts",
            ),
            (self.warmup, "--warmup", "all memory is reserved at the start"),
            (
                self.threads_http.is_some(),
                "--threads-http",
                "connections do not take a thread each",
            ),
            (
                self.timeout.is_some(),
                "--timeout",
                "slow clients have limits of their own",
            ),
            (self.log_disable, "--log-disable", "requests are told of with -v only"),
        ];
        all.into_iter()
            .filter(|(given, ..)| *given)
            .map(|(_, name, why)| (name, why))
            .collect()
    }
}

/// Parts of a path without what has another meaning in one; a slash at the end means nothing.
fn prefix(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    let is_part = |part: &str| {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
        !part.is_empty() && part.chars().all(is_letter) && part != "." && part != ".."
    };
    match path.strip_prefix('/') {
        None if path.is_empty() => Ok(String::new()),
        Some(rest) if rest.split('/').all(is_part) => Ok(path.to_owned()),
        _ => Err("expected a path such as /llama or /models/llama".to_owned()),
    }
}

fn parallel(text: &str) -> Result<usize, String> {
    const MAX: usize = MAX_SEQUENCES;
    // As many as llama-server takes by itself.
    if text == "-1" {
        return Ok(4);
    }
    let n = text.parse().ok().filter(|n| (1..=MAX).contains(n));
    n.ok_or_else(|| format!("expected a whole number from 1 to {MAX}"))
}
