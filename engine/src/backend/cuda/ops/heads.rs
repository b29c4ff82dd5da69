//! Processing of heads between their matmuls and attention: norm, RoPE, and storage as floats or in a cache.
//! A single launch handles all heads of a token.

use bytemuck::{Pod, Zeroable};
use kernels::GgmlType;

use super::super::kernel::{HEADS, Kernel};
use super::arguments::{ErrorArg, RopeArg, TensorArg};
use super::rope;
use super::task::Task;
use super::unplanned::{Unplanned, size};
use crate::graph::{NO_ROW, Op, TensorId};

/// Heads of one kind (query, key, or value).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) struct Section {
    /// Head tensor, f32 `[head_dim, n_head, n_tokens]`.
    pub(in super::super) x: TensorId,
    /// Number of heads per row if `x` has the shape `[head_dim * n_head, n_tokens]` instead; otherwise 0.
    pub(in super::super) n_head: usize,
    pub(in super::super) norm: Option<TensorId>,
    pub(in super::super) rope: Option<TensorId>,
    /// The node that writes the heads to rows of a table. If `None`, they are stored as the last node's
    /// result.
    pub(in super::super) set_rows: Option<TensorId>,
}

/// Sections that are computed in one launch. They share tokens and angles.
#[derive(Clone, PartialEq, Debug)]
pub(in super::super) struct Heads {
    /// A RoPE node of one of the sections.
    pub(in super::super) rotated: TensorId,
    pub(in super::super) sections: Vec<Section>,
}

/// Maximum number of sections per launch, their names in the source, and heads per block.
pub(in super::super) const MAX_SECTIONS: usize = 3;
const NAMES: [&str; MAX_SECTIONS] = ["S0", "S1", "S2"];
const WARPS: u32 = 4;

/// Maximum head size that fits in a warp's buffer.
pub(in super::super) const MAX_HEAD: usize = 1024;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct SectionArg {
    x: TensorArg,
    weight: TensorArg,
    y: TensorArg,
    ids: TensorArg,
    eps: f32,
    node: u32,
    is_normed: i32,
    is_rotated: i32,
    first: i32,
    padding: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    sections: [SectionArg; MAX_SECTIONS],
    rope: RopeArg,
    fault: u64,
    no_row: i64,
    n_heads: i32,
    room: i32,
}

impl Section {
    /// Returns the node whose result is stored.
    pub(in super::super) fn result(&self) -> Option<TensorId> {
        self.set_rows.or(self.rope).or(self.norm)
    }
}

/// Reinterprets rows `[head_dim * n_head, n_tokens]` as heads `[head_dim, n_head, n_tokens]`.
fn as_heads(mut rows: TensorArg, n_head: usize, head_bytes: i64) -> TensorArg {
    let head = rows.ne[0] / n_head as i32;
    rows.ne = [head, n_head as i32, rows.ne[1], 1];
    rows.nb = [rows.nb[0], head_bytes, rows.nb[1], 0];
    rows
}

/// Returns the operands of a section, and the type in which its heads are stored.
fn section_arg(task: &mut Task<'_>, section: &Section) -> Result<(SectionArg, GgmlType), Unplanned> {
    let graph = task.graph;
    let arg = |task: &mut Task<'_>, id: TensorId, written: bool| {
        TensorArg::new(graph.tensor(id), task.target.address(id, written)?)
    };
    let mut x = arg(task, section.x, false)?;
    if section.n_head > 0 {
        x = as_heads(x, section.n_head, x.nb[0] * i64::from(x.ne[0] / section.n_head as i32));
    }
    let mut found = SectionArg {
        x,
        weight: TensorArg::NONE,
        y: TensorArg::NONE,
        ids: TensorArg::NONE,
        is_rotated: section.rope.is_some().into(),
        is_normed: section.norm.is_some().into(),
        ..SectionArg::zeroed()
    };
    if let Some(norm) = section.norm {
        let norm = graph.tensor(norm);
        if let Op::RmsNorm { eps } = norm.op {
            found.eps = eps;
        }
        if let Some(weight) = norm.src[1] {
            found.weight = arg(task, weight, false)?;
        }
    }
    let result = section.result().ok_or("the heads are not stored")?;
    let ty = graph.tensor(result).ty;
    found.y = arg(task, result, true)?;
    if let Some(set_rows) = section.set_rows {
        let head_bytes = ty
            .row_bytes(x.ne[0] as usize)
            .ok_or("a head does not consist of whole blocks")?;
        found.y = as_heads(found.y, x.ne[1] as usize, head_bytes as i64);
        found.ids = arg(task, graph.tensor(set_rows).source(2), false)?;
        found.node = task.target.error_record(set_rows).1;
    }
    Ok((found, ty))
}

/// Plans the processing of heads. The task's node is one of the RoPE nodes.
pub(super) fn plan(task: &mut Task<'_>, heads: &Heads) -> Result<(), Unplanned> {
    let Op::Rope(p) = task.node.op else {
        return Err("the node is not a RoPE".into());
    };
    let ErrorArg { record, .. } = task.fault();
    let mut params = Params {
        sections: [SectionArg::zeroed(); MAX_SECTIONS],
        rope: rope::angles(task, &p)?,
        fault: record,
        no_row: NO_ROW,
        n_heads: 0,
        room: 0,
    };
    let mut kernel = Kernel::new(&HEADS, "heads")
        .with_int("NEIGHBORS", rope::neighbors(&p))
        .with_int("SECTIONS", heads.sections.len() as i64);
    for ((section, to), name) in heads.sections.iter().zip(&mut params.sections).zip(NAMES) {
        let (arg, ty) = section_arg(task, section)?;
        *to = SectionArg {
            first: params.n_heads,
            ..arg
        };
        params.n_heads += arg.x.ne[1];
        // The kernel loads neighboring elements in pairs.
        params.room = params.room.max(arg.x.ne[0] + arg.x.ne[0] % 2);
        kernel = kernel.with_type(name, ty);
    }
    let n_heads = params.n_heads.unsigned_abs();
    let shared = size(size_of::<f32>() * WARPS as usize * params.room as usize)?;
    let grid = [n_heads.div_ceil(WARPS), size(task.node.ne[2])?, 1];
    task.launch_with(kernel, grid, 32 * WARPS, shared, &params)
}
