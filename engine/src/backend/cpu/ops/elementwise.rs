//! Element-wise ops: addition, multiplication, and activation functions.

use kernels::rows;

use super::task::Task;
use crate::backend::cpu::view::Source;
use crate::graph::Unary;

/// Elements per chunk for contiguous operands. Threads thus also share a single long row.
const PIECE: usize = 1024;

/// Computes `f(a, b)` with `b` broadcast to the shape of `a`.
pub(super) fn binary(task: Task<'_>, f: impl Fn(f32, f32) -> f32 + Copy) {
    let (a, b) = (task.source(0), task.source(1));
    for_pieces(task, &a, &b, |out, b| combine(out, b, f));
}

/// Computes `out = f(out, b)` with `b` repeated to the length of `out`.
pub(super) fn combine(out: &mut [f32], b: &[f32], f: impl Fn(f32, f32) -> f32 + Copy) {
    match *b {
        [b] => out.iter_mut().for_each(|x| *x = f(*x, b)),
        _ => {
            for part in out.chunks_exact_mut(b.len()) {
                part.iter_mut().zip(b).for_each(|(x, &b)| *x = f(*x, b));
            }
        }
    }
}

/// Computes `f(gate) * up`.
pub(super) fn glu(task: Task<'_>, f: Unary) {
    let (gate, up) = (task.source(0), task.source(1));
    for_pieces(task, &gate, &up, |gate, up| glu_in_place(f, gate, up));
}

/// Computes `out = f(gate) * up`.
pub(super) fn glu_of(f: Unary, gate: &[f32], up: &[f32], out: &mut [f32]) {
    match f {
        Unary::Silu => rows::silu_mul(gate, up, out),
        Unary::Gelu => rows::gelu_mul(gate, up, out),
        Unary::GeluErf => rows::gelu_erf_mul(gate, up, out),
        _ => {
            out.copy_from_slice(gate);
            glu_in_place(f, out, up);
        }
    }
}

/// Computes `gate = f(gate) * up`.
pub(super) fn glu_in_place(f: Unary, gate: &mut [f32], up: &[f32]) {
    match f {
        Unary::Silu => rows::silu_mul_in_place(gate, up),
        Unary::Gelu => rows::gelu_mul_in_place(gate, up),
        Unary::GeluErf => rows::gelu_erf_mul_in_place(gate, up),
        _ => {
            function(f)(gate);
            rows::mul_in_place(gate, up);
        }
    }
}

/// Copies chunks of the first operand to the result, and calls `f` with each chunk and the matching elements
/// of the second operand.
///
/// If the second operand is broadcast along rows, its slice is shorter than the chunk and divides the chunk's
/// length.
fn for_pieces(task: Task<'_>, a: &Source<'_>, b: &Source<'_>, f: impl Fn(&mut [f32], &[f32])) {
    let target = task.target;
    if let Some(period) = repeats_after(a, b) {
        for (i, out) in target.float_pieces(PIECE) {
            a.copy_floats(i * PIECE, out);
            let (mut at, mut out) = (i * PIECE % period, out);
            while !out.is_empty() {
                let n = out.len().min(period - at);
                let (now, later) = out.split_at_mut(n);
                f(now, b.floats(at, n));
                (at, out) = (0, later);
            }
        }
        return;
    }
    let ne = b.ne();
    for (i, out) in target.rows() {
        a.copy_row(i, out);
        f(out, b.row([i[0] % ne[1], i[1] % ne[2], i[2] % ne[3]], task.scratch));
    }
}

/// Returns the number of elements of `b` if both operands are contiguous and `b` repeats as a whole over the
/// elements of `a`.
fn repeats_after(a: &Source<'_>, b: &Source<'_>) -> Option<usize> {
    let (ne_a, ne_b) = (a.ne(), b.ne());
    let same = ne_a.iter().zip(&ne_b).take_while(|(a, b)| a == b).count();
    let is_repeated = same > 0 && ne_b[same..].iter().all(|&n| n == 1);
    if is_repeated && a.is_float_list() && b.is_float_list() {
        Some(ne_b.iter().product())
    } else {
        None
    }
}

/// Applies `f` to chunks of the operand.
pub(super) fn map(task: Task<'_>, f: impl Fn(&mut [f32])) {
    let (x, target) = (task.source(0), task.target);
    if x.is_float_list() {
        for (i, out) in target.float_pieces(PIECE) {
            x.copy_floats(i * PIECE, out);
            f(out);
        }
        return;
    }
    for (i, out) in target.rows() {
        x.copy_row(i, out);
        f(out);
    }
}

pub(super) fn each(row: &mut [f32], f: impl Fn(f32) -> f32) {
    row.iter_mut().for_each(|x| *x = f(*x));
}

/// Returns the in-place implementation of an activation function.
pub(super) fn function(f: Unary) -> fn(&mut [f32]) {
    match f {
        Unary::Neg => |row| each(row, |x| -x),
        Unary::Abs => |row| each(row, f32::abs),
        Unary::Sqr => |row| each(row, |x| x * x),
        Unary::Sqrt => |row| each(row, f32::sqrt),
        Unary::Exp => rows::exp_in_place,
        Unary::Tanh => |row| each(row, f32::tanh),
        Unary::Sigmoid => rows::sigmoid_in_place,
        Unary::Relu => |row| each(row, |x| x.max(0.0)),
        Unary::ReluSqr => |row| each(row, |x| x.max(0.0) * x.max(0.0)),
        Unary::Silu => rows::silu_in_place,
        Unary::Gelu => rows::gelu_in_place,
        Unary::GeluErf => rows::gelu_erf_in_place,
        Unary::GeluQuick => |row| each(row, |x| x / (1.0 + (-1.702 * x).exp())),
        Unary::Softplus => rows::softplus_in_place,
    }
}
