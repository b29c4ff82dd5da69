//! Scores of a lightning indexer: of every cell for every token, so that attention can look at the best cells alone.

use kernels::{MatMul, matmul, matmul_scratch};

use super::select::Sight;
use super::{Need, Task};
use crate::backend::cpu::scratch::take;
use crate::graph::{Graph, Tensor};

/// Cells whose products with a token's queries are in memory at a time.
const CELLS: usize = 64;

/// Cells of a piece of work.
const PIECE: usize = 4 * CELLS;

/// The queries of a token, its head weights, products with a block of cells and the kernel's own.
pub(super) fn need(graph: &Graph, node: &Tensor) -> Need {
    let [d, n_head, ..] = graph.tensor(node.source(0)).ne;
    Need {
        per_thread: n_head * d + n_head + n_head * CELLS + matmul_scratch(d, n_head.max(2)),
        shared: 0,
    }
}

pub(super) fn index_scores(task: Task<'_>) {
    let (q, k, weights) = (task.source(0), task.source(1), task.optional(6));
    let sight = Sight::new(&task, 2);
    let [d, n_head, n_tokens, _] = q.ne();
    let n_kv = k.ne()[2];
    let mut scratch = task.scratch;
    let queries = take(&mut scratch, n_head * d);
    let by_head = take(&mut scratch, n_head);
    let products = take(&mut scratch, n_head * CELLS);
    let per_token = n_kv.div_ceil(PIECE);
    let mut loaded = None;
    while let Some(piece) = task.queue.take(n_tokens * per_token) {
        let (t, first) = (piece / per_token, piece % per_token * PIECE);
        if loaded != Some(t) {
            for (h, out) in queries.chunks_exact_mut(d).enumerate() {
                q.copy_row([h, t, 0], out);
            }
            if let Some(weights) = &weights {
                weights.copy_row([t, 0, 0], by_head);
            }
            loaded = Some(t);
        }
        for first in (first..n_kv.min(first + PIECE)).step_by(CELLS) {
            let cells = first..n_kv.min(first + CELLS);
            let args = MatMul {
                ty: k.tensor.ty,
                w: k.span(2, [0, first, 0], cells.len()),
                row_stride: k.tensor.nb[2],
                m: cells.len(),
                k: d,
                x: queries,
                x_stride: d,
                n: n_head,
            };
            // SAFETY: the products are this thread's own, [`CELLS`] for each head.
            unsafe { matmul(&args, products.as_mut_ptr(), CELLS, scratch) };
            let n_rows = if weights.is_some() { 1 } else { n_head };
            for row in 0..n_rows {
                let at = task.target.tile(t * n_rows + row, 1, cells.clone());
                // SAFETY: `tile` says that this part of a row is there; no other thread takes the piece, and operands do not overlap
                // the result (see `PlannedNode::new`).
                let out = unsafe { std::slice::from_raw_parts_mut(at, cells.len()) };
                for (i, out) in out.iter_mut().enumerate() {
                    *out = if !sight.sees(t, first + i) {
                        f32::NEG_INFINITY
                    } else if weights.is_some() {
                        let products = products.chunks_exact(CELLS).zip(&*by_head);
                        products.map(|(p, w)| w * p[i].max(0.0)).sum()
                    } else {
                        products[row * CELLS + i]
                    };
                }
            }
        }
    }
}
