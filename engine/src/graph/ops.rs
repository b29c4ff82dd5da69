//! Op functions: each checks its operands, infers the output shape, and appends a node to the arena.
//!
//! This is the public builder API below the architecture language: `arch!` expands to these calls. Shapes are
//! listed innermost dimension first. See [`Op`] for the semantics of the ops.

use super::NgramHash;
use super::rules::{self, Operands, Shape};
use super::{Graph, Name, Op, Recurrence, Rope, Tensor, TensorId, Unary, contiguous_strides};

/// Operands with invalid types or shapes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}: expected {expected}, found {found}")]
pub struct ShapeError {
    /// Name of the op, or of the op and its node.
    pub op: String,
    /// Required operands.
    pub expected: String,
    /// Actual operands.
    pub found: String,
}

pub(super) type Result = std::result::Result<TensorId, ShapeError>;

pub(super) fn mismatch(op: &'static str, expected: impl Into<String>, found: impl Into<String>) -> ShapeError {
    ShapeError {
        op: op.to_owned(),
        expected: expected.into(),
        found: found.into(),
    }
}

impl Graph {
    /// Looks up rows of `table [n, rows, b]` at `ids` (i32 `[t, b]`): f32 `[n, t, b]`, or i32 for an i32
    /// table.
    pub fn get_rows(&mut self, table: TensorId, ids: TensorId) -> Result {
        self.op(Op::GetRows, &[table, ids])
    }

    /// Writes rows `src` (f32 `[n, t]`) into `dst [n, rows]` at indices `ids` (i64 `[t]`), skipping
    /// [`NO_ROW`](super::NO_ROW). The result is a view of `dst`.
    pub fn set_rows(&mut self, dst: TensorId, src: TensorId, ids: TensorId) -> Result {
        let id = self.op(Op::SetRows, &[src, dst, ids])?;
        let (nb, layout, view) = (self.tensor(dst).nb, self.tensor(dst).layout, self.view_of(dst, 0));
        let t = self.tensor_mut(id);
        (t.nb, t.layout) = (nb, layout);
        t.view = Some(view);
        Ok(id)
    }

    /// Matmul: `weights [k, m, b2, b3]` times `x [k, n, c2, c3]` (f32) give `[m, n, c2, c3]`. c2 and c3 must
    /// be multiples of b2 and b3.
    pub fn mul_mat(&mut self, weights: TensorId, x: TensorId) -> Result {
        self.op(Op::MulMat, &[weights, x])
    }

    /// Mixture-of-experts matmul: `experts [k, m, n_expert]`, `x [k, n_used or 1, t]`, and `ids` (i32 `[n_used, t]`)
    /// give `[m, n_used, t]`.
    pub fn mul_mat_id(&mut self, experts: TensorId, x: TensorId, ids: TensorId) -> Result {
        self.op(Op::MulMatId, &[experts, x, ids])
    }

    /// Computes `a + b`, with `b` broadcast to the shape of `a`.
    pub fn add(&mut self, a: TensorId, b: TensorId) -> Result {
        self.op(Op::Add, &[a, b])
    }

    /// Computes `a - b`, with `b` broadcast to the shape of `a`.
    pub fn sub(&mut self, a: TensorId, b: TensorId) -> Result {
        self.op(Op::Sub, &[a, b])
    }

    /// Computes `a * b`, with `b` broadcast to the shape of `a`.
    pub fn mul(&mut self, a: TensorId, b: TensorId) -> Result {
        self.op(Op::Mul, &[a, b])
    }

    /// Computes `a / b`, with `b` broadcast to the shape of `a`.
    pub fn div(&mut self, a: TensorId, b: TensorId) -> Result {
        self.op(Op::Div, &[a, b])
    }

    /// Adds rows of `bias [m, n_expert]` at `ids` (i32 `[n_used, t]`) to `x [m, n_used, t]`.
    pub fn add_id(&mut self, x: TensorId, bias: TensorId, ids: TensorId) -> Result {
        self.op(Op::AddId, &[x, bias, ids])
    }

    /// Computes `x * scale + bias`.
    pub fn scale(&mut self, x: TensorId, scale: f32, bias: f32) -> Result {
        self.op(Op::Scale { scale, bias }, &[x])
    }

    /// Applies an elementwise function.
    pub fn unary(&mut self, f: Unary, x: TensorId) -> Result {
        self.op(Op::Unary(f), &[x])
    }

    /// Clamps values to `min..=max`.
    pub fn clamp(&mut self, x: TensorId, min: f32, max: f32) -> Result {
        self.op(Op::Clamp { min, max }, &[x])
    }

    /// Computes `f(gate) * up` for operands of equal shape.
    pub fn glu(&mut self, f: Unary, gate: TensorId, up: TensorId) -> Result {
        self.op(Op::Glu(f), &[gate, up])
    }

    /// Applies RMS norm over dimension 0, times `weight [n]` if given.
    pub fn rms_norm(&mut self, x: TensorId, weight: Option<TensorId>, eps: f32) -> Result {
        match weight {
            Some(weight) => self.op(Op::RmsNorm { eps }, &[x, weight]),
            None => self.op(Op::RmsNorm { eps }, &[x]),
        }
    }

    /// Applies layer norm over dimension 0, without weights.
    pub fn norm(&mut self, x: TensorId, eps: f32) -> Result {
        self.op(Op::Norm { eps }, &[x])
    }

    /// Applies L2 norm over dimension 0.
    pub fn l2_norm(&mut self, x: TensorId, eps: f32) -> Result {
        self.op(Op::L2Norm { eps }, &[x])
    }

    /// Applies Sinkhorn-Knopp normalization to rows of `n * n` elements; see [`Op::Sinkhorn`].
    pub fn sinkhorn(&mut self, x: TensorId, n: usize, iterations: usize, eps: f32) -> Result {
        self.op(Op::Sinkhorn { n, iterations, eps }, &[x])
    }

    /// Applies RoPE to `x [head_dim, n_head, t]` at `positions` (i32 `[t]` or `[t, axes]`), with frequencies
    /// divided by `factors [n_dims / 2]`.
    pub fn rope(&mut self, x: TensorId, positions: TensorId, factors: Option<TensorId>, rope: Rope) -> Result {
        match factors {
            Some(factors) => self.op(Op::Rope(rope), &[x, positions, factors]),
            None => self.op(Op::Rope(rope), &[x, positions]),
        }
    }

    /// Applies softmax to `x * scale` over dimension 0.
    pub fn soft_max(&mut self, x: TensorId, scale: f32) -> Result {
        self.op(Op::SoftMax { scale }, &[x])
    }

    /// Returns the indices (i32) of the `k` largest values of each row.
    pub fn top_k(&mut self, x: TensorId, k: usize) -> Result {
        self.op(Op::TopK { k }, &[x])
    }

    /// Returns the top-k mask of each row; see [`Op::TopMask`].
    pub fn top_mask(&mut self, x: TensorId, k: usize) -> Result {
        self.op(Op::TopMask { k }, &[x])
    }

    /// Divides i32 values by `by`.
    pub fn int_div(&mut self, ids: TensorId, by: usize) -> Result {
        self.op(Op::IntDiv { by }, &[ids])
    }

    /// Converts i32 to f32.
    pub fn cast(&mut self, ids: TensorId) -> Result {
        self.op(Op::Cast, &[ids])
    }

    /// Returns the table rows (i32 `[t]`) of the n-grams that end at each token, for `numbers` f32 `[n, t]`;
    /// see [`Op::NgramHash`].
    pub fn ngram_hash(&mut self, numbers: TensorId, hash: NgramHash) -> Result {
        self.op(Op::NgramHash(hash), &[numbers])
    }

    /// Returns attention temperatures `[1, 1, t]` for queries at `positions` (i32 `[t]`); see
    /// [`Op::AttentionTemperature`].
    pub fn attention_temperature(&mut self, positions: TensorId, scale: f32, length: usize, offset: f32) -> Result {
        self.op(Op::AttentionTemperature { scale, length, offset }, &[positions])
    }

    /// Sums over dimension 0.
    pub fn sum_rows(&mut self, x: TensorId) -> Result {
        self.op(Op::SumRows, &[x])
    }

    /// Concatenates `a` and `b` along dimension `dim`.
    pub fn concat(&mut self, a: TensorId, b: TensorId, dim: usize) -> Result {
        let dim = u8::try_from(dim).unwrap_or(u8::MAX);
        self.op(Op::Concat { dim }, &[a, b])
    }

    /// Repeats `x` to the shape `ne`, whose sizes must be multiples of those of `x`.
    pub fn repeat(&mut self, x: TensorId, ne: [usize; 4]) -> Result {
        self.op_of_shape(Op::Repeat, ne, &[x])
    }

    /// Appends a recurrence. `src` lists the states f32 `[row, n_cells]` (read and written), the cells to
    /// read and to write (i32 `[t]`), and the operands; see [`Op::Recur`].
    pub fn recur(&mut self, recurrence: Recurrence, src: &[TensorId]) -> Result {
        self.op(Op::Recur(recurrence), src)
    }

    /// Copies `x` to a dense f32 tensor of shape `ne`.
    pub fn cont(&mut self, x: TensorId, ne: [usize; 4]) -> Result {
        self.op_of_shape(Op::Cont, ne, &[x])
    }

    /// Returns a view with the shape `ne`; `x` must be contiguous.
    pub fn reshape(&mut self, x: TensorId, ne: [usize; 4]) -> Result {
        self.check_count("reshape", x, ne)?;
        let t = self.tensor(x);
        if !t.is_contiguous() {
            return Err(mismatch(
                "reshape",
                "a contiguous tensor",
                format!("{:?} with strides {:?}", t.ne, t.nb),
            ));
        }
        let nb = contiguous_strides(t.ty, ne);
        Ok(self.view_node(Op::Reshape, x, ne, nb, 0))
    }

    /// Returns a view of a part of `x` with an explicit shape and strides, starting at byte `offset`.
    pub fn view(&mut self, x: TensorId, ne: [usize; 4], nb: [usize; 4], offset: usize) -> Result {
        let t = self.tensor(x);
        let mut part = Tensor::new(t.ty, ne, Name::default());
        part.nb = nb;
        if offset.saturating_add(part.nbytes()) > t.nbytes() {
            let found = format!("{} bytes at offset {offset}", part.nbytes());
            return Err(mismatch("view", format!("a range within {} bytes", t.nbytes()), found));
        }
        Ok(self.view_node(Op::View, x, ne, nb, offset))
    }

    /// Returns a view of the elements `from..to` of dimension 0.
    pub fn slice(&mut self, x: TensorId, from: usize, to: usize) -> Result {
        let t = self.tensor(x);
        let block = t.ty.block_size();
        if from >= to || to > t.ne[0] || !from.is_multiple_of(block) || !to.is_multiple_of(block) {
            return Err(mismatch(
                "slice",
                format!("a range of whole blocks in 0..{}", t.ne[0]),
                format!("{from}..{to}"),
            ));
        }
        let ne = [to - from, t.ne[1], t.ne[2], t.ne[3]];
        let (nb, offset) = (t.nb, from / block * t.nb[0]);
        self.view(x, ne, nb, offset)
    }

    /// Returns a view with permuted dimensions: dimension `i` of `x` becomes dimension `order[i]`.
    pub fn permute(&mut self, x: TensorId, order: [usize; 4]) -> Result {
        let mut sorted = order;
        sorted.sort_unstable();
        if sorted != [0, 1, 2, 3] {
            return Err(mismatch("permute", "each dimension exactly once", format!("{order:?}")));
        }
        let t = self.tensor(x);
        let (mut ne, mut nb) = ([0; 4], [0; 4]);
        for (i, &to) in order.iter().enumerate() {
            ne[to] = t.ne[i];
            nb[to] = t.nb[i];
        }
        Ok(self.view_node(Op::Permute, x, ne, nb, 0))
    }

    /// Validates the operands and appends a node for the op.
    pub(super) fn op(&mut self, op: Op, src: &[TensorId]) -> Result {
        self.op_of_shape(op, [0; 4], src)
    }

    /// Like [`Graph::op`], for ops that support several output shapes.
    fn op_of_shape(&mut self, op: Op, ne: [usize; 4], src: &[TensorId]) -> Result {
        let operands = Operands::new(self, src.iter().copied());
        let shape = operands
            .ok_or("fewer operands")
            .and_then(|operands| rules::result(op, &operands, ne));
        match shape {
            Ok(Shape { ty, ne }) => Ok(self.link(Tensor::new(ty, ne, Name::default()), op, src)),
            Err(expected) => Err(mismatch(op.name(), expected, self.describe(src, ne))),
        }
    }

    /// Describes the types and shapes of operands, and the requested output shape if any.
    fn describe(&self, src: &[TensorId], ne: [usize; 4]) -> String {
        let describe = |&id: &TensorId| format!("{} {:?}", self.tensor(id).ty, self.tensor(id).ne);
        let operands = src.iter().map(describe).collect::<Vec<_>>().join(", ");
        if ne == [0; 4] {
            operands
        } else {
            format!("{operands} for {ne:?}")
        }
    }

    fn check_count(&self, op: &'static str, x: TensorId, ne: [usize; 4]) -> std::result::Result<(), ShapeError> {
        let have = self.tensor(x).nelements();
        if ne.iter().product::<usize>() != have {
            return Err(mismatch(op, format!("{have} elements"), format!("{ne:?}")));
        }
        Ok(())
    }

    /// Returns the owner and the total offset of a view that starts `offset` bytes into `x`, which may itself
    /// be a view.
    fn view_of(&self, x: TensorId, offset: usize) -> (TensorId, usize) {
        match self.tensor(x).view {
            Some((owner, base)) => (owner, base + offset),
            None => (x, offset),
        }
    }

    fn view_node(&mut self, op: Op, x: TensorId, ne: [usize; 4], nb: [usize; 4], offset: usize) -> TensorId {
        let mut t = Tensor::new(self.tensor(x).ty, ne, self.tensor(x).name);
        (t.nb, t.layout) = (nb, self.tensor(x).layout);
        t.view = Some(self.view_of(x, offset));
        self.link(t, op, &[x])
    }

    fn link(&mut self, mut t: Tensor, op: Op, src: &[TensorId]) -> TensorId {
        t.op = op;
        for (slot, &s) in t.src.iter_mut().zip(src) {
            *slot = Some(s);
        }
        self.push(t)
    }
}

#[cfg(test)]
mod tests {
    use kernels::GgmlType;

    use super::*;

    fn f32_input(g: &mut Graph, ne: [usize; 4]) -> TensorId {
        g.input(GgmlType::F32, ne, "x")
    }

    #[test]
    fn mul_mat_checks_shapes() {
        let mut g = Graph::new();
        let w = f32_input(&mut g, [8, 3, 1, 1]);
        let x = f32_input(&mut g, [8, 5, 1, 1]);
        let y = g.mul_mat(w, x).unwrap();
        assert_eq!(g.tensor(y).ne, [3, 5, 1, 1]);
        let e = g.mul_mat(x, y).unwrap_err();
        assert_eq!(
            e.to_string(),
            "mul_mat: expected weights [k, m, b2, b3] and f32 [k, n, c2, c3] with c2 and c3 multiples of b2 and b3, \
             found f32 [8, 5, 1, 1], f32 [3, 5, 1, 1]"
        );
    }

    #[test]
    fn view_of_view_refers_to_owner() {
        let mut g = Graph::new();
        let x = f32_input(&mut g, [8, 4, 1, 1]);
        let a = g.slice(x, 2, 8).unwrap();
        let b = g.slice(a, 1, 3).unwrap();
        assert_eq!(g.tensor(b).view, Some((x, 12)));
        assert!(g.slice(b, 0, 3).is_err());
        assert!(g.reshape(b, [8, 1, 1, 1]).is_err(), "a strided view cannot be reshaped");
        let p = g.permute(x, [1, 0, 2, 3]).unwrap();
        assert_eq!(
            (g.tensor(p).ne, g.tensor(p).nb[..2].to_vec()),
            ([4, 8, 1, 1], vec![32, 4])
        );
    }

    #[test]
    fn broadcast_requires_divisible_sizes() {
        let mut g = Graph::new();
        let x = f32_input(&mut g, [8, 4, 1, 1]);
        let row = f32_input(&mut g, [8, 1, 1, 1]);
        let odd = f32_input(&mut g, [3, 1, 1, 1]);
        assert!(g.add(x, row).is_ok());
        assert!(g.add(x, odd).is_err());
        assert!(g.add(row, x).is_err());
    }

    #[test]
    fn set_rows_is_a_view_of_its_destination() {
        let mut g = Graph::new();
        let cache = f32_input(&mut g, [8, 16, 1, 1]);
        let x = f32_input(&mut g, [8, 2, 1, 1]);
        let ids = g.input(GgmlType::I64, [2, 1, 1, 1], "ids");
        let s = g.set_rows(cache, x, ids).unwrap();
        assert_eq!(g.tensor(s).view, Some((cache, 0)));
    }
}
