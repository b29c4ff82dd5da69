//! [`EncoderGraph`]: computes the graph of a media encoder without a context.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sha2::{Digest as _, Sha256};

use crate::backend::PendingRead;
use crate::builder::{Adaptation, BuildParams, CacheView};
use crate::model::Model;

use super::adapt::Adapters;
use super::batch::BatchToken;
use super::encoded::Encoded;
use super::graphs::GraphSource;
use super::inputs::{ImageInput, Ubatch};
use super::outputs::Outputs;
use super::runner::GraphRunner;
use super::settings::Settings;
use super::{ContextError, ContextParams, DecodeError};

/// Graph of an encoder with its compute buffers.
pub(super) struct EncoderGraph {
    pub model: Arc<Model>,
    settings: Settings,
    runner: GraphRunner,
}

impl EncoderGraph {
    /// Creates a graph of at most `n` positions. Only the parameters for threads, precision, and profiling apply.
    ///
    /// # Errors
    /// Returns a [`ContextError`] if the parameters are invalid or a device fails.
    pub fn new(model: Arc<Model>, n: usize, params: &ContextParams) -> Result<EncoderGraph, ContextError> {
        let params = ContextParams {
            n_ctx: n,
            n_batch: n,
            n_ubatch: n,
            n_threads: params.n_threads,
            n_threads_batch: params.n_threads_batch,
            thread_pool: params.thread_pool.clone(),
            precision: params.precision,
            profile: params.profile.clone(),
            ..ContextParams::default()
        };
        let settings = Settings::new(&params, &model)?;
        let runner = GraphRunner::new(&model, &settings.params)?;
        Ok(EncoderGraph {
            model,
            settings,
            runner,
        })
    }

    /// Reserves memory for an image of a fixed size or a chunk of audio of `n` positions.
    pub fn reserve(&mut self, n: usize) -> Result<(), ContextError> {
        let view = CacheView::default();
        let source = GraphSource {
            model: &self.model,
            view: &view,
            adaptation: Adaptation::NONE,
        };
        let params = self.settings.build_params(&self.model);
        self.runner.reserve(source, &[params])?;
        self.runner.reserve_inputs(n, 1, n);
        Ok(())
    }

    /// Sets a flag that cancels computations.
    pub fn set_cancel(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.runner.set_cancel(flag);
    }

    /// Returns the size of the compute buffers in bytes.
    pub fn n_bytes(&self) -> usize {
        self.runner.n_bytes()
    }

    /// Returns a digest of the encoder, of sizes, and of data in parts.
    pub fn id_of<'a>(&self, sizes: &[u64], data: impl IntoIterator<Item = &'a [u8]>) -> u128 {
        let encoder = self.model.fingerprint();
        let mut hash = Sha256::new();
        hash.update(encoder.arch);
        for number in [encoder.hparams, encoder.tensors, encoder.weights].iter().chain(sizes) {
            hash.update(number.to_le_bytes());
        }
        data.into_iter().for_each(|part| hash.update(part));
        let digest: [u8; 32] = hash.finalize().into();
        let (half, _) = digest.as_chunks::<16>();
        u128::from_le_bytes(half[0])
    }

    /// Computes the leading rows of the result from an image or from columns of audio frames. Sound is in the first
    /// `n_heard` columns.
    pub fn compute(
        &mut self,
        tokens: &[BatchToken],
        n_heard: usize,
        image: ImageInput<'_>,
        frames: &[f32],
        rows: &mut [f32],
    ) -> Result<(), DecodeError> {
        let mut buffers = self.model.buffers().iter();
        buffers.try_for_each(|buffer| buffer.check())?;
        let view = CacheView::default();
        let source = GraphSource {
            model: &self.model,
            view: &view,
            adaptation: Adaptation::NONE,
        };
        let params = BuildParams {
            n_tokens: tokens.len(),
            n_outputs: tokens.len(),
            n_encoded: n_heard,
            grid: image.grid,
            ..self.settings.build_params(&self.model)
        };
        let graph = self.runner.prepare(source, params)?;
        let outputs = Outputs::new(&self.model, &self.settings);
        let (adapters, encoded) = (Adapters::default(), Encoded::default());
        let ubatch = Ubatch {
            image,
            frames,
            ..Ubatch::new(tokens, &outputs, &adapters, &encoded)
        };
        let mut computed = graph.run(ubatch, self.settings.params.n_threads_batch)?;
        let pending: Option<Box<dyn PendingRead>> = computed.read_result(rows)?;
        if let Some(read) = pending {
            read.wait(bytemuck::cast_slice_mut(rows))?;
        }
        Ok(())
    }
}
