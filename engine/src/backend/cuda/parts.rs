//! Weight layout for types whose blocks are not aligned to the loads of the kernels.
//!
//! Eight blocks are stored part by part. The lanes of a warp then read adjacent, aligned addresses, and the
//! size is the same as in the file.

use kernels::GgmlType;

use crate::graph::{Layout, Repack};

/// Layout of eight blocks of a row, with the same part of all blocks stored contiguously.
pub(super) const IN_PARTS: Layout = Layout::Repacked(&InParts);

/// Number of blocks in a group.
const BLOCKS: usize = 8;

struct InParts;

/// A byte range of a block and its destination for the first block. The destinations of consecutive blocks are `apart`
/// bytes apart.
struct Run {
    from: usize,
    len: usize,
    to: usize,
    apart: usize,
}

const fn run(from: usize, len: usize, to: usize, apart: usize) -> Run {
    Run { from, len, to, apart }
}

/// Fields of a Q5_0 block: low bits, fifth bits, scales.
const Q5_0: [Run; 3] = [run(6, 16, 0, 16), run(2, 4, 128, 4), run(0, 2, 160, 2)];

/// Low two bits, third bits, sub-block scales, block scales.
const Q3_K: [Run; 4] = [
    run(32, 64, 0, 64),
    run(0, 32, 512, 32),
    run(96, 12, 768, 12),
    run(108, 2, 864, 2),
];

/// Low four bits (alternate runs are stored separately), high bits, sub-block scales, block scales.
const Q6_K: [Run; 11] = [
    run(0, 16, 0, 64),
    run(16, 16, 16, 64),
    run(64, 16, 32, 64),
    run(80, 16, 48, 64),
    run(32, 16, 512, 64),
    run(48, 16, 528, 64),
    run(96, 16, 544, 64),
    run(112, 16, 560, 64),
    run(128, 64, 1024, 64),
    run(192, 16, 1536, 16),
    run(208, 2, 1664, 2),
];

/// Returns the runs of a type's blocks. Empty for types whose blocks are already aligned.
fn runs(ty: GgmlType) -> &'static [Run] {
    match ty {
        GgmlType::Q5_0 => &Q5_0,
        GgmlType::Q3_K => &Q3_K,
        GgmlType::Q6_K => &Q6_K,
        _ => &[],
    }
}

/// Returns the name of the grouped type in `blocks.cuh` and `dots.cuh`.
pub(super) fn kernel_type(ty: GgmlType) -> Option<&'static str> {
    match ty {
        GgmlType::Q5_0 => Some("q5_0_x8"),
        GgmlType::Q3_K => Some("q3_K_x8"),
        GgmlType::Q6_K => Some("q6_K_x8"),
        _ => None,
    }
}

impl Repack for InParts {
    fn name(&self) -> &'static str {
        "blocks_x8"
    }

    fn accepts(&self, ty: GgmlType, [n, ..]: [usize; 4]) -> bool {
        kernel_type(ty).is_some() && n.is_multiple_of(BLOCKS * ty.block_size())
    }

    fn group_rows(&self) -> usize {
        1
    }

    fn group_bytes(&self, ty: GgmlType, n: usize) -> usize {
        n / ty.block_size() * ty.block_bytes()
    }

    fn pack(&self, ty: GgmlType, _: usize, rows: &[u8], group: &mut [u8]) {
        let (block, eight) = (ty.block_bytes(), BLOCKS * ty.block_bytes());
        for (from, to) in rows.chunks_exact(eight).zip(group.chunks_exact_mut(eight)) {
            for (i, from) in from.chunks_exact(block).enumerate() {
                for r in runs(ty) {
                    to[r.to + i * r.apart..][..r.len].copy_from_slice(&from[r.from..][..r.len]);
                }
            }
        }
    }

    fn unpack_row(&self, ty: GgmlType, _: usize, group: &[u8], _: usize, row: &mut [u8]) {
        let (block, eight) = (ty.block_bytes(), BLOCKS * ty.block_bytes());
        for (from, to) in group.chunks_exact(eight).zip(row.chunks_exact_mut(eight)) {
            for (i, to) in to.chunks_exact_mut(block).enumerate() {
                for r in runs(ty) {
                    to[r.from..][..r.len].copy_from_slice(&from[r.to + i * r.apart..][..r.len]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repacked_blocks_are_a_permutation_of_bytes() {
        for &ty in GgmlType::ALL {
            let n = 16 * ty.block_size();
            assert_eq!(runs(ty).is_empty(), kernel_type(ty).is_none(), "{ty}");
            assert_eq!(InParts.accepts(ty, [n, 3, 1, 1]), kernel_type(ty).is_some(), "{ty}");
            assert!(!InParts.accepts(ty, [n - ty.block_size(), 3, 1, 1]), "{ty}");
            if kernel_type(ty).is_none() {
                continue;
            }
            let row: Vec<u8> = (0..InParts.group_bytes(ty, n))
                .map(|i| (i * 31 + i / 250) as u8)
                .collect();
            let (mut packed, mut back) = (vec![0; row.len()], vec![0; row.len()]);
            InParts.pack(ty, n, &row, &mut packed);
            InParts.unpack_row(ty, n, &packed, 0, &mut back);
            assert!(row == back && row != packed, "{ty}");
        }
    }
}
