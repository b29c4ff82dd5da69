//! Shape rules of the operations: one function each, which reports errors through the call.

use super::Call;
use crate::sym::{Dim, Multiple, Shape};

pub(super) fn same_as_x(c: &mut Call<'_>) -> Option<Shape> {
    c.shape("x")
}

pub(super) fn norm(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    c.want("w", 0, &x.dim(0), "dimension 0 of `x`");
    Some(x)
}

pub(super) fn heads(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    if x.rank() != 1 && !c.rank("x", 2, "[n * d, T]", "") {
        return None;
    }
    let Some(d) = x.dim(0).div_known(&n, c.multiples) else {
        let whole = x.dim(0);
        let hint = match Multiple::new(&whole, &n) {
            Some(_) => format!("; if it is one in every file, add `check {whole} % {n} == 0, \"…\";` to `hparams`"),
            None => String::new(),
        };
        let message =
            format!("`heads` splits dimension 0 into {n} equal heads, but {whole} is not a multiple of {n}{hint}");
        c.fail("n", message);
        return None;
    };
    let mut dims = vec![d, n, x.dim(1)];
    dims.truncate(x.rank() + 1);
    Some(Shape(dims))
}

pub(super) fn merge(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    c.rank("x", 3, "[d, n, T]", "")
        .then(|| Shape(vec![x.dim(0).mul(&x.dim(1)), x.dim(2)]))
}

const CUT_FIRST: &str = "; split it first: `heads(x, n)`";

pub(super) fn rope(c: &mut Call<'_>) -> Option<Shape> {
    c.rank("x", 3, "[d, n, T]", CUT_FIRST).then(|| c.shape("x"))?
}

pub(super) fn attention_temperature(_: &mut Call<'_>) -> Option<Shape> {
    Some(Shape(vec![Dim::constant(1), Dim::constant(1), Dim::n_tokens()]))
}

pub(super) fn attention(c: &mut Call<'_>) -> Option<Shape> {
    let tokens = c.shape("q")?.dim(2);
    attends(c, &tokens, "the tokens of `q`")
}

pub(super) fn cross_attention(c: &mut Call<'_>) -> Option<Shape> {
    attends(c, &Dim::symbol("T_encoded"), "the encoded tokens")
}

/// Computes the shape of attention over `n_keys` keys.
fn attends(c: &mut Call<'_>, n_keys: &Dim, why: &str) -> Option<Shape> {
    let (q, k) = (c.shape("q")?, c.shape("k")?);
    let dv = match (c.shape("v"), c.dim("v_in_k")) {
        (Some(v), None) => v.dim(0),
        (None, Some(n)) => n,
        _ => {
            let message = "`attention` needs either values, `attention(q, k, v)`, or `v_in_k = …`, the number of value elements in each key";
            c.errors.at(c.at.clone(), message);
            return None;
        }
    };
    let ranks = [
        c.rank("q", 3, "[dk, n, T]", CUT_FIRST),
        c.rank("k", 3, "[dk, m, T]", CUT_FIRST),
        c.shape("v").is_none() || c.rank("v", 3, "[dv, m, T]", CUT_FIRST),
    ];
    if ranks.contains(&false) {
        return None;
    }
    c.want("k", 0, &q.dim(0), "dimension 0 of `q`");
    c.want("v", 1, &k.dim(1), "the heads of `k`");
    c.want("k", 2, n_keys, why);
    c.want("v", 2, n_keys, why);
    c.want("sinks", 0, &q.dim(1), "the heads of `q`");
    c.want("relative", 0, &q.dim(1), "the heads of `q`");
    if c.shape("v").is_some() && c.shape("compressed").is_some() {
        c.fail("compressed", "`compressed` requires `v_in_k`".to_owned());
    }
    for i in 0..3 {
        c.want("compressed", i, &k.dim(i), "as in `k`");
    }
    Some(Shape(vec![dv.mul(&q.dim(1)), q.dim(2)]))
}

pub(super) fn attention_over(c: &mut Call<'_>) -> Option<Shape> {
    let (q, dv) = (c.shape("q")?, c.dim("dv")?);
    c.want("sinks", 0, &q.dim(1), "the heads of `q`");
    c.rank("q", 3, "[dk, n, T]", CUT_FIRST)
        .then(|| Shape(vec![dv.mul(&q.dim(1)), q.dim(2)]))
}

pub(super) fn short_conv(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    // Files store the single input channel of each filter as a dimension of size 1, or omit it.
    let channels = if c.shape("w")?.rank() == 3 { 2 } else { 1 };
    c.want("w", channels, &x.dim(0), "dimension 0 of `x`");
    if channels == 2 {
        c.want("w", 1, &Dim::constant(1), "one input channel per filter");
    }
    c.want("bias", 0, &x.dim(0), "dimension 0 of `x`");
    c.rank("x", 2, "[c, T]", "").then_some(x)
}

pub(super) fn ssm_scan(c: &mut Call<'_>) -> Option<Shape> {
    let (x, b) = (c.shape("x")?, c.shape("b")?);
    let ranks = [
        c.rank("x", 3, "[p, h, T]", CUT_FIRST),
        c.rank("b", 3, "[n, g, T]", CUT_FIRST),
        c.rank("c", 3, "[n, g, T]", CUT_FIRST),
        c.rank("dt", 2, "[h, T]", ""),
    ];
    if ranks.contains(&false) {
        return None;
    }
    c.want("c", 0, &b.dim(0), "dimension 0 of `b`");
    c.want("c", 1, &b.dim(1), "the groups of `b`");
    c.want("dt", 0, &x.dim(1), "the heads of `x`");
    if c.shape("a").is_some_and(|a| a.rank() == 1) {
        c.want("a", 0, &x.dim(1), "the heads of `x`");
        return Some(x);
    }
    c.want("a", 1, &x.dim(1), "the heads of `x`");
    if c.shape("a").is_some_and(|a| a.dim(0) != Dim::constant(1)) {
        c.want("a", 0, &b.dim(0), "dimension 0 of `b`, or 1");
    }
    Some(x)
}

pub(super) fn compress(c: &mut Call<'_>) -> Option<Shape> {
    let (x, width) = (c.shape("x")?, c.dim("width")?);
    for i in 0..2 {
        c.want("gate", i, &x.dim(i), "as in `x`");
    }
    c.want("places", 0, &x.dim(0), "dimension 0 of `x`");
    c.rank("x", 2, "[w, T]", "").then(|| x.with_dim0(width))
}

pub(super) fn wkv(c: &mut Call<'_>) -> Option<Shape> {
    let r = c.shape("r")?;
    if !c.rank("r", 3, "[d, h, T]", CUT_FIRST) {
        return None;
    }
    for i in 0..3 {
        for name in ["k", "v", "w", "a", "b"] {
            c.want(name, i, &r.dim(i), "as in `r`");
        }
    }
    for i in 0..2 {
        c.want("u", i, &r.dim(i), "as in `r`");
    }
    Some(r)
}

pub(super) fn linear_attention(c: &mut Call<'_>) -> Option<Shape> {
    let (q, v) = (c.shape("q")?, c.shape("v")?);
    let ranks = [
        c.rank("q", 3, "[dk, m, T]", CUT_FIRST),
        c.rank("k", 3, "[dk, m, T]", CUT_FIRST),
        c.rank("v", 3, "[dv, n, T]", CUT_FIRST),
    ];
    if ranks.contains(&false) {
        return None;
    }
    for i in 0..3 {
        c.want("k", i, &q.dim(i), "as in `q`");
    }
    c.want("v", 2, &q.dim(2), "the tokens of `q`");
    for i in 1..3 {
        c.want("decay", i, &v.dim(i), "as in `v`");
        c.want("beta", i, &v.dim(i), "as in `v`");
    }
    if c.shape("decay").is_some_and(|decay| decay.dim(0) != q.dim(0)) {
        c.want("decay", 0, &Dim::constant(1), "1, or one per channel of `k`");
    }
    c.want("beta", 0, &Dim::constant(1), "a number");
    Some(v)
}

pub(super) fn mamba2(c: &mut Call<'_>) -> Option<Shape> {
    let (x, inner, a) = (c.shape("x")?, c.dim("inner")?, c.shape("a")?);
    let bc = c.dim("n_group")?.mul(&c.dim("n_state")?);
    let conv = inner.add(&bc).add(&bc);
    let heads = a.dim(a.rank().saturating_sub(1));
    c.want("x", 0, &inner.add(&conv).add(&heads), "gates, values, B, C, and steps");
    c.want("conv", 1, &conv, "values, B, and C");
    c.want("conv_bias", 0, &conv, "values, B, and C");
    c.want("dt_bias", 0, &heads, "the heads of `a`");
    c.rank("x", 2, "[n, T]", "").then(|| x.with_dim0(inner))
}

pub(super) fn index_cells(c: &mut Call<'_>) -> Option<Shape> {
    let (q, n) = (indexes(c)?, c.dim("n")?);
    Some(Shape(vec![n, q.dim(2)]))
}

pub(super) fn index_blocks(c: &mut Call<'_>) -> Option<Shape> {
    let (q, n) = (indexes(c)?, c.dim("n")?.mul(&c.dim("size")?));
    Some(Shape(vec![n, q.dim(1), q.dim(2)]))
}

/// Checks the operands of an indexer against its queries.
fn indexes(c: &mut Call<'_>) -> Option<Shape> {
    let q = c.shape("q")?;
    if !c.rank("q", 3, "[d, h, T]", CUT_FIRST) || !c.rank("k", 3, "[d, 1, T]", CUT_FIRST) {
        return None;
    }
    c.want("k", 0, &q.dim(0), "dimension 0 of `q`");
    c.want("k", 1, &Dim::constant(1), "one key for all heads");
    c.want("weights", 0, &q.dim(1), "the heads of `q`");
    c.want("weights", 1, &q.dim(2), "the tokens of `q`");
    Some(q)
}

pub(super) fn last_tokens(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    c.rank("x", 2, "[c, T]", "").then(|| Shape(vec![x.dim(0), n, x.dim(1)]))
}

pub(super) fn softmax_heads(c: &mut Call<'_>) -> Option<Shape> {
    c.rank("x", 3, "[d, n, T]", CUT_FIRST).then(|| c.shape("x"))?
}

pub(super) fn moe(c: &mut Call<'_>) -> Option<Shape> {
    let (x, down) = (c.shape("x")?, c.shape("down")?);
    let (n_ff, n_expert) = (down.dim(0), down.dim(2));
    if c.shape("up").is_none() && c.shape("gate_up").is_none() {
        c.errors.at(
            c.at.clone(),
            "`moe` needs `up = …`, or `gate_up = …` for gates and ups in one tensor",
        );
        return None;
    }
    for (name, width) in [
        ("up", n_ff.clone()),
        ("gate", n_ff.clone()),
        ("gate_up", n_ff.add(&n_ff)),
    ] {
        c.want(name, 0, &x.dim(0), "dimension 0 of `x`");
        c.want(name, 1, &width, "input size of `down`");
        c.want(name, 2, &n_expert, "the experts of `down`");
    }
    c.want("down", 1, &x.dim(0), "dimension 0 of `x`");
    // With several ids per expert, the router has more outputs than there are experts.
    let n_ids = match c.dim("ids_per_expert") {
        Some(_) => c.shape("router")?.dim(0),
        None => n_expert,
    };
    c.want("router", 0, &n_ids, "the experts of `down`");
    c.want("router", 1, &x.dim(1), "the tokens of `x`");
    c.want("selection", 0, &n_ids, "the experts of `router`");
    c.want("selection", 1, &x.dim(1), "the tokens of `x`");
    c.want("selection_bias", 0, &n_ids, "the experts of `down`");
    c.want("ids", 1, &x.dim(1), "the tokens of `x`");
    Some(x.with_dim0(down.dim(1)))
}

pub(super) fn sum_rows(c: &mut Call<'_>) -> Option<Shape> {
    Some(c.shape("x")?.with_dim0(Dim::constant(1)))
}

pub(super) fn mix_heads(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    c.want("m", 0, &x.dim(1).mul(&x.dim(1)), "square of the number of heads of `x`");
    c.want("m", 1, &x.dim(2), "the tokens of `x`");
    c.rank("x", 3, "[d, n, T]", CUT_FIRST).then_some(x)
}

pub(super) fn repeat_heads(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    c.rank("x", 3, "[d, m, T]", CUT_FIRST)
        .then(|| Shape(vec![x.dim(0), n, x.dim(2)]))
}

pub(super) fn part(c: &mut Call<'_>) -> Option<Shape> {
    let w = c.shape("w")?;
    if w.rank() < 2 {
        c.fail(
            "w",
            format!("`part` expects `w` with at least two dimensions, found {w}"),
        );
        return None;
    }
    let mut dims: Vec<Dim> = (0..w.rank() - 1).map(|i| w.dim(i)).collect();
    while dims.len() > 1 && dims.last() == Some(&Dim::constant(1)) {
        dims.pop();
    }
    Some(Shape(dims))
}

pub(super) fn matmul(c: &mut Call<'_>) -> Option<Shape> {
    let (a, x) = (c.shape("a")?, c.shape("x")?);
    c.want("x", 0, &a.dim(0), "dimension 0 of `a`");
    c.rank("a", 2, "[k, m]", "").then(|| x.with_dim0(a.dim(1)))
}

/// Returns the shape of a declared tensor.
pub(super) fn weight(c: &mut Call<'_>) -> Option<Shape> {
    c.shape("w")
}

pub(super) fn linear_without_bias(c: &mut Call<'_>) -> Option<Shape> {
    let (w, x) = (c.shape("w")?, c.shape("x")?);
    c.want("x", 0, &w.dim(0), "what `w` takes");
    Some(x.with_dim0(w.dim(1)))
}

/// Returns the shape of `n` cell numbers per token.
pub(super) fn shared_selection(c: &mut Call<'_>) -> Option<Shape> {
    Some(Shape(vec![c.dim("n")?, Dim::n_tokens()]))
}

pub(super) fn row(c: &mut Call<'_>) -> Option<Shape> {
    let w = c.shape("w")?;
    c.rank("w", 2, "[n, rows]", "").then(|| Shape(vec![w.dim(0)]))
}

pub(super) fn sum_heads(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    c.rank("x", 3, "[d, n, T]", CUT_FIRST)
        .then(|| Shape(vec![x.dim(0), x.dim(2)]))
}

pub(super) fn concat(c: &mut Call<'_>) -> Option<Shape> {
    let (a, b) = (c.shape("a")?, c.shape("b")?);
    for i in 1..4 {
        c.want("b", i, &a.dim(i), "as in `a`");
    }
    Some(a.with_dim0(a.dim(0).add(&b.dim(0))))
}
