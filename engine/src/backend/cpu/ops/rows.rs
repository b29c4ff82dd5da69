//! Row gather and scatter: embedding lookup and cache writes.

use kernels::GgmlType;

use super::task::{KernelError, Task, row_number};
use crate::backend::cpu::view::RowIndex;
use crate::graph::{Layout, NO_ROW, NgramHash};

pub(super) fn get_rows(task: Task<'_>) -> Result<(), KernelError> {
    let (table, ids) = (task.source(0), task.source(1));
    if task.node.ty == GgmlType::I32 {
        for ([t, i2, i3], out) in task.target.int_rows() {
            let row = row_number(ids.i32([t, i2, i3, 0]), table.ne()[1])?;
            for (i, x) in out.iter_mut().enumerate() {
                *x = table.i32([i, row, i2, i3]);
            }
        }
        return Ok(());
    }
    for ([t, i2, i3], out) in task.target.rows() {
        let row = row_number(ids.i32([t, i2, i3, 0]), table.ne()[1])?;
        match table.tensor.layout {
            Layout::Plain => table.copy_row([row, i2, i3], out),
            Layout::Repacked(repack) => table.copy_repacked_row([row, i2, i3], repack, task.scratch, out),
        }
    }
    Ok(())
}

/// Writes rows into a table.
///
/// Share `row % n_shares` writes a row. Two tokens that write to the same row are invalid but possible. The writes do
/// not race, and the last token wins as with a single thread.
pub(super) fn set_rows(task: Task<'_>) -> Result<(), KernelError> {
    let (source, ids) = (task.source(0), task.source(2));
    let (target, ty, share) = (task.target, task.node.ty, task.share);
    for (t, &id) in ids.list::<i64>().iter().enumerate() {
        if id == NO_ROW {
            continue;
        }
        let row = row_number(id, task.node.ne[1])?;
        if row % share.nth != share.ith {
            continue;
        }
        // SAFETY: only this share writes the row, and the slice ends with the iteration.
        let out = unsafe { target.row_bytes(row) };
        kernels::quantize_row(ty, source.row([t, 0, 0], task.scratch), out);
    }
    Ok(())
}

/// Computes n-gram hashes. The result is a single short row, so one thread computes it.
pub(super) fn ngram_hash(task: Task<'_>, hash: &NgramHash) {
    let numbers = task.source(0);
    for (_, out) in task.target.int_rows() {
        for (t, row) in out.iter_mut().enumerate() {
            let run = numbers.row([t, 0, 0], task.scratch);
            *row = hash.row(|i| run[i]);
        }
    }
}

pub(super) fn add_id(task: Task<'_>) -> Result<(), KernelError> {
    let (x, bias, ids) = (task.source(0), task.source(1), task.source(2));
    for (i @ [slot, t, _], out) in task.target.rows() {
        let expert: RowIndex = [row_number(ids.i32([slot, t, 0, 0]), bias.ne()[1])?, 0, 0];
        x.copy_row(i, out);
        kernels::rows::add_in_place(out, bias.row(expert, task.scratch));
    }
    Ok(())
}
