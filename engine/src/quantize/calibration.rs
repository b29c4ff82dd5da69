//! Calibration text, and how a model decodes the text.

use std::sync::Arc;

use kernels::GgmlType::F32;

use super::error::QuantizeError;
use crate::context::{Context, ContextParams};
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

/// Parameters of contexts that decode a text.
pub(super) struct Decoding(ContextParams);

impl Decoding {
    /// Returns the parameters for a text.
    pub fn new(corpus: &Corpus, calibration: &Calibration<'_>) -> Decoding {
        let n_batch = calibration.n_batch;
        let n_seq_max = corpus.n_parallel(n_batch);
        Decoding(ContextParams {
            n_ctx: corpus.n_ctx() * n_seq_max,
            n_seq_max,
            n_batch,
            n_ubatch: n_batch,
            n_outputs_max: n_batch,
            n_threads: calibration.n_threads,
            n_threads_batch: calibration.n_threads,
            precision: kernels::Precision::Exact,
            type_k: F32,
            type_v: F32,
            ..ContextParams::default()
        })
    }

    /// Creates a context.
    pub fn context(&self, model: &Arc<Model>) -> Result<Context, QuantizeError> {
        Ok(Context::new(model.clone(), &self.0)?)
    }
}
