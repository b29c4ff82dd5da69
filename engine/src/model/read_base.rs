//! Reads the hyperparameters that all architectures share.

use crate::builder::RopeScaling;
use crate::gguf::Metadata;

use super::{Base, HparamReader, Medium};

/// Maximum number of layers; larger than any published model, so a higher count means a corrupt file.
const MAX_LAYERS: usize = 1024;
/// Maximum width or vocabulary size, so that the product of two sizes is far below 2^64.
const MAX_SIZE: usize = 1 << 28;

/// Maximum number of experts; larger than in any published model. The graph size depends only on the experts
/// used per token.
const MAX_EXPERTS: usize = 1 << 14;

impl<'a> HparamReader<'a> {
    /// Creates a reader for the keys `prefix.*` and reads the common hyperparameters. `prefix` is the
    /// architecture name in the file.
    pub fn new(metadata: &'a Metadata, prefix: &'a str) -> HparamReader<'a> {
        Self::with_mtp(metadata, prefix, false)
    }

    /// Like [`HparamReader::new`], but also loads the first MTP layer if `mtp` is set and the file has one.
    pub fn with_mtp(metadata: &'a Metadata, prefix: &'a str, mtp: bool) -> HparamReader<'a> {
        let mut r = HparamReader {
            metadata,
            prefix,
            base: None,
            n_layer: 0,
            n_layer_loaded: 0,
            errors: Vec::new(),
            warnings: Vec::new(),
        };
        let base = Base::read(&mut r, mtp);
        r.base = Some(base);
        r
    }
}

impl Base {
    /// Reads all common hyperparameters and records errors in the reader. `mtp` also loads the first MTP
    /// layer, if the file has one.
    fn read(r: &mut HparamReader<'_>, mtp: bool) -> Base {
        // Media encoders have neither tokens nor a context, and may have no layers.
        let is_media = [Medium::Image, Medium::Audio]
            .iter()
            .any(|medium| r.prefix == medium.key_prefix());
        let n_layer_file = r.in_range("block_count", None, usize::from(!is_media)..=MAX_LAYERS);
        let n_nextn = r.in_range("nextn_predict_layers", Some(0), 0..=n_layer_file.saturating_sub(1));
        let n_layer = n_layer_file - n_nextn;
        let n_layer_loaded = n_layer + n_nextn.min(usize::from(mtp));
        let n_embd = r.in_range("embedding_length", None, 1..=MAX_SIZE);
        (r.n_layer, r.n_layer_loaded) = (n_layer, n_layer_loaded);
        let n_head = r.usizes("attention.head_count", Some(0));
        let n_head_kv = r.usizes_with("attention.head_count_kv", |il| n_head[il]);
        let n_ff = r.usizes("feed_forward_length", Some(0));
        // Encoders whose layers differ in the number of experts have a list.
        let n_experts = r.usizes("expert_count_per_layer", Some(0));
        let most_experts = n_experts.into_iter().max().unwrap_or(0);
        let head_dim = n_head.iter().find(|&&n| n > 0).map_or(0, |&n| n_embd / n);
        let head_dim_k = r.in_range("attention.key_length", Some(head_dim), 0..=MAX_SIZE);
        let head_dim_v = r.in_range("attention.value_length", Some(head_dim), 0..=MAX_SIZE);
        let base = Base {
            n_vocab: if is_media { 1 } else { r.n_vocab() },
            n_ctx_train: r.in_range("context_length", is_media.then_some(1), 1..=usize::MAX >> 1),
            n_embd,
            n_layer,
            n_layer_loaded,
            n_layer_file,
            head_dim_k,
            head_dim_v,
            n_rot: r.in_range("rope.dimension_count", Some(head_dim_k), 0..=MAX_SIZE),
            n_expert: r.in_range("expert_count", Some(most_experts), 0..=MAX_EXPERTS),
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
}

impl RopeScaling {
    fn read(r: &mut HparamReader<'_>) -> RopeScaling {
        let kind = r.string("rope.scaling.type", Some("linear"));
        if !["none", "linear", "yarn", "longrope"].contains(&kind.as_str()) {
            r.contradiction(format!(
                "unknown rope.scaling.type `{kind}`: expected none, linear, yarn, or longrope"
            ));
        }
        let old_factor = r.f32("rope.scale_linear", Some(0.0));
        let factor = r.f32("rope.scaling.factor", Some(old_factor));
        let n_ctx_train = r.usize("context_length", Some(0));
        let ext = r.f32("rope.scaling.yarn_ext_factor", Some(-1.0));
        let freq_base = r.f32("rope.freq_base", Some(10000.0));
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
