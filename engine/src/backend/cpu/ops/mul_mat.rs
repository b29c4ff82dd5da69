//! Matmuls, dense and by expert. The threads divide the rows of the weights among themselves.

use std::ops::Range;

use kernels::rows::add_in_place;
use kernels::{Activations, MAX_TILE_ROWS, MIN_TILE_ROWS, MatMul, PANEL_ROWS, WeightLayout, matmul, matmul_scratch};

use super::task::{KernelError, NodeExit, Task, row_number};
use crate::backend::cpu::activations::{QuantizedRows, row_floats, tile_row_floats};
use crate::backend::cpu::queue::{Stolen, WorkQueue};
use crate::backend::cpu::scratch::{ScratchSize, take};
use crate::backend::cpu::view::{MemRange, NodeMemory, RowIndex, Source};
use crate::backend::cpu::weight_prefetch::Weights;
use crate::graph::{Graph, Op, Tensor};

/// Number of activation rows to gather at a time if they are not contiguous.
const GATHER: usize = 32;

/// Number of activation rows to gather at a time for tile kernels. With only 32 rows, packing the weights
/// would take longer than multiplying.
const GATHER_FOR_TILES: usize = 256;

/// Maximum number of weight rows per chunk of work.
const MAX_PIECE: usize = 64;

/// Maximum number of weight rows per chunk of a skinny matmul, whose results need little memory. The kernel
/// reads long chunks as two streams, which is faster.
const MAX_PIECE_OF_FEW: usize = 256;

/// Chunks of work per thread and expert. Enough that no thread waits long for the last chunk, even if the
/// cores differ in speed.
const PIECES: usize = 6;

/// Minimum number of weight rows per chunk: a panel, or two row groups, which take the same time.
const LEAST_ROWS: usize = PANEL_ROWS;

/// Minimum number of columns per chunk of a matmul with many columns: enough to amortize unpacking the
/// weights again.
pub(super) const LEAST_COLUMNS: usize = 64;

/// Approximate number of columns that a tile kernel multiplies at a time. With 2048 elements per column this
/// is 1 MiB.
const TILE_COLUMNS: usize = 256;

/// Returns the scratch memory for gathered activations, results before scattering, the kernel's buffers, and
/// the tokens sorted by expert.
pub(super) fn scratch_size(graph: &Graph, node: &Tensor) -> ScratchSize {
    let x = graph.tensor(node.source(1));
    let k = x.ne[0];
    let n_results = node.ne[1] * node.ne[2];
    let few = GATHER * (row_floats(k) + MAX_PIECE);
    let for_tiles = match node.op {
        Op::MulMatId => node.ne[2].min(GATHER_FOR_TILES) * tile_row_floats(k) + results_by_experts(node),
        _ => 0,
    };
    let scratch = few.max(for_tiles) + matmul_scratch(k, x.nrows().max(GATHER));
    ScratchSize {
        per_thread: scratch + 2 * n_results + 2 * graph.tensor(node.source(0)).ne[2] + 1,
        shared: 0,
    }
}

/// Returns the number of results in the largest chunk of an expert matmul.
pub(super) fn results_by_experts(node: &Tensor) -> usize {
    (node.ne[2].min(GATHER_FOR_TILES) * MAX_TILE_ROWS).max(GATHER * MAX_PIECE)
}

/// Returns true if the matmul is dense and has few columns. Each chunk is then first computed in the thread's
/// scratch buffer, which must also contain the quantized activations.
pub(in crate::backend::cpu) fn is_skinny(graph: &Graph, node: &Tensor) -> bool {
    let x = graph.tensor(node.source(1));
    node.op == Op::MulMat && x.nrows() == x.ne[1] && x.ne[1] <= GATHER
}

/// Returns true if threads may steal work of a matmul with these weights, given that each thread has the
/// quantized activations in its own buffer.
///
/// The weights must be constant, and each chunk must first be computed in the thread's scratch buffer.
pub(in crate::backend::cpu) fn is_stealable(graph: &Graph, node: &Tensor, weights: &MemRange) -> bool {
    if !weights.is_read_only() {
        return false;
    }
    match node.op {
        Op::MulMat => is_skinny(graph, node),
        Op::MulMatId => node.ne[1] * node.ne[2] <= GATHER,
        _ => false,
    }
}

/// Returns the weights of a dense matmul, divided into the chunks that threads take.
pub(in crate::backend::cpu) fn next_weights(graph: &Graph, product: &NodeMemory) -> Weights {
    let w = product.source(graph, 0);
    let n_rows = w.ne()[1];
    Weights {
        start: w.address(),
        piece: w.tensor.nbytes() / n_rows * LEAST_ROWS,
        n_pieces: n_rows.div_ceil(LEAST_ROWS),
    }
}

pub(super) fn mul_mat(task: Task<'_>) -> Result<(), Stolen> {
    if task.planned.offers {
        return mul_mat_stealable(task);
    }
    let (w, x, target) = (task.source(0), Operand::of(&task), task.target);
    let [_, n, c2, c3] = x.ne;
    let allow_reassociation = task.planned.allow_reassociation;
    let (group2, group3) = (c2 / w.ne()[2], c3 / w.ne()[3]);
    let grid = Grid::new(w.ne()[1], n, x.is_for_tiles());
    while let Some(pieces) = task.queue.take_some(grid.len(), grid.most()) {
        for (tile, (i2, i3)) in grid.tiles(pieces).flat_map(|tile| {
            let matrices = (0..c3).flat_map(move |i3| (0..c2).map(move |i2| (i2, i3)));
            matrices.map(move |matrix| (tile.clone(), matrix))
        }) {
            let weights = weights(&w, &tile.rows, i2 / group2, i3 / group3);
            let first = n * (i2 + c2 * i3) + tile.columns.start;
            let mut multiply = |from: usize, n: usize, x: Activations<'_>, scratch: &mut [f32]| {
                let out = target.tile(first + from, n, tile.rows.clone());
                let args = MatMul {
                    x,
                    n,
                    allow_reassociation,
                    ..weights
                };
                // SAFETY: `Target::tile` checks the bounds of the result. No other thread takes this chunk of rows and
                // columns, so no other thread writes there. The operands do not overlap the result, checked in
                // `NodeMemory::new`.
                unsafe { matmul(&args, out, target.tensor.ne[0], scratch) };
            };
            let columns = tile.columns.clone();
            if let Some(x) = x.span([columns.start, i2, i3], columns.len()) {
                multiply(0, columns.len(), x, task.scratch);
            } else {
                x.gather_and(
                    columns.len(),
                    GATHER,
                    |i| [columns.start + i, i2, i3],
                    task.scratch,
                    &mut multiply,
                );
            }
        }
    }
    Ok(())
}

/// Division of a result into chunks of work: blocks of weight rows and, if there are many columns, blocks of
/// columns.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    n_rows: usize,
    n_columns: usize,
    /// Weight rows per block.
    rows: usize,
    /// Number of column blocks.
    n_blocks: usize,
    /// Maximum number of rows that a thread takes at a time.
    most_rows: usize,
    /// True if consecutive chunks share their columns, false if they share their rows.
    by_columns: bool,
}

/// A rectangular part of a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tile {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

impl Grid {
    /// Creates a grid for `n_rows` rows of weights and `n_columns` columns.
    ///
    /// For tile kernels, a thread iterates over the weights with some columns that stay in the L2 cache. Packing
    /// weights is cheap compared to multiplying. Otherwise, a thread iterates over the columns with some rows.
    pub(super) fn new(n_rows: usize, n_columns: usize, for_tiles: bool) -> Grid {
        if for_tiles {
            let n_blocks = ((n_columns + TILE_COLUMNS / 2) / TILE_COLUMNS).max(1);
            return Grid {
                n_rows,
                n_columns,
                rows: MIN_TILE_ROWS,
                n_blocks,
                most_rows: MAX_TILE_ROWS,
                by_columns: true,
            };
        }
        let n_blocks = (n_columns / LEAST_COLUMNS).max(1);
        Grid {
            n_rows,
            n_columns,
            rows: if n_blocks == 1 { LEAST_ROWS } else { MAX_PIECE },
            n_blocks,
            most_rows: MAX_PIECE,
            by_columns: false,
        }
    }

    /// Limits the number of rows that a thread takes at a time to `most`, but at least one block.
    pub(super) fn with_most_rows(self, most: usize) -> Grid {
        let most_rows = self.most_rows.min(most).max(self.rows);
        Grid { most_rows, ..self }
    }

    /// Returns the number of chunks.
    pub(super) fn len(&self) -> usize {
        self.n_rows.div_ceil(self.rows) * self.n_blocks
    }

    /// Returns the maximum number of chunks to take at a time, which gives the number of rows that the kernel
    /// multiplies together.
    pub(super) fn most(&self) -> usize {
        let rows = self.most_rows / self.rows;
        if self.by_columns { rows } else { rows * self.n_blocks }
    }

    /// Returns the tiles that consecutive chunks cover.
    pub(super) fn tiles(self, pieces: Range<usize>) -> impl Iterator<Item = Tile> {
        let mut next = pieces.start;
        std::iter::from_fn(move || {
            if next >= pieces.end {
                return None;
            }
            let (tile, n) = self.tile(next..pieces.end);
            next += n;
            Some(tile)
        })
    }

    /// Returns the tile that starts at the first of some chunks, and the number of chunks that it covers.
    fn tile(&self, pieces: Range<usize>) -> (Tile, usize) {
        // The blocks of rows and columns that the tile covers, and the number of chunks.
        let (rows, columns, n) = if self.by_columns || self.n_blocks == 1 {
            let in_row = self.n_rows.div_ceil(self.rows);
            let (column, row) = (pieces.start / in_row, pieces.start % in_row);
            let n = pieces.len().min(in_row - row);
            (row..row + n, column..column + 1, n)
        } else {
            let (row, column) = (pieces.start / self.n_blocks, pieces.start % self.n_blocks);
            let n = pieces.len().min(self.n_blocks - column);
            (row..row + 1, column..column + n, n)
        };
        let tile = Tile {
            rows: rows.start * self.rows..self.n_rows.min(rows.end * self.rows),
            columns: self.column(columns.start)..self.column(columns.end),
        };
        (tile, n)
    }

    /// Returns the first column of a block, a multiple of [`LEAST_COLUMNS`]. The last block includes the
    /// remainder, so that no block has too few columns for panels.
    fn column(&self, block: usize) -> usize {
        if block < self.n_blocks {
            self.n_columns / LEAST_COLUMNS * block / self.n_blocks * LEAST_COLUMNS
        } else {
            self.n_columns
        }
    }
}

/// `N` matmuls of equal shape with the same few columns. Chunks are computed in the thread's scratch buffer,
/// so that another thread can steal them.
pub(super) struct SkinnyMatmul<'a, const N: usize> {
    pub(super) weights: [Source<'a>; N],
    pub(super) x: QuantizedRows<'a>,
    pub(super) n: usize,
}

/// Maximum number of results in a chunk of one skinny matmul.
pub(super) const SKINNY_MAX_RESULTS: usize = GATHER * MAX_PIECE;

impl<const N: usize> SkinnyMatmul<'_, N> {
    /// Computes the chunks that this thread takes, and calls `put` with the results of each chunk, column by
    /// column, and the row range. No other thread accesses these rows.
    pub(super) fn for_each_piece(
        &self,
        queue: &WorkQueue<'_>,
        scratch: &mut [f32],
        mut put: impl FnMut([&mut [f32]; N], Range<usize>),
    ) -> Result<(), Stolen> {
        let (results, scratch) = scratch.split_at_mut(N * SKINNY_MAX_RESULTS);
        let n_rows = self.weights[0].ne()[1];
        let most_rows = MAX_PIECE_OF_FEW.min(SKINNY_MAX_RESULTS / self.n.max(1));
        // Activations prepared for one weight type can be reused by all matmuls with that type.
        let are_alike = self.weights.iter().all(|w| w.tensor.ty == self.weights[0].tensor.ty);
        let mut reuse_prepared_x = false;
        while let Some(parts) = queue.take_some(n_rows.div_ceil(LEAST_ROWS), most_rows / LEAST_ROWS) {
            let rows = parts.start * LEAST_ROWS..n_rows.min(parts.end * LEAST_ROWS);
            for (w, out) in self.weights.iter().zip(results.chunks_exact_mut(SKINNY_MAX_RESULTS)) {
                let args = MatMul {
                    x: self.x.as_activations(self.x.span(0, self.n)),
                    n: self.n,
                    reuse_prepared_x,
                    ..weights(w, &rows, 0, 0)
                };
                let out = &mut out[..rows.len() * self.n];
                // SAFETY: `out` is in this thread's scratch buffer and holds `rows.len() * n` results.
                unsafe { matmul(&args, out.as_mut_ptr(), rows.len(), scratch) };
                reuse_prepared_x = are_alike;
            }
            queue.finish()?;
            let mut of_each = results.chunks_exact_mut(SKINNY_MAX_RESULTS);
            let of_each = std::array::from_fn(|_| &mut of_each.next().expect("there are N")[..rows.len() * self.n]);
            put(of_each, rows);
        }
        Ok(())
    }
}

/// Computes a matmul with few columns whose chunks can be stolen.
fn mul_mat_stealable(task: Task<'_>) -> Result<(), Stolen> {
    let target = task.target;
    let products = SkinnyMatmul {
        weights: [task.planned.memory.source(task.graph, 0)],
        x: task
            .activations
            .expect("only matmuls with quantized activations are stealable"),
        n: task.node.ne[1],
    };
    products.for_each_piece(task.queue, task.scratch, |[results], rows| {
        for (i, result) in results.chunks_exact(rows.len()).enumerate() {
            let out = target.tile(i, 1, rows.clone());
            // SAFETY: `Target::tile` checks the bounds. This thread took these rows of weights and `finish` reported
            // that no other thread has stolen them.
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), out, rows.len()) };
        }
    })
}

/// Computes a matmul with few columns and its sum, `task`, with `other`, which has one row or a row per
/// column.
pub(in crate::backend::cpu) fn matmul_add(
    task: Task<'_>,
    [w, other]: [Source<'_>; 2],
    x: QuantizedRows<'_>,
) -> Result<(), Stolen> {
    let ([m, n, ..], target) = (task.node.ne, task.target);
    let repeats = other.ne()[1];
    let product = SkinnyMatmul { weights: [w], x, n };
    product.for_each_piece(task.queue, task.scratch, |[results], rows| {
        for (i, result) in results.chunks_exact(rows.len()).enumerate() {
            // SAFETY: this thread took these rows of weights, and `finish` reported that no other thread has stolen
            // them. No other thread thus accesses these elements of the sum. The slice ends with the iteration. The
            // other operand does not overlap, or overlaps element by element, in which case `copy_floats` creates no
            // slice of it.
            let out = unsafe { target.part(i * m + rows.start..i * m + rows.end) };
            other.copy_floats(i % repeats * m + rows.start, out);
            add_in_place(out, result);
        }
    })
}

/// Computes a matmul by expert. Each expert multiplies all tokens routed to it at once, so that its weights
/// are read once.
pub(super) fn mul_mat_id(task: Task<'_>) -> Result<(), NodeExit> {
    let w = task.source(0);
    let experts = Experts {
        x: Operand::of(&task),
        ids: task.source(2),
        w: w.ne(),
        n_results: 1,
    };
    let (allow_reassociation, target) = (task.planned.allow_reassociation, task.target);
    experts.for_each_piece(task.queue, task.scratch, &mut |piece, x, results, scratch| {
        let args = MatMul {
            allow_reassociation,
            ..piece.product(&w, x)
        };
        let results = &mut results[..args.n * args.m];
        // SAFETY: `results` is in this thread's scratch buffer and holds `n * m` results.
        unsafe { matmul(&args, results.as_mut_ptr(), args.m, scratch) };
        // If the chunk may be stolen, a single call computes all of its results.
        task.queue.finish()?;
        for (&to, result) in piece.by.iter().zip(results.chunks_exact(args.m)) {
            let out = target.tile(to as usize, 1, piece.rows.clone());
            // SAFETY: `Target::tile` checks the bounds. This thread took these rows of the expert's weights and
            // `finish` reported that no other thread has stolen them.
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), out, args.m) };
        }
        Ok(())
    })
}

/// Matmuls of activations with the matrices of experts.
pub(super) struct Experts<'a> {
    pub(super) x: Operand<'a>,
    /// Expert ids per token, `[n_used, n_tokens]`.
    pub(super) ids: Source<'a>,
    /// Shape of the weights, `[k, m, n_expert]`.
    pub(super) w: [usize; 4],
    /// Number of results per activation row that the callback computes: 2 for a gated unit, otherwise 1.
    pub(super) n_results: usize,
}

/// Chunk of work: some rows of an expert's weights, and some of the tokens routed to the expert.
pub(super) struct ExpertPiece<'a> {
    expert: usize,
    pub(super) rows: Range<usize>,
    /// Result rows, sorted by expert.
    pub(super) by: &'a [u32],
}

impl ExpertPiece<'_> {
    /// Describes the matmul of `x` with this chunk's rows of the expert weights `w`.
    pub(super) fn product<'a>(&self, w: &Source<'a>, x: Activations<'a>) -> MatMul<'a> {
        MatMul {
            x,
            n: self.by.len(),
            ..weights(w, &self.rows, self.expert, 0)
        }
    }
}

/// Callback that computes a chunk from its activations, given memory for results and scratch memory.
type ForPiece<'f> = dyn FnMut(&ExpertPiece<'_>, Activations<'_>, &mut [f32], &mut [f32]) -> Result<(), Stolen> + 'f;

impl Experts<'_> {
    /// Calls `f` for each chunk that this thread takes.
    pub(super) fn for_each_piece(
        &self,
        queue: &WorkQueue<'_>,
        mut scratch: &mut [f32],
        f: &mut ForPiece<'_>,
    ) -> Result<(), NodeExit> {
        let ([_, n_rows, n_expert, _], [n_used, n_tokens, ..]) = (self.w, self.ids.ne());
        let by_expert = RowsByExpert::new(&mut scratch, &self.ids, n_expert)?;
        debug_assert_eq!(by_expert.list.len(), n_used * n_tokens);
        let most_columns = self.x.most_gathered(n_tokens);
        let pieces = if self.x.is_for_tiles() {
            Pieces::for_tiles(n_rows, n_expert.min(n_used * n_tokens), queue.nth)
        } else {
            Pieces::new(n_rows, queue.nth)
        };
        let results = take(&mut scratch, self.n_results * most_columns * pieces.each);
        let n_active = by_expert.active.len();
        while let Some(chunk) = queue.take(pieces.len() * n_active) {
            let (active, piece) = pieces.of_chunk(chunk, n_active, queue.has_shares());
            let (expert, rows) = (by_expert.active[active] as usize, pieces.rows(piece));
            let by = by_expert.of(expert);
            let row_of_x = |i: usize| {
                let (slot, token) = (by[i] as usize % n_used, by[i] as usize / n_used);
                [slot % self.x.ne[1], token, 0]
            };
            let mut done = Ok(());
            let gathered = &mut |from: usize, n: usize, x: Activations<'_>, scratch: &mut [f32]| {
                let piece = ExpertPiece {
                    expert,
                    rows: rows.clone(),
                    by: &by[from..from + n],
                };
                done = done.and_then(|()| f(&piece, x, results, scratch));
            };
            self.x.gather_and(by.len(), most_columns, row_of_x, scratch, gathered);
            done?;
        }
        Ok(())
    }
}

/// Division of the weight rows into chunks of work.
pub(in crate::backend::cpu) struct Pieces {
    n_rows: usize,
    each: usize,
}

impl Pieces {
    pub(in crate::backend::cpu) fn new(n_rows: usize, nth: usize) -> Pieces {
        let fair = n_rows.div_ceil(nth * PIECES).next_multiple_of(PANEL_ROWS);
        Pieces {
            n_rows,
            each: fair.clamp(PANEL_ROWS, MAX_PIECE),
        }
    }

    /// Divides `n_active` matrices for kernels that pack the weights for many columns. Chunks have the number
    /// of rows that the kernel multiplies together, or fewer if there would be too few chunks.
    fn for_tiles(n_rows: usize, n_active: usize, nth: usize) -> Pieces {
        let fair = (n_rows * n_active).div_ceil(nth * PIECES);
        Pieces {
            n_rows,
            each: fair.next_multiple_of(MIN_TILE_ROWS).clamp(MIN_TILE_ROWS, MAX_TILE_ROWS),
        }
    }

    pub(in crate::backend::cpu) fn len(&self) -> usize {
        self.n_rows.div_ceil(self.each)
    }

    pub(in crate::backend::cpu) fn rows(&self, piece: usize) -> Range<usize> {
        piece * self.each..self.n_rows.min((piece + 1) * self.each)
    }

    /// Returns the index of the matrix and of the piece for a chunk of the work on `n_matrices` matrices.
    ///
    /// If each thread has a share of the chunks, chunks with the same rows are consecutive. A thread then reads the
    /// same rows of all matrices, which are on its NUMA node. Otherwise, the chunks of a matrix are consecutive.
    pub(in crate::backend::cpu) fn of_chunk(
        &self,
        chunk: usize,
        n_matrices: usize,
        has_shares: bool,
    ) -> (usize, usize) {
        if has_shares {
            (chunk % n_matrices, chunk / n_matrices)
        } else {
            (chunk / self.len(), chunk % self.len())
        }
    }
}

/// Describes a matmul with some rows of weights, without activations.
pub(super) fn weights<'a>(w: &Source<'a>, rows: &Range<usize>, i2: usize, i3: usize) -> MatMul<'a> {
    let (bytes, layout) = if w.tensor.layout.is_plain() {
        let stride = w.tensor.nb[1];
        (
            w.span(1, [rows.start, i2, i3], rows.len()),
            WeightLayout::Rows { stride },
        )
    } else {
        let [_, m, n2, _] = w.ne();
        let first = rows.start + m * (i2 + n2 * i3);
        let layout = if w.tensor.layout.keeps_rows(w.tensor.ty) {
            WeightLayout::Rows { stride: w.tensor.nb[1] }
        } else {
            WeightLayout::Interleaved
        };
        (w.groups(first..first + rows.len()), layout)
    };
    MatMul {
        ty: w.tensor.ty,
        w: bytes,
        layout,
        m: rows.len(),
        k: w.tensor.ne[0],
        x: Activations::F32 { x: &[], stride: 0 },
        n: 0,
        allow_reassociation: false,
        reuse_prepared_x: false,
    }
}

/// The activations of a matmul.
pub(super) struct Operand<'a> {
    ne: [usize; 4],
    rows: Rows<'a>,
}

#[derive(Clone, Copy)]
enum Rows<'a> {
    Floats(Source<'a>),
    Quantization(QuantizedRows<'a>),
}

impl<'a> Operand<'a> {
    fn of(task: &Task<'a>) -> Operand<'a> {
        let x = task.source(1);
        Operand {
            ne: x.ne(),
            rows: task.activations.map_or(Rows::Floats(x), Rows::Quantization),
        }
    }

    /// Creates an operand of shape `ne` from quantized rows.
    pub(super) fn quantized(ne: [usize; 4], rows: QuantizedRows<'a>) -> Operand<'a> {
        Operand {
            ne,
            rows: Rows::Quantization(rows),
        }
    }

    fn is_for_tiles(&self) -> bool {
        matches!(&self.rows, Rows::Quantization(rows) if rows.is_for_tiles())
    }

    /// Returns the number of rows to gather at a time if no expert has more than `most`.
    fn most_gathered(&self, most: usize) -> usize {
        if self.is_for_tiles() {
            most.min(GATHER_FOR_TILES)
        } else {
            GATHER
        }
    }

    /// Returns `n` rows of dimension 1, starting at row `i`, or `None` if they must be copied first.
    fn span(&self, i: RowIndex, n: usize) -> Option<Activations<'a>> {
        match &self.rows {
            Rows::Floats(x) => {
                let (x, stride) = x.float_span(1, i, n)?;
                Some(Activations::F32 { x, stride })
            }
            Rows::Quantization(rows) => Some(rows.as_activations(rows.span(self.dense_row(i), n))),
        }
    }

    /// Gathers `n` rows into contiguous memory, at most `most` at a time.
    ///
    /// Calls `f` with the index of the first row, the number of rows, the rows, and scratch memory. A single
    /// row is not copied if it can be read in place.
    fn gather_and(
        &self,
        n: usize,
        most: usize,
        row: impl Fn(usize) -> RowIndex,
        scratch: &mut [f32],
        f: &mut impl FnMut(usize, usize, Activations<'_>, &mut [f32]),
    ) {
        if n == 1
            && let Some(x) = self.span(row(0), 1)
        {
            return f(0, 1, x, scratch);
        }
        let k = self.ne[0];
        let floats = match &self.rows {
            Rows::Floats(_) => k,
            Rows::Quantization(rows) => rows.stride / size_of::<f32>(),
        };
        let (gathered, rest) = scratch.split_at_mut(most * floats);
        for from in (0..n).step_by(most) {
            let n = most.min(n - from);
            for (i, out) in gathered.chunks_exact_mut(floats).take(n).enumerate() {
                let i = row(from + i);
                match &self.rows {
                    Rows::Floats(x) => x.copy_row(i, out),
                    Rows::Quantization(rows) => {
                        bytemuck::cast_slice_mut(out).copy_from_slice(rows.span(self.dense_row(i), 1));
                    }
                }
            }
            let gathered = &gathered[..n * floats];
            let x = match &self.rows {
                Rows::Floats(_) => Activations::F32 { x: gathered, stride: k },
                Rows::Quantization(rows) => rows.as_activations(bytemuck::cast_slice(gathered)),
            };
            f(from, n, x, rest);
        }
    }

    /// Returns the index of a row, numbered as if the rows were contiguous.
    fn dense_row(&self, [i1, i2, i3]: RowIndex) -> usize {
        i1 + self.ne[1] * (i2 + self.ne[2] * i3)
    }
}

/// Result rows grouped by expert (counting sort).
struct RowsByExpert<'a> {
    /// Start of each expert's rows in the list, and the end of the list.
    starts: &'a [u32],
    list: &'a [u32],
    /// Experts with at least one row, in ascending order.
    active: &'a [u32],
}

impl<'a> RowsByExpert<'a> {
    /// Sorts the result rows by expert.
    fn new(scratch: &mut &'a mut [f32], ids: &Source<'_>, n_expert: usize) -> Result<RowsByExpert<'a>, KernelError> {
        let [n_used, n_tokens, ..] = ids.ne();
        let starts: &mut [u32] = bytemuck::cast_slice_mut(take(scratch, n_expert + 1));
        let list: &mut [u32] = bytemuck::cast_slice_mut(take(scratch, n_used * n_tokens));
        let expert = |i: usize| row_number(ids.i32([i % n_used, i / n_used, 0, 0]), n_expert);
        starts.fill(0);
        for i in 0..list.len() {
            starts[expert(i)?] += 1;
        }
        let mut end = 0;
        for start in starts.iter_mut() {
            end += *start;
            *start = end;
        }
        // Filling each expert's range from its end moves `starts` from the end of the range to its start.
        for i in (0..list.len()).rev() {
            let next = &mut starts[expert(i)?];
            *next -= 1;
            list[*next as usize] = i as u32;
        }
        let is_active = |&expert: &usize| starts[expert] < starts[expert + 1];
        let active: &mut [u32] = bytemuck::cast_slice_mut(take(scratch, (0..n_expert).filter(is_active).count()));
        for (active, expert) in active.iter_mut().zip((0..n_expert).filter(is_active)) {
            *active = expert as u32;
        }
        Ok(RowsByExpert { starts, list, active })
    }

    fn of(&self, expert: usize) -> &'a [u32] {
        &self.list[self.starts[expert] as usize..self.starts[expert + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_result_once_and_have_enough_columns() {
        for (n_rows, n_columns, for_tiles) in [
            (1, 1, false),
            (40, 8, false),
            (200, 63, false),
            (200, 127, false),
            (200, 128, false),
            (576, 517, false),
            (64, 200, false),
            (16, 32, true),
            (600, 517, true),
            (70, 1281, true),
            (40, 4000, true),
        ] {
            let grid = Grid::new(n_rows, n_columns, for_tiles);
            for most in 1..=grid.most() {
                let mut covered = vec![0; n_rows * n_columns];
                for start in (0..grid.len()).step_by(most) {
                    for tile in grid.tiles(start..grid.len().min(start + most)) {
                        assert!(tile.rows.len() <= grid.most_rows);
                        assert!(tile.columns.len() >= LEAST_COLUMNS.min(n_columns));
                        for row in tile.rows {
                            let cells = &mut covered[row * n_columns..][tile.columns.clone()];
                            cells.iter_mut().for_each(|n| *n += 1);
                        }
                    }
                }
                assert!(
                    covered.iter().all(|&n| n == 1),
                    "{n_rows} x {n_columns}, at most {most} chunks at a time"
                );
            }
        }
    }
}
