//! Errors that can occur when creating and using a context.

use std::path::PathBuf;

use kernels::GgmlType;

use crate::backend::BackendError;
use crate::builder::BuildError;
use crate::sched::SchedError;
use crate::vocab::Token;

/// An error that can occur when creating a context.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ContextError {
    /// A parameter is out of range.
    #[error("{name}: expected {expected}, found {found}")]
    Param {
        name: &'static str,
        expected: String,
        found: String,
    },
    /// The architecture does not take media.
    #[error("architecture {arch} takes no images: its declaration has no `with_media`")]
    NoMedia { arch: &'static str },
    /// The KV cache type does not support the model's head size.
    #[error("cannot use the KV cache type {ty} for heads of {head_dim} elements: {reason}")]
    KvType {
        ty: GgmlType,
        /// Elements per head.
        head_dim: usize,
        reason: &'static str,
    },
    /// Allocating the KV cache failed.
    #[error("cannot allocate the KV cache: {n_ctx} tokens need {bytes} bytes in {buffer_type}; use a smaller context")]
    KvMemory {
        /// Context length in tokens.
        n_ctx: usize,
        /// Bytes required in this memory.
        bytes: usize,
        /// Name of the memory.
        buffer_type: String,
    },
    /// The graph cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A device failed, most likely because it is out of memory.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The graph cannot be scheduled, most likely because a device is out of memory.
    #[error(transparent)]
    Sched(#[from] SchedError),
}

/// An error that can occur when activating adapters or control vectors. The previous ones stay active.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum SetAdaptersError {
    /// The adapter was loaded for a different model.
    #[error("{}: the adapter was loaded for a different model", .path.display())]
    OtherModel { path: PathBuf },
    /// The scale is NaN or infinite.
    #[error("{}: scale: expected a finite number, found {found}", .path.display())]
    Scale { path: PathBuf, found: f32 },
    /// The sequence id is out of range.
    #[error("cannot set adapters for sequence {seq}: the context has {n_seq_max} sequences")]
    Sequence { seq: usize, n_seq_max: usize },
    /// The adapted graph cannot be built or allocated.
    #[error(transparent)]
    Context(#[from] ContextError),
}

/// An error that can occur when decoding a batch. The affected sequences keep their previous state.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum DecodeError {
    /// The number of hidden states does not match the batch. An MTP context needs one per token, any other
    /// context none.
    #[error("wrong number of hidden state elements: expected {expected}, found {found}")]
    Hidden {
        /// Number of elements passed.
        found: usize,
        /// Number of elements required.
        expected: usize,
    },
    /// The batch has no tokens.
    #[error("the batch is empty")]
    EmptyBatch,
    /// The batch has more than `n_batch` tokens.
    #[error("the batch has {found} tokens; the maximum is {max} (n_batch)")]
    BatchTooLarge { found: usize, max: usize },
    /// A token id is outside the vocabulary.
    #[error("invalid token {token} at index {index}: the vocabulary has {n_vocab} tokens")]
    Token {
        /// Index of the token in the batch.
        index: usize,
        token: Token,
        n_vocab: usize,
    },
    /// The context was created without media.
    #[error("the media row at index {index} is not accepted: the context was created without media")]
    NoMedia {
        /// Index of the row in the batch.
        index: usize,
    },
    /// A media row has the wrong width.
    #[error("the media row at index {index} has {found} values, but the model takes rows of {expected}")]
    MediaWidth {
        /// Index of the row in the batch.
        index: usize,
        found: usize,
        expected: usize,
    },
    /// The rows of a medium attend to each other, but do not fit into a ubatch.
    #[error("the medium at index {index} has {rows} rows, which must fit into a ubatch of {max} tokens (n_ubatch)")]
    MediaTooLong {
        /// Index of the first row in the batch.
        index: usize,
        rows: usize,
        max: usize,
    },
    /// The rows of a medium attend to each other, but are not consecutive in the batch.
    #[error("the media row at index {index} is not followed by the next row of its medium")]
    MediaSplit {
        /// Index of the row in the batch.
        index: usize,
    },
    /// A token has no sequence, or one that is out of range.
    #[error("token at index {index} has no sequence id below {n_seq_max}")]
    Sequence {
        /// Index of the token in the batch.
        index: usize,
        n_seq_max: usize,
    },
    /// A token is shared by sequences with different adapters.
    #[error("token at index {index} belongs to sequences with different adapters")]
    Adapters {
        /// Index of the token in the batch.
        index: usize,
    },
    /// Positions of a sequence are not consecutive.
    #[error("invalid position in sequence {seq} at index {index}: expected {expected}, found {found}")]
    Position {
        /// Index of the token in the batch.
        index: usize,
        seq: usize,
        expected: i32,
        found: i32,
    },
    /// A position is beyond the model's table of learned positions.
    #[error("position {found} at index {index} exceeds the {max} positions of the model")]
    PositionNotLearned {
        /// Index of the token in the batch.
        index: usize,
        found: i32,
        /// Number of rows of the table.
        max: usize,
    },
    /// The model has no encoder.
    #[error("architecture {arch} has no encoder")]
    NoEncoder { arch: &'static str },
    /// A batch for the encoder exceeds the limit; encoders process a batch as a whole.
    #[error("cannot encode {found} tokens at once; the maximum is {max} (limited by n_batch and n_ctx)")]
    EncodeTooLarge { found: usize, max: usize },
    /// The frames for the encoder do not belong to the tokens of the batch.
    #[error("cannot encode frames of {found} values; the batch requires {expected}")]
    Frames { found: usize, expected: usize },
    /// A sequence of an encoder-decoder model was not encoded.
    #[error("sequence {seq} must be encoded before it is decoded")]
    NotEncoded { seq: usize },
    /// The KV cache is full.
    #[error(
        "the context is full: {needed} more tokens do not fit, {used} of {n_ctx} cells are in use; \
         shorten the prompt, remove cached tokens, or use a larger context"
    )]
    ContextFull {
        /// Number of tokens to be placed.
        needed: usize,
        /// Number of occupied cells.
        used: usize,
        /// Total number of cells.
        n_ctx: usize,
    },
    /// A token is shared by sequences with different recurrent states.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The computation was cancelled through its flag.
    #[error("cancelled")]
    Cancelled,
    /// The graph cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A device returned an error.
    #[error(transparent)]
    Sched(SchedError),
    /// The mapped weights are no longer available.
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

/// An error that can occur when modifying the KV cache or the recurrent states.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum MemoryError {
    /// A windowed layer no longer has the positions needed before the cut.
    #[error(
        "cannot truncate sequence {seq} at {pos}: its sliding-window layers no longer cache the preceding positions; clear the sequence and decode it again"
    )]
    WindowForgotten {
        seq: usize,
        /// Requested end position of the sequence.
        pos: i32,
    },
    /// The keys of a layer depend on their positions in a way other than RoPE.
    #[error("cannot shift positions: the cached keys of layer {layer} depend on them in a way other than RoPE")]
    NotShiftable {
        /// Index of the first affected layer.
        layer: usize,
    },
    /// The change would split a recurrent state.
    #[error(
        "cannot split the recurrent states of sequence {seq}: positions can only be removed from its end and shared from its start"
    )]
    Inseparable { seq: usize },
    /// No state checkpoint exists at the requested position.
    #[error("cannot truncate sequence {seq} at {pos}: recurrent states are only available at {available:?}")]
    StateForgotten {
        seq: usize,
        /// Requested position.
        pos: i32,
        /// Available positions, in ascending order.
        available: Vec<usize>,
    },
    /// The target sequence already has a recurrent state.
    #[error(
        "cannot copy to sequence {seq}: it has recurrent states, which cannot be merged; remove the sequence first"
    )]
    Occupied { seq: usize },
    /// A token is shared by sequences with different recurrent states.
    #[error("cannot share a token between sequences {first} and {second}: their recurrent states differ")]
    StatesDiffer { first: usize, second: usize },
    /// The sequence shares cells with others, so that its positions cannot be shifted.
    #[error("cannot shift sequence {seq}: it shares cells with other sequences")]
    Shared { seq: usize },
    /// The sequence id is out of range.
    #[error("invalid sequence {seq}: the context has {n_seq_max} sequences")]
    Sequence { seq: usize, n_seq_max: usize },
}
