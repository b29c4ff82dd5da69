//! CPU implementations of the ops, one file per family. Every thread runs the same function on its share of
//! the work.

mod attention;
mod compress;
mod elementwise;
pub(super) mod gated;
mod index_scores;
mod lane_step;
mod layout;
mod linear_attention;
pub(super) mod mul_mat;
pub(super) mod norm;
mod recur;
mod reduce;
mod rope;
mod rows;
mod select;
mod task;
mod visible;
mod wkv;

#[cfg(test)]
pub(super) use self::mul_mat::Pieces;
pub(super) use self::task::{KernelError, NodeExit, Task};
use super::interleaved::INTERLEAVED;
use super::plan::{Fusion, NodePart};
use super::scratch::ScratchSize;
use super::view::Source;
use crate::backend::rules::{self, Unsupported};
use crate::graph::{Graph, Op, TensorId};

/// Checks that this backend can compute the node.
///
/// In addition to the [`rules`], results and the rows of matmul operands, keys, and values must be
/// contiguous. The weights of a matmul and the table of a `get_rows` may be interleaved.
pub(super) fn check(graph: &Graph, id: TensorId) -> Result<(), Unsupported> {
    rules::check(graph, id)?;
    rules::layouts(graph, id, INTERLEAVED)?;
    let node = graph.tensor(id);
    let dense_rows = |i: usize| node.src[i].is_none_or(|s| graph.tensor(s).has_dense_rows());
    let dense = |i: usize| node.src[i].is_none_or(|s| graph.tensor(s).is_contiguous());
    let layout = match node.op {
        Op::None | Op::Reshape | Op::View | Op::Permute => return Ok(()),
        Op::SetRows => dense(2),
        Op::MulMat | Op::MulMatId => dense_rows(0) && node.is_contiguous(),
        Op::Rope(_) => dense(1) && node.is_contiguous(),
        Op::AttentionTemperature { .. } => dense(0) && node.is_contiguous(),
        Op::Attention(p) => {
            let at = p.operands();
            let visible = at.visible.list();
            let lists = visible.iter().chain(&at.selection).chain(&at.biases);
            dense_rows(at.k) && dense_rows(at.v) && lists.copied().all(dense) && node.is_contiguous()
        }
        Op::IndexScores => dense_rows(1) && (2..8).all(dense) && node.is_contiguous(),
        Op::SelectBlocks(_) => (1..7).all(dense) && node.is_contiguous(),
        Op::RecentCells { .. } => (0..6).all(dense) && node.is_contiguous(),
        Op::ShiftPositions { .. } => dense(0) && node.is_contiguous(),
        Op::Recur(_) => (1..node.sources().count()).all(dense) && node.is_contiguous(),
        _ => node.is_contiguous(),
    };
    if layout {
        Ok(())
    } else {
        Err("an operand or the result is not contiguous")
    }
}

/// Returns the scratch memory for a node that passed [`check`], on `n_threads` threads.
///
/// The size does not depend on the fill level of caches and grows with the number of tokens. Memory reserved for the
/// largest graph therefore fits every smaller one.
pub(super) fn scratch_size(graph: &Graph, id: TensorId, n_threads: usize) -> ScratchSize {
    let node = graph.tensor(id);
    let longest_row = node
        .sources()
        .map(|s| Source::row_scratch(graph.tensor(s)))
        .max()
        .unwrap_or(0);
    match node.op {
        Op::MulMat | Op::MulMatId => mul_mat::scratch_size(graph, node),
        Op::Rope(_) => rope::scratch_size(node),
        Op::RmsNorm { .. } => norm::rms_norm_scratch_size(node),
        Op::Attention(p) => attention::scratch_size(graph, node, &p, n_threads),
        Op::IndexScores => index_scores::scratch_size(graph, node),
        Op::SelectBlocks(_) => select::blocks_scratch_size(graph, node),
        Op::Recur(r) => recur::scratch_size(graph, node, r),
        Op::TopK { .. } | Op::TopMask { .. } => reduce::top_k_scratch_size(graph, node),
        _ => ScratchSize {
            per_thread: longest_row,
            shared: 0,
        },
    }
}

/// Returns the additional scratch memory for node `id` of a fusion.
pub(super) fn fused_scratch_size(graph: &Graph, fusion: Option<Fusion>, id: TensorId) -> ScratchSize {
    let node = graph.tensor(id);
    match (fusion, node.op) {
        (Some(Fusion::AddRmsNorm { .. }), _) => norm::rms_norm_scratch_size(node),
        // Fused sums use the scratch memory of the matmul.
        (Some(Fusion::MatmulAdd { .. }), _) => ScratchSize::default(),
        (Some(Fusion::MatmulGlu { .. }), Op::MulMat | Op::MulMatId) => gated::scratch_size(graph, node),
        _ => ScratchSize::default(),
    }
}

/// Returns true if the node is too small to be worth sharing between threads.
pub(super) fn is_small(graph: &Graph, id: TensorId) -> bool {
    /// Number of elements that take 1 to 2 µs.
    const SMALL: usize = 4096;
    /// Multiply-adds of a matmul that take about as long as an element of another op.
    const PRODUCTS: usize = 4;
    let node = graph.tensor(id);
    let operand = |i: usize| graph.tensor(node.source(i));
    let elements = match node.op {
        Op::MulMat | Op::MulMatId => node.nelements().saturating_mul(operand(1).ne[0]) / PRODUCTS,
        Op::Attention(_) => {
            let (q, k) = (operand(0), operand(1));
            (q.nelements() + node.nelements()).saturating_mul(k.ne[2]) / PRODUCTS
        }
        Op::IndexScores => node.nelements().saturating_mul(operand(0).nelements()) / PRODUCTS,
        Op::Recur(_) => operand(0).ne[0].saturating_mul(operand(1).ne[0]),
        Op::SetRows => operand(0).nelements(),
        Op::GetRows => node.nelements(),
        _ => node.nelements().max(operand(0).nelements()),
    };
    elements <= SMALL
}

/// Returns true if threads take the work on an op chunk by chunk from the queue, and false if each thread
/// computes a fixed share.
pub(super) fn takes_pieces(op: Op) -> bool {
    matches!(
        op,
        Op::MulMat | Op::MulMatId | Op::Attention(_) | Op::Recur(_) | Op::IndexScores
    )
}

/// Computes a share of a node.
pub(super) fn run(task: Task<'_>) -> Result<(), NodeExit> {
    match task.node.op {
        Op::Attention(p) if task.planned.part == NodePart::Merge => attention::merge(task, &p),
        Op::None | Op::Reshape | Op::View | Op::Permute => {}
        Op::GetRows => rows::get_rows(task)?,
        Op::SetRows => rows::set_rows(task)?,
        Op::AddId => rows::add_id(task)?,
        Op::MulMat => mul_mat::mul_mat(task)?,
        Op::MulMatId => mul_mat::mul_mat_id(task)?,
        Op::Add => elementwise::binary(task, |a, b| a + b),
        Op::Sub => elementwise::binary(task, |a, b| a - b),
        Op::Mul => elementwise::binary(task, |a, b| a * b),
        Op::Div => elementwise::binary(task, |a, b| a / b),
        Op::Scale { scale, bias } => elementwise::map(task, |row| elementwise::each(row, |x| x * scale + bias)),
        Op::Clamp { min, max } => elementwise::map(task, |row| elementwise::each(row, |x| x.max(min).min(max))),
        Op::Unary(f) => elementwise::map(task, elementwise::function(f)),
        Op::Glu(f) => elementwise::glu(task, f),
        Op::RmsNorm { eps } => norm::rms_norm(task, eps),
        Op::Norm { eps } => norm::norm(task, eps),
        Op::L2Norm { eps } => norm::l2_norm(task, eps),
        Op::Sinkhorn { n, iterations, eps } => norm::sinkhorn(task, n, iterations, eps),
        Op::SoftMax { scale } => norm::soft_max(task, scale),
        Op::Rope(p) => rope::rope(task, &p),
        Op::Attention(p) => attention::attention(task, &p),
        Op::IndexScores => index_scores::index_scores(task),
        Op::SelectBlocks(blocks) => select::select_blocks(task, &blocks),
        Op::RecentCells { n } => select::recent_cells(task, n),
        Op::ShiftPositions { back, .. } => select::shift_positions(task, back),
        Op::TopK { .. } => reduce::top_k(task),
        Op::TopMask { k } => reduce::top_mask(task, k),
        Op::IntDiv { by } => reduce::int_div(task, by),
        Op::Cast => reduce::cast(task),
        Op::NgramHash(hash) => rows::ngram_hash(task, &hash),
        Op::AttentionTemperature { scale, length, offset } => rope::attention_temperature(task, scale, length, offset),
        Op::SumRows => reduce::sum_rows(task),
        Op::Concat { dim } => layout::concat(task, usize::from(dim)),
        Op::Repeat => layout::repeat(task),
        Op::Recur(r) => recur::recur(task, r)?,
        Op::Cont => layout::cont(task),
    }
    Ok(())
}
