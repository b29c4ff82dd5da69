//! Hyperparameters common to all architectures.

use crate::builder::{Pooling, RopeScaling};
use crate::graph::ROPE_AXES;

use super::HparamReader;

/// Hyperparameters behind the builtin symbols of the architecture language. Accessors of values that may
/// differ by layer take a layer index.
#[derive(Clone, Debug, PartialEq)]
pub struct Base {
    n_vocab: usize,
    n_ctx_train: usize,
    n_embd: usize,
    n_layer: usize,
    n_layer_loaded: usize,
    n_layer_file: usize,
    n_head: Vec<usize>,
    n_head_kv: Vec<usize>,
    n_ff: Vec<usize>,
    head_dim_k: usize,
    head_dim_v: usize,
    n_rot: usize,
    n_expert: usize,
    n_expert_used: Vec<usize>,
    n_labels: usize,
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

/// Maximum number of layers; larger than any published model, so a higher count means a corrupt file.
const MAX_LAYERS: usize = 1024;
/// Maximum width or vocabulary size, so that the product of two sizes is far below 2^64.
const MAX_SIZE: usize = 1 << 28;

/// Maximum number of experts; larger than in any published model. The graph size depends only on the experts
/// used per token.
const MAX_EXPERTS: usize = 1 << 14;

impl Base {
    /// Reads all common hyperparameters and records errors in the reader. `mtp` also loads the first MTP
    /// layer, if the file has one.
    pub(super) fn read(r: &mut HparamReader<'_>, mtp: bool) -> Base {
        let n_layer_file = r.in_range("block_count", None, 1..=MAX_LAYERS);
        let n_nextn = r.in_range("nextn_predict_layers", Some(0), 0..=n_layer_file.saturating_sub(1));
        let n_layer = n_layer_file - n_nextn;
        let n_layer_loaded = n_layer + n_nextn.min(usize::from(mtp));
        let n_embd = r.in_range("embedding_length", None, 1..=MAX_SIZE);
        r.set_layers(n_layer, n_layer_loaded);
        let n_head = r.usizes("attention.head_count", Some(0));
        let n_head_kv = r.usizes_with("attention.head_count_kv", |il| n_head[il]);
        let n_ff = r.usizes("feed_forward_length", Some(0));
        let head_dim = n_head.iter().find(|&&n| n > 0).map_or(0, |&n| n_embd / n);
        let head_dim_k = r.in_range("attention.key_length", Some(head_dim), 0..=MAX_SIZE);
        let head_dim_v = r.in_range("attention.value_length", Some(head_dim), 0..=MAX_SIZE);
        let base = Base {
            n_vocab: r.n_vocab(),
            n_ctx_train: r.in_range("context_length", None, 1..=usize::MAX >> 1),
            n_embd,
            n_layer,
            n_layer_loaded,
            n_layer_file,
            head_dim_k,
            head_dim_v,
            n_rot: r.in_range("rope.dimension_count", Some(head_dim_k), 0..=MAX_SIZE),
            n_expert: r.in_range("expert_count", Some(0), 0..=MAX_EXPERTS),
            n_expert_used: r.usizes("expert_used_count", Some(0)),
            n_labels: r.n_labels(),
            causal: r.bool("attention.causal", Some(true)),
            pooling: r.pooling("pooling_type"),
            rank_pooling: r.pooling("classifier.pooling_type"),
            rope: RopeScaling::read(r),
            rope_sections: r.sections(),
            n_head,
            n_head_kv,
            n_ff,
        };
        base.check(r);
        base
    }

    fn check(&self, r: &mut HparamReader<'_>) {
        for il in 0..self.n_layer {
            let (q, kv) = (self.n_head[il], self.n_head_kv[il]);
            let counts = [
                ("attention.head_count", q),
                ("attention.head_count_kv", kv),
                ("feed_forward_length", self.n_ff[il]),
            ];
            if let Some((key, n)) = counts.into_iter().find(|&(_, n)| n > MAX_SIZE) {
                r.contradiction(format!("{key} is {n} in layer {il}; the maximum is {MAX_SIZE}"));
                return;
            }
            if kv > 0 && !q.is_multiple_of(kv) {
                r.contradiction(format!(
                    "attention.head_count ({q}) is not a multiple of attention.head_count_kv ({kv}) in layer {il}"
                ));
                return;
            }
        }
        if let Some(used) = self.n_expert_used.iter().find(|&&used| used > self.n_expert) {
            r.contradiction(format!(
                "expert_used_count ({used}) exceeds expert_count ({})",
                self.n_expert
            ));
        }
        // Dense layers may use 0 experts, so only an all-zero list is an error.
        if self.n_expert > 0 && self.n_expert_used.iter().all(|&used| used == 0) {
            r.contradiction(format!(
                "expert_used_count must be positive if expert_count is {}",
                self.n_expert
            ));
        }
        if self.n_rot > self.head_dim_k || !self.n_rot.is_multiple_of(2) {
            r.contradiction(format!(
                "rope.dimension_count ({}) must be even and at most attention.key_length ({}), whose default is embedding_length / attention.head_count",
                self.n_rot, self.head_dim_k
            ));
        }
    }

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

impl RopeScaling {
    fn read(r: &mut HparamReader<'_>) -> RopeScaling {
        let kind = r.string("rope.scaling.type", Some("linear"));
        if !["none", "linear", "yarn", "longrope"].contains(&kind.as_str()) {
            r.contradiction(format!(
                "unknown rope.scaling.type `{kind}`: expected none, linear, yarn or longrope"
            ));
        }
        let old_factor = r.f32("rope.scale_linear", Some(0.0));
        let factor = r.f32("rope.scaling.factor", Some(old_factor));
        let n_ctx_train = r.usize("context_length", Some(0));
        let ext = r.f32("rope.scaling.yarn_ext_factor", Some(-1.0));
        let freq_base = r.f32("rope.freq_base", Some(10000.0));
        if freq_base <= 0.0 {
            r.contradiction(format!("rope.freq_base: expected a positive number, found {freq_base}"));
        }
        if factor < 0.0 || factor.is_subnormal() {
            r.contradiction(format!(
                "rope.scaling.factor (or rope.scale_linear): expected a positive number or 0 (none), found {factor}"
            ));
        }
        RopeScaling {
            freq_base,
            freq_scale: if factor == 0.0 || kind == "none" {
                1.0
            } else {
                1.0 / factor
            },
            ext_factor: if ext >= 0.0 { ext } else { (kind == "yarn") as u8 as f32 },
            attn_factor: r.f32("rope.scaling.attn_factor", Some(1.0)),
            beta_fast: r.f32("rope.scaling.yarn_beta_fast", Some(32.0)),
            beta_slow: r.f32("rope.scaling.yarn_beta_slow", Some(1.0)),
            n_ctx_orig: r.usize("rope.scaling.original_context_length", Some(n_ctx_train)),
        }
    }
}
