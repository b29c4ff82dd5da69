//! Roles of tensors, which determine how sensitive a model is to their errors.

/// Role of a tensor in its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// Token embedding.
    Embedding,
    /// Output projection.
    Output,
    /// Projection to queries.
    Query,
    /// Projection to keys.
    Key,
    /// Projection to values.
    Value,
    /// Joint projection to queries, keys, and values.
    QueryKeyValue,
    /// Joint expansion to keys and values.
    KeyValue,
    /// Output projection of attention.
    AttentionOutput,
    /// Up projection of an FFN.
    Up,
    /// Gate of an FFN.
    Gate,
    /// Down projection of an FFN.
    Down,
    /// Other matrix, such as the projections of a recurrent mixer.
    Other,
}

/// Kinds of matrices that are not quantized: small ones, and those that are not multiplied with activations.
const KEPT: &[&str] = &[
    "ffn_gate_inp",
    "ffn_gate_inp_shexp",
    "ffn_gate_tid2eid",
    "per_layer_model_proj",
    "position_embd",
    "token_types",
    "ssm_conv1d",
    "ssm_conv1d_q",
    "ssm_conv1d_k",
    "ssm_conv1d_v",
    "shortconv.conv",
    "indexer.k_proj",
    "indexer.q_proj",
    "indexer.weights_proj",
    "time_mix_first",
    "time_mix_w0",
    "time_mix_w1",
    "time_mix_w2",
    "time_mix_v0",
    "time_mix_v1",
    "time_mix_v2",
    "time_mix_a0",
    "time_mix_a1",
    "time_mix_a2",
    "time_mix_g1",
    "time_mix_g2",
    "time_mix_decay_w1",
    "time_mix_decay_w2",
    "time_mix_lerp_fused",
    "attn_rel_b",
];

/// Returns the layer of a tensor, if any, and its kind: `blk.3.ffn_up.weight` is `ffn_up` of layer 3.
pub(super) fn split(name: &str) -> (Option<usize>, &str) {
    let kind = name.strip_suffix(".weight").unwrap_or(name);
    let Some((_, rest)) = kind.split_once("blk.") else {
        return (None, kind);
    };
    match rest.split_once('.') {
        Some((layer, kind)) => (layer.parse().ok(), kind),
        None => (None, kind),
    }
}

/// Kinds of matrices that have the same input in most architectures.
const WITH_SAME_INPUT: &[&[&str]] = &[
    &["attn_q", "attn_k", "attn_v", "attn_qkv"],
    &["ffn_gate", "ffn_up"],
    &["ffn_gate_exps", "ffn_up_exps"],
    &["ffn_gate_shexp", "ffn_up_shexp"],
];

/// Returns the kinds of matrices that have the same input as this kind, including the kind.
pub(super) fn siblings(kind: &str) -> &'static [&'static str] {
    let all = WITH_SAME_INPUT.iter().find(|kinds| kinds.contains(&kind));
    all.map_or(&[], |kinds| kinds)
}

/// Returns true if a tensor is never quantized.
pub(super) fn is_kept(name: &str, n_dims: usize) -> bool {
    let (_, kind) = split(name);
    n_dims < 2
        || !name.ends_with(".weight")
        || kind.ends_with("_norm")
        || kind.contains("altup")
        || kind.contains("laurel")
        || KEPT.contains(&kind)
        || name.starts_with("v.") && (kind.contains("position_embd") || kind.contains("patch_embd"))
}

/// Returns the role of a tensor.
pub(super) fn role(name: &str) -> Role {
    let (layer, kind) = split(name);
    if layer.is_none() {
        return match kind {
            "token_embd" | "per_layer_token_embd" => Role::Embedding,
            "output" => Role::Output,
            _ => Role::Other,
        };
    }
    match kind {
        "attn_q" => Role::Query,
        "attn_k" => Role::Key,
        "attn_v" => Role::Value,
        "attn_qkv" => Role::QueryKeyValue,
        "attn_kv_b" => Role::KeyValue,
        "attn_output" => Role::AttentionOutput,
        "ffn_up" | "ffn_up_exps" | "ffn_up_shexp" => Role::Up,
        "ffn_gate" | "ffn_gate_exps" | "ffn_gate_shexp" | "ffn_gate_up_exps" => Role::Gate,
        "ffn_down" | "ffn_down_exps" | "ffn_down_shexp" => Role::Down,
        _ => Role::Other,
    }
}
