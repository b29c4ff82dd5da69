//! A minimal repacked layout: four rows interleaved by block. A device with this layout verifies on any
//! machine that only matmuls and lookups access repacked weights.

use kernels::GgmlType;

use crate::graph::{Layout, Repack};

/// Block 0 of rows 0 to 3, then block 1 of these rows, and so on.
pub(super) const INTERLEAVED: Layout = Layout::Repacked(&RowsOfFour);

const GROUP: usize = 4;

struct RowsOfFour;

impl Repack for RowsOfFour {
    fn name(&self) -> &'static str {
        "rows_x4"
    }

    fn accepts(&self, ty: GgmlType, ne: [usize; 4]) -> bool {
        matches!(ty, GgmlType::F32 | GgmlType::Q4_0) && ne[1].is_multiple_of(GROUP)
    }

    fn group_rows(&self) -> usize {
        GROUP
    }

    fn group_bytes(&self, ty: GgmlType, n: usize) -> usize {
        GROUP * n / ty.block_size() * ty.block_bytes()
    }

    fn pack(&self, ty: GgmlType, _: usize, rows: &[u8], group: &mut [u8]) {
        let (block, row) = (ty.block_bytes(), rows.len() / GROUP);
        for (i, to) in group.chunks_exact_mut(block).enumerate() {
            to.copy_from_slice(&rows[i % GROUP * row + i / GROUP * block..][..block]);
        }
    }

    fn unpack_row(&self, ty: GgmlType, _: usize, group: &[u8], i: usize, row: &mut [u8]) {
        let block = ty.block_bytes();
        for (to, blocks) in row.chunks_exact_mut(block).zip(group.chunks_exact(GROUP * block)) {
            to.copy_from_slice(&blocks[i * block..][..block]);
        }
    }
}
