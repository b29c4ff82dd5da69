//! Errors that can occur when saving and restoring states.

use std::path::PathBuf;

use crate::backend::BackendError;
use crate::context::{DecodeError, MemoryError};
use crate::sched::SchedError;

/// An error that can occur when saving or restoring a state. The context is unchanged unless a device failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum StateError {
    /// The data does not start with the magic of a state. The message omits `found`, which may be the start of another
    /// file that the clients of a server must not read.
    #[error("not a saved state: the magic at the start is missing")]
    NotAState {
        expected: [u8; 8],
        /// First bytes of the state, at most 8.
        found: Vec<u8>,
    },
    /// The state has an unsupported format version.
    #[error("unsupported state version: expected {expected}, found {found}")]
    Version { expected: u32, found: u32 },
    /// The state is truncated or has trailing data.
    #[error("wrong state length: expected {expected} bytes, found {found}")]
    Length {
        /// Declared length of the state in bytes.
        expected: u64,
        /// Actual length of the state in bytes.
        found: u64,
    },
    /// The checksum does not match.
    #[error("corrupt state: expected checksum {expected:016x}, found {found:016x}")]
    Checksum {
        /// Stored checksum.
        expected: u64,
        /// Computed checksum.
        found: u64,
    },
    /// The checksum matches, but the content is invalid.
    #[error("invalid state at byte {offset}: {what}: expected {expected}, found {found}")]
    Malformed {
        /// Byte offset in the state.
        offset: usize,
        what: &'static str,
        expected: String,
        found: String,
    },
    /// The state contains a single sequence instead of a whole context, or vice versa.
    #[error("wrong state scope: expected {expected}, found {found}")]
    Scope {
        expected: &'static str,
        found: &'static str,
    },
    /// The state belongs to a different model.
    #[error("the state belongs to a different model: {what}: expected {expected}, found {found}")]
    Model {
        /// Differing property.
        what: String,
        /// Value expected by this model.
        expected: String,
        /// Value found in the state.
        found: String,
    },
    /// The state was saved with different context settings.
    #[error("the state was saved with different settings: {what}: expected {expected}, found {found}")]
    Settings {
        /// Differing setting.
        what: String,
        /// Value expected by this context.
        expected: String,
        /// Value found in the state.
        found: String,
    },
    /// The state needs more cells than are free.
    #[error(
        "cannot restore the state: it needs {needed} cells, but only {free} of {n_cells} are free; use a larger context"
    )]
    NoRoom { needed: usize, free: usize, n_cells: usize },
    /// The sequence id is out of range.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Allocating a buffer for the file failed.
    #[error("cannot allocate {bytes} bytes for the state file")]
    OutOfMemory { bytes: u64 },
    /// An I/O operation failed.
    #[error("{action}: {error}")]
    Io {
        action: &'static str,
        error: std::io::Error,
    },
    /// An error with the path of the affected file.
    #[error("{}: {error}", .path.display())]
    InFile { path: PathBuf, error: Box<StateError> },
    /// Applying pending key rotations before saving failed.
    #[error(transparent)]
    Shift(#[from] DecodeError),
    /// A device failed before anything changed.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// A device failed to transfer rows. After a failed restore, the affected sequences are empty.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl StateError {
    pub(super) fn io(action: &'static str) -> impl Fn(std::io::Error) -> StateError {
        move |error| StateError::Io { action, error }
    }
}
