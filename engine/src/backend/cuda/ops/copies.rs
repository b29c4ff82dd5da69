//! Ops that move elements, and ops on integers.

use bytemuck::{Pod, Zeroable};
use kernels::GgmlType;

use super::super::kernel::{COPIES, Kernel, NGRAM, QUANTIZE};
use super::arguments::TensorArg;
use super::task::{THREADS, Task};
use super::unplanned::{Unplanned, size};
use crate::graph::{NO_ROW, NgramHash, Op};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    a: TensorArg,
    b: TensorArg,
    ids: TensorArg,
    y: TensorArg,
    fault: u64,
    node: u32,
    n: u32,
    i: [i32; 2],
    c: [f32; 2],
}

impl Params {
    /// Creates the parameters of a kernel with one thread per element of the result.
    fn new(task: &mut Task<'_>) -> Result<Params, Unplanned> {
        Ok(Params {
            a: task.source(0)?,
            y: task.result()?,
            n: size(task.node.nelements())?,
            b: TensorArg::NONE,
            ids: TensorArg::NONE,
            ..Params::zeroed()
        })
    }

    /// Adds a list of row indices, which may be out of range.
    fn with_ids(mut self, task: &mut Task<'_>, operand: usize) -> Result<Params, Unplanned> {
        let fault = task.fault();
        (self.fault, self.node) = (fault.record, fault.node);
        self.ids = task.source(operand)?;
        Ok(self)
    }
}

pub(super) fn plan(task: &mut Task<'_>) -> Result<(), Unplanned> {
    let of_floats = |name| Kernel::new(&COPIES, name).with_type("A", GgmlType::F32);
    let (kernel, params) = match task.node.op {
        Op::GetRows if task.node.ty == GgmlType::I32 => {
            let params = Params::new(task)?.with_ids(task, 1)?;
            (of_floats("get_int_rows"), params)
        }
        Op::GetRows => return get_rows(task),
        Op::SetRows => return set_rows(task),
        Op::NgramHash(hash) => return ngram_hash(task, &hash),
        Op::Cont => {
            let kernel = Kernel::new(&COPIES, "cont").with_type("A", task.operand(0).ty);
            (kernel, Params::new(task)?)
        }
        Op::Concat { dim } => {
            let (b, i) = (task.source(1)?, [i32::from(dim), 0]);
            (
                of_floats("concat"),
                Params {
                    b,
                    i,
                    ..Params::new(task)?
                },
            )
        }
        Op::AddId => {
            let (kernel, b) = (
                Kernel::new(&COPIES, "add_id").with_type("A", task.operand(1).ty),
                task.source(1)?,
            );
            let params = Params::new(task)?.with_ids(task, 2)?;
            (kernel, Params { b, ..params })
        }
        Op::IntDiv { by } => {
            let i = [size(by)? as i32, 0];
            (
                of_floats("div_ids"),
                Params {
                    i,
                    ..Params::new(task)?
                },
            )
        }
        Op::Cast => (of_floats("to_floats"), Params::new(task)?),
        Op::ShiftPositions { back, .. } => {
            let i = [size(back)? as i32, 0];
            (
                of_floats("earlier_positions"),
                Params {
                    i,
                    ..Params::new(task)?
                },
            )
        }
        Op::AttentionTemperature { scale, length, offset } => {
            let (i, c) = ([size(length)? as i32, 0], [scale, offset]);
            (
                of_floats("attention_temperature"),
                Params {
                    i,
                    c,
                    ..Params::new(task)?
                },
            )
        }
        _ => return Err("not an op that moves elements".into()),
    };
    task.for_each(kernel, params.n, &params)
}

/// Plans one thread per chunk of a row; see `blocks.cuh`.
fn get_rows(task: &mut Task<'_>) -> Result<(), Unplanned> {
    let ty = task.operand(0).ty;
    let mut params = Params::new(task)?.with_ids(task, 1)?;
    let [n, n_tokens, n2, n3] = task.node.ne;
    params.n = size(n / chunk_of(ty))?;
    let grid = [params.n.div_ceil(THREADS), size(n_tokens)?, size(n2 * n3)?];
    task.launch(
        Kernel::new(&COPIES, "get_rows").with_type("A", ty),
        grid,
        THREADS,
        &params,
    )
}

/// Returns the number of values per chunk of a type.
pub(super) fn chunk_of(ty: GgmlType) -> usize {
    match ty {
        _ if ty.block_size() == 1 => 1,
        GgmlType::Q2_K | GgmlType::Q3_K | GgmlType::Q6_K | GgmlType::TQ2_0 => 16,
        _ => 8,
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct SetParams {
    x: TensorArg,
    table: TensorArg,
    ids: TensorArg,
    fault: u64,
    no_row: i64,
    node: u32,
    n_blocks: u32,
}

/// Plans one thread per block of a row.
fn set_rows(task: &mut Task<'_>) -> Result<(), Unplanned> {
    let (ty, fault) = (task.node.ty, task.fault());
    let params = SetParams {
        x: task.source(0)?,
        table: task.result()?,
        ids: task.source(2)?,
        fault: fault.record,
        node: fault.node,
        no_row: NO_ROW,
        n_blocks: size(task.node.ne[0] / ty.block_size())?,
    };
    let n_rows = size(task.operand(0).ne[1])?;
    let threads = if ty.block_size() == 1 { THREADS } else { 32 };
    let kernel = Kernel::new(&QUANTIZE, "set_rows").with_type("TYPE", ty);
    task.launch(kernel, [params.n_blocks.div_ceil(threads), n_rows, 1], threads, &params)
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct NgramParams {
    numbers: TensorArg,
    y: TensorArg,
    multipliers: [u64; NgramHash::MAX],
    n: u32,
    end: u32,
    first: u32,
    size: u32,
}

fn ngram_hash(task: &mut Task<'_>, hash: &NgramHash) -> Result<(), Unplanned> {
    let params = NgramParams {
        numbers: task.source(0)?,
        y: task.result()?,
        multipliers: hash.multipliers,
        n: size(hash.n)?,
        end: hash.end,
        first: hash.first,
        size: hash.size,
    };
    let n = size(task.node.nelements())?;
    task.for_each(Kernel::new(&NGRAM, "ngram_hash"), n, &params)
}
