//! Operations on media, documented in docs/encoders.md.

use super::param::{keyword, maybe};
use super::shapes::same_as_x;
use super::{Call, Emit, OpSpec, ParamKind, X, op, positional, tensor};
use crate::sym::{Dim, Shape};

/// Filters of resized tables.
const FILTERS: &[(&str, &str)] = &[
    ("linear", "Linear"),
    ("bilinear", "Bilinear"),
    ("dino", "Dino"),
    ("smooth", "Smooth"),
    ("smooth_bicubic", "SmoothBicubic"),
    ("bicubic", "Bicubic"),
    ("nearest", "Nearest"),
    ("zeros", "Zeros"),
];

/// Pairs of a head's values that rotate.
const PAIRS: &[(&str, &str)] = &[
    ("halves", "Halves"),
    ("neighbors", "Neighbors"),
    ("quarters", "Quarters"),
    ("alternating", "Alternating"),
];

/// All operations on media.
pub static OPS: &[OpSpec] = &[
    op(
        "with_media",
        X,
        same_as_x,
        Emit::Method("with_media"),
        "returns x [n_embd, T] with the rows of media in place of the embeddings of their placeholder tokens",
    ),
    op(
        "deepstack",
        &[tensor("x"), maybe("part", ParamKind::Float)],
        same_as_x,
        Emit::Method("deepstack"),
        "adds the features of the media rows with the number `part`, from 1 on, to x [n_embd, T]. Without `part`, the first \
         call adds the first features, and each later call the next features",
    ),
    op(
        "beside",
        &[tensor("x"), tensor("y")],
        beside,
        Emit::Method("beside"),
        "returns x, and appends y [n_out, rows] to the rows of the result, as features for `deepstack`",
    ),
    op(
        "resized",
        &[
            positional("w", ParamKind::Vector),
            maybe("by", ParamKind::Word("TableFilter", FILTERS)),
            keyword("transposed", ParamKind::Bool),
        ],
        resized,
        Emit::Struct("resized", "ResizedArgs"),
        "rows of a square table, resized to the grid of patches: [d, n] or [d, side, side] -> [d, T]. `linear` \
         (the default) interpolates with equal corners. `bilinear` and `bicubic` interpolate between the rows next \
         to the center of a patch. `dino` is `bilinear` with the scale of a grid with 0.1 patches more. `smooth` \
         and `smooth_bicubic` interpolate over the area of a patch. `nearest` selects one row, and `zeros` is \
         `bilinear` with zeros around the table. With `transposed`, the table is resized to the transposed grid, \
         and its rows keep their order",
    ),
    OpSpec {
        rotates: true,
        ..op(
            "rope_grid",
            &[
                tensor("x"),
                positional("base", ParamKind::Float),
                keyword("pairs", ParamKind::Word("GridPairs", PAIRS)),
                keyword("columns_first", ParamKind::Bool),
                keyword("spread", ParamKind::Bool),
            ],
            rope_grid,
            Emit::Struct("rope_grid", "RopeGridArgs"),
            "rotates [d, n, T] by the position of each patch. The row rotates the first half of the pairs, and the \
             column the second half. With `columns_first`, the column rotates the first half. Pairs are (i, i + d / 2) \
             (`halves`, the default) or (2 i, 2 i + 1) (`neighbors`). With `alternating`, neighbors rotate \
             alternately by row and column. With `quarters`, pairs are (i, i + d / 4) in each half of a head. Rows \
             and columns have equal frequencies, or alternate ones with `spread`. The values of a head are \
             reordered, in the same way for queries and keys",
        )
    },
    op(
        "with_class",
        &[tensor("x"), positional("w", ParamKind::Vector)],
        with_class,
        Emit::Method("with_class"),
        "x [d, T_patches] after the vector `w` [d] as its first column -> [d, T]",
    ),
    op(
        "without_class",
        X,
        without_class,
        Emit::Method("without_class"),
        "x [d, T] without the column of `with_class` -> [d, T_patches]",
    ),
    op(
        "at_columns",
        &[tensor("w")],
        at_patches,
        Emit::Method("at_columns"),
        "row of a table [d, n] for the column of each patch -> [d, T]",
    ),
    op(
        "at_rows",
        &[tensor("w")],
        at_patches,
        Emit::Method("at_rows"),
        "row of a table [d, n] for the row of each patch -> [d, T]",
    ),
    op(
        "grid_sinusoids",
        &[positional("d", ParamKind::Int)],
        grid_sinusoids,
        Emit::Method("grid_sinusoids"),
        "sines and cosines of the column of each patch, then of its row -> [d, T]",
    ),
    op(
        "group_rows",
        &[tensor("x"), positional("n", ParamKind::Int)],
        group_rows,
        Emit::Method("group_rows"),
        "groups n consecutive columns: [d, T] -> [d, n, T / n]. `sum_heads` adds them, `merge` concatenates them",
    ),
    op(
        "keep",
        X,
        same_as_x,
        Emit::Method("keep"),
        "returns x; `kept` returns it again by the index of the call, from 0",
    ),
    op(
        "kept",
        &[
            tensor("x"),
            positional("calls", ParamKind::List),
            positional("i", ParamKind::Int),
        ],
        same_as_x,
        Emit::Method("kept"),
        "operand of call number `calls[i]` of `keep`. It has the shape of x",
    ),
    op(
        "sampled",
        &[
            tensor("x"),
            positional("n", ParamKind::Int),
            positional("places", ParamKind::List),
            positional("i", ParamKind::Int),
        ],
        pooled,
        Emit::Method("sampled"),
        "column `places[i]` of each n consecutive columns, or their mean if `places[i]` is -1: [d, T] -> [d, T / n]",
    ),
    op(
        "in_blocks",
        &[positional("w", ParamKind::Vector), positional("n", ParamKind::Int)],
        in_blocks,
        Emit::Method("table_in_blocks"),
        "rows of a square table [d, s * s] in the order of blocks of n * n",
    ),
    op(
        "mean_rows",
        X,
        mean_rows,
        Emit::Method("mean_rows"),
        "mean of all columns: [d, T] -> [d, 1]",
    ),
    op(
        "with_newlines",
        &[
            tensor("x"),
            positional("w", ParamKind::Vector),
            positional("n", ParamKind::Int),
        ],
        with_newlines,
        Emit::Method("with_newlines"),
        "x [d, T / n^2] with the vector `w` [d] after each line of blocks of n * n patches -> [d, T / n^2 + T_rows / n]",
    ),
    op(
        "join_rows",
        &[tensor("x"), tensor("y")],
        join_rows,
        Emit::Method("join_rows"),
        "concatenates the columns of x [d, n] and y [d, m] -> [d, n + m]. A vector [d] is one column",
    ),
    op(
        "drop_rows",
        &[tensor("x"), positional("n", ParamKind::Int)],
        drop_rows,
        Emit::Method("drop_rows"),
        "x without its first n columns: [d, T] -> [d, T - n]",
    ),
    op(
        "after_prefix",
        &[tensor("y"), tensor("x")],
        after_prefix,
        Emit::Method("after_prefix"),
        "y [d, T] without its first n columns, for x [c, n] -> [d, T - n]",
    ),
    op(
        "matching_rows",
        &[
            tensor("x"),
            positional("a", ParamKind::Vector),
            positional("b", ParamKind::Vector),
        ],
        matching_rows,
        Emit::Method("matching_rows"),
        "the table a or b with n columns, for x [c, n] -> [d, n]",
    ),
    op(
        "prefix_attention",
        &[tensor("q"), tensor("k"), tensor("v"), tensor("x")],
        prefix_attention,
        Emit::Method("prefix_attention"),
        "attends among the first n columns, for x [c, n], and causally from the later columns: q [d, h, T], k [d, g, T], \
         and v [dv, g, T] -> [dv * h, T]. The number of heads h is a multiple of g",
    ),
    op(
        "depthwise_grid",
        &[
            tensor("x"),
            positional("w", ParamKind::Vector),
            positional("stride", ParamKind::Int),
            keyword("same", ParamKind::Bool),
        ],
        depthwise_grid,
        Emit::Struct("depthwise_grid", "GridConvArgs"),
        "depthwise convolution, otherwise like `conv_grid`: x [c, T] and w [k * k, c] -> [c, T], or [c, T / 4] with stride 2",
    ),
    op(
        "in_windows",
        &[tensor("x"), positional("n", ParamKind::Int)],
        in_windows,
        Emit::Method("in_windows"),
        "columns of x [d, T] in windows of n * n patches -> [d, windows]. Windows at the right and at the bottom \
         are padded with zeros",
    ),
    op(
        "from_windows",
        &[tensor("x"), positional("n", ParamKind::Int)],
        from_windows,
        Emit::Method("from_windows"),
        "columns of `in_windows` in reading order -> [d, T]",
    ),
    op(
        "by_columns",
        &[tensor("x"), positional("n", ParamKind::Int)],
        by_columns,
        Emit::Method("by_columns"),
        "columns of x [d, T] or [d, n, T]. Blocks of n * n patches are reordered from line by line to column by \
         column",
    ),
    op(
        "by_lines",
        &[tensor("x"), positional("n", ParamKind::Int)],
        by_columns,
        Emit::Method("by_lines"),
        "columns of `by_columns`, reordered to line by line",
    ),
    op(
        "grid_attention",
        &[
            tensor("q"),
            tensor("k"),
            tensor("v"),
            positional("lines", ParamKind::Vector),
            positional("columns", ParamKind::Vector),
            maybe("side", ParamKind::Int),
        ],
        grid_attention,
        Emit::Method("grid_attention"),
        "attends to all columns, or to a window of `side` * `side` patches: q and k [d, n, T], v [dv, n, T] -> \
         [dv * n, T]. Scores include the products of the query with a row of `lines` and a row of `columns` [d, L]. \
         These rows are learned for each distance along both axes",
    ),
    op(
        "conv_grid",
        &[
            tensor("x"),
            positional("w", ParamKind::Linear),
            positional("stride", ParamKind::Int),
            keyword("same", ParamKind::Bool),
        ],
        conv_grid,
        Emit::Struct("conv_grid", "GridConvArgs"),
        "convolution of 3 x 3 taps over the lines of patches, between zeros: x [c, T] and w [9 * c -> m] -> [m, T]. \
         Stride 2 skips every other column and line: [m, T / 4], rounded up along both axes. With `same`, the \
         number of zeros is the smallest that covers all patches. The larger half of the zeros is at the right and \
         at the bottom",
    ),
    op(
        "resized_to",
        &[
            tensor("w"),
            tensor("x"),
            positional("first", ParamKind::Int),
            maybe("by", ParamKind::Word("TableFilter", FILTERS)),
        ],
        resized_to,
        Emit::Method("resized_to"),
        "rows of a square table [d, first + s * s] after the first ones, for x [c, n] -> [d, n]. They are resized \
         like `resized`, to the lines of x",
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
    // A table may store rows and columns in separate dimensions.
    (w.rank() == 3 || c.rank("w", 2, "[d, n]", "")).then(|| Shape(vec![w.dim(0), Dim::n_tokens()]))
}

fn rope_grid(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    c.rank("x", 3, "[d, n, T]", "; see `heads`").then_some(x)
}

fn with_class(c: &mut Call<'_>) -> Option<Shape> {
    let (x, w) = (c.shape("x")?, c.shape("w")?);
    if x.rank() == 2 && x.dim(1) == Dim::n_patches() && w.rank() == 1 && w.dim(0) == x.dim(0) {
        return Some(Shape(vec![x.dim(0), Dim::n_tokens()]));
    }
    c.fail(
        "w",
        format!("`with_class` expects x [d, T_patches] and w [d], found {x} and {w}"),
    );
    None
}

fn without_class(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    if x.rank() == 2 && x.dim(1) == Dim::n_tokens() {
        return Some(Shape(vec![x.dim(0), Dim::n_patches()]));
    }
    c.fail("x", format!("`without_class` expects x [d, T], found {x}"));
    None
}

fn at_patches(c: &mut Call<'_>) -> Option<Shape> {
    let w = c.shape("w")?;
    c.rank("w", 2, "[d, n]", "")
        .then(|| Shape(vec![w.dim(0), Dim::n_tokens()]))
}

fn grid_sinusoids(c: &mut Call<'_>) -> Option<Shape> {
    Some(Shape(vec![c.dim("d")?, Dim::n_tokens()]))
}

/// Returns the shape of a result with one column for each `n` columns of `x`.
pub(super) fn pooled(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    let rows = x.dim(1).div_known(&n, c.multiples);
    let rows = rows.unwrap_or_else(|| x.dim(1).div(&n));
    c.rank("x", 2, "[d, T]", "").then(|| Shape(vec![x.dim(0), rows]))
}

fn in_blocks(c: &mut Call<'_>) -> Option<Shape> {
    let w = c.shape("w")?;
    c.rank("w", 2, "[d, s * s]", "").then_some(w)
}

fn mean_rows(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    c.rank("x", 2, "[d, T]", "")
        .then(|| Shape(vec![x.dim(0), Dim::constant(1)]))
}

fn with_newlines(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    c.want("w", 0, &x.dim(0), "dimension 0 of `x`");
    let ranks = [c.rank("x", 2, "[d, T]", ""), c.rank("w", 1, "[d]", "")];
    let lines = Dim::symbol("T_rows").div(&n);
    (!ranks.contains(&false)).then(|| Shape(vec![x.dim(0), x.dim(1).add(&lines)]))
}

fn join_rows(c: &mut Call<'_>) -> Option<Shape> {
    let (x, y) = (c.shape("x")?, c.shape("y")?);
    c.want("y", 0, &x.dim(0), "dimension 0 of `x`");
    let columns = |shape: &Shape| match shape.rank() {
        1 => Some(Dim::constant(1)),
        2 => Some(shape.dim(1)),
        _ => None,
    };
    let ranks = [("x", columns(&x)), ("y", columns(&y))].map(|(name, columns)| match columns {
        Some(columns) => Some(columns),
        None => c.rank(name, 2, "[d, n]", "").then(|| Dim::constant(1)),
    });
    let [n, m] = ranks;
    Some(Shape(vec![x.dim(0), n?.add(&m?)]))
}

fn drop_rows(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    c.rank("x", 2, "[d, T]", "")
        .then(|| Shape(vec![x.dim(0), x.dim(1).sub(&n)]))
}

fn after_prefix(c: &mut Call<'_>) -> Option<Shape> {
    let (y, x) = (c.shape("y")?, c.shape("x")?);
    let ranks = [c.rank("y", 2, "[d, T]", ""), c.rank("x", 2, "[c, n]", "")];
    (!ranks.contains(&false)).then(|| Shape(vec![y.dim(0), y.dim(1).sub(&x.dim(1))]))
}

fn matching_rows(c: &mut Call<'_>) -> Option<Shape> {
    let (x, a) = (c.shape("x")?, c.shape("a")?);
    c.want("b", 0, &a.dim(0), "dimension 0 of `a`");
    let ranks = [
        c.rank("x", 2, "[c, n]", ""),
        c.rank("a", 2, "[d, n]", ""),
        c.rank("b", 2, "[d, n]", ""),
    ];
    (!ranks.contains(&false)).then(|| Shape(vec![a.dim(0), x.dim(1)]))
}

fn prefix_attention(c: &mut Call<'_>) -> Option<Shape> {
    let (q, k, v) = (c.shape("q")?, c.shape("k")?, c.shape("v")?);
    let ranks = [
        c.rank("q", 3, "[d, h, T]", "; see `heads`"),
        c.rank("k", 3, "[d, g, T]", "; see `heads`"),
        c.rank("v", 3, "[dv, g, T]", "; see `heads`"),
        c.rank("x", 2, "[c, n]", ""),
    ];
    if ranks.contains(&false) {
        return None;
    }
    c.want("k", 0, &q.dim(0), "dimension 0 of `q`");
    c.want("k", 2, &q.dim(2), "the columns of `q`");
    c.want("v", 1, &k.dim(1), "the heads of `k`");
    c.want("v", 2, &q.dim(2), "the columns of `q`");
    Some(Shape(vec![v.dim(0).mul(&q.dim(1)), q.dim(2)]))
}

fn depthwise_grid(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    c.want("w", 1, &x.dim(0), "dimension 0 of `x`");
    let ranks = [c.rank("w", 2, "[k * k, c]", ""), c.rank("x", 2, "[c, T]", "")];
    let columns = columns_after(c, "depthwise_grid", &x)?;
    (!ranks.contains(&false)).then(|| Shape(vec![x.dim(0), columns]))
}

/// Returns the number of columns after a convolution over the lines of `x`.
fn columns_after(c: &mut Call<'_>, name: &str, x: &Shape) -> Option<Dim> {
    let stride = c.dim("stride")?;
    match stride.as_constant() {
        Some(1) => Some(x.dim(1)),
        Some(2) => Some(x.dim(1).div(&Dim::constant(4))),
        _ => {
            c.fail("stride", format!("`{name}` has stride 1 or 2, found {stride}"));
            None
        }
    }
}

fn in_windows(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    let columns = Dim::opaque(&format!("{} in windows of {n}", x.dim(1)));
    c.rank("x", 2, "[d, T]", "").then(|| Shape(vec![x.dim(0), columns]))
}

fn from_windows(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    c.rank("x", 2, "[d, windows]", "")
        .then(|| Shape(vec![x.dim(0), Dim::n_tokens()]))
}

fn by_columns(c: &mut Call<'_>) -> Option<Shape> {
    let (x, _) = (c.shape("x")?, c.dim("n")?);
    let is_matrix = x.0.len() == 2;
    (is_matrix || c.rank("x", 3, "[d, T] or [d, n, T]", "")).then_some(x)
}

fn grid_attention(c: &mut Call<'_>) -> Option<Shape> {
    let (q, v) = (c.shape("q")?, c.shape("v")?);
    for name in ["lines", "columns"] {
        c.want(name, 0, &q.dim(0), "dimension 0 of `q`");
    }
    let ranks = [
        c.rank("q", 3, "[d, n, T]", "; see `heads`"),
        c.rank("k", 3, "[d, n, T]", "; see `heads`"),
        c.rank("v", 3, "[dv, n, T]", "; see `heads`"),
        c.rank("lines", 2, "[d, L]", ""),
        c.rank("columns", 2, "[d, L]", ""),
    ];
    if ranks.contains(&false) {
        return None;
    }
    c.want("k", 0, &q.dim(0), "dimension 0 of `q`");
    for i in [1, 2] {
        c.want("k", i, &q.dim(i), "the same dimension of `q`");
        c.want("v", i, &q.dim(i), "the same dimension of `q`");
    }
    Some(Shape(vec![v.dim(0).mul(&v.dim(1)), q.dim(2)]))
}

fn conv_grid(c: &mut Call<'_>) -> Option<Shape> {
    let (x, w) = (c.shape("x")?, c.shape("w")?);
    c.want("w", 0, &x.dim(0).mul(&Dim::constant(9)), "9 taps of dimension 0 of `x`");
    let columns = columns_after(c, "conv_grid", &x)?;
    c.rank("x", 2, "[c, T]", "").then(|| Shape(vec![w.dim(1), columns]))
}

fn resized_to(c: &mut Call<'_>) -> Option<Shape> {
    let (w, x) = (c.shape("w")?, c.shape("x")?);
    let ranks = [c.rank("w", 2, "[d, n]", ""), c.rank("x", 2, "[c, n]", "")];
    (!ranks.contains(&false)).then(|| Shape(vec![w.dim(0), x.dim(1)]))
}

fn transposed(c: &mut Call<'_>) -> Option<Shape> {
    let w = c.shape("w")?;
    c.rank("w", 2, "[n, m]", "").then(|| Shape(vec![w.dim(1), w.dim(0)]))
}
