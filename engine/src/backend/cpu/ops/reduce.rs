//! Reductions: row sums, top-k, top-k masks, and ops on indices.

use std::cmp::Ordering;

use super::task::Task;
use crate::backend::cpu::scratch::ScratchSize;
use crate::graph::{Graph, Tensor};

pub(super) fn sum_rows(task: Task<'_>) {
    let x = task.source(0);
    for (i, out) in task.target.rows() {
        out[0] = kernels::rows::sum(x.row(i, task.scratch));
    }
}

/// Returns the scratch memory for a row and the indices of its elements.
pub(super) fn top_k_scratch_size(graph: &Graph, node: &Tensor) -> ScratchSize {
    ScratchSize {
        per_thread: 2 * graph.tensor(node.source(0)).ne[0],
        shared: 0,
    }
}

pub(super) fn int_div(task: Task<'_>, by: usize) {
    let (ids, target) = (task.source(0), task.target);
    for (i, out) in target.int_rows() {
        for (i0, out) in out.iter_mut().enumerate() {
            *out = ids.i32([i0, i[0], i[1], i[2]]) / by as i32;
        }
    }
}

pub(super) fn cast(task: Task<'_>) {
    let ids = task.source(0);
    for (i, out) in task.target.rows() {
        for (i0, out) in out.iter_mut().enumerate() {
            *out = ids.i32([i0, i[0], i[1], i[2]]) as f32;
        }
    }
}

pub(super) fn top_k(task: Task<'_>) {
    let (x, target) = (task.source(0), task.target);
    let n = x.ne()[0];
    let (order, scratch) = task.scratch.split_at_mut(n);
    let order: &mut [u32] = bytemuck::cast_slice_mut(order);
    for (i, out) in target.int_rows() {
        let row = x.row(i, scratch);
        let largest = largest(row, order, out.len());
        largest.sort_unstable_by(larger_first(row));
        out.iter_mut().zip(&*largest).for_each(|(out, &i)| *out = i as i32);
    }
}

pub(super) fn top_mask(task: Task<'_>, k: usize) {
    let (x, target) = (task.source(0), task.target);
    let (order, scratch) = task.scratch.split_at_mut(x.ne()[0]);
    let order: &mut [u32] = bytemuck::cast_slice_mut(order);
    for (i, out) in target.rows() {
        let row = x.row(i, scratch);
        out.fill(0.0);
        for &mut i in largest(row, order, k) {
            out[i as usize] = 1.0;
        }
    }
}

/// Writes the indices of the `k` largest elements of a row into `order`, in any order, and returns them.
fn largest<'a>(row: &[f32], order: &'a mut [u32], k: usize) -> &'a mut [u32] {
    order.iter_mut().zip(0..).for_each(|(slot, i)| *slot = i);
    if k < order.len() {
        order.select_nth_unstable_by(k, larger_first(row));
    }
    &mut order[..k]
}

fn larger_first(row: &[f32]) -> impl Fn(&u32, &u32) -> Ordering {
    |&a, &b| {
        let by_value = row[b as usize].total_cmp(&row[a as usize]);
        by_value.then(a.cmp(&b))
    }
}
