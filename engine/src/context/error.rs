//! What can go wrong with a context.

use std::path::PathBuf;

use kernels::GgmlType;

use crate::backend::BackendError;
use crate::builder::BuildError;
use crate::sched::SchedError;
use crate::vocab::Token;

/// A context that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// A setting is out of range.
    #[error("{name} is {found}, expected {expected}")]
    Param {
        /// The setting.
        name: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// Keys or values of this size cannot be stored in this type.
    #[error("KV type {ty} cannot hold heads of {head_dim} elements: {reason}")]
    KvType {
        /// The type.
        ty: GgmlType,
        /// Elements of a head.
        head_dim: usize,
        /// Why not.
        reason: &'static str,
    },
    /// There is no memory for keys and values.
    #[error("the KV cache of {n_ctx} tokens takes {bytes} bytes, for which {buffer_type} has no room")]
    KvMemory {
        /// Tokens that the context was to have.
        n_ctx: usize,
        /// Bytes that it would take in that memory.
        bytes: usize,
        /// Name of the memory.
        buffer_type: String,
    },
    /// The graph does not fit.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A device failed, most likely for want of memory.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The graph could not be placed, most likely for want of memory.
    #[error(transparent)]
    Sched(#[from] SchedError),
}

/// Adapters or control vectors that a context does not take. It keeps those that it has.
#[derive(Debug, thiserror::Error)]
pub enum SetAdaptersError {
    /// It was loaded for another model than the context's.
    #[error("{}: was loaded for another model than the one in use", .path.display())]
    OtherModel {
        /// The file.
        path: PathBuf,
    },
    /// A scale that cannot be computed with.
    #[error("{}: scale is {found}, expected a finite number", .path.display())]
    Scale {
        /// The file.
        path: PathBuf,
        /// The scale.
        found: f32,
    },
    /// No such sequence.
    #[error("adapters for sequence {seq}, which is beyond the context's {n_seq_max}")]
    Sequence {
        /// The sequence.
        seq: usize,
        /// Limit.
        n_seq_max: usize,
    },
    /// The graph with adapters cannot be built or has no room.
    #[error(transparent)]
    Context(#[from] ContextError),
}

/// A batch, or some of its sequences, that could not be decoded. Their memory is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Each token of a layer of multi-token prediction comes with a hidden row, and no other does.
    #[error("the batch comes with {found} elements of hidden rows, expected {expected}")]
    Hidden {
        /// Elements given.
        found: usize,
        /// Elements of a row for each token.
        expected: usize,
    },
    /// Nothing to do.
    #[error("the batch is empty")]
    EmptyBatch,
    /// More tokens than agreed.
    #[error("the batch has {found} tokens, the context takes at most {max} at once (n_batch)")]
    BatchTooLarge {
        /// Tokens in the batch.
        found: usize,
        /// Limit.
        max: usize,
    },
    /// A token that is not in the vocabulary.
    #[error("token {token} at index {index} is not in the vocabulary of {n_vocab} tokens")]
    Token {
        /// Index in the batch.
        index: usize,
        /// The token.
        token: Token,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// No sequence, or one that the context has no room for.
    #[error("token at index {index} names no sequence below {n_seq_max}")]
    Sequence {
        /// Index in the batch.
        index: usize,
        /// Limit.
        n_seq_max: usize,
    },
    /// A token that several sequences share is computed once.
    #[error("token at index {index} belongs to sequences with different adapters")]
    Adapters {
        /// Index in the batch.
        index: usize,
    },
    /// Positions of a sequence must follow one another.
    #[error("sequence {seq} continues at position {expected}, found {found} at index {index}")]
    Position {
        /// Index in the batch.
        index: usize,
        /// The sequence.
        seq: usize,
        /// Its next position.
        expected: i32,
        /// The position in the batch.
        found: i32,
    },
    /// A position beyond the model's table of learned positions.
    #[error("position {found} at index {index} is not among the {max} that the model has learned")]
    PositionNotLearned {
        /// Index in the batch.
        index: usize,
        /// The position in the batch.
        found: i32,
        /// Rows of the table.
        max: usize,
    },
    /// Encoding with a model that only decodes.
    #[error("the architecture {arch} has no encoder")]
    NoEncoder {
        /// The architecture.
        arch: &'static str,
    },
    /// An encoder takes a batch whole.
    #[error("{found} tokens cannot be encoded at once, the context takes at most {max} (n_batch, and n_ctx)")]
    EncodeTooLarge {
        /// Tokens in the batch.
        found: usize,
        /// Limit.
        max: usize,
    },
    /// A decoder that attends to nothing.
    #[error("sequence {seq} must be encoded before it is decoded")]
    NotEncoded {
        /// The sequence.
        seq: usize,
    },
    /// No room in the KV memory.
    #[error(
        "the context is full: {needed} more tokens do not fit, {used} of {n_ctx} cells are in use; \
         shorten the prompt, remove tokens from the memory, or use a larger context"
    )]
    ContextFull {
        /// Tokens to place.
        needed: usize,
        /// Cells in use.
        used: usize,
        /// Cells in all.
        n_ctx: usize,
    },
    /// A token of several sequences that have different states.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// The graph does not fit.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A device failed.
    #[error(transparent)]
    Sched(SchedError),
    /// The weights are gone.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl From<SchedError> for DecodeError {
    fn from(error: SchedError) -> DecodeError {
        match error {
            SchedError::Backend(BackendError::Cancelled) => DecodeError::Cancelled,
            error => DecodeError::Sched(error),
        }
    }
}

/// A change of the KV memory that is not possible.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The layers with a window no longer hold what the positions before the cut would need.
    #[error(
        "sequence {seq} cannot be cut at {pos}: its sliding-window layers have forgotten what comes before; clear it and decode anew"
    )]
    WindowForgotten {
        /// The sequence.
        seq: usize,
        /// Where it should end.
        pos: i32,
    },
    /// Keys that depend on their positions otherwise than by a rotation cannot move.
    #[error(
        "positions cannot be shifted: the keys of layer {layer} depend on them in a way that cannot be changed afterwards"
    )]
    NotShiftable {
        /// First such layer.
        layer: usize,
    },
    /// States are of all positions before them.
    #[error(
        "sequence {seq} has recurrent states: positions can be cut from its end only, and shared from its beginning"
    )]
    Inseparable {
        /// The sequence.
        seq: usize,
    },
    /// There is no state from then.
    #[error("sequence {seq} cannot be cut at {pos}: its recurrent states are kept for continuing at {available:?}")]
    StateForgotten {
        /// The sequence.
        seq: usize,
        /// Where it should continue.
        pos: i32,
        /// Where it can, lowest first.
        available: Vec<usize>,
    },
    /// A sequence has one state.
    #[error(
        "sequence {seq} is not empty and has recurrent states, which cannot be joined with others; remove it first"
    )]
    Occupied {
        /// The sequence.
        seq: usize,
    },
    /// A token cannot go into two states.
    #[error("a token of sequences {first} and {second} continues different recurrent states")]
    StatesDiffer {
        /// A sequence.
        first: usize,
        /// One with another state.
        second: usize,
    },
    /// Cells that several sequences share have one position.
    #[error("sequence {seq} shares cells with others: their positions cannot differ")]
    Shared {
        /// The sequence.
        seq: usize,
    },
    /// No such sequence.
    #[error("sequence {seq} is beyond the context's {n_seq_max}")]
    Sequence {
        /// The sequence.
        seq: usize,
        /// Limit.
        n_seq_max: usize,
    },
}
