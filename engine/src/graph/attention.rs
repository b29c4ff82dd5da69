//! Parameters and named operands of the attention op.

use super::VisibleCells;

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

/// Attention window: keys visible to a query in addition to the causal mask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Window {
    /// No window: every key is visible.
    #[default]
    None,
    /// Sliding window: keys with `q_pos - k_pos < n`.
    Sliding(usize),
    /// Chunked attention: keys in the query's chunk of `n` positions, `k_pos / n == q_pos / n`.
    Chunked(usize),
    /// Symmetric window: keys within `n / 2` positions on either side (encoders).
    Symmetric(usize),
    /// Compressed keys, one for each group of `n` tokens starting at a multiple of `n`. A key has the
    /// position of the last token in its group; all keys are visible.
    Compressed(usize),
}

/// Mapping from the distance between query and key to a row of the relative position bias table (T5; Raffel
/// et al., arXiv 1910.10683).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Buckets {
    /// No relative position biases.
    #[default]
    None,
    /// Unidirectional (decoder): all rows are for keys up to the query; later keys use distance 0.
    Past,
    /// Bidirectional (encoder): the first half of the rows is for keys up to the query, the second half for
    /// later keys.
    Around,
}

impl Buckets {
    /// Distance from which all keys share the last row of their side.
    pub const FAR: usize = 128;
    /// Maximum number of rows. The distances with separate rows must stay below [`Buckets::FAR`].
    pub const MAX_ROWS: usize = 255;

    /// Returns the number of rows per side for a table of `n` rows.
    pub fn side(self, n: usize) -> usize {
        if self == Buckets::Around { n / 2 } else { n }
    }

    /// Returns the row for a distance, within a side of `side` rows. The first half of the rows covers one
    /// distance each, the second half logarithmic ranges. The f32 arithmetic matches the reference
    /// implementations.
    pub fn near(side: usize, distance: usize) -> usize {
        let exact = side / 2;
        if distance < exact || side < 2 {
            return distance.min(side.saturating_sub(1));
        }
        let log = ((distance.min(Buckets::FAR) as f64 / exact as f64) as f32).ln();
        let share = f64::from(log * (side - exact) as f32) / (Buckets::FAR as f64 / exact as f64).ln();
        // Nonnegative and small, because the distance is at least `exact`.
        ((exact as f64 + share) as f32 as usize).min(side - 1)
    }
}
