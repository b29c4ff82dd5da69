//! Sizes of KV caches and recurrent states. They are computed before a context exists, for the placement of
//! layers.

use kernels::GgmlType;

use crate::graph::{BufferId, BufferSlice, PAGE, Window};

use super::{CacheView, CrossSlot, CrossSpec, KvSlot, KvSpec, MemorySpecs, PoolView, StateSlot, StateSpec};

/// Granularity of the number of cells that a graph reads, so that graphs can be reused while a sequence
/// grows.
pub const CELL_STEP: usize = 256;

/// Placeholder for the location of memory that is not allocated yet.
const NOWHERE: BufferSlice = BufferSlice {
    buffer: BufferId(0),
    offset: 0,
};

/// Context settings that determine memory sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryParams {
    /// Number of KV cache cells; 0 selects the training context length.
    pub n_ctx: usize,
    /// Maximum tokens per decode call.
    pub n_batch: usize,
    /// Maximum tokens computed at once.
    pub n_ubatch: usize,
    /// Maximum number of sequences.
    pub n_seq_max: usize,
    /// Maximum outputs computed at once; 0 selects `n_seq_max`.
    pub n_outputs_max: usize,
    /// Compute the hidden states of all tokens in addition to the results.
    pub hidden: bool,
    /// Number of recurrent states kept for truncating a sequence.
    pub n_rollback: usize,
    /// Type of cached keys.
    pub type_k: GgmlType,
    /// Type of cached values.
    pub type_v: GgmlType,
}

impl Default for MemoryParams {
    fn default() -> MemoryParams {
        MemoryParams {
            n_ctx: 4096,
            n_batch: 2048,
            n_ubatch: 512,
            n_seq_max: 1,
            n_outputs_max: 0,
            hidden: false,
            n_rollback: 0,
            type_k: GgmlType::F16,
            type_v: GgmlType::F16,
        }
    }
}

impl MemoryParams {
    /// Resolves defaults and limits for a model with this training context length.
    pub fn resolved(self, n_ctx_train: usize) -> MemoryParams {
        let n_ctx = if self.n_ctx == 0 { n_ctx_train } else { self.n_ctx };
        let n_batch = self.n_batch.min(n_ctx);
        let n_outputs = if self.n_outputs_max == 0 {
            self.n_seq_max
        } else {
            self.n_outputs_max
        };
        MemoryParams {
            n_ctx,
            n_batch,
            n_ubatch: self.n_ubatch.min(n_batch),
            n_outputs_max: n_outputs,
            ..self
        }
    }

    /// Returns the cache view of a context with all cells in use, and the window of each pool. Slots and
    /// states have no location yet.
    pub fn cache_view(&self, specs: &MemorySpecs) -> (CacheView, Vec<Window>) {
        let mut windows: Vec<Window> = Vec::new();
        let mut pool_of = |window: Window| {
            windows.iter().position(|w| *w == window).unwrap_or_else(|| {
                windows.push(window);
                windows.len() - 1
            })
        };
        let slot = |spec: &KvSpec| KvSlot {
            pool: pool_of(spec.window),
            compressed: spec.compressed.map(|n| pool_of(Window::Compressed(n))),
            type_k: self.type_k,
            type_v: self.type_v,
            k: NOWHERE,
            v: NOWHERE,
        };
        let slots = specs.kv.iter().map(slot).collect();
        let pool = |window: &Window| {
            let n_cells = self.n_cells(*window);
            PoolView { n_cells, n_kv: n_cells }
        };
        let states = specs.states.iter().map(|s| StateSlot {
            row: s.row,
            home: NOWHERE,
        });
        let cross = specs.cross.iter().map(|_| CrossSlot {
            type_k: self.type_k,
            type_v: self.type_v,
            k: NOWHERE,
            v: NOWHERE,
        });
        let n_state_cells = if specs.states.is_empty() {
            0
        } else {
            self.n_state_cells()
        };
        let view = CacheView {
            slots,
            pools: windows.iter().map(pool).collect(),
            states: states.collect(),
            cross: cross.collect(),
            n_cross_rows: self.n_encode_max(),
            n_state_cells,
        };
        (view, windows)
    }

    /// Returns (tokens, outputs) of the largest graphs, to reserve memory. These are a full ubatch with the
    /// maximum number of outputs, a single token, and a full ubatch with one output.
    pub fn largest_graphs(&self) -> [(usize, usize); 3] {
        let n_tokens = self.n_ubatch.min(self.n_ctx);
        let n_outputs = self.n_outputs_max.min(n_tokens);
        [(n_tokens, n_outputs), (1, 1), (n_tokens, 1)]
    }

    /// Returns the number of cells in the pool of a window. This is the context length, or the maximum that a decode
    /// call needs with a causal window.
    pub fn n_cells(&self, window: Window) -> usize {
        match window {
            Window::Sliding(n) | Window::Chunked(n) => {
                let cells = self.window_cells(n).checked_next_multiple_of(CELL_STEP);
                cells.unwrap_or(self.n_ctx).min(self.n_ctx)
            }
            Window::Compressed(n) => (self.n_ctx / n.max(1)).max(1),
            Window::None | Window::Symmetric(_) => self.n_ctx,
        }
    }

    /// Returns the maximum number of cells that a decode call needs with a window of `n` positions.
    ///
    /// The cells hold the new tokens, and the windows of all sequences before the call, which a failed call restores.
    /// The number of new tokens is limited by the batch, and by the windows of all sequences plus a ubatch. Rounding
    /// to pages is included, so that the windows of two sequences need not share a page.
    pub fn window_cells(&self, n: usize) -> usize {
        let windows = n.saturating_mul(self.n_seq_max);
        let written = windows.saturating_add(self.n_ubatch).min(self.n_batch);
        // A window may extend into one more page than it fills.
        let in_pages = n.checked_next_multiple_of(PAGE).unwrap_or(n).saturating_add(PAGE);
        in_pages.saturating_mul(self.n_seq_max).saturating_add(written)
    }

    /// Returns the number of recurrent state cells: per sequence, the current state, the previous state, and
    /// `n_rollback` checkpoints.
    pub fn n_state_cells(&self) -> usize {
        self.n_rollback.saturating_add(2).saturating_mul(self.n_seq_max)
    }

    /// Returns the size in bytes of the KV cache of an attention call.
    pub fn kv_bytes(&self, spec: &KvSpec) -> usize {
        let groups = spec.compressed.map_or(0, |n| self.n_cells(Window::Compressed(n)));
        let n_cells = self.n_cells(spec.window).saturating_add(groups);
        let row = |ty: GgmlType, n: usize| ty.row_bytes(n).unwrap_or(usize::MAX);
        row(self.type_k, spec.k_row)
            .saturating_add(row(self.type_v, spec.v_row))
            .saturating_mul(n_cells)
    }

    /// Returns the maximum number of tokens or frames per encode call.
    pub fn n_encode_max(&self) -> usize {
        self.n_batch.min(self.n_ctx)
    }

    /// Returns the size in bytes of the keys and values of a cross attention call.
    pub fn cross_bytes(&self, spec: &CrossSpec) -> usize {
        let row = |ty: GgmlType, n: usize| ty.row_bytes(n).unwrap_or(usize::MAX);
        row(self.type_k, spec.k_row)
            .saturating_add(row(self.type_v, spec.v_row))
            .saturating_mul(self.n_encode_max())
    }

    /// Returns the size in bytes of the states of a recurrent op.
    pub fn state_bytes(&self, spec: &StateSpec) -> usize {
        let row = spec.row.saturating_mul(size_of::<f32>());
        row.saturating_mul(self.n_state_cells())
    }
}
