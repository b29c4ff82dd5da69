//! The operations of the graph language: ONE table of names, parameters, shape rules, emission and documentation.

mod call;
mod shapes;

use crate::sym::Shape;
pub use call::{Call, Operand};
use shapes::{
    attention, attention_over, attention_temperature, compress, concat, cross_attention, heads, index_blocks,
    index_cells, last_tokens, linear_attention, linear_without_bias, mamba2, matmul, merge, mix_heads, moe, norm, part,
    repeat_heads, rope, row, same_as_x, shared_selection, short_conv, softmax_heads, ssm_scan, sum_heads, sum_rows,
    weight, wkv,
};

/// One operation.
#[derive(Debug)]
pub struct OpSpec {
    /// Name in declarations.
    pub name: &'static str,
    /// One line: what it computes, with shapes.
    pub doc: &'static str,
    /// Positional parameters first.
    pub params: &'static [Param],
    /// Shape of the result; faults are noted in the call.
    pub shape: fn(&mut Call<'_>) -> Option<Shape>,
    /// What it becomes.
    pub emit: Emit,
    /// Stores into the layer's memory, so it has its place inside the layer loop.
    pub in_layer: bool,
    /// Rotates: needs the declaration's rope kind.
    pub rotates: bool,
}

/// One parameter of an operation.
#[derive(Debug)]
pub struct Param {
    /// Its name; also the keyword, and the field of the argument struct.
    pub name: &'static str,
    /// What it takes.
    pub kind: ParamKind,
    /// How it is given.
    pub given: Given,
    /// The expansion wraps it in `Some`, and writes `None` when it is not given.
    pub some: bool,
}

/// What a parameter takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParamKind {
    /// A computed tensor (or a vector as an operand).
    Tensor,
    /// A declared `norm` or `vector`; handed over as a vector.
    RmsWeight,
    /// A declared `norm` or `vector`; handed over as a norm.
    NormWeight,
    /// A declared `vector` or `raw`, which may be optional.
    Vector,
    /// Declared `experts`, which may be optional if the parameter is.
    Experts,
    /// A declared `linear`.
    Linear,
    /// A declared `vector` of the layers, which may be optional: that of the first layer.
    OfFirstLayer,
    /// A count.
    Int,
    /// A number.
    Float,
    /// A condition.
    Bool,
    /// The name of an operation of one operand.
    Activation,
    /// One of a set of words: the type of the expansion, and word -> variant; or an integer, the code that files hold for it.
    Word(&'static str, &'static [(&'static str, &'static str)]),
    /// `standard(n, cond)`, `chunked(n, cond)` or `symmetric(n, cond)`.
    Window,
}

/// How an argument is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Given {
    /// By position.
    Position,
    /// By position, and may be left out.
    OptionalPosition,
    /// By name.
    Keyword,
    /// By name, and may be left out.
    OptionalKeyword,
}

/// What a call becomes in the expansion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Emit {
    /// `b.method(arguments)`
    Method(&'static str),
    /// `b.method()`: the arguments tell the shape.
    Bare(&'static str),
    /// `b.method(arguments, 0)`: along dimension 0.
    Dim0(&'static str),
    /// `b.unary(Unary::Variant, x)`
    Unary(&'static str),
    /// `b.method(positional, Struct { keywords, ..Default::default() })`
    Struct(&'static str, &'static str),
    /// The same for a struct without a default: absent keywords are written out.
    FullStruct(&'static str, &'static str),
}

/// Kinds of windows; the engine has a function of the same name for each.
pub static WINDOWS: &[&str] = &["standard", "chunked", "symmetric"];

const GATINGS: &[(&str, &str)] = &[
    ("softmax", "Softmax"),
    ("sigmoid", "Sigmoid"),
    ("softmax_weight", "SoftmaxWeight"),
];

const fn tensor(name: &'static str) -> Param {
    Param {
        name,
        kind: ParamKind::Tensor,
        given: Given::Position,
        some: false,
    }
}

const fn positional(name: &'static str, kind: ParamKind) -> Param {
    Param {
        name,
        kind,
        given: Given::Position,
        some: false,
    }
}

const fn maybe(name: &'static str, kind: ParamKind) -> Param {
    Param {
        name,
        kind,
        given: Given::OptionalPosition,
        some: true,
    }
}

const fn required(name: &'static str, kind: ParamKind) -> Param {
    Param {
        name,
        kind,
        given: Given::Keyword,
        some: false,
    }
}

const fn keyword(name: &'static str, kind: ParamKind) -> Param {
    Param {
        name,
        kind,
        given: Given::OptionalKeyword,
        some: false,
    }
}

const fn keyword_some(name: &'static str, kind: ParamKind) -> Param {
    Param {
        name,
        kind,
        given: Given::OptionalKeyword,
        some: true,
    }
}

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

/// Every operation.
pub static OPS: &[OpSpec] = &[
    op(
        "rms_norm",
        &[tensor("x"), maybe("w", RmsWeight), positional("eps", Float)],
        norm,
        Emit::Method("rms_norm"),
        "x / sqrt(mean(x^2) + eps) over dimension 0, times `w`",
    ),
    op(
        "layer_norm",
        &[tensor("x"), maybe("w", NormWeight), positional("eps", Float)],
        norm,
        Emit::Method("layer_norm"),
        "(x - mean(x)) / sqrt(var(x) + eps) over dimension 0, times `w`, plus the norm's bias if the file has one",
    ),
    op(
        "l2_norm",
        &[tensor("x"), positional("eps", Float)],
        same_as_x,
        Emit::Method("l2_norm"),
        "x / max(length(x), eps) over dimension 0",
    ),
    op(
        "heads",
        &[tensor("x"), positional("n", Int)],
        heads,
        Emit::Method("heads"),
        "cuts dimension 0 into n heads: [n * d, T] -> [d, n, T], also of a vector: [n * d] -> [d, n]",
    ),
    op(
        "merge",
        &[tensor("x")],
        merge,
        Emit::Method("merge"),
        "joins the heads: [d, n, T] -> [d * n, T]",
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
                keyword("back", Int),
                keyword_some("yarn", Bool),
                keyword_some("beta_fast", Float),
                keyword("halves", Bool),
                keyword_some("every", Int),
                keyword("inverse", Bool),
            ],
            rope,
            Emit::Struct("rope", "RopeArgs"),
            "rotary positions on [d, n, T]; the pairs are the declaration's `rope:` (neox's where `halves`), base, scale, dims and \
             magnitude the file's unless given, from dimension `offset` on; `factors` divide the frequencies, without them `short` or, in contexts beyond the first \
             training's, `long`; for what stands `back` positions before the token, or with `every` at the multiple of it at or below that; \
             turned back where `inverse`; YaRN as the file says where `yarn` holds or is not given, \
             from `beta_fast` turns on if not the file's",
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
        "factors on queries that grow with positions p, 1 + scale * ln(floor((p + offset) / length) + 1): [1, 1, T]",
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
            ],
            attention,
            Emit::Struct("attention", "AttentionArgs"),
            "stores k and v in the layer's cache and attends: q [dk, n, T], k [dk, m, T], v [dv, m, T] -> [dv * n, T]; \
             scale is 1/sqrt(dk) unless given; `relative` [n, buckets] are biases by relative position (T5's buckets); \
             without v the first `v_in_k` elements of each key are its value; of cells outside a `selection` nothing is seen; `compressed` [dk, m, T] \
             is stored for each token that ends a group of `ratio` and seen beside k, outside of windows too: a `selection` is then of such groups",
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
            ],
            attention_over,
            Emit::Struct("attention_over", "AttentionArgs"),
            "attends over what an earlier layer stored, with values of size dv, in the same window: q [dk, n, T] -> [dv * n, T]",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "cross_attention",
            &[tensor("q"), tensor("k"), tensor("v"), keyword_some("scale", Float)],
            cross_attention,
            Emit::Struct("cross_attention", "AttentionArgs"),
            "attends to what was encoded of the token's sequence, with k and v made of `encoded` [n_embd, T_encoded] and not stored: \
             q [dk, n, T], k [dk, m, T_encoded], v [dv, m, T_encoded] -> [dv * n, T]; scale is 1/sqrt(dk) unless given",
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
            "selects cells for `attention`: stores k [d, 1, T] in a cache of its own and gives the n cells whose sum over heads of \
             weights [h, T] times max(q k, 0), q [d, h, T], is largest: numbers [n, T], fewer where there are fewer cells; with `ratio`, of the groups of so many tokens, k being stored for their last",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "compress",
            &[
                tensor("x"),
                tensor("gate"),
                positional("places", Vector),
                positional("width", Int),
            ],
            compress,
            Emit::Method("compress"),
            "means over groups of n tokens as far as they have come, channel by channel, weighted by the softmax over the group of gate plus \
             the row of `places` [w, n] for the token's place in it; the layer keeps them: x and gate [w, T] -> [width, T]; where w is twice the width, \
             the last half of the channels is averaged together with the first half of those of the group before",
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
            "selects cells for `attention` by key head: stores k [d, 1, T] in a cache of its own and gives the cells of the n blocks of \
             `size` positions that hold the largest q k, q [d, h, T], the `local` last blocks before others: numbers [n * size, h, T]",
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
            "selects cells for `attention`: of blocks of `size` positions of a sequence, each scored as by `index_cells` with the k of its last token, \
             the cells of the n / size best that are whole and, where `tail`, of the last one that is not: numbers [n, T], or up to size - 1 more",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "shared_selection",
            &[positional("n", Int)],
            shared_selection,
            Emit::Bare("indexed_cells"),
            "the cells that the last indexer before the layer selected, for layers without one of their own: numbers [n, T]",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "last_tokens",
            &[tensor("x"), positional("n", Int)],
            last_tokens,
            Emit::Method("last_tokens"),
            "x [c, T] of the token and of the n - 1 before it in its sequence, earliest first, which the layer keeps: [c, n, T]; some \
             other token's where there is none before",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "short_conv",
            &[tensor("x"), positional("w", Vector), maybe("bias", Vector)],
            short_conv,
            Emit::Method("short_conv"),
            "causal convolution of each channel with its own past, which the layer keeps: x [c, T], w [k, c] or [k, 1, c], plus `bias` -> [c, T]",
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
            "selective scan of Mamba over states [n, p, h] that the layer keeps: x [p, h, T], dt [h, T] (after its softplus), \
             a [n or 1, h] or [h], b and c [n, g, T] -> [p, h, T]; x times `d` (one element per head) is added",
        )
    },
    OpSpec {
        in_layer: true,
        ..op(
            "previous",
            X,
            same_as_x,
            Emit::Method("previous"),
            "x [c, T] as it was one token before, which the layer keeps; zeros for the first token",
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
            "time mixing of RWKV 6 over states [d, d, h] that the layer keeps: [d, h, T] each, u [d, h] -> [d, h, T]",
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
            "time mixing of RWKV 7 over states [d, d, h] that the layer keeps: [d, h, T] each -> [d, h, T]",
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
                required("eps", Float),
            ],
            mamba2,
            Emit::FullStruct("mamba2", "Mamba2Args"),
            "the mixer of Mamba 2 between its projections: x [2 * inner + 2 * n_group * n_state + h, T] holds gates, values, B, C and \
             steps; all but gates and steps go through `short_conv` and silu, values through `ssm_scan`, and the result is gated and \
             normalized by groups -> [inner, T]",
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
            "attends by a state instead of a cache: q and k [dk, m, T], v [dv, n, T] -> [dv, n, T]. A head's state, a matrix, \
             first shrinks by e^decay, `decay` [1 or dk, n, T] (without it, as lightning attention does with `slope`), then takes in v, times \
             `beta` [1, n, T] and, where `delta`, less what it holds already, at k; q reads it, times scale, 1/sqrt(dk) unless \
             given. Heads of v go with those of k in groups, or in turn where `tiled`",
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
        "mixture of experts: the n_used experts with the largest `router` logits [n_expert, T], weighted by their gating \
         (normalized if norm_weights, times scale), or the weighted x where weigh_input; the selection is by `selection` \
         [n_expert, T] if given, it alone sees selection_bias, and only experts of the n_groups_used best of n_groups; \
         each expert may stand for ids_per_expert outputs of the router; `gate_up` holds \
         gates and then ups in one tensor and comes first where a file has it; gates are limited to below `limit` and ups to either side of it (0 is off), with \
         act_limit instead after their activation; with squash a gate g becomes softcap(g, squash) sigmoid(g) and an up softcap(up, up_squash); up_offset is added to ups; `ids` [n_used, T] are the experts themselves; gating may be the code from a file",
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
        "values limited to lo..hi",
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
        "sum_rows",
        &[tensor("x")],
        sum_rows,
        Emit::Method("sum_rows"),
        "sum over dimension 0, which becomes 1",
    ),
    op(
        "repeat_heads",
        &[tensor("x"), positional("n", Int)],
        repeat_heads,
        Emit::Method("repeat_heads"),
        "each head of x for n / m heads in a row: [d, m, T] -> [d, n, T]",
    ),
    op(
        "part",
        &[positional("w", Vector), positional("i", Int)],
        part,
        Emit::Method("part"),
        "part i of a declared tensor along its last dimension",
    ),
    op(
        "matmul",
        &[tensor("a"), tensor("x")],
        matmul,
        Emit::Method("matmul"),
        "the product of two computed tensors: a [k, m], x [k, T] -> [m, T]",
    ),
    op(
        "mix_heads",
        &[tensor("x"), tensor("m")],
        mix_heads,
        Emit::Method("mix_heads"),
        "head i is the sum over j of m[i + n * j] times head j: x [d, n, T], m [n * n, T] -> [d, n, T]",
    ),
    op(
        "balance",
        &[
            tensor("x"),
            positional("n", Int),
            positional("iterations", Int),
            positional("eps", Float),
        ],
        same_as_x,
        Emit::Method("balance"),
        "rows of x [n * n, T] as matrices whose lists and columns add up to about 1: softmax, then divisions by sums in turn",
    ),
    op(
        "row",
        &[positional("w", Vector), positional("i", Int)],
        row,
        Emit::Method("row"),
        "row i of a declared vector of two dimensions: [n, rows] -> [n]",
    ),
    OpSpec {
        in_layer: true,
        ..op(
            "first_layer",
            &[positional("w", ParamKind::OfFirstLayer)],
            weight,
            Emit::Method("weight"),
            "the first layer's tensor of this name, for layers that may lack their own",
        )
    },
    op(
        "linear_without_bias",
        &[positional("w", ParamKind::Linear), tensor("x")],
        linear_without_bias,
        Emit::Method("linear_without_bias"),
        "w(x) without the bias that a file may have",
    ),
    op(
        "sum_heads",
        &[tensor("x")],
        sum_heads,
        Emit::Method("sum_heads"),
        "adds up the heads: [d, n, T] -> [d, T]",
    ),
    op(
        "concat",
        &[tensor("a"), tensor("b")],
        concat,
        Emit::Dim0("concat"),
        "a then b along dimension 0",
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

/// The operation with this name.
pub fn find(name: &str) -> Option<&'static OpSpec> {
    OPS.iter().find(|o| o.name == name)
}

impl OpSpec {
    /// True for element-wise functions of one operand, which can stand where an activation is asked for.
    pub fn is_unary(&self) -> bool {
        matches!(self.emit, Emit::Unary(_))
    }

    /// `rms_norm(x[, w], eps)`: the arguments by position, those that may be left out in brackets.
    pub fn signature(&self) -> String {
        self.signature_with(
            |p| matches!(p.given, Given::Position | Given::OptionalPosition),
            |p| p.name.to_string(),
        )
    }

    /// The signature with the arguments by name and what they take.
    pub fn full_signature(&self) -> String {
        self.signature_with(
            |_| true,
            |p| match p.given {
                Given::Position | Given::OptionalPosition => p.name.to_string(),
                Given::Keyword | Given::OptionalKeyword => format!("{} = {}", p.name, p.kind.describe()),
            },
        )
    }

    fn signature_with(&self, shown: impl Fn(&Param) -> bool, text_of: impl Fn(&Param) -> String) -> String {
        let mut text = String::new();
        for p in self.params.iter().filter(|p| shown(p)) {
            let sep = if text.is_empty() { "" } else { ", " };
            let part = text_of(p);
            text += &match p.given {
                Given::Position | Given::Keyword => format!("{sep}{part}"),
                Given::OptionalPosition | Given::OptionalKeyword => format!("[{sep}{part}]"),
            };
        }
        format!("{}({text})", self.name)
    }
}

impl ParamKind {
    /// What it takes, in words.
    pub fn describe(self) -> &'static str {
        match self {
            ParamKind::Tensor => "a tensor",
            RmsWeight | NormWeight => "a declared norm or vector",
            Vector => "a declared vector",
            Experts => "declared experts",
            ParamKind::Linear => "a declared linear",
            ParamKind::OfFirstLayer => "a declared vector of the layers",
            Int => "an integer",
            Float => "a number",
            Bool => "a condition",
            Activation => "an activation",
            Word(..) => "a gating",
            Window => "a window",
        }
    }
}

/// A table of all operations in Markdown, for the documentation.
pub fn reference() -> String {
    let mut text = String::from("| operation | meaning |\n|---|---|\n");
    for o in OPS {
        text += &format!("| `{}` | {} |\n", o.full_signature(), o.doc);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_positional_parameters_come_first() {
        for (i, o) in OPS.iter().enumerate() {
            assert!(OPS[..i].iter().all(|p| p.name != o.name), "{}", o.name);
            let keyword = |p: &Param| matches!(p.given, Given::Keyword | Given::OptionalKeyword);
            let first = o.params.iter().position(keyword).unwrap_or(o.params.len());
            assert!(o.params[first..].iter().all(keyword), "{}", o.name);
            assert!(!o.doc.is_empty());
        }
    }

    #[test]
    fn signatures_show_what_may_be_left_out() {
        assert_eq!(find("rms_norm").unwrap().signature(), "rms_norm(x[, w], eps)");
        assert!(
            find("rope")
                .unwrap()
                .full_signature()
                .starts_with("rope(x[, factors = a declared vector]")
        );
        assert!(reference().lines().count() == OPS.len() + 2);
    }
}
