//! Shape rules: operand requirements and output shape of every op.
//!
//! The graph builder applies these rules, and backends apply them again to every node. An invalid graph is thus an
//! error and never an out-of-bounds access. See [`Op`] for the semantics of the ops.

use kernels::GgmlType;
use kernels::GgmlType::{F32, I32, I64};

use super::{
    Attention, Blocks, Buckets, Graph, MAX_SRC, NgramHash, Op, Recurrence, Rope, Tensor, TensorId, VisibleCells, Window,
};

/// Description of the operands that an op requires, for error messages.
pub type Expected = &'static str;

/// Element type and shape of an output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub ty: GgmlType,
    pub ne: [usize; 4],
}

/// Operands of an op, in order.
pub(super) struct Operands<'a>([Option<&'a Tensor>; MAX_SRC]);

impl<'a> Operands<'a> {
    /// Collects the operands with these ids; `None` if they exceed [`MAX_SRC`].
    pub fn new(graph: &'a Graph, ids: impl IntoIterator<Item = TensorId>) -> Option<Operands<'a>> {
        let mut operands = [None; MAX_SRC];
        for (i, id) in ids.into_iter().enumerate() {
            *operands.get_mut(i)? = Some(graph.tensor(id));
        }
        Some(Operands(operands))
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a Tensor> + '_ {
        self.0.iter().map_while(|t| *t)
    }

    fn has(&self, i: usize) -> bool {
        self.0[i].is_some()
    }

    fn any(&self, i: usize) -> Result<&'a Tensor, Expected> {
        self.0[i].ok_or("more operands")
    }

    fn typed(&self, i: usize, ty: GgmlType, expected: Expected) -> Result<&'a Tensor, Expected> {
        let t = self.any(i)?;
        ensure(t.ty == ty, expected)?;
        Ok(t)
    }

    fn floats(&self, i: usize) -> Result<&'a Tensor, Expected> {
        self.typed(i, F32, "f32 activations")
    }

    fn ints(&self, i: usize) -> Result<&'a Tensor, Expected> {
        self.typed(i, I32, "i32 ids or positions")
    }

    /// Returns an operand of a floating-point or quantized type, such as a weight or cache.
    fn numbers(&self, i: usize) -> Result<&'a Tensor, Expected> {
        let t = self.any(i)?;
        let integers = matches!(t.ty, GgmlType::I8 | GgmlType::I16 | I32 | I64);
        ensure(!integers, "an operand of a floating-point or quantized type")?;
        Ok(t)
    }

    /// Checks the [`VisibleCells`] operands for `n_tokens` tokens and `n_kv` cells.
    fn visible(&self, at: VisibleCells<usize>, n_kv: usize, n_tokens: usize) -> Result<(), Expected> {
        const EXPECTED: Expected = "i32 positions of cells and tokens, and a page table for each token";
        let len = |i: usize, ty: GgmlType| -> Result<usize, Expected> {
            let t = self.typed(i, ty, EXPECTED)?;
            ensure(t.ne[1..] == [1; 3], EXPECTED)?;
            Ok(t.ne[0])
        };
        let lens = [len(at.cell_pos, I32)?, len(at.pos, I32)?, len(at.table, I32)?];
        ensure(lens == [n_kv, n_tokens, n_tokens], EXPECTED)?;
        let same = len(at.pages, I32)? == len(at.masks, I64)?;
        ensure(
            same && len(at.starts, I32)? > 0,
            "page tables with a mask for each page",
        )
    }
}

fn ensure(holds: bool, otherwise: Expected) -> Result<(), Expected> {
    if holds { Ok(()) } else { Err(otherwise) }
}

fn floats(ne: [usize; 4]) -> Result<Shape, Expected> {
    Ok(Shape { ty: F32, ne })
}

fn ints(ne: [usize; 4]) -> Result<Shape, Expected> {
    Ok(Shape { ty: I32, ne })
}

/// Checks a node, or returns the requirement it violates. Leaves and views always pass.
pub(crate) fn check(graph: &Graph, id: TensorId) -> Result<(), Expected> {
    let node = graph.tensor(id);
    if !node.op.computes() {
        return Ok(());
    }
    let operands = Operands::new(graph, node.sources()).ok_or("fewer operands")?;
    for t in operands.iter() {
        ensure(t.ne[0].is_multiple_of(t.ty.block_size()), "rows of whole blocks")?;
        let adjacent = !t.ty.is_quantized() || t.nb[0] == t.ty.block_bytes();
        ensure(adjacent, "quantized operands with adjacent blocks")?;
    }
    if !node.ne.contains(&0) && !matches!(node.op, Op::Attention(_)) {
        let empty = operands.iter().any(|t| t.ne.contains(&0));
        ensure(!empty, "non-empty operands")?;
    }
    let shape = result(node.op, &operands, node.ne)?;
    ensure(node.ty == shape.ty, "a result of a different type")?;
    ensure(node.ne == shape.ne, "a result of a different shape")?;
    ensure(
        node.op != Op::SetRows || is_its_table(graph, node),
        "a result that aliases the table",
    )
}

/// Returns true if the result of [`Op::SetRows`] aliases its table.
fn is_its_table(graph: &Graph, node: &Tensor) -> bool {
    let table = graph.tensor(node.source(1));
    let offset = table.view.map_or(0, |(_, offset)| offset);
    node.view == Some((graph.memory_owner(node.source(1)), offset)) && node.nb == table.nb
}

/// Returns the output of a compute op. `ne` is the requested shape of ops that support several.
pub(super) fn result(op: Op, t: &Operands<'_>, ne: [usize; 4]) -> Result<Shape, Expected> {
    match op {
        Op::None | Op::Reshape | Op::View | Op::Permute => Err("a compute op"),
        Op::GetRows => get_rows(t),
        Op::SetRows => set_rows(t),
        Op::MulMat => mul_mat(t),
        Op::MulMatId => mul_mat_id(t),
        Op::Add | Op::Sub | Op::Mul | Op::Div => elementwise(t),
        Op::AddId => add_id(t),
        Op::Scale { .. }
        | Op::Unary(_)
        | Op::Norm { .. }
        | Op::L2Norm { .. }
        | Op::SoftMax { .. }
        | Op::Clamp { .. } => floats(t.floats(0)?.ne),
        Op::Sinkhorn { n, .. } => sinkhorn(t, n),
        Op::Glu(_) => glu(t),
        Op::RmsNorm { .. } => rms_norm(t),
        Op::Rope(p) => rope(t, &p),
        Op::Attention(p) => attention(t, &p),
        Op::IndexScores => index_scores(t),
        Op::SelectBlocks(blocks) => select_blocks(t, &blocks),
        Op::RecentCells { n } => recent_cells(t, n),
        Op::ShiftPositions { back, n_axes } => shift_positions(t, back, n_axes),
        Op::TopK { k } => top_k(t, k),
        Op::TopMask { k } => top_mask(t, k),
        Op::IntDiv { by } => {
            ensure(by > 0, "a nonzero divisor")?;
            ints(t.ints(0)?.ne)
        }
        Op::Cast => floats(t.ints(0)?.ne),
        Op::NgramHash(hash) => ngram_hash(t, &hash),
        Op::AttentionTemperature { length, .. } => {
            ensure(length > 0, "a nonzero length")?;
            floats([1, 1, list_of_positions(t)?, 1])
        }
        Op::SumRows => {
            let x = t.floats(0)?;
            floats([1, x.ne[1], x.ne[2], x.ne[3]])
        }
        Op::Concat { dim } => concat(t, usize::from(dim)),
        Op::Repeat => {
            ensure(repeats_to(t.floats(0)?, ne), "sizes that divide those of the result")?;
            floats(ne)
        }
        Op::Recur(recurrence) => recur(t, recurrence),
        Op::Cont => cont(t, ne),
    }
}

fn repeats_to(t: &Tensor, ne: [usize; 4]) -> bool {
    (0..4).all(|d| t.ne[d] > 0 && ne[d].is_multiple_of(t.ne[d]))
}

fn list_of_positions(t: &Operands<'_>) -> Result<usize, Expected> {
    let p = t.ints(0)?;
    ensure(p.ne[1..] == [1; 3], "i32 positions [T]")?;
    Ok(p.ne[0])
}

fn elementwise(t: &Operands<'_>) -> Result<Shape, Expected> {
    let (a, b) = (t.floats(0)?, t.numbers(1)?);
    ensure(
        repeats_to(b, a.ne),
        "a second operand that broadcasts to the shape of the first",
    )?;
    floats(a.ne)
}

fn sinkhorn(t: &Operands<'_>, n: usize) -> Result<Shape, Expected> {
    let x = t.floats(0)?;
    let square = n > 0 && n.checked_mul(n) == Some(x.ne[0]);
    ensure(square, "rows that are square matrices of size n")?;
    floats(x.ne)
}

fn glu(t: &Operands<'_>) -> Result<Shape, Expected> {
    let (gate, up) = (t.floats(0)?, t.floats(1)?);
    ensure(gate.ne == up.ne, "two operands of equal shape")?;
    floats(gate.ne)
}

fn rms_norm(t: &Operands<'_>) -> Result<Shape, Expected> {
    let x = t.floats(0)?;
    if t.has(1) {
        ensure(
            t.numbers(1)?.ne == [x.ne[0], 1, 1, 1],
            "a weight for each element of a row",
        )?;
    }
    floats(x.ne)
}

fn recent_cells(t: &Operands<'_>, n: usize) -> Result<Shape, Expected> {
    let (n_kv, n_tokens) = (t.ints(0)?.ne[0], t.ints(1)?.ne[0]);
    ensure(n_kv > 0 && n > 0, "at least one cell and one position")?;
    t.visible(VisibleCells::OF_RECENT_CELLS, n_kv, n_tokens)?;
    ints([n, n_tokens, 1, 1])
}

fn shift_positions(t: &Operands<'_>, back: usize, n_axes: usize) -> Result<Shape, Expected> {
    let n_tokens = list_of_positions(t)?;
    ensure(
        i32::try_from(back).is_ok() && n_axes > 0,
        "a distance that fits into i32, and at least one axis",
    )?;
    ints([n_tokens, n_axes, 1, 1])
}

const K_OF_A_ROW: Expected = "k between 1 and the length of a row";

fn top_k(t: &Operands<'_>, k: usize) -> Result<Shape, Expected> {
    let x = t.floats(0)?;
    let fits = (1..=x.ne[0]).contains(&k) && i32::try_from(x.ne[0]).is_ok();
    ensure(fits, K_OF_A_ROW)?;
    ints([k, x.ne[1], x.ne[2], x.ne[3]])
}

fn top_mask(t: &Operands<'_>, k: usize) -> Result<Shape, Expected> {
    let x = t.floats(0)?;
    let fits = (1..=x.ne[0]).contains(&k) && u32::try_from(x.ne[0]).is_ok();
    ensure(fits, K_OF_A_ROW)?;
    floats(x.ne)
}

fn ngram_hash(t: &Operands<'_>, hash: &NgramHash) -> Result<Shape, Expected> {
    let x = t.floats(0)?;
    ensure(hash.is_sound(), "rows that fit into i32")?;
    ensure(
        x.ne[0] >= hash.n && x.ne[2..] == [1, 1],
        "at least n token ids per n-gram",
    )?;
    ints([x.ne[1], 1, 1, 1])
}

fn cont(t: &Operands<'_>, ne: [usize; 4]) -> Result<Shape, Expected> {
    let n = ne.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    ensure(
        n == Some(t.numbers(0)?.nelements()),
        "an operand with as many elements as the result",
    )?;
    floats(ne)
}

fn get_rows(t: &Operands<'_>) -> Result<Shape, Expected> {
    let (table, ids) = (t.any(0)?, t.ints(1)?);
    let ty = if table.ty == I32 {
        I32
    } else {
        t.numbers(0).map(|_| F32)?
    };
    let batches_agree = ids.ne[1] == table.ne[2] && ids.ne[2] == table.ne[3] && ids.ne[3] == 1;
    ensure(batches_agree, "a table [n, rows, b] and i32 ids [T, b]")?;
    let ne = [table.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]];
    Ok(Shape { ty, ne })
}

fn set_rows(t: &Operands<'_>) -> Result<Shape, Expected> {
    const EXPECTED: Expected = "f32 rows [n, T], a table [n, rows] and i64 ids [T]";
    let (rows, table, ids) = (t.floats(0)?, t.numbers(1)?, t.typed(2, I64, EXPECTED)?);
    let apart = table.has_dense_rows() && table.nb[1] >= table.row_bytes();
    ensure(apart, "a table with dense, non-overlapping rows")?;
    let fits = rows.ne == [table.ne[0], ids.ne[0], 1, 1] && table.ne[2..] == [1, 1];
    ensure(fits && ids.ne[1..] == [1; 3], EXPECTED)?;
    Ok(Shape {
        ty: table.ty,
        ne: table.ne,
    })
}

fn mul_mat(t: &Operands<'_>) -> Result<Shape, Expected> {
    let (w, x) = (t.numbers(0)?, t.floats(1)?);
    let repeats = (2..4).all(|d| w.ne[d] > 0 && x.ne[d].is_multiple_of(w.ne[d]));
    ensure(
        w.ne[0] == x.ne[0] && repeats,
        "weights [k, m, b2, b3] and f32 [k, n, c2, c3] with c2 and c3 multiples of b2 and b3",
    )?;
    floats([w.ne[1], x.ne[1], x.ne[2], x.ne[3]])
}

fn mul_mat_id(t: &Operands<'_>) -> Result<Shape, Expected> {
    let (w, x, ids) = (t.numbers(0)?, t.floats(1)?, t.ints(2)?);
    let [n_used, n_tokens, ..] = ids.ne;
    let fits = w.ne[0] == x.ne[0] && x.ne[2] == n_tokens && (x.ne[1] == n_used || x.ne[1] == 1);
    ensure(
        fits && w.ne[3] == 1 && ids.ne[2..] == [1, 1] && x.ne[3] == 1,
        "experts [k, m, n_expert], f32 [k, n_used or 1, T] and i32 ids [n_used, T]",
    )?;
    floats([w.ne[1], n_used, n_tokens, 1])
}

fn add_id(t: &Operands<'_>) -> Result<Shape, Expected> {
    let (x, bias, ids) = (t.floats(0)?, t.numbers(1)?, t.ints(2)?);
    let fits = bias.ne[0] == x.ne[0] && bias.ne[2..] == [1, 1] && x.ne[3] == 1;
    ensure(
        fits && ids.ne == [x.ne[1], x.ne[2], 1, 1],
        "f32 [m, n_used, T], biases [m, n_expert] and i32 ids [n_used, T]",
    )?;
    floats(x.ne)
}

fn rope(t: &Operands<'_>, p: &Rope) -> Result<Shape, Expected> {
    let (x, positions) = (t.floats(0)?, t.ints(1)?);
    let n_axes = p.kind.n_axes();
    ensure(x.ne[3] == 1, "heads [head_dim, n_head, T]")?;
    ensure(
        positions.ne == [x.ne[2], n_axes, 1, 1],
        "a position for each token and axis",
    )?;
    let n_dims = p.n_dims.is_multiple_of(2) && p.n_dims <= x.ne[0];
    ensure(n_dims, "an even number of rotated elements, at most the head size")?;
    ensure(p.every > 0, "a nonzero rounding of positions")?;
    let n_pairs = p.sections.iter().try_fold(0usize, |n, &pairs| n.checked_add(pairs));
    let sections_fit = n_pairs.is_some_and(|n| (1..=x.ne[0]).contains(&n));
    ensure(
        n_axes == 1 || sections_fit,
        "RoPE sections with a sum between 1 and the head size",
    )?;
    if t.has(2) {
        ensure(t.floats(2)?.ne[0] >= p.n_dims / 2, "a frequency factor for each pair")?;
    }
    floats(x.ne)
}

fn index_scores(t: &Operands<'_>) -> Result<Shape, Expected> {
    let (q, k) = (t.floats(0)?, t.numbers(1)?);
    let ([d, n_head, n_tokens, _], n_kv) = (q.ne, k.ne[2]);
    ensure(
        q.ne[3] == 1 && n_kv > 0 && d > 0 && k.ne == [d, 1, n_kv, 1],
        "queries f32 [d, n_head, T] and keys [d, 1, n_kv]",
    )?;
    t.visible(VisibleCells::OF_INDEX_SCORES, n_kv, n_tokens)?;
    if !t.has(8) {
        return floats([n_kv, n_head, n_tokens, 1]);
    }
    ensure(
        t.floats(8)?.ne == [n_head, n_tokens, 1, 1],
        "a weight for each head and token",
    )?;
    floats([n_kv, n_tokens, 1, 1])
}

fn select_blocks(t: &Operands<'_>, blocks: &Blocks) -> Result<Shape, Expected> {
    let [n_kv, a, b, one] = t.floats(0)?.ne;
    let n_tokens = t.ints(2)?.ne[0];
    ensure(
        one == 1 && ([a, b] == [n_tokens, 1] || b == n_tokens) && u32::try_from(n_kv).is_ok(),
        "scores f32 [n_kv, T] or [n_kv, n_head, T]",
    )?;
    ensure(
        n_kv > 0 && blocks.size > 0 && blocks.k > 0,
        "at least one cell and nonempty blocks",
    )?;
    t.visible(VisibleCells::OF_SELECT_BLOCKS, n_kv, n_tokens)?;
    ints([blocks.n_cells(n_kv), a, b, 1])
}

fn concat(t: &Operands<'_>, dim: usize) -> Result<Shape, Expected> {
    let (a, b) = (t.floats(0)?, t.floats(1)?);
    let equal = (0..4).all(|d| d == dim || a.ne[d] == b.ne[d]);
    ensure(dim < 4 && equal, "equal sizes in all dimensions except one")?;
    let mut ne = a.ne;
    ne[dim] = a.ne[dim]
        .checked_add(b.ne[dim])
        .ok_or("a result that fits into memory")?;
    floats(ne)
}

fn attention(t: &Operands<'_>, p: &Attention) -> Result<Shape, Expected> {
    let at = p.operands();
    let (q, k, v) = (t.floats(at.q)?, t.numbers(at.k)?, t.numbers(at.v)?);
    let [dk, n_head, n_tokens, _] = q.ne;
    let [_, n_head_kv, n_kv, _] = k.ne;
    ensure(p.window != Window::Chunked(0), "a nonzero chunk size")?;
    let heads_fit = n_head_kv > 0 && n_head.is_multiple_of(n_head_kv);
    let flat = q.ne[3] == 1 && k.ne[3] == 1 && v.ne[3] == 1;
    ensure(
        flat && heads_fit && k.ne[0] == dk && v.ne[1..] == k.ne[1..],
        "q f32 [dk, n_head, T], k [dk, n_head_kv, n_kv] and v [dv, n_head_kv, n_kv]",
    )?;
    t.visible(at.visible, n_kv, n_tokens)?;
    ensure(
        t.iter().count() == at.list().count(),
        "exactly the operands selected by the parameters",
    )?;
    if let Some(i) = at.biases {
        let table = t.floats(i)?;
        let rows = (2..=Buckets::MAX_ROWS).contains(&table.ne[1]);
        ensure(
            rows && table.ne[0] == n_head && table.ne[2..] == [1, 1],
            "a bias for each head and bucket, with 2 to 255 buckets",
        )?;
    }
    if let Some(i) = at.sinks {
        ensure(t.floats(i)?.ne[0] == n_head, "a sink for each head")?;
    }
    if let Some(i) = at.selection {
        let lists = Attention::lists_per_token(t.ints(i)?.ne, n_head_kv, n_tokens);
        ensure(lists.is_some(), "selected cells i32 [k, T] or [k, n_head_kv, T]")?;
    }
    floats([v.ne[0], n_head, n_tokens, 1])
}

fn recur(t: &Operands<'_>, recurrence: Recurrence) -> Result<Shape, Expected> {
    const FIRST: usize = 3;
    let (states, from, to) = (t.floats(0)?, t.ints(1)?, t.ints(2)?);
    let mut ne = [[0; 4]; MAX_SRC];
    let n_operands = t.iter().count().saturating_sub(FIRST);
    for (i, ne) in ne[..n_operands].iter_mut().enumerate() {
        *ne = t.floats(FIRST + i)?.ne;
    }
    let lanes = recurrence.lanes(&ne[..n_operands]).ok_or(recurrence.takes())?;
    let states_fit = states.ne[0] == lanes.row() && states.ne[2..] == [1, 1] && states.is_contiguous();
    ensure(states_fit, "states f32 [row, n_cells] with the rows of all lanes")?;
    let list = [lanes.n_tokens(), 1, 1, 1];
    ensure(
        from.ne == list && to.ne == list,
        "a cell to read and a cell to write for each token",
    )?;
    floats(lanes.ne)
}

#[cfg(test)]
mod tests {
    use super::super::RopeKind;
    use super::*;

    fn rope_with(sections: [usize; 4]) -> Rope {
        Rope {
            kind: RopeKind::Mrope,
            sections,
            n_dims: 8,
            freq_base: 1e4,
            freq_scale: 1.0,
            ext_factor: 0.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            n_ctx_orig: 1024,
            every: 1,
            inverse: false,
        }
    }

    #[test]
    fn builder_and_check_agree_on_sections() {
        let mut g = Graph::new();
        let x = g.input(F32, [8, 2, 3, 1], "x");
        let positions = g.input(I32, [3, 4, 1, 1], "positions");
        let good = g.rope(x, positions, None, rope_with([2, 2, 4, 0])).unwrap();
        assert_eq!(check(&g, good), Ok(()));
        for sections in [[0; 4], [8, 1, 0, 0], [4, 4, 4, 4], [usize::MAX, 2, 0, 0]] {
            assert!(g.rope(x, positions, None, rope_with(sections)).is_err(), "{sections:?}");
            let flawed = g.tensor(good).clone();
            let id = g.push(Tensor {
                op: Op::Rope(rope_with(sections)),
                ..flawed
            });
            let expected = "RoPE sections with a sum between 1 and the head size";
            assert_eq!(check(&g, id), Err(expected), "{sections:?}");
        }
    }

    #[test]
    fn check_rejects_wrong_result_type_or_shape() {
        let mut g = Graph::new();
        let (w, x) = (g.input(F32, [8, 3, 1, 1], "w"), g.input(F32, [8, 5, 1, 1], "x"));
        let good = g.mul_mat(w, x).unwrap();
        assert_eq!(check(&g, good), Ok(()));
        let node = g.tensor(good).clone();
        let other_shape = g.push(Tensor {
            ne: [5, 3, 1, 1],
            ..node.clone()
        });
        let other_type = g.push(Tensor {
            ty: I32,
            ..node.clone()
        });
        let mut missing = node;
        missing.src[1] = None;
        let missing = g.push(missing);
        assert_eq!(check(&g, other_shape), Err("a result of a different shape"));
        assert_eq!(check(&g, other_type), Err("a result of a different type"));
        assert_eq!(check(&g, missing), Err("more operands"));
    }

    #[test]
    fn set_rows_result_must_alias_table() {
        let mut g = Graph::new();
        let (table, rows) = (g.input(F32, [8, 16, 1, 1], "table"), g.input(F32, [8, 2, 1, 1], "rows"));
        let ids = g.input(I64, [2, 1, 1, 1], "ids");
        let good = g.set_rows(table, rows, ids).unwrap();
        assert_eq!(check(&g, good), Ok(()));
        let mut elsewhere = g.tensor(good).clone();
        elsewhere.view = None;
        let elsewhere = g.push(elsewhere);
        assert_eq!(check(&g, elsewhere), Err("a result that aliases the table"));
    }
}
