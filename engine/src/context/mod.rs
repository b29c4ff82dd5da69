//! Contexts: batches in, logits out. Everything that decoding needs is reserved for the worst case before the first token.

mod adapt;
mod batch;
mod cells;
mod decode;
mod encode;
mod error;
mod hybrid;
mod memory;
mod params;
mod perf;
mod pooled;
mod recurrent;
mod shift;
mod state;

pub use adapt::ScaledAdapter;
pub use batch::{Batch, BatchToken, MAX_SEQUENCES, SeqSet};
pub use decode::{Context, Sizes};
pub use error::{ContextError, DecodeError, MemoryError};
pub use memory::KvMemory;
pub use params::ContextParams;
pub use perf::Perf;
pub use state::StateError;
