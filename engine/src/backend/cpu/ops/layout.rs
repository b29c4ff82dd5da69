//! Ops that copy elements: `cont`, `repeat`, and `concat`.

use super::task::Task;
use crate::backend::cpu::view::{RowIndex, row_index};

/// Copies the operand into a contiguous result, one operand row at a time. The result may have a different
/// shape.
pub(super) fn cont(task: Task<'_>) {
    let x = task.source(0);
    let ne = x.ne();
    for (i, out) in task.target.float_pieces(ne[0]) {
        x.copy_row(row_index(&ne, i), out);
    }
}

pub(super) fn repeat(task: Task<'_>) {
    let x = task.source(0);
    let ne = x.ne();
    for (i, out) in task.target.rows() {
        let row = x.row([i[0] % ne[1], i[1] % ne[2], i[2] % ne[3]], task.scratch);
        match *row {
            [value] => out.fill(value),
            _ => out
                .chunks_exact_mut(row.len())
                .for_each(|part| part.copy_from_slice(row)),
        }
    }
}

pub(super) fn concat(task: Task<'_>, dim: usize) {
    let (a, b) = (task.source(0), task.source(1));
    let at = a.ne()[dim];
    for (i, out) in task.target.rows() {
        if dim == 0 {
            let (first, second) = out.split_at_mut(at);
            a.copy_row(i, first);
            b.copy_row(i, second);
        } else if i[dim - 1] < at {
            a.copy_row(i, out);
        } else {
            let mut i: RowIndex = i;
            i[dim - 1] -= at;
            b.copy_row(i, out);
        }
    }
}
