//! Operations of the language and the builder methods that add them to a graph.

use crate::builder::{
    AttentionArgs, Builder, Conv2dArgs, GridConvArgs, LinearAttentionArgs, LocalAttentionArgs, Mamba2Args, MoeArgs,
    NgramArgs, ResizedArgs, RopeArgs, RopeGridArgs, RopeTimeArgs, Vector, chunked, sliding, symmetric,
};
use crate::graph::{TensorId, Unary, Window};

use super::arguments::Args;
pub use super::arguments::is_word;

/// Operation of the language.
#[derive(Debug)]
pub struct Operation {
    /// Name in declarations.
    pub name: &'static str,
    /// Names of the parameters, in the order of the language's table.
    pub params: &'static [&'static str],
    /// Elementwise function, if the operation is one.
    pub unary: Option<Unary>,
    /// Adds the operation to a graph.
    pub(super) build: fn(&mut Builder<'_>, &mut Args<'_>) -> TensorId,
}

/// Defines an operation: parameters by position, then parameters by name as the fields of a struct. Fields of a struct
/// after `all` have no defaults. A closure defines operations that do not match a method.
macro_rules! operation {
    ($name:ident($($param:ident),*) $method:ident) => {
        Operation {
            name: stringify!($name),
            params: &[$(stringify!($param)),*],
            unary: None,
            build: |b, args| {
                $(let $param = args.next();)*
                b.$method($($param),*)
            },
        }
    };
    ($name:ident($($param:ident),*) $method:ident all $ty:ident { $($field:ident),* }) => {
        Operation {
            name: stringify!($name),
            params: &[$(stringify!($param),)* $(stringify!($field)),*],
            unary: None,
            build: |b, args| {
                $(let $param = args.next();)*
                let given = $ty { $($field: args.next()),* };
                b.$method($($param,)* given)
            },
        }
    };
    ($name:ident($($param:ident),*) $method:ident $ty:ident { $($field:ident),* }) => {
        Operation {
            name: stringify!($name),
            params: &[$(stringify!($param),)* $(stringify!($field)),*],
            unary: None,
            build: |b, args| {
                $(let $param = args.next();)*
                let mut given = $ty::default();
                $(args.set(&mut given.$field);)*
                b.$method($($param,)* given)
            },
        }
    };
    ($name:ident($($param:ident),*) = $build:expr) => {
        Operation {
            name: stringify!($name),
            params: &[$(stringify!($param)),*],
            unary: None,
            build: $build,
        }
    };
    ($name:ident $variant:ident) => {
        Operation {
            name: stringify!($name),
            params: &["x"],
            unary: Some(Unary::$variant),
            build: |b, args| {
                let x = args.next();
                b.unary(Unary::$variant, x)
            },
        }
    };
}

/// All operations. A test compares the table with the table of the language.
pub static OPERATIONS: &[Operation] = &[
    operation!(rms_norm(x, w, eps) rms_norm),
    operation!(layer_norm(x, w, eps) layer_norm),
    operation!(l2_norm(x, eps) l2_norm),
    operation!(heads(x, n) heads),
    operation!(merge(x) merge),
    operation!(rope(x) rope RopeArgs {
        factors, short, long, base, scale, dims, offset, magnitude, lag, yarn, beta_fast, neox, stride, inverse
    }),
    operation!(attention_temperature(scale, length, offset) attention_temperature),
    operation!(attention(q, k, v) attention AttentionArgs {
        scale, softcap, alibi, causal, sinks, window, relative, v_in_k, selection, compressed, ratio, media
    }),
    operation!(attention_over(q, layer, dv) attention_over AttentionArgs { scale, softcap, sinks, window, media }),
    operation!(cross_attention(q, k, v) cross_attention AttentionArgs { scale }),
    operation!(index_cells(q, k, weights, n, ratio) index_cells),
    operation!(compress(x, gate, position_bias, width) compress),
    operation!(index_blocks(q, k, n, size, local) index_blocks),
    operation!(index_pools(q, k, weights, n, size, tail) index_pools),
    operation!(shared_selection(n) = |b, _| b.indexed_cells()),
    operation!(last_tokens(x, n) last_tokens),
    operation!(short_conv(x, w, bias) short_conv),
    operation!(
        ssm_scan(x, dt, a, b, c, d) = |builder, args| {
            let (x, dt, a) = (args.next(), args.next(), args.next());
            let (b, c, d) = (args.next(), args.next(), args.next());
            builder.ssm_scan(x, dt, a, b, c, d)
        }
    ),
    operation!(token_shift(x) token_shift),
    operation!(wkv6(r, k, v, w, u) wkv6),
    operation!(
        wkv7(r, w, k, v, a, b) = |builder, args| {
            let (r, w, k) = (args.next(), args.next(), args.next());
            let (v, a, b) = (args.next(), args.next(), args.next());
            builder.wkv7(r, w, k, v, a, b)
        }
    ),
    operation!(mamba2(x) mamba2 all Mamba2Args {
        inner, n_state, n_group, conv, conv_bias, dt_bias, a, d, norm, eps
    }),
    operation!(linear_attention(q, k, v) linear_attention LinearAttentionArgs {
        decay, beta, delta, slope, tiled, scale
    }),
    operation!(moe(x) moe all MoeArgs {
        router, gate, up, gate_up, down, act, gating, n_used, norm_weights, scale, selection, selection_bias,
        ids_per_expert, weigh_input, n_groups, n_groups_used, limit, act_limit, squash, up_squash, up_offset, ids
    }),
    operation!(softcap(x, c) softcap),
    operation!(clamp(x, lo, hi) clamp),
    operation!(softmax(x) softmax),
    operation!(softmax_heads(x) softmax_heads),
    operation!(top_mask(x, n) top_mask),
    operation!(sum_rows(x) sum_rows),
    operation!(repeat_heads(x, n) repeat_heads),
    operation!(part(w, i) part),
    operation!(matmul(a, x) matmul),
    operation!(mix_heads(x, m) mix_heads),
    operation!(sinkhorn(x, n, iterations, eps) sinkhorn),
    operation!(row(w, i) row),
    operation!(
        first_layer(w) = |b, args| {
            let w: Vector = args.next();
            b.weight(w)
        }
    ),
    operation!(linear_without_bias(w, x) linear_without_bias),
    operation!(sum_heads(x) sum_heads),
    operation!(
        concat(a, b) = |builder, args| {
            let (a, b) = (args.next(), args.next());
            builder.concat(a, b, 0)
        }
    ),
    operation!(dilated_conv(x, w, dilation) dilated_conv),
    operation!(ngram_embed(table) ngram_embed all NgramArgs {
        longest, per_length, multipliers, offsets, sizes, end
    }),
    operation!(bank(x, bank) bank),
    operation!(recall(x, bank, score, eps) recall),
    operation!(pad_logits(x, n) pad_logits),
    operation!(silu Silu),
    operation!(gelu Gelu),
    operation!(gelu_erf GeluErf),
    operation!(gelu_quick GeluQuick),
    operation!(relu Relu),
    operation!(relu_sqr ReluSqr),
    operation!(sigmoid Sigmoid),
    operation!(tanh Tanh),
    operation!(exp Exp),
    operation!(softplus Softplus),
    operation!(neg Neg),
    operation!(sqr Sqr),
    operation!(sqrt Sqrt),
    operation!(abs Abs),
    operation!(with_media(x) with_media),
    operation!(deepstack(x, part) deepstack),
    operation!(beside(x, y) beside),
    operation!(resized(w, by) resized ResizedArgs { transposed }),
    operation!(rope_grid(x, base) rope_grid RopeGridArgs { pairs, columns_first, spread }),
    operation!(with_class(x, w) with_class),
    operation!(without_class(x) without_class),
    operation!(at_columns(w) at_columns),
    operation!(at_rows(w) at_rows),
    operation!(grid_sinusoids(d) grid_sinusoids),
    operation!(group_rows(x, n) group_rows),
    operation!(keep(x) keep),
    operation!(kept(x, calls, i) kept),
    operation!(sampled(x, n, places, i) sampled),
    operation!(in_blocks(w, n) table_in_blocks),
    operation!(mean_rows(x) mean_rows),
    operation!(with_newlines(x, w, n) with_newlines),
    operation!(join_rows(x, y) join_rows),
    operation!(drop_rows(x, n) drop_rows),
    operation!(after_prefix(y, x) after_prefix),
    operation!(matching_rows(x, a, b) matching_rows),
    operation!(prefix_attention(q, k, v, x) prefix_attention),
    operation!(depthwise_grid(x, w, stride) depthwise_grid GridConvArgs { same }),
    operation!(in_windows(x, n) in_windows),
    operation!(from_windows(x, n) from_windows),
    operation!(by_columns(x, n) by_columns),
    operation!(by_lines(x, n) by_lines),
    operation!(
        grid_attention(q, k, v, lines, columns, side) = |builder, args| {
            let (q, k, v) = (args.next(), args.next(), args.next());
            let (lines, columns, side) = (args.next(), args.next(), args.next());
            builder.grid_attention(q, k, v, lines, columns, side)
        }
    ),
    operation!(conv_grid(x, w, stride) conv_grid GridConvArgs { same }),
    operation!(resized_to(w, x, first, by) resized_to),
    operation!(transposed(w) transposed),
    operation!(interleave(x, n) interleave),
    operation!(pool_rows(x, n) pool_rows),
    operation!(stack_rows(x, n) stack_rows),
    operation!(conv_2d(x, w) conv_2d Conv2dArgs { time_first }),
    operation!(conv_frames(x, w) conv_frames),
    operation!(depthwise(x, w, before) depthwise),
    operation!(depthwise_2d(x, w) depthwise_2d),
    operation!(batch_norm(x, mean, variance, eps) batch_norm),
    operation!(local_attention(q, k, v, relative, before) local_attention LocalAttentionArgs { scale, softcap }),
    operation!(sinusoids(d, before, after) sinusoids),
    operation!(sinusoids_of(x, d) sinusoids_of),
    operation!(distance_attention(q, k, v, relative, content_bias, distance_bias) distance_attention),
    operation!(rope_time(x, base, dims) rope_time RopeTimeArgs { halves }),
    operation!(sounding(x, n, first, last) sounding),
    operation!(block_attention(q, k, v, size, keys, relative) block_attention),
    operation!(full_attention(q, k, v) full_attention),
    operation!(at_distances(w, before, after) at_distances),
    operation!(padded_rows(x, n) padded_rows),
    operation!(repeat_rows(w, x, n) repeat_rows),
    operation!(prepend(x, n, y) prepend),
];

/// Returns the operation with this name.
pub fn find(name: &str) -> Option<&'static Operation> {
    OPERATIONS.iter().find(|o| o.name == name)
}

/// Returns the function of a kind of window.
pub fn window(kind: &str) -> Option<fn(usize, bool) -> Window> {
    Some(match kind {
        "sliding" => sliding,
        "chunked" => chunked,
        "symmetric" => symmetric,
        _ => return None,
    })
}
