//! Products of few columns: up to three matrices that multiply the same columns in one launch, with what is done with the results at once.

use bytemuck::{Pod, Zeroable};

use super::super::kernel::{Kernel, MUL_VEC, MUL_VEC_INT, Value};
use super::arguments::TensorArg;
use super::elementwise::function;
use super::products::decoder;
use super::{FaultArg, Refusal, Task, integers, size};
use crate::graph::{Op, TensorId, Unary};

/// A product, and what becomes of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) struct Part {
    pub(in super::super) product: TensorId,
    /// What is added to it.
    pub(in super::super) adds: [Option<TensorId>; MAX_ADDS],
    /// What is stored: the last sum, or the product.
    pub(in super::super) result: TensorId,
}

/// Products of the same columns.
#[derive(Clone, PartialEq, Debug)]
pub(in super::super) struct Products {
    pub(in super::super) parts: Vec<Part>,
    /// There are two parts, and this function of the first one's product times the second one's is the result of the first.
    pub(in super::super) glu: Option<Unary>,
    /// Products in integers read that result.
    pub(in super::super) rounds: bool,
}

/// Most sums behind a product.
pub(in super::super) const MAX_ADDS: usize = 2;

/// Most matrices of a launch: as in `few.cuh`.
const MAX_PARTS: usize = 3;

/// Rows of a block of `mul_vec.cu`, one to a warp, and threads of a block of either kernel.
const ROWS: u32 = 4;
const THREADS: u32 = 128;

/// Blocks that keep a card busy, and most results that warps of `mul_vec_int.cu` compute one after the other where there would be more blocks.
const MIN_BLOCKS: u32 = 1024;
const MAX_TURNS: u32 = 16;

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
    turns: i32,
}

/// How weights are read.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Integers(Value),
    Floats(Value),
}

impl Products {
    /// A product alone.
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

/// Plans products whose columns are those of the task's node, which is the first of them.
pub(super) fn plan(task: &mut Task<'_>, products: &Products) -> Result<(), Refusal> {
    let x = task.source(1)?;
    let mut parts = Vec::new();
    for part in &products.parts {
        parts.push(form_and_arg(task, part)?);
    }
    if products.glu.is_some() {
        // The second part has no result of its own.
        let same = parts.len() == 2 && parts[0].0 == parts[1].0 && parts[0].1.w.nb == parts[1].1.w.nb;
        if !same {
            return Err("two matrices that are read alike".into());
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

/// How a part's weights are read, and its operands.
fn form_and_arg(task: &mut Task<'_>, part: &Part) -> Result<(Form, PartArg), Refusal> {
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
    let form = match integers::suits(task.target.precision(), weights, &w) {
        true => Form::Integers(decoder(weights, &w)),
        false => Form::Floats(decoder(weights, &w)),
    };
    Ok((form, PartArg { w, y, adds }))
}

/// Results that a warp computes one after the other, for blocks of `rows` results at a time.
fn turns_of(form: Form, parts: &[PartArg], rows: u32) -> u32 {
    let n_rows = parts.iter().map(|part| part.w.ne[1].unsigned_abs());
    match form {
        Form::Integers(_) => (n_rows.map(|n| n.div_ceil(rows)).sum::<u32>() / MIN_BLOCKS).clamp(1, MAX_TURNS),
        Form::Floats(_) => 1,
    }
}

/// Blocks with which it pays that each computes as many results as are rounded together.
const MIN_ROUNDING_BLOCKS: usize = 192;

/// Two matrices that give one result.
#[derive(Clone, Copy)]
struct Glu {
    function: Unary,
    rounds: bool,
}

/// True if blocks of `mul_vec_int.cu` can round these results, each of them those that share a scale.
fn may_round(form: Form, y: &TensorArg, n_columns: usize) -> bool {
    let n_rows = y.ne[0] as usize;
    let is_dense = y.has_vectors(size_of::<f32>(), size_of::<f32>());
    let has_blocks =
        n_rows.is_multiple_of(integers::GROUP) && n_rows / integers::GROUP * n_columns >= MIN_ROUNDING_BLOCKS;
    matches!(form, Form::Integers(_)) && is_dense && has_blocks
}

/// A launch of parts whose weights are read alike.
fn launch(task: &mut Task<'_>, glu: Option<Glu>, form: Form, x: &TensorArg, parts: &[PartArg]) -> Result<(), Refusal> {
    let by_ids = task.node.op == Op::MulMatId;
    let mut params = Params {
        x: *x,
        ids: TensorArg::NONE,
        ..Params::zeroed()
    };
    params.parts[..parts.len()].copy_from_slice(parts);
    let [_, n, n2, n3] = task.node.ne;
    let (columns, grid) = match by_ids {
        true => (1, [size(n)?, size(n2)?]),
        false => (n.next_power_of_two(), [1, size(n2 * n3)?]),
    };
    if by_ids {
        let FaultArg { record, node } = task.fault();
        (params.ids, params.fault, params.node) = (task.source(2)?, record, node);
    }
    let (kernel, rows) = match form {
        Form::Integers(decoder) => {
            params.columns = integers::columns(task, x)?;
            (
                Kernel::new(&MUL_VEC_INT, "mul_vec_int").with("TYPE", decoder),
                integers::ROWS,
            )
        }
        Form::Floats(decoder) => {
            let has_runs = match decoder {
                Value::Type(ty) => ty.is_quantized(),
                // Floats several at a time, and blocks in parts.
                _ => true,
            };
            let kernel = Kernel::new(&MUL_VEC, "mul_vec").with("TYPE", decoder);
            (kernel.with_int("X4", (has_runs && x.has_vectors(4, 16)).into()), ROWS)
        }
    };
    // With a function the rows of both matrices are computed where those of one are otherwise; floats are summed up one matrix after the other.
    let (n_parts, rows) = match (glu, form) {
        (Some(_), Form::Integers(_)) => (1, rows / 2),
        (Some(_), Form::Floats(_)) => (1, rows),
        (None, _) => (parts.len(), rows),
    };
    let rounds = glu.is_some_and(|glu| glu.rounds) && may_round(form, &parts[0].y, (grid[0] * grid[1]) as usize);
    let turns = match rounds {
        true => integers::GROUP as u32 / rows,
        false => turns_of(form, &parts[..n_parts], rows),
    };
    params.turns = turns as i32;
    let mut n_blocks = 0;
    for (i, part) in parts[..n_parts].iter().enumerate() {
        if i > 0 {
            params.first[i - 1] = size(n_blocks as usize)? as i32;
        }
        n_blocks += part.w.ne[1].unsigned_abs().div_ceil(rows * turns);
    }
    let mut kernel = kernel
        .with_int("COLS", columns as i64)
        .with_int("IDS", by_ids.into())
        .with_int("PARTS", n_parts as i64);
    if let Some(glu) = glu {
        kernel = kernel.with("GLU", Value::Word(function(glu.function)));
    }
    if rounds {
        params.rounded = integers::written_columns(task, &parts[0].y)?;
        kernel = kernel.with_int("ROUNDS", 1);
    }
    task.launch(kernel, [n_blocks, grid[0], grid[1]], THREADS, &params)
}
