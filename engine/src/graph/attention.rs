//! Attention: parameters, operands by name, and the op function.

use super::ops::Result;
use super::{Buckets, Graph, MAX_SRC, Op, TensorId, VisibleCells, Window};

/// Parameters of [`Op::Attention`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention {
    /// Scores are multiplied by this.
    pub scale: f32,
    /// Scores become `softcap * tanh(score / softcap)`; 0 is off.
    pub softcap: f32,
    /// ALiBi (Press et al., arXiv 2108.12409): the largest bias; 0 is off.
    pub max_bias: f32,
    /// Keys at later positions than the query are hidden.
    pub causal: bool,
    /// Sliding window.
    pub window: Window,
    /// Biases by relative position; unless there are none, a table of them is an operand.
    pub buckets: Buckets,
    /// Sinks are an operand.
    pub sinks: bool,
    /// A selection is an operand: cells outside of it are hidden.
    pub selects: bool,
    /// Cells from this number on stand for groups of tokens. No window hides them, and only they are selected among, their
    /// numbers counting from here. `None`: a window and a selection hold for all cells.
    pub compressed_from: Option<usize>,
}

/// Operands of [`Op::Attention`]. `T` is what stands for one: a tensor where a node is built, its index among the sources where one is
/// read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionOperands<T> {
    /// Queries, f32 `[dk, n_head, T]`.
    pub q: T,
    /// Keys of cells, `[dk, n_head_kv, n_kv]`.
    pub k: T,
    /// Values of cells, `[dv, n_head_kv, n_kv]`.
    pub v: T,
    /// Which cells each token sees.
    pub visible: VisibleCells<T>,
    /// Added to scores, by [`Buckets`], f32 `[n_head, n_buckets]`.
    pub biases: Option<T>,
    /// A score per head that takes part in the softmax without a value, f32 `[n_head]`.
    pub sinks: Option<T>,
    /// Numbers of the cells that each query may see, i32 `[k, T]`, or `[k, n_head_kv, T]`, by key head; negative ones are none.
    pub selection: Option<T>,
}

impl<T> AttentionOperands<T> {
    /// Those that every attention has.
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

    /// The operands in the order in which they stand among the sources of a node.
    pub fn list(self) -> impl Iterator<Item = T> {
        let rest = [self.biases, self.sinks, self.selection].into_iter().flatten();
        [self.q, self.k, self.v]
            .into_iter()
            .chain(self.visible.list())
            .chain(rest)
    }

    /// What `f` makes of each operand.
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
    /// Causal attention to every cell that is visible: no soft cap, biases, sinks or selection.
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

    /// Where each operand stands among the sources.
    pub fn operands(&self) -> AttentionOperands<usize> {
        const FIRST: usize = 3;
        let mut next = FIRST + VisibleCells::<usize>::N;
        let mut optional = |present: bool| {
            let place = next;
            next += usize::from(present);
            present.then_some(place)
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

    /// Lists of cells that each token has in a selection of this shape, for `n_head_kv` key heads and `n_tokens` tokens: one, or one for each
    /// key head. `None` if it does not fit.
    pub fn lists_per_token(ne: [usize; 4], n_head_kv: usize, n_tokens: usize) -> Option<usize> {
        if ne[1..] == [n_tokens, 1, 1] {
            return Some(1);
        }
        (ne[1..] == [n_head_kv, n_tokens, 1]).then_some(n_head_kv)
    }
}

impl Graph {
    /// Attention: f32 `[dv, n_head, T]`, see [`Op::Attention`]. Whether there are sinks and a selection follows from the operands.
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
