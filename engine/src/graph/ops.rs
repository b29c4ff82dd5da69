//! Op functions: each checks its operands, infers the result's shape and appends one node to the arena.
//!
//! This is the public builder API below the architecture language: whatever `arch!` emits comes down to these calls.
//! Shapes are written innermost first. What the ops compute stands at [`Op`].

use kernels::GgmlType;

use super::NgramHash;
use super::{Graph, MAX_SRC, Name, Op, Recurrence, Rope, Tensor, TensorId, Unary, contiguous_strides};

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
        let (t, i) = (self.tensor(table), self.tensor(ids));
        if i.ty != GgmlType::I32 || i.ne[1] != t.ne[2] || i.ne[2] != 1 || t.ne[3] != 1 {
            return Err(mismatch(
                "get_rows",
                format!("i32 ids [t, {}]", t.ne[2]),
                format!("{} {:?}", i.ty, i.ne),
            ));
        }
        let ne = [t.ne[0], i.ne[0], i.ne[1], 1];
        if t.ty == GgmlType::I32 {
            let rows = Tensor::new(GgmlType::I32, ne, Name::default());
            return Ok(self.link(rows, Op::GetRows, &[table, ids]));
        }
        Ok(self.node(Op::GetRows, ne, &[table, ids]))
    }

    /// Writes rows `src` (f32 `[n, t]`) into `dst` `[n, rows]` at rows `ids` (i64 `[t]`, [`NO_ROW`](super::NO_ROW): not at all);
    /// the result is a view of `dst`.
    pub fn set_rows(&mut self, dst: TensorId, src: TensorId, ids: TensorId) -> Result {
        let (d, s, i) = (self.tensor(dst), self.tensor(src), self.tensor(ids));
        let fits = s.ty == GgmlType::F32 && s.ne[0] == d.ne[0] && s.ne[1] == i.ne[0] && s.ne[2] == 1 && d.ne[2] == 1;
        if !fits || i.ty != GgmlType::I64 {
            return Err(mismatch(
                "set_rows",
                format!("f32 [{}, t] and i64 ids [t]", d.ne[0]),
                format!("{} {:?} and {} {:?}", s.ty, s.ne, i.ty, i.ne),
            ));
        }
        let (ty, ne, nb, layout, view) = (d.ty, d.ne, d.nb, d.layout, self.view_of(dst, 0));
        let mut t = Tensor::new(ty, ne, Name::default());
        (t.nb, t.layout) = (nb, layout);
        t.view = Some(view);
        Ok(self.link(t, Op::SetRows, &[src, dst, ids]))
    }

    /// `weights [k, m, b2, b3]` times `x [k, n, c2, c3]` (f32): `[m, n, c2, c3]`; c2, c3 are multiples of b2, b3.
    pub fn mul_mat(&mut self, weights: TensorId, x: TensorId) -> Result {
        let (w, x_) = (self.tensor(weights), self.tensor(x));
        let fits = w.ne[0] == x_.ne[0] && (2..4).all(|d| w.ne[d] > 0 && x_.ne[d].is_multiple_of(w.ne[d]));
        if !fits || x_.ty != GgmlType::F32 {
            return Err(mismatch(
                "mul_mat",
                format!("f32 [{}, n, …] for weights {:?}", w.ne[0], w.ne),
                format!("{} {:?}", x_.ty, x_.ne),
            ));
        }
        let ne = [w.ne[1], x_.ne[1], x_.ne[2], x_.ne[3]];
        Ok(self.node(Op::MulMat, ne, &[weights, x]))
    }

    /// `experts [k, m, n_expert]`, `x [k, n_used or 1, t]`, `ids` (i32 `[n_used, t]`): `[m, n_used, t]`.
    pub fn mul_mat_id(&mut self, experts: TensorId, x: TensorId, ids: TensorId) -> Result {
        let (w, x_, i) = (self.tensor(experts), self.tensor(x), self.tensor(ids));
        let fits = w.ne[0] == x_.ne[0]
            && (x_.ne[1] == 1 || x_.ne[1] == i.ne[0])
            && x_.ne[2] == i.ne[1]
            && x_.ne[3] == 1
            && w.ne[3] == 1;
        if !fits || x_.ty != GgmlType::F32 || i.ty != GgmlType::I32 {
            return Err(mismatch(
                "mul_mat_id",
                format!("f32 [{}, n_used, t] and i32 ids [n_used, t]", w.ne[0]),
                format!("{} {:?} and {} {:?}", x_.ty, x_.ne, i.ty, i.ne),
            ));
        }
        let ne = [w.ne[1], i.ne[0], i.ne[1], 1];
        Ok(self.node(Op::MulMatId, ne, &[experts, x, ids]))
    }

    /// `a + b`, `b` repeated to the shape of `a`.
    pub fn add(&mut self, a: TensorId, b: TensorId) -> Result {
        self.binary(Op::Add, a, b)
    }

    /// `a - b`, as [`Graph::add`].
    pub fn sub(&mut self, a: TensorId, b: TensorId) -> Result {
        self.binary(Op::Sub, a, b)
    }

    /// `a * b`, as [`Graph::add`].
    pub fn mul(&mut self, a: TensorId, b: TensorId) -> Result {
        self.binary(Op::Mul, a, b)
    }

    /// `a / b`, as [`Graph::add`].
    pub fn div(&mut self, a: TensorId, b: TensorId) -> Result {
        self.binary(Op::Div, a, b)
    }

    /// Adds to `x [m, n_used, t]` the rows of `bias [m, n_expert]` that `ids` (i32 `[n_used, t]`) name.
    pub fn add_id(&mut self, x: TensorId, bias: TensorId, ids: TensorId) -> Result {
        let (x_, b, i) = (self.tensor(x), self.tensor(bias), self.tensor(ids));
        if b.ne[0] != x_.ne[0] || i.ne[0] != x_.ne[1] || i.ne[1] != x_.ne[2] || i.ty != GgmlType::I32 {
            return Err(mismatch(
                "add_id",
                format!("bias [{}, n_expert] and i32 ids [{}, {}]", x_.ne[0], x_.ne[1], x_.ne[2]),
                format!("{:?} and {} {:?}", b.ne, i.ty, i.ne),
            ));
        }
        Ok(self.node(Op::AddId, x_.ne, &[x, bias, ids]))
    }

    /// `x * scale + bias`.
    pub fn scale(&mut self, x: TensorId, scale: f32, bias: f32) -> Result {
        self.same_shape(Op::Scale { scale, bias }, x)
    }

    /// An element-wise function.
    pub fn unary(&mut self, f: Unary, x: TensorId) -> Result {
        self.same_shape(Op::Unary(f), x)
    }

    /// Values limited to `min..=max`.
    pub fn clamp(&mut self, x: TensorId, min: f32, max: f32) -> Result {
        self.same_shape(Op::Clamp { min, max }, x)
    }

    /// `f(gate) * up`, both of one shape.
    pub fn glu(&mut self, f: Unary, gate: TensorId, up: TensorId) -> Result {
        let (g, u) = (self.tensor(gate), self.tensor(up));
        if g.ne != u.ne {
            return Err(mismatch(
                "glu",
                format!("two tensors {:?}", g.ne),
                format!("{:?}", u.ne),
            ));
        }
        Ok(self.node(Op::Glu(f), g.ne, &[gate, up]))
    }

    /// Root-mean-square norm over dimension 0, times `weight` `[n]` if given.
    pub fn rms_norm(&mut self, x: TensorId, weight: Option<TensorId>, eps: f32) -> Result {
        let ne = self.tensor(x).ne;
        let Some(weight) = weight else {
            return self.same_shape(Op::RmsNorm { eps }, x);
        };
        let w = self.tensor(weight);
        if w.ne != [ne[0], 1, 1, 1] {
            return Err(mismatch(
                "rms_norm",
                format!("a weight of {} elements", ne[0]),
                format!("{:?}", w.ne),
            ));
        }
        Ok(self.node(Op::RmsNorm { eps }, ne, &[x, weight]))
    }

    /// Layer norm over dimension 0, without weights.
    pub fn norm(&mut self, x: TensorId, eps: f32) -> Result {
        self.same_shape(Op::Norm { eps }, x)
    }

    /// Divides by the length over dimension 0.
    pub fn l2_norm(&mut self, x: TensorId, eps: f32) -> Result {
        self.same_shape(Op::L2Norm { eps }, x)
    }

    /// Sinkhorn-Knopp normalization of rows of `n * n` numbers; see [`Op::Balance`].
    pub fn balance(&mut self, x: TensorId, n: usize, iterations: usize, eps: f32) -> Result {
        let found = self.tensor(x).ne[0];
        if n == 0 || n.checked_mul(n) != Some(found) {
            return Err(mismatch("balance", format!("rows of {n} times {n}"), found.to_string()));
        }
        self.same_shape(Op::Balance { n, iterations, eps }, x)
    }

    /// Rotary positions on `x [head_dim, n_head, t]` at `positions` (i32 `[t]` or `[t, axes]`), frequencies divided by `factors` `[n_dims / 2]`.
    pub fn rope(&mut self, x: TensorId, positions: TensorId, factors: Option<TensorId>, rope: Rope) -> Result {
        let (x_, p) = (self.tensor(x), self.tensor(positions));
        let n_axes = rope.kind.n_axes();
        if p.ty != GgmlType::I32 || p.ne != [x_.ne[2], n_axes, 1, 1] {
            return Err(mismatch(
                "rope",
                format!("i32 positions [{}, {n_axes}]", x_.ne[2]),
                format!("{} {:?}", p.ty, p.ne),
            ));
        }
        if n_axes > 1 && !(1..=x_.ne[0]).contains(&rope.sections.iter().sum()) {
            return Err(mismatch(
                "rope",
                format!("sections of 1 to {} pairs in all", x_.ne[0]),
                format!("{:?}", rope.sections),
            ));
        }
        if rope.n_dims > x_.ne[0] || !rope.n_dims.is_multiple_of(2) {
            return Err(mismatch(
                "rope",
                format!("an even size up to {}", x_.ne[0]),
                format!("{}", rope.n_dims),
            ));
        }
        if let Some(f) = factors.map(|f| self.tensor(f))
            && f.nelements() < rope.n_dims / 2
        {
            return Err(mismatch(
                "rope",
                format!("{} frequency factors", rope.n_dims / 2),
                format!("{:?}", f.ne),
            ));
        }
        let ne = x_.ne;
        Ok(match factors {
            Some(f) => self.node(Op::Rope(rope), ne, &[x, positions, f]),
            None => self.node(Op::Rope(rope), ne, &[x, positions]),
        })
    }

    /// Softmax over dimension 0.
    pub fn soft_max(&mut self, x: TensorId, scale: f32) -> Result {
        self.same_shape(Op::SoftMax { scale }, x)
    }

    /// Indices (i32) of the `k` largest of each row.
    pub fn top_k(&mut self, x: TensorId, k: usize) -> Result {
        let x_ = self.tensor(x);
        if k == 0 || k > x_.ne[0] {
            return Err(mismatch("top_k", format!("k in 1..={}", x_.ne[0]), k.to_string()));
        }
        let t = Tensor::new(GgmlType::I32, [k, x_.ne[1], x_.ne[2], x_.ne[3]], Name::default());
        Ok(self.link(t, Op::TopK { k }, &[x]))
    }

    /// Top-k mask of each row, see [`Op::TopMask`].
    pub fn top_mask(&mut self, x: TensorId, k: usize) -> Result {
        let n = self.tensor(x).ne[0];
        if k == 0 || k > n {
            return Err(mismatch("top_mask", format!("k in 1..={n}"), k.to_string()));
        }
        self.same_shape(Op::TopMask { k }, x)
    }

    /// Indices (i32) divided by `by`.
    pub fn div_ids(&mut self, ids: TensorId, by: usize) -> Result {
        let i = self.tensor(ids);
        if i.ty != GgmlType::I32 || by == 0 {
            return Err(mismatch(
                "div_ids",
                "i32 and a divisor that is not 0",
                format!("{} and {by}", i.ty),
            ));
        }
        let t = Tensor::new(GgmlType::I32, i.ne, Name::default());
        Ok(self.link(t, Op::DivIds { by }, &[ids]))
    }

    /// Integers (i32) as f32.
    pub fn to_floats(&mut self, ids: TensorId) -> Result {
        let i = self.tensor(ids);
        if i.ty != GgmlType::I32 {
            return Err(mismatch("to_floats", "i32", i.ty.to_string()));
        }
        Ok(self.node(Op::ToFloats, i.ne, &[ids]))
    }

    /// Table rows (i32 `[t]`) of the n-grams that end at each token, `numbers` f32 `[n, t]`, see [`Op::NgramHash`].
    pub fn ngram_hash(&mut self, numbers: TensorId, hash: NgramHash) -> Result {
        let x = self.tensor(numbers);
        if x.ty != GgmlType::F32 || x.ne[0] < hash.n || x.ne[2..] != [1, 1] || !hash.is_sound() {
            return Err(mismatch(
                "ngram_hash",
                format!("f32 [{} or more, t] and rows that i32 can number", hash.n),
                format!("{} {:?} and {hash:?}", x.ty, x.ne),
            ));
        }
        let t = Tensor::new(GgmlType::I32, [x.ne[1], 1, 1, 1], Name::default());
        Ok(self.link(t, Op::NgramHash(hash), &[numbers]))
    }

    /// Attention temperatures `[1, 1, t]` for queries at `positions` (i32 `[t]`), see [`Op::AttentionTemperature`].
    pub fn attention_temperature(&mut self, positions: TensorId, scale: f32, length: usize, offset: f32) -> Result {
        let p = self.tensor(positions);
        if p.ty != GgmlType::I32 || p.ne[1..] != [1; 3] || length == 0 {
            return Err(mismatch(
                "attention_temperature",
                "i32 [t] and a length that is not 0",
                format!("{} {:?} and {length}", p.ty, p.ne),
            ));
        }
        let op = Op::AttentionTemperature { scale, length, offset };
        Ok(self.node(op, [1, 1, p.ne[0], 1], &[positions]))
    }

    /// Sum over dimension 0.
    pub fn sum_rows(&mut self, x: TensorId) -> Result {
        let mut ne = self.tensor(x).ne;
        ne[0] = 1;
        Ok(self.node(Op::SumRows, ne, &[x]))
    }

    /// `a` then `b` along dimension `dim`.
    pub fn concat(&mut self, a: TensorId, b: TensorId, dim: usize) -> Result {
        let (mut ne, nb) = (self.tensor(a).ne, self.tensor(b).ne);
        if (0..4).any(|d| d != dim && ne[d] != nb[d]) {
            return Err(mismatch(
                "concat",
                format!("equal sizes except in dimension {dim}"),
                format!("{ne:?}, {nb:?}"),
            ));
        }
        ne[dim] += nb[dim];
        Ok(self.node(Op::Concat { dim: dim as u8 }, ne, &[a, b]))
    }

    /// `x` repeated to the shape `ne`, whose sizes are multiples of `x`'s.
    pub fn repeat(&mut self, x: TensorId, ne: [usize; 4]) -> Result {
        let from = self.tensor(x).ne;
        if (0..4).any(|d| from[d] == 0 || !ne[d].is_multiple_of(from[d])) {
            return Err(mismatch(
                "repeat",
                format!("sizes that divide {ne:?}"),
                format!("{from:?}"),
            ));
        }
        Ok(self.node(Op::Repeat, ne, &[x]))
    }

    /// A recurrence over `src`: states f32 `[row, n_cells]`, cells to read and cells to write (i32 `[t]`), then its operands, see
    /// [`Op::Recur`]. The states are written.
    pub fn recur(&mut self, recurrence: Recurrence, src: &[TensorId]) -> Result {
        let mut shapes = [[0; 4]; MAX_SRC];
        let ne = &mut shapes[..src.len().min(MAX_SRC)];
        (ne.iter_mut().zip(src)).for_each(|(ne, &s)| *ne = self.tensor(s).ne);
        let ne = &*ne;
        let types = [GgmlType::F32, GgmlType::I32, GgmlType::I32];
        let typed =
            (src.iter().enumerate()).all(|(i, &s)| self.tensor(s).ty == types.get(i).copied().unwrap_or(GgmlType::F32));
        let found = || format!("{ne:?}");
        let lanes = ne.get(3..).and_then(|operands| recurrence.lanes(operands));
        let Some(lanes) = lanes.filter(|_| typed) else {
            return Err(mismatch(
                recurrence.name(),
                format!("f32 {}", recurrence.takes()),
                found(),
            ));
        };
        let t = lanes.n_tokens();
        if ne[0][0] != lanes.row() || ne[0][2..] != [1, 1] || ne[1] != [t, 1, 1, 1] || ne[2] != ne[1] {
            let expected = format!("states [{}, n_cells] and cells [{t}]", lanes.row());
            return Err(mismatch(recurrence.name(), expected, found()));
        }
        Ok(self.node(Op::Recur(recurrence), lanes.ne, src))
    }

    /// A dense f32 copy in the shape `ne`.
    pub fn cont(&mut self, x: TensorId, ne: [usize; 4]) -> Result {
        self.check_count("cont", x, ne)?;
        Ok(self.node(Op::Cont, ne, &[x]))
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

    fn binary(&mut self, op: Op, a: TensorId, b: TensorId) -> Result {
        let (a_, b_) = (self.tensor(a), self.tensor(b));
        let repeats = (0..4).all(|d| b_.ne[d] > 0 && a_.ne[d].is_multiple_of(b_.ne[d]));
        if !repeats || a_.ty != GgmlType::F32 {
            return Err(mismatch(
                op.name(),
                format!("f32 and a shape that divides {:?}", a_.ne),
                format!("{} and {:?}", a_.ty, b_.ne),
            ));
        }
        Ok(self.node(op, a_.ne, &[a, b]))
    }

    fn same_shape(&mut self, op: Op, x: TensorId) -> Result {
        let x_ = self.tensor(x);
        if x_.ty != GgmlType::F32 {
            return Err(mismatch(op.name(), "f32", x_.ty.name()));
        }
        Ok(self.node(op, x_.ne, &[x]))
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

    /// A dense f32 result.
    pub(super) fn node(&mut self, op: Op, ne: [usize; 4], src: &[TensorId]) -> TensorId {
        self.link(Tensor::new(GgmlType::F32, ne, Name::default()), op, src)
    }

    pub(super) fn link(&mut self, mut t: Tensor, op: Op, src: &[TensorId]) -> TensorId {
        t.op = op;
        for (slot, &s) in t.src.iter_mut().zip(src) {
            *slot = Some(s);
        }
        self.push(t)
    }
}

#[cfg(test)]
mod tests {
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
            "mul_mat: expected f32 [8, n, …] for weights [8, 5, 1, 1], found f32 [3, 5, 1, 1]"
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
