//! What a node must look like to be computed: types and shapes of every op's operands and result, as documented at [`Op`].
//!
//! Graph builders produce such nodes; backends check them again, so that a flawed graph is an error and never a wild access.

use kernels::GgmlType;
use kernels::GgmlType::{F32, I32, I64};

use super::BackendError;
use crate::graph::{Attention, Blocks, Buckets, Graph, MAX_SRC, Op, Recurrence, Tensor, TensorId, Window};

/// Why a node cannot be computed.
pub(super) type Flaw = &'static str;

/// Nothing, or what keeps a backend that reads plain layouts only from computing this node. Views compute nothing and pass.
pub(super) fn plain_operands(graph: &Graph, id: TensorId) -> Result<(), Flaw> {
    let node = graph.tensor(id);
    let all_plain = node.layout.is_plain() && node.sources().all(|s| graph.tensor(s).layout.is_plain());
    ensure(all_plain || node.op.is_view(), "an operand is repacked")
}

/// Nothing, or why no backend could compute this node. Leafs and views need no computing and pass.
pub(super) fn check(graph: &Graph, id: TensorId) -> Result<(), Flaw> {
    let node = graph.tensor(id);
    if node.op == Op::None || node.op.is_view() {
        return Ok(());
    }
    let n = Node { graph, node };
    for source in node.sources() {
        let t = graph.tensor(source);
        ensure(
            t.ne[0].is_multiple_of(t.ty.block_size()),
            "an operand's rows are not whole blocks",
        )?;
        ensure(
            !t.ty.is_quantized() || t.nb[0] == t.ty.block_bytes(),
            "blocks of a quantized operand are not adjacent",
        )?;
    }
    if !node.ne.contains(&0) && !matches!(node.op, Op::Attention(_)) {
        let empty = node.sources().any(|s| graph.tensor(s).ne.contains(&0));
        ensure(!empty, "an operand is empty and the result is not")?;
    }
    match node.op {
        Op::None | Op::Reshape | Op::View | Op::Permute => Ok(()),
        Op::GetRows => get_rows(&n),
        Op::SetRows => set_rows(&n),
        Op::MulMat => mul_mat(&n),
        Op::MulMatId => mul_mat_id(&n),
        Op::Add | Op::Sub | Op::Mul | Op::Div => {
            let (a, b) = (n.floats(0)?, n.readable(1)?);
            ensure(
                repeats_to(b, a.ne),
                "the second operand does not repeat to the shape of the first",
            )?;
            n.result(F32, a.ne)
        }
        Op::AddId => add_id(&n),
        Op::Scale { .. }
        | Op::Unary(_)
        | Op::Norm { .. }
        | Op::L2Norm { .. }
        | Op::SoftMax { .. }
        | Op::Clamp { .. } => n.result(F32, n.floats(0)?.ne),
        Op::Balance { n: size, .. } => {
            let x = n.floats(0)?;
            ensure(
                size > 0 && size.checked_mul(size) == Some(x.ne[0]),
                "a row is no square matrix",
            )?;
            n.result(F32, x.ne)
        }
        Op::Glu(_) => {
            let (a, b) = (n.floats(0)?, n.floats(1)?);
            ensure(a.ne == b.ne, "the operands differ in shape")?;
            n.result(F32, a.ne)
        }
        Op::RmsNorm { .. } => {
            let x = n.floats(0)?;
            if n.has(1) {
                ensure(n.readable(1)?.ne == [x.ne[0], 1, 1, 1], "the weight is not one row")?;
            }
            n.result(F32, x.ne)
        }
        Op::Rope(rope) => {
            let (x, pos) = (n.floats(0)?, n.typed(1, I32)?);
            let dims = rope.n_dims;
            ensure(x.ne[3] == 1, "more than 3 dimensions")?;
            ensure(
                dims.is_multiple_of(2) && dims <= x.ne[0],
                "n_dims is odd or above the head size",
            )?;
            ensure(rope.every > 0, "multiples of 0")?;
            let n_axes = rope.kind.n_axes();
            ensure(pos.ne == [x.ne[2], n_axes, 1, 1], "not one position per token and axis")?;
            ensure(
                n_axes == 1 || rope.sections.iter().all(|&n| n <= x.ne[0]),
                "a section is larger than a head",
            )?;
            if n.has(2) {
                ensure(n.floats(2)?.ne[0] >= dims / 2, "not one frequency factor per pair")?;
            }
            n.result(F32, x.ne)
        }
        Op::Attention(p) => {
            ensure(p.window != Window::Chunked(0), "a window of no positions")?;
            attention(&n, &p)
        }
        Op::IndexScores => index_scores(&n),
        Op::SelectBlocks(blocks) => select_blocks(&n, &blocks),
        Op::LastCells { n: n_last } => {
            let n_kv = n.typed(0, I32)?.ne[0];
            let n_tokens = n.typed(1, I32)?.ne[0];
            ensure(n_kv > 0 && n_last > 0, "no cells, or none of them asked for")?;
            n.visible(n_kv, n_tokens)?;
            n.result(I32, [n_last, n_tokens, 1, 1])
        }
        Op::EarlierPositions { back, n_axes } => {
            let p = n.typed(0, I32)?;
            ensure(p.ne[1..] == [1; 3] && n_axes > 0, "not a list of positions, or no axes")?;
            ensure(i32::try_from(back).is_ok(), "positions are not that far apart")?;
            n.result(I32, [p.ne[0], n_axes, 1, 1])
        }
        Op::TopK { k } => {
            let x = n.floats(0)?;
            ensure(k <= x.ne[0] && i32::try_from(x.ne[0]).is_ok(), "k is larger than a row")?;
            n.result(I32, [k, x.ne[1], x.ne[2], x.ne[3]])
        }
        Op::TopMask { k } => {
            let x = n.floats(0)?;
            ensure(k <= x.ne[0] && u32::try_from(x.ne[0]).is_ok(), "k is larger than a row")?;
            n.result(F32, x.ne)
        }
        Op::DivIds { by } => {
            ensure(by > 0, "a division by 0")?;
            n.result(I32, n.typed(0, I32)?.ne)
        }
        Op::ToFloats => n.result(F32, n.typed(0, I32)?.ne),
        Op::NgramHash(hash) => {
            let x = n.floats(0)?;
            ensure(hash.is_sound(), "rows beyond i32, or none")?;
            ensure(
                x.ne[0] >= hash.n && x.ne[2..] == [1, 1],
                "not as many tokens as a run has",
            )?;
            n.result(I32, [x.ne[1], 1, 1, 1])
        }
        Op::AttentionTemperature { length, .. } => {
            let p = n.typed(0, I32)?;
            ensure(length > 0, "a division by 0")?;
            ensure(p.ne[1..] == [1; 3], "not a list of positions")?;
            n.result(F32, [1, 1, p.ne[0], 1])
        }
        Op::SumRows => {
            let x = n.floats(0)?;
            n.result(F32, [1, x.ne[1], x.ne[2], x.ne[3]])
        }
        Op::Concat { dim } => {
            let (a, b, dim) = (n.floats(0)?, n.floats(1)?, usize::from(dim));
            ensure(dim < 4, "there is no such dimension")?;
            ensure(
                (0..4).all(|d| d == dim || a.ne[d] == b.ne[d]),
                "the operands differ in another dimension",
            )?;
            let mut ne = a.ne;
            ne[dim] = a.ne[dim].checked_add(b.ne[dim]).ok_or("the result is too large")?;
            n.result(F32, ne)
        }
        Op::Repeat => {
            ensure(
                repeats_to(n.floats(0)?, node.ne),
                "the operand does not repeat to the node's shape",
            )?;
            n.result(F32, node.ne)
        }
        Op::Recur(r) => recur(&n, r),
        Op::Cont => {
            let same = n.readable(0)?.nelements() == node.nelements();
            ensure(same, "the number of elements changes")?;
            n.result(F32, node.ne)
        }
    }
}

struct Node<'a> {
    graph: &'a Graph,
    node: &'a Tensor,
}

impl<'a> Node<'a> {
    fn has(&self, i: usize) -> bool {
        self.node.src[i].is_some()
    }

    fn any(&self, i: usize) -> Result<&'a Tensor, Flaw> {
        self.node.src[i]
            .map(|id| self.graph.tensor(id))
            .ok_or("an operand is missing")
    }

    fn typed(&self, i: usize, ty: GgmlType) -> Result<&'a Tensor, Flaw> {
        let t = self.any(i)?;
        ensure(t.ty == ty, "an operand has the wrong type")?;
        Ok(t)
    }

    fn floats(&self, i: usize) -> Result<&'a Tensor, Flaw> {
        self.typed(i, F32)
    }

    fn readable(&self, i: usize) -> Result<&'a Tensor, Flaw> {
        let t = self.any(i)?;
        ensure(kernels::can_dequantize(t.ty), "an operand's type cannot be read")?;
        Ok(t)
    }

    /// What so many tokens see of so many cells.
    fn visible(&self, n_kv: usize, n_tokens: usize) -> Result<(), Flaw> {
        let at = self.node.op.visible_cells().ok_or("the op looks at no cells")?;
        let len = |i: usize, ty: GgmlType| -> Result<usize, Flaw> {
            let t = self.typed(i, ty)?;
            ensure(t.ne[1..] == [1; 3], "a list of cells or tokens has several dimensions")?;
            Ok(t.ne[0])
        };
        ensure(len(at.cell_pos, I32)? == n_kv, "not one position for each cell")?;
        let per_token = [len(at.pos, I32)?, len(at.table, I32)?];
        ensure(
            per_token == [n_tokens; 2],
            "not one position and page table for each token",
        )?;
        let entries = [len(at.pages, I32)?, len(at.masks, I64)?];
        ensure(entries[0] == entries[1], "not one mask for each page")?;
        ensure(len(at.starts, I32)? > 0, "page tables without an end")
    }

    fn result(&self, ty: GgmlType, ne: [usize; 4]) -> Result<(), Flaw> {
        ensure(self.node.ty == ty, "the result has the wrong type")?;
        ensure(self.node.ne == ne, "the result has the wrong shape")
    }
}

fn ensure(holds: bool, otherwise: Flaw) -> Result<(), Flaw> {
    if holds { Ok(()) } else { Err(otherwise) }
}

fn repeats_to(t: &Tensor, ne: [usize; 4]) -> bool {
    (0..4).all(|d| t.ne[d] > 0 && ne[d].is_multiple_of(t.ne[d]))
}

fn get_rows(n: &Node) -> Result<(), Flaw> {
    let (table, ids) = (n.any(0)?, n.typed(1, I32)?);
    let ty = if table.ty == I32 { I32 } else { F32 };
    ensure(
        ty == I32 || kernels::can_dequantize(table.ty),
        "the table's type cannot be read",
    )?;
    let batches_agree = ids.ne[1] == table.ne[2] && ids.ne[2] == table.ne[3] && ids.ne[3] == 1;
    ensure(
        batches_agree,
        "the row numbers do not match the table's outer dimensions",
    )?;
    n.result(ty, [table.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]])
}

fn set_rows(n: &Node) -> Result<(), Flaw> {
    let (rows, table, ids) = (n.floats(0)?, n.any(1)?, n.typed(2, I64)?);
    ensure(kernels::can_quantize(table.ty), "rows cannot be stored in this type")?;
    ensure(
        table.has_dense_rows() && table.nb[1] >= table.row_bytes(),
        "the table's rows overlap or have gaps",
    )?;
    ensure(
        rows.ne == [table.ne[0], ids.ne[0], 1, 1],
        "the rows do not fit the table",
    )?;
    ensure(
        ids.ne == [rows.ne[1], 1, 1, 1] && table.ne[2..] == [1, 1],
        "more than 2 dimensions",
    )?;
    let table_id = n.node.source(1);
    let owner = n.graph.memory_owner(table_id);
    let offset = table.view.map_or(0, |(_, offset)| offset);
    ensure(
        n.node.view == Some((owner, offset)) && n.node.nb == table.nb,
        "the result is not the table itself",
    )?;
    n.result(table.ty, table.ne)
}

fn mul_mat(n: &Node) -> Result<(), Flaw> {
    let (w, x) = (n.readable(0)?, n.floats(1)?);
    ensure(w.ne[0] == x.ne[0], "the row lengths differ")?;
    let repeats = (2..4).all(|d| w.ne[d] > 0 && x.ne[d].is_multiple_of(w.ne[d]));
    ensure(repeats, "the weights do not repeat to the outer dimensions")?;
    n.result(F32, [w.ne[1], x.ne[1], x.ne[2], x.ne[3]])
}

fn mul_mat_id(n: &Node) -> Result<(), Flaw> {
    let (w, x, ids) = (n.readable(0)?, n.floats(1)?, n.typed(2, I32)?);
    let [n_used, n_tokens, ..] = ids.ne;
    ensure(w.ne[0] == x.ne[0], "the row lengths differ")?;
    ensure(
        w.ne[3] == 1 && ids.ne[2..] == [1, 1] && x.ne[3] == 1,
        "too many dimensions",
    )?;
    ensure(
        x.ne[2] == n_tokens && (x.ne[1] == n_used || x.ne[1] == 1),
        "not one row per token and expert",
    )?;
    n.result(F32, [w.ne[1], n_used, n_tokens, 1])
}

fn add_id(n: &Node) -> Result<(), Flaw> {
    let (x, bias, ids) = (n.floats(0)?, n.readable(1)?, n.typed(2, I32)?);
    ensure(
        bias.ne[0] == x.ne[0] && bias.ne[2..] == [1, 1],
        "not one bias row per expert",
    )?;
    ensure(
        x.ne[3] == 1 && ids.ne == [x.ne[1], x.ne[2], 1, 1],
        "not one expert per row",
    )?;
    n.result(F32, x.ne)
}

fn index_scores(n: &Node) -> Result<(), Flaw> {
    let (q, k) = (n.floats(0)?, n.readable(1)?);
    let ([d, n_head, n_tokens, _], n_kv) = (q.ne, k.ne[2]);
    ensure(
        q.ne[3] == 1 && n_kv > 0 && d > 0,
        "not queries of heads for tokens, or no cells",
    )?;
    ensure(k.ne == [d, 1, n_kv, 1], "not one key per cell, as long as a query")?;
    n.visible(n_kv, n_tokens)?;
    if !n.has(8) {
        return n.result(F32, [n_kv, n_head, n_tokens, 1]);
    }
    ensure(n.floats(8)?.ne == [n_head, n_tokens, 1, 1], "not one weight per head")?;
    n.result(F32, [n_kv, n_tokens, 1, 1])
}

fn select_blocks(n: &Node, blocks: &Blocks) -> Result<(), Flaw> {
    let [n_kv, a, b, one] = n.floats(0)?.ne;
    let n_tokens = n.typed(2, I32)?.ne[0];
    ensure(
        one == 1 && ([a, b] == [n_tokens, 1] || b == n_tokens) && u32::try_from(n_kv).is_ok(),
        "not scores of cells for tokens",
    )?;
    ensure(
        n_kv > 0 && blocks.size > 0 && blocks.k > 0,
        "no cells, or blocks of none",
    )?;
    n.visible(n_kv, n_tokens)?;
    n.result(I32, [blocks.n_cells(n_kv), a, b, 1])
}

fn attention(n: &Node, p: &Attention) -> Result<(), Flaw> {
    let at = p.operands();
    let (q, k, v) = (n.floats(at.q)?, n.readable(at.k)?, n.readable(at.v)?);
    let [dk, n_head, n_tokens, _] = q.ne;
    let [_, n_head_kv, n_kv, _] = k.ne;
    ensure(q.ne[3] == 1 && k.ne[3] == 1 && v.ne[3] == 1, "more than 3 dimensions")?;
    ensure(k.ne[0] == dk, "queries and keys differ in size")?;
    ensure(v.ne[1..] == k.ne[1..], "keys and values differ in number")?;
    ensure(
        n_head_kv > 0 && n_head.is_multiple_of(n_head_kv),
        "query heads are not a multiple of key heads",
    )?;
    n.visible(n_kv, n_tokens)?;
    ensure(
        n.node.sources().count() == at.list().count(),
        "an operand is missing or too many",
    )?;
    if let Some(i) = at.biases {
        let table = n.floats(i)?;
        let fits = table.ne[0] == n_head && table.ne[2..] == [1, 1];
        ensure(fits, "not one bias per head and bucket")?;
        let rows = 2..=Buckets::MAX_ROWS;
        ensure(rows.contains(&table.ne[1]), "too few or too many buckets")?;
    }
    if let Some(i) = at.sinks {
        ensure(n.floats(i)?.ne[0] == n_head, "not one sink per head")?;
    }
    if let Some(i) = at.selection {
        let lists = Attention::lists_per_token(n.typed(i, I32)?.ne, n_head_kv, n_tokens);
        ensure(
            lists.is_some(),
            "not one selection per token, or per token and key head",
        )?;
    }
    n.result(F32, [v.ne[0], n_head, n_tokens, 1])
}

fn recur(n: &Node, recurrence: Recurrence) -> Result<(), Flaw> {
    const FIRST: usize = 3;
    let (states, from, to) = (n.floats(0)?, n.typed(1, I32)?, n.typed(2, I32)?);
    let mut ne = [[0; 4]; MAX_SRC];
    let n_operands = n.node.sources().count().saturating_sub(FIRST);
    for (i, ne) in ne[..n_operands].iter_mut().enumerate() {
        *ne = n.floats(FIRST + i)?.ne;
    }
    let lanes = recurrence
        .lanes(&ne[..n_operands])
        .ok_or("the operands do not fit the recurrence")?;
    ensure(
        states.ne[0] == lanes.row() && states.ne[2..] == [1, 1] && states.is_contiguous(),
        "the states do not fit the recurrence",
    )?;
    let list = [lanes.n_tokens(), 1, 1, 1];
    ensure(from.ne == list && to.ne == list, "not one cell per token")?;
    n.result(F32, lanes.ne)
}

/// The error for a node that fails the check.
pub(super) fn unsupported(graph: &Graph, id: TensorId) -> BackendError {
    let node = graph.tensor(id);
    BackendError::Unsupported {
        op: node.op.name(),
        node: node.name.to_string(),
        ty: node.src[0].map_or(node.ty, |s| graph.tensor(s).ty),
    }
}
