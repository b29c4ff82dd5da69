//! The operations a graph is made of, as data. What each computes is defined by the `reference` backend.

use super::{Blocks, NgramHash, Recurrence};

/// Element-wise functions of one operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Unary {
    Neg,
    Abs,
    Sqr,
    Sqrt,
    Exp,
    Tanh,
    Sigmoid,
    Relu,
    /// max(x, 0)^2
    ReluSqr,
    /// x * sigmoid(x)
    Silu,
    /// The tanh approximation of GELU (Hendrycks and Gimpel, arXiv 1606.08415).
    Gelu,
    /// Exact GELU by erf.
    GeluErf,
    /// x * sigmoid(1.702 x)
    GeluQuick,
    /// ln(1 + e^x)
    Softplus,
}

/// Which elements of a head form a rotated pair (RoPE; Su et al., arXiv 2104.09864).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RopeKind {
    /// Adjacent elements: (x0, x1), (x2, x3), … (ggml's `NORM`).
    Norm,
    /// First and second half: (x0, x[n/2]), (x1, x[n/2 + 1]), … (ggml's `NEOX`).
    Neox,
    /// As [`RopeKind::Neox`], with positions of four axes (time, height, width, extra); each axis rotates one section of the pairs
    /// (Qwen2-VL, arXiv 2409.12191).
    Mrope,
    /// As [`RopeKind::Mrope`], with the axes interleaved pair by pair instead of in sections (Qwen3-VL, arXiv 2511.21631).
    Imrope,
}

/// Axes of a position under [`RopeKind::Mrope`] and [`RopeKind::Imrope`]. A text token has the position `[p, p, p, 0]`.
pub const ROPE_AXES: usize = 4;

impl RopeKind {
    /// Values that make up the position of one token.
    pub fn n_axes(self) -> usize {
        match self {
            RopeKind::Norm | RopeKind::Neox => 1,
            RopeKind::Mrope | RopeKind::Imrope => ROPE_AXES,
        }
    }
}

/// Parameters of [`Op::Rope`]; scaling follows YaRN (Peng et al., arXiv 2309.00071).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rope {
    /// Which elements pair up.
    pub kind: RopeKind,
    /// Pairs that each axis rotates, for kinds with several axes; the sections repeat if their sum is smaller than the number of pairs.
    pub sections: [usize; ROPE_AXES],
    /// Leading elements of a head that are rotated; the rest pass through. Even.
    pub n_dims: usize,
    /// RoPE base (theta).
    pub freq_base: f32,
    /// Positions are multiplied by this (1 / context extension factor).
    pub freq_scale: f32,
    /// Weight of YaRN's interpolation mix; 0 is plain linear scaling.
    pub ext_factor: f32,
    /// Magnitude factor of the rotated part.
    pub attn_factor: f32,
    /// YaRN correction range, in rotations over the original context.
    pub beta_fast: f32,
    /// See `beta_fast`.
    pub beta_slow: f32,
    /// Context length of the original training, for YaRN (`n_ctx_orig` in ggml).
    pub n_ctx_orig: usize,
    /// Positions are rounded down to a multiple of this. Not 0; 1 leaves them as they are.
    pub every: usize,
    /// Rotates by the negative angle (inverse RoPE).
    pub inverse: bool,
}

impl Rope {
    /// The position that the angle is computed from.
    pub fn place(&self, position: i32) -> i32 {
        let every = i32::try_from(self.every.max(1)).unwrap_or(i32::MAX);
        let place = position.div_euclid(every).saturating_mul(every);
        if self.inverse { place.saturating_neg() } else { place }
    }

    /// The axis whose position rotates a pair.
    pub fn axis(&self, pair: usize) -> usize {
        let [time, height, width, _] = self.sections;
        let cycle = self.sections.iter().sum::<usize>().max(1);
        let sector = pair % cycle;
        match self.kind {
            RopeKind::Norm | RopeKind::Neox => 0,
            RopeKind::Mrope => [time, time + height, time + height + width]
                .iter()
                .filter(|&&end| sector >= end)
                .count(),
            // Pairs left over after one of the three axes is used up belong to the fourth.
            RopeKind::Imrope => match sector % 3 {
                axis if sector < 3 * self.sections[axis] => axis,
                _ => 3,
            },
        }
    }
}

/// Which keys a query of a sliding-window layer sees, besides the causal rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Window {
    /// All of them.
    #[default]
    None,
    /// Keys with `q_pos - k_pos < n`.
    Standard(usize),
    /// Keys in the query's own chunk of `n` positions: `k_pos >= q_pos / n * n` (chunked attention).
    Chunked(usize),
    /// Keys within `n / 2` positions on either side (encoders).
    Symmetric(usize),
    /// All keys, each a compressed key for a group of `n` tokens that starts at a multiple of `n`; its position is that of the group's last token.
    Compressed(usize),
}

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
    /// Biases by relative position.
    pub buckets: Buckets,
    /// The last source is a selection: cells outside of it are hidden.
    pub selects: bool,
    /// Cells from this number on stand for groups of tokens. No window hides them, and only they are selected among, their
    /// numbers counting from here. `None`: a window and a selection hold for all cells.
    pub compressed_from: Option<usize>,
}

impl Attention {
    /// Which of `n` sources are the sinks and the selection. A table of biases comes before both.
    pub fn optional_sources(&self, n: usize) -> (Option<usize>, Option<usize>) {
        let first = 7 + usize::from(self.buckets != Buckets::None);
        let n_lists = n - usize::from(self.selects);
        ((n_lists > first).then_some(first), self.selects.then_some(n_lists))
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

/// How the distance between a query and a key selects a row of the relative position bias table (T5; Raffel et al., arXiv 1910.10683).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Buckets {
    /// No bias table.
    #[default]
    None,
    /// One-sided (decoder): all rows are for keys at or before the query; later keys use distance 0.
    Past,
    /// Two-sided (encoder): the first half of the rows is for keys up to the query, the second half for keys after it.
    Around,
}

impl Buckets {
    /// From this distance on all keys share the last row of their side.
    pub const FAR: usize = 128;
    /// Most rows of a table: each distance has a row of its own in a half, which must end before [`Buckets::FAR`].
    pub const MAX_ROWS: usize = 255;

    /// Rows of each side of a table of `n` rows.
    pub fn side(self, n: usize) -> usize {
        if self == Buckets::Around { n / 2 } else { n }
    }

    /// The row for a distance, within a side of `side` rows: half of the rows stand for one distance each, the others for ranges that grow
    /// logarithmically, computed in f32 as models are trained and served.
    pub fn near(side: usize, distance: usize) -> usize {
        let exact = side / 2;
        if distance < exact || side < 2 {
            return distance.min(side.saturating_sub(1));
        }
        let log = ((distance.min(Buckets::FAR) as f64 / exact as f64) as f32).ln();
        let share = f64::from(log * (side - exact) as f32) / (Buckets::FAR as f64 / exact as f64).ln();
        // Positive and small: the distance is at least `exact`.
        ((exact as f64 + share) as f32 as usize).min(side - 1)
    }
}

/// A row index that [`Op::SetRows`] skips.
pub const NO_ROW: i64 = i64::MIN;

/// An operation. Shapes are given innermost first; `T` is the number of tokens.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Op {
    /// A leaf: input, weight or cache.
    None,
    /// Rows of `src0` `[n, rows]` chosen by `src1` (i32 `[T]`), as f32 `[n, T]`; i32 stays i32. Leading dimensions beyond 2 follow ggml:
    /// `src0 [n, rows, b]`, `src1 [T, b]` gives `[n, T, b]`.
    GetRows,
    /// Writes rows of `src0` (f32 `[n, T]`) into the tensor `src1` `[n, rows]` (any type with a quantizer) at rows `src2` (i64 `[T]`), but
    /// for those whose number is [`NO_ROW`].
    /// The result is a view of `src1`.
    SetRows,
    /// `src0 [k, m, b2, b3]` (weights, any type) times `src1 [k, n, c2, c3]` (f32): f32 `[m, n, c2, c3]`; c2 and c3 are multiples of b2 and b3.
    MulMat,
    /// Mixture of experts: `src0 [k, m, n_expert]`, `src1 [k, n_used or 1, T]` (f32), `src2` expert ids (i32 `[n_used, T]`): f32 `[m, n_used, T]`.
    MulMatId,
    /// `src0 + src1`, `src1` repeated to the shape of `src0`.
    Add,
    /// `src0 - src1`, as [`Op::Add`].
    Sub,
    /// `src0 * src1`, as [`Op::Add`].
    Mul,
    /// `src0 / src1`, as [`Op::Add`].
    Div,
    /// Bias rows chosen by expert: `src0 [m, n_used, T] + src1 [m, n_expert]` at rows `src2` (i32 `[n_used, T]`).
    AddId,
    /// `src0 * scale + bias`.
    Scale {
        /// Factor.
        scale: f32,
        /// Added after the factor.
        bias: f32,
    },
    /// Element-wise function.
    Unary(Unary),
    /// Gated unit: `f(src0) * src1`, both of one shape.
    Glu(Unary),
    /// Root-mean-square norm over dimension 0 (Zhang and Sennrich, arXiv 1910.07467). An optional `src1` `[n]` multiplies the result.
    RmsNorm {
        /// Added to the mean square.
        eps: f32,
    },
    /// Layer norm over dimension 0 without weights (Ba et al., arXiv 1607.06450).
    Norm {
        /// Added to the variance.
        eps: f32,
    },
    /// Divides by the Euclidean length over dimension 0, at least `eps`.
    L2Norm {
        /// Lower bound of the length.
        eps: f32,
    },
    /// Sinkhorn-Knopp normalization of each row, seen as a matrix of `n` x `n`, so that its rows and columns both sum to about 1: each matrix row's
    /// softmax plus `eps`, then columns and rows are divided in turn by their sums plus `eps`, columns `iterations` times
    /// (at least once), rows once less.
    Balance {
        /// Rows and columns of the matrix.
        n: usize,
        /// How often columns are normalized.
        iterations: usize,
        /// Added to elements and to sums.
        eps: f32,
    },
    /// Rotary positions on `src0 [head_dim, n_head, T]` (f32) at positions `src1` (i32 `[T]`, for kinds with sections `[T, 4]`);
    /// optional `src2` (f32 `[n_dims / 2]`) divides each frequency.
    Rope(Rope),
    /// Attention without a stored score matrix (online softmax; Dao et al., arXiv 2205.14135).
    /// `src0` q f32 `[dk, n_head, T]`; `src1` k `[dk, n_head_kv, n_kv]`, `src2` v `[dv, n_head_kv, n_kv]` of any KV type;
    /// `src3` cell positions i32 `[n_kv]` (negative: empty), `src4` cell sequence sets i64 `[n_kv]` (bit per sequence),
    /// `src5` query positions i32 `[T]`, `src6` query sequence ids i32 `[T]`; then, with [`Buckets`], biases f32 `[n_head, n_buckets]`,
    /// added to scores; optional sinks f32 `[n_head]`; where [`Attention::selects`], last, numbers of cells i32 `[k, T]`, those that
    /// each query may see, or `[k, n_head_kv, T]`, by key head; negative ones are none.
    /// Result f32 `[dv, n_head, T]`, zero for a query that sees nothing. Key `j` is visible to query `i` when its set holds `i`'s sequence, its
    /// position is not negative, and the causal and window rules allow it.
    Attention(Attention),
    /// Scores of a lightning indexer (DeepSeek-V3.2, arXiv 2512.02556): `src0` q f32 `[d, n_head, T]`, `src1` keys `[d, 1, n_kv]` of any KV
    /// type, `src2` to `src5` positions and sets of cells, positions and sequences of queries as in [`Op::Attention`], optional `src6` head
    /// weights f32 `[n_head, T]`. With weights f32 `[n_kv, T]`, the sum over heads of weight times max(q k, 0); without, f32
    /// `[n_kv, n_head, T]`, the products. Minus infinity for cells that hold another sequence or a later position.
    IndexScores,
    /// Cells of the top-k blocks of positions, see [`Blocks`]: `src0` scores of cells f32 `[n_kv, T]` or `[n_kv, n_head, T]`, `src1` to `src4`
    /// positions and sets of cells, positions and sequences of tokens as in [`Op::Attention`]. For each row, i32 `[n, …]`: the numbers
    /// of the chosen cells that the token sees, lowest first, then -1. Equal blocks: the earlier first.
    SelectBlocks(Blocks),
    /// The cells that hold a token's sequence at its position and the `n - 1` before, earliest first: `src0` to `src3` positions and
    /// sets of cells, positions and sequences of tokens, i32 `[n, T]`. Where a position has several, the lowest; where it has none, cell 0.
    LastCells {
        /// Positions.
        n: usize,
    },
    /// Positions `src0` (i32 `[T]`) minus `back`, repeated for each axis: i32 `[T, n_axes]`.
    EarlierPositions {
        /// Subtracted from each position; fits an i32.
        back: usize,
        /// See [`RopeKind::n_axes`].
        n_axes: usize,
    },
    /// Softmax over dimension 0 of `src0 * scale`.
    SoftMax {
        /// Factor before the exponential.
        scale: f32,
    },
    /// Indices (i32 `[k, rows]`) of the `k` largest values of each row, largest first; ties by lower index.
    TopK {
        /// How many.
        k: usize,
    },
    /// Top-k mask: 1 for the `k` largest values of each row (ties by lower index), 0 for the others.
    TopMask {
        /// How many.
        k: usize,
    },
    /// Integer division of indices by `by`, i32 to i32.
    DivIds {
        /// Not 0.
        by: usize,
    },
    /// Integers (i32) as f32, exact below 2^24.
    ToFloats,
    /// N-gram hash: the table row (i32 `[T]`) of the n-gram that ends at each token. `src0` f32 `[n or more, T]` holds the ids of a
    /// token and of the tokens before it, plus one; see [`NgramHash::row`].
    NgramHash(NgramHash),
    /// Attention temperature by position (Llama 4): `1 + scale * ln(floor((p + offset) / length) + 1)` of positions
    /// `src0` (i32 `[T]`), f32 `[1, 1, T]`.
    AttentionTemperature {
        /// Weight of the logarithm.
        scale: f32,
        /// The temperature grows by one step every `length` positions. Not 0.
        length: usize,
        /// Added to positions.
        offset: f32,
    },
    /// Sum over dimension 0: `[1, …]`.
    SumRows,
    /// `src0` then `src1` along a dimension.
    Concat {
        /// The dimension.
        dim: u8,
    },
    /// `src0` repeated to the node's shape.
    Repeat,
    /// Values limited to a range.
    Clamp {
        /// Lower bound.
        min: f32,
        /// Upper bound.
        max: f32,
    },
    /// A recurrence over the tokens in order: `src0` the states f32 `[row, n_cells]`, read and written; `src1` and `src2` the cells
    /// (i32 `[T]`) that each token reads its state from (negative: zeros) and writes it to, possibly the same; from `src3` on the operands of the
    /// [`Recurrence`], f32. Lanes are independent; a token sees the state that earlier tokens of the same call wrote.
    Recur(Recurrence),
    /// A dense f32 copy of `src0` in the node's shape (same number of elements); converts from any type with a dequantizer.
    Cont,
    /// Same memory, other shape; `src0` is contiguous.
    Reshape,
    /// Part of `src0`'s memory with its own strides; offset in [`Tensor::view`](super::Tensor::view).
    View,
    /// Same memory, dimensions reordered.
    Permute,
}

impl Op {
    /// True for views: nodes that compute nothing.
    pub fn is_view(self) -> bool {
        matches!(self, Op::Reshape | Op::View | Op::Permute)
    }

    /// False for leafs and views, which are computed by doing nothing.
    pub fn computes(self) -> bool {
        self != Op::None && !self.is_view()
    }

    /// True if the op may write its result over its first operand of equal shape: each output element depends on no other
    /// position of that operand than its own (or, for row-wise ops, than its own row, which is read whole before it is written).
    pub fn can_run_in_place(self) -> bool {
        matches!(
            self,
            Op::Add
                | Op::Sub
                | Op::Mul
                | Op::Div
                | Op::AddId
                | Op::Scale { .. }
                | Op::Unary(_)
                | Op::Glu(_)
                | Op::RmsNorm { .. }
                | Op::Norm { .. }
                | Op::L2Norm { .. }
                | Op::Balance { .. }
                | Op::Rope(_)
                | Op::SoftMax { .. }
                | Op::Clamp { .. }
        )
    }

    /// The operand that the op updates in place, besides writing its result.
    pub fn state_operand(self) -> Option<usize> {
        matches!(self, Op::Recur(_)).then_some(0)
    }

    /// A short name for plans and messages.
    pub fn name(self) -> &'static str {
        match self {
            Op::None => "leaf",
            Op::GetRows => "get_rows",
            Op::SetRows => "set_rows",
            Op::MulMat => "mul_mat",
            Op::MulMatId => "mul_mat_id",
            Op::Add => "add",
            Op::Sub => "sub",
            Op::Mul => "mul",
            Op::Div => "div",
            Op::AddId => "add_id",
            Op::Scale { .. } => "scale",
            Op::Unary(_) => "unary",
            Op::Glu(_) => "glu",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Norm { .. } => "norm",
            Op::L2Norm { .. } => "l2_norm",
            Op::Balance { .. } => "balance",
            Op::Rope(_) => "rope",
            Op::Attention(_) => "attention",
            Op::IndexScores => "index_scores",
            Op::SelectBlocks(_) => "select_blocks",
            Op::LastCells { .. } => "last_cells",
            Op::EarlierPositions { .. } => "earlier_positions",
            Op::SoftMax { .. } => "soft_max",
            Op::TopK { .. } => "top_k",
            Op::TopMask { .. } => "top_mask",
            Op::DivIds { .. } => "div_ids",
            Op::ToFloats => "to_floats",
            Op::NgramHash(_) => "ngram_hash",
            Op::AttentionTemperature { .. } => "attention_temperature",
            Op::SumRows => "sum_rows",
            Op::Concat { .. } => "concat",
            Op::Repeat => "repeat",
            Op::Clamp { .. } => "clamp",
            Op::Recur(r) => r.name(),
            Op::Cont => "cont",
            Op::Reshape => "reshape",
            Op::View => "view",
            Op::Permute => "permute",
        }
    }
}
