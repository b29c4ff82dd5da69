//! Operations of audio encoders, documented in docs/encoders.md.

use super::media::pooled;
use super::param::{keyword, keyword_some, maybe};
use super::{Call, Emit, OpSpec, ParamKind, op, positional, tensor};
use crate::sym::{Dim, Shape};

/// All operations of audio encoders.
pub static OPS: &[OpSpec] = &[
    op(
        "interleave",
        &[tensor("x"), positional("n", ParamKind::Int)],
        interleave,
        Emit::Method("interleave"),
        "interleaves n consecutive parts of dimension 0: [n * d, T] -> [n * d, T]. Weights of convolutions over n \
         columns have this order in files",
    ),
    op(
        "pool_rows",
        &[tensor("x"), positional("n", ParamKind::Int)],
        pooled,
        Emit::Method("pool_rows"),
        "mean of n consecutive columns: [d, T] -> [d, T / n]; a remainder of fewer than n columns is dropped",
    ),
    op(
        "stack_rows",
        &[tensor("x"), positional("n", ParamKind::Int)],
        stack_rows,
        Emit::Method("stack_rows"),
        "concatenates n consecutive columns: [d, T] -> [d * n, T / n rounded up]. Zeros follow the last column",
    ),
    op(
        "conv_2d",
        &[
            tensor("x"),
            positional("w", ParamKind::Linear),
            keyword("time_first", ParamKind::Bool),
        ],
        conv_2d,
        Emit::Struct("conv_2d", "Conv2dArgs"),
        "convolution of 3 x 3 taps with stride 2, between zeros: x [c, F, T] and w [9 * c -> m] -> [m, F / 2, T / 2], \
         rounded up. Weights have the taps of F first, or the taps of T with `time_first`",
    ),
    op(
        "conv_frames",
        &[tensor("x"), positional("w", ParamKind::Linear)],
        conv_frames,
        Emit::Method("conv_frames"),
        "convolution of 3 x 3 taps with stride 2 over windows of n frames: x [c * F, n, T] and w [9 * c -> m] -> \
         [m * F / 2, (n - 1) / 2, T]. F / 2 is rounded up, between zeros. Weights have the taps of frames first",
    ),
    op(
        "depthwise",
        &[
            tensor("x"),
            positional("w", ParamKind::Vector),
            positional("before", ParamKind::Int),
        ],
        depthwise,
        Emit::Method("depthwise"),
        "depthwise convolution over columns, between zeros: x [c, T], w [k, c] -> [c, T]. `before` of the k columns \
         precede the column of the result",
    ),
    op(
        "depthwise_2d",
        &[tensor("x"), positional("w", ParamKind::Vector)],
        depthwise_2d,
        Emit::Method("depthwise_2d"),
        "depthwise convolution with 3 x 3 taps and stride 2, between zeros: x [c, F, T] and w [9, c] -> [c, F / 2, \
         T / 2], rounded up. Weights have the taps of F first",
    ),
    op(
        "batch_norm",
        &[
            tensor("x"),
            positional("mean", ParamKind::Vector),
            positional("variance", ParamKind::Vector),
            positional("eps", ParamKind::Float),
        ],
        batch_norm,
        Emit::Method("batch_norm"),
        "(x - mean) / sqrt(variance + eps), with a mean and a variance for each value of a column: x [d, T] -> [d, T]",
    ),
    op(
        "local_attention",
        &[
            tensor("q"),
            tensor("k"),
            tensor("v"),
            tensor("relative"),
            positional("before", ParamKind::Int),
            keyword_some("scale", ParamKind::Float),
            keyword_some("softcap", ParamKind::Float),
        ],
        local_attention,
        Emit::Struct("local_attention", "LocalAttentionArgs"),
        "attends to neighbors: q and k [d, n, T], v [dv, n, T] -> [dv * n, T]. Of the W neighbors, `before` precede the \
         column. `relative` [d * n, W] is added to their keys. `scale` defaults to 1/sqrt(d)",
    ),
    op(
        "sinusoids",
        &[
            positional("d", ParamKind::Int),
            positional("before", ParamKind::Int),
            positional("after", ParamKind::Int),
        ],
        sinusoids,
        Emit::Method("sinusoids"),
        "sines and cosines of the distances from `before` down to -`after` -> [d, before + 1 + after]",
    ),
    op(
        "sinusoids_of",
        &[tensor("x"), positional("d", ParamKind::Int)],
        sinusoids_of,
        Emit::Method("sinusoids_of"),
        "alternating sines and cosines of the distances between the columns of x [c, T] -> [d, 2 * T - 1]. \
         Distances descend from T - 1 to 1 - T",
    ),
    op(
        "distance_attention",
        &[
            tensor("q"),
            tensor("k"),
            tensor("v"),
            tensor("relative"),
            positional("content_bias", ParamKind::Vector),
            positional("distance_bias", ParamKind::Vector),
        ],
        distance_attention,
        Emit::Method("distance_attention"),
        "attends to all columns: q and k [d, n, T], v [dv, n, T] -> [dv * n, T]. A score is (q + `content_bias`) * k \
         + (q + `distance_bias`) * r, where r is the column of `relative` [d * n, 2 * T - 1] for the distance. \
         Distances descend from T - 1, and biases are [d, n]",
    ),
    OpSpec {
        rotates: true,
        ..op(
            "rope_time",
            &[
                tensor("x"),
                positional("base", ParamKind::Float),
                positional("dims", ParamKind::Int),
                keyword("halves", ParamKind::Bool),
            ],
            rope_time,
            Emit::Struct("rope_time", "RopeTimeArgs"),
            "rotates the pairs (2 i, 2 i + 1) of the first `dims` values of [d, n, T] by the position of the \
             column. With `halves`, the pairs are (i, i + dims / 2)",
        )
    },
    op(
        "sounding",
        &[
            tensor("x"),
            positional("n", ParamKind::Int),
            positional("first", ParamKind::Vector),
            positional("last", ParamKind::Vector),
        ],
        sounding,
        Emit::Method("sounding"),
        "leading columns (n positions each) that contain sound: [d, T / n] -> [d, T_sound / n + 2]. The vectors \
         `first` and `last` [d] enclose them",
    ),
    op(
        "block_attention",
        &[
            tensor("q"),
            tensor("k"),
            tensor("v"),
            positional("size", ParamKind::Int),
            positional("keys", ParamKind::Int),
            maybe("relative", ParamKind::Tensor),
        ],
        block_attention,
        Emit::Method("block_attention"),
        "attends from each block of `size` columns to the block of `keys` columns with the same index: q [d, n, T], \
         k [d, n, U], and v [dv, n, U] -> [dv * n, T]. `relative` [d, size + keys - 1] is added to the keys by their \
         distance, from the largest one down",
    ),
    op(
        "full_attention",
        &[tensor("q"), tensor("k"), tensor("v")],
        attention_to_columns,
        Emit::Method("full_attention"),
        "attends from each column to all: q [d, n, T], k [d, n, U], and v [dv, n, U] -> [dv * n, T]. T and U are any \
         numbers of columns. All heads of q may share one head of k and v",
    ),
    op(
        "at_distances",
        &[
            tensor("w"),
            positional("before", ParamKind::Int),
            positional("after", ParamKind::Int),
        ],
        at_distances,
        Emit::Method("at_distances"),
        "rows of a table [d, n] for the distances from `before` down to -`after` -> [d, before + 1 + after]. The middle \
         row is for distance 0",
    ),
    op(
        "padded_rows",
        &[tensor("x"), positional("n", ParamKind::Int)],
        padded_rows,
        Emit::Method("padded_rows"),
        "pads with columns of zeros to a multiple of n columns: [d, T] -> [d, T rounded up]",
    ),
    op(
        "repeat_rows",
        &[tensor("w"), tensor("x"), positional("n", ParamKind::Int)],
        repeat_rows,
        Emit::Method("repeat_rows"),
        "the columns of w [d, m], repeated for every n columns of x [c, T] -> [d, T / n * m]",
    ),
    op(
        "prepend",
        &[tensor("x"), positional("n", ParamKind::Int), tensor("y")],
        prepend,
        Emit::Method("prepend"),
        "concatenates n copies of x [d, T] and y [e, T] -> [n * d + e, T]",
    ),
];

fn conv_2d(c: &mut Call<'_>) -> Option<Shape> {
    let (x, w) = (c.shape("x")?, c.shape("w")?);
    let taps = x.dim(0).mul(&Dim::constant(9));
    c.want("w", 0, &taps, "9 taps of dimension 0 of `x`");
    let half = |i: usize| x.dim(i).add(&Dim::constant(1)).div(&Dim::constant(2));
    c.rank("x", 3, "[c, F, T]", "")
        .then(|| Shape(vec![w.dim(1), half(1), half(2)]))
}

fn conv_frames(c: &mut Call<'_>) -> Option<Shape> {
    let (x, w) = (c.shape("x")?, c.shape("w")?);
    if !c.rank("x", 3, "[c * F, n, T]", "") {
        return None;
    }
    let one = Dim::constant(1);
    let channels = w.dim(0).div_exact(&Dim::constant(9));
    let Some(f) = channels.and_then(|channels| x.dim(0).div_exact(&channels)) else {
        let message = format!(
            "`conv_frames`: dimension 0 of `w` must be 9 taps of each channel of `x`, found {} for {} values",
            w.dim(0),
            x.dim(0)
        );
        c.fail("w", message);
        return None;
    };
    let half = f.add(&one).div(&Dim::constant(2));
    let frames = x.dim(1).sub(&one).div(&Dim::constant(2));
    Some(Shape(vec![w.dim(1).mul(&half), frames, x.dim(2)]))
}

fn depthwise(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    c.want("w", 1, &x.dim(0), "dimension 0 of `x`");
    (c.rank("w", 2, "[k, c]", "") && c.rank("x", 2, "[c, T]", "")).then_some(x)
}

fn depthwise_2d(c: &mut Call<'_>) -> Option<Shape> {
    let (x, w) = (c.shape("x")?, c.shape("w")?);
    c.want("w", 1, &x.dim(0), "dimension 0 of `x`");
    if w.dim(0) != Dim::constant(9) {
        c.fail(
            "w",
            format!("`depthwise_2d` needs 9 taps of each channel, found {}", w.dim(0)),
        );
    }
    let half = |i: usize| x.dim(i).add(&Dim::constant(1)).div(&Dim::constant(2));
    (c.rank("w", 2, "[9, c]", "") && c.rank("x", 3, "[c, F, T]", "")).then(|| Shape(vec![x.dim(0), half(1), half(2)]))
}

fn batch_norm(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    for of_channel in ["mean", "variance"] {
        c.want(of_channel, 0, &x.dim(0), "dimension 0 of `x`");
        c.rank(of_channel, 1, "[d]", "");
    }
    c.rank("x", 2, "[d, T]", "").then_some(x)
}

fn sinusoids_of(c: &mut Call<'_>) -> Option<Shape> {
    let (x, d) = (c.shape("x")?, c.dim("d")?);
    c.rank("x", 2, "[c, T]", "")
        .then(|| Shape(vec![d, distances_of(&x.dim(1))]))
}

/// Returns the number of distances between `n` columns.
fn distances_of(n: &Dim) -> Dim {
    n.add(n).sub(&Dim::constant(1))
}

fn distance_attention(c: &mut Call<'_>) -> Option<Shape> {
    let (q, v) = (c.shape("q")?, c.shape("v")?);
    let ranks = [
        c.rank("q", 3, "[d, n, T]", ""),
        c.rank("k", 3, "[d, n, T]", ""),
        c.rank("v", 3, "[dv, n, T]", ""),
        c.rank("relative", 2, "[d * n, 2 * T - 1]", ""),
        c.rank("content_bias", 2, "[d, n]", ""),
        c.rank("distance_bias", 2, "[d, n]", ""),
    ];
    if ranks.contains(&false) {
        return None;
    }
    for i in 0..3 {
        c.want("k", i, &q.dim(i), "as in `q`");
    }
    for i in 1..3 {
        c.want("v", i, &q.dim(i), "as in `q`");
    }
    for bias in ["content_bias", "distance_bias"] {
        for i in 0..2 {
            c.want(bias, i, &q.dim(i), "as in `q`");
        }
    }
    c.want("relative", 0, &q.dim(0).mul(&q.dim(1)), "the keys of all heads");
    c.want("relative", 1, &distances_of(&q.dim(2)), "the distances between columns");
    Some(Shape(vec![v.dim(0).mul(&q.dim(1)), q.dim(2)]))
}

fn local_attention(c: &mut Call<'_>) -> Option<Shape> {
    let (q, v, relative) = (c.shape("q")?, c.shape("v")?, c.shape("relative")?);
    let ranks = [
        c.rank("q", 3, "[d, n, T]", ""),
        c.rank("k", 3, "[d, n, T]", ""),
        c.rank("v", 3, "[dv, n, T]", ""),
        c.rank("relative", 2, "[d * n, W]", ""),
    ];
    if ranks.contains(&false) {
        return None;
    }
    c.want("k", 0, &q.dim(0), "dimension 0 of `q`");
    for i in 1..3 {
        c.want("k", i, &q.dim(i), "as in `q`");
        c.want("v", i, &q.dim(i), "as in `q`");
    }
    c.want("relative", 0, &q.dim(0).mul(&q.dim(1)), "the keys of all heads");
    if let (Some(before), Some(width)) = (c.dim("before"), relative.dim(1).as_constant())
        && before.as_constant().is_some_and(|before| before >= width)
    {
        c.fail(
            "before",
            format!("`local_attention` has {width} neighbors; {before} cannot precede the column"),
        );
    }
    Some(Shape(vec![v.dim(0).mul(&q.dim(1)), q.dim(2)]))
}

fn sinusoids(c: &mut Call<'_>) -> Option<Shape> {
    let (d, before, after) = (c.dim("d")?, c.dim("before")?, c.dim("after")?);
    Some(Shape(vec![d, before.add(&after).add(&Dim::constant(1))]))
}

fn rope_time(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    c.rank("x", 3, "[d, n, T]", "; see `heads`").then_some(x)
}

fn sounding(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    for side in ["first", "last"] {
        c.want(side, 0, &x.dim(0), "dimension 0 of `x`");
        c.rank(side, 1, "[d]", "");
    }
    let columns = Dim::symbol("T_sound").div(&n).add(&Dim::constant(2));
    c.rank("x", 2, "[d, T / n]", "").then(|| Shape(vec![x.dim(0), columns]))
}

fn attention_to_columns(c: &mut Call<'_>) -> Option<Shape> {
    let (q, k, v) = (c.shape("q")?, c.shape("k")?, c.shape("v")?);
    let ranks = [
        c.rank("q", 3, "[d, n, T]", ""),
        c.rank("k", 3, "[d, n, U]", ""),
        c.rank("v", 3, "[dv, n, U]", ""),
    ];
    if ranks.contains(&false) {
        return None;
    }
    c.want("k", 0, &q.dim(0), "dimension 0 of `q`");
    if k.dim(1).as_constant() != Some(1) {
        c.want("k", 1, &q.dim(1), "the heads of `q`");
    }
    for i in 1..3 {
        c.want("v", i, &k.dim(i), "as in `k`");
    }
    Some(Shape(vec![v.dim(0).mul(&q.dim(1)), q.dim(2)]))
}

fn block_attention(c: &mut Call<'_>) -> Option<Shape> {
    let (size, keys) = (c.dim("size")?, c.dim("keys")?);
    let all = attention_to_columns(c)?;
    if c.shape("relative").is_some() {
        let d = c.shape("q")?.dim(0);
        c.want("relative", 0, &d, "dimension 0 of `q`");
        let distances = size.add(&keys).sub(&Dim::constant(1));
        c.want("relative", 1, &distances, "the distances in a block");
    }
    Some(all)
}

fn at_distances(c: &mut Call<'_>) -> Option<Shape> {
    let (w, before, after) = (c.shape("w")?, c.dim("before")?, c.dim("after")?);
    let columns = before.add(&after).add(&Dim::constant(1));
    c.rank("w", 2, "[d, n]", "").then(|| Shape(vec![w.dim(0), columns]))
}

fn padded_rows(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    let columns = x.dim(1).add(&n).sub(&Dim::constant(1)).div(&n).mul(&n);
    c.rank("x", 2, "[d, T]", "").then(|| Shape(vec![x.dim(0), columns]))
}

fn repeat_rows(c: &mut Call<'_>) -> Option<Shape> {
    let (w, x, n) = (c.shape("w")?, c.shape("x")?, c.dim("n")?);
    let groups = x.dim(1).div_known(&n, c.multiples);
    let columns = groups.unwrap_or_else(|| x.dim(1).div(&n)).mul(&w.dim(1));
    let ranks = [c.rank("w", 2, "[d, m]", ""), c.rank("x", 2, "[c, T]", "")];
    (!ranks.contains(&false)).then(|| Shape(vec![w.dim(0), columns]))
}

fn prepend(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n, y) = (c.shape("x")?, c.dim("n")?, c.shape("y")?);
    c.want("x", 1, &y.dim(1), "the columns of `y`");
    let ranks = [c.rank("x", 2, "[d, T]", ""), c.rank("y", 2, "[e, T]", "")];
    (!ranks.contains(&false)).then(|| Shape(vec![x.dim(0).mul(&n).add(&y.dim(0)), y.dim(1)]))
}

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

fn stack_rows(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    let rows = x.dim(1).add(&n).sub(&Dim::constant(1)).div(&n);
    c.rank("x", 2, "[d, T]", "")
        .then(|| Shape(vec![x.dim(0).mul(&n), rows]))
}
