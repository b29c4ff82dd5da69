//! The flags of contexts: how large they are, and how they compute.

use clap::{Args, ValueEnum};
use engine::context::ContextParams;
use kernels::{GgmlType, Precision};

use super::values::{at_least_0, cache_type, context_size, positive, positive_float, threads};

/// Tokens of a context of which nothing is said.
const DEFAULT_CONTEXT: usize = 4096;

/// How a context is made.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Context")]
pub struct ContextArgs {
    /// Size of the context in tokens; 0 takes as many as the model was trained for [default: 4096; with `llama serve` 8192, or what the model was trained for if that is less]
    #[arg(short = 'c', long, value_name = "N", value_parser = context_size, allow_negative_numbers = true)]
    pub ctx_size: Option<usize>,
    /// Without -c, the least context that will do where the default one does not fit in memory (-fitc)
    #[arg(long, value_name = "N", default_value = "512", value_parser = positive, hide_short_help = true)]
    pub fit_ctx: usize,
    /// Threads for single tokens; -1: one for each core [default: -1]
    #[arg(short, long, value_name = "N", value_parser = threads, allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Threads for prompts (-tb) [default: those of -t]
    #[arg(long, value_name = "N", value_parser = threads, allow_negative_numbers = true, hide_short_help = true)]
    pub threads_batch: Option<usize>,
    /// Logical batch size: most tokens decoded in one call
    #[arg(short, long, value_name = "N", default_value = "2048", value_parser = positive, hide_short_help = true)]
    pub batch_size: usize,
    /// Physical batch size (-ub): most tokens in one ubatch
    #[arg(long, value_name = "N", default_value = "512", value_parser = positive, hide_short_help = true)]
    pub ubatch_size: usize,
    /// Activations in products with quantized weights: exact (f32), high (16-bit integers) or fast (from 32 tokens in a batch on 8-bit, bfloat16 with AMX; on cards bfloat16 from 9 tokens on)
    #[arg(long, value_name = "HOW", default_value = "fast", hide_short_help = true)]
    pub precision: PrecisionArg,
    /// Type of the K cache (-ctk): f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl
    #[arg(long, value_name = "TYPE", alias = "ctk", default_value = "f16", value_parser = cache_type, hide_short_help = true)]
    pub cache_type_k: GgmlType,
    /// Type of the V cache (-ctv): f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl
    #[arg(long, value_name = "TYPE", alias = "ctv", default_value = "f16", value_parser = cache_type, hide_short_help = true)]
    pub cache_type_v: GgmlType,
    /// RoPE base frequency [default: the model's]
    #[arg(long, value_name = "BASE", value_parser = positive_float, hide_short_help = true)]
    pub rope_freq_base: Option<f32>,
    /// RoPE frequency scale [default: the model's]
    #[arg(long, value_name = "FACTOR", value_parser = positive_float, hide_short_help = true)]
    pub rope_freq_scale: Option<f32>,
    /// By what factor RoPE stretches positions: the inverse of its frequency scale
    #[arg(long, value_name = "FACTOR", value_parser = positive_float, conflicts_with = "rope_freq_scale", hide_short_help = true)]
    pub rope_scale: Option<f32>,
    /// How RoPE stretches positions: none, linear or yarn [default: the model's]
    #[arg(long, value_name = "HOW", value_parser = ["none", "linear", "yarn"], hide_short_help = true)]
    pub rope_scaling: Option<String>,
    /// YaRN: the context of the first training [default: the model's]
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true)]
    pub yarn_orig_ctx: Option<usize>,
    /// YaRN: how far short wave lengths are left as they are, from 0, not at all, to 1 [default: the model's, or 1 with `--rope-scaling yarn`]
    #[arg(long, value_name = "X", value_parser = at_least_0, hide_short_help = true)]
    pub yarn_ext_factor: Option<f32>,
    /// YaRN: factor on the magnitude of attention [default: the model's]
    #[arg(long, value_name = "X", value_parser = positive_float, hide_short_help = true)]
    pub yarn_attn_factor: Option<f32>,
    /// YaRN: rotations up to which wave lengths are stretched by the whole factor [default: the model's]
    #[arg(long, value_name = "X", value_parser = positive_float, hide_short_help = true)]
    pub yarn_beta_slow: Option<f32>,
    /// YaRN: rotations from which wave lengths are left as they are [default: the model's]
    #[arg(long, value_name = "X", value_parser = positive_float, hide_short_help = true)]
    pub yarn_beta_fast: Option<f32>,
    /// Attention that stores no scores (-fa), as other engines call it: on, off or auto. There is no other here
    #[arg(long, value_name = "HOW", value_parser = ["on", "off", "auto", "1", "0"], default_value = "auto", hide = true)]
    pub flash_attn: String,
}

impl ContextArgs {
    /// The engine's settings.
    pub fn params(&self) -> ContextParams {
        let defaults = ContextParams::default();
        let (by_kind, ext_factor) = match self.rope_scaling.as_deref() {
            Some("none") => (Some(1.0), Some(0.0)),
            Some("linear") => (None, Some(0.0)),
            Some("yarn") => (None, self.yarn_ext_factor.or(Some(1.0))),
            _ => (None, self.yarn_ext_factor),
        };
        let by_factor = self.rope_scale.map(|factor| 1.0 / factor);
        ContextParams {
            n_ctx: self.ctx_size.unwrap_or(DEFAULT_CONTEXT),
            n_batch: self.batch_size,
            n_ubatch: self.ubatch_size.min(self.batch_size),
            n_threads: self.threads.unwrap_or(defaults.n_threads),
            n_threads_batch: self.threads_batch.or(self.threads).unwrap_or(defaults.n_threads_batch),
            precision: self.precision.into(),
            type_k: self.cache_type_k,
            type_v: self.cache_type_v,
            rope_freq_base: self.rope_freq_base,
            rope_freq_scale: by_kind.or(self.rope_freq_scale).or(by_factor),
            yarn_ext_factor: ext_factor,
            yarn_orig_ctx: self.yarn_orig_ctx,
            yarn_attn_factor: self.yarn_attn_factor,
            yarn_beta_fast: self.yarn_beta_fast,
            yarn_beta_slow: self.yarn_beta_slow,
            ..defaults
        }
    }
}

/// What matrix products with quantized weights may cost in accuracy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionArg {
    /// Activations in f32
    Exact,
    /// Activations as integers of 16 bits: results are the same but for rounding
    High,
    /// As `high`, and of 8 bits in prompts where weights have at most 6, or as bfloat16 with AMX
    Fast,
}

impl PrecisionArg {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            PrecisionArg::Exact => "exact",
            PrecisionArg::High => "high",
            PrecisionArg::Fast => "fast",
        }
    }
}

impl From<PrecisionArg> for Precision {
    fn from(precision: PrecisionArg) -> Precision {
        match precision {
            PrecisionArg::Exact => Precision::Exact,
            PrecisionArg::High => Precision::High,
            PrecisionArg::Fast => Precision::Fast,
        }
    }
}
