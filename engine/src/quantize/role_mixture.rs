//! Types by the part of a layer that a matrix belongs to. llama.cpp chooses types by substrings of tensor names
//! instead.
//!
//! Experts hold most weights of a model, and each token uses few experts. Experts get the base type. Matrices that
//! every token uses get better types, at a small cost in size. The same applies to the small matrices of recurrent
//! mixers and of latent attention, whose errors accumulate over tokens or affect all heads. Dense attention and dense
//! FFNs keep the types of the mixture.

use kernels::GgmlType::{self, *};

use super::facts::{Facts, is_sensitive};
use super::role::Role;

/// Part of a model that a matrix belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// Token embedding or output projection.
    Vocabulary,
    /// Attention with one input and one output matrix for each head.
    Attention,
    /// Low-rank matrices of attention, and the indexers and compressors of its keys.
    Latent,
    /// Dense FFN.
    Dense,
    /// Routed experts.
    Experts,
    /// Experts that every token uses.
    SharedExperts,
    /// Input projection of a recurrent or convolutional mixer.
    MixerInput,
    /// Output projection of a mixer.
    MixerOutput,
    /// Small matrix of a mixer, which determines its gates and decay.
    MixerGate,
    /// Connections between layers, and embeddings of layers.
    Connection,
    /// Classifier.
    Head,
}

/// Kinds of matrices by the part that they belong to. A pattern that ends in `*` matches the start of a kind.
const PARTS: &[(Part, &[&str])] = &[
    (Part::Vocabulary, &["token_embd", "per_layer_token_embd", "output"]),
    (
        Part::Latent,
        &[
            "attn_q_a",
            "attn_q_b",
            "attn_kv",
            "attn_kv_a_mqa",
            "attn_kv_b",
            "attn_k_b",
            "attn_v_b",
            "attn_output_a",
            "attn_output_b",
            "attn_compressor_*",
            "indexer*",
        ],
    ),
    (
        Part::Attention,
        &[
            "attn_q",
            "attn_k",
            "attn_v",
            "attn_qkv",
            "attn_output",
            "attn_o",
            "attn_gate",
            "cross_attn_*",
            "vis_attn_*",
        ],
    ),
    (
        Part::SharedExperts,
        &["ffn_up_shexp", "ffn_gate_shexp", "ffn_down_shexp", "ffn_routed_*"],
    ),
    (
        Part::Experts,
        &[
            "ffn_up_exps",
            "ffn_gate_exps",
            "ffn_gate_up_exps",
            "ffn_down_exps",
            "ffn_up_chexps",
            "ffn_gate_chexps",
            "ffn_down_chexps",
        ],
    ),
    (
        Part::Dense,
        &[
            "ffn_up",
            "ffn_gate",
            "ffn_down",
            "channel_mix_*",
            "vis_up",
            "vis_gate",
            "vis_down",
        ],
    ),
    (
        Part::MixerInput,
        &[
            "ssm_in",
            "shortconv.in_proj",
            "time_mix_key",
            "time_mix_value",
            "time_mix_receptance",
            "time_mix_gate",
        ],
    ),
    (Part::MixerOutput, &["ssm_out", "shortconv.out_proj", "time_mix_output"]),
    (Part::MixerGate, &["ssm_*", "time_mix_*"]),
    (Part::Connection, &["hc_*", "output_hc_*", "ple_*", "inp_gate", "proj"]),
    (Part::Head, &["cls*"]),
];

/// Returns the part that a kind of matrix belongs to; `None` for kinds that no architecture declares.
pub(super) fn part(kind: &str) -> Option<Part> {
    let matches = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(start) => kind.starts_with(start),
        None => kind == *pattern,
    };
    let found = PARTS.iter().find(|(_, patterns)| patterns.iter().any(matches));
    found.map(|(part, _)| *part)
}

/// Returns the type of a matrix. `base` is the base type of the mixture, and `of_peer` the choice of llama.cpp.
pub(super) fn type_of(part: Option<Part>, base: GgmlType, of_peer: GgmlType, facts: &Facts) -> GgmlType {
    let has_experts = facts.n_expert > 0;
    match part {
        None | Some(Part::Vocabulary) => of_peer,
        Some(Part::Experts) => {
            // The errors of the first and last layers are the largest.
            let (i, n) = facts.turn;
            let is_outer = i < n / 8 || i >= n - n / 8;
            if facts.role == Role::Down && is_outer && is_sensitive(facts.turn) {
                better(base)
            } else {
                base
            }
        }
        Some(Part::Attention | Part::Dense) if has_experts => larger(of_peer, better(base)),
        Some(Part::Attention | Part::Dense) => of_peer,
        Some(Part::SharedExperts | Part::MixerOutput) => larger(of_peer, better(base)),
        Some(Part::MixerInput) => of_peer,
        Some(Part::Latent | Part::MixerGate | Part::Connection | Part::Head) => {
            larger(of_peer, better(better(better(base))))
        }
    }
}

/// Types in increasing size, for steps above a base type.
const STEPS: [GgmlType; 6] = [Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_0];

/// Returns the first type of [`STEPS`] that is more than half a bit larger than `ty`. If there is none, returns the
/// larger of `ty` and Q8_0.
fn better(ty: GgmlType) -> GgmlType {
    // Smaller differences are not worth a step: IQ4_XS has a quarter bit less than Q4_K.
    let next = STEPS.iter().find(|step| bits(**step) > bits(ty) + 0.5);
    next.copied().unwrap_or(larger(ty, Q8_0))
}

fn larger(a: GgmlType, b: GgmlType) -> GgmlType {
    if bits(b) > bits(a) { b } else { a }
}

fn bits(ty: GgmlType) -> f64 {
    ty.block_bytes() as f64 * 8.0 / ty.block_size() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_types_have_over_half_a_bit_more() {
        for (ty, expected) in [
            (Q2_K, Q3_K),
            (IQ3_S, Q4_K),
            (IQ4_XS, Q5_K),
            (Q4_K, Q5_K),
            (Q6_K, Q8_0),
            (Q8_0, Q8_0),
            (F16, F16),
        ] {
            assert_eq!(better(ty), expected, "{ty}");
        }
    }
}
