//! Input leaves of a graph, filled by the context before every compute.

use crate::graph::{TensorId, Window};

/// Values of an encoder that later parts of the graph read.
#[derive(Default)]
pub(super) struct EncodedValues {
    /// Features that follow the values of each row of the result.
    pub features: Vec<TensorId>,
    /// Operands of the calls of `keep`.
    pub kept: Vec<TensorId>,
}

/// Input tensors of a graph; `None` if the graph does not use an input.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Token ids, i32 `[T]`.
    pub tokens: Option<TensorId>,
    /// Positions, i32 `[T]`.
    pub positions: Option<TensorId>,
    /// Rows of the smallest table that is indexed by position.
    pub max_positions: Option<usize>,
    /// Rows of the smallest table that an encoder indexes by position.
    pub max_encoded: Option<usize>,
    /// Rows of the smallest table that is indexed by the row or the column of a patch.
    pub max_side: Option<usize>,
    /// Token positions along all axes, i32 `[T, axes]`.
    pub axes: Option<TensorId>,
    /// Page table index of each token, i32 `[T]`.
    pub table_of_token: Option<TensorId>,
    /// Indices of the output tokens, i32 `[n_outputs]`.
    pub out_ids: Option<TensorId>,
    /// Hidden states that precede the tokens, f32 `[n_embd, T]`.
    pub hidden: Option<TensorId>,
    /// Patches of an image, f32 `[width, T]`.
    pub patches: Option<TensorId>,
    /// Index of each patch in reading order, i32 `[T]`.
    pub places: Option<TensorId>,
    /// Weights of resized tables.
    pub resize: Vec<TableWeights>,
    /// Frequency divisors of rotations by row and column.
    pub grid_factors: Vec<GridFactors>,
    /// Sinusoids of distances.
    pub sinusoids: Vec<Sinusoids>,
    /// Sinusoids of the column and the row of each patch, f32 `[d, T]`.
    pub grid_sinusoids: Vec<TensorId>,
    /// Rows of relative position tables.
    pub distances: Vec<Distances>,
    /// Indices of columns, i32 `[n]`: 0, 1, 2, …
    pub columns: Vec<TensorId>,
    /// Features of media rows for the layers of a language model, f32 `[n_embd, T]` each and zero for tokens, with the
    /// number of their part. A row consists of parts of `n_embd` values: the embedding, which is part 0, and features.
    pub features: Vec<(usize, TensorId)>,
    /// Media rows, f32 `[n_embd, T]` and zero for tokens, and factors of the embeddings, f32 `[1, T]`: 1 for tokens
    /// and 0 for media rows.
    pub media: Option<(TensorId, TensorId)>,
    /// Rows given to an encoder, f32 `[width, T]`.
    pub frames: Option<TensorId>,
    /// Encoder output.
    pub encoded: EncodedInputs,
    /// Weight of each token in the mean of each sequence, f32 `[T, S]`.
    pub shares: Option<TensorId>,
    /// Scale per token, f32 `[1, T]`, for each adapter whose scale differs between sequences.
    pub adapter_scales: Vec<Option<TensorId>>,
    /// State cells that each token reads from and writes to, both i32 `[T]`.
    pub states: Option<(TensorId, TensorId)>,
    /// Inputs of each KV cache pool.
    pub pools: Vec<PoolInputs>,
    /// Inputs of pool pairs (tokens and groups) that an attention call reads together.
    pub joined: Vec<JoinedInputs>,
    /// Keys and values stored by earlier attention calls; part of the inputs to reuse its capacity.
    pub(super) stored: Vec<StoredKeys>,
}

/// Interpolation between the rows of a square table.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TableFilter {
    /// Linear interpolation; the corners of the table and of the patches coincide.
    #[default]
    Linear,
    /// Linear interpolation between the two nearest rows.
    Bilinear,
    /// Linear interpolation over the area of a patch, without aliases.
    Smooth,
    /// Bicubic interpolation with antialiasing, a = -0.5.
    SmoothBicubic,
    /// The row `i * n_rows / n_patches`, rounded down, for patch `i` of an axis.
    Nearest,
    /// Linear interpolation between the two nearest rows, with rows of zeros around the table.
    Zeros,
    /// Bilinear interpolation with the scale of a grid that is 0.1 patches larger on each side, as in DINO. An axis of
    /// equal size is not resized.
    Dino,
    /// Cubic interpolation with a = -0.75. Rows beyond the borders repeat the rows at the borders.
    Bicubic,
}

/// Weights that resize the rows of a table along an axis.
#[derive(Clone, Copy, Debug)]
pub struct TableWeights {
    /// Number of rows of the table.
    pub from: usize,
    /// Number of rows of the result.
    pub to: usize,
    /// Interpolation between the rows of the table.
    pub filter: TableFilter,
    /// The rows of the result are in reverse order.
    pub descends: bool,
    /// Weight of each row of the table for each row of the result, f32 `[from, to]`.
    pub weights: TensorId,
}

/// Frequency divisors of a rotation by the row and the column of a patch.
#[derive(Clone, Copy, Debug)]
pub struct GridFactors {
    /// Base frequency (theta).
    pub base: f32,
    /// Rows and columns have every other frequency.
    pub spread: bool,
    /// Divisors of the pairs: those rotated by the row, then those rotated by the column, f32 `[n_pairs]`.
    pub factors: TensorId,
}

/// Sinusoids of the distances from `before` down to `-after`.
#[derive(Clone, Copy, Debug)]
pub struct Sinusoids {
    /// Number of values of a distance: sines, then cosines.
    pub d: usize,
    /// Sines and cosines alternate, with the periods of RoPE.
    pub in_turn: bool,
    /// Largest distance.
    pub before: usize,
    /// Negated smallest distance.
    pub after: usize,
    /// Values of each distance, f32 `[d, before + 1 + after]`.
    pub rows: TensorId,
}

/// Rows of a relative position table, whose middle row has distance 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Distances {
    /// Row of distance 0.
    pub middle: usize,
    /// Largest distance.
    pub before: usize,
    /// Negated smallest distance.
    pub after: usize,
    /// Row of each distance from `before` down to `-after`, i32 `[before + 1 + after]`.
    pub rows: TensorId,
}

/// Inputs that describe the encoder output.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncodedInputs {
    /// Encoder output, f32 `[n_embd, n_encoded]`.
    pub rows: Option<TensorId>,
    /// Position of each encoder row, i32 `[n_encoded]`.
    pub positions: Option<TensorId>,
    /// Row of [`CrossSlot`](super::CrossSlot) that each encoder row is written to, i64 `[n_encoded]`.
    pub cells: Option<TensorId>,
    /// Page tables of the encoded rows.
    pub tables: Option<TableInputs>,
}

/// Inputs for the page tables of a ubatch, one per sequence; see
/// [`VisibleCells`](crate::graph::VisibleCells). Sized for the worst case; only the leading entries are used.
#[derive(Clone, Copy, Debug)]
pub struct TableInputs {
    /// First entry of each table, followed by the end of the last, i32 `[n_tables + 1]`.
    pub starts: TensorId,
    /// First cell of each entry's page, i32 `[n_entries]`.
    pub pages: TensorId,
    /// Cells of the page that belong to the sequence, as bits, i64 `[n_entries]`.
    pub masks: TensorId,
}

/// Inputs that describe a pool of cells.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolInputs {
    /// Destination cell of each token, i64 `[T]`.
    pub cells: Option<TensorId>,
    /// Position of each cell, i32 `[n_kv]`; negative if empty.
    pub positions: Option<TensorId>,
    /// Page tables.
    pub tables: Option<TableInputs>,
}

/// Inputs that describe the cells of a token pool followed by those of a group pool.
#[derive(Clone, Copy, Debug)]
pub struct JoinedInputs {
    /// Indices of the two KV cache pools.
    pub pools: [usize; 2],
    /// Destination cell of the group that each token completes, relative to the first cell of both pools, i64
    /// `[T]`; [`NO_ROW`](crate::graph::NO_ROW) for other tokens.
    pub cells: TensorId,
    /// Position of each cell, i32 `[n_kv]`; negative if empty.
    pub positions: TensorId,
    /// Page tables.
    pub tables: TableInputs,
}

impl Inputs {
    /// Clears all inputs and keeps the allocated capacity.
    pub fn clear(&mut self, n_pools: usize) {
        self.tokens = None;
        self.positions = None;
        self.max_positions = None;
        self.max_encoded = None;
        self.max_side = None;
        self.axes = None;
        self.table_of_token = None;
        self.out_ids = None;
        self.hidden = None;
        self.patches = None;
        self.places = None;
        self.resize.clear();
        self.grid_factors.clear();
        self.sinusoids.clear();
        self.grid_sinusoids.clear();
        self.distances.clear();
        self.columns.clear();
        self.features.clear();
        self.media = None;
        self.frames = None;
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

/// Keys and values stored by an attention call, reusable by later calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredKeys {
    pub layer: u32,
    /// Cached keys, `[dk, n_head_kv, n_kv]`.
    pub keys: TensorId,
    /// Cached values, `[dv, n_head_kv, n_kv]`.
    pub values: TensorId,
    pub cells: CellLists,
    pub window: Window,
}

/// Inputs that describe the cells of the keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellLists {
    pub positions: TensorId,
    pub tables: TableInputs,
    /// First cell with a compressed key.
    pub compressed_from: Option<usize>,
}
