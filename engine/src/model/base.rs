//! The hyper-parameters that every architecture has, read from the keys that all of them share.

use crate::builder::{Pooling, RopeScaling};
use crate::graph::ROPE_AXES;

use super::HparamReader;

/// Values behind the architecture language's builtin symbols. Accessors take the layer where files may hold one value per layer.
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
    /// Causal attention (`attention.causal`; false in files of encoders).
    pub causal: bool,
    /// Pooling that the file asks for; `None` if it does not say.
    pub pooling: Option<Pooling>,
    /// Pooling that the file asks for before the classifier.
    pub rank_pooling: Option<Pooling>,
    /// RoPE scaling.
    pub rope: RopeScaling,
    /// M-RoPE sections: rotated pairs of each axis of a position (`rope.dimension_sections`); zeros if the file has none.
    pub rope_sections: [usize; ROPE_AXES],
}

/// More layers than any published model has; a larger count in a file is damage.
const MAX_LAYERS: usize = 1024;
/// Upper bound of widths and vocabularies: products of two stay far below 2^64.
const MAX_SIZE: usize = 1 << 28;

/// More experts than any published model has. A graph grows with those that a token goes through.
const MAX_EXPERTS: usize = 1 << 14;

impl Base {
    /// Reads all of them, noting errors in the reader. `mtp`: the first layer of multi-token prediction is loaded, if there is one.
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
                r.contradiction(format!("{key} is {n} in layer {il}, expected at most {MAX_SIZE}"));
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
        // Layers without experts use none.
        if self.n_expert > 0 && self.n_expert_used.iter().all(|&used| used == 0) {
            r.contradiction(format!(
                "expert_used_count is 0 although expert_count is {}",
                self.n_expert
            ));
        }
        if self.n_rot > self.head_dim_k || !self.n_rot.is_multiple_of(2) {
            r.contradiction(format!(
                "rope.dimension_count ({}) must be even and at most attention.key_length ({}), which is embedding_length / attention.head_count if not given",
                self.n_rot, self.head_dim_k
            ));
        }
    }

    /// Number of tokens in the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }
    /// Context length of the training.
    pub fn n_ctx_train(&self) -> usize {
        self.n_ctx_train
    }
    /// Width of the residual stream.
    pub fn n_embd(&self) -> usize {
        self.n_embd
    }
    /// Number of layers, without those that predict tokens beyond the next.
    pub fn n_layer(&self) -> usize {
        self.n_layer
    }
    /// Number of layers in the file. The last `nextn_predict_layers` of them guess tokens beyond the next (multi-token prediction, MTP,
    /// arXiv 2412.19437) from a finished pass: no part of the graph.
    pub fn n_layer_file(&self) -> usize {
        self.n_layer_file
    }
    /// Number of layers whose tensors are loaded: those of the graph, and the first of multi-token prediction if it was asked for.
    pub fn n_layer_loaded(&self) -> usize {
        self.n_layer_loaded
    }
    /// Number of layers of multi-token prediction in the file.
    pub fn n_mtp(&self) -> usize {
        self.n_layer_file - self.n_layer
    }
    /// Whether a layer is one of multi-token prediction.
    pub fn is_mtp(&self, il: usize) -> bool {
        il >= self.n_layer
    }
    /// Query heads.
    pub fn n_head(&self, il: usize) -> usize {
        of_layer(&self.n_head, il)
    }
    /// Query heads of the layer that has most.
    pub fn n_head_max(&self) -> usize {
        self.n_head.iter().copied().max().unwrap_or(0)
    }
    /// Key and value heads.
    pub fn n_head_kv(&self, il: usize) -> usize {
        of_layer(&self.n_head_kv, il)
    }
    /// Width of the feed-forward network.
    pub fn n_ff(&self, il: usize) -> usize {
        of_layer(&self.n_ff, il)
    }
    /// Size of a query or key head.
    pub fn head_dim(&self) -> usize {
        self.head_dim_k
    }
    /// Size of a query or key head.
    pub fn head_dim_k(&self) -> usize {
        self.head_dim_k
    }
    /// Size of a value head.
    pub fn head_dim_v(&self) -> usize {
        self.head_dim_v
    }
    /// Rotated elements of a head.
    pub fn n_rot(&self) -> usize {
        self.n_rot
    }
    /// Number of experts; 0 for dense models.
    pub fn n_expert(&self) -> usize {
        self.n_expert
    }
    /// Experts each token goes through in a layer.
    pub fn n_expert_used(&self, il: usize) -> usize {
        self.n_expert_used[il]
    }
    /// Scores of a classifier.
    pub fn n_labels(&self) -> usize {
        self.n_labels
    }
    /// RoPE base (theta).
    pub fn rope_freq_base(&self) -> f32 {
        self.rope.freq_base
    }
    /// Factor on positions.
    pub fn rope_freq_scale(&self) -> f32 {
        self.rope.freq_scale
    }
    /// Whether positions are extended by YaRN.
    pub fn rope_yarn(&self) -> bool {
        self.rope.ext_factor != 0.0
    }
    /// Whether positions have several axes: time and height both have sections.
    pub fn has_sections(&self) -> bool {
        self.rope_sections[..2].iter().all(|&n| n > 0)
    }
}

/// A layer's value; layers beyond `block_count` use the last one.
fn of_layer(values: &[usize], il: usize) -> usize {
    values.get(il).or(values.last()).copied().unwrap_or(0)
}

impl RopeScaling {
    fn read(r: &mut HparamReader<'_>) -> RopeScaling {
        let kind = r.string("rope.scaling.type", Some("linear"));
        if !["none", "linear", "yarn", "longrope"].contains(&kind.as_str()) {
            r.contradiction(format!(
                "rope.scaling.type is `{kind}`, expected none, linear, yarn or longrope"
            ));
        }
        let old_factor = r.f32("rope.scale_linear", Some(0.0));
        let factor = r.f32("rope.scaling.factor", Some(old_factor));
        let n_ctx_train = r.usize("context_length", Some(0));
        let ext = r.f32("rope.scaling.yarn_ext_factor", Some(-1.0));
        let freq_base = r.f32("rope.freq_base", Some(10000.0));
        if freq_base <= 0.0 {
            r.contradiction(format!("rope.freq_base is {freq_base}, expected a positive number"));
        }
        if factor < 0.0 || factor.is_subnormal() {
            r.contradiction(format!(
                "rope.scaling.factor (or rope.scale_linear) is {factor}, expected a positive number, or 0 for none"
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
