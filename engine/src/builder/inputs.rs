//! The leafs that a context fills before each compute.

use crate::graph::TensorId;

use super::attention::StoredKeys;

/// Input tensors of a graph; `None` where the graph does not use them.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Token ids, i32 `[T]`.
    pub tokens: Option<TensorId>,
    /// Positions, i32 `[T]`.
    pub positions: Option<TensorId>,
    /// Rows of the smallest table that is read by position.
    pub max_positions: Option<usize>,
    /// Positions along all axes, i32 `[T, axes]`.
    pub axes: Option<TensorId>,
    /// Page table of each token, i32 `[T]`.
    pub table_of_token: Option<TensorId>,
    /// Rows whose output is wanted, i32 `[n_outputs]`.
    pub out_ids: Option<TensorId>,
    /// The hidden rows before the tokens, f32 `[n_embd, T]`.
    pub hidden: Option<TensorId>,
    /// What was encoded.
    pub encoded: EncodedInputs,
    /// Share of each token in the mean of each sequence, f32 `[T, S]`.
    pub shares: Option<TensorId>,
    /// Per adapter whose scale differs between sequences: the scale for each token, f32 `[1, T]`.
    pub adapter_scales: Vec<Option<TensorId>>,
    /// Cells of states that each token's is read from and left in, both i32 `[T]`.
    pub states: Option<(TensorId, TensorId)>,
    /// Per pool of the KV memory.
    pub pools: Vec<PoolInputs>,
    /// Per pool of tokens and pool of groups that some attention looks at together.
    pub joined: Vec<JoinedInputs>,
    /// What attention calls stored so far; here so that its memory is kept from graph to graph.
    pub(super) stored: Vec<StoredKeys>,
}

/// Inputs that describe what was encoded.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncodedInputs {
    /// The encoder's result, f32 `[n_embd, n_encoded]`.
    pub rows: Option<TensorId>,
    /// Position of each row, i32 `[n_encoded]`.
    pub positions: Option<TensorId>,
    /// Rows of each sequence.
    pub tables: Option<TableInputs>,
}

/// Inputs that hold a page table for each sequence of a ubatch, see [`VisibleCells`](crate::graph::VisibleCells). They are as long as they
/// can get; tables fill the first entries only.
#[derive(Clone, Copy, Debug)]
pub struct TableInputs {
    /// Entry at which each table starts, and behind the last its end, i32 `[n_tables + 1]`.
    pub starts: TensorId,
    /// First cell of the page of each entry, i32 `[n_entries]`.
    pub pages: TensorId,
    /// Cells of the page that belong to the sequence, one bit each, i64 `[n_entries]`.
    pub masks: TensorId,
}

/// Inputs that describe one pool of cells.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolInputs {
    /// Cell of each token, i64 `[T]`.
    pub cells: Option<TensorId>,
    /// Position of each cell, negative if empty, i32 `[n_kv]`.
    pub positions: Option<TensorId>,
    /// Cells of each sequence.
    pub tables: Option<TableInputs>,
}

/// Inputs that describe the cells of a pool of tokens, all of them, and behind them those of a pool of groups of tokens.
#[derive(Clone, Copy, Debug)]
pub struct JoinedInputs {
    /// The pools.
    pub pools: [usize; 2],
    /// For each token the cell of its group, counted from the first of both pools, if it is its last, i64 `[T]`.
    pub cells: TensorId,
    /// Position of each cell, negative if empty, i32 `[n_kv]`.
    pub positions: TensorId,
    /// Cells of each sequence.
    pub tables: TableInputs,
}

impl Inputs {
    /// Forgets all but keeps memory.
    pub fn clear(&mut self, n_pools: usize) {
        self.tokens = None;
        self.positions = None;
        self.max_positions = None;
        self.axes = None;
        self.table_of_token = None;
        self.out_ids = None;
        self.hidden = None;
        self.encoded = EncodedInputs::default();
        self.shares = None;
        self.adapter_scales.clear();
        self.states = None;
        self.pools.clear();
        self.pools.resize(n_pools, PoolInputs::default());
        self.joined.clear();
        self.stored.clear();
    }
}
