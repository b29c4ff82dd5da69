//! Arguments of `llama serve` and `llama batch` for one model, named as in llama-server.

use clap::Args;
use engine::builder::Pooling;
use engine::context::MAX_SEQUENCES;

use super::values::{pooling_mode, positive};
use super::{
    AdapterArgs, ContextArgs, GrammarArgs, HubArgs, LoadArgs, SamplerArgs, ServedMediaArgs, SpeculationArgs,
    TemplateArgs,
};

/// Generation options for the server and for batches.
#[derive(Debug, Args)]
#[command(next_help_heading = "Serving")]
pub struct ServingArgs {
    /// Model name for clients, with comma-separated aliases [default: file name]
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    pub alias: Vec<String>,
    /// Labels of the model in model lists, comma-separated
    #[arg(long, value_name = "TAG", value_delimiter = ',', hide_short_help = true)]
    pub tags: Vec<String>,
    /// Maximum sequences decoded in parallel (-np)
    #[arg(long, alias = "parallel", value_name = "N", default_value_t = 4, value_parser = parallel)]
    pub n_parallel: usize,
    /// Maximum queued requests; more requests get status 429
    #[arg(long, alias = "max-waiting", value_name = "N", default_value = "256", value_parser = positive)]
    pub max_queue: usize,
    /// Share cached prompts and slots between all API keys
    ///
    /// Without this option, requests reuse only the cached prompts of their own key.
    #[arg(long, hide_short_help = true)]
    pub share_cache: bool,
    /// Prefill budget per step in ms while other requests are decoding
    #[arg(
        long,
        alias = "prompt-step",
        value_name = "MS",
        default_value_t = 100,
        hide_short_help = true
    )]
    pub prefill_budget_ms: u64,
    /// Maximum tokens if a request sets no limit; -1: unlimited [default: 8192]
    ///
    /// The default for reasoning models is 32768. With -1, generation continues until the model stops or the
    /// context is full.
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub predict: Option<i64>,
    /// Location of reasoning in responses
    ///
    /// `auto` and `deepseek` return reasoning in a separate field, and `none` as part of the content.
    #[arg(long, value_name = "MODE", value_parser = ["auto", "deepseek", "none"], default_value = "auto", hide_short_help = true)]
    pub reasoning_format: String,
    /// Pooling for /v1/embeddings: none, mean, cls, last, rank [default: from file]
    #[arg(long, value_name = "MODE", value_parser = pooling_mode, hide_short_help = true)]
    pub pooling: Option<Pooling>,
    #[command(flatten)]
    pub template: TemplateArgs,
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
    pub sampler: SamplerArgs,
    #[command(flatten)]
    pub media: ServedMediaArgs,
    #[command(flatten)]
    pub defaults: DefaultsArgs,
}

impl ServingArgs {
    /// Returns the labels of the model.
    pub fn labels(&self) -> Vec<String> {
        let tags = self.tags.iter().map(|tag| tag.trim().to_owned());
        tags.filter(|tag| !tag.is_empty()).collect()
    }
}

/// Defaults for requests that do not set these options.
#[derive(Debug, Args)]
#[command(next_help_heading = "Serving")]
pub struct DefaultsArgs {
    /// Default stop string for requests without any (may be repeated)
    #[arg(short, long, value_name = "TEXT", hide_short_help = true)]
    pub reverse_prompt: Vec<String>,
    /// Ignore end-of-sequence tokens and keep generating
    #[arg(long, conflicts_with = "grammar_flags", hide_short_help = true)]
    pub ignore_eos: bool,
    /// Include special tokens by name in responses
    #[arg(long, hide_short_help = true)]
    pub special: bool,
    /// Return raw model output as content, without parsing reasoning and tool calls
    #[arg(long, hide_short_help = true)]
    pub skip_chat_parsing: bool,
    /// Order infill prompts as suffix, prefix, middle (SPM)
    #[arg(long, hide_short_help = true)]
    pub spm_infill: bool,
    /// Reject requests with unknown fields that could change the output
    #[arg(long, hide_short_help = true)]
    pub strict_fields: bool,
    /// Load LoRA adapters with scale 0 until POST /lora-adapters changes it
    #[arg(long, hide_short_help = true)]
    pub lora_init_without_apply: bool,
    #[command(flatten)]
    pub grammar: GrammarArgs,
}

fn parallel(text: &str) -> Result<usize, String> {
    const MAX: usize = MAX_SEQUENCES;
    // llama-server's default.
    if text == "-1" {
        return Ok(4);
    }
    let n = text.parse().ok().filter(|n| (1..=MAX).contains(n));
    n.ok_or_else(|| format!("expected an integer from 1 to {MAX}"))
}
