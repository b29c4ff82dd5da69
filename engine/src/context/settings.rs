//! Context parameters with defaults resolved and validated against the model.

use crate::builder::{BatchMedia, BuildParams, GraphPart, HiddenRows, Pooling, RopeScaling};
use crate::model::{MediaUse, Model};

use super::batch::MAX_SEQUENCES;
use super::{ContextError, ContextParams};

/// Resolved [`ContextParams`] for a model.
pub(super) struct Settings {
    /// Parameters with defaults resolved.
    pub params: ContextParams,
    /// Number of KV cache cells.
    pub n_ctx: usize,
    /// RoPE scaling of the model, with overrides of the context.
    pub rope: RopeScaling,
    /// The rows of a medium attend to each other, and have a separate ubatch.
    pub has_whole_media: bool,
    /// Batches are computed as a whole: bidirectional models have no cache, and pooling needs all tokens of a
    /// sequence.
    pub is_whole: bool,
}

impl Settings {
    /// Resolves defaults and validates the parameters.
    pub fn new(params: &ContextParams, model: &Model) -> Result<Settings, ContextError> {
        let n_ctx = match params.n_ctx {
            0 => model.base().n_ctx_train(),
            n => n,
        };
        check_counts(params)?;
        check_n_ctx(n_ctx)?;
        check_rope(params)?;
        check_hidden(params)?;
        check_media(params, model)?;
        let has_whole_media = params.media_rows > 0 && model.arch().media_use == MediaUse::Whole;
        let is_whole = model.bidirectional() || params.pooling.is_some_and(|p| p != Pooling::None);
        Ok(Settings {
            params: with_defaults(params, n_ctx, is_whole, has_whole_media),
            n_ctx,
            has_whole_media,
            rope: rope_scaling(model, params),
            is_whole,
        })
    }

    /// Returns the build parameters of the context's graphs, for a single token.
    pub fn build_params(&self, model: &Model) -> BuildParams {
        BuildParams {
            n_seq_max: self.params.n_seq_max,
            part: if self.params.mtp {
                GraphPart::Mtp
            } else {
                GraphPart::Graph
            },
            hidden: self.hidden_rows(),
            n_ctx: self.n_ctx,
            rope: self.rope,
            ..model.build_params()
        }
    }

    /// Returns the hidden states that graphs output.
    pub fn hidden_rows(&self) -> HiddenRows {
        match (self.params.mtp, self.params.hidden) {
            (true, _) => HiddenRows::Wanted,
            (false, true) => HiddenRows::All,
            (false, false) => HiddenRows::None,
        }
    }

    /// Returns the kind of media rows that ubatches can have.
    pub fn batch_media(&self) -> Option<BatchMedia> {
        match (self.params.media_rows, self.has_whole_media) {
            (0, _) => None,
            (_, true) => Some(BatchMedia::Whole),
            (_, false) => Some(BatchMedia::Some),
        }
    }

    /// Returns the number of threads for a ubatch of `n_tokens` tokens.
    pub fn n_threads(&self, n_tokens: usize) -> usize {
        if n_tokens == 1 {
            self.params.n_threads
        } else {
            self.params.n_threads_batch
        }
    }

    /// Returns the maximum number of tokens per encode call.
    pub fn n_encode_max(&self) -> usize {
        self.params.memory(self.n_ctx).n_encode_max()
    }
}

fn with_defaults(params: &ContextParams, n_ctx: usize, is_whole: bool, has_whole_media: bool) -> ContextParams {
    let mut p = params.clone();
    if has_whole_media {
        p.n_batch = p.n_batch.max(p.media_rows);
        p.n_ubatch = p.n_ubatch.max(p.media_rows);
    }
    p.n_batch = p.n_batch.min(n_ctx);
    if is_whole {
        p.n_ubatch = p.n_batch;
    }
    p.n_ubatch = p.n_ubatch.min(p.n_batch);
    p.n_outputs_max = match p.n_outputs_max {
        _ if p.pooling == Some(Pooling::None) => p.n_ubatch,
        0 => p.n_seq_max,
        n => n,
    };
    p
}

fn check_counts(p: &ContextParams) -> Result<(), ContextError> {
    let counts = [
        ("n_batch", p.n_batch, usize::MAX),
        ("n_ubatch", p.n_ubatch, usize::MAX),
        ("n_seq_max", p.n_seq_max, MAX_SEQUENCES),
        ("n_threads", p.n_threads, 1024),
        ("n_threads_batch", p.n_threads_batch, 1024),
    ];
    for (name, value, max) in counts {
        if value == 0 || value > max {
            let expected = if max == usize::MAX {
                "at least 1".to_owned()
            } else {
                format!("1 to {max}")
            };
            return Err(ContextError::Param {
                name,
                expected,
                found: value.to_string(),
            });
        }
    }
    Ok(())
}

/// Checks that all positions of the context fit into i32.
fn check_n_ctx(n_ctx: usize) -> Result<(), ContextError> {
    if n_ctx <= i32::MAX as usize {
        return Ok(());
    }
    Err(ContextError::Param {
        name: "n_ctx",
        expected: format!("at most {}", i32::MAX),
        found: n_ctx.to_string(),
    })
}

fn check_rope(p: &ContextParams) -> Result<(), ContextError> {
    let is_positive = |v: f32| v.is_finite() && v > 0.0;
    let is_not_negative = |v: f32| v.is_finite() && v >= 0.0;
    let wrong = |name, expected: &str, found: f32| ContextError::Param {
        name,
        expected: expected.to_owned(),
        found: found.to_string(),
    };
    for (name, value) in [
        ("rope_freq_base", p.rope_freq_base),
        ("rope_freq_scale", p.rope_freq_scale),
        ("yarn_attn_factor", p.yarn_attn_factor),
        ("yarn_beta_fast", p.yarn_beta_fast),
        ("yarn_beta_slow", p.yarn_beta_slow),
    ] {
        if let Some(v) = value.filter(|v| !is_positive(*v)) {
            return Err(wrong(name, "a positive number", v));
        }
    }
    match p.yarn_ext_factor.filter(|v| !is_not_negative(*v)) {
        Some(v) => Err(wrong("yarn_ext_factor", "a non-negative number", v)),
        None => Ok(()),
    }
}

/// Checks that the model takes media rows, if the context has any.
fn check_media(p: &ContextParams, model: &Model) -> Result<(), ContextError> {
    if p.media_rows == 0 {
        return Ok(());
    }
    let arch = model.arch().name;
    if model.arch().media_use == MediaUse::None {
        return Err(ContextError::NoMedia { arch });
    }
    // A pooled batch is one ubatch, but rows that attend to each other need a separate ubatch.
    let is_pooled = p.pooling.is_some() && model.arch().media_use == MediaUse::Whole;
    if p.mtp || is_pooled {
        let what = if p.mtp { "MTP" } else { "pooling" };
        return Err(ContextError::Param {
            name: "media_rows",
            expected: format!("0 together with {what} for architecture {arch}"),
            found: p.media_rows.to_string(),
        });
    }
    Ok(())
}

/// With pooling, the outputs are hidden states already.
fn check_hidden(p: &ContextParams) -> Result<(), ContextError> {
    match p.pooling {
        Some(pooling) if p.hidden || p.mtp => Err(ContextError::Param {
            name: "pooling",
            expected: "no pooling together with hidden states or MTP".to_owned(),
            found: pooling.name().to_owned(),
        }),
        _ => Ok(()),
    }
}

fn rope_scaling(model: &Model, params: &ContextParams) -> RopeScaling {
    let trained = model.base().rope;
    RopeScaling {
        freq_base: params.rope_freq_base.unwrap_or(trained.freq_base),
        freq_scale: params.rope_freq_scale.unwrap_or(trained.freq_scale),
        ext_factor: params.yarn_ext_factor.unwrap_or(trained.ext_factor),
        n_ctx_orig: params.yarn_orig_ctx.unwrap_or(trained.n_ctx_orig),
        attn_factor: params.yarn_attn_factor.unwrap_or(trained.attn_factor),
        beta_fast: params.yarn_beta_fast.unwrap_or(trained.beta_fast),
        beta_slow: params.yarn_beta_slow.unwrap_or(trained.beta_slow),
    }
}
