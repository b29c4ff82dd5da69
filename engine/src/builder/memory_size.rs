//! How much memory a context takes for what attention and recurrences keep: known before there is a context, for placing layers.

use kernels::GgmlType;

use crate::graph::{BufferId, Home, PAGE, Window};

use super::{CacheView, KvSlot, KvSpec, MemorySpecs, PoolView, StateSlot, StateSpec};

/// Cells that a graph looks at are rounded up to this many, so that it can be reused while a sequence grows.
pub const CELL_STEP: usize = 256;

/// The home of what has none yet.
const NOWHERE: Home = Home {
    buffer: BufferId(0),
    offset: 0,
};

/// The settings of a context that decide on the size of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryParams {
    /// Cells of KV memory; 0 takes the model's training length.
    pub n_ctx: usize,
    /// Most tokens of one decode.
    pub n_batch: usize,
    /// Most tokens computed at once.
    pub n_ubatch: usize,
    /// Most sequences.
    pub n_seq_max: usize,
    /// Most outputs computed at once; 0 takes `n_seq_max`.
    pub n_outputs_max: usize,
    /// Graphs give the hidden rows of all tokens, too.
    pub hidden: bool,
    /// Recurrent states kept for cutting a sequence back.
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
    /// With the context length and the sizes of batches that they come to for a model.
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

    /// What graphs are built over, all cells in view, and the window of each pool. Slots and states have no homes yet.
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
        let n_state_cells = if specs.states.is_empty() {
            0
        } else {
            self.n_state_cells()
        };
        let view = CacheView {
            slots,
            pools: windows.iter().map(pool).collect(),
            states: states.collect(),
            n_state_cells,
        };
        (view, windows)
    }

    /// Tokens and outputs of the largest graphs, which memory is reserved for: a whole ubatch with as many outputs as there can be, a single
    /// token, and a whole ubatch with one output.
    pub fn largest_graphs(&self) -> [(usize, usize); 3] {
        let n_tokens = self.n_ubatch.min(self.n_ctx);
        let n_outputs = self.n_outputs_max.min(n_tokens);
        [(n_tokens, n_outputs), (1, 1), (n_tokens, 1)]
    }

    /// Cells of the pool of a window: all positions, or, with a causal window, what a decode needs at most.
    pub fn n_cells(&self, window: Window) -> usize {
        match window {
            Window::Standard(n) | Window::Chunked(n) => {
                let cells = self.window_cells(n).checked_next_multiple_of(CELL_STEP);
                cells.unwrap_or(self.n_ctx).min(self.n_ctx)
            }
            Window::Compressed(n) => (self.n_ctx / n.max(1)).max(1),
            Window::None | Window::Symmetric(_) => self.n_ctx,
        }
    }

    /// Cells that a decode needs at most where a window of `n` positions hides the others: the windows of all sequences as the decode
    /// found them, which a failure returns to, and, of what it writes, the whole batch or the windows of all sequences and a ubatch. And
    /// for each sequence what it takes that its window need not share a page with others.
    pub fn window_cells(&self, n: usize) -> usize {
        let windows = n.saturating_mul(self.n_seq_max);
        let written = windows.saturating_add(self.n_ubatch).min(self.n_batch);
        // A window that fills pages reaches into one more.
        let in_pages = n.checked_next_multiple_of(PAGE).unwrap_or(n).saturating_add(PAGE);
        in_pages.saturating_mul(self.n_seq_max).saturating_add(written)
    }

    /// Cells of recurrent states: for each sequence one to continue from, one from before, and `n_rollback` in between.
    pub fn n_state_cells(&self) -> usize {
        self.n_rollback.saturating_add(2).saturating_mul(self.n_seq_max)
    }

    /// Bytes of the keys and values of an attention call.
    pub fn kv_bytes(&self, spec: &KvSpec) -> usize {
        let groups = spec.compressed.map_or(0, |n| self.n_cells(Window::Compressed(n)));
        let n_cells = self.n_cells(spec.window).saturating_add(groups);
        let row = |ty: GgmlType, n: usize| ty.row_bytes(n).unwrap_or(usize::MAX);
        row(self.type_k, spec.k_row)
            .saturating_add(row(self.type_v, spec.v_row))
            .saturating_mul(n_cells)
    }

    /// Bytes of the states of a recurrent op.
    pub fn state_bytes(&self, spec: &StateSpec) -> usize {
        let row = spec.row.saturating_mul(size_of::<f32>());
        row.saturating_mul(self.n_state_cells())
    }
}
