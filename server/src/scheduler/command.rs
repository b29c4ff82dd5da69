//! Commands to the scheduler thread, which runs them between two steps.

use std::path::PathBuf;

use engine::context::{SetAdaptersError, StateError};
use tokio::sync::oneshot;

/// A command with the channel for its result.
pub enum Command {
    /// Reports the state of all sequences.
    Slots { owner: u64, reply: Reply<Vec<Slot>> },
    /// Saves a sequence to a file; replies with its number of tokens.
    SaveSlot {
        id: usize,
        owner: u64,
        path: PathBuf,
        reply: Reply<usize>,
    },
    /// Restores a sequence from a file; replies with its number of tokens.
    RestoreSlot {
        id: usize,
        owner: u64,
        path: PathBuf,
        reply: Reply<usize>,
    },
    /// Erases a sequence; replies with the number of removed tokens.
    EraseSlot { id: usize, owner: u64, reply: Reply<usize> },
    /// Ends the reasoning of a client's request. Replies with whether the request was reasoning; `None` if no
    /// such request is queued or running.
    EndReasoning {
        client: u64,
        id: String,
        reply: Reply<Option<bool>>,
    },
    /// Reports the scales of the adapters, in order.
    AdapterScales { reply: Reply<Vec<f32>> },
    /// Sets adapter scales once running sequences have finished. Omitted adapters get scale 0.
    SetAdapterScales {
        scales: Vec<(usize, f32)>,
        reply: Reply<()>,
    },
}

/// Result of a command.
pub type CommandResult<T> = Result<T, CommandError>;

/// Sender of the result of a command.
pub type Reply<T> = oneshot::Sender<CommandResult<T>>;

/// State of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// True if a request is using the sequence.
    pub is_busy: bool,
    /// Number of tokens in the sequence; 0 if they belong to another owner.
    pub n_held: usize,
}

/// Error of a scheduler command.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The slot id is out of range.
    #[error("invalid slot {id}: expected 0 to {}", .n - 1)]
    NoSlot {
        /// Requested slot.
        id: usize,
        /// Number of slots of the scheduler.
        n: usize,
    },
    /// A request is using the slot.
    #[error("slot {id} is busy")]
    Busy {
        /// Requested slot.
        id: usize,
    },
    /// The slot has tokens of another API key.
    #[error("slot {id} belongs to another API key; use another slot, or start the server with --share-cache")]
    Foreign {
        /// Requested slot.
        id: usize,
    },
    /// The slot has no tokens.
    #[error("slot {id} is empty")]
    Empty {
        /// Requested slot.
        id: usize,
    },
    /// The adapter id is out of range.
    #[error("invalid adapter {id}: the number of loaded adapters is {n}")]
    NoAdapter {
        /// Requested adapter.
        id: usize,
        /// Number of loaded adapters.
        n: usize,
    },
    /// The scales of adapters could not be set.
    #[error(transparent)]
    Adapters(#[from] SetAdaptersError),
    /// A state file could not be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The scheduler thread has ended.
    #[error("the model has stopped")]
    Over,
}
