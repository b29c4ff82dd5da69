//! Ops that make few elements of many.

use std::cmp::Ordering;

use super::{Need, Task};
use crate::graph::{Graph, Tensor};

pub(super) fn sum_rows(task: Task<'_>) {
    let x = task.source(0);
    for (i, out) in task.target.rows() {
        out[0] = kernels::rows::sum(x.row(i, task.scratch));
    }
}

/// A row and the indices of its elements.
pub(super) fn top_k_need(graph: &Graph, node: &Tensor) -> Need {
    Need {
        per_member: 2 * graph.tensor(node.source(0)).ne[0],
        shared: 0,
    }
}

pub(super) fn top_k(task: Task<'_>) {
    let (x, target) = (task.source(0), task.target);
    let n = x.ne()[0];
    let (order, scratch) = task.scratch.split_at_mut(n);
    let order: &mut [u32] = bytemuck::cast_slice_mut(order);
    for (i, out) in target.int_rows() {
        let row = x.row(i, scratch);
        order.iter_mut().zip(0..).for_each(|(slot, i)| *slot = i);
        let larger_first = |&a: &u32, &b: &u32| -> Ordering {
            let by_value = row[b as usize].total_cmp(&row[a as usize]);
            by_value.then(a.cmp(&b))
        };
        let k = out.len();
        if k < n {
            order.select_nth_unstable_by(k, larger_first);
        }
        order[..k].sort_unstable_by(larger_first);
        out.iter_mut().zip(&*order).for_each(|(out, &i)| *out = i as i32);
    }
}
