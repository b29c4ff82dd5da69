//! Matrix products, plain and by expert. Threads share the rows of the weights.

use std::ops::Range;

use kernels::rows::add_in_place;
use kernels::{Activations, LEAST_TILE_ROWS, MOST_TILE_ROWS, MatMul, PANEL_ROWS, WeightLayout, matmul, matmul_scratch};

use super::{Fault, Need, Stop, Task, row_number};
use crate::backend::cpu::activations::{QuantizedRows, row_floats, tile_row_floats};
use crate::backend::cpu::ahead::Weights;
use crate::backend::cpu::queue::{TakenOver, WorkQueue};
use crate::backend::cpu::scratch::take;
use crate::backend::cpu::view::{PlannedNode, RowIndex, Source};
use crate::graph::{Graph, Op, Tensor};

/// Activation rows that are gathered at a time where they are not contiguous.
const GATHER: usize = 32;

/// The same of rows for tiles: preparing weights for 32 of them would take longer than multiplying.
const GATHER_FOR_TILES: usize = 256;

/// Most rows of weights in a piece of work.
const MAX_PIECE: usize = 64;

/// The same of a product with few columns, whose results need little memory: the kernel reads long pieces as two streams, faster than one.
const MAX_PIECE_OF_FEW: usize = 256;

/// Pieces of work per thread and expert: enough that nobody waits long for the last one, also where cores differ in speed.
const PIECES: usize = 6;

/// Rows of weights in the smallest piece of work: a panel, or two groups of rows, which take as long as one.
const LEAST_ROWS: usize = PANEL_ROWS;

/// Columns in the smallest piece of work of a product with many: enough to pay for unpacking weights once more.
pub(super) const LEAST_COLUMNS: usize = 64;

/// Columns, about, that are multiplied with weights by tiles at a time: with 2048 elements they are a megabyte.
const TILE_COLUMNS: usize = 256;

/// Gathered activations, results to be scattered, the kernel's own, and the list of who wants which expert.
pub(super) fn need(graph: &Graph, node: &Tensor) -> Need {
    let x = graph.tensor(node.source(1));
    let k = x.ne[0];
    let n_results = node.ne[1] * node.ne[2];
    let few = GATHER * (row_floats(k) + MAX_PIECE);
    let for_tiles = match node.op {
        Op::MulMatId => node.ne[2].min(GATHER_FOR_TILES) * tile_row_floats(k) + results_by_experts(node),
        _ => 0,
    };
    let scratch = few.max(for_tiles) + matmul_scratch(k, x.nrows().max(GATHER));
    Need {
        per_thread: scratch + 2 * n_results + graph.tensor(node.source(0)).ne[2] + 1,
        shared: 0,
    }
}

/// Results of one piece of a product by experts, in any form.
pub(super) fn results_by_experts(node: &Tensor) -> usize {
    (node.ne[2].min(GATHER_FOR_TILES) * MOST_TILE_ROWS).max(GATHER * MAX_PIECE)
}

/// True if a product of one matrix has so few columns that its pieces are computed in a thread's own memory first, if its activations are there too.
pub(super) fn is_of_few(graph: &Graph, node: &Tensor) -> bool {
    let x = graph.tensor(node.source(1));
    node.op == Op::MulMat && x.nrows() == x.ne[1] && x.ne[1] <= GATHER
}

/// True if the pieces of a product with quantized activations are computed in a thread's own memory first, if those are there too.
pub(super) fn can_offer(graph: &Graph, node: &Tensor) -> bool {
    match node.op {
        Op::MulMat => is_of_few(graph, node),
        Op::MulMatId => node.ne[1] * node.ne[2] <= GATHER,
        _ => false,
    }
}

/// The weights of a product with one matrix, in the pieces that threads take.
pub(super) fn weights_ahead(graph: &Graph, product: &PlannedNode) -> Weights {
    let w = product.source(graph, 0);
    let n_rows = w.ne()[1];
    Weights {
        start: w.address(),
        piece: w.tensor.nbytes() / n_rows * LEAST_ROWS,
        n_pieces: n_rows.div_ceil(LEAST_ROWS),
    }
}

pub(super) fn mul_mat(task: Task<'_>) -> Result<(), TakenOver> {
    if task.planned.offers {
        return mul_mat_offering(task);
    }
    let (w, x, target) = (task.source(0), Operand::of(&task), task.target);
    let [_, n, c2, c3] = x.ne;
    let any_order = task.planned.any_order;
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
                    any_order,
                    ..weights
                };
                // SAFETY: `tile` says that the part of the result is there. No other thread takes these rows of weights with these columns,
                // hence nobody else writes it; operands do not overlap the result (see `PlannedNode::new`).
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

/// How a result is cut into pieces of work: into blocks of rows of weights and, if columns are many, into blocks of columns.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    n_rows: usize,
    n_columns: usize,
    /// Rows in a block.
    rows: usize,
    /// Blocks of columns.
    n_blocks: usize,
    /// Most rows that a thread takes at a time.
    most_rows: usize,
    /// Whether pieces that follow each other have the same columns, else the same rows.
    by_columns: bool,
}

/// A part of a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tile {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

impl Grid {
    /// With activations `for_tiles` a thread goes through the weights with some columns that stay in its second-level cache, whereas weights are packed beside
    /// the multiplying at little cost. Else it goes through the columns with some rows.
    pub(super) fn new(n_rows: usize, n_columns: usize, for_tiles: bool) -> Grid {
        if for_tiles {
            let n_blocks = ((n_columns + TILE_COLUMNS / 2) / TILE_COLUMNS).max(1);
            return Grid {
                n_rows,
                n_columns,
                rows: LEAST_TILE_ROWS,
                n_blocks,
                most_rows: MOST_TILE_ROWS,
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

    /// The same with fewer rows at a time, at least one block.
    pub(super) fn with_most_rows(self, most: usize) -> Grid {
        let most_rows = self.most_rows.min(most).max(self.rows);
        Grid { most_rows, ..self }
    }

    /// Pieces that there are.
    pub(super) fn len(&self) -> usize {
        self.n_rows.div_ceil(self.rows) * self.n_blocks
    }

    /// Most pieces to be taken at a time: as many rows as are multiplied together.
    pub(super) fn most(&self) -> usize {
        let rows = self.most_rows / self.rows;
        if self.by_columns { rows } else { rows * self.n_blocks }
    }

    /// The tiles that pieces are which follow each other.
    pub(super) fn tiles(self, pieces: Range<usize>) -> impl Iterator<Item = Tile> {
        let mut next = pieces.start;
        std::iter::from_fn(move || {
            (next < pieces.end).then(|| {
                let (tile, n) = self.tile(next..pieces.end);
                next += n;
                tile
            })
        })
    }

    /// The tile that the first of some pieces make, and how many they are.
    fn tile(&self, pieces: Range<usize>) -> (Tile, usize) {
        // The blocks of rows and of columns that pieces have, of which those in a row of pieces follow each other.
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

    /// Where a block of columns begins: at a multiple of [`LEAST_COLUMNS`]. The last one has what is left over, so that none has too few columns for panels.
    fn column(&self, block: usize) -> usize {
        if block < self.n_blocks {
            self.n_columns / LEAST_COLUMNS * block / self.n_blocks * LEAST_COLUMNS
        } else {
            self.n_columns
        }
    }
}

/// Products of matrices of one size with the same few columns: their pieces are computed in the thread's own memory, so that another thread may take them over.
pub(super) struct OfFew<'a, const N: usize> {
    pub(super) weights: [Source<'a>; N],
    pub(super) x: QuantizedRows<'a>,
    pub(super) n: usize,
}

/// Results of a piece of one product with few columns.
pub(super) const RESULTS_OF_FEW: usize = GATHER * MAX_PIECE;

impl<const N: usize> OfFew<'_, N> {
    /// Calls `put` with the results of each piece that this thread takes, column by column, and their rows. Nobody else has these rows then.
    pub(super) fn for_each_piece(
        &self,
        queue: &WorkQueue<'_>,
        scratch: &mut [f32],
        mut put: impl FnMut([&mut [f32]; N], Range<usize>),
    ) -> Result<(), TakenOver> {
        let (results, scratch) = scratch.split_at_mut(N * RESULTS_OF_FEW);
        let n_rows = self.weights[0].ne()[1];
        let most_rows = MAX_PIECE_OF_FEW.min(RESULTS_OF_FEW / self.n.max(1));
        // What was prepared of activations for one type serves all products with it.
        let are_alike = self.weights.iter().all(|w| w.tensor.ty == self.weights[0].tensor.ty);
        let mut again = false;
        while let Some(parts) = queue.take_some(n_rows.div_ceil(LEAST_ROWS), most_rows / LEAST_ROWS) {
            let rows = parts.start * LEAST_ROWS..n_rows.min(parts.end * LEAST_ROWS);
            for (w, out) in self.weights.iter().zip(results.chunks_exact_mut(RESULTS_OF_FEW)) {
                let args = MatMul {
                    x: self.x.as_activations(self.x.span(0, self.n)),
                    n: self.n,
                    again,
                    ..weights(w, &rows, 0, 0)
                };
                let out = &mut out[..rows.len() * self.n];
                // SAFETY: the results are this thread's own and as many as there are products.
                unsafe { matmul(&args, out.as_mut_ptr(), rows.len(), scratch) };
                again = are_alike;
            }
            queue.finish()?;
            let mut of_each = results.chunks_exact_mut(RESULTS_OF_FEW);
            let of_each = std::array::from_fn(|_| &mut of_each.next().expect("there are N")[..rows.len() * self.n]);
            put(of_each, rows);
        }
        Ok(())
    }
}

/// A product with few columns.
fn mul_mat_offering(task: Task<'_>) -> Result<(), TakenOver> {
    let target = task.target;
    let products = OfFew {
        weights: [task.planned.source(task.graph, 0)],
        x: task.activations.expect("what is offered is quantized"),
        n: task.node.ne[1],
    };
    products.for_each_piece(task.queue, task.scratch, |[results], rows| {
        for (i, result) in results.chunks_exact(rows.len()).enumerate() {
            let out = target.tile(i, 1, rows.clone());
            // SAFETY: `tile` says that the columns are there; nobody else writes them, since this thread took these rows of weights and
            // nobody took them over.
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), out, rows.len()) };
        }
    })
}

/// A product with few columns and its sum, `task`, with `other`, whose rows are as many or one.
pub(in crate::backend::cpu) fn product_add(
    task: Task<'_>,
    [w, other]: [Source<'_>; 2],
    x: QuantizedRows<'_>,
) -> Result<(), TakenOver> {
    let ([m, n, ..], target) = (task.node.ne, task.target);
    let repeats = other.ne()[1];
    let product = OfFew { weights: [w], x, n };
    product.for_each_piece(task.queue, task.scratch, |[results], rows| {
        for (i, result) in results.chunks_exact(rows.len()).enumerate() {
            // SAFETY: nobody else has these elements of the sum, since this thread took these rows of weights and nobody took them over; the slice
            // ends with the turn. The other operand lies elsewhere or, element by element, in the same place, where `copy_floats` makes no slice of it.
            let out = unsafe { target.part(i * m + rows.start..i * m + rows.end) };
            other.copy_floats(i % repeats * m + rows.start, out);
            add_in_place(out, result);
        }
    })
}

/// Each expert multiplies all tokens routed to it at once, so that its weights are read once.
pub(super) fn mul_mat_id(task: Task<'_>) -> Result<(), Stop> {
    let w = task.source(0);
    let experts = Experts {
        x: Operand::of(&task),
        ids: task.source(2),
        w: w.ne(),
        n_results: 1,
    };
    let (any_order, target) = (task.planned.any_order, task.target);
    experts.for_each_piece(task.queue, task.scratch, &mut |piece, x, results, scratch| {
        let args = MatMul {
            any_order,
            ..piece.product(&w, x)
        };
        let results = &mut results[..args.n * args.m];
        // SAFETY: the results are this thread's own and as many as there are products.
        unsafe { matmul(&args, results.as_mut_ptr(), args.m, scratch) };
        // If the piece may be taken over, all of its products are computed in one go.
        task.queue.finish()?;
        for (&to, result) in piece.by.iter().zip(results.chunks_exact(args.m)) {
            let out = target.tile(to as usize, 1, piece.rows.clone());
            // SAFETY: `tile` says that the columns are there; nobody else writes them, since this thread took these rows of
            // this expert's weights and nobody took them over.
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), out, args.m) };
        }
        Ok(())
    })
}

/// Products of activations with the matrices of experts.
pub(super) struct Experts<'a> {
    pub(super) x: Operand<'a>,
    /// Which experts each token wants.
    pub(super) ids: Source<'a>,
    /// Sizes of the weights.
    pub(super) w: [usize; 4],
    /// How many results the function for pieces makes of each activation.
    pub(super) n_results: usize,
}

/// Some rows of an expert's weights, and some of those who want it.
pub(super) struct ExpertPiece<'a> {
    expert: usize,
    pub(super) rows: Range<usize>,
    /// Rows of the result.
    pub(super) by: &'a [u32],
}

impl ExpertPiece<'_> {
    /// The product with the weights of all experts of which one is meant.
    pub(super) fn product<'a>(&self, w: &Source<'a>, x: Activations<'a>) -> MatMul<'a> {
        MatMul {
            x,
            n: self.by.len(),
            ..weights(w, &self.rows, self.expert, 0)
        }
    }
}

/// What is done with a piece, its activations, memory for results and scratch memory.
type ForPiece<'f> = dyn FnMut(&ExpertPiece<'_>, Activations<'_>, &mut [f32], &mut [f32]) -> Result<(), TakenOver> + 'f;

impl Experts<'_> {
    /// Calls `f` with the pieces that this thread takes.
    pub(super) fn for_each_piece(
        &self,
        queue: &WorkQueue<'_>,
        mut scratch: &mut [f32],
        f: &mut ForPiece<'_>,
    ) -> Result<(), Stop> {
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
        while let Some(piece) = queue.take(pieces.len() * n_expert) {
            let (expert, rows) = (piece / pieces.len(), pieces.rows(piece % pieces.len()));
            let by = by_expert.of(expert);
            if by.is_empty() {
                queue.finish()?;
                continue;
            }
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

/// The rows of weights in pieces of work.
struct Pieces {
    n_rows: usize,
    each: usize,
}

impl Pieces {
    fn new(n_rows: usize, nth: usize) -> Pieces {
        let fair = n_rows.div_ceil(nth * PIECES).next_multiple_of(PANEL_ROWS);
        Pieces {
            n_rows,
            each: fair.clamp(PANEL_ROWS, MAX_PIECE),
        }
    }

    /// Of each of `n_active` matrices, for products whose weights are prepared for many columns: as many rows as are multiplied together, if that leaves
    /// enough pieces.
    fn for_tiles(n_rows: usize, n_active: usize, nth: usize) -> Pieces {
        let fair = (n_rows * n_active).div_ceil(nth * PIECES);
        Pieces {
            n_rows,
            each: fair
                .next_multiple_of(LEAST_TILE_ROWS)
                .clamp(LEAST_TILE_ROWS, MOST_TILE_ROWS),
        }
    }

    fn len(&self) -> usize {
        self.n_rows.div_ceil(self.each)
    }

    fn rows(&self, piece: usize) -> Range<usize> {
        piece * self.each..self.n_rows.min((piece + 1) * self.each)
    }
}

/// A product of some rows of weights, without activations yet.
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
        (w.groups(first..first + rows.len()), WeightLayout::Interleaved)
    };
    MatMul {
        ty: w.tensor.ty,
        w: bytes,
        layout,
        m: rows.len(),
        k: w.tensor.ne[0],
        x: Activations::F32 { x: &[], stride: 0 },
        n: 0,
        any_order: false,
        again: false,
    }
}

/// The activations of a product.
pub(super) struct Operand<'a> {
    ne: [usize; 4],
    rows: Rows<'a>,
}

#[derive(Clone, Copy)]
enum Rows<'a> {
    Floats(Source<'a>),
    Quantized(QuantizedRows<'a>),
}

impl<'a> Operand<'a> {
    fn of(task: &Task<'a>) -> Operand<'a> {
        let x = task.source(1);
        Operand {
            ne: x.ne(),
            rows: task.activations.map_or(Rows::Floats(x), Rows::Quantized),
        }
    }

    /// Quantized rows of an operand with these sizes.
    pub(super) fn quantized(ne: [usize; 4], rows: QuantizedRows<'a>) -> Operand<'a> {
        Operand {
            ne,
            rows: Rows::Quantized(rows),
        }
    }

    fn is_for_tiles(&self) -> bool {
        matches!(&self.rows, Rows::Quantized(rows) if rows.is_for_tiles())
    }

    /// Rows that are gathered at a time, of which no expert has more than `most`.
    fn most_gathered(&self, most: usize) -> usize {
        if self.is_for_tiles() {
            most.min(GATHER_FOR_TILES)
        } else {
            GATHER
        }
    }

    /// `n` rows of dimension 1 from `i` on, if they can be used where they are.
    fn span(&self, i: RowIndex, n: usize) -> Option<Activations<'a>> {
        match &self.rows {
            Rows::Floats(x) => {
                let (x, stride) = x.float_span(1, i, n)?;
                Some(Activations::F32 { x, stride })
            }
            Rows::Quantized(rows) => Some(rows.as_activations(rows.span(self.dense_row(i), n))),
        }
    }

    /// Calls `f` with copies of `n` rows that lie one after the other, `most` at a time: the first and the number of them, the rows, and
    /// scratch memory. A single row is not copied if it can be used where it is.
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
            Rows::Quantized(rows) => rows.stride / size_of::<f32>(),
        };
        let (gathered, rest) = scratch.split_at_mut(most * floats);
        for from in (0..n).step_by(most) {
            let n = most.min(n - from);
            for (i, out) in gathered.chunks_exact_mut(floats).take(n).enumerate() {
                let i = row(from + i);
                match &self.rows {
                    Rows::Floats(x) => x.copy_row(i, out),
                    Rows::Quantized(rows) => {
                        bytemuck::cast_slice_mut(out).copy_from_slice(rows.span(self.dense_row(i), 1));
                    }
                }
            }
            let gathered = &gathered[..n * floats];
            let x = match &self.rows {
                Rows::Floats(_) => Activations::F32 { x: gathered, stride: k },
                Rows::Quantized(rows) => rows.as_activations(bytemuck::cast_slice(gathered)),
            };
            f(from, n, x, rest);
        }
    }

    /// The number of a row, counted as if rows were dense.
    fn dense_row(&self, [i1, i2, i3]: RowIndex) -> usize {
        i1 + self.ne[1] * (i2 + self.ne[2] * i3)
    }
}

/// Result rows grouped by expert (counting sort).
struct RowsByExpert<'a> {
    /// Where the rows of each expert start in the list, and the end.
    starts: &'a [u32],
    list: &'a [u32],
}

impl<'a> RowsByExpert<'a> {
    /// Sorts by counting.
    fn new(scratch: &mut &'a mut [f32], ids: &Source<'_>, n_expert: usize) -> Result<RowsByExpert<'a>, Fault> {
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
        // Filling each expert's part from its end moves the number from the part's end to its start.
        for i in (0..list.len()).rev() {
            let next = &mut starts[expert(i)?];
            *next -= 1;
            list[*next as usize] = i as u32;
        }
        Ok(RowsByExpert { starts, list })
    }

    fn of(&self, expert: usize) -> &'a [u32] {
        &self.list[self.starts[expert] as usize..self.starts[expert + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_a_result_once_and_none_has_few_columns() {
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
                    "{n_rows} x {n_columns}, {most} pieces at a time"
                );
            }
        }
    }
}
