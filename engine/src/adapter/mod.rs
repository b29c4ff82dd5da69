//! Adapters, which modify the computation of a loaded model without changing its weights.
//!
//! - [`LoraAdapter`]: low-rank terms added to matrices and embedding tables
//! - [`ControlVector`]: directions added to the outputs of layers
//! - [`Contrast`]: directions from contrasting prompts
//! - [`Merge`]: low-rank terms added to the weights of a file
//!
//! An adapter is validated against a model when it is loaded, and is only usable with that model. Activate
//! adapters with [`Context::set_adapters`](crate::context::Context::set_adapters) and
//! [`Context::set_control_vectors`](crate::context::Context::set_control_vectors), at any time.

mod contrast;
mod control;
mod error;
mod lora;
mod merge;
mod place;

pub use contrast::{Contrast, ContrastError, DirectionMethod, LayerOutputs};
pub use control::ControlVector;
pub use error::{AdapterError, AdapterMismatch};
pub use lora::LoraAdapter;
pub use merge::{Merge, MergeError, ScaledFactors};
pub(crate) use place::{PendingLeaf, PlacedLeaf, place};
