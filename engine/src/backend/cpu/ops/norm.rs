//! Ops that normalize whole rows.

use kernels::rows;

use super::elementwise::combine;
use super::task::Task;
use crate::backend::cpu::activations::{Quantization, RowSource};
use crate::backend::cpu::scratch::ScratchSize;
use crate::backend::cpu::view::{RowIndex, Source, Target, row_index};
use crate::graph::Tensor;

/// Rows of an [`Op::RmsNorm`](crate::graph::Op::RmsNorm) that are computed on demand.
pub(in crate::backend::cpu) struct RmsNorm<'a> {
    pub(in crate::backend::cpu) x: Source<'a>,
    /// Weight row of the norm, if any.
    pub(in crate::backend::cpu) weight: Option<Source<'a>>,
    pub(in crate::backend::cpu) eps: f32,
}

impl RowSource for RmsNorm<'_> {
    fn activations<'s>(&'s self, i: usize, scratch: &'s mut [f32]) -> &'s [f32] {
        let ne = self.x.ne();
        let (weight_row, row) = scratch.split_at_mut(ne[0]);
        let (weight, row) = (self.weight.map(|w| w.row([0; 3], weight_row)), &mut row[..ne[0]]);
        self.x.copy_row(row_index(&ne, i), row);
        rows::rms_norm_in_place(row, weight, self.eps);
        row
    }
}

pub(super) fn rms_norm(task: Task<'_>, eps: f32) {
    let (x, weight) = (task.source(0), task.optional(1));
    let (weight_row, row) = task.scratch.split_at_mut(task.node.ne[0]);
    let weight = weight.map(|w| w.row([0; 3], weight_row));
    store_rows(task.target, task.planned.stores, row, |i, out| {
        x.copy_row(i, out);
        rows::rms_norm_in_place(out, weight, eps);
    });
}

/// Computes the rows of a share with `f`, directly into the result or, if it is stored in quantized form,
/// first into `row`.
fn store_rows(
    target: Target<'_>,
    stores: Option<Quantization>,
    row: &mut [f32],
    mut f: impl FnMut(RowIndex, &mut [f32]),
) {
    let Some(quantized) = stores else {
        return target.rows().for_each(|(i, out)| f(i, out));
    };
    let ne = target.tensor.ne;
    let row = &mut row[..ne[0]];
    for i in target.row_numbers() {
        f(row_index(&ne, i), row);
        // SAFETY: the row belongs to this thread's share, and no thread reads it in this phase.
        unsafe { quantized.store(i, row, &target) };
    }
}

/// A sum that is computed row by row together with its norm.
pub(in crate::backend::cpu) struct Sum<'a> {
    pub(in crate::backend::cpu) a: Source<'a>,
    pub(in crate::backend::cpu) b: Source<'a>,
    /// Destination of the sum; `None` if only the norm reads it.
    pub(in crate::backend::cpu) target: Option<Target<'a>>,
}

/// Returns the scratch memory for a row of the weight, a row of the sum's second operand, and a row of the
/// result.
pub(in crate::backend::cpu) fn rms_norm_scratch_size(norm: &Tensor) -> ScratchSize {
    ScratchSize {
        per_thread: 3 * norm.ne[0],
        shared: 0,
    }
}

/// Computes an [`Op::Add`](crate::graph::Op::Add) and the [`Op::RmsNorm`](crate::graph::Op::RmsNorm) of its
/// result, `task`.
pub(in crate::backend::cpu) fn add_rms_norm(task: Task<'_>, sum: &Sum<'_>, eps: f32) {
    let weight = task.optional(1);
    let ne = task.node.ne;
    let (weight_row, rest) = task.scratch.split_at_mut(ne[0]);
    let (b_row, row) = rest.split_at_mut(ne[0]);
    let weight = weight.map(|w| w.row([0; 3], weight_row));
    let repeats = sum.b.ne();
    let mut add = |i: RowIndex, out: &mut [f32]| {
        sum.a.copy_row(i, out);
        let i = [i[0] % repeats[1], i[1] % repeats[2], i[2] % repeats[3]];
        let b = sum.b.row(i, b_row);
        if b.len() == out.len() {
            rows::add_in_place(out, b);
        } else {
            combine(out, b, |a, b| a + b);
        }
    };
    store_rows(task.target, task.planned.stores, row, |i, out| {
        if let Some(target) = &sum.target {
            let row = i[0] + ne[1] * (i[1] + ne[2] * i[2]);
            // SAFETY: the sum has the shape of the norm, so the row belongs to this thread's share. The sum
            // and the norm do not overlap, checked when they were fused, and the slice ends with the
            // iteration.
            let stored = unsafe { target.row(row) };
            add(i, stored);
            out.copy_from_slice(stored);
        } else {
            add(i, out);
        }
        rows::rms_norm_in_place(out, weight, eps);
    });
}

pub(super) fn norm(task: Task<'_>, eps: f32) {
    for_rows(task, |row| rows::norm_in_place(row, eps));
}

pub(super) fn l2_norm(task: Task<'_>, eps: f32) {
    for_rows(task, |row| {
        let length = rows::sum_of_squares(row).sqrt().max(eps);
        rows::scale_in_place(row, 1.0 / length, 0.0);
    });
}

pub(super) fn soft_max(task: Task<'_>, scale: f32) {
    for_rows(task, |row| rows::softmax(row, scale));
}

/// Normalizes small `n x n` matrices with Sinkhorn iterations. Plain loops are fast enough.
pub(super) fn sinkhorn(task: Task<'_>, n: usize, iterations: usize, eps: f32) {
    for_rows(task, |matrix| {
        for list in matrix.chunks_exact_mut(n) {
            rows::softmax(list, 1.0);
            list.iter_mut().for_each(|x| *x += eps);
        }
        for i in 0..iterations.max(1) {
            if i > 0 {
                for list in matrix.chunks_exact_mut(n) {
                    let sum = list.iter().sum::<f32>() + eps;
                    list.iter_mut().for_each(|x| *x /= sum);
                }
            }
            for column in 0..n {
                let sum = matrix.iter().skip(column).step_by(n).sum::<f32>() + eps;
                matrix.iter_mut().skip(column).step_by(n).for_each(|x| *x /= sum);
            }
        }
    });
}

fn for_rows(task: Task<'_>, f: impl Fn(&mut [f32])) {
    let x = task.source(0);
    for (i, out) in task.target.rows() {
        x.copy_row(i, out);
        f(out);
    }
}
