//! Sampling: turns logits into a token with a chain of samplers. Each sampler reorders, reweights, or removes
//! candidates; the last one selects a token.
//!
//! [`SamplerParams`] holds all settings. The tables [`PARAMS`] and [`SAMPLERS`] define them; command-line
//! flags, help, and documentation are derived from these tables. [`SamplerChain::new`] builds the chain in
//! the conventional order: logit bias, the samplers listed in [`SamplerParams::samplers`], and the seeded
//! draw or adaptive-p. Mirostat replaces all samplers except the bias and the temperature.
//!
//! Sampling does not allocate memory per token: the chain owns the candidates and all scratch buffers. If the
//! first sampler is top-k, the candidates are extracted from the logits in one pass, or by the device that computed
//! the logits ([`SamplerChain::n_best`]).
//!
//! [`SamplerChain::sample`] returns [`SampleError::NotFinite`] if a logit is NaN or infinity, and
//! [`SampleError::NoCandidate`] if no candidate has a nonzero probability.

mod adaptive;
mod best;
mod candidates;
mod chain;
mod constraint;
mod dry;
mod infill;
mod mirostat;
mod params;
mod penalties;
mod recommended;
mod repetition;
mod rng;
mod sampler;
mod select;
mod temperature;
#[cfg(test)]
mod tests;
mod truncate;

pub use adaptive::AdaptiveP;
pub use best::{BestLogits, TokenLogits};
pub use candidates::{Candidate, Candidates};
pub use chain::SamplerChain;
pub use constraint::Constrained;
pub use dry::Dry;
pub use infill::Infill;
pub use mirostat::{Mirostat, MirostatV2};
pub use params::{NumberRange, PARAMS, ParamDef, SAMPLERS, SamplerDef, SamplerKind, SamplerParams};
pub use penalties::{Bias, LogitBias, Penalties};
pub use recommended::Recommended;
pub use repetition::RepetitionWatch;
pub use rng::Rng;
pub use sampler::{CopySampler, Sampler, TokenPieces};
pub use select::{Dist, Greedy};
pub use temperature::{DynamicTemperature, Temperature};
pub use truncate::{MinP, TopK, TopNSigma, TopP, Typical, Xtc};

/// Token id, an index into the vocabulary.
pub use crate::vocab::Token;

/// Error in sampler settings or logits.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// A parameter is out of range.
    #[error("sampler parameter {name} is {value}; expected {allowed}")]
    Param {
        /// Field of [`SamplerParams`].
        name: &'static str,
        /// Invalid value of the parameter.
        value: String,
        /// Description of the allowed values.
        allowed: String,
    },
    /// No parameter has this name.
    #[error("unknown sampler parameter {name:?}")]
    UnknownParam {
        /// Unknown name of the parameter.
        name: String,
    },
    /// A parameter refers to a token outside the vocabulary.
    #[error("sampler parameter {name}: token {token} is out of range; the vocabulary has {n_vocab} tokens")]
    TokenOutOfVocab {
        /// Name of the [`SamplerParams`] field.
        name: &'static str,
        /// Invalid token id.
        token: Token,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// The number of logits does not match the vocabulary.
    #[error("found {found} logits, expected {expected} (the size of the vocabulary)")]
    LogitCount {
        /// Size of the vocabulary.
        expected: usize,
        /// Number of logits.
        found: usize,
    },
    /// The device returned fewer of the best logits than the chain needs.
    #[error("found the {found} best logits, expected {needed}")]
    TooFewBest {
        /// Number of tokens that the chain needs.
        needed: usize,
        /// Number of tokens with logits.
        found: usize,
    },
    /// The output cannot continue within the grammar.
    #[error("cannot satisfy the grammar: {0}")]
    Grammar(#[source] crate::grammar::GrammarError),
    /// A logit is not a number.
    #[error("cannot sample a token: {0}")]
    NotFinite(#[from] crate::finite::NotFinite),
    /// Every logit is NaN, negative infinity, or masked.
    #[error("no token can be sampled: all {n_vocab} logits are NaN, negative infinity, or masked")]
    NoCandidate {
        /// Size of the vocabulary.
        n_vocab: usize,
    },
}
