//! The weight layout that CPU matmuls read fastest: rows interleaved in groups of eight.

use kernels::{GgmlType, interleaved};

use crate::graph::{Layout, Repack};

/// Groups of rows in the layout of [`kernels::interleaved`](interleaved).
pub(super) const INTERLEAVED: Layout = Layout::Repacked(&RowsOfEight);

struct RowsOfEight;

impl Repack for RowsOfEight {
    fn name(&self) -> &'static str {
        "rows_x8"
    }

    fn accepts(&self, ty: GgmlType, [k, m, ..]: [usize; 4]) -> bool {
        m.is_multiple_of(interleaved::GROUP_ROWS) && interleaved::can_interleave(ty, k)
    }

    fn group_rows(&self) -> usize {
        interleaved::GROUP_ROWS
    }

    fn group_bytes(&self, ty: GgmlType, k: usize) -> usize {
        interleaved::interleaved_bytes(ty, k)
    }

    fn pack(&self, ty: GgmlType, k: usize, rows: &[u8], group: &mut [u8]) {
        interleaved::interleave(ty, k, rows, group);
    }

    fn unpack_row(&self, ty: GgmlType, k: usize, group: &[u8], i: usize, row: &mut [u8]) {
        interleaved::deinterleave_row(ty, k, group, i, row);
    }
}
