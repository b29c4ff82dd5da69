//! The weight layout that CPU matmuls read fastest: rows in groups of eight, in memory with huge pages.
//!
//! The rows of a group are interleaved, except for floating-point types, whose rows are copied unchanged. Reading
//! them from the pages of a file is slower, because the CPU then looks up an address every 4 KiB.

use kernels::{GgmlType, interleaved};

use crate::graph::{Layout, Repack};

/// Groups of rows in the layout of [`kernels::interleaved`](interleaved), or of plain rows of floats.
pub(super) const INTERLEAVED: Layout = Layout::Repacked(&RowsOfEight);

/// Minimum size in bytes of a floating-point matrix to copy. Reading a smaller matrix takes no noticeable time.
const LEAST_FLOAT_BYTES: usize = 128 << 10;

struct RowsOfEight;

/// Returns the size in bytes of a row of floats.
fn float_row_bytes(ty: GgmlType, k: usize) -> usize {
    k * ty.block_bytes()
}

impl Repack for RowsOfEight {
    fn name(&self) -> &'static str {
        "rows_x8"
    }

    fn accepts(&self, ty: GgmlType, [k, m, ..]: [usize; 4]) -> bool {
        let is_suitable = if self.keeps_rows(ty) {
            k.saturating_mul(m).saturating_mul(ty.block_bytes()) >= LEAST_FLOAT_BYTES
        } else {
            interleaved::can_interleave(ty, k)
        };
        m.is_multiple_of(interleaved::GROUP_ROWS) && is_suitable
    }

    fn keeps_rows(&self, ty: GgmlType) -> bool {
        matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
    }

    fn group_rows(&self) -> usize {
        interleaved::GROUP_ROWS
    }

    fn group_bytes(&self, ty: GgmlType, k: usize) -> usize {
        if self.keeps_rows(ty) {
            return interleaved::GROUP_ROWS * float_row_bytes(ty, k);
        }
        interleaved::interleaved_bytes(ty, k)
    }

    fn pack(&self, ty: GgmlType, k: usize, rows: &[u8], group: &mut [u8]) {
        if self.keeps_rows(ty) {
            return group.copy_from_slice(rows);
        }
        interleaved::interleave(ty, k, rows, group);
    }

    fn unpack_row(&self, ty: GgmlType, k: usize, group: &[u8], i: usize, row: &mut [u8]) {
        if self.keeps_rows(ty) {
            let bytes = float_row_bytes(ty, k);
            return row.copy_from_slice(&group[i * bytes..(i + 1) * bytes]);
        }
        interleaved::deinterleave_row(ty, k, group, i, row);
    }
}
