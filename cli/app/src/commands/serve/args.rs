//! Arguments of `llama serve`, named as in llama-server.

use std::path::PathBuf;

use clap::Args;
use server::service::ServiceParams;

use crate::args::{LogArgs, ServingArgs};

/// Arguments of `llama serve`.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = NOTES)]
pub struct ServeArgs {
    /// GGUF file or model name, such as qwen3:0.6b or user/repo:Q4_K_M
    ///
    /// Without a model, the default model qwen3:0.6b is used. It is downloaded on first use.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub first: Option<PathBuf>,
    /// GGUF file or model name; replaces MODEL
    #[arg(short, long, value_name = "FILE|NAME")]
    pub model: Option<PathBuf>,
    /// Serve the GGUF files and checkpoints of this directory and all downloaded models
    ///
    /// The `model` field of a request selects the model, which is loaded on first use.
    #[arg(long, value_name = "DIR")]
    pub models_dir: Option<PathBuf>,
    /// File of additional models, each with its own options (see docs/server.md)
    ///
    /// Sections are `[NAME]` followed by lines `OPTION = VALUE`; `[*]` applies to all models.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub models_preset: Option<PathBuf>,
    /// Maximum loaded models; 0: limited by memory
    ///
    /// Loading another model unloads the least recently used model.
    #[arg(long, value_name = "N", default_value_t = 4, hide_short_help = true)]
    pub models_max: usize,
    /// Model to load at startup and never unload (may be repeated or comma-separated)
    #[arg(long, value_name = "NAME", value_delimiter = ',', hide_short_help = true)]
    pub models_pin: Vec<String>,
    /// Seconds without requests after which a model is unloaded; -1: never
    ///
    /// The next request loads the model again. Pinned models stay loaded.
    #[arg(long, value_name = "SECONDS", default_value_t = -1, allow_negative_numbers = true, hide_short_help = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub sleep_idle_seconds: i64,
    /// Load models only on POST /models/load, not on first use
    #[arg(long, overrides_with = "models_autoload", hide_short_help = true)]
    pub no_models_autoload: bool,
    /// Load models on first use (default)
    #[arg(long, overrides_with = "no_models_autoload", hide = true)]
    pub models_autoload: bool,
    /// Listen addresses, comma-separated; a name ending in .sock is a Unix socket
    ///
    /// An address that other machines can reach requires --api-key or --insecure.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// Listen port; 0: any free port
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// API key that clients must send (may be repeated or comma-separated)
    #[arg(long, value_name = "KEY", value_delimiter = ',', hide_env_values = true)]
    pub api_key: Vec<String>,
    /// File of API keys, one per line
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Allow listening on a non-loopback address without an API key
    #[arg(long)]
    pub insecure: bool,
    /// TLS private key file in PEM format; enables HTTPS
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file", hide_short_help = true)]
    pub ssl_key_file: Option<PathBuf>,
    /// TLS certificate chain file in PEM format
    #[arg(long, value_name = "FILE", requires = "ssl_key_file", hide_short_help = true)]
    pub ssl_cert_file: Option<PathBuf>,
    /// Disable /slots, which lists and changes the slots
    #[arg(long, overrides_with = "slots", hide_short_help = true)]
    pub no_slots: bool,
    /// Directory for saved slots (POST /slots/N?action=save) [default: disabled]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub slot_save_path: Option<PathBuf>,
    /// Maximum size of all saved slots in MiB
    #[arg(long, value_name = "MIB", default_value_t = 8192, hide_short_help = true)]
    pub slot_save_limit: u64,
    /// Allowed CORS origins, comma-separated; '*': any [default: the server's own page]
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', hide_short_help = true)]
    pub cors_origins: Vec<String>,
    /// Seconds to wait for running requests at shutdown
    #[arg(
        long,
        alias = "drain",
        value_name = "SECONDS",
        default_value_t = 30,
        hide_short_help = true
    )]
    pub shutdown_timeout: u64,
    /// Maximum open connections; further connections wait
    #[arg(long, value_name = "N", default_value_t = 1024, hide_short_help = true, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_connections: u16,
    /// Directory of static files to serve instead of the web page
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub path: Option<PathBuf>,
    /// Prefix of all paths, such as /llama, for use behind a reverse proxy
    #[arg(long, value_name = "PATH", default_value = "", value_parser = prefix, hide_short_help = true)]
    pub api_prefix: String,
    /// Disable the web page
    #[arg(long, alias = "no-ui", hide_short_help = true)]
    pub no_webui: bool,
    /// Log each request to stderr
    ///
    /// The log has the id, path, status, and duration of a request, but no content. Responses contain the prompt and
    /// the settings in `__verbose`.
    #[arg(short, long, alias = "log-verbose")]
    pub verbose: bool,
    #[command(flatten)]
    pub log: LogArgs,
    #[command(flatten)]
    pub without_effect: WithoutEffectArgs,
    // `serving` must be the last field: its groups end with a help heading, which clap applies to all later
    // flags.
    #[command(flatten)]
    pub serving: ServingArgs,
}

impl ServeArgs {
    /// Returns true if requests choose between several models.
    pub fn serves_several(&self) -> bool {
        self.models_dir.is_some() || self.models_preset.is_some()
    }

    /// Sets the settings that belong to the server, not to the model.
    pub fn applied_to(&self, params: &mut ServiceParams) {
        params.has_slots = !self.no_slots;
        params.slot_save_path = self.slot_save_path.clone();
        params.slot_save_limit = self.slot_save_limit.saturating_mul(1 << 20);
        params.defaults.verbose = self.verbose;
    }
}

const NOTES: &str = "All requests share the context (-c); each may use any free part of it. docs/server.md documents the HTTP endpoints.";

/// llama-server options that have no effect, accepted so that existing start scripts work.
#[derive(Debug, Args)]
pub struct WithoutEffectArgs {
    /// Notice about another ignored option
    #[arg(long = "without-effect", value_name = "TEXT", hide = true)]
    pub notices: Vec<String>,
    /// Use Jinja chat templates; always on
    #[arg(long, alias = "no-jinja", hide = true)]
    pub jinja: bool,
    /// Use continuous batching; always on
    #[arg(long, alias = "no-cont-batching", hide = true)]
    pub cont_batching: bool,
    /// Share one KV cache between all sequences; always on
    #[arg(long, alias = "no-kv-unified", hide = true)]
    pub kv_unified: bool,
    /// Enable the /metrics endpoint; always on
    #[arg(long, hide = true)]
    pub metrics: bool,
    /// Enable the /slots endpoint; the default
    #[arg(long, overrides_with = "no_slots", hide = true)]
    pub slots: bool,
    /// Enable the /props endpoint; always on
    #[arg(long, hide = true)]
    pub props: bool,
    /// Enable the embeddings endpoint; always on
    #[arg(long, alias = "embedding", hide = true)]
    pub embeddings: bool,
    /// Reuse cached prompt prefixes; always on
    #[arg(long, hide = true)]
    pub cache_prompt: bool,
    /// Minimum length of a reused chunk; prefixes of any length are reused
    #[arg(long, value_name = "N", hide = true)]
    pub cache_reuse: Option<String>,
    /// Prompt cache size in MiB; the cache is part of the context
    #[arg(long, value_name = "MIB", allow_negative_numbers = true, hide = true)]
    pub cache_ram: Option<String>,
    /// Minimum prompt similarity for slot selection; the longest cached prefix is used
    #[arg(long, value_name = "X", hide = true)]
    pub slot_prompt_similarity: Option<String>,
    /// Warm up before the first request; not needed
    #[arg(long, alias = "no-warmup", hide = true)]
    pub warmup: bool,
    /// Number of HTTP threads; not needed
    #[arg(long, value_name = "N", allow_negative_numbers = true, hide = true)]
    pub threads_http: Option<String>,
    /// Connection timeout in seconds; fixed limits apply
    #[arg(long, value_name = "SECONDS", hide = true)]
    pub timeout: Option<String>,
    /// Disable logging; requests are logged only with -v
    #[arg(long, hide = true)]
    pub log_disable: bool,
}

impl WithoutEffectArgs {
    /// Returns the ignored options that were given, each with a reason.
    pub fn given(&self) -> Vec<(&'static str, &'static str)> {
        let all = [
            (self.jinja, "--jinja", "chat templates are always rendered with Jinja"),
            (
                self.cont_batching,
                "--cont-batching",
                "continuous batching is always on",
            ),
            (
                self.kv_unified,
                "--kv-unified",
                "all sequences always share the context",
            ),
            (self.metrics, "--metrics", "/metrics is always enabled"),
            (self.slots, "--slots", "/slots is enabled unless --no-slots is given"),
            (self.props, "--props", "/props is always enabled and read-only"),
            (self.embeddings, "--embeddings", "/v1/embeddings is always enabled"),
            (
                self.cache_prompt,
                "--cache-prompt",
                "cached prefixes are reused unless a request disables it",
            ),
            (
                self.cache_reuse.is_some(),
                "--cache-reuse",
                "cached prefixes of any length are reused",
            ),
            (
                self.cache_ram.is_some(),
                "--cache-ram",
                "cached prompts are stored in the context",
            ),
            (
                self.slot_prompt_similarity.is_some(),
                "--slot-prompt-similarity",
                "the slot with the longest common prefix is used",
            ),
            (self.warmup, "--warmup", "all memory is allocated at startup"),
            (
                self.threads_http.is_some(),
                "--threads-http",
                "HTTP connections do not use a thread each",
            ),
            (self.timeout.is_some(), "--timeout", "slow clients have fixed limits"),
            (self.log_disable, "--log-disable", "requests are logged only with -v"),
        ];
        all.into_iter()
            .filter(|(given, ..)| *given)
            .map(|(_, name, why)| (name, why))
            .collect()
    }
}

/// Validates a path prefix and removes trailing slashes.
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
