//! Matrix products, plain and by expert. Threads share the rows of the weights.

use kernels::{Activations, MatMul, matmul, matmul_scratch};

use super::{Fault, Need, Task, row_number};
use crate::backend::cpu::scratch::take;
use crate::backend::cpu::view::{RowIndex, Source, Target};
use crate::graph::{Graph, Tensor};

/// Activation rows that are gathered at a time where they are not contiguous.
const GATHER: usize = 32;

/// Most rows of weights in a piece of work.
const MAX_PIECE: usize = 64;

/// Pieces of work per thread: enough that nobody waits long for the last one, also where cores differ in speed.
const PIECES: usize = 6;

/// Gathered activations, results to be scattered, the kernel's own, and the list of who wants which expert.
pub(super) fn need(graph: &Graph, node: &Tensor) -> Need {
    let x = graph.tensor(node.source(1));
    let k = x.ne[0];
    let n_wanted = node.ne[1] * node.ne[2];
    let scratch = GATHER * k + GATHER * MAX_PIECE + matmul_scratch(k, x.nrows().max(GATHER));
    Need {
        per_thread: scratch + 2 * n_wanted + graph.tensor(node.source(0)).ne[2] + 1,
        shared: 0,
    }
}

pub(super) fn mul_mat(task: Task<'_>) {
    let (w, x, target) = (task.source(0), task.source(1), task.target);
    let [_, n, c2, c3] = x.ne();
    let (group2, group3) = (c2 / w.ne()[2], c3 / w.ne()[3]);
    let pieces = Pieces::new(w.ne()[1], task.worker.nth);
    while let Some(piece) = task.queue.take(pieces.len()) {
        let rows = pieces.rows(piece);
        for (i2, i3) in (0..c3).flat_map(|i3| (0..c2).map(move |i2| (i2, i3))) {
            let weights = weights(&w, &rows, i2 / group2, i3 / group3);
            let first = n * (i2 + c2 * i3);
            let mut multiply = |from: usize, n: usize, x: &[f32], x_stride: usize, scratch: &mut [f32]| {
                let out = target.tile(first + from, n, rows.clone());
                let args = MatMul {
                    x: Activations::F32 { x, stride: x_stride },
                    n,
                    ..weights
                };
                // SAFETY: `tile` says that the part of the result is there. No other thread takes these rows of weights, hence
                // nobody else writes these columns; operands do not overlap the result (see `PlannedNode::new`).
                unsafe { matmul(&args, out, target.tensor.ne[0], scratch) };
            };
            if let Some((floats, stride)) = x.float_span(1, [0, i2, i3], n) {
                multiply(0, n, floats, stride, task.scratch);
            } else {
                gather_and(&x, n, |i| [i, i2, i3], task.scratch, &mut multiply);
            }
        }
    }
}

/// Each expert multiplies all tokens routed to it at once, so that its weights are read once.
pub(super) fn mul_mat_id(task: Task<'_>) -> Result<(), Fault> {
    let (w, x, ids, target) = (task.source(0), task.source(1), task.source(2), task.target);
    let [n_used, n_tokens, ..] = ids.ne();
    let n_expert = w.ne()[2];
    let mut scratch = task.scratch;
    let wanted = Wanted::new(&mut scratch, &ids, n_expert)?;
    let slots_of_x = x.ne()[1];
    let pieces = Pieces::new(w.ne()[1], task.worker.nth);
    let mut results = Scatter::new(&target, take(&mut scratch, GATHER * MAX_PIECE));
    debug_assert_eq!(wanted.list.len(), n_used * n_tokens);

    while let Some(piece) = task.queue.take(pieces.len() * n_expert) {
        let (expert, rows) = (piece / pieces.len(), pieces.rows(piece % pieces.len()));
        let by = wanted.by(expert);
        let weights = weights(&w, &rows, expert, 0);
        let row_of_x = |i: usize| {
            let (slot, token) = (by[i] as usize % n_used, by[i] as usize / n_used);
            [slot % slots_of_x, token, 0]
        };
        gather_and(&x, by.len(), row_of_x, scratch, &mut |from, n, x, x_stride, scratch| {
            let args = MatMul {
                x: Activations::F32 { x, stride: x_stride },
                n,
                ..weights
            };
            results.multiply(&args, &by[from..from + n], &rows, scratch);
        });
    }
    Ok(())
}

/// The rows of weights in pieces of work.
struct Pieces {
    n_rows: usize,
    each: usize,
}

impl Pieces {
    fn new(n_rows: usize, nth: usize) -> Pieces {
        let fair = n_rows.div_ceil(nth * PIECES).next_multiple_of(8);
        Pieces {
            n_rows,
            each: fair.clamp(8, MAX_PIECE),
        }
    }

    fn len(&self) -> usize {
        self.n_rows.div_ceil(self.each)
    }

    fn rows(&self, piece: usize) -> std::ops::Range<usize> {
        piece * self.each..self.n_rows.min((piece + 1) * self.each)
    }
}

/// A product of some rows of weights, without activations yet.
fn weights<'a>(w: &Source<'a>, rows: &std::ops::Range<usize>, i2: usize, i3: usize) -> MatMul<'a> {
    MatMul {
        ty: w.tensor.ty,
        w: w.span(1, [rows.start, i2, i3], rows.len()),
        row_stride: w.tensor.nb[1],
        m: rows.len(),
        k: w.tensor.ne[0],
        x: Activations::F32 { x: &[], stride: 0 },
        n: 0,
    }
}

/// Calls `f` with dense copies of `n` rows of activations, some at a time: the first and the number of them, the floats, their stride
/// and scratch memory. A single row that is dense already is not copied.
fn gather_and(
    x: &Source<'_>,
    n: usize,
    row: impl Fn(usize) -> RowIndex,
    scratch: &mut [f32],
    f: &mut impl FnMut(usize, usize, &[f32], usize, &mut [f32]),
) {
    let k = x.ne()[0];
    if n == 1
        && let Some(floats) = x.float_row(row(0))
    {
        return f(0, 1, floats, k, scratch);
    }
    let (gathered, rest) = scratch.split_at_mut(GATHER * k);
    for from in (0..n).step_by(GATHER) {
        let n = GATHER.min(n - from);
        for (i, out) in gathered.chunks_exact_mut(k).take(n).enumerate() {
            x.copy_row(row(from + i), out);
        }
        f(from, n, &gathered[..n * k], k, rest);
    }
}

/// Result rows grouped by expert (counting sort).
struct Wanted<'a> {
    /// Where the rows of each expert start in the list, and the end.
    starts: &'a [u32],
    list: &'a [u32],
}

impl<'a> Wanted<'a> {
    /// Sorts by counting.
    fn new(scratch: &mut &'a mut [f32], ids: &Source<'_>, n_expert: usize) -> Result<Wanted<'a>, Fault> {
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
        Ok(Wanted { starts, list })
    }

    fn by(&self, expert: usize) -> &'a [u32] {
        &self.list[self.starts[expert] as usize..self.starts[expert + 1] as usize]
    }
}

/// Products whose result rows are not contiguous.
struct Scatter<'a> {
    target: &'a Target<'a>,
    results: &'a mut [f32],
}

impl<'a> Scatter<'a> {
    fn new(target: &'a Target<'a>, results: &'a mut [f32]) -> Scatter<'a> {
        Scatter { target, results }
    }

    /// Multiplies and writes the results to columns `rows` of the target's rows `to`.
    fn multiply(&mut self, args: &MatMul<'_>, to: &[u32], rows: &std::ops::Range<usize>, scratch: &mut [f32]) {
        let m = args.m;
        let results = &mut self.results[..args.n * m];
        // SAFETY: the results are this thread's own and as many as there are products.
        unsafe { matmul(args, results.as_mut_ptr(), m, scratch) };
        for (&to, result) in to.iter().zip(results.chunks_exact(m)) {
            let out = self.target.tile(to as usize, 1, rows.clone());
            // SAFETY: `tile` says that the columns are there; nobody else writes them, since no other thread takes these rows of
            // this expert's weights.
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), out, m) };
        }
    }
}
