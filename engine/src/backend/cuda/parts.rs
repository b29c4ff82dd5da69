//! Weight layout for types whose blocks or rows are not aligned to the loads of the kernels.
//!
//! Eight blocks of some types are stored part by part. The lanes of a warp then read adjacent, aligned addresses, and the
//! size is the same as in the file. All other rows start at multiples of 16 bytes, with zeros between them.

use kernels::GgmlType;

use crate::graph::{Layout, Repack};

/// Layout of rows that kernels can load directly.
pub(super) const ALIGNED: Layout = Layout::Repacked(&Aligned);

/// Number of blocks in a group, with the same part of all blocks stored contiguously.
const BLOCKS: usize = 8;

/// Alignment of rows in bytes.
const ALIGNMENT: usize = 16;

struct Aligned;

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

/// Returns the name of the grouped type in `blocks.cuh` and `dots.cuh`, if rows of `n` elements consist of groups.
pub(super) fn kernel_type(ty: GgmlType, n: usize) -> Option<&'static str> {
    let name = match ty {
        GgmlType::Q5_0 => "q5_0_x8",
        GgmlType::Q3_K => "q3_K_x8",
        GgmlType::Q6_K => "q6_K_x8",
        _ => return None,
    };
    n.is_multiple_of(BLOCKS * ty.block_size()).then_some(name)
}

/// Returns true if rows of `n` elements are padded.
fn is_padded(ty: GgmlType, n: usize) -> bool {
    let is_unaligned = |bytes: usize| !bytes.is_multiple_of(ALIGNMENT);
    ty.is_quantized() && ty.row_header() == 0 && ty.row_bytes(n).is_some_and(is_unaligned)
}

impl Repack for Aligned {
    fn name(&self) -> &'static str {
        "aligned"
    }

    fn accepts(&self, ty: GgmlType, [n, ..]: [usize; 4]) -> bool {
        kernel_type(ty, n).is_some() || is_padded(ty, n)
    }

    fn group_rows(&self) -> usize {
        1
    }

    fn group_bytes(&self, ty: GgmlType, n: usize) -> usize {
        (n / ty.block_size() * ty.block_bytes()).next_multiple_of(ALIGNMENT)
    }

    fn pack(&self, ty: GgmlType, n: usize, rows: &[u8], group: &mut [u8]) {
        if is_padded(ty, n) {
            group[..rows.len()].copy_from_slice(rows);
            group[rows.len()..].fill(0);
            return;
        }
        let (block, eight) = (ty.block_bytes(), BLOCKS * ty.block_bytes());
        for (from, to) in rows.chunks_exact(eight).zip(group.chunks_exact_mut(eight)) {
            for (i, from) in from.chunks_exact(block).enumerate() {
                for r in runs(ty) {
                    to[r.to + i * r.apart..][..r.len].copy_from_slice(&from[r.from..][..r.len]);
                }
            }
        }
    }

    fn unpack_row(&self, ty: GgmlType, n: usize, group: &[u8], _: usize, row: &mut [u8]) {
        if is_padded(ty, n) {
            row.copy_from_slice(&group[..row.len()]);
            return;
        }
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
    fn rows_are_aligned_and_unpacked() {
        for &ty in GgmlType::ALL {
            for blocks in [16, 15, 2] {
                let n = blocks * ty.block_size();
                let bytes = ty.row_bytes(n).expect("rows are whole blocks");
                let is_grouped = kernel_type(ty, n).is_some();
                assert_eq!(is_grouped, !runs(ty).is_empty() && blocks == 16, "{ty}");
                let is_aligned = bytes.is_multiple_of(ALIGNMENT) || !ty.is_quantized() || ty.row_header() > 0;
                assert_eq!(Aligned.accepts(ty, [n, 3, 1, 1]), is_grouped || !is_aligned, "{ty}");
                if is_aligned && !is_grouped {
                    continue;
                }
                let row: Vec<u8> = (0..bytes).map(|i| (i * 31 + i / 250) as u8).collect();
                let (mut packed, mut back) = (vec![1; Aligned.group_bytes(ty, n)], vec![0; bytes]);
                Aligned.pack(ty, n, &row, &mut packed);
                Aligned.unpack_row(ty, n, &packed, 0, &mut back);
                assert_eq!(packed.len(), bytes.next_multiple_of(ALIGNMENT), "{ty}");
                assert!(row == back && row != packed, "{ty}");
                assert!(packed[bytes..].iter().all(|byte| *byte == 0), "{ty}");
            }
        }
    }
}
