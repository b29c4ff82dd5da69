//! Items that the expansion of `arch!` uses: the interface between declarations and the engine.

pub use crate::builder::{
    AttentionArgs, BuildGraph, Builder, Embed, Experts, Gating, GraphPart, Linear, LinearAttentionArgs, Mamba2Args,
    MoeArgs, Norm, PerHead, Pooling, RopeArgs, Vector, chunked, sliding, symmetric,
};
pub use crate::graph::{RopeKind, TensorId, Unary, Window};
pub use crate::model::{Architecture, Base, FlowNode, HparamDecl, HparamReader, Registered, TensorDecl, TensorTable};
