//! Tests of the cache lines that a matmul prefetches.

use std::collections::HashSet;
use std::ops::Range;

use super::*;
use crate::generic::pack::{RowLayout, WeightRows};
use crate::generic::weight_prefetch::WeightPrefetcher;
use crate::interleaved::interleaved_bytes;
use crate::layout::groups::LANES;
use crate::layout::runs::CHUNK;
use crate::prefetch::CACHE_LINE;

const K: usize = 5 * CHUNK;

/// Returns 32 rows in each layout. The pointer is never dereferenced.
fn both_layouts() -> [WeightRows; 2] {
    let kernels = all_kernels().next().expect("all_kernels includes the scalar kernels");
    let ty = GgmlType::Q4_K;
    let type_kernels = kernels.int.find(ty).expect("Q4_K has integer kernels");
    let groups = type_kernels.groups.as_ref().expect("Q4_K can be interleaved");
    let layouts = [
        (
            RowLayout::Rows(type_kernels.unpack),
            CHUNK / ty.block_size() * ty.block_bytes(),
        ),
        (RowLayout::Groups(groups.fill), interleaved_bytes(ty, CHUNK) / LANES),
    ];
    layouts.map(|(layout, chunk_bytes)| WeightRows {
        ty,
        w: std::ptr::null(),
        row_stride: K / CHUNK * chunk_bytes,
        m: 32,
        k: K,
        chunk_bytes,
        integers: type_kernels.integers,
        layout,
    })
}

/// Yields the byte offsets of some chunks of rows 8..24.
fn offsets(w: &WeightRows, chunks: &Range<usize>) -> impl Iterator<Item = usize> {
    let (stride, lanes) = match w.layout {
        RowLayout::Rows(_) => (w.row_stride, 1),
        RowLayout::Groups(_) => (LANES * w.row_stride, LANES),
    };
    let of_chunk = lanes * w.chunk_bytes;
    let (first, bytes) = (chunks.start * of_chunk, chunks.len() * of_chunk);
    (8 / lanes..24 / lanes).flat_map(move |piece| piece * stride + first..piece * stride + first + bytes)
}

#[test]
fn prefetcher_requests_each_line_once() {
    for w in both_layouts() {
        for chunks in [0..1, 3..4, 1..4] {
            for times in [1, 5, 6, 86, 1000] {
                let mut next = WeightPrefetcher::new(&w, 8, chunks.clone(), 16, times);
                let mut starts = HashSet::new();
                for _ in 0..times {
                    next.next_lines(|line| {
                        assert!(starts.insert(line.addr()), "the line was prefetched before");
                    });
                }
                next.next_lines(|_| panic!("lines remain after {times} calls"));
                let requested: HashSet<usize> = starts.iter().map(|start| start / CACHE_LINE).collect();
                assert!(offsets(&w, &chunks).all(|offset| requested.contains(&(offset / CACHE_LINE))));
            }
        }
    }
}
