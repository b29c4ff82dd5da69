//! KV caches and recurrent states of a graph: requirements, and the memory that serves them.

use kernels::GgmlType;

use crate::graph::{BufferSlice, Window};

use super::position::KeyPosition;

/// KV cache requirements of an attention call, recorded by a probe build.
#[derive(Clone, Debug, PartialEq)]
pub struct KvSpec {
    /// Layer index.
    pub layer: usize,
    /// Elements of a key row: `head_dim_k * n_head_kv`.
    pub k_row: usize,
    /// Elements of a value row: `head_dim_v * n_head_kv`; 0 if values are part of the keys.
    pub v_row: usize,
    /// Latent attention: number of leading elements of each key head that are also its value; 0 if values are
    /// stored separately.
    pub v_in_k: usize,
    /// Number of key/value heads.
    pub n_head_kv: usize,
    /// Attention window.
    pub window: Window,
    /// Compression ratio: each group of this many tokens also has a compressed key, which is exempt from the
    /// window.
    pub compressed: Option<usize>,
    /// Dependence of cached keys on their position, which determines how a context shift updates them.
    pub key_position: KeyPosition,
}

/// KV caches and recurrent states of a graph, in call order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemorySpecs {
    /// Requirements of the attention calls.
    pub kv: Vec<KvSpec>,
    /// Requirements of the cross attention calls.
    pub cross: Vec<CrossSpec>,
    /// Requirements of the recurrent ops.
    pub states: Vec<StateSpec>,
}

/// Caches and states that a graph reads and writes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheView {
    /// Caches of the attention calls, in call order.
    pub slots: Vec<KvSlot>,
    /// Keys and values of the cross attention calls, in call order.
    pub cross: Vec<CrossSlot>,
    /// Number of rows of the encoder output that each [`CrossSlot`] holds.
    pub n_cross_rows: usize,
    /// Cell pools; slots with the same window share a pool.
    pub pools: Vec<PoolView>,
    /// States of the recurrent ops, in call order.
    pub states: Vec<StateSlot>,
    /// Number of cells per state tensor.
    pub n_state_cells: usize,
}

/// KV cache of an attention call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvSlot {
    /// Index of the cache's pool in [`CacheView::pools`].
    pub pool: usize,
    /// Pool of compressed keys, whose rows follow the rows of single tokens.
    pub compressed: Option<usize>,
    /// Key type.
    pub type_k: GgmlType,
    /// Value type.
    pub type_v: GgmlType,
    /// Keys `[k_row, n_cells]`; with compressed keys, `n_cells` covers both pools.
    pub k: BufferSlice,
    /// Cached values `[v_row, n_cells]`.
    pub v: BufferSlice,
}

/// Requirements of a cross attention call, recorded by a probe build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossSpec {
    /// Layer index.
    pub layer: usize,
    /// Elements of a key row.
    pub k_row: usize,
    /// Elements of a value row.
    pub v_row: usize,
    /// Number of key/value heads.
    pub n_head_kv: usize,
}

/// Keys and values that a cross attention call reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossSlot {
    /// Key type.
    pub type_k: GgmlType,
    /// Value type.
    pub type_v: GgmlType,
    /// Keys `[k_row, n_cross_rows]`.
    pub k: BufferSlice,
    /// Values `[v_row, n_cross_rows]`.
    pub v: BufferSlice,
}

/// Pool of KV cache cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolView {
    /// Number of cells in the pool.
    pub n_cells: usize,
    /// Number of leading cells that the graph reads.
    pub n_kv: usize,
}

/// State requirements of a recurrent op, recorded by a probe build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// Layer index.
    pub layer: usize,
    /// Size of a state in floats.
    pub row: usize,
}

/// State tensor of a recurrent op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSlot {
    /// Size of a state in floats.
    pub row: usize,
    /// Location of the states, f32 `[row, n_cells]`.
    pub home: BufferSlice,
}

/// Source of cached keys, values, and states.
pub(super) enum Cache<'a> {
    /// No cache: the graph only records the requirements of attention and recurrences.
    Probe(&'a mut MemorySpecs),
    /// Cells of a KV cache.
    Cells(&'a CacheView),
    /// The batch itself (bidirectional models).
    Batch,
}
