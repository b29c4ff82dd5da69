//! Parameters of a context.

use std::sync::Arc;

use kernels::{GgmlType, Precision};

use crate::backend::{Profile, ThreadPool, default_threads};
use crate::builder::{MemoryParams, Pooling};

/// Parameters of a [`Context`](super::Context).
#[derive(Clone, Debug, PartialEq)]
pub struct ContextParams {
    /// KV cache size in tokens, shared by all sequences; 0 selects the training context length.
    pub n_ctx: usize,
    /// Maximum tokens per decode call.
    pub n_batch: usize,
    /// Maximum tokens computed at once; compute buffers are reserved for this size.
    pub n_ubatch: usize,
    /// Maximum number of sequences, up to [`MAX_SEQUENCES`](super::MAX_SEQUENCES).
    pub n_seq_max: usize,
    /// Recurrent models: number of trailing tokens of a decode whose states are checkpointed. A sequence can be
    /// truncated by up to this number of tokens.
    pub n_rollback: usize,
    /// Maximum outputs computed at once; larger batches are split. 0 selects `n_seq_max`.
    pub n_outputs_max: usize,
    /// Number of threads for decoding single tokens.
    pub n_threads: usize,
    /// Number of threads for batches of several tokens.
    pub n_threads_batch: usize,
    /// Thread pool shared with other contexts, which then compute in turns; caps the thread counts above. By
    /// default, a context starts its own threads.
    pub thread_pool: Option<Arc<ThreadPool>>,
    /// Accuracy of matmuls. Devices with only one kind of matmul ignore this setting.
    pub precision: Precision,
    /// Profile that accumulates the time of ops; by default, nothing is measured.
    pub profile: Option<Profile>,
    /// Type of cached keys.
    pub type_k: GgmlType,
    /// Type of cached values.
    pub type_v: GgmlType,
    /// RoPE base frequency; `None` selects the model's value.
    pub rope_freq_base: Option<f32>,
    /// RoPE position scale; `None` selects the model's value.
    pub rope_freq_scale: Option<f32>,
    /// YaRN extrapolation factor; `None` selects the model's value.
    pub yarn_ext_factor: Option<f32>,
    /// YaRN original context length; `None` selects the model's value.
    pub yarn_orig_ctx: Option<usize>,
    /// YaRN magnitude factor; `None` selects the model's value.
    pub yarn_attn_factor: Option<f32>,
    /// YaRN beta_fast: pairs with at least this many rotations over the original context are not scaled.
    /// `None` selects the model's value.
    pub yarn_beta_fast: Option<f32>,
    /// YaRN beta_slow: pairs with at most this many rotations over the original context are fully scaled.
    /// `None` selects the model's value.
    pub yarn_beta_slow: Option<f32>,
    /// Computes pooled embeddings instead of the main output; see
    /// [`Context::embedding`](super::Context::embedding). Batches are then computed as a whole: `n_ubatch` is
    /// raised to `n_batch`.
    pub pooling: Option<Pooling>,
    /// Keeps the hidden states of all tokens of a batch; see [`Context::hidden`](super::Context::hidden).
    pub hidden: bool,
    /// Runs the MTP layer instead of the model. Decode with
    /// [`Context::decode_after`](super::Context::decode_after); hidden states are kept for tokens with
    /// output.
    pub mtp: bool,
    /// Maximum rows of a medium in a batch; 0 reserves no memory for media. Where rows attend to all rows of their
    /// medium, `n_ubatch` is raised to this number.
    pub media_rows: usize,
}

impl ContextParams {
    /// Returns the parameters that determine memory sizes, for a KV cache of `n_ctx` tokens.
    pub fn memory(&self, n_ctx: usize) -> MemoryParams {
        MemoryParams {
            n_ctx,
            n_batch: self.n_batch,
            n_ubatch: self.n_ubatch,
            n_seq_max: self.n_seq_max,
            n_outputs_max: self.n_outputs_max,
            hidden: self.hidden,
            n_rollback: self.n_rollback,
            type_k: self.type_k,
            type_v: self.type_v,
        }
    }
}

impl Default for ContextParams {
    fn default() -> ContextParams {
        let n = default_threads();
        ContextParams {
            n_ctx: 0,
            n_batch: 2048,
            n_ubatch: 512,
            n_seq_max: 1,
            n_rollback: 0,
            n_outputs_max: 0,
            n_threads: n,
            n_threads_batch: n,
            thread_pool: None,
            precision: Precision::default(),
            profile: None,
            type_k: GgmlType::F16,
            type_v: GgmlType::F16,
            rope_freq_base: None,
            rope_freq_scale: None,
            yarn_ext_factor: None,
            yarn_orig_ctx: None,
            yarn_attn_factor: None,
            yarn_beta_fast: None,
            yarn_beta_slow: None,
            pooling: None,
            hidden: false,
            mtp: false,
            media_rows: 0,
        }
    }
}
