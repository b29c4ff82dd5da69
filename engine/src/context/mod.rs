//! Contexts: batches in, logits out. Everything that decoding needs is reserved for the worst case before the first token.
//!
//! [`Context`] is made of parts that do not know it: what runs graphs (`runner`, `graphs`, `inputs`), what is remembered (`hybrid` over `memory` and
//! `recurrent`, `encoded`), and what a batch asks for (`outputs`, `pooled`, `hidden`). `settings` and `admission` check what comes from outside; `shift`,
//! `state` and `adapt` work on the parts.

mod adapt;
mod admission;
mod batch;
mod cells;
#[allow(clippy::module_inception)]
mod context;
mod encoded;
mod error;
mod graphs;
mod hidden;
mod hybrid;
mod inputs;
mod memory;
mod outputs;
mod pages;
mod params;
mod perf;
mod pooled;
mod recurrent;
mod result_rows;
mod runner;
mod sessions;
mod set_adapters;
mod settings;
mod shift;
mod state;

pub use adapt::ScaledAdapter;
pub use admission::Rejection;
pub use batch::{Batch, BatchToken, MAX_SEQUENCES, SeqSet};
pub use context::{Context, Sizes};
pub use error::{ContextError, DecodeError, MemoryError, SetAdaptersError};
pub use memory::KvMemory;
pub use params::ContextParams;
pub use perf::Perf;
pub use state::StateError;
