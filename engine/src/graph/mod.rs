//! Graphs of tensor operations. A graph is only a description: building it performs no I/O and accesses no
//! tensor data.

mod attend;
mod attention;
mod edit;
#[allow(clippy::module_inception)]
mod graph;
mod lanes;
mod layout;
mod linear_attention;
mod ngram;
mod op;
mod ops;
mod order;
mod recur;
mod rope;
pub(crate) mod rules;
mod select;
mod tensor;
mod uses;
mod visible;

pub use attention::{Attention, AttentionOperands, Buckets, Window};
pub use graph::Graph;
pub use lanes::Lanes;
pub use layout::{Layout, Repack};
pub use linear_attention::LinearAttention;
pub use ngram::NgramHash;
pub use op::{NO_ROW, Op, Unary};
pub use ops::ShapeError;
pub use recur::Recurrence;
pub use rope::{ROPE_AXES, Rope, RopeKind};
pub use select::{BlockRule, Blocks};
pub use tensor::{BufferId, BufferSlice, Flags, MAX_SRC, Name, Tensor, TensorId, contiguous_strides, dense_bytes};
pub use uses::Uses;
pub use visible::{PAGE, VisibleCells};
