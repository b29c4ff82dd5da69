//! Parameters of a graph build.

use crate::graph::{ROPE_AXES, RopeKind};

use super::{BatchMedia, PatchGrid};

/// Parameters of a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BuildParams {
    /// Number of tokens in the ubatch.
    pub n_tokens: usize,
    /// Number of tokens with outputs.
    pub n_outputs: usize,
    /// Maximum number of sequences.
    pub n_seq_max: usize,
    /// Graph to build.
    pub part: GraphPart,
    /// Hidden states to compute in addition to the result.
    pub hidden: HiddenRows,
    /// Rows of the encoder output; 0 in graphs without cross attention. The number of tokens in graphs of
    /// [`GraphPart::Cross`], and of positions with sound in audio encoders.
    pub n_encoded: usize,
    /// Width of the residual stream and of the encoder output.
    pub n_embd: usize,
    /// Context length in tokens.
    pub n_ctx: usize,
    /// RoPE kind of the architecture.
    pub rope_kind: Option<RopeKind>,
    /// RoPE scaling, including overrides of the context.
    pub rope: RopeScaling,
    /// M-RoPE sections: rotated pairs per position axis.
    pub rope_sections: [usize; ROPE_AXES],
    /// Number of rotated elements per head.
    pub n_rot: usize,
    /// Masks later positions; false for encoders and diffusion models.
    pub causal: bool,
    /// Output that the graph computes.
    pub output: GraphOutput,
    /// Media rows among the tokens.
    pub media: BatchMedia,
    /// Patches of the image that an encoder reads; empty for other models.
    pub grid: PatchGrid,
}

/// Selects one of the graphs of an architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphPart {
    /// Encoder graph.
    Encoder,
    /// Keys and values that cross attention reads, computed from the encoder output.
    Cross,
    /// Main graph; the decoder of encoder-decoder models.
    #[default]
    Graph,
    /// Graph of a multi-token prediction (MTP) layer.
    Mtp,
}

/// Reduction of token embeddings to an embedding per sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Pooling {
    /// No pooling: the output has one row per token.
    None,
    /// Mean of the hidden states of all tokens.
    Mean,
    /// Hidden state of the first token (`[CLS]`).
    Cls,
    /// Last token, which in a causal model is the only one that attends to the whole sequence.
    Last,
    /// Scores of a classifier head, such as the head of a reranker.
    Rank,
}

impl Pooling {
    /// All pooling types with their names; the index is the `pooling_type` in GGUF files.
    pub const ALL: [(&'static str, Pooling); 5] = [
        ("none", Pooling::None),
        ("mean", Pooling::Mean),
        ("cls", Pooling::Cls),
        ("last", Pooling::Last),
        ("rank", Pooling::Rank),
    ];

    /// Converts the value of `pooling_type` in a GGUF file.
    pub fn from_code(code: u64) -> Option<Pooling> {
        let index = usize::try_from(code).ok()?;
        Self::ALL.get(index).map(|&(_, pooling)| pooling)
    }

    /// Returns the name, as used on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// Output that a graph computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GraphOutput {
    /// Main output of the architecture: logits, or an embedding per token.
    #[default]
    Result,
    /// Embeddings of tokens or sequences.
    Embedding {
        /// Number of sequences to average over; 0 keeps the output rows unpooled.
        n_means: usize,
        /// Computes classifier scores instead of embeddings.
        rank: bool,
    },
}

/// Hidden states that a graph outputs in addition to its result: operands of the final projection, `[n_embd,
/// n]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HiddenRows {
    /// No hidden states.
    #[default]
    None,
    /// Hidden states of all tokens.
    All,
    /// Hidden states of the output tokens.
    Wanted,
}

/// RoPE base and context extension (`rope.*` keys).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// Base frequency (theta).
    pub freq_base: f32,
    /// Position scale (1 / context extension factor).
    pub freq_scale: f32,
    /// Weight of the YaRN interpolation: 1 if the file enables YaRN, else 0.
    pub ext_factor: f32,
    /// Magnitude factor.
    pub attn_factor: f32,
    /// Upper end of the YaRN correction range, in rotations.
    pub beta_fast: f32,
    /// Lower end of the YaRN correction range, in rotations.
    pub beta_slow: f32,
    /// Context length that the model was trained with.
    pub n_ctx_orig: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooling_code_is_table_index() {
        for (code, (name, pooling)) in Pooling::ALL.into_iter().enumerate() {
            assert_eq!(Pooling::from_code(code as u64), Some(pooling));
            assert_eq!(pooling.name(), name);
        }
        assert_eq!(Pooling::from_code(5), None);
        assert_eq!(Pooling::from_code(u64::MAX), None);
    }
}
