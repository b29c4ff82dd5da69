//! Maps nodes to kernels. A single function per family of ops both checks whether a node is supported and
//! plans its launches.

mod arguments;
mod attention;
mod copies;
mod elementwise;
mod heads;
mod integers;
mod matmul;
mod recur;
mod rope;
mod rows;
mod select;
mod skinny;
mod tensor;

use bytemuck::{Pod, bytes_of};
use kernels::{GgmlType, Precision};

use self::arguments::ErrorArg;
pub(super) use self::arguments::TensorArg;
pub(super) use self::attention::{QuantizedAttention, ROUNDED_TOGETHER};
pub(super) use self::heads::{Heads, MAX_HEAD, MAX_SECTIONS, Section};
pub(super) use self::matmul::{has_few_columns, pays_to_bring_weights};
pub(super) use self::rows::{MAX_ADDED, Normed};
pub(super) use self::skinny::{MAX_ADDS, Part, Products};
use super::context::LaunchShape;
use super::kernel::Kernel;
use super::parts::IN_PARTS;
use crate::backend::BackendError;
use crate::backend::rules::{self, Unsupported};
use crate::graph::{Graph, Op, Tensor, TensorId};

/// Threads per block of kernels with one thread per element.
const THREADS: u32 = 256;

/// Alignment of column buffers in bytes.
pub(super) const COLUMNS_ALIGNMENT: usize = 256;

/// Maximum number of blocks in the second and third dimension of a grid.
const MAX_BLOCKS: u32 = 65535;

/// Reason why a node was not planned.
#[derive(Debug)]
pub(super) enum Unplanned {
    /// No kernel supports the node.
    Unsupported(Unsupported),
    /// Planning failed.
    Error(BackendError),
}

impl From<Unsupported> for Unplanned {
    fn from(error: Unsupported) -> Unplanned {
        Unplanned::Unsupported(error)
    }
}

impl From<BackendError> for Unplanned {
    fn from(error: BackendError) -> Unplanned {
        Unplanned::Error(error)
    }
}

/// Quantized form of columns for matmuls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ColumnForm {
    /// 16-bit integers in two parts, with scales and sums.
    Integers,
    /// bf16 values.
    Bfloats,
}

/// Receives launches and provides the addresses of operands.
pub(super) trait Target {
    /// Returns the address of a tensor's first byte after checking its bounds, and that it is writable if
    /// `written`.
    fn address(&mut self, id: TensorId, written: bool) -> Result<u64, Unplanned>;

    /// Returns the address of scratch memory for use by the node's kernels.
    fn scratch(&mut self, bytes: usize) -> Result<u64, Unplanned>;

    /// Returns the required precision of matmuls.
    fn precision(&self) -> Precision;

    /// Returns the address of the converted columns of a tensor, and true if the caller must convert them
    /// first.
    ///
    /// Integer columns use a different buffer than those requested before, which may still be in use.
    fn columns(&mut self, of: &TensorArg, form: ColumnForm, bytes: usize) -> Result<(u64, bool), Unplanned>;

    /// Returns the address of the error record, and the node's index in it.
    fn error_record(&mut self, node: TensorId) -> (u64, u32);

    /// Appends a kernel launch.
    fn launch(&mut self, kernel: Kernel, shape: LaunchShape, parameters: &[u8]) -> Result<(), Unplanned>;
}

/// Memory that a node needs in addition to its operands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct NodeWorkspace {
    /// Scratch memory of the node in bytes.
    pub(super) scratch: usize,
    /// Size of converted columns in bytes.
    pub(super) columns: usize,
}

/// A target that computes the memory requirements of a node without planning it.
struct DryRun {
    need: NodeWorkspace,
    precision: Precision,
}

impl Target for DryRun {
    fn address(&mut self, _: TensorId, _: bool) -> Result<u64, Unplanned> {
        Ok(0)
    }

    fn scratch(&mut self, bytes: usize) -> Result<u64, Unplanned> {
        self.need.scratch = bytes;
        Ok(0)
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn columns(&mut self, _: &TensorArg, form: ColumnForm, bytes: usize) -> Result<(u64, bool), Unplanned> {
        self.need.columns = match form {
            // Two buffers, enough for any two consecutive nodes.
            ColumnForm::Integers => 2 * bytes.next_multiple_of(COLUMNS_ALIGNMENT),
            ColumnForm::Bfloats => bytes,
        };
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
pub(super) fn check(graph: &Graph, id: TensorId, precision: Precision) -> Result<NodeWorkspace, Unsupported> {
    rules::check(graph, id)?;
    rules::layouts(graph, id, IN_PARTS)?;
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

/// Returns true if a matmul with few columns and weights at this address takes its columns as integers.
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
}

impl Step {
    /// Returns the node that represents the step in messages.
    pub(super) fn first(&self) -> TensorId {
        match self {
            Step::Node(id) => *id,
            Step::Normed(normed) => normed.norm,
            Step::Products(products) => products.parts[0].product,
            Step::Heads(heads) => heads.turned,
            Step::QuantizedAttention(attended) => attended.attention,
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
    }
}

/// A node that is being planned.
struct Task<'a> {
    graph: &'a Graph,
    id: TensorId,
    node: &'a Tensor,
    target: &'a mut dyn Target,
}

impl<'a> Task<'a> {
    /// Returns operand `i` of the node.
    fn operand(&self, i: usize) -> &'a Tensor {
        self.graph.tensor(self.node.source(i))
    }

    fn has(&self, i: usize) -> bool {
        self.node.src[i].is_some()
    }

    /// Returns operand `i` as a kernel argument.
    fn source(&mut self, i: usize) -> Result<TensorArg, Unplanned> {
        let id = self.node.source(i);
        TensorArg::new(self.graph.tensor(id), self.target.address(id, false)?)
    }

    /// Returns operand `i` as a kernel argument, or [`TensorArg::NONE`].
    fn optional(&mut self, i: Option<usize>) -> Result<TensorArg, Unplanned> {
        i.map_or(Ok(TensorArg::NONE), |i| self.source(i))
    }

    /// Returns operand `i`, which the op modifies, as a kernel argument.
    fn state(&mut self, i: usize) -> Result<TensorArg, Unplanned> {
        let id = self.node.source(i);
        TensorArg::new(self.graph.tensor(id), self.target.address(id, true)?)
    }

    /// Returns the result as a kernel argument.
    fn result(&mut self) -> Result<TensorArg, Unplanned> {
        TensorArg::new(self.node, self.target.address(self.id, true)?)
    }

    fn fault(&mut self) -> ErrorArg {
        let (record, node) = self.target.error_record(self.id);
        ErrorArg { record, node }
    }

    /// Launches a kernel with one thread for each of `n` elements.
    fn for_each(&mut self, kernel: Kernel, n: u32, parameters: &impl Pod) -> Result<(), Unplanned> {
        self.launch(kernel, [n.div_ceil(THREADS), 1, 1], THREADS, parameters)
    }

    /// Launches a kernel without dynamic shared memory.
    fn launch(&mut self, kernel: Kernel, grid: [u32; 3], block: u32, parameters: &impl Pod) -> Result<(), Unplanned> {
        self.launch_with(kernel, grid, block, 0, parameters)
    }

    /// Launches a kernel with `shared` bytes of dynamic shared memory per block.
    fn launch_with(
        &mut self,
        kernel: Kernel,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        parameters: &impl Pod,
    ) -> Result<(), Unplanned> {
        if grid[1] > MAX_BLOCKS || grid[2] > MAX_BLOCKS {
            return Err("the grid is too large".into());
        }
        self.target
            .launch(kernel, LaunchShape { grid, block, shared }, bytes_of(parameters))
    }
}

/// Converts a size or count to the type that kernels take.
fn size(n: usize) -> Result<u32, Unplanned> {
    match i32::try_from(n) {
        Ok(n) => Ok(n.unsigned_abs()),
        Err(_) => Err("sizes below 2^31".into()),
    }
}
