//! Items that the expansions of `arch!` and `encoder!` use: the interface between declarations and the engine.

pub use crate::builder::{
    AttentionArgs, AudioRules, BuildGraph, Builder, ClassColumn, Conv2dArgs, Embed, Experts, Filter, Gating,
    GridConvArgs, GridList, GridPairs, ImageRules, ImageSize, Linear, LinearAttentionArgs, LocalAttentionArgs,
    Mamba2Args, MoeArgs, NgramArgs, Norm, Overview, PerHead, Pooling, ResizedArgs, RopeArgs, RopeGridArgs,
    RopeTimeArgs, RowPositions, Silence, Spectrogram, TableFilter, TileGrid, TileRules, Vector, Visibility, chunked,
    sliding, symmetric,
};
pub use crate::graph::{RopeKind, TensorId, Unary, Window};
pub use crate::model::{
    Architecture, Base, Checkpoint, CheckpointOrigin, CheckpointSetting, CheckpointSource, ConfigTerm, HparamDecl,
    HparamReader, Loader, MediaDecl, MediaUse, Medium, Registered, SettingType, TensorDecl, TensorTable, TextPart,
    max_sum,
};
