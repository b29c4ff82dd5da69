//! The gated half of a feed-forward layer: two products of the same activations, and the activation function of one times the other.
//!
//! Of a model of a billion weights with a ubatch of 512 tokens each product has 16 MiB of results. Here they are used where they are computed, in a thread's own memory, some rows of the
//! weights at a time, so that caches need not fetch 32 MiB to write them, and again to read them. Tokens of an expert are gathered once for both. With few tokens
//! it saves a barrier.

use std::ops::Range;

use kernels::{MatMul, matmul, matmul_scratch};

use super::elementwise::{glu_in_place, glu_of};
use super::mul_mat::{self, Experts, Grid, LEAST_COLUMNS, OfFew, Operand, RESULTS_OF_FEW, Tile, weights};
use super::{Need, Stop, Task};
use crate::backend::cpu::activations::{Quantized, QuantizedRows};
use crate::backend::cpu::queue::WorkQueue;
use crate::backend::cpu::scratch::take;
use crate::backend::cpu::view::{Source, Target};
use crate::graph::{Graph, Op, Tensor, Unary};

/// Most rows of weights whose products wait in a thread's own memory.
const MOST_ROWS: usize = 128;

/// Columns of these, where there are as many and enough for another time: a few columns are multiplied in another way than many, and how they are must not depend on
/// the piece that a thread has taken.
const COLUMNS: usize = 512;

/// Most columns of these.
const MOST_COLUMNS: usize = COLUMNS + LEAST_COLUMNS - 1;

/// The products of the same activations.
pub(in crate::backend::cpu) struct Products<'a> {
    /// Weights `[k, m]`, or of experts `[k, m, n_expert]`.
    pub(in crate::backend::cpu) gate: Source<'a>,
    /// Weights as large.
    pub(in crate::backend::cpu) up: Source<'a>,
    /// Rows of `k` activations.
    pub(in crate::backend::cpu) x: QuantizedRows<'a>,
    /// The columns are few and of one matrix, in the thread's own memory.
    pub(in crate::backend::cpu) is_of_few: bool,
    /// Sizes of the activations.
    pub(in crate::backend::cpu) x_ne: [usize; 4],
    /// Which experts each token wants, if there are any.
    pub(in crate::backend::cpu) ids: Option<Source<'a>>,
}

impl Products<'_> {
    /// Whether what is prepared of activations for one product serves the other, see [`MatMul::again`].
    fn are_alike(&self) -> bool {
        self.gate.tensor.ty == self.up.tensor.ty
    }
}

/// Two pieces of results, and what products need, of which `product` is one.
pub(super) fn need(graph: &Graph, product: &Tensor) -> Need {
    if product.op == Op::MulMatId {
        let of_one = mul_mat::need(graph, product);
        return Need {
            per_thread: of_one.per_thread + mul_mat::results_by_experts(product),
            ..of_one
        };
    }
    let (k, n) = (graph.tensor(product.source(1)).ne[0], product.ne[1]);
    Need {
        per_thread: (2 * MOST_ROWS * n.min(MOST_COLUMNS)).max(2 * RESULTS_OF_FEW)
            + matmul_scratch(k, n.min(MOST_COLUMNS)),
        shared: 0,
    }
}

/// `f(gate x) (up x)`, by pieces.
pub(in crate::backend::cpu) fn products_glu(task: Task<'_>, products: &Products<'_>, f: Unary) -> Result<(), Stop> {
    let [m, n, ..] = task.node.ne;
    let out = Results {
        target: task.target,
        stores: task.planned.stores,
    };
    if let Some(ids) = products.ids {
        return experts_glu(task.queue, task.scratch, products, ids, f, &out);
    }
    if products.is_of_few {
        return few_glu(task.queue, task.scratch, products, f, &out, n);
    }
    let grid = Grid::new(m, n, products.x.is_for_tiles()).with_most_rows(MOST_ROWS);
    let mut scratch = task.scratch;
    let room = MOST_ROWS * n.min(MOST_COLUMNS);
    let (gate, up) = (take(&mut scratch, room), take(&mut scratch, room));
    let (are_alike, mut last) = (products.are_alike(), None);
    while let Some(pieces) = task.queue.take_some(grid.len(), grid.most()) {
        for Tile { rows, columns } in grid.tiles(pieces) {
            for columns in some_at_a_time(columns) {
                let x = Columns {
                    x: &products.x,
                    again: last.replace(columns.clone()) == Some(columns.clone()) && are_alike,
                    columns: columns.clone(),
                };
                multiply(&products.gate, &rows, &x, gate, scratch);
                multiply(&products.up, &rows, &Columns { again: are_alike, ..x }, up, scratch);
                let results = gate.chunks_exact_mut(rows.len()).zip(up.chunks_exact(rows.len()));
                for ((gate, up), column) in results.zip(columns) {
                    out.put(f, gate, up, column, &rows);
                }
            }
        }
    }
    Ok(())
}

/// [`products_glu`] with `n` columns, which are few.
fn few_glu(
    queue: &WorkQueue<'_>,
    scratch: &mut [f32],
    products: &Products<'_>,
    f: Unary,
    out: &Results<'_>,
    n: usize,
) -> Result<(), Stop> {
    let both = OfFew {
        weights: [products.gate, products.up],
        x: products.x,
        n,
    };
    both.for_each_piece(queue, scratch, |[gate, up], rows| {
        let results = gate.chunks_exact_mut(rows.len()).zip(up.chunks_exact(rows.len()));
        for (column, (gate, up)) in results.enumerate() {
            out.put(f, gate, up, column, &rows);
        }
    })?;
    Ok(())
}

/// The columns of a piece, at most [`MOST_COLUMNS`] and no few at a time.
fn some_at_a_time(columns: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut next = columns.start;
    std::iter::from_fn(move || {
        let (first, multiple) = (next, (next / COLUMNS + 1) * COLUMNS);
        next = if multiple + LEAST_COLUMNS <= columns.end {
            multiple
        } else {
            columns.end
        };
        (first < next).then_some(first..next)
    })
}

/// [`products_glu`] with experts.
fn experts_glu(
    queue: &WorkQueue<'_>,
    scratch: &mut [f32],
    products: &Products<'_>,
    ids: Source<'_>,
    f: Unary,
    out: &Results<'_>,
) -> Result<(), Stop> {
    let experts = Experts {
        x: Operand::quantized(products.x_ne, products.x),
        ids,
        w: products.gate.ne(),
        n_results: 2,
    };
    let are_alike = products.are_alike();
    experts.for_each_piece(queue, scratch, &mut |piece, x, results, scratch| {
        let (gate, up) = results.split_at_mut(results.len() / 2);
        let m = piece.rows.len();
        for (w, out, again) in [(&products.gate, &mut *gate, false), (&products.up, &mut *up, are_alike)] {
            let args = MatMul {
                again,
                ..piece.product(w, x)
            };
            let out = &mut out[..args.n * m];
            // SAFETY: the results are this thread's own and as many as there are products.
            unsafe { matmul(&args, out.as_mut_ptr(), m, scratch) };
        }
        // If the piece may be taken over, all of its products are computed in one go.
        queue.finish()?;
        let results = gate.chunks_exact_mut(m).zip(up.chunks_exact(m));
        for ((gate, up), &row) in results.zip(piece.by) {
            out.put(f, gate, up, row as usize, &piece.rows);
        }
        Ok(())
    })
}

/// Where results go, and in which form if not as floats.
struct Results<'a> {
    target: Target<'a>,
    stores: Option<Quantized>,
}

impl Results<'_> {
    /// Makes those of some rows of weights with a column, which no other thread does.
    fn put(&self, f: Unary, gate: &mut [f32], up: &[f32], column: usize, rows: &Range<usize>) {
        let first = column * self.target.tensor.ne[0];
        // SAFETY: nobody else writes these results, since this thread took these rows of weights with this column, or this token's expert.
        unsafe {
            if let Some(quantized) = self.stores {
                glu_in_place(f, gate, up);
                quantized.store_part(column, rows.start, gate, &self.target);
            } else {
                let out = self.target.part(first + rows.start..first + rows.end);
                glu_of(f, gate, up, out);
            }
        }
    }
}

/// Some rows of activations, which are columns of the result.
struct Columns<'a> {
    x: &'a QuantizedRows<'a>,
    columns: Range<usize>,
    /// Whether they were multiplied last.
    again: bool,
}

/// Products of some rows of weights with some columns.
fn multiply(w: &Source<'_>, rows: &Range<usize>, x: &Columns<'_>, out: &mut [f32], scratch: &mut [f32]) {
    let n = x.columns.len();
    let args = MatMul {
        x: x.x.as_activations(x.x.span(x.columns.start, n)),
        n,
        again: x.again,
        ..weights(w, rows, 0, 0)
    };
    let out = &mut out[..rows.len() * n];
    // SAFETY: the results are this thread's own and as many as there are products.
    unsafe { matmul(&args, out.as_mut_ptr(), rows.len(), scratch) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_few_columns_are_multiplied_at_a_time() {
        for end in 1..2000 {
            for start in (0..end).step_by(LEAST_COLUMNS) {
                let mut next = start;
                for some in some_at_a_time(start..end) {
                    assert_eq!(some.start, next);
                    assert!(some.len() <= MOST_COLUMNS, "{start}..{end}: {some:?}");
                    assert!(some.len() >= LEAST_COLUMNS.min(end - start), "{start}..{end}: {some:?}");
                    next = some.end;
                }
                assert_eq!(next, end);
            }
        }
    }
}
