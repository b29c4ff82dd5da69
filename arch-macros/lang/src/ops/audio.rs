//! Operations of audio encoders, documented in docs/encoders.md.

use super::{Call, Emit, OpSpec, ParamKind, op, positional, tensor};
use crate::sym::{Dim, Shape};

/// All operations of audio encoders.
pub static OPS: &[OpSpec] = &[
    op(
        "interleave",
        &[tensor("x"), positional("n", ParamKind::Int)],
        interleave,
        Emit::Method("interleave"),
        "reorders n consecutive parts of dimension 0 to n values of each place: [n * d, T] -> [n * d, T]. Weights of \
         convolutions over n columns have this order in files",
    ),
    op(
        "pool_rows",
        &[tensor("x"), positional("n", ParamKind::Int)],
        pool_rows,
        Emit::Method("pool_rows"),
        "mean of n consecutive columns: [d, T] -> [d, T / n], without the columns that are left over",
    ),
    op(
        "stack_rows",
        &[tensor("x"), positional("n", ParamKind::Int)],
        stack_rows,
        Emit::Method("stack_rows"),
        "joins n consecutive columns: [d, T] -> [d * n, T / n rounded up]. Zeros follow the last column",
    ),
];

fn interleave(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    if !c.rank("x", 2, "[n * d, T]", "") {
        return None;
    }
    if x.dim(0).div_known(&n, c.multiples).is_none() {
        c.fail(
            "n",
            format!("`interleave` needs a multiple of {n} values, found {}", x.dim(0)),
        );
        return None;
    }
    Some(x)
}

fn pool_rows(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    let rows = x.dim(1).div(&n);
    c.rank("x", 2, "[d, T]", "").then(|| Shape(vec![x.dim(0), rows]))
}

fn stack_rows(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    let rows = x.dim(1).add(&n).sub(&Dim::constant(1)).div(&n);
    c.rank("x", 2, "[d, T]", "")
        .then(|| Shape(vec![x.dim(0).mul(&n), rows]))
}
