//! Parameters, named operands, and constructor of the attention op.

use super::ops::Result;
use super::{Buckets, Graph, MAX_SRC, Op, TensorId, VisibleCells, Window};

/// Parameters of [`Op::Attention`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention {
    /// Factor applied to the attention scores.
    pub scale: f32,
    /// Soft cap: scores become `softcap * tanh(score / softcap)`; 0 disables it.
    pub softcap: f32,
    /// Maximum ALiBi bias (Press et al., arXiv 2108.12409); 0 disables ALiBi.
    pub max_bias: f32,
    /// Masks keys at later positions than the query.
    pub causal: bool,
    /// Sliding window.
    pub window: Window,
    /// Relative position biases; requires the `biases` operand unless [`Buckets::None`].
    pub buckets: Buckets,
    /// Whether the op has a `sinks` operand.
    pub sinks: bool,
    /// The op has a `selection` operand; cells outside the selection are masked.
    pub selects: bool,
    /// First cell with a compressed key, which represents a group of tokens. Compressed cells are exempt from
    /// the window, and the selection applies only to them, with indices relative to this cell. `None`: window
    /// and selection apply to all cells.
    pub compressed_from: Option<usize>,
}

/// Operands of [`Op::Attention`]. `T` is a tensor id when a node is built, or a source index when a node is
/// read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionOperands<T> {
    /// Queries, f32 `[dk, n_head, T]`.
    pub q: T,
    /// Keys, `[dk, n_head_kv, n_kv]`.
    pub k: T,
    /// Values, `[dv, n_head_kv, n_kv]`.
    pub v: T,
    /// Cells visible to each token.
    pub visible: VisibleCells<T>,
    /// Relative position biases, f32 `[n_head, n_buckets]`; see [`Buckets`].
    pub biases: Option<T>,
    /// Attention sinks: a score per head that enters the softmax without a value, f32 `[n_head]`.
    pub sinks: Option<T>,
    /// Indices of the cells visible to each query, i32 `[k, T]`, or `[k, n_head_kv, T]` per key head;
    /// negative entries are ignored.
    pub selection: Option<T>,
}

impl<T> AttentionOperands<T> {
    /// Creates the mandatory operands.
    pub fn new([q, k, v]: [T; 3], visible: VisibleCells<T>) -> AttentionOperands<T> {
        AttentionOperands {
            q,
            k,
            v,
            visible,
            biases: None,
            sinks: None,
            selection: None,
        }
    }

    /// Iterates over the operands in source order.
    pub fn list(self) -> impl Iterator<Item = T> {
        let rest = [self.biases, self.sinks, self.selection].into_iter().flatten();
        [self.q, self.k, self.v]
            .into_iter()
            .chain(self.visible.list())
            .chain(rest)
    }

    /// Applies `f` to every operand.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> AttentionOperands<U> {
        AttentionOperands {
            q: f(self.q),
            k: f(self.k),
            v: f(self.v),
            visible: self.visible.map(&mut f),
            biases: self.biases.map(&mut f),
            sinks: self.sinks.map(&mut f),
            selection: self.selection.map(f),
        }
    }
}

impl Attention {
    /// Returns parameters for causal attention to all visible cells, without soft cap, biases, sinks, or
    /// selection.
    pub const fn causal(scale: f32) -> Attention {
        Attention {
            scale,
            softcap: 0.0,
            max_bias: 0.0,
            causal: true,
            window: Window::None,
            buckets: Buckets::None,
            sinks: false,
            selects: false,
            compressed_from: None,
        }
    }

    /// Returns the source index of every operand.
    pub fn operands(&self) -> AttentionOperands<usize> {
        const FIRST: usize = 3;
        let mut next = FIRST + VisibleCells::<usize>::N;
        let mut optional = |present: bool| {
            if !present {
                return None;
            }
            next += 1;
            Some(next - 1)
        };
        AttentionOperands {
            q: 0,
            k: 1,
            v: 2,
            visible: VisibleCells::from(FIRST),
            biases: optional(self.buckets != Buckets::None),
            sinks: optional(self.sinks),
            selection: optional(self.selects),
        }
    }

    /// Returns the number of cell lists per token in a selection of shape `ne`: 1, or `n_head_kv` for lists
    /// per key head. `None` if the shape does not match.
    pub fn lists_per_token(ne: [usize; 4], n_head_kv: usize, n_tokens: usize) -> Option<usize> {
        if ne[1..] == [n_tokens, 1, 1] {
            return Some(1);
        }
        if ne[1..] == [n_head_kv, n_tokens, 1] {
            Some(n_head_kv)
        } else {
            None
        }
    }
}

impl Graph {
    /// Appends an [`Op::Attention`] node with output f32 `[dv, n_head, T]`. `sinks` and `selects` are set
    /// according to the operands.
    pub fn attention(&mut self, params: Attention, operands: AttentionOperands<TensorId>) -> Result {
        let params = Attention {
            sinks: operands.sinks.is_some(),
            selects: operands.selection.is_some(),
            ..params
        };
        let mut src = [operands.q; MAX_SRC];
        let n = src
            .iter_mut()
            .zip(operands.list())
            .map(|(place, id)| *place = id)
            .count();
        self.op(Op::Attention(params), &src[..n])
    }
}
