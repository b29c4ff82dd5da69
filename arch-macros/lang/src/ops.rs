//! Table of the operations of the graph language: names, parameters, shape rules, code generation, and
//! documentation.

mod audio;
mod call;
mod history;
mod media;
mod param;
mod shapes;

use crate::builtins::{LAYER_NORM_EPS, RMS_NORM_EPS};
use crate::sym::Shape;
pub use call::{Call, OpOperand};
pub use param::{Given, Param, ParamKind};
use param::{epsilon, keyword, keyword_some, maybe, positional, required, tensor};
use shapes::{
    attention, attention_over, attention_temperature, compress, concat, cross_attention, heads, index_blocks,
    index_cells, last_tokens, linear_attention, linear_without_bias, mamba2, matmul, merge, mix_heads, moe, norm, part,
    repeat_heads, rope, row, same_as_x, shared_selection, short_conv, softmax_heads, ssm_scan, sum_heads, sum_rows,
    weight, wkv,
};

/// An operation of the graph language.
#[derive(Debug)]
pub struct OpSpec {
    pub name: &'static str,
    /// Documentation: the computation, with shapes.
    pub doc: &'static str,
    /// Parameters of the operation; positional parameters come first.
    pub params: &'static [Param],
    /// Shape rule. Returns the shape of the result and reports errors through the call.
    pub shape: fn(&mut Call<'_>) -> Option<Shape>,
    /// Form of the generated builder call.
    pub emit: Emit,
    /// The operation writes to the KV cache or state of a layer, so it is valid only inside the layer loop.
    pub in_layer: bool,
    /// The operation applies RoPE and requires `rope:` in the declaration.
    pub rotates: bool,
}

/// Form of the generated builder call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Emit {
    /// `b.method(arguments)`
    Method(&'static str),
    /// `b.method()`; the arguments only determine the shape.
    Bare(&'static str),
    /// `b.method(arguments, 0)`: the operation works along dimension 0.
    Dim0(&'static str),
    /// `b.unary(Unary::Variant, x)`
    Unary(&'static str),
    /// `b.method(positional, Struct { keywords, ..Default::default() })`
    Struct(&'static str, &'static str),
    /// Like `Struct`, for structs that do not implement `Default`: omitted arguments are written out.
    FullStruct(&'static str, &'static str),
}

/// Kinds of windows. The engine has a function of the same name for each.
pub static WINDOWS: &[&str] = &["sliding", "chunked", "symmetric"];

const GATINGS: &[(&str, &str)] = &[
    ("softmax", "Softmax"),
    ("sigmoid", "Sigmoid"),
    ("softmax_weight", "SoftmaxWeight"),
    ("none", "None"),
];

const MEDIA: &[(&str, &str)] = &[("whole", "Whole")];

const fn op(name: &'static str, params: &'static [Param], shape: ShapeRule, emit: Emit, doc: &'static str) -> OpSpec {
    OpSpec {
        name,
        doc,
        params,
        shape,
        emit,
        in_layer: false,
        rotates: false,
    }
}

const fn unary(name: &'static str, variant: &'static str, doc: &'static str) -> OpSpec {
    op(name, X, same_as_x, Emit::Unary(variant), doc)
}

const X: &[Param] = &[tensor("x")];

type ShapeRule = fn(&mut Call<'_>) -> Option<Shape>;

use ParamKind::{Activation, Bool, Experts, Float, Int, NormWeight, RmsWeight, Vector, Window, Word};

/// All operations.
pub static OPS: &[OpSpec] = &[
    op(
        "rms_norm",
        &[tensor("x"), maybe("w", RmsWeight), epsilon(RMS_NORM_EPS)],
        norm,
        Emit::Method("rms_norm"),
        "RMS norm over dimension 0: x / sqrt(mean(x^2) + eps), times `w`",
    ),
    op(
        "layer_norm",
        &[tensor("x"), maybe("w", NormWeight), epsilon(LAYER_NORM_EPS)],
        norm,
        Emit::Method("layer_norm"),
        "layer norm over dimension 0: (x - mean(x)) / sqrt(var(x) + eps), times `w`, plus the norm's bias, if any",
    ),
    op(
        "l2_norm",
        &[tensor("x"), positional("eps", Float)],
        same_as_x,
        Emit::Method("l2_norm"),
        "L2 norm over dimension 0: x / max(length(x), eps)",
    ),
    op(
        "heads",
        &[tensor("x"), positional("n", Int)],
        heads,
        Emit::Method("heads"),
        "splits dimension 0 into n heads: [n * d, T] -> [d, n, T], or for a vector [n * d] -> [d, n]",
    ),
    op(
        "merge",
        &[tensor("x")],
        merge,
        Emit::Method("merge"),
        "concatenates the heads: [d, n, T] -> [d * n, T]",
    ),
    OpSpec {
        rotates: true,
        ..op(
            "rope",
            &[
                tensor("x"),
                keyword_some("factors", Vector),
                keyword_some("short", Vector),
                keyword_some("long", Vector),
                keyword_some("base", Float),
                keyword_some("scale", Float),
                keyword_some("dims", Int),
                keyword("offset", Int),
                keyword_some("magnitude", Float),
                keyword("lag", Int),
                keyword_some("yarn", Bool),
                keyword_some("beta_fast", Float),
                keyword("neox", Bool),
                keyword_some("stride", Int),
                keyword("inverse", Bool),
            ],
            rope,
            Emit::Struct("rope", "RopeArgs"),
            "applies rotary positions to [d, n, T] from dimension `offset` on. `base`, `scale`, `dims`, and `magnitude` \
             default to the file's values. `factors` divide the frequencies; the default is `short`, or `long` if the \
             context exceeds the training context. `lag` is subtracted from positions, which are then rounded down to a \
             multiple of `stride`. `neox` overrides `rope:`, `inverse` rotates backward, `yarn = false` disables YaRN, \
             and `beta_fast` overrides the file",
        )
    },
    op(
        "attention_temperature",
        &[
            positional("scale", Float),
            positional("length", Int),
            positional("offset", Float),
        ],
        attention_temperature,
        Emit::Method("attention_temperature"),
        "factors of queries, 1 + scale * ln(floor((p + offset) / length) + 1) at position p: [1, 1, T]",
    ),
    OpSpec {
        in_layer: true,
        ..op(
            "attention",
            &[
                tensor("q"),
                tensor("k"),
                maybe("v", ParamKind::Tensor),
                keyword_some("scale", Float),
                keyword("softcap", Float),
                keyword("alibi", Float),
                keyword("causal", Bool),
                keyword_some("sinks", Vector),
                keyword("window", Window),
                keyword_some("relative", ParamKind::Tensor),
                keyword_some("v_in_k", Int),
                keyword_some("selection", ParamKind::Tensor),
                keyword_some("compressed", ParamKind::Tensor),
                keyword("ratio", Int),
                keyword_some("media", Word("Visibility", MEDIA)),
            ],
            attention,
            Emit::Struct("attention", "AttentionArgs"),
            "stores k and v in the layer's KV cache and attends: q [dk, n, T], k [dk, m, T], v [dv, m, T] -> [dv * n, \
             T]. `scale` defaults to 1/sqrt(dk). `relative` [n, buckets] adds the position biases of T5. Without v, the \
             first `v_in_k` elements of a key are its value. Cells outside `selection` are masked. `compressed` [dk, m, \
             T] is stored for each group of `ratio` tokens and visible outside of windows; `selection` then selects \
             groups",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "attention_over",
            &[
                tensor("q"),
                positional("layer", Int),
                positional("dv", Int),
                keyword_some("scale", Float),
                keyword("softcap", Float),
                keyword_some("sinks", Vector),
                keyword("window", Window),
                keyword_some("media", Word("Visibility", MEDIA)),
            ],
            attention_over,
            Emit::Struct("attention_over", "AttentionArgs"),
            "attends to the keys and values of an earlier layer, with values of size dv and the same window: q \
             [dk, n, T] -> [dv * n, T]",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "cross_attention",
            &[tensor("q"), tensor("k"), tensor("v"), keyword_some("scale", Float)],
            cross_attention,
            Emit::Struct("cross_attention", "AttentionArgs"),
            "attends to the encoder output: q [dk, n, T], k [dk, m, T_encoded], v [dv, m, T_encoded] -> [dv * n, T]. k \
             and v are computed from `encoded` [n_embd, T_encoded] and not cached",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "index_cells",
            &[
                tensor("q"),
                tensor("k"),
                tensor("weights"),
                positional("n", Int),
                maybe("ratio", Int),
            ],
            index_cells,
            Emit::Method("index_cells"),
            "selects the n cells with the largest sum over heads of weights [h, T] * max(q k, 0), for q [d, h, T] -> \
             cell numbers [n, T]. Stores k [d, 1, T] in a separate cache. With `ratio`, selects groups of `ratio` \
             tokens",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "compress",
            &[
                tensor("x"),
                tensor("gate"),
                positional("position_bias", Vector),
                positional("width", Int),
            ],
            compress,
            Emit::Method("compress"),
            "running average of groups of n tokens per channel, weighted by softmax(gate + `position_bias`) over the \
             group: x and gate [w, T], `position_bias` [w, n] -> [width, T]. If w is 2 * width, the second half of the \
             channels is averaged with the previous group's first half",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "index_blocks",
            &[
                tensor("q"),
                tensor("k"),
                positional("n", Int),
                positional("size", Int),
                positional("local", Int),
            ],
            index_blocks,
            Emit::Method("index_blocks"),
            "selects, for each key head, the n blocks of `size` positions with the largest q k, for q [d, h, T] -> cell \
             numbers [n * size, h, T]. The last `local` blocks take precedence. Stores k [d, 1, T] in a separate cache",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "index_pools",
            &[
                tensor("q"),
                tensor("k"),
                tensor("weights"),
                positional("n", Int),
                positional("size", Int),
                positional("tail", Bool),
            ],
            index_cells,
            Emit::Method("index_pools"),
            "selects the n / size best complete blocks of `size` positions, scored as in `index_cells` by the k of the \
             last token -> cell numbers [n, T]. `tail` adds the last incomplete block, up to size - 1 cells",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "shared_selection",
            &[positional("n", Int)],
            shared_selection,
            Emit::Bare("indexed_cells"),
            "cells selected by the nearest preceding indexer -> cell numbers [n, T]",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "last_tokens",
            &[tensor("x"), positional("n", Int)],
            last_tokens,
            Emit::Method("last_tokens"),
            "x [c, T] of the last n tokens, oldest first, from layer state -> [c, n, T]. Entries before the start of the \
             sequence are unspecified",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "short_conv",
            &[tensor("x"), positional("w", Vector), maybe("bias", Vector)],
            short_conv,
            Emit::Method("short_conv"),
            "causal convolution of each channel over time, with layer state: x [c, T], w [k, c] or [k, 1, c], plus `bias` -> [c, T]",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "ssm_scan",
            &[
                tensor("x"),
                tensor("dt"),
                positional("a", Vector),
                tensor("b"),
                tensor("c"),
                maybe("d", Vector),
            ],
            ssm_scan,
            Emit::Method("ssm_scan"),
            "selective scan of Mamba over layer states [n, p, h]: x [p, h, T], dt [h, T] (after the softplus), \
             a [n or 1, h] or [h], b and c [n, g, T] -> [p, h, T]. Adds x times `d` (one element per head)",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "token_shift",
            X,
            same_as_x,
            Emit::Method("token_shift"),
            "x [c, T] of the preceding token, from layer state; zeros for the first token",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "wkv6",
            &[
                tensor("r"),
                tensor("k"),
                tensor("v"),
                tensor("w"),
                positional("u", Vector),
            ],
            wkv,
            Emit::Method("wkv6"),
            "time mixing of RWKV 6 over layer states [d, d, h]: [d, h, T] each, u [d, h] -> [d, h, T]",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "wkv7",
            &[
                tensor("r"),
                tensor("w"),
                tensor("k"),
                tensor("v"),
                tensor("a"),
                tensor("b"),
            ],
            wkv,
            Emit::Method("wkv7"),
            "time mixing of RWKV 7 over layer states [d, d, h]: [d, h, T] each -> [d, h, T]",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "mamba2",
            &[
                tensor("x"),
                required("inner", Int),
                required("n_state", Int),
                required("n_group", Int),
                required("conv", Vector),
                keyword_some("conv_bias", Vector),
                required("dt_bias", Vector),
                required("a", Vector),
                required("d", Vector),
                keyword_some("norm", Vector),
                keyword("eps", ParamKind::Epsilon(RMS_NORM_EPS)),
            ],
            mamba2,
            Emit::FullStruct("mamba2", "Mamba2Args"),
            "mixer of Mamba 2 between its projections: x [2 * inner + 2 * n_group * n_state + h, T] -> [inner, T]. \
             Applies `short_conv` and silu to values, B, and C, then `ssm_scan`, the gates, and a norm per group",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "linear_attention",
            &[
                tensor("q"),
                tensor("k"),
                tensor("v"),
                keyword_some("decay", ParamKind::Tensor),
                keyword_some("beta", ParamKind::Tensor),
                keyword("delta", Bool),
                keyword("slope", Float),
                keyword("tiled", Bool),
                keyword_some("scale", Float),
            ],
            linear_attention,
            Emit::Struct("linear_attention", "LinearAttentionArgs"),
            "attention with a state per head instead of a KV cache: q and k [dk, m, T], v [dv, n, T] -> [dv, n, T]. The \
             state decays by e^decay, with `decay` [1 or dk, n, T] or a constant from `slope`. Then v is added at k, \
             times `beta` [1, n, T], and minus the stored value if `delta`. `scale` defaults to 1/sqrt(dk). Heads of v \
             share heads of k in groups, or round-robin if `tiled`",
        )
    },
    op(
        "moe",
        &[
            tensor("x"),
            required("router", ParamKind::Tensor),
            keyword_some("gate", Experts),
            keyword_some("up", Experts),
            keyword_some("gate_up", Experts),
            required("down", Experts),
            required("act", Activation),
            required("gating", Word("Gating", GATINGS)),
            required("n_used", Int),
            required("norm_weights", Bool),
            keyword("scale", Float),
            keyword_some("selection", ParamKind::Tensor),
            keyword_some("selection_bias", Vector),
            keyword_some("ids_per_expert", Int),
            keyword_some("weigh_input", Bool),
            keyword_some("n_groups", Int),
            keyword_some("n_groups_used", Int),
            keyword_some("limit", Float),
            keyword_some("act_limit", Float),
            keyword_some("squash", Float),
            keyword_some("up_squash", Float),
            keyword_some("up_offset", Float),
            keyword_some("ids", ParamKind::Tensor),
        ],
        moe,
        Emit::FullStruct("moe", "MoeArgs"),
        "mixture of experts: sum over the n_used experts with the largest `router` logits [n_expert, T]. Their weights \
         follow from `gating` (`none`: the logits), are normalized if `norm_weights`, and are multiplied by `scale`; `weigh_input` applies \
         them to x. `selection` [n_expert, T] replaces the logits for the selection, `selection_bias` is added for it, \
         and `ids` [n_used, T] skips it. Only the n_groups_used best of n_groups are eligible. `gate_up` has gates and \
         ups in one tensor. `limit` clamps gates and ups; `act_limit` clamps gates after the activation (0: off). With \
         `squash`, a gate g becomes softcap(g, squash) * sigmoid(g), and an up becomes softcap(up, up_squash). \
         `up_offset` is added to ups. Each expert has `ids_per_expert` outputs of the router",
    ),
    op(
        "softcap",
        &[tensor("x"), positional("c", Float)],
        same_as_x,
        Emit::Method("softcap"),
        "c * tanh(x / c)",
    ),
    op(
        "clamp",
        &[tensor("x"), positional("lo", Float), positional("hi", Float)],
        same_as_x,
        Emit::Method("clamp"),
        "clamps values to lo..hi",
    ),
    op(
        "softmax",
        &[tensor("x")],
        same_as_x,
        Emit::Method("softmax"),
        "softmax over dimension 0",
    ),
    op(
        "softmax_heads",
        &[tensor("x")],
        softmax_heads,
        Emit::Method("softmax_heads"),
        "softmax over the heads: [d, n, T] -> [d, n, T]",
    ),
    op(
        "top_mask",
        &[tensor("x"), positional("n", Int)],
        same_as_x,
        Emit::Method("top_mask"),
        "1 for the n largest values of dimension 0, 0 for the others",
    ),
    op(
        "sum_rows",
        &[tensor("x")],
        sum_rows,
        Emit::Method("sum_rows"),
        "sum over dimension 0, which becomes size 1",
    ),
    op(
        "repeat_heads",
        &[tensor("x"), positional("n", Int)],
        repeat_heads,
        Emit::Method("repeat_heads"),
        "repeats each head of x n / m times in a row: [d, m, T] -> [d, n, T]",
    ),
    op(
        "part",
        &[positional("w", Vector), positional("i", Int)],
        part,
        Emit::Method("part"),
        "slice i of a declared tensor along its last dimension",
    ),
    op(
        "matmul",
        &[tensor("a"), tensor("x")],
        matmul,
        Emit::Method("matmul"),
        "matrix product of two computed tensors: a [k, m], x [k, T] -> [m, T]",
    ),
    op(
        "mix_heads",
        &[tensor("x"), tensor("m")],
        mix_heads,
        Emit::Method("mix_heads"),
        "output head i is the sum over j of m[i + n * j] times head j: x [d, n, T], m [n * n, T] -> [d, n, T]",
    ),
    op(
        "sinkhorn",
        &[
            tensor("x"),
            positional("n", Int),
            positional("iterations", Int),
            positional("eps", Float),
        ],
        same_as_x,
        Emit::Method("sinkhorn"),
        "Sinkhorn normalization of each row of x [n * n, T]: softmax, then `iterations` alternating divisions by row and column sums",
    ),
    op(
        "row",
        &[positional("w", Vector), positional("i", Int)],
        row,
        Emit::Method("row"),
        "row i of a declared two-dimensional vector: [n, rows] -> [n]",
    ),
    OpSpec {
        in_layer: true,
        ..op(
            "first_layer",
            &[positional("w", ParamKind::OfFirstLayer)],
            weight,
            Emit::Method("weight"),
            "the first layer's tensor of this name",
        )
    },
    op(
        "linear_without_bias",
        &[positional("w", ParamKind::Linear), tensor("x")],
        linear_without_bias,
        Emit::Method("linear_without_bias"),
        "w(x) without the bias",
    ),
    op(
        "sum_heads",
        &[tensor("x")],
        sum_heads,
        Emit::Method("sum_heads"),
        "sum over the heads: [d, n, T] -> [d, T]",
    ),
    op(
        "concat",
        &[tensor("a"), tensor("b")],
        concat,
        Emit::Dim0("concat"),
        "concatenates a and b along dimension 0",
    ),
    unary("silu", "Silu", "x * sigmoid(x)"),
    unary("gelu", "Gelu", "GELU, tanh approximation"),
    unary("gelu_erf", "GeluErf", "exact GELU"),
    unary("gelu_quick", "GeluQuick", "x * sigmoid(1.702 x)"),
    unary("relu", "Relu", "max(x, 0)"),
    unary("relu_sqr", "ReluSqr", "max(x, 0)^2"),
    unary("sigmoid", "Sigmoid", "1 / (1 + exp(-x))"),
    unary("tanh", "Tanh", "hyperbolic tangent"),
    unary("exp", "Exp", "e^x"),
    unary("softplus", "Softplus", "ln(1 + e^x)"),
    unary("neg", "Neg", "-x"),
    unary("sqr", "Sqr", "x^2"),
    unary("sqrt", "Sqrt", "square root"),
    unary("abs", "Abs", "absolute value"),
];

/// Returns the operation named `name`.
pub fn find(name: &str) -> Option<&'static OpSpec> {
    all().find(|o| o.name == name)
}

/// Iterates over all operations, including those on media.
pub fn all() -> impl Iterator<Item = &'static OpSpec> {
    of_text().chain(media::OPS).chain(audio::OPS)
}

/// Iterates over the operations that are not specific to media.
fn of_text() -> impl Iterator<Item = &'static OpSpec> {
    OPS.iter().chain(history::OPS)
}

impl OpSpec {
    /// Returns true if the operation accepts a bank. The number of values in a bank is unknown to other operations.
    pub(crate) fn takes_bank(&self) -> bool {
        matches!(self.name, "bank" | "recall")
    }

    /// Returns true for elementwise unary functions, which are valid activations.
    pub fn is_unary(&self) -> bool {
        matches!(self.emit, Emit::Unary(_))
    }

    /// Returns the positional parameters, with optional ones in brackets: `rms_norm(x[, w], eps)`.
    pub fn signature(&self) -> String {
        let mut text = String::new();
        for p in self.params.iter().filter(|p| !p.is_by_name()) {
            let separator = if text.is_empty() { "" } else { ", " };
            let (open, close) = if p.is_optional() { ("[", "]") } else { ("", "") };
            text += &format!("{open}{separator}{}{close}", p.name);
        }
        format!("{}({text})", self.name)
    }

    /// Returns the signature for the documentation: positional arguments, then arguments by name after `;`.
    /// Optional arguments end in `?`, as in `attention(q, k, v?; scale?)`.
    pub fn full_signature(&self) -> String {
        let list = |by_name: bool| {
            let params = self.params.iter().filter(|p| p.is_by_name() == by_name);
            let names: Vec<String> = params
                .map(|p| format!("{}{}", p.name, if p.is_optional() { "?" } else { "" }))
                .collect();
            names.join(", ")
        };
        let (positional, by_name) = (list(false), list(true));
        let separator = if by_name.is_empty() { "" } else { "; " };
        format!("{}({positional}{separator}{by_name})", self.name)
    }
}

/// Returns a Markdown table of all operations, for the documentation.
pub fn reference() -> String {
    let mut text = String::from("| operation | meaning |\n|---|---|\n");
    for o in of_text() {
        text += &format!("| `{}` | {} |\n", o.full_signature(), o.doc);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_positional_parameters_come_first() {
        for (i, o) in all().enumerate() {
            assert!(all().take(i).all(|p| p.name != o.name), "{}", o.name);
            let keyword = |p: &Param| matches!(p.given, Given::Keyword | Given::OptionalKeyword);
            let first = o.params.iter().position(keyword).unwrap_or(o.params.len());
            assert!(o.params[first..].iter().all(keyword), "{}", o.name);
            assert!(!o.doc.is_empty());
        }
    }

    #[test]
    fn signatures_mark_optional_parameters() {
        assert_eq!(find("rms_norm").unwrap().signature(), "rms_norm(x[, w][, eps])");
        assert_eq!(find("l2_norm").unwrap().full_signature(), "l2_norm(x, eps)");
        let rope = find("rope").unwrap().full_signature();
        assert!(rope.starts_with("rope(x; factors?, short?, "), "{rope}");
        let moe = find("moe").unwrap().full_signature();
        assert!(moe.starts_with("moe(x; router, gate?, "), "{moe}");
        assert_eq!(reference().lines().count(), of_text().count() + 2);
    }
}
