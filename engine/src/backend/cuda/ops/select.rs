//! Top-k, and sparse attention: scores of cells and their selection.

use bytemuck::{Pod, Zeroable};
use kernels::GgmlType;

use super::super::kernel::{Kernel, SELECT, TOP};
use super::arguments::TensorArg;
use super::task::{THREADS, Task};
use super::unplanned::{Unplanned, size};
use super::visible::VisibleArg;
use crate::graph::{BlockRule, Blocks, Op, PAGE};

/// Maximum number of values of a row to sort. Their keys must fit in shared memory.
const MAX_SORTED: usize = 4096;

/// Maximum number of blocks that score the pages of a token, or select blocks for rows.
const MAX_BLOCKS: usize = 64;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct TopParams {
    x: TensorArg,
    y: TensorArg,
    k: i32,
    padding: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    q: TensorArg,
    k: TensorArg,
    weights: TensorArg,
    y: TensorArg,
    visible: VisibleArg,
    tables: u64,
    n_slots: i32,
    block_size: i32,
    n_blocks: i32,
    local: i32,
    whole: i32,
    tail: i32,
    by_head: i32,
    n_rows: i32,
}

pub(super) fn plan(task: &mut Task<'_>) -> Result<(), Unplanned> {
    match task.node.op {
        Op::TopK { k } if k > MAX_SORTED => {
            Err("k exceeds the number of values that can be sorted in shared memory".into())
        }
        Op::TopK { k } => top(task, "top_k", k, 8 * k),
        Op::TopMask { k } => top(task, "top_mask", k, 0),
        Op::IndexScores => index_scores(task),
        Op::SelectBlocks(blocks) => select_blocks(task, &blocks),
        Op::RecentCells { .. } => last_cells(task),
        _ => Err("not an op that selects".into()),
    }
}

fn top(task: &mut Task<'_>, name: &'static str, k: usize, shared: usize) -> Result<(), Unplanned> {
    let params = TopParams {
        x: task.source(0)?,
        y: task.result()?,
        k: size(k)? as i32,
        padding: 0,
    };
    let grid = [size(task.operand(0).nrows())?, 1, 1];
    task.launch_with(Kernel::new(&TOP, name), grid, THREADS, size(shared)?, &params)
}

/// Returns the common parameters of `select.cu`. Each op adds its own.
fn params_of(task: &mut Task<'_>) -> Result<Params, Unplanned> {
    let (visible, y) = (VisibleArg::new(task)?, task.result()?);
    Ok(Params {
        q: TensorArg::NONE,
        k: TensorArg::NONE,
        weights: TensorArg::NONE,
        y,
        visible,
        ..Params::zeroed()
    })
}

fn kernel(name: &'static str, keys: GgmlType, dk: usize) -> Kernel {
    Kernel::new(&SELECT, name)
        .with_type("K", keys)
        .with_int("DK", dk as i64)
}

fn index_scores(task: &mut Task<'_>) -> Result<(), Unplanned> {
    let keys = task.operand(1);
    if !keys.has_dense_rows() {
        return Err("the elements of a key are not contiguous".into());
    }
    let has_weights = task.has(8);
    let params = Params {
        q: task.source(0)?,
        k: task.source(1)?,
        weights: task.source_or_none(8)?,
        by_head: (!has_weights).into(),
        ..params_of(task)?
    };
    let (ty, dk) = (keys.ty, keys.ne[0]);
    let n = size(task.node.nelements())?;
    task.for_each(kernel("hide_all", ty, dk), n, &params)?;
    // Each page is scored by one warp, up to a maximum number of thread blocks.
    let per_block = PAGE * (THREADS as usize / 32);
    let n_blocks = size(params.visible.n_cells().div_ceil(per_block).clamp(1, MAX_BLOCKS))?;
    let grid = [n_blocks, size(task.operand(0).ne[2])?, 1];
    task.launch(kernel("index_scores", ty, dk), grid, THREADS, &params)
}

fn last_cells(task: &mut Task<'_>) -> Result<(), Unplanned> {
    let params = params_of(task)?;
    let n_threads = size(32 * task.node.nelements())?;
    task.for_each(kernel("last_cells", GgmlType::F32, 1), n_threads, &params)
}

fn select_blocks(task: &mut Task<'_>, blocks: &Blocks) -> Result<(), Unplanned> {
    let common = params_of(task)?;
    let at = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let n_rows = task.node.ne[1] * task.node.ne[2];
    let (n_slots, n_groups) = (
        (common.visible.n_cells() + 1).next_power_of_two(),
        n_rows.min(MAX_BLOCKS),
    );
    let n_tokens = task.operand(2).ne[0];
    let (local, whole, tail) = match blocks.rule {
        BlockRule::Best { local } => (local, false, false),
        BlockRule::Whole { tail } => (0, true, tail),
    };
    let params = Params {
        q: task.source(0)?,
        // Tables with the block number, score, and cell count of each slot.
        tables: task.target.scratch(3 * size_of::<u32>() * n_slots * n_groups)?,
        n_slots: size(n_slots)? as i32,
        block_size: at(blocks.size),
        n_blocks: at(blocks.k),
        local: at(local),
        whole: whole.into(),
        tail: tail.into(),
        by_head: (task.node.ne[2] == n_tokens).into(),
        n_rows: size(n_rows)? as i32,
        ..common
    };
    let grid = [size(n_groups)?, 1, 1];
    task.launch(kernel("select_blocks", GgmlType::F32, 1), grid, THREADS, &params)
}
