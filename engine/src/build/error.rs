//! Why a graph cannot be built.

use crate::graph::{Name, ShapeError};

/// Most rounds of all loops of a graph: more than any model has, few enough for a file's lies.
pub(super) const MAX_ROUNDS: usize = 4096;

/// A graph that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// Shapes do not agree. The macro's checks rule this out for declared graphs, up to what hyper-parameters do.
    #[error("{value}: {source}")]
    Shape {
        /// The last named value before the error.
        value: String,
        /// What does not fit.
        source: ShapeError,
    },
    /// Experts of which none is to be used.
    #[error("{value}: expert_used_count is 0 in a layer of experts")]
    NoneUsed {
        /// The last named value before the error.
        value: String,
    },
    /// Rows of integers where numbers are needed.
    #[error("{value}: tensor `{tensor}.weight` holds integers")]
    Integers {
        /// The last named value before the error.
        value: String,
        /// GGUF name without `.weight`.
        tensor: Name,
    },
    /// A tensor that files may lack is missing where the graph needs it.
    #[error("{value}: tensor `{tensor}` is missing, which is needed here")]
    Absent {
        /// The last named value before the error.
        value: String,
        /// GGUF name without layer and suffix.
        tensor: String,
    },
    /// Cells of an earlier layer's choice, but none has chosen any.
    #[error("{value}: no layer before has an indexer that selects cells (key `attention.indexer.types`)")]
    NoSelection {
        /// The last named value before the error.
        value: String,
    },
    /// Experts without a projection up.
    #[error(
        "{value}: the file has neither `ffn_up_exps` nor `ffn_gate_up_exps`, which holds gates and ups in one tensor"
    )]
    NoUps {
        /// The last named value before the error.
        value: String,
    },
    /// A hash of runs of tokens that does not go with its table.
    #[error(
        "{value}: the hash of head {head} has no multipliers, first row and size that fit a table of {n_rows} rows"
    )]
    NoHash {
        /// The last named value before the error.
        value: String,
        /// The head.
        head: usize,
        /// Rows of the table.
        n_rows: usize,
    },
    /// Attention over what another layer should have stored.
    #[error("{value}: layer {layer} has not stored keys and values of this size and window before")]
    NoKeys {
        /// The last named value before the error.
        value: String,
        /// The other layer.
        layer: usize,
    },
    /// Embeddings of a graph that does not end in a projection.
    #[error(
        "the graph of this architecture does not end in a projection: it has no hidden states to take embeddings from"
    )]
    NoHidden,
    /// Scores of a model without a classifier.
    #[error("the model has no classifier to rank with (tensor `cls.output`)")]
    NoClassifier,
    /// A divided matrix is used otherwise than in a product. Placement rules this out.
    #[error("{value}: tensor `{weight}` is divided by rows and used as a whole")]
    Divided {
        /// The last named value before the error.
        value: String,
        /// The tensor.
        weight: Name,
    },
    /// A recurrence in an architecture that computes batches whole.
    #[error("{value}: a recurrent op needs a memory, which models have whose key attention.causal is not false")]
    NoMemory {
        /// The last named value before the error.
        value: String,
    },
    /// Loops that make the graph larger than any model's.
    #[error("the graph repeats its parts {rounds} times, expected at most {MAX_ROUNDS}")]
    TooLong {
        /// Rounds of the loops up to the one that is too long.
        rounds: usize,
    },
    /// RoPE in an architecture declared without.
    #[error("{value}: the architecture declares no rope")]
    NoRope {
        /// The last named value before the error.
        value: String,
    },
}
