//! Operations on earlier tokens and on earlier values of the residual stream, and padded logits.

use super::param::{epsilon, maybe, positional, required, tensor};
use super::shapes::short_conv;
use super::{Call, Emit, OpSpec, ParamKind, RMS_NORM_EPS, op};
use crate::sym::{Dim, Shape};

/// All operations of this module.
pub static OPS: &[OpSpec] = &[
    OpSpec {
        in_layer: true,
        ..op(
            "dilated_conv",
            &[
                tensor("x"),
                positional("w", ParamKind::Vector),
                positional("dilation", ParamKind::Int),
            ],
            short_conv,
            Emit::Method("dilated_conv"),
            "`short_conv` over every `dilation`th token",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "ngram_embed",
            &[
                positional("table", ParamKind::Embed),
                required("longest", ParamKind::Int),
                required("per_length", ParamKind::Int),
                required("multipliers", ParamKind::List),
                required("offsets", ParamKind::List),
                required("sizes", ParamKind::List),
                required("end", ParamKind::Int),
            ],
            ngram_embed,
            Emit::FullStruct("ngram_embed", "NgramArgs"),
            "rows of a table [d, rows] by hashes of the last 2 to `longest` tokens, `per_length` hashes for each length -> \
             [(longest - 1) * per_length * d, T]. The token i back is multiplied by `multipliers`[i]. Each hash selects \
             one of `sizes` rows starting at `offsets`. N-grams start after the token `end`",
        )
    },
    op(
        "bank",
        &[tensor("x"), maybe("bank", ParamKind::Tensor)],
        bank,
        Emit::Method("bank"),
        "appends x [n, T] to a bank of earlier values, or starts one -> [n, n_banked, T]",
    ),
    op(
        "recall",
        &[
            tensor("x"),
            tensor("bank"),
            positional("score", ParamKind::Vector),
            epsilon(RMS_NORM_EPS),
        ],
        recall,
        Emit::Method("recall"),
        "sum of x [n, T] and the values of a bank, weighted by the softmax of the dot products of `score` [n] with their \
         RMS norms -> [n, T]",
    ),
    op(
        "pad_logits",
        &[tensor("x"), positional("n", ParamKind::Int)],
        pad_logits,
        Emit::Method("pad_logits"),
        "prepends -infinity to x [m, T], the logits of the last m of n vocabulary entries -> [n, T]",
    ),
];

fn ngram_embed(c: &mut Call<'_>) -> Option<Shape> {
    let (table, longest, per_length) = (c.shape("table")?, c.dim("longest")?, c.dim("per_length")?);
    let heads = longest.sub(&Dim::constant(1)).mul(&per_length);
    Some(Shape(vec![heads.mul(&table.dim(0)), Dim::n_tokens()]))
}

fn bank(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    c.want("bank", 0, &x.dim(0), "dimension 0 of `x`");
    c.want("bank", 1, &Dim::banked(), "the result of `bank`");
    c.want("bank", 2, &x.dim(1), "the tokens of `x`");
    c.rank("x", 2, "[n, T]", "")
        .then(|| Shape(vec![x.dim(0), Dim::banked(), x.dim(1)]))
}

fn recall(c: &mut Call<'_>) -> Option<Shape> {
    let x = c.shape("x")?;
    c.want("bank", 0, &x.dim(0), "dimension 0 of `x`");
    c.want("bank", 1, &Dim::banked(), "the result of `bank`");
    c.want("bank", 2, &x.dim(1), "the tokens of `x`");
    c.want("score", 0, &x.dim(0), "dimension 0 of `x`");
    let is_vector = c.rank("score", 1, "[n]", "");
    (c.rank("x", 2, "[n, T]", "") && is_vector).then_some(x)
}

fn pad_logits(c: &mut Call<'_>) -> Option<Shape> {
    let (x, n) = (c.shape("x")?, c.dim("n")?);
    c.rank("x", 2, "[m, T]", "").then(|| x.with_dim0(n))
}
