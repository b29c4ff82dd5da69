//! Hyperparameters common to all architectures.

use crate::builder::{Pooling, RopeScaling};
use crate::graph::ROPE_AXES;

/// Hyperparameters that the builtin symbols of the architecture language refer to. Accessors of values that may differ
/// by layer take a layer index.
#[derive(Clone, Debug, PartialEq)]
pub struct Base {
    pub(super) n_vocab: usize,
    pub(super) n_ctx_train: usize,
    pub(super) n_embd: usize,
    pub(super) n_layer: usize,
    pub(super) n_layer_loaded: usize,
    pub(super) n_layer_file: usize,
    pub(super) n_head: Vec<usize>,
    pub(super) n_head_kv: Vec<usize>,
    pub(super) n_ff: Vec<usize>,
    pub(super) head_dim_k: usize,
    pub(super) head_dim_v: usize,
    pub(super) n_rot: usize,
    pub(super) n_expert: usize,
    pub(super) n_expert_used: Vec<usize>,
    pub(super) n_labels: usize,
    /// Causal attention (`attention.causal`; false for encoders).
    pub causal: bool,
    /// Pooling declared by the file.
    pub pooling: Option<Pooling>,
    /// Pooling before the classifier, declared by the file.
    pub rank_pooling: Option<Pooling>,
    /// RoPE scaling.
    pub rope: RopeScaling,
    /// M-RoPE sections: number of rotated pairs for each position axis (`rope.dimension_sections`); zero if
    /// the file has none.
    pub rope_sections: [usize; ROPE_AXES],
}

impl Base {
    /// Returns the vocabulary size.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }
    /// Returns the context length used in training.
    pub fn n_ctx_train(&self) -> usize {
        self.n_ctx_train
    }
    /// Returns the width of the residual stream.
    pub fn n_embd(&self) -> usize {
        self.n_embd
    }
    /// Returns the number of layers without MTP layers.
    pub fn n_layer(&self) -> usize {
        self.n_layer
    }
    /// Returns the number of layers in the file, including the `nextn_predict_layers` MTP layers at the end.
    /// MTP layers predict tokens beyond the next (multi-token prediction, arXiv 2412.19437) and are not part
    /// of the main graph.
    pub fn n_layer_file(&self) -> usize {
        self.n_layer_file
    }
    /// Returns the number of layers whose tensors are loaded: the main graph, plus the first MTP layer if
    /// requested.
    pub fn n_layer_loaded(&self) -> usize {
        self.n_layer_loaded
    }
    /// Returns the number of MTP layers in the file.
    pub fn n_mtp(&self) -> usize {
        self.n_layer_file - self.n_layer
    }
    /// Returns true if the layer is an MTP layer.
    pub fn is_mtp(&self, il: usize) -> bool {
        il >= self.n_layer
    }
    /// Returns the number of query heads in a layer.
    pub fn n_head(&self, il: usize) -> usize {
        of_layer(&self.n_head, il)
    }
    /// Returns the maximum number of query heads of any layer.
    pub fn n_head_max(&self) -> usize {
        self.n_head.iter().copied().max().unwrap_or(0)
    }
    /// Returns the number of key/value heads in a layer.
    pub fn n_head_kv(&self, il: usize) -> usize {
        of_layer(&self.n_head_kv, il)
    }
    /// Returns the width of the feed-forward network in a layer.
    pub fn n_ff(&self, il: usize) -> usize {
        of_layer(&self.n_ff, il)
    }
    /// Returns the size of a query or key head.
    pub fn head_dim(&self) -> usize {
        self.head_dim_k
    }
    /// Returns the size of a query or key head.
    pub fn head_dim_k(&self) -> usize {
        self.head_dim_k
    }
    /// Returns the size of a value head.
    pub fn head_dim_v(&self) -> usize {
        self.head_dim_v
    }
    /// Returns the number of rotated elements per head.
    pub fn n_rot(&self) -> usize {
        self.n_rot
    }
    /// Returns the number of experts; 0 for dense models.
    pub fn n_expert(&self) -> usize {
        self.n_expert
    }
    /// Returns the number of experts used per token in a layer.
    pub fn n_expert_used(&self, il: usize) -> usize {
        self.n_expert_used[il]
    }
    /// Returns the number of classifier labels.
    pub fn n_labels(&self) -> usize {
        self.n_labels
    }
    /// Returns the RoPE base frequency (theta).
    pub fn rope_freq_base(&self) -> f32 {
        self.rope.freq_base
    }
    /// Returns the RoPE position scale.
    pub fn rope_freq_scale(&self) -> f32 {
        self.rope.freq_scale
    }
    /// Returns true if YaRN extends the context.
    pub fn rope_yarn(&self) -> bool {
        self.rope.ext_factor != 0.0
    }
    /// Returns true if positions have several axes, that is, if the time and height sections are nonzero.
    pub fn has_sections(&self) -> bool {
        self.rope_sections[..2].iter().all(|&n| n > 0)
    }
}

/// Returns the value of a layer; layers beyond `block_count` use the last value.
fn of_layer(values: &[usize], il: usize) -> usize {
    values.get(il).or(values.last()).copied().unwrap_or(0)
}
