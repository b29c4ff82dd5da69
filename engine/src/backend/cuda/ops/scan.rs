//! Planning of recurrences with a matrix of states for each head.

mod chunks;

use bytemuck::{Pod, Zeroable};

use self::chunks::{Chunks, Sizes};
use super::super::kernel::{Kernel, SCAN, Value};
use super::arguments::TensorArg;
use super::recur::{FIRST, States};
use super::task::Task;
use super::unplanned::{Unplanned, size};
use crate::graph::{LinearAttention, Recurrence};

/// Threads per block.
const THREADS: u32 = 128;

/// Maximum number of state rows in the registers of a lane.
const MAX_HELD: usize = 32;

/// Maximum number of rows that selective scans hold if there are enough lanes. With more, kernels for compute
/// capability 8.0 spill registers.
const MAX_HELD_BY_SCAN: usize = 16;

const MAX_VECTORS: usize = 5;
const MAX_VALUES: usize = 3;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    states: States,
    y: TensorArg,
    vectors: [TensorArg; MAX_VECTORS],
    values: [TensorArg; MAX_VALUES],
    rates: TensorArg,
    scale: f32,
    slope: f32,
    heads_of_group: i32,
    tiled: i32,
}

/// A recurrence in the terms of `scan.cu`.
struct Scan {
    rule: &'static str,
    decay: &'static str,
    /// Vectors of all columns of a group, such as keys and queries.
    vectors: Vec<TensorArg>,
    /// Values of each column, `[width, heads, T]`.
    values: Vec<TensorArg>,
    /// Constants of rows and heads.
    rates: TensorArg,
    /// Number of groups of heads with the same vectors.
    n_groups: usize,
    linear: LinearAttention,
    has_beta: bool,
}

/// Parameters of recurrences that are not linear attention.
const NOT_LINEAR: LinearAttention = LinearAttention {
    scale: 1.0,
    delta: false,
    tiled: false,
    slope: 0.0,
};

pub(super) fn plan(task: &mut Task<'_>, recurrence: Recurrence) -> Result<(), Unplanned> {
    let scan = match recurrence {
        Recurrence::LinearAttention(p) => linear_attention(task, p)?,
        Recurrence::SsmScan => ssm_scan(task)?,
        Recurrence::Wkv6 => wkv(task, "WKV6", &[1, 0, 3], 2)?,
        Recurrence::Wkv7 => wkv(task, "WKV7", &[2, 0, 1, 4, 5], 3)?,
        Recurrence::ShortConv { .. } | Recurrence::TokenShift | Recurrence::Compress { .. } => {
            return Err("the recurrence has no matrix of states".into());
        }
    };
    launch(task, &scan)
}

fn linear_attention(task: &mut Task<'_>, p: LinearAttention) -> Result<Scan, Unplanned> {
    let (query, key, value) = (task.source(FIRST)?, task.source(FIRST + 1)?, task.source(FIRST + 2)?);
    let (mut vectors, mut values) = (vec![key, query], vec![value]);
    let decay = if !task.has(FIRST + 3) {
        "CONSTANT"
    } else if task.operand(FIRST + 3).ne[0] == 1 {
        values.push(task.source(FIRST + 3)?.repeated_to(value.ne));
        "BY_COLUMN"
    } else {
        vectors.push(task.source(FIRST + 3)?);
        "BY_ROW"
    };
    let has_beta = task.has(FIRST + 4);
    if has_beta {
        values.push(task.source(FIRST + 4)?.repeated_to(value.ne));
    }
    Ok(Scan {
        rule: "LINEAR_ATTENTION",
        decay,
        vectors,
        values,
        rates: TensorArg::NONE,
        n_groups: task.node.ne[1],
        linear: p,
        has_beta,
    })
}

fn ssm_scan(task: &mut Task<'_>) -> Result<Scan, Unplanned> {
    let (x, steps, rates) = (task.source(FIRST)?, task.source(FIRST + 1)?, task.source(FIRST + 2)?);
    let (key, query) = (task.source(FIRST + 3)?, task.source(FIRST + 4)?);
    // Steps `[h, T]`, for all elements of a head.
    let steps = TensorArg {
        nb: [0, steps.nb[0], steps.nb[1], 0],
        ne: x.ne,
        ..steps
    };
    Ok(Scan {
        rule: "SSM_SCAN",
        decay: if rates.ne[0] == 1 { "BY_COLUMN" } else { "BY_RATE" },
        vectors: vec![key, query],
        values: vec![x, steps],
        rates,
        n_groups: task.operand(FIRST + 3).ne[1],
        linear: NOT_LINEAR,
        has_beta: false,
    })
}

/// Returns RWKV's time mixing. `vectors` and `value` are indices of operands.
fn wkv(task: &mut Task<'_>, rule: &'static str, vectors: &[usize], value: usize) -> Result<Scan, Unplanned> {
    let vectors: Result<_, _> = vectors.iter().map(|i| task.source(FIRST + i)).collect();
    Ok(Scan {
        rule,
        decay: "BY_ROW",
        vectors: vectors?,
        values: vec![task.source(FIRST + value)?],
        rates: if rule == "WKV6" {
            task.source(FIRST + 4)?
        } else {
            TensorArg::NONE
        },
        n_groups: task.node.ne[1],
        linear: NOT_LINEAR,
        has_beta: false,
    })
}

/// Returns the number of lanes that share a column of `n_rows` rows, each with at most `max_held` of them.
fn lanes_of(n_rows: usize, max_held: usize) -> Option<usize> {
    [4, 8, 16].into_iter().find(|lanes| n_rows <= lanes * max_held)
}

fn launch(task: &mut Task<'_>, scan: &Scan) -> Result<(), Unplanned> {
    let mut params = Params {
        states: States::of(task)?,
        y: task.result()?,
        rates: scan.rates,
        scale: scan.linear.scale,
        slope: scan.linear.slope,
        heads_of_group: size(task.node.ne[1] / scan.n_groups)? as i32,
        tiled: scan.linear.tiled.into(),
        ..Params::zeroed()
    };
    params.vectors[..scan.vectors.len()].copy_from_slice(&scan.vectors);
    params.values[..scan.values.len()].copy_from_slice(&scan.values);
    match chunks_of(task, scan, &params) {
        Some(chunks) => in_chunks(task, scan, chunks, &params),
        None => one_by_one(task, scan, &params),
    }
}

/// Returns the configuration of the kernel for chunks of tokens if it can be used.
fn chunks_of(task: &Task<'_>, scan: &Scan, params: &Params) -> Option<Chunks> {
    if scan.rule != "LINEAR_ATTENTION" || !scan.vectors.iter().all(|v| v.has_vectors(4, 16)) {
        return None;
    }
    let sizes = Sizes {
        rows: scan.vectors[0].ne[0] as usize,
        columns: task.node.ne[0],
        n_tokens: params.states.n_tokens as usize,
        n_cells: params.states.cells.ne[1] as usize,
        decays_by_row: scan.decay == "BY_ROW",
    };
    Chunks::of(sizes, task.target.precision(), task.target.gpu())
}

fn in_chunks(task: &mut Task<'_>, scan: &Scan, chunks: Chunks, params: &Params) -> Result<(), Unplanned> {
    let kernel = chunks
        .kernel()
        .with("DECAY", Value::Word(scan.decay))
        .with_int("DELTA", scan.linear.delta.into())
        .with_int("BETA", scan.has_beta.into());
    let grid = [size(chunks.blocks_of_head())?, size(scan.n_groups)?, 1];
    task.launch_with(kernel, grid, size(chunks.threads())?, size(chunks.shared())?, params)
}

fn one_by_one(task: &mut Task<'_>, scan: &Scan, params: &Params) -> Result<(), Unplanned> {
    let states = params.states;
    let n_rows = scan.vectors[0].ne[0] as usize;
    let few = if scan.rule == "SSM_SCAN" {
        MAX_HELD_BY_SCAN
    } else {
        MAX_HELD
    };
    let lanes = lanes_of(n_rows, few).or_else(|| lanes_of(n_rows, MAX_HELD));
    let lanes = lanes.ok_or("the matrix of a head has too many rows")?;
    let has_runs = scan.vectors.iter().all(|v| v.has_vectors(4, 16)) && states.cells.has_vectors(4, 16);
    let kernel = Kernel::new(&SCAN, "scan")
        .with("RULE", Value::Word(scan.rule))
        .with_int("ROWS", n_rows as i64)
        .with_int("LANES", lanes as i64)
        .with("DECAY", Value::Word(scan.decay))
        .with_int("DELTA", scan.linear.delta.into())
        .with_int("BETA", scan.has_beta.into())
        .with_int("X4", has_runs.into())
        .with_int("SPREADS", (states.spread() > 1).into());
    let columns_of_block = THREADS / lanes as u32;
    let columns = size(task.node.ne[0] * task.node.ne[1] / scan.n_groups)?;
    let grid = [
        columns.div_ceil(columns_of_block),
        size(scan.n_groups)?,
        states.spread(),
    ];
    task.launch(kernel, grid, THREADS, params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_columns_are_shared_by_more_lanes() {
        let found = [1, 128, 129, 256, 257, 512, 513].map(|n| lanes_of(n, MAX_HELD));
        assert_eq!(found, [Some(4), Some(4), Some(8), Some(8), Some(16), Some(16), None]);
    }
}
