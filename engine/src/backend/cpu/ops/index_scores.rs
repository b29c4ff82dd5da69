//! Lightning indexer scores: rates every cell for every token, so that attention can be restricted to the
//! best cells.

use kernels::{Activations, MatMul, WeightLayout, matmul, matmul_scratch};

use super::task::Task;
use super::visible::Visible;
use crate::backend::cpu::scratch::{ScratchSize, take};
use crate::graph::{Graph, Tensor};

/// Number of cells to multiply with a token's queries at a time.
const CELLS: usize = 64;

/// Cells per chunk of work.
const PIECE: usize = 4 * CELLS;

/// Returns the scratch memory for a token's queries and head weights, the dot products with a block of cells,
/// and the kernel's buffer.
pub(super) fn scratch_size(graph: &Graph, node: &Tensor) -> ScratchSize {
    let [d, n_head, ..] = graph.tensor(node.source(0)).ne;
    ScratchSize {
        per_thread: n_head * d + n_head + n_head * CELLS + matmul_scratch(d, n_head.max(2)),
        shared: 0,
    }
}

pub(super) fn index_scores(task: Task<'_>) {
    let (q, k, weights) = (task.source(0), task.source(1), task.optional(8));
    let visible = Visible::new(&task);
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
        let cells = first..n_kv.min(first + PIECE);
        let n_rows = if weights.is_some() { 1 } else { n_head };
        let row = |row: usize| {
            let at = task.target.tile(t * n_rows + row, 1, cells.clone());
            // SAFETY: `Target::tile` checks the bounds. The queue gave this chunk to one thread, and only one slice is
            // alive at a time. Operands do not overlap the result (checked in `NodeMemory::new`).
            unsafe { std::slice::from_raw_parts_mut(at, cells.len()) }
        };
        (0..n_rows).for_each(|r| row(r).fill(f32::NEG_INFINITY));
        for page in visible.pages(t).filter(|page| page.overlaps(&cells)) {
            let part = cells.start.max(page.first)..cells.end.min(page.first + page.len);
            let args = MatMul {
                ty: k.tensor.ty,
                w: k.span(2, [0, part.start, 0], part.len()),
                layout: WeightLayout::Rows { stride: k.tensor.nb[2] },
                m: part.len(),
                k: d,
                x: Activations::F32 { x: queries, stride: d },
                n: n_head,
                allow_reassociation: false,
                reuse_prepared_x: false,
            };
            // SAFETY: `products` is in this thread's scratch buffer and holds [`CELLS`] results per head.
            unsafe { matmul(&args, products.as_mut_ptr(), CELLS, scratch) };
            let seen = part.clone().filter(|&cell| visible.sees(t, &page, cell));
            for r in 0..n_rows {
                let out = row(r);
                for cell in seen.clone() {
                    let i = cell - part.start;
                    out[cell - cells.start] = if weights.is_some() {
                        let products = products.chunks_exact(CELLS).zip(&*by_head);
                        products.map(|(p, w)| w * p[i].max(0.0)).sum()
                    } else {
                        products[r * CELLS + i]
                    };
                }
            }
        }
    }
}
