//! The graph builder that architecture files call: op functions with weights, names, positions and caches filled in.
//!
//! [`Builder`] holds the state of one build; larger pieces such as attention and mixture of experts are ordinary
//! functions here. Builder methods never fail: the first error is kept and the rest of the build continues on dummies, so that
//! expansions stay small; [`Builder::finish`] reports it.

mod adapt;
mod attention;
mod graph_builder;
mod contract;
mod depth;
mod error;
mod handles;
mod inputs;
mod linear_attention;
mod memory_size;
mod moe;
mod ngram;
mod pool;
mod position;
mod prune;
mod recur;
mod select;
mod streams;

pub use adapt::{Adaptation, AdaptedUse, AdapterLeaf, LowRankTerm};
pub use attention::{
    AttentionArgs, CacheView, KvSlot, KvSpec, MemorySpecs, PoolView, RopeArgs, chunked, standard, symmetric,
};
pub use graph_builder::{BuildParams, BuildTables, Builder, WeightLeaf, WeightPart};
pub use contract::{BuildGraph, GraphPart, Results, RopeScaling};
pub use error::BuildError;
pub use handles::{Embed, Experts, Linear, Norm, PerHead, Placeholder, Vector, WeightId};
pub use inputs::{EncodedInputs, Inputs, JoinedInputs, PoolInputs, TableInputs};
pub use linear_attention::LinearAttentionArgs;
pub use memory_size::{CELL_STEP, MemoryParams};
pub use moe::{Gating, MoeArgs};
pub use ngram::NgramArgs;
pub use pool::{Built, GraphOutput, HiddenRows, Pooling};
pub use position::KeyPosition;
pub use prune::{Pruning, keep_output_rows};
pub use recur::{Mamba2Args, StateSlot, StateSpec};
