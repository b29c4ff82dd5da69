//! Settings of a context.

use std::sync::Arc;

use kernels::{GgmlType, Precision};

use crate::backend::{Profile, ThreadPool};
use crate::builder::{MemoryParams, Pooling};

/// Settings of a [`Context`](super::Context).
#[derive(Clone, Debug, PartialEq)]
pub struct ContextParams {
    /// Cells of KV memory, shared by all sequences; 0 takes the model's training length.
    pub n_ctx: usize,
    /// Most tokens of one call of decode.
    pub n_batch: usize,
    /// Most tokens computed at once; memory for intermediate results is reserved for this many.
    pub n_ubatch: usize,
    /// Most sequences, up to [`MAX_SEQUENCES`](super::MAX_SEQUENCES).
    pub n_seq_max: usize,
    /// How many of the last tokens of a decode leave their states in cells of their own, so that a sequence of a recurrent model can be cut
    /// back by up to so many.
    pub n_rollback: usize,
    /// Most outputs computed at once; a batch that wants more is computed in more parts. 0 takes `n_seq_max`.
    pub n_outputs_max: usize,
    /// Threads for single tokens.
    pub n_threads: usize,
    /// Threads for batches.
    pub n_threads_batch: usize,
    /// Threads shared with other contexts, which then compute in turns; the numbers above are limited to as many as these. By default a
    /// context starts threads of its own.
    pub thread_pool: Option<Arc<ThreadPool>>,
    /// What matrix products may cost in accuracy. Devices that know one kind of product only ignore it.
    pub precision: Precision,
    /// Where to add up the time of ops; by default times are not taken.
    pub profile: Option<Profile>,
    /// Type of cached keys.
    pub type_k: GgmlType,
    /// Type of cached values.
    pub type_v: GgmlType,
    /// Base of the rotary wave lengths; `None` takes the model's.
    pub rope_freq_base: Option<f32>,
    /// Factor on positions; `None` takes the model's.
    pub rope_freq_scale: Option<f32>,
    /// YaRN extrapolation mix; `None` takes the model's.
    pub yarn_ext_factor: Option<f32>,
    /// Context length of the first training, for YaRN; `None` takes the model's.
    pub yarn_orig_ctx: Option<usize>,
    /// Factor on what YaRN makes of the lengths of rotated vectors; `None` takes the model's.
    pub yarn_attn_factor: Option<f32>,
    /// Rotations within the first training's context from which YaRN leaves wave lengths as they are; `None` takes the model's.
    pub yarn_beta_fast: Option<f32>,
    /// Rotations up to which YaRN stretches wave lengths by the whole factor; `None` takes the model's.
    pub yarn_beta_slow: Option<f32>,
    /// Embeddings pooled this way instead of the architecture's result; read by [`Context::embedding`](super::Context::embedding).
    /// Batches are then computed whole: `n_ubatch` is raised to `n_batch`.
    pub pooling: Option<Pooling>,
    /// Keep the hidden rows of all tokens of a batch, read by [`Context::hidden`](super::Context::hidden).
    pub hidden: bool,
    /// Run the model's layer of multi-token prediction instead of the model: decoded by
    /// [`Context::decode_after`](super::Context::decode_after), with hidden rows of tokens whose output is wanted.
    pub mtp: bool,
}

impl ContextParams {
    /// What decides on the size of the memory, with this many cells of KV memory.
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
        let n = std::thread::available_parallelism().map_or(1, usize::from);
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
        }
    }
}
