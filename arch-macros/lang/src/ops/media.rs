//! Operations on media, documented in docs/encoders.md.

use super::shapes::same_as_x;
use super::{Call, Emit, OpSpec, ParamKind, X, op, positional, tensor};
use crate::sym::{Dim, Shape};

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
        "deepstack",
        X,
        same_as_x,
        Emit::Method("deepstack"),
        "x [n_embd, T] plus the next features of the media rows: the first call adds the first features",
    ),
    op(
        "beside",
        &[tensor("x"), tensor("y")],
        beside,
        Emit::Method("beside"),
        "x, and appends y [n_out, rows] to the rows of the result, as features for `deepstack`",
    ),
    op(
        "resized",
        &[positional("w", ParamKind::Vector)],
        resized,
        Emit::Method("resized"),
        "rows of a square table [d, n] resized to the grid of patches, linearly and with equal corners -> [d, T]",
    ),
    OpSpec {
        rotates: true,
        ..op(
            "rope_grid",
            &[tensor("x"), positional("base", ParamKind::Float)],
            rope_grid,
            Emit::Method("rope_grid"),
            "rotates [d, n, T] by the place of each patch: pairs (i, i + d / 2) by the row if i < d / 4, and by the \
             column otherwise",
        )
    },
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

fn beside(c: &mut Call<'_>) -> Option<Shape> {
    let y = c.shape("y")?;
    if y.rank() == 2 && y.dim(0) == Dim::symbol("n_out") {
        return c.shape("x");
    }
    c.fail("y", format!("`beside` expects `y` of shape [n_out, rows], found {y}"));
    None
}

fn resized(c: &mut Call<'_>) -> Option<Shape> {
    let w = c.shape("w")?;
    let form = "[d, n]";
    c.rank("w", 2, form, "").then(|| Shape(vec![w.dim(0), Dim::n_tokens()]))
}

fn rope_grid(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    c.rank("x", 3, "[d, n, T]", "; see `heads`").then_some(x)
}

fn transposed(c: &mut Call<'_>) -> Option<Shape> {
    let w = c.shape("w")?;
    c.rank("w", 2, "[n, m]", "").then(|| Shape(vec![w.dim(1), w.dim(0)]))
}
