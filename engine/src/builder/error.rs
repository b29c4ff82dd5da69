//! Errors that can occur when building a graph.

use crate::graph::{Name, ShapeError};

/// Maximum number of loop iterations in a graph. Larger than any model needs, but small enough to reject
/// absurd counts in files.
pub(super) const MAX_ROUNDS: usize = 4096;

/// Maximum number of tensors in the graph of a declaration that was read at run time.
pub(crate) const MAX_NODES: usize = 100_000;

/// Maximum number of evaluated statements and values in such a graph.
pub(crate) const MAX_STEPS: usize = 1_000_000;

/// An error that can occur when building a graph. `value` is the last named value before the error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum BuildError {
    /// Operand shapes do not match. For declared graphs, the checks of `arch!` leave only mismatches caused
    /// by hyperparameters.
    #[error("{value}: {source}")]
    Shape { value: String, source: ShapeError },
    /// An expert layer uses no experts.
    #[error("{value}: expert_used_count must be positive in an expert layer")]
    NoneUsed { value: String },
    /// An integer table is used where floats are required.
    #[error("{value}: tensor `{tensor}.weight` has integers; expected floating-point values")]
    Integers {
        value: String,
        /// GGUF name of the tensor without `.weight`.
        tensor: Name,
    },
    /// An optional tensor is missing but required by the graph.
    #[error("{value}: missing tensor `{tensor}`, which this graph requires")]
    Absent {
        value: String,
        /// GGUF name of the tensor without layer and suffix.
        tensor: String,
    },
    /// A layer reuses the selection of an indexer, but no earlier layer has one.
    #[error("{value}: no earlier layer has an indexer; check the key `attention.indexer.types`")]
    NoSelection { value: String },
    /// The experts have no up projection.
    #[error("{value}: the file has neither `ffn_up_exps` nor `ffn_gate_up_exps` (fused gate and up projections)")]
    NoUps { value: String },
    /// The parameters of an n-gram hash do not match its table.
    #[error(
        "{value}: invalid hash parameters for head {head}: multipliers, offset, or size do not match a table of {n_rows} rows"
    )]
    NoHash {
        value: String,
        /// Index of the hash head.
        head: usize,
        /// Number of rows in the table.
        n_rows: usize,
    },
    /// There are more logits than tokens.
    #[error("{value}: {n} logits exceed the {n_rows} tokens of the vocabulary")]
    TooManyLogits {
        value: String,
        /// Number of logits.
        n: usize,
        /// Number of tokens.
        n_rows: usize,
    },
    /// Attention to the KV cache of a layer that stored nothing compatible.
    #[error("{value}: layer {layer} has not stored keys and values with this head size and window")]
    NoKeys {
        value: String,
        /// Layer whose cache was requested.
        layer: usize,
    },
    /// Embeddings were requested from a graph without a final projection.
    #[error("cannot compute embeddings: the graph of this architecture does not end in a projection")]
    NoHidden,
    /// The MTP graph was requested, but no MTP layer is loaded.
    #[error("no multi-token prediction (MTP) layer is loaded")]
    NoMtp,
    /// Classifier scores were requested from a model without a classifier.
    #[error("cannot rank: the model has no classifier (tensor `cls.output`)")]
    NoClassifier,
    /// A matrix split by rows is used outside a matmul. Placement rules this out.
    #[error("{value}: tensor `{weight}` is split by rows but used outside a matmul")]
    Divided { value: String, weight: Name },
    /// A recurrent op in a bidirectional model, which has no state memory.
    #[error("{value}: a recurrent op requires causal attention, but attention.causal is false")]
    NoMemory { value: String },
    /// The graph has too many loop iterations.
    #[error("the graph has {rounds} loop iterations; the maximum is {MAX_ROUNDS}")]
    TooLong {
        /// Iterations up to and including the loop that exceeds the limit.
        rounds: usize,
    },
    /// The graph of a declaration that was read at run time is too large.
    #[error(
        "the graph has {n_nodes} tensors after {n_steps} steps; the maximum is {MAX_NODES} tensors and {MAX_STEPS} steps"
    )]
    TooLarge {
        /// Number of tensors when the build stopped.
        n_nodes: usize,
        /// Number of evaluated statements and values when the build stopped.
        n_steps: usize,
    },
    /// A program has operands of unexpected types. The lowering of declarations prevents this error.
    #[error("internal error: the program of the declaration is inconsistent")]
    Inconsistent,
    /// RoPE in an architecture that declares no RoPE kind.
    #[error("{value}: the architecture declares no RoPE kind")]
    NoRope { value: String },
}
