//! Contexts: decode batches to logits. All memory is reserved for the worst case before the first token.
//!
//! [`Context`] combines independent parts:
//!
//! - graph execution: `executor` (over `runner`, `graphs`, `inputs`)
//! - state: `hybrid` (over `memory`, `recurrent`, and `cross`), `encoded`
//! - results: `step` (over `outputs`, `pooled`, `hidden`)
//! - validation: `settings`, `admission`
//! - media: `media`, `axes`, and the encoders `encoder` (over `patches` and `image_sizes`) and `audio_encoder`, which
//!   compute rows by an `encoder_graph` without a context
//! - operations on these parts: `shift`, `state`, `adapt`
//!
//! A decode is a value, so that the compiler checks the order of its phases. `Results::admit` returns a
//! `DecodeStep`, and `Memory::begin` opens a `Transaction` over the cells. Each ubatch gets its cells (`Placed`),
//! a `PreparedGraph`, and a `ComputedGraph`, whose rows are appended to the step. Finishing the step and
//! committing the transaction consume both. If a phase fails, both are dropped, which clears the results and
//! reverts the cells.

mod adapt;
mod admission;
mod audio_encoder;
mod axes;
mod batch;
mod cells;
#[allow(clippy::module_inception)]
mod context;
mod cross;
mod encoded;
mod encoder;
mod encoder_graph;
mod error;
mod executor;
mod graphs;
mod grid_inputs;
mod hidden;
mod hybrid;
mod image_parts;
mod image_sizes;
mod inputs;
mod lines;
mod media;
mod media_error;
mod memory;
mod mosaic;
mod output_rows;
mod outputs;
mod padding;
mod pages;
mod params;
mod patches;
mod perf;
mod pooled;
mod recurrent;
mod result_rows;
mod runner;
mod sessions;
mod set_adapters;
mod settings;
mod shift;
mod sinusoids;
mod state;
mod step;

pub use adapt::ScaledAdapter;
pub use admission::Rejection;
pub use audio_encoder::{AudioEncoder, AudioError};
pub use batch::{AxisPosition, Batch, BatchToken, MAX_SEQUENCES, SeqSet};
pub use context::{Context, Sizes};
pub use encoder::MediaEncoder;
pub use error::{ContextError, DecodeError, MemoryError, SetAdaptersError};
pub use image_parts::{ImagePart, Pixels};
pub use image_sizes::ImageSizes;
pub use media::{MEDIA_TOKENS, MediaRow, MediaRows, RowGrid};
pub use media_error::MediaError;
pub use memory::KvMemory;
pub use params::ContextParams;
pub use perf::Perf;
pub use state::StateError;
