//! From a node to the kernels that compute it: one function for each family of ops says both whether a node can be computed and how.

mod arguments;
mod attention;
mod elementwise;
mod few;
mod heads;
mod integers;
mod moves;
mod products;
mod recur;
mod rope;
mod rows;
mod select;
mod tensor;

use bytemuck::{Pod, bytes_of};
use kernels::{GgmlType, Precision};

use self::arguments::FaultArg;
pub(super) use self::arguments::TensorArg;
pub(super) use self::attention::{Attended, ROUNDED_TOGETHER};
pub(super) use self::few::{MAX_ADDS, Part, Products};
pub(super) use self::heads::{Heads, MAX_HEAD, MAX_SECTIONS, Section};
pub(super) use self::products::{has_few_columns, pays_to_bring_weights};
pub(super) use self::rows::{MAX_ADDED, Normed};
use super::context::Shape;
use super::kernel::Kernel;
use super::parts::IN_PARTS;
use crate::backend::BackendError;
use crate::backend::rules::{self, Flaw};
use crate::graph::{Graph, Op, Tensor, TensorId};

/// Threads of a block of kernels that have one for each element.
const THREADS: u32 = 256;

/// Places for columns begin at multiples of this.
pub(super) const COLUMNS_ALIGNMENT: usize = 256;

/// Most blocks in the second and third dimension of a grid.
const MAX_BLOCKS: u32 = 65535;

/// Why a node is not planned.
#[derive(Debug)]
pub(super) enum Refusal {
    /// There is no kernel for it.
    Flaw(Flaw),
    /// Something failed.
    Error(BackendError),
}

impl From<Flaw> for Refusal {
    fn from(flaw: Flaw) -> Refusal {
        Refusal::Flaw(flaw)
    }
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Refusal {
        Refusal::Error(error)
    }
}

/// What columns are rounded to for products.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ColumnForm {
    /// Integers of 16 bits in two parts, with scales and sums.
    Integers,
    /// bf16.
    Bfloats,
}

/// Where operands lie, and where launches go.
pub(super) trait Target {
    /// Address of a tensor's first byte, all of whose bytes are there, and may be `written`.
    fn address(&mut self, id: TensorId, written: bool) -> Result<u64, Refusal>;

    /// Address of memory that is the node's as long as its kernels run.
    fn scratch(&mut self, bytes: usize) -> Result<u64, Refusal>;

    /// What products may cost in accuracy.
    fn precision(&self) -> Precision;

    /// Address of memory for the columns of a tensor in a form, and whether they are not there yet, since nothing before needed them. Whoever asks
    /// makes them then. Integers lie apart from those that were asked for before, which may still be read meanwhile.
    fn columns(&mut self, of: &TensorArg, form: ColumnForm, bytes: usize) -> Result<(u64, bool), Refusal>;

    /// Address of the record of faults, and a node's number in it.
    fn fault_of(&mut self, node: TensorId) -> (u64, u32);

    /// Appends a kernel.
    fn launch(&mut self, kernel: Kernel, shape: Shape, parameters: &[u8]) -> Result<(), Refusal>;
}

/// What a node needs beside its operands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Need {
    /// Bytes of scratch memory.
    pub(super) scratch: usize,
    /// Bytes of columns in the form of a product.
    pub(super) columns: usize,
}

/// Looks at a node as if it were planned.
struct DryRun {
    need: Need,
    precision: Precision,
}

impl Target for DryRun {
    fn address(&mut self, _: TensorId, _: bool) -> Result<u64, Refusal> {
        Ok(0)
    }

    fn scratch(&mut self, bytes: usize) -> Result<u64, Refusal> {
        self.need.scratch = bytes;
        Ok(0)
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn columns(&mut self, _: &TensorArg, form: ColumnForm, bytes: usize) -> Result<(u64, bool), Refusal> {
        self.need.columns = match form {
            // Two places, for any two of these one behind the other.
            ColumnForm::Integers => 2 * bytes.next_multiple_of(COLUMNS_ALIGNMENT),
            ColumnForm::Bfloats => bytes,
        };
        Ok((0, true))
    }

    fn fault_of(&mut self, _: TensorId) -> (u64, u32) {
        (0, 0)
    }

    fn launch(&mut self, _: Kernel, _: Shape, _: &[u8]) -> Result<(), Refusal> {
        Ok(())
    }
}

/// What a node needs, or why it cannot be computed, which no precision changes. Views compute nothing and pass.
pub(super) fn check(graph: &Graph, id: TensorId, precision: Precision) -> Result<Need, Flaw> {
    rules::check(graph, id)?;
    rules::layouts(graph, id, IN_PARTS)?;
    let node = graph.tensor(id);
    if node.op == Op::GetRows && !graph.tensor(node.source(0)).layout.is_plain() {
        return Err("a table whose rows lie as in the file");
    }
    if !node.op.computes() {
        return Ok(Need::default());
    }
    let operands = node.sources().map(|s| graph.tensor(s));
    if !operands.chain([node]).all(is_readable) {
        return Err("strides that are multiples of what is read at a time, and rows of blocks without gaps");
    }
    let mut dry = DryRun {
        need: Need::default(),
        precision,
    };
    match plan(graph, id, &mut dry) {
        Ok(()) => Ok(dry.need),
        Err(Refusal::Flaw(flaw)) => Err(flaw),
        Err(Refusal::Error(_)) => Err("operands that can be reached"),
    }
}

/// What kernels read of a type at a time: addresses of rows are multiples of it.
pub(super) fn alignment_of(ty: GgmlType) -> usize {
    match ty.block_size() {
        1 => ty.block_bytes(),
        // The largest power of two that divides a block, up to a word.
        _ => 1 << ty.block_bytes().trailing_zeros().min(2),
    }
}

/// Kernels read blocks where they expect them, at addresses that are multiples of what they read.
fn is_readable(t: &Tensor) -> bool {
    let alignment = alignment_of(t.ty);
    let aligned = (0..4).all(|d| t.ne[d] <= 1 || t.nb[d].is_multiple_of(alignment));
    aligned && (!t.ty.is_quantized() || t.has_dense_rows())
}

/// True if a product of few columns with weights at this address takes its columns as integers.
pub(super) fn takes_integers(precision: Precision, weights: &Tensor, address: u64) -> bool {
    TensorArg::new(weights, address).is_ok_and(|w| integers::suits(precision, weights, &w))
}

/// Appends the kernels that compute a checked node.
pub(super) fn plan(graph: &Graph, id: TensorId, target: &mut dyn Target) -> Result<(), Refusal> {
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
        | Op::DivIds { .. }
        | Op::ToFloats
        | Op::EarlierPositions { .. }
        | Op::AttentionTemperature { .. }
        | Op::NgramHash(_) => moves::plan(&mut task),
        Op::RmsNorm { .. }
        | Op::Norm { .. }
        | Op::L2Norm { .. }
        | Op::SoftMax { .. }
        | Op::SumRows
        | Op::Balance { .. } => rows::plan(&mut task),
        Op::Rope(p) => rope::plan(&mut task, &p),
        Op::MulMat => products::mul_mat(&mut task),
        Op::MulMatId => products::mul_mat_id(&mut task),
        Op::Attention(p) => attention::plan(&mut task, &p, None),
        Op::Recur(recurrence) => recur::plan(&mut task, recurrence),
        Op::TopK { .. } | Op::TopMask { .. } | Op::IndexScores | Op::SelectBlocks(_) | Op::LastCells { .. } => {
            select::plan(&mut task)
        }
    }
}

/// What is computed in one go.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Step {
    /// A node as it is.
    Node(TensorId),
    /// A norm with the sum before it and the rounding behind it.
    Normed(Normed),
    /// Products of the same columns, with what is added to them.
    Products(Products),
    /// Heads on their way to attention.
    Heads(Heads),
    /// Attention with the rounding that products ask for.
    Attended(Attended),
}

impl Step {
    /// The node that stands for it in messages.
    pub(super) fn first(&self) -> TensorId {
        match self {
            Step::Node(id) => *id,
            Step::Normed(normed) => normed.norm,
            Step::Products(products) => products.parts[0].product,
            Step::Heads(heads) => heads.turned,
            Step::Attended(attended) => attended.attention,
        }
    }
}

/// Appends the kernels of a step, all of whose nodes were checked.
pub(super) fn plan_step(graph: &Graph, step: &Step, target: &mut dyn Target) -> Result<(), Refusal> {
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
        Step::Products(products) => few::plan(&mut task, products),
        Step::Heads(heads) => heads::plan(&mut task, heads),
        Step::Attended(attended) => attention::plan_attended(&mut task, attended),
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
    /// Operand `i`.
    fn operand(&self, i: usize) -> &'a Tensor {
        self.graph.tensor(self.node.source(i))
    }

    fn has(&self, i: usize) -> bool {
        self.node.src[i].is_some()
    }

    /// Operand `i`, as kernels take it.
    fn source(&mut self, i: usize) -> Result<TensorArg, Refusal> {
        let id = self.node.source(i);
        TensorArg::new(self.graph.tensor(id), self.target.address(id, false)?)
    }

    /// Operand `i`, or what stands for none.
    fn optional(&mut self, i: Option<usize>) -> Result<TensorArg, Refusal> {
        i.map_or(Ok(TensorArg::NONE), |i| self.source(i))
    }

    /// Operand `i`, which the op writes.
    fn state(&mut self, i: usize) -> Result<TensorArg, Refusal> {
        let id = self.node.source(i);
        TensorArg::new(self.graph.tensor(id), self.target.address(id, true)?)
    }

    /// The result.
    fn result(&mut self) -> Result<TensorArg, Refusal> {
        TensorArg::new(self.node, self.target.address(self.id, true)?)
    }

    fn fault(&mut self) -> FaultArg {
        let (record, node) = self.target.fault_of(self.id);
        FaultArg { record, node }
    }

    /// A kernel with a thread for each of `n` elements.
    fn for_each(&mut self, kernel: Kernel, n: u32, parameters: &impl Pod) -> Result<(), Refusal> {
        self.launch(kernel, [n.div_ceil(THREADS), 1, 1], THREADS, parameters)
    }

    /// A kernel without dynamic shared memory.
    fn launch(&mut self, kernel: Kernel, grid: [u32; 3], block: u32, parameters: &impl Pod) -> Result<(), Refusal> {
        self.launch_with(kernel, grid, block, 0, parameters)
    }

    /// A kernel whose blocks have `shared` bytes of dynamic shared memory.
    fn launch_with(
        &mut self,
        kernel: Kernel,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        parameters: &impl Pod,
    ) -> Result<(), Refusal> {
        if grid[1] > MAX_BLOCKS || grid[2] > MAX_BLOCKS {
            return Err("sizes that fit a grid".into());
        }
        self.target
            .launch(kernel, Shape { grid, block, shared }, bytes_of(parameters))
    }
}

/// A size or a count as kernels take it.
fn size(n: usize) -> Result<u32, Refusal> {
    match i32::try_from(n) {
        Ok(n) => Ok(n.unsigned_abs()),
        Err(_) => Err("sizes below 2^31".into()),
    }
}
