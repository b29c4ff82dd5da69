//! Maps nodes to kernels. A single function per family of ops both checks whether a node is supported and
//! plans its launches.

mod arguments;
mod attention;
mod copies;
mod decoder;
mod elementwise;
mod experts;
mod half_tiles;
mod halves;
mod heads;
mod integers;
mod matmul;
mod recur;
mod rope;
mod rows;
mod scan;
mod select;
mod skinny;
mod stream;
mod task;
mod tensor;
mod unplanned;
mod visible;

use kernels::{GgmlType, Precision};

pub(super) use self::arguments::{RopeArg, TensorArg};
pub(super) use self::attention::{QuantizedAttention, ROUNDED_TOGETHER};
pub(super) use self::experts::{Gate, MAX_EXPERTS, MAX_USED, Routing, WeightedSum};
pub(super) use self::heads::{Heads, MAX_HEAD, MAX_SECTIONS, Section};
pub(super) use self::matmul::{has_few_columns, pays_to_bring_weights};
pub(super) use self::rows::{MAX_ADDED, Normed};
pub(super) use self::skinny::{MAX_ADDS, Part, Products};
use self::task::Task;
pub(super) use self::task::{COLUMNS_ALIGNMENT, ColumnForm, Grouping, Target};
pub(super) use self::unplanned::Unplanned;
use super::context::LaunchShape;
use super::gpu::Gpu;
use super::kernel::Kernel;
use super::parts::ALIGNED;
use crate::backend::rules::{self, Unsupported};
use crate::graph::{Graph, Op, Tensor, TensorId};

/// Memory that a node needs in addition to its operands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct NodeWorkspace {
    /// Scratch memory of the node in bytes.
    pub(super) scratch: usize,
    /// Size of converted columns in bytes.
    pub(super) columns: usize,
    /// Size of the table of angles in bytes.
    pub(super) angles: usize,
}

/// A target that computes the memory requirements of a node without planning it.
struct DryRun {
    need: NodeWorkspace,
    precision: Precision,
    gpu: Gpu,
}

impl Target for DryRun {
    fn address(&mut self, _: TensorId, _: bool) -> Result<u64, Unplanned> {
        Ok(0)
    }

    fn scratch(&mut self, bytes: usize) -> Result<u64, Unplanned> {
        self.need.scratch = bytes;
        Ok(0)
    }

    fn grouping(&mut self, _: &Grouping, bytes: usize) -> Result<(u64, bool), Unplanned> {
        Ok((self.scratch(bytes)?, true))
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn gpu(&self) -> Gpu {
        self.gpu
    }

    fn columns(&mut self, _: &TensorArg, form: ColumnForm, bytes: usize) -> Result<(u64, bool), Unplanned> {
        self.need.columns = match form {
            // Two buffers, enough for any two consecutive nodes.
            ColumnForm::Integers => 2 * bytes.next_multiple_of(COLUMNS_ALIGNMENT),
            ColumnForm::Bfloats(_) | ColumnForm::Halves(_) => bytes,
        };
        Ok((0, true))
    }

    fn angles(&mut self, _: &RopeArg, bytes: usize) -> Result<(u64, bool), Unplanned> {
        self.need.angles = bytes;
        Ok((0, true))
    }

    fn error_record(&mut self, _: TensorId) -> (u64, u32) {
        (0, 0)
    }

    fn launch(&mut self, _: Kernel, _: LaunchShape, _: &[u8]) -> Result<(), Unplanned> {
        Ok(())
    }
}

/// Checks that a node is supported, and returns its memory requirements. Support does not depend on the
/// precision. Views always pass.
pub(super) fn check(graph: &Graph, id: TensorId, precision: Precision, gpu: Gpu) -> Result<NodeWorkspace, Unsupported> {
    rules::check(graph, id)?;
    rules::layouts(graph, id, ALIGNED)?;
    let node = graph.tensor(id);
    if node.op == Op::GetRows && !graph.tensor(node.source(0)).layout.is_plain() {
        return Err("the rows of a table are repacked");
    }
    if !node.op.computes() {
        return Ok(NodeWorkspace::default());
    }
    let operands = node.sources().map(|s| graph.tensor(s));
    if !operands.chain([node]).all(is_readable) {
        return Err("strides are not multiples of the element alignment, or rows of blocks are not contiguous");
    }
    let mut dry = DryRun {
        need: NodeWorkspace::default(),
        precision,
        gpu,
    };
    match plan(graph, id, &mut dry) {
        Ok(()) => Ok(dry.need),
        Err(Unplanned::Unsupported(error)) => Err(error),
        Err(Unplanned::Error(_)) => Err("an operand cannot be accessed"),
    }
}

/// Returns the alignment that kernels require for rows of a type, in bytes.
pub(super) fn alignment_of(ty: GgmlType) -> usize {
    match ty.block_size() {
        1 => ty.block_bytes(),
        // The largest power of two that divides the block size, up to a word.
        _ => 1 << ty.block_bytes().trailing_zeros().min(2),
    }
}

/// Returns true if strides are aligned and rows of quantized types are contiguous.
fn is_readable(t: &Tensor) -> bool {
    let alignment = alignment_of(t.ty);
    let aligned = (0..4).all(|d| t.ne[d] <= 1 || t.nb[d].is_multiple_of(alignment));
    aligned && (!t.ty.is_quantized() || t.has_dense_rows())
}

/// Returns true if a matmul with few columns and weights at this address reads its columns as integers.
pub(super) fn takes_integers(precision: Precision, weights: &Tensor, address: u64) -> bool {
    TensorArg::new(weights, address).is_ok_and(|w| integers::suits(precision, weights, &w))
}

/// Appends the launches of a checked node.
pub(super) fn plan(graph: &Graph, id: TensorId, target: &mut dyn Target) -> Result<(), Unplanned> {
    let node = graph.tensor(id);
    let mut task = Task {
        graph,
        id,
        node,
        target,
    };
    if node.nelements() == 0 {
        return Ok(());
    }
    match node.op {
        Op::None | Op::Reshape | Op::View | Op::Permute => Ok(()),
        Op::Add
        | Op::Sub
        | Op::Mul
        | Op::Div
        | Op::Glu(_)
        | Op::Unary(_)
        | Op::Scale { .. }
        | Op::Clamp { .. }
        | Op::Repeat => elementwise::plan(&mut task),
        Op::Cont
        | Op::Concat { .. }
        | Op::AddId
        | Op::GetRows
        | Op::SetRows
        | Op::IntDiv { .. }
        | Op::Cast
        | Op::ShiftPositions { .. }
        | Op::AttentionTemperature { .. }
        | Op::NgramHash(_) => copies::plan(&mut task),
        Op::RmsNorm { .. }
        | Op::Norm { .. }
        | Op::L2Norm { .. }
        | Op::SoftMax { .. }
        | Op::SumRows
        | Op::Sinkhorn { .. } => rows::plan(&mut task),
        Op::Rope(p) => rope::plan(&mut task, &p),
        Op::MulMat => matmul::mul_mat(&mut task),
        Op::MulMatId => matmul::mul_mat_id(&mut task),
        Op::Attention(p) => attention::plan(&mut task, &p, None),
        Op::Recur(recurrence) => recur::plan(&mut task, recurrence),
        Op::TopK { .. } | Op::TopMask { .. } | Op::IndexScores | Op::SelectBlocks(_) | Op::RecentCells { .. } => {
            select::plan(&mut task)
        }
    }
}

/// A group of nodes that are computed together.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Step {
    /// A node that is not fused.
    Node(TensorId),
    /// A norm, with the sum before it and the quantization after it.
    Normed(Normed),
    /// Matmuls with the same columns, and the sums after them.
    Products(Products),
    /// Fused norm, RoPE, and storage of heads.
    Heads(Heads),
    /// Attention fused with quantization of its result.
    QuantizedAttention(QuantizedAttention),
    /// Selection of experts with their weights.
    Routing(Routing),
    /// Weighted sum of the results of experts.
    WeightedSum(WeightedSum),
}

impl Step {
    /// Returns the node that represents the step in messages.
    pub(super) fn first(&self) -> TensorId {
        match self {
            Step::Node(id) => *id,
            Step::Normed(normed) => normed.norm,
            Step::Products(products) => products.parts[0].product,
            Step::Heads(heads) => heads.rotated,
            Step::QuantizedAttention(attended) => attended.attention,
            Step::Routing(routing) => routing.ids,
            Step::WeightedSum(sum) => sum.product,
        }
    }
}

/// Appends the launches of a step. All of its nodes have passed `check`.
pub(super) fn plan_step(graph: &Graph, step: &Step, target: &mut dyn Target) -> Result<(), Unplanned> {
    let id = step.first();
    let mut task = Task {
        graph,
        id,
        node: graph.tensor(id),
        target,
    };
    match step {
        Step::Node(id) => plan(graph, *id, task.target),
        Step::Normed(normed) => rows::plan_normed(&mut task, normed),
        Step::Products(products) => skinny::plan(&mut task, products),
        Step::Heads(heads) => heads::plan(&mut task, heads),
        Step::QuantizedAttention(attended) => attention::plan_attended(&mut task, attended),
        Step::Routing(routing) => experts::route(&mut task, routing),
        Step::WeightedSum(sum) => experts::weighted_sum(&mut task, sum),
    }
}
