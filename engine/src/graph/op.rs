//! Operations of a graph, as data. The `reference` backend defines their results.

use super::{Attention, Blocks, NgramHash, Recurrence, Rope, VisibleCells};

/// Elementwise functions of one operand.
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
    /// SiLU: x * sigmoid(x).
    Silu,
    /// GELU, tanh approximation (Hendrycks and Gimpel, arXiv 1606.08415).
    Gelu,
    /// Exact GELU (with erf).
    GeluErf,
    /// Approximate GELU: x * sigmoid(1.702 x).
    GeluQuick,
    /// Softplus: ln(1 + e^x).
    Softplus,
}

/// Row index that [`Op::SetRows`] skips.
pub const NO_ROW: i64 = i64::MIN;

/// Operation of a node. Shapes are listed innermost dimension first; `T` is the number of tokens.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Op {
    /// No operation: the tensor is an input, weight, or cache.
    None,
    /// Row lookup: rows of `src0 [n, rows]` at indices `src1` (i32 `[T]`), as f32 `[n, T]`; i32 tables stay
    /// i32. Batched as in ggml: `src0 [n, rows, b]` and `src1 [T, b]` give `[n, T, b]`.
    GetRows,
    /// Writes rows `src0` (f32 `[n, T]`) into the table `src1 [n, rows]` at indices `src2` (i64 `[T]`),
    /// skipping [`NO_ROW`]. The table can have any type with a quantizer. The result is a view of `src1`.
    SetRows,
    /// Matmul: weights `src0 [k, m, b2, b3]` (any type) times `src1 [k, n, c2, c3]` (f32) give f32 `[m, n,
    /// c2, c3]`. c2 and c3 must be multiples of b2 and b3.
    MulMat,
    /// Mixture-of-experts matmul: `src0 [k, m, n_expert]`, `src1 [k, n_used or 1, T]` (f32), and expert ids
    /// `src2` (i32 `[n_used, T]`) give f32 `[m, n_used, T]`.
    MulMatId,
    /// `src0 + src1`, with `src1` broadcast to the shape of `src0`.
    Add,
    /// `src0 - src1`, with `src1` broadcast to the shape of `src0`.
    Sub,
    /// `src0 * src1`, with `src1` broadcast to the shape of `src0`.
    Mul,
    /// `src0 / src1`, with `src1` broadcast to the shape of `src0`.
    Div,
    /// Expert bias: `src0 [m, n_used, T]` plus rows of `src1 [m, n_expert]` at indices `src2` (i32 `[n_used,
    /// T]`).
    AddId,
    /// Computes `src0 * scale + bias`.
    Scale {
        /// Multiplier.
        scale: f32,
        /// Addend.
        bias: f32,
    },
    /// Elementwise function.
    Unary(Unary),
    /// Gated linear unit: `f(src0) * src1`, with equal shapes.
    Glu(Unary),
    /// RMS norm over dimension 0 (Zhang and Sennrich, arXiv 1910.07467), multiplied by `src1 [n]` if present.
    RmsNorm {
        /// Epsilon added to the mean square.
        eps: f32,
    },
    /// Layer norm over dimension 0 without weights (Ba et al., arXiv 1607.06450).
    Norm {
        /// Epsilon added to the variance.
        eps: f32,
    },
    /// L2 norm over dimension 0: divides by the Euclidean length, at least `eps`.
    L2Norm {
        /// Lower bound of the L2 norm.
        eps: f32,
    },
    /// Sinkhorn-Knopp normalization of each row, viewed as an `n` x `n` matrix, so that its rows and columns
    /// each sum to about 1.
    ///
    /// Starts with the softmax of every matrix row plus `eps`. Then columns and rows are alternately divided
    /// by their sums plus `eps`: columns `iterations` times (at least once), rows one time less.
    Sinkhorn {
        /// Rows and columns of the matrix.
        n: usize,
        /// Number of column normalizations.
        iterations: usize,
        /// Epsilon added to elements and sums.
        eps: f32,
    },
    /// RoPE of `src0 [head_dim, n_head, T]` (f32) at positions `src1` (i32 `[T]`, or `[T, 4]` for kinds with
    /// sections). Optional `src2` (f32 `[n_dims / 2]`) divides the frequencies.
    Rope(Rope),
    /// Attention by online softmax, without a stored score matrix (FlashAttention; Dao et al., arXiv
    /// 2205.14135). The sources are [`AttentionOperands`](super::AttentionOperands), the output is f32 `[dv,
    /// n_head, T]`.
    ///
    /// A query sees the cells in its page table that have a nonnegative position and pass the causal mask,
    /// window, and selection. A query without visible cells outputs zeros.
    Attention(Attention),
    /// Scores of a lightning indexer (DeepSeek-V3.2, arXiv 2512.02556).
    ///
    /// - `src0`: queries, f32 `[d, n_head, T]`
    /// - `src1`: keys `[d, 1, n_kv]` of any KV cache type
    /// - `src2` to `src7`: [`VisibleCells`](super::VisibleCells)
    /// - `src8` (optional): head weights, f32 `[n_head, T]`
    ///
    /// With weights, the output f32 `[n_kv, T]` is the sum over heads of `weight * max(q k, 0)`. Without weights, the
    /// output f32 `[n_kv, n_head, T]` contains the dot products. Cells outside the token's page table or at later
    /// positions score negative infinity.
    IndexScores,
    /// Cells of the top-k blocks of positions (see [`Blocks`]), from cell scores `src0` (f32 `[n_kv, T]` or
    /// `[n_kv, n_head, T]`) and [`VisibleCells`](super::VisibleCells) `src1` to `src6`.
    ///
    /// Each output row (i32 `[n, …]`) lists the indices of the selected visible cells in ascending order,
    /// padded with -1. Ties prefer the earlier block.
    SelectBlocks(Blocks),
    /// Cells of the `n` most recent positions up to each token's own, in ascending order of position: i32 `[n, T]`,
    /// from [`VisibleCells`](super::VisibleCells). If several cells have the same position, the lowest index is used. A
    /// position without a cell yields cell 0.
    RecentCells {
        /// Number of positions to select.
        n: usize,
    },
    /// Positions `src0` (i32 `[T]`) minus `back`, repeated for each axis: i32 `[T, n_axes]`.
    ShiftPositions {
        /// Distance subtracted from positions; must fit into i32.
        back: usize,
        /// Number of axes; see [`RopeKind::n_axes`].
        n_axes: usize,
    },
    /// Softmax over dimension 0 of `src0 * scale`.
    SoftMax {
        /// Factor applied before the exponential.
        scale: f32,
    },
    /// Indices (i32 `[k, rows]`) of the `k` largest values of each row, in descending order; ties prefer the
    /// lower index.
    TopK {
        /// Number of values to select.
        k: usize,
    },
    /// Top-k mask: 1 for the `k` largest values of each row (ties prefer the lower index), else 0.
    TopMask {
        /// Number of values to select.
        k: usize,
    },
    /// Integer division of i32 values.
    IntDiv {
        /// Divisor; nonzero.
        by: usize,
    },
    /// Conversion of i32 to f32; exact below 2^24.
    Cast,
    /// N-gram hash: table row (i32 `[T]`) of the n-gram that ends at each token. `src0` (f32 `[n or more,
    /// T]`) has the ids plus one of each token and its predecessors; see [`NgramHash::row`].
    NgramHash(NgramHash),
    /// Attention temperature by position (Llama 4): f32 `[1, 1, T]` with `1 + scale * ln(floor((p + offset) /
    /// length) + 1)` for positions `src0` (i32 `[T]`).
    AttentionTemperature {
        /// Factor applied to the logarithm.
        scale: f32,
        /// Positions per temperature step; nonzero.
        length: usize,
        /// Offset added to positions.
        offset: f32,
    },
    /// Sum over dimension 0; the result has shape `[1, …]`.
    SumRows,
    /// Concatenation of `src0` and `src1` along a dimension.
    Concat {
        /// Index of the dimension, 0 to 3.
        dim: u8,
    },
    /// Repeats `src0` to the shape of the node.
    Repeat,
    /// Clamps values to a range.
    Clamp {
        /// Lower bound.
        min: f32,
        /// Upper bound.
        max: f32,
    },
    /// Recurrence over the tokens in order.
    ///
    /// - `src0`: states, f32 `[row, n_cells]`, read and written
    /// - `src1`, `src2`: cells (i32 `[T]`) that each token reads its state from (negative: zeros) and writes
    ///   it to, possibly equal
    /// - `src3` and up: operands of the [`Recurrence`], f32
    ///
    /// Lanes are independent. A token sees states written by earlier tokens of the same call.
    Recur(Recurrence),
    /// Dense f32 copy of `src0` in the shape of the node, which has the same number of elements. Converts
    /// from any type with a dequantizer.
    Cont,
    /// View with a different shape; `src0` must be contiguous.
    Reshape,
    /// View of a part of `src0` with explicit strides; the offset is in
    /// [`Tensor::view`](super::Tensor::view).
    View,
    /// View with its dimensions permuted.
    Permute,
}

impl Op {
    /// Returns the source indices of the [`VisibleCells`] operands, if the op has them.
    pub fn visible_cells(&self) -> Option<VisibleCells<usize>> {
        match self {
            Op::Attention(p) => Some(p.operands().visible),
            Op::IndexScores => Some(VisibleCells::OF_INDEX_SCORES),
            Op::SelectBlocks(_) => Some(VisibleCells::OF_SELECT_BLOCKS),
            Op::RecentCells { .. } => Some(VisibleCells::OF_RECENT_CELLS),
            _ => None,
        }
    }

    /// Returns true for views, which compute nothing.
    pub fn is_view(self) -> bool {
        matches!(self, Op::Reshape | Op::View | Op::Permute)
    }

    /// Returns false for leaves and views, which compute nothing.
    pub fn computes(self) -> bool {
        self != Op::None && !self.is_view()
    }

    /// Returns true if the op may write its result over its first operand of equal shape. Each output element must
    /// depend only on the same element of that operand. For row-wise ops, it may depend on the same row, which is read
    /// before it is written.
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
                | Op::Sinkhorn { .. }
                | Op::Rope(_)
                | Op::SoftMax { .. }
                | Op::Clamp { .. }
        )
    }

    /// Returns the index of the operand that the op updates in place, in addition to writing its result.
    pub fn state_operand(self) -> Option<usize> {
        if matches!(self, Op::Recur(_)) { Some(0) } else { None }
    }

    /// Returns a short name for plans and messages.
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
            Op::Sinkhorn { .. } => "sinkhorn",
            Op::Rope(_) => "rope",
            Op::Attention(_) => "attention",
            Op::IndexScores => "index_scores",
            Op::SelectBlocks(_) => "select_blocks",
            Op::RecentCells { .. } => "recent_cells",
            Op::ShiftPositions { .. } => "shift_positions",
            Op::SoftMax { .. } => "soft_max",
            Op::TopK { .. } => "top_k",
            Op::TopMask { .. } => "top_mask",
            Op::IntDiv { .. } => "int_div",
            Op::Cast => "cast",
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
