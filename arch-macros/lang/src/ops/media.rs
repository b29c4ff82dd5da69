//! Operations on media, documented in docs/encoders.md.

use super::shapes::same_as_x;
use super::{Call, Emit, OpSpec, ParamKind, X, op, positional, tensor};
use crate::sym::Shape;

/// All operations on media.
pub static OPS: &[OpSpec] = &[
    op(
        "with_media",
        X,
        same_as_x,
        Emit::Method("with_media"),
        "x [n_embd, T] with the rows of media in place of the embeddings of their placeholder tokens",
    ),
    op(
        "group_rows",
        &[tensor("x"), positional("n", ParamKind::Int)],
        group_rows,
        Emit::Method("group_rows"),
        "groups n consecutive columns: [d, T] -> [d, n, T / n]. `sum_heads` adds them, `merge` joins them",
    ),
    op(
        "transposed",
        &[positional("w", ParamKind::Vector)],
        transposed,
        Emit::Method("transposed"),
        "transpose of a declared matrix: [n, m] -> [m, n]",
    ),
];

fn group_rows(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    if !c.rank("x", 2, "[d, T]", "") {
        return None;
    }
    let rows = x.dim(1);
    let Some(groups) = rows.div_known(&n, c.multiples) else {
        c.fail(
            "n",
            format!("`group_rows` needs a multiple of {n} columns, found {rows}; see `blocks` in `image`"),
        );
        return None;
    };
    Some(Shape(vec![x.dim(0), n, groups]))
}

fn transposed(c: &mut Call<'_>) -> Option<Shape> {
    let w = c.shape("w")?;
    c.rank("w", 2, "[n, m]", "").then(|| Shape(vec![w.dim(1), w.dim(0)]))
}
