//! The gated half of a feed-forward layer: two matmuls of the same activations, combined as `f(gate) * up`.
//!
//! For a model with one billion weights and a ubatch of 512 tokens, each matmul has 16 MiB of results. The fusion
//! computes a few rows at a time in the thread's scratch buffer, which keeps these 32 MiB out of memory. The tokens of
//! an expert are gathered once for both matmuls. With few tokens, the fusion saves a barrier.

use std::ops::Range;

use kernels::{MIN_TILE_ROWS, MatMul, PANEL_ROWS, Precision, matmul, matmul_scratch};

use super::elementwise::{glu_in_place, glu_of};
use super::mul_mat::{self, Experts, Grid, LEAST_COLUMNS, Operand, SKINNY_MAX_RESULTS, SkinnyMatmul, Tile, weights};
use super::task::{NodeExit, Task};
use crate::backend::cpu::activations::{Quantization, QuantizedRows, Storage};
use crate::backend::cpu::queue::WorkQueue;
use crate::backend::cpu::scratch::{ScratchSize, take};
use crate::backend::cpu::view::{Source, Target};
use crate::graph::{Graph, Op, Tensor, Unary};

/// Maximum number of weight rows whose results are buffered.
const MOST_ROWS: usize = 128;

/// Number of columns to buffer at a time. A remainder of few columns is added to the last step. The kernel for few
/// columns rounds differently, and results must not depend on how threads share the work.
const COLUMNS: usize = 512;

/// Maximum number of columns to buffer, including a remainder.
const MOST_COLUMNS: usize = COLUMNS + LEAST_COLUMNS - 1;

/// Two matmuls with the same activations: gate and up projections.
pub(in crate::backend::cpu) struct Products<'a> {
    /// Gate weights `[k, m]`, or `[k, m, n_expert]` for experts.
    pub(in crate::backend::cpu) gate: Source<'a>,
    /// Weights of the up projection, with the shape of `gate`.
    pub(in crate::backend::cpu) up: Source<'a>,
    /// Quantized activations, rows of `k` elements.
    pub(in crate::backend::cpu) x: QuantizedRows<'a>,
    /// True for a skinny matmul with activations in the thread's own buffer.
    pub(in crate::backend::cpu) is_skinny: bool,
    /// Shape of the activations.
    pub(in crate::backend::cpu) x_ne: [usize; 4],
    /// Expert ids per token, or `None` for dense weights.
    pub(in crate::backend::cpu) ids: Option<Source<'a>>,
}

impl Products<'_> {
    /// Returns true if both matmuls can use the same prepared activations; see [`MatMul::reuse_prepared_x`].
    fn are_alike(&self) -> bool {
        self.gate.tensor.ty == self.up.tensor.ty
    }
}

/// Returns the scratch memory for two chunks of results and for the matmuls. `product` is one of the matmuls.
pub(super) fn scratch_size(graph: &Graph, product: &Tensor) -> ScratchSize {
    if product.op == Op::MulMatId {
        let of_one = mul_mat::scratch_size(graph, product);
        return ScratchSize {
            per_thread: of_one.per_thread + mul_mat::results_by_experts(product),
            ..of_one
        };
    }
    let (k, n) = (graph.tensor(product.source(1)).ne[0], product.ne[1]);
    ScratchSize {
        per_thread: (2 * MOST_ROWS * n.min(MOST_COLUMNS)).max(2 * SKINNY_MAX_RESULTS)
            + matmul_scratch(k, n.min(MOST_COLUMNS)),
        shared: 0,
    }
}

/// Returns the granularity of the pieces of [`matmul_glu`] in weight rows: each piece starts at a multiple of it. With
/// few columns, the unit is a panel, regardless of the form of the activations. `product` is one of the matmuls.
pub(in crate::backend::cpu) fn unit_of_pieces(graph: &Graph, product: &Tensor, precision: Precision) -> usize {
    let activations = Quantization::for_matmul(graph, product, precision);
    let has_few_columns = |x: &Quantization| x.storage == Storage::PerThread && product.op == Op::MulMat;
    if activations.is_some_and(|x| x.is_for_tiles() && !has_few_columns(&x)) {
        MIN_TILE_ROWS
    } else {
        PANEL_ROWS
    }
}

/// Computes `f(gate x) * (up x)`, chunk by chunk.
pub(in crate::backend::cpu) fn matmul_glu(task: Task<'_>, products: &Products<'_>, f: Unary) -> Result<(), NodeExit> {
    let [m, n, ..] = task.node.ne;
    let out = Results {
        target: task.target,
        stores: task.planned.stores,
    };
    if let Some(ids) = products.ids {
        return experts_glu(task.queue, task.scratch, products, ids, f, &out);
    }
    if products.is_skinny {
        return skinny_glu(task.queue, task.scratch, products, f, &out, n);
    }
    let grid = Grid::new(m, n, products.x.is_for_tiles()).with_most_rows(MOST_ROWS);
    let mut scratch = task.scratch;
    let len = MOST_ROWS * n.min(MOST_COLUMNS);
    let (gate, up) = (take(&mut scratch, len), take(&mut scratch, len));
    let (are_alike, mut last) = (products.are_alike(), None);
    while let Some(pieces) = task.queue.take_some(grid.len(), grid.most()) {
        for Tile { rows, columns } in grid.tiles(pieces) {
            for columns in some_at_a_time(columns) {
                let x = Columns {
                    x: &products.x,
                    reuse_prepared_x: last.replace(columns.clone()) == Some(columns.clone()) && are_alike,
                    columns: columns.clone(),
                };
                multiply(&products.gate, &rows, &x, gate, scratch);
                multiply(
                    &products.up,
                    &rows,
                    &Columns {
                        reuse_prepared_x: are_alike,
                        ..x
                    },
                    up,
                    scratch,
                );
                let results = gate.chunks_exact_mut(rows.len()).zip(up.chunks_exact(rows.len()));
                for ((gate, up), column) in results.zip(columns) {
                    out.put(f, gate, up, column, &rows);
                }
            }
        }
    }
    Ok(())
}

/// Computes [`matmul_glu`] for few columns `n`.
fn skinny_glu(
    queue: &WorkQueue<'_>,
    scratch: &mut [f32],
    products: &Products<'_>,
    f: Unary,
    out: &Results<'_>,
    n: usize,
) -> Result<(), NodeExit> {
    let both = SkinnyMatmul {
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

/// Splits columns into ranges of at most [`MOST_COLUMNS`], each long enough for the kernel of many columns.
fn some_at_a_time(columns: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut next = columns.start;
    std::iter::from_fn(move || {
        let (first, multiple) = (next, (next / COLUMNS + 1) * COLUMNS);
        next = if multiple + LEAST_COLUMNS <= columns.end {
            multiple
        } else {
            columns.end
        };
        if first < next { Some(first..next) } else { None }
    })
}

/// Computes [`matmul_glu`] with expert weights.
fn experts_glu(
    queue: &WorkQueue<'_>,
    scratch: &mut [f32],
    products: &Products<'_>,
    ids: Source<'_>,
    f: Unary,
    out: &Results<'_>,
) -> Result<(), NodeExit> {
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
        for (w, out, reuse_prepared_x) in [(&products.gate, &mut *gate, false), (&products.up, &mut *up, are_alike)] {
            let args = MatMul {
                reuse_prepared_x,
                ..piece.product(w, x)
            };
            let out = &mut out[..args.n * m];
            // SAFETY: `out` is in this thread's scratch buffer and holds `n * m` results.
            unsafe { matmul(&args, out.as_mut_ptr(), m, scratch) };
        }
        // If the chunk may be stolen, a single call computes all of its results.
        queue.finish()?;
        let results = gate.chunks_exact_mut(m).zip(up.chunks_exact(m));
        for ((gate, up), &row) in results.zip(piece.by) {
            out.put(f, gate, up, row as usize, &piece.rows);
        }
        Ok(())
    })
}

/// Destination of results, and their quantized form if any.
struct Results<'a> {
    target: Target<'a>,
    stores: Option<Quantization>,
}

impl Results<'_> {
    /// Combines and stores the results of some rows of weights with one column. No other thread computes
    /// these results.
    fn put(&self, f: Unary, gate: &mut [f32], up: &[f32], column: usize, rows: &Range<usize>) {
        let first = column * self.target.tensor.ne[0];
        // SAFETY: only this thread writes these results: the queue assigned these weight rows and this column, or this
        // token's expert, to it.
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

/// A range of activation rows, which are columns of the result.
struct Columns<'a> {
    x: &'a QuantizedRows<'a>,
    columns: Range<usize>,
    /// True if the previous call multiplied the same columns.
    reuse_prepared_x: bool,
}

/// Multiplies some rows of weights with some columns.
fn multiply(w: &Source<'_>, rows: &Range<usize>, x: &Columns<'_>, out: &mut [f32], scratch: &mut [f32]) {
    let n = x.columns.len();
    let args = MatMul {
        x: x.x.as_activations(x.x.span(x.columns.start, n)),
        n,
        reuse_prepared_x: x.reuse_prepared_x,
        ..weights(w, rows, 0, 0)
    };
    let out = &mut out[..rows.len() * n];
    // SAFETY: `out` is in this thread's scratch buffer and holds `rows.len() * n` results.
    unsafe { matmul(&args, out.as_mut_ptr(), rows.len(), scratch) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_ranges_are_never_short() {
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
