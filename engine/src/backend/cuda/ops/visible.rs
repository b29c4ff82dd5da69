//! The kernel parameter for the cells that tokens see.

use bytemuck::{Pod, Zeroable};

use super::task::Task;
use super::unplanned::Unplanned;

/// Cells visible to each token, laid out like the struct in `visible.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct VisibleArg {
    cell_pos: u64,
    pos: u64,
    table: u64,
    starts: u64,
    pages: u64,
    masks: u64,
    n_kv: i32,
    n_starts: i32,
    n_entries: i32,
    padding: i32,
}

impl VisibleArg {
    /// Creates the argument for a node whose operands list the visible cells. The lists must be contiguous.
    pub(super) fn new(task: &mut Task<'_>) -> Result<VisibleArg, Unplanned> {
        let at = task.node.op.visible_cells().ok_or("the op has no cell operands")?;
        if !at.list().iter().all(|&i| task.operand(i).is_contiguous()) {
            return Err("a list of cells is not contiguous".into());
        }
        let list = at.map(|i| task.source(i));
        let (starts, pages) = (list.starts?, list.pages?);
        Ok(VisibleArg {
            n_kv: task.operand(at.cell_pos).ne[0] as i32,
            n_starts: starts.ne[0],
            n_entries: pages.ne[0],
            cell_pos: list.cell_pos?.data,
            pos: list.pos?.data,
            table: list.table?.data,
            starts: starts.data,
            pages: pages.data,
            masks: list.masks?.data,
            padding: 0,
        })
    }

    /// Returns the number of entries in all page tables.
    pub(super) fn n_pages(&self) -> usize {
        self.n_entries as usize
    }

    /// Returns the maximum number of page tables.
    pub(super) fn n_tables(&self) -> usize {
        (self.n_starts as usize).saturating_sub(1)
    }

    /// Returns the number of cells, listed or not.
    pub(super) fn n_cells(&self) -> usize {
        self.n_kv as usize
    }
}
