//! Interface between a loaded model and the builder: graphs and the kind of their outputs.

use crate::graph::TensorId;

use super::{AudioRules, Builder, ImageRules};

/// Loaded architecture with bound hyperparameters and weights, ready to build graphs.
pub trait BuildGraph: Send + Sync {
    /// Adds the main graph and returns its output: logits `[n_vocab, T]` or embeddings `[n_embd, T]`.
    fn build(&self, b: &mut Builder<'_>) -> TensorId;

    /// Adds the encoder graph, if the architecture has an encoder, and returns its output: embeddings
    /// `[n_embd, T]`.
    fn encode(&self, _: &mut Builder<'_>) -> Option<TensorId> {
        None
    }

    /// Adds the MTP graph if an MTP layer is loaded. Returns the logits `[n_vocab, T]` of the token after each token,
    /// computed from the preceding hidden state.
    fn mtp(&self, _: &mut Builder<'_>) -> Option<TensorId> {
        None
    }

    /// Returns the image preprocessing; `None` if the architecture is not an image encoder.
    fn image(&self) -> Option<ImageRules> {
        None
    }

    /// Returns the audio preprocessing; `None` if no encoder of the architecture reads audio.
    fn audio(&self) -> Option<AudioRules> {
        None
    }

    /// Adds the projection after pooling, from `pooled [n_embd, S]` to embeddings `[n, S]`; `None` if the
    /// architecture has none.
    fn embedding(&self, _b: &mut Builder<'_>, _pooled: TensorId) -> Option<TensorId> {
        None
    }

    /// Adds the classifier, from `pooled [n_embd, S]` to scores `[n_labels, S]`; `None` if the architecture
    /// has none.
    fn rank(&self, _b: &mut Builder<'_>, _pooled: TensorId) -> Option<TensorId> {
        None
    }
}

/// Kind of output of an architecture's graphs.
#[derive(Clone, Copy, Debug)]
pub struct Results {
    /// The output is the hidden state before the final projection (embedding models that share the graph of a
    /// language model).
    pub embeddings: bool,
    /// The graph ends in logits `[n_vocab, T]` rather than in embeddings `[n_embd, T]`.
    pub projects: bool,
}
