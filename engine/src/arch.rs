//! What the expansion of `arch!` names: the architecture contract in one place.

pub use crate::builder::{
    AttentionArgs, BuildGraph, Builder, Embed, Experts, Gating, GraphPart, Linear, LinearAttentionArgs, Mamba2Args,
    MoeArgs, Norm, PerHead, Pooling, RopeArgs, Vector, chunked, standard, symmetric,
};
pub use crate::graph::{RopeKind, TensorId, Unary, Window};
pub use crate::model::{Architecture, Base, FlowNode, HparamDecl, HparamReader, Registered, TensorDecl, TensorTable};
