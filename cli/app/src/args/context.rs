//! Arguments of inference contexts: size, batching, precision, and RoPE scaling.

use clap::{Args, ValueEnum};
use engine::context::ContextParams;
use kernels::{GgmlType, Precision};

use super::values::{Toggle, at_least_0, cache_type, context_size, positive, positive_float, threads};

/// Default context size in tokens.
const DEFAULT_CONTEXT: usize = 4096;

/// Context size, batching, precision, and RoPE options.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Context")]
pub struct ContextArgs {
    /// Context size in tokens; 0: training context [default: 4096; serve: 8192]
    ///
    /// `llama serve` uses the training context if it is smaller than 8192.
    #[arg(short = 'c', long, value_name = "N", value_parser = context_size, allow_negative_numbers = true)]
    pub ctx_size: Option<usize>,
    /// Minimum context size if the default does not fit in memory (-fitc)
    #[arg(long, value_name = "N", default_value = "512", value_parser = positive, hide_short_help = true)]
    pub fit_ctx: usize,
    /// Threads for decoding; -1: one per core [default: -1]
    #[arg(short, long, value_name = "N", value_parser = threads, allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Threads for prefill (-tb) [default: --threads]
    #[arg(long, value_name = "N", value_parser = threads, allow_negative_numbers = true, hide_short_help = true)]
    pub threads_batch: Option<usize>,
    #[command(flatten)]
    pub batch: BatchSizeArgs,
    #[command(flatten)]
    pub precision: PrecisionArgs,
    #[command(flatten)]
    pub cache: CacheTypeArgs,
    /// RoPE base frequency [default: from the model]
    #[arg(long, value_name = "BASE", value_parser = positive_float, hide_short_help = true)]
    pub rope_freq_base: Option<f32>,
    /// RoPE frequency scale [default: from the model]
    #[arg(long, value_name = "FACTOR", value_parser = positive_float, hide_short_help = true)]
    pub rope_freq_scale: Option<f32>,
    /// RoPE context scaling factor, the inverse of --rope-freq-scale
    #[arg(long, value_name = "FACTOR", value_parser = positive_float, conflicts_with = "rope_freq_scale", hide_short_help = true)]
    pub rope_scale: Option<f32>,
    /// RoPE scaling method [default: from the model]
    #[arg(long, value_name = "MODE", value_parser = ["none", "linear", "yarn"], hide_short_help = true)]
    pub rope_scaling: Option<String>,
    /// YaRN: original training context in tokens [default: from the model]
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true)]
    pub yarn_orig_ctx: Option<usize>,
    /// YaRN: extrapolation mix factor, from 0 to 1 [default: from the model]
    ///
    /// 0 interpolates all dimensions; 1 leaves short wavelengths unscaled. With `--rope-scaling yarn`, the
    /// default is 1.
    #[arg(long, value_name = "X", value_parser = at_least_0, hide_short_help = true)]
    pub yarn_ext_factor: Option<f32>,
    /// YaRN: attention magnitude factor [default: from the model]
    #[arg(long, value_name = "X", value_parser = positive_float, hide_short_help = true)]
    pub yarn_attn_factor: Option<f32>,
    /// YaRN: rotations up to which interpolation is full [default: from the model]
    #[arg(long, value_name = "X", value_parser = positive_float, hide_short_help = true)]
    pub yarn_beta_slow: Option<f32>,
    /// YaRN: rotations from which positions are unscaled [default: from the model]
    #[arg(long, value_name = "X", value_parser = positive_float, hide_short_help = true)]
    pub yarn_beta_fast: Option<f32>,
    /// Flash attention (-fa): on, off, or auto; always on
    #[arg(long, value_name = "MODE", ignore_case = true, default_value = "auto", hide = true)]
    pub flash_attn: Toggle,
}

impl ContextArgs {
    /// Converts the flags to engine parameters.
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
            n_batch: self.batch.size,
            n_ubatch: self.batch.ubatch(),
            n_threads: self.threads.unwrap_or(defaults.n_threads),
            n_threads_batch: self.threads_batch.or(self.threads).unwrap_or(defaults.n_threads_batch),
            precision: self.precision.mode.into(),
            type_k: self.cache.k,
            type_v: self.cache.v,
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

/// Batch size options.
#[derive(Clone, Copy, Debug, Args)]
pub struct BatchSizeArgs {
    /// Logical batch size: maximum tokens per decode call
    #[arg(short = 'b', long = "batch-size", id = "batch_size", value_name = "N", default_value = "2048", value_parser = positive, hide_short_help = true)]
    pub size: usize,
    #[command(flatten)]
    pub physical: UbatchSizeArgs,
}

impl BatchSizeArgs {
    /// Returns the maximum tokens per ubatch. An ubatch is at most as large as a batch.
    pub fn ubatch(&self) -> usize {
        self.physical.size.min(self.size)
    }
}

/// Physical batch size option.
#[derive(Clone, Copy, Debug, Args)]
pub struct UbatchSizeArgs {
    /// Physical batch size (-ub): maximum tokens per ubatch
    #[arg(long = "ubatch-size", id = "ubatch_size", value_name = "N", alias = "ubatch", default_value = "512", value_parser = positive, hide_short_help = true)]
    pub size: usize,
}

/// Precision, cache types, and threads of commands that choose the size of their context.
#[derive(Clone, Copy, Debug, Args)]
pub struct ComputeArgs {
    #[command(flatten)]
    pub precision: PrecisionArgs,
    #[command(flatten)]
    pub cache: CacheTypeArgs,
    /// Number of threads [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

impl ComputeArgs {
    /// Returns the default context parameters with these options.
    pub fn params(&self) -> ContextParams {
        let defaults = ContextParams::default();
        let n_threads = self.threads.unwrap_or(defaults.n_threads);
        ContextParams {
            n_threads,
            n_threads_batch: n_threads,
            precision: self.precision.mode.into(),
            type_k: self.cache.k,
            type_v: self.cache.v,
            ..defaults
        }
    }
}

/// KV cache options.
#[derive(Clone, Copy, Debug, Args)]
pub struct CacheTypeArgs {
    /// Data type of the K cache (-ctk)
    ///
    /// Values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, and iq4_nl.
    #[arg(long = "cache-type-k", id = "cache_type_k", value_name = "TYPE", alias = "ctk", default_value = "f16", value_parser = cache_type, hide_short_help = true)]
    pub k: GgmlType,
    /// Data type of the V cache (-ctv)
    ///
    /// Values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, and iq4_nl.
    #[arg(long = "cache-type-v", id = "cache_type_v", value_name = "TYPE", alias = "ctv", default_value = "f16", value_parser = cache_type, hide_short_help = true)]
    pub v: GgmlType,
}

/// Precision option.
#[derive(Clone, Copy, Debug, Args)]
pub struct PrecisionArgs {
    /// Precision of activations in matmuls with quantized weights
    ///
    /// `exact` uses f32 and `high` uses 16-bit integers. `fast` also uses 8-bit integers (bf16 with AMX) in batches of
    /// at least 32 tokens, and bf16 on GPUs for 9 tokens or more.
    #[arg(
        long = "precision",
        id = "precision",
        value_name = "MODE",
        default_value = "fast",
        hide_short_help = true
    )]
    pub mode: PrecisionArg,
}

/// Precision of activations in matmuls with quantized weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionArg {
    /// f32 activations
    Exact,
    /// 16-bit integer activations, which match f32 up to rounding
    High,
    /// Like high, with 8-bit integers (bf16 with AMX) in large batches of low-bit weights
    Fast,
    /// Like fast, with 8-bit integers in batches of 9 or more tokens, such as many sequences or drafts
    Fastest,
}

impl PrecisionArg {
    /// Returns the command-line spelling.
    pub fn name(self) -> &'static str {
        match self {
            PrecisionArg::Exact => "exact",
            PrecisionArg::High => "high",
            PrecisionArg::Fast => "fast",
            PrecisionArg::Fastest => "fastest",
        }
    }
}

impl From<PrecisionArg> for Precision {
    fn from(precision: PrecisionArg) -> Precision {
        match precision {
            PrecisionArg::Exact => Precision::Exact,
            PrecisionArg::High => Precision::High,
            PrecisionArg::Fast => Precision::Fast,
            PrecisionArg::Fastest => Precision::Fastest,
        }
    }
}
