//! What a loaded model gives the builder: its graph, what that ends in, and how positions are rotated.

use crate::graph::TensorId;

use super::Builder;

/// A loaded architecture: hyper-parameters and weights are bound, graphs can be built.
pub trait BuildGraph: Send + Sync {
    /// Adds the whole graph to the builder and returns its result: logits `[n_vocab, T]`, or embeddings `[n_embd, T]`.
    fn build(&self, b: &mut Builder<'_>) -> TensorId;

    /// Adds the whole graph of the encoder, if there is one, and returns its result: embeddings `[n_embd, T]`.
    fn encode(&self, _: &mut Builder<'_>) -> Option<TensorId> {
        None
    }

    /// Adds the graph of the layer of multi-token prediction, if one is loaded, and returns its result: the logits `[n_vocab, T]` behind tokens,
    /// each computed with the hidden row before it.
    fn mtp(&self, _: &mut Builder<'_>) -> Option<TensorId> {
        None
    }

    /// Adds the projection after pooling: `pooled` `[n_embd, S]` becomes embeddings `[n, S]`. `None`: there is none.
    fn embedding(&self, _b: &mut Builder<'_>, _pooled: TensorId) -> Option<TensorId> {
        None
    }

    /// Adds the classifier: the rows of sequences `pooled` `[n_embd, S]` become scores `[n_labels, S]`. `None`: there is none.
    fn rank(&self, _b: &mut Builder<'_>, _pooled: TensorId) -> Option<TensorId> {
        None
    }
}

/// The graphs of an architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphPart {
    /// That of the encoder.
    Encoder,
    /// That of the model, or of the decoder where there is an encoder.
    #[default]
    Graph,
    /// That of a layer of multi-token prediction.
    Mtp,
}

/// What an architecture's graphs end in.
#[derive(Clone, Copy, Debug)]
pub struct Results {
    /// The result is the hidden state before the graph's last projection: an embedding model that shares the graph of a language model.
    pub embeddings: bool,
    /// The graph ends in logits `[n_vocab, T]`, not in embeddings `[n_embd, T]`.
    pub projects: bool,
}

/// RoPE base and context extension (keys `rope.*`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// RoPE base (theta).
    pub freq_base: f32,
    /// 1 / extension factor.
    pub freq_scale: f32,
    /// 1 if the file asks for YaRN, else 0.
    pub ext_factor: f32,
    /// Magnitude factor.
    pub attn_factor: f32,
    /// YaRN correction range.
    pub beta_fast: f32,
    /// YaRN correction range.
    pub beta_slow: f32,
    /// Context length of the original training.
    pub n_ctx_orig: usize,
}
