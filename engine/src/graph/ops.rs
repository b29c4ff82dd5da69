//! Op functions: each checks its operands, infers the result's shape and appends one node to the arena.
//!
//! This is the public builder API below the architecture language: whatever `arch!` emits comes down to these calls.
//! Shapes are written innermost first. What the ops compute stands at [`Op`].

use super::NgramHash;
use super::rules::{self, Operands, Shape};
use super::{Attention, Graph, Name, Op, Recurrence, Rope, Tensor, TensorId, Unary, contiguous_strides};

/// Operands that do not fit an op.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}: expected {expected}, found {found}")]
pub struct ShapeError {
    /// The op, or the op and the name of its node.
    pub op: String,
    /// What the op takes.
    pub expected: String,
    /// What it was given.
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
    /// Rows of `table` `[n, rows, b]` chosen by `ids` (i32 `[t, b]`): f32 `[n, t, b]`, or i32 if the table is.
    pub fn get_rows(&mut self, table: TensorId, ids: TensorId) -> Result {
        self.op(Op::GetRows, &[table, ids])
    }

    /// Writes rows `src` (f32 `[n, t]`) into `dst` `[n, rows]` at rows `ids` (i64 `[t]`, [`NO_ROW`](super::NO_ROW): not at all);
    /// the result is a view of `dst`.
    pub fn set_rows(&mut self, dst: TensorId, src: TensorId, ids: TensorId) -> Result {
        let id = self.op(Op::SetRows, &[src, dst, ids])?;
        let (nb, layout, view) = (self.tensor(dst).nb, self.tensor(dst).layout, self.view_of(dst, 0));
        let t = self.tensor_mut(id);
        (t.nb, t.layout) = (nb, layout);
        t.view = Some(view);
        Ok(id)
    }

    /// `weights [k, m, b2, b3]` times `x [k, n, c2, c3]` (f32): `[m, n, c2, c3]`; c2, c3 are multiples of b2, b3.
    pub fn mul_mat(&mut self, weights: TensorId, x: TensorId) -> Result {
        self.op(Op::MulMat, &[weights, x])
    }

    /// `experts [k, m, n_expert]`, `x [k, n_used or 1, t]`, `ids` (i32 `[n_used, t]`): `[m, n_used, t]`.
    pub fn mul_mat_id(&mut self, experts: TensorId, x: TensorId, ids: TensorId) -> Result {
        self.op(Op::MulMatId, &[experts, x, ids])
    }

    /// `a + b`, `b` repeated to the shape of `a`.
    pub fn add(&mut self, a: TensorId, b: TensorId) -> Result {
        self.op(Op::Add, &[a, b])
    }

    /// `a - b`, as [`Graph::add`].
    pub fn sub(&mut self, a: TensorId, b: TensorId) -> Result {
        self.op(Op::Sub, &[a, b])
    }

    /// `a * b`, as [`Graph::add`].
    pub fn mul(&mut self, a: TensorId, b: TensorId) -> Result {
        self.op(Op::Mul, &[a, b])
    }

    /// `a / b`, as [`Graph::add`].
    pub fn div(&mut self, a: TensorId, b: TensorId) -> Result {
        self.op(Op::Div, &[a, b])
    }

    /// Adds to `x [m, n_used, t]` the rows of `bias [m, n_expert]` that `ids` (i32 `[n_used, t]`) name.
    pub fn add_id(&mut self, x: TensorId, bias: TensorId, ids: TensorId) -> Result {
        self.op(Op::AddId, &[x, bias, ids])
    }

    /// `x * scale + bias`.
    pub fn scale(&mut self, x: TensorId, scale: f32, bias: f32) -> Result {
        self.op(Op::Scale { scale, bias }, &[x])
    }

    /// An element-wise function.
    pub fn unary(&mut self, f: Unary, x: TensorId) -> Result {
        self.op(Op::Unary(f), &[x])
    }

    /// Values limited to `min..=max`.
    pub fn clamp(&mut self, x: TensorId, min: f32, max: f32) -> Result {
        self.op(Op::Clamp { min, max }, &[x])
    }

    /// `f(gate) * up`, both of one shape.
    pub fn glu(&mut self, f: Unary, gate: TensorId, up: TensorId) -> Result {
        self.op(Op::Glu(f), &[gate, up])
    }

    /// Root-mean-square norm over dimension 0, times `weight` `[n]` if given.
    pub fn rms_norm(&mut self, x: TensorId, weight: Option<TensorId>, eps: f32) -> Result {
        match weight {
            Some(weight) => self.op(Op::RmsNorm { eps }, &[x, weight]),
            None => self.op(Op::RmsNorm { eps }, &[x]),
        }
    }

    /// Layer norm over dimension 0, without weights.
    pub fn norm(&mut self, x: TensorId, eps: f32) -> Result {
        self.op(Op::Norm { eps }, &[x])
    }

    /// Divides by the length over dimension 0.
    pub fn l2_norm(&mut self, x: TensorId, eps: f32) -> Result {
        self.op(Op::L2Norm { eps }, &[x])
    }

    /// Sinkhorn-Knopp normalization of rows of `n * n` numbers; see [`Op::Balance`].
    pub fn balance(&mut self, x: TensorId, n: usize, iterations: usize, eps: f32) -> Result {
        self.op(Op::Balance { n, iterations, eps }, &[x])
    }

    /// Rotary positions on `x [head_dim, n_head, t]` at `positions` (i32 `[t]` or `[t, axes]`), frequencies divided by `factors` `[n_dims / 2]`.
    pub fn rope(&mut self, x: TensorId, positions: TensorId, factors: Option<TensorId>, rope: Rope) -> Result {
        match factors {
            Some(factors) => self.op(Op::Rope(rope), &[x, positions, factors]),
            None => self.op(Op::Rope(rope), &[x, positions]),
        }
    }

    /// Attention; see [`Op::Attention`] for the operands, `src` in that order.
    pub fn attention(&mut self, params: Attention, src: &[TensorId]) -> Result {
        self.op(Op::Attention(params), src)
    }

    /// Softmax over dimension 0.
    pub fn soft_max(&mut self, x: TensorId, scale: f32) -> Result {
        self.op(Op::SoftMax { scale }, &[x])
    }

    /// Indices (i32) of the `k` largest of each row.
    pub fn top_k(&mut self, x: TensorId, k: usize) -> Result {
        self.op(Op::TopK { k }, &[x])
    }

    /// Top-k mask of each row, see [`Op::TopMask`].
    pub fn top_mask(&mut self, x: TensorId, k: usize) -> Result {
        self.op(Op::TopMask { k }, &[x])
    }

    /// Indices (i32) divided by `by`.
    pub fn div_ids(&mut self, ids: TensorId, by: usize) -> Result {
        self.op(Op::DivIds { by }, &[ids])
    }

    /// Integers (i32) as f32.
    pub fn to_floats(&mut self, ids: TensorId) -> Result {
        self.op(Op::ToFloats, &[ids])
    }

    /// Table rows (i32 `[t]`) of the n-grams that end at each token, `numbers` f32 `[n, t]`, see [`Op::NgramHash`].
    pub fn ngram_hash(&mut self, numbers: TensorId, hash: NgramHash) -> Result {
        self.op(Op::NgramHash(hash), &[numbers])
    }

    /// Attention temperatures `[1, 1, t]` for queries at `positions` (i32 `[t]`), see [`Op::AttentionTemperature`].
    pub fn attention_temperature(&mut self, positions: TensorId, scale: f32, length: usize, offset: f32) -> Result {
        self.op(Op::AttentionTemperature { scale, length, offset }, &[positions])
    }

    /// Sum over dimension 0.
    pub fn sum_rows(&mut self, x: TensorId) -> Result {
        self.op(Op::SumRows, &[x])
    }

    /// `a` then `b` along dimension `dim`.
    pub fn concat(&mut self, a: TensorId, b: TensorId, dim: usize) -> Result {
        let dim = u8::try_from(dim).unwrap_or(u8::MAX);
        self.op(Op::Concat { dim }, &[a, b])
    }

    /// `x` repeated to the shape `ne`, whose sizes are multiples of `x`'s.
    pub fn repeat(&mut self, x: TensorId, ne: [usize; 4]) -> Result {
        self.op_of_shape(Op::Repeat, ne, &[x])
    }

    /// A recurrence over `src`: states f32 `[row, n_cells]`, cells to read and cells to write (i32 `[t]`), then its operands, see
    /// [`Op::Recur`]. The states are written.
    pub fn recur(&mut self, recurrence: Recurrence, src: &[TensorId]) -> Result {
        self.op(Op::Recur(recurrence), src)
    }

    /// A dense f32 copy in the shape `ne`.
    pub fn cont(&mut self, x: TensorId, ne: [usize; 4]) -> Result {
        self.op_of_shape(Op::Cont, ne, &[x])
    }

    /// The same memory in another shape; `x` must be contiguous.
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

    /// Part of `x`'s memory with its own shape and strides, starting `offset` bytes into `x`.
    pub fn view(&mut self, x: TensorId, ne: [usize; 4], nb: [usize; 4], offset: usize) -> Result {
        let t = self.tensor(x);
        let mut part = Tensor::new(t.ty, ne, Name::default());
        part.nb = nb;
        if offset.saturating_add(part.nbytes()) > t.nbytes() {
            let found = format!("{} bytes at offset {offset}", part.nbytes());
            return Err(mismatch("view", format!("a part of {} bytes", t.nbytes()), found));
        }
        Ok(self.view_node(Op::View, x, ne, nb, offset))
    }

    /// Elements `from..to` of dimension 0.
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

    /// Dimensions reordered: dimension `i` of `x` becomes dimension `order[i]`.
    pub fn permute(&mut self, x: TensorId, order: [usize; 4]) -> Result {
        let mut sorted = order;
        sorted.sort_unstable();
        if sorted != [0, 1, 2, 3] {
            return Err(mismatch("permute", "each dimension once", format!("{order:?}")));
        }
        let t = self.tensor(x);
        let (mut ne, mut nb) = ([0; 4], [0; 4]);
        for (i, &to) in order.iter().enumerate() {
            ne[to] = t.ne[i];
            nb[to] = t.nb[i];
        }
        Ok(self.view_node(Op::Permute, x, ne, nb, 0))
    }

    /// Appends a node, if the operands are what its op takes.
    pub(super) fn op(&mut self, op: Op, src: &[TensorId]) -> Result {
        self.op_of_shape(op, [0; 4], src)
    }

    /// As [`Graph::op`], for ops that can give several shapes: `ne`.
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

    /// Types and shapes of operands, and the shape wanted if one was asked for.
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

    /// A view's owner and offset for a view that starts `offset` bytes into `x`, which may itself be a view.
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
    fn mul_mat_shapes() {
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
    fn views_of_views_point_at_the_owner() {
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
    fn broadcasts_only_where_sizes_divide() {
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
