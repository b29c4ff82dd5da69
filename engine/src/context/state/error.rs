//! What can go wrong when a state is saved or restored.

use std::path::PathBuf;

use crate::backend::BackendError;
use crate::context::{DecodeError, MemoryError};
use crate::sched::SchedError;

/// A state that could not be saved or restored. Unless a device failed, the context is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The bytes are something else.
    #[error("not a saved state: the first 8 bytes are {found:02x?}, expected {expected:02x?}")]
    NotAState {
        /// The first bytes of a state.
        expected: [u8; 8],
        /// The bytes there, fewer if there are not so many.
        found: Vec<u8>,
    },
    /// Written by another version of this program.
    #[error("the state has version {found}, expected {expected}")]
    Version {
        /// The version that can be read.
        expected: u32,
        /// Its version.
        found: u32,
    },
    /// Cut off, or followed by something else.
    #[error("the state says it is {expected} bytes long, found {found}")]
    Length {
        /// What it says.
        expected: u64,
        /// Bytes there.
        found: u64,
    },
    /// Some bytes are not what was written.
    #[error("the state is damaged: its checksum is {found:016x}, expected {expected:016x}")]
    Checksum {
        /// What it says.
        expected: u64,
        /// What its bytes give.
        found: u64,
    },
    /// The checksum holds, but the content contradicts itself.
    #[error("byte {offset} of the state: {what} is {found}, expected {expected}")]
    Malformed {
        /// Where.
        offset: usize,
        /// Which value.
        what: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// One sequence where a whole context is expected, or the other way round.
    #[error("the state holds {found}, expected {expected}")]
    Scope {
        /// What was asked for.
        expected: &'static str,
        /// What it holds.
        found: &'static str,
    },
    /// The state of another model.
    #[error("the state is of another model: {what} {found}, this model has {expected}")]
    Model {
        /// What differs.
        what: String,
        /// Value of this model.
        expected: String,
        /// Value of the state's model.
        found: String,
    },
    /// The state of a context with other settings.
    #[error("the state is of a context with other settings: {what} {found}, this context has {expected}")]
    Settings {
        /// What differs.
        what: String,
        /// Value of this context.
        expected: String,
        /// Value of the state's context.
        found: String,
    },
    /// More cells than there is room for.
    #[error("the state takes {needed} cells of KV memory, {free} of {n_cells} are free; use a larger context")]
    NoRoom {
        /// Cells of the state.
        needed: usize,
        /// Cells that can be used.
        free: usize,
        /// Cells in all.
        n_cells: usize,
    },
    /// No such sequence in this context.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The state cannot be held in memory while it is read.
    #[error("cannot allocate {bytes} bytes")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The bytes could not be written or read.
    #[error("{action}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
    /// Something is wrong with a file.
    #[error("{}: {error}", .path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What.
        error: Box<StateError>,
    },
    /// Keys that were due to be rotated before saving could not be.
    #[error(transparent)]
    Shift(#[from] DecodeError),
    /// A device failed before anything was changed.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// A device failed to read or write rows. When restoring, the sequences that were to be replaced are empty now.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl StateError {
    pub(super) fn io(action: &'static str) -> impl Fn(std::io::Error) -> StateError {
        move |error| StateError::Io { action, error }
    }
}
