//! Calibration text, and how a model decodes the text.

use std::sync::Arc;

use kernels::GgmlType::F32;

use super::error::QuantizeError;
use crate::context::{Context, ContextParams};
use crate::gguf::GgufSet;
use crate::measure::Corpus;
use crate::model::{LoadParams, Model, Registered};

/// Text and parameters of the measurement.
#[derive(Clone)]
pub struct Calibration<'a> {
    /// Supported architectures.
    pub archs: &'a [Registered],
    /// Placement of the model.
    pub load: LoadParams,
    /// Text to measure with.
    pub text: &'a str,
    /// Tokens per chunk; the second half of each chunk is scored.
    pub n_ctx: usize,
    /// Maximum number of chunks.
    pub n_chunks: usize,
    /// Tokens that are decoded at once.
    pub n_batch: usize,
    /// Number of threads that decode.
    pub n_threads: usize,
    /// Maximum number of measured layers for each kind of matrix. Other layers are interpolated.
    pub n_layers: usize,
}

impl Calibration<'_> {
    /// Loads a model to decode the text with.
    pub(super) fn load(&self, set: &GgufSet) -> Result<Arc<Model>, QuantizeError> {
        let model = Model::from_set(set.clone(), self.archs, &self.load);
        Ok(Arc::new(model.map_err(Box::new)?))
    }

    /// Creates a context that decodes the steps of a corpus.
    pub(super) fn context(&self, model: &Arc<Model>, corpus: &Corpus) -> Result<Context, QuantizeError> {
        let n_seq_max = corpus.n_parallel(self.n_batch);
        let params = ContextParams {
            n_ctx: corpus.n_ctx() * n_seq_max,
            n_seq_max,
            n_batch: self.n_batch,
            n_ubatch: self.n_batch,
            n_outputs_max: self.n_batch,
            n_threads: self.n_threads,
            n_threads_batch: self.n_threads,
            precision: kernels::Precision::Exact,
            type_k: F32,
            type_v: F32,
            ..ContextParams::default()
        };
        Ok(Context::new(model.clone(), &params)?)
    }
}
