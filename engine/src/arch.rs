//! What the expansion of `arch!` names: the architecture contract in one place.

pub use crate::build::{
    AttentionArgs, Builder, Gating, LinearAttentionArgs, Mamba2Args, MoeArgs, Pooling, RopeArgs, chunked, standard,
    symmetric,
};
pub use crate::graph::{RopeKind, TensorId, Unary, Window};
pub use crate::model::{
    Architecture, Base, BuildGraph, Embed, Experts, FlowNode, HparamDecl, HparamReader, Linear, Norm, PerHead,
    Registered, TensorDecl, TensorTable, Vector,
};
