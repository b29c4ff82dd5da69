//! Why a graph cannot be built.

use crate::graph::{Name, ShapeError};

/// Upper bound of all loop iterations of a graph: more than any model has, few enough to refuse absurd counts in files.
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
    /// Integer rows where floats are needed.
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
    /// A selection of an earlier layer's indexer, but no layer has one.
    #[error("{value}: no layer before has an indexer that selects cells (key `attention.indexer.types`)")]
    NoSelection {
        /// The last named value before the error.
        value: String,
    },
    /// Experts without an up projection.
    #[error(
        "{value}: the file has neither `ffn_up_exps` nor `ffn_gate_up_exps`, which holds gates and ups in one tensor"
    )]
    NoUps {
        /// The last named value before the error.
        value: String,
    },
    /// An n-gram hash that does not fit its table.
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
    /// Attention over the KV cache of a layer that stores none.
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
    /// The graph of a layer of multi-token prediction that is not loaded.
    #[error("no layer of multi-token prediction is loaded")]
    NoMtp,
    /// Scores of a model without a classifier.
    #[error("the model has no classifier to rank with (tensor `cls.output`)")]
    NoClassifier,
    /// A matrix split by rows is used in something else than a product. Placement rules this out.
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
    /// Loops with too many iterations.
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
