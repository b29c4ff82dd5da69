//! Ops that scale a row by something computed from the whole of it.

use kernels::rows;

use super::Task;

pub(super) fn rms_norm(task: Task<'_>, eps: f32) {
    let (x, weight, target) = (task.source(0), task.optional(1), task.target);
    let weight = weight.map(|w| w.row([0; 3], task.scratch));
    for (i, out) in target.rows() {
        x.copy_row(i, out);
        rows::rms_norm_in_place(out, weight, eps);
    }
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

/// A matrix is small, so plain loops do.
pub(super) fn balance(task: Task<'_>, n: usize, iterations: usize, eps: f32) {
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
