//! Which cache lines are asked for ahead of a product.

use std::collections::HashSet;
use std::ops::Range;

use super::*;
use crate::generic::integers::CHUNK;
use crate::generic::weight_prefetch::NextWeights;
use crate::generic::pack::{LANES, RowLayout, WeightRows};
use crate::interleaved::interleaved_bytes;
use crate::prefetch::CACHE_LINE;

const K: usize = 5 * CHUNK;

/// 32 rows in either layout.
fn both_layouts() -> [WeightRows; 2] {
    let kernels = all_kernels().next().expect("the scalar kernels");
    let ty = GgmlType::Q4_K;
    let of_type = kernels.int.find(ty).expect("a type of integers");
    let groups = of_type.groups.as_ref().expect("a type that can be interleaved");
    let layouts = [
        (
            RowLayout::Rows(of_type.unpack),
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
        integers: of_type.integers,
        layout,
    })
}

/// The bytes of some chunks of the rows from row 8 on.
fn places(w: &WeightRows, chunks: &Range<usize>) -> impl Iterator<Item = usize> {
    let (stride, lanes) = match w.layout {
        RowLayout::Rows(_) => (w.row_stride, 1),
        RowLayout::Groups(_) => (LANES * w.row_stride, LANES),
    };
    let of_chunk = lanes * w.chunk_bytes;
    let (first, bytes) = (chunks.start * of_chunk, chunks.len() * of_chunk);
    (8 / lanes..24 / lanes).flat_map(move |piece| piece * stride + first..piece * stride + first + bytes)
}

#[test]
fn each_line_of_the_next_weights_is_asked_for_once() {
    for w in both_layouts() {
        for chunks in [0..1, 3..4, 1..4] {
            for times in [1, 5, 6, 86, 1000] {
                let mut next = NextWeights::new(&w, 8, chunks.clone(), 16, times);
                let mut starts = HashSet::new();
                for _ in 0..times {
                    next.for_each_next(|line| {
                        assert!(starts.insert(line.addr()), "a line that was asked for before");
                    });
                }
                next.for_each_next(|_| panic!("lines are left after {times} times"));
                let asked: HashSet<usize> = starts.iter().map(|start| start / CACHE_LINE).collect();
                assert!(places(&w, &chunks).all(|place| asked.contains(&(place / CACHE_LINE))));
            }
        }
    }
}
