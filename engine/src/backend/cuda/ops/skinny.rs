//! Matmuls with few columns. A launch multiplies up to three matrices with the same columns and includes the
//! subsequent sums or gated unit.

use bytemuck::{Pod, Zeroable};

use super::super::gpu::Gpu;
use super::super::kernel::{Kernel, MUL_FEW_INT, MUL_VEC, MUL_VEC_INT, Value};
use super::arguments::{ErrorArg, TensorArg};
use super::decoder::decoder;
use super::elementwise::function;
use super::integers::{self, Block, OF_ONE, of_few};
use super::task::Task;
use super::unplanned::{Unplanned, size};
use crate::graph::{Op, TensorId, Unary};

/// A matmul and the nodes fused with it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) struct Part {
    pub(in super::super) product: TensorId,
    /// Operands of the sums fused after the matmul.
    pub(in super::super) adds: [Option<TensorId>; MAX_ADDS],
    /// The stored result: of the last sum, or of the matmul.
    pub(in super::super) result: TensorId,
}

/// Matmuls that read the same activations.
#[derive(Clone, PartialEq, Debug)]
pub(in super::super) struct Products {
    pub(in super::super) parts: Vec<Part>,
    /// If set, there are two parts, and the result of the first is `f(first) * second`.
    pub(in super::super) glu: Option<Unary>,
    /// True if integer matmuls read the result.
    pub(in super::super) rounds: bool,
}

/// Maximum number of sums after a matmul.
pub(in super::super) const MAX_ADDS: usize = 2;

/// Maximum number of matrices per launch; matches `few.cuh`.
const MAX_PARTS: usize = 3;

/// Block of `mul_vec.cu`: a row per warp.
const OF_FLOATS: Block = Block {
    rows: 4,
    threads: 128,
    shared: 0,
    occupying: 8,
};

/// Maximum number of groups of results that an integer kernel computes in sequence instead of using more blocks.
const MAX_ITERATIONS: u32 = 16;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct PartArg {
    w: TensorArg,
    y: TensorArg,
    adds: [TensorArg; MAX_ADDS],
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    parts: [PartArg; MAX_PARTS],
    x: TensorArg,
    ids: TensorArg,
    columns: u64,
    rounded: u64,
    fault: u64,
    node: u32,
    first: [i32; 2],
    iterations: i32,
}

/// Number format into which the kernel decodes the weights.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Integers(Value),
    Floats(Value),
}

impl Products {
    /// Returns a single matmul.
    pub(in super::super) fn of_one(product: TensorId) -> Products {
        let part = Part {
            product,
            adds: [None; MAX_ADDS],
            result: product,
        };
        Products {
            parts: vec![part],
            glu: None,
            rounds: false,
        }
    }
}

/// Plans matmuls with the columns of the task's node, which is the first of them.
pub(super) fn plan(task: &mut Task<'_>, products: &Products) -> Result<(), Unplanned> {
    let x = task.source(1)?;
    let mut parts = Vec::new();
    for part in &products.parts {
        parts.push(form_and_arg(task, part)?);
    }
    if products.glu.is_some() {
        // The second part has no separate result.
        let same = parts.len() == 2 && parts[0].0 == parts[1].0 && parts[0].1.w.nb == parts[1].1.w.nb;
        if !same {
            return Err("the two matrices have different types or strides".into());
        }
        let glu = products.glu.map(|function| Glu {
            function,
            rounds: products.rounds,
        });
        return launch(task, glu, parts[0].0, &x, &[parts[0].1, parts[1].1]);
    }
    while let Some(&(form, _)) = parts.first() {
        let (of_form, others): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(other, _)| *other == form);
        for together in of_form.chunks(MAX_PARTS) {
            let args: Vec<PartArg> = together.iter().map(|&(_, arg)| arg).collect();
            launch(task, None, form, &x, &args)?;
        }
        parts = others;
    }
    Ok(())
}

/// Returns the decoder and the operands of a part.
fn form_and_arg(task: &mut Task<'_>, part: &Part) -> Result<(Form, PartArg), Unplanned> {
    let graph = task.graph;
    let (product, result) = (graph.tensor(part.product), graph.tensor(part.result));
    let weights = graph.tensor(product.source(0));
    let w = TensorArg::new(weights, task.target.address(product.source(0), false)?)?;
    let y = TensorArg::new(result, task.target.address(part.result, true)?)?;
    let mut adds = [TensorArg::NONE; MAX_ADDS];
    for (arg, id) in adds.iter_mut().zip(part.adds) {
        if let Some(id) = id {
            let added = TensorArg::new(graph.tensor(id), task.target.address(id, false)?)?;
            *arg = added.repeated_to(y.ne);
        }
    }
    let form = if integers::suits(task.target.precision(), weights, &w) {
        Form::Integers(decoder(weights, &w))
    } else {
        Form::Floats(decoder(weights, &w))
    };
    Ok((form, PartArg { w, y, adds }))
}

/// Returns the number of groups of results that a warp or block computes in sequence, for blocks of `rows`
/// results.
fn iterations_of(gpu: Gpu, form: Form, block: Block, parts: &[PartArg], rows: u32) -> u32 {
    let min_blocks = block.occupying * gpu.multiprocessors.max(1);
    let n_rows = parts.iter().map(|part| part.w.ne[1].unsigned_abs());
    match form {
        Form::Integers(_) => (n_rows.map(|n| n.div_ceil(rows)).sum::<u32>() / min_blocks).clamp(1, MAX_ITERATIONS),
        Form::Floats(_) => 1,
    }
}

/// Returns the minimum number of blocks with fused quantization: four for three multiprocessors. Each of these blocks
/// must compute all results that share a scale, so fewer blocks are available.
fn min_rounding_blocks(gpu: Gpu) -> usize {
    gpu.multiprocessors as usize * 4 / 3
}

/// A gated unit computed from two weight matrices.
#[derive(Clone, Copy)]
struct Glu {
    function: Unary,
    rounds: bool,
}

/// Returns true if blocks of integer kernels can quantize these results. Each block computes the results
/// that share a scale.
fn may_round(gpu: Gpu, form: Form, y: &TensorArg, n_columns: usize) -> bool {
    let n_rows = y.ne[0] as usize;
    let is_dense = y.has_vectors(size_of::<f32>(), size_of::<f32>());
    let has_blocks =
        n_rows.is_multiple_of(integers::GROUP) && n_rows / integers::GROUP * n_columns >= min_rounding_blocks(gpu);
    matches!(form, Form::Integers(_)) && is_dense && has_blocks
}

/// Returns the kernel that multiplies operands of this form with up to `columns` columns, and its block.
fn kernel_for(gpu: Gpu, form: Form, x: &TensorArg, columns: usize) -> (Kernel, Block) {
    match form {
        Form::Integers(decoder) if columns == 1 => {
            (Kernel::new(&MUL_VEC_INT, "mul_vec_int").with("TYPE", decoder), OF_ONE)
        }
        Form::Integers(decoder) => {
            let kernel = Kernel::new(&MUL_FEW_INT, "mul_few_int").with("TYPE", decoder);
            let kernel = kernel.with_int("COLS", columns as i64);
            let block = of_few(gpu);
            (kernel.with_int("MEMORY", block.shared.into()), block)
        }
        Form::Floats(decoder) => {
            // Vectors of floats and blocks stored in parts also have runs.
            let has_runs = !matches!(decoder, Value::Type(ty) if !ty.is_quantized());
            let kernel = Kernel::new(&MUL_VEC, "mul_vec").with("TYPE", decoder);
            let kernel = kernel.with_int("X4", (has_runs && x.has_vectors(4, 16)).into());
            (kernel.with_int("COLS", columns as i64), OF_FLOATS)
        }
    }
}

/// Launches parts with the same decoder.
fn launch(
    task: &mut Task<'_>,
    glu: Option<Glu>,
    form: Form,
    x: &TensorArg,
    parts: &[PartArg],
) -> Result<(), Unplanned> {
    let by_ids = task.node.op == Op::MulMatId;
    let mut params = Params {
        x: *x,
        ids: TensorArg::NONE,
        ..Params::zeroed()
    };
    params.parts[..parts.len()].copy_from_slice(parts);
    let [_, n, n2, n3] = task.node.ne;
    let (columns, grid) = if by_ids {
        (1, [size(n)?, size(n2)?])
    } else {
        (n.next_power_of_two(), [1, size(n2 * n3)?])
    };
    if by_ids {
        let ErrorArg { record, node } = task.fault();
        (params.ids, params.fault, params.node) = (task.source(2)?, record, node);
    }
    if let Form::Integers(_) = form {
        params.columns = integers::columns(task, x)?;
    }
    let gpu = task.target.gpu();
    let (kernel, block) = kernel_for(gpu, form, x, columns);
    // A block of a gated unit computes rows of both matrices. With integers, it computes half as many rows; with
    // floats, it computes the matrices one after the other.
    let (n_parts, rows) = match (glu, form) {
        (Some(_), Form::Integers(_)) => (1, block.rows / 2),
        (Some(_), Form::Floats(_)) => (1, block.rows),
        (None, _) => (parts.len(), block.rows),
    };
    let rounds = glu.is_some_and(|glu| glu.rounds) && may_round(gpu, form, &parts[0].y, (grid[0] * grid[1]) as usize);
    let iterations = if rounds {
        integers::GROUP as u32 / rows
    } else {
        iterations_of(gpu, form, block, &parts[..n_parts], rows)
    };
    params.iterations = iterations as i32;
    let mut n_blocks = 0;
    for (i, part) in parts[..n_parts].iter().enumerate() {
        if i > 0 {
            params.first[i - 1] = size(n_blocks as usize)? as i32;
        }
        n_blocks += part.w.ne[1].unsigned_abs().div_ceil(rows * iterations);
    }
    let mut kernel = kernel.with_int("IDS", by_ids.into()).with_int("PARTS", n_parts as i64);
    if let Some(glu) = glu {
        kernel = kernel.with("GLU", Value::Word(function(glu.function)));
    }
    if rounds {
        params.rounded = integers::written_columns(task, &parts[0].y)?;
        kernel = kernel.with_int("ROUNDS", 1);
    }
    let grid = [n_blocks, grid[0], grid[1]];
    task.launch_with(kernel, grid, block.threads, block.shared, &params)
}
