//! The ops, one file a family. Every thread runs the same function on its share of the work.

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
mod visible;
mod wkv;

use std::fmt;

use super::activations::QuantizedRows;
use super::ahead::Weights;
use super::fuse::Fusion;
use super::interleaved::INTERLEAVED;
use super::pool::Abandoned;
use super::queue::{Share, TakenOver, WorkQueue};
use super::scratch::Shared;
use super::view::{NodePart, Place, PlannedNode, Source, Target};
use crate::backend::rules::{self, Flaw};
use crate::graph::{Graph, Op, Tensor, TensorId};

/// A node, as one thread sees it.
pub(super) struct Task<'a> {
    pub(super) graph: &'a Graph,
    pub(super) node: &'a Tensor,
    pub(super) planned: &'a PlannedNode,
    /// What of the node to compute; of a node whose function [takes pieces](takes_pieces), all that it finds in the queue.
    pub(super) share: Share,
    pub(super) queue: &'a WorkQueue<'a>,
    pub(super) target: Target<'a>,
    /// This thread's own; at least [`Need::per_thread`] floats with any content.
    pub(super) scratch: &'a mut [f32],
    /// At least [`Need::shared`] floats with any content.
    pub(super) shared: Shared<'a>,
    /// The second operand of a product, if it is wanted in another form than f32.
    pub(super) activations: Option<QuantizedRows<'a>>,
}

impl<'a> Task<'a> {
    fn source(&self, i: usize) -> Source<'a> {
        self.planned.source(self.graph, i)
    }

    fn optional(&self, i: usize) -> Option<Source<'a>> {
        self.node.src[i].map(|_| self.source(i))
    }
}

/// Why a thread could not finish a node.
pub(super) enum Stop {
    Abandoned,
    TakenOver,
    Fault(Fault),
}

impl From<TakenOver> for Stop {
    fn from(_: TakenOver) -> Stop {
        Stop::TakenOver
    }
}

impl From<Abandoned> for Stop {
    fn from(_: Abandoned) -> Stop {
        Stop::Abandoned
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

/// Data that make no sense.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A row or expert number beyond the table.
    NoSuchRow { row: i64, rows: usize },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NoSuchRow { row, rows } => write!(f, "row {row} of {rows}"),
        }
    }
}

/// `row` as an index below `rows`.
fn row_number(row: impl Into<i64>, rows: usize) -> Result<usize, Fault> {
    let row = row.into();
    usize::try_from(row)
        .ok()
        .filter(|&r| r < rows)
        .ok_or(Fault::NoSuchRow { row, rows })
}

/// Scratch memory in floats.
#[derive(Clone, Copy, Default)]
pub(super) struct Need {
    pub(super) per_thread: usize,
    pub(super) shared: usize,
}

impl Need {
    pub(super) fn max(self, other: Need) -> Need {
        Need {
            per_thread: self.per_thread.max(other.per_thread),
            shared: self.shared.max(other.shared),
        }
    }
}

/// Nothing, or why this backend cannot compute the node: beyond the [`rules`], results are dense and the rows of products,
/// keys and values too. The matrix of a product and the table of a look-up may be interleaved.
pub(super) fn check(graph: &Graph, id: TensorId) -> Result<(), Flaw> {
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
        Op::LastCells { .. } => (0..6).all(dense) && node.is_contiguous(),
        Op::EarlierPositions { .. } => dense(0) && node.is_contiguous(),
        Op::Recur(_) => (1..node.sources().count()).all(dense) && node.is_contiguous(),
        _ => node.is_contiguous(),
    };
    if layout {
        Ok(())
    } else {
        Err("an operand or the result is not dense")
    }
}

/// Scratch memory for a node that passed the check, on `n_threads` threads. It does not depend on how full caches are, and grows
/// with the number of tokens, so that a reservation for the largest graph serves all.
pub(super) fn need(graph: &Graph, id: TensorId, n_threads: usize) -> Need {
    let node = graph.tensor(id);
    let longest_row = node
        .sources()
        .map(|s| Source::row_scratch(graph.tensor(s)))
        .max()
        .unwrap_or(0);
    match node.op {
        Op::MulMat | Op::MulMatId => mul_mat::need(graph, node),
        Op::Rope(_) => rope::need(node),
        Op::RmsNorm { .. } => norm::rms_norm_need(node),
        Op::Attention(p) => attention::need(graph, node, &p, n_threads),
        Op::IndexScores => index_scores::need(graph, node),
        Op::SelectBlocks(_) => select::blocks_need(graph, node),
        Op::Recur(r) => recur::need(graph, node, r),
        Op::TopK { .. } | Op::TopMask { .. } => reduce::top_k_need(graph, node),
        _ => Need {
            per_thread: longest_row,
            shared: 0,
        },
    }
}

/// Scratch memory for nodes that are computed together, of which this is one.
pub(super) fn fused_need(graph: &Graph, fusion: Option<Fusion>, id: TensorId) -> Need {
    let node = graph.tensor(id);
    match (fusion, node.op) {
        (Some(Fusion::AddRmsNorm { .. }), _) => norm::rms_norm_need(node),
        // The need of the product is enough.
        (Some(Fusion::ProductAdd { .. }), _) => Need::default(),
        (Some(Fusion::ProductsGlu { .. }), Op::MulMat | Op::MulMatId) => gated::need(graph, node),
        _ => Need::default(),
    }
}

/// True if a node is done by one thread before others could join in.
pub(super) fn is_small(graph: &Graph, id: TensorId) -> bool {
    /// Elements of the size of a microsecond or two.
    const SMALL: usize = 4096;
    /// Multiplications in a product that take as long as one element elsewhere.
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

/// True if threads share the work on an op piece by piece, so that each computes what it finds in the queue; otherwise by shares.
pub(super) fn takes_pieces(op: Op) -> bool {
    matches!(
        op,
        Op::MulMat | Op::MulMatId | Op::Attention(_) | Op::Recur(_) | Op::IndexScores
    )
}

/// True if threads may take over pieces of work on a product whose activations are in each thread's own memory, with these weights.
pub(super) fn can_offer(graph: &Graph, node: &Tensor, weights: &Place) -> bool {
    weights.is_read_only() && mul_mat::can_offer(graph, node)
}

/// True if a product of one matrix has few columns: see [`mul_mat::OfFew`].
pub(super) fn is_of_few(graph: &Graph, node: &Tensor) -> bool {
    mul_mat::is_of_few(graph, node)
}

/// The weights of a product with one matrix, as threads share them.
pub(super) fn weights_ahead(graph: &Graph, product: &PlannedNode) -> Weights {
    mul_mat::weights_ahead(graph, product)
}

/// Computes a share of a node.
pub(super) fn run(task: Task<'_>) -> Result<(), Stop> {
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
        Op::Balance { n, iterations, eps } => norm::balance(task, n, iterations, eps),
        Op::SoftMax { scale } => norm::soft_max(task, scale),
        Op::Rope(p) => rope::rope(task, &p),
        Op::Attention(p) => attention::attention(task, &p),
        Op::IndexScores => index_scores::index_scores(task),
        Op::SelectBlocks(blocks) => select::select_blocks(task, &blocks),
        Op::LastCells { n } => select::last_cells(task, n),
        Op::EarlierPositions { back, .. } => select::earlier_positions(task, back),
        Op::TopK { .. } => reduce::top_k(task),
        Op::TopMask { k } => reduce::top_mask(task, k),
        Op::DivIds { by } => reduce::div_ids(task, by),
        Op::ToFloats => reduce::to_floats(task),
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
