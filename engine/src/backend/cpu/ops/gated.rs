//! The gated half of a feed-forward layer: two products of the same activations, and the activation function of one times the other.
//!
//! Of a model of a billion weights with a ubatch of 512 tokens each product has 16 MiB of results. Here they are used where they are computed, in a thread's own memory, some rows of the
//! weights at a time, so that caches need not fetch 32 MiB to write them, and again to read them.

use std::ops::Range;

use kernels::{MatMul, matmul, matmul_scratch};

use super::elementwise::{glu_in_place, glu_of};
use super::mul_mat::{Grid, Tile, weights};
use super::{Need, Task};
use crate::backend::cpu::activations::{Quantized, QuantizedRows};
use crate::backend::cpu::scratch::take;
use crate::backend::cpu::view::{Source, Target};
use crate::graph::{Graph, Tensor, Unary};

/// Most rows of weights whose products wait in a thread's own memory.
const MOST_ROWS: usize = 128;

/// Most columns of these.
const MOST_COLUMNS: usize = 512;

/// The products of the same activations.
pub(in crate::backend::cpu) struct Products<'a> {
    /// Weights `[k, m]`.
    pub(in crate::backend::cpu) gate: Source<'a>,
    /// Weights `[k, m]`.
    pub(in crate::backend::cpu) up: Source<'a>,
    /// Rows of `k` activations.
    pub(in crate::backend::cpu) x: QuantizedRows<'a>,
}

/// Two pieces of results, and what products need, of which `product` is one.
pub(super) fn need(graph: &Graph, product: &Tensor) -> Need {
    let (k, n) = (graph.tensor(product.source(1)).ne[0], product.ne[1]);
    Need {
        per_thread: 2 * MOST_ROWS * n.min(MOST_COLUMNS) + matmul_scratch(k, n.min(MOST_COLUMNS)),
        shared: 0,
    }
}

/// `f(gate x) (up x)`, by pieces.
pub(in crate::backend::cpu) fn products_glu(task: Task<'_>, products: &Products<'_>, f: Unary) {
    let [m, n, ..] = task.node.ne;
    let grid = Grid::new(m, n, products.x.is_for_tiles()).with_most_rows(MOST_ROWS);
    let out = Results {
        target: task.target,
        stores: task.planned.stores,
    };
    let mut scratch = task.scratch;
    let room = MOST_ROWS * n.min(MOST_COLUMNS);
    let (gate, up) = (take(&mut scratch, room), take(&mut scratch, room));
    while let Some(pieces) = task.queue.take_some(grid.len(), grid.most()) {
        for Tile { rows, columns } in grid.tiles(pieces) {
            for first in columns.clone().step_by(MOST_COLUMNS) {
                let columns = first..columns.end.min(first + MOST_COLUMNS);
                multiply(&products.gate, &products.x, &rows, &columns, gate, scratch);
                multiply(&products.up, &products.x, &rows, &columns, up, scratch);
                let results = gate.chunks_exact_mut(rows.len()).zip(up.chunks_exact(rows.len()));
                for ((gate, up), column) in results.zip(columns) {
                    out.put(f, gate, up, column, &rows);
                }
            }
        }
    }
}

/// Where results go, and in which form if not as floats.
struct Results<'a> {
    target: Target<'a>,
    stores: Option<Quantized>,
}

impl Results<'_> {
    /// Makes those of some rows of weights with a column.
    fn put(&self, f: Unary, gate: &mut [f32], up: &[f32], column: usize, rows: &Range<usize>) {
        let first = column * self.target.tensor.ne[0];
        // SAFETY: nobody else writes these results, since this thread took these rows of weights with this column.
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

/// Products of some rows of weights with some rows of activations, which are columns of the result.
fn multiply(
    w: &Source<'_>,
    x: &QuantizedRows<'_>,
    rows: &Range<usize>,
    columns: &Range<usize>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let args = MatMul {
        x: x.as_activations(x.span(columns.start, columns.len())),
        n: columns.len(),
        ..weights(w, rows, 0, 0)
    };
    let out = &mut out[..rows.len() * columns.len()];
    // SAFETY: the results are this thread's own and as many as there are products.
    unsafe { matmul(&args, out.as_mut_ptr(), rows.len(), scratch) };
}
