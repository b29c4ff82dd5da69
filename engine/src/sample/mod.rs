//! From logits to a token: a chain of samplers, each of which reorders, reweights or removes candidates, the last of
//! which selects one.
//!
//! [`SamplerParams`] holds every setting; [`PARAMS`] and [`SAMPLERS`] are the tables it comes from, and command-line
//! flags, help and documentation can be derived from them. [`Chain::new`] builds the chain in the field's order:
//! logit bias, then the samplers named in [`SamplerParams::samplers`], then the seeded draw, or adaptive-p in its
//! place (mirostat replaces all but the bias and the temperature).
//!
//! Sampling allocates nothing per token: the candidates and all work space live in the chain. When the first sampler
//! is top-k, the candidates are taken straight from the logits in one pass instead of being listed all first.
//!
//! Logits that are NaN count as minus infinity. Where no candidate is left with a probability (every logit NaN or
//! minus infinity), [`Chain::sample`] returns [`SampleError::NoCandidate`].

mod adaptive;
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
mod select;
mod temperature;
#[cfg(test)]
mod tests;
mod truncate;

pub use adaptive::AdaptiveP;
pub use candidates::{Candidate, Candidates};
pub use chain::{Chain, CopySampler, Pieces, Sampler};
pub use constraint::Constrained;
pub use dry::Dry;
pub use infill::Infill;
pub use mirostat::{Mirostat, MirostatV2};
pub use params::{Allowed, LogitBias, PARAMS, ParamDef, SAMPLERS, SamplerDef, SamplerKind, SamplerParams};
pub use penalties::{Bias, Penalties};
pub use recommended::Recommended;
pub use repetition::RepetitionWatch;
pub use rng::Rng;
pub use select::{Dist, Greedy};
pub use temperature::{DynamicTemperature, Temperature};
pub use truncate::{MinP, TopK, TopNSigma, TopP, Typical, Xtc};

/// A token id: an index into the vocabulary.
pub use crate::vocab::Token;

/// What can be wrong with sampler settings or with the logits.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// A setting holds a value it cannot have.
    #[error("sampler parameter {name} is {value}; allowed: {allowed}")]
    Param {
        /// Field of [`SamplerParams`].
        name: &'static str,
        /// The value as given.
        value: String,
        /// What it may be, in words.
        allowed: String,
    },
    /// No parameter of this name exists.
    #[error("there is no sampler parameter {name:?}")]
    UnknownParam {
        /// The name as given.
        name: String,
    },
    /// A setting names a token that the vocabulary does not have.
    #[error("sampler parameter {name} names token {token}; the vocabulary has {n_vocab} tokens")]
    TokenOutOfVocab {
        /// Field of [`SamplerParams`].
        name: &'static str,
        /// The token.
        token: Token,
        /// Tokens in the vocabulary.
        n_vocab: usize,
    },
    /// The logits are not one per token of the vocabulary.
    #[error("{found} logits given to a sampler chain built for a vocabulary of {expected} tokens")]
    LogitCount {
        /// Tokens in the vocabulary.
        expected: usize,
        /// Logits given.
        found: usize,
    },
    /// A text cannot go on as its grammar wants.
    #[error("the grammar cannot be kept to: {0}")]
    Grammar(#[source] crate::grammar::GrammarError),
    /// Every logit is NaN or minus infinity (or was masked by the samplers).
    #[error("no token can be sampled: all of the {n_vocab} logits are NaN, minus infinity or masked")]
    NoCandidate {
        /// Tokens in the vocabulary.
        n_vocab: usize,
    },
}
