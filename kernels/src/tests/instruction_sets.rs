//! Tests that instruction sets that differ only in their integer instructions give the same bits, because
//! integer sums are exact.

use super::panels::{Rows, filled, product_of};
use super::*;
use crate::ActivationForm;
use crate::interleaved::{GROUP_ROWS, can_interleave, interleave, interleaved_bytes};

/// Number of weight rows: an odd number of groups, because some kernels multiply two at a time.
const ROWS: usize = 5 * GROUP_ROWS;

/// Maximum elements of a row: several chunks.
const MOST: usize = 1024;

/// Returns blocks with ordinary weights and with the largest and smallest ones.
fn kinds_of_blocks(ty: GgmlType) -> impl Iterator<Item = Vec<u8>> {
    let blocks = blocks(ty).repeat(ROWS * MOST / 4096);
    let extremes = [0x00, 0xff, 0xf0, 0x0f, 0x55, 0xaa, 0x7f, 0x80];
    let extremes = extremes.map(|pattern| filled(ty, &blocks, pattern));
    std::iter::once(blocks).chain(extremes)
}

/// Returns 9 rows of activations. Five have a scale of 1 and integers whose byte parts are -128 or 127 or
/// alternate in sign; the others are noise.
fn activations(k: usize) -> Vec<f32> {
    let mut x = noise(61, 9 * k);
    let integers = [
        [-32639, -32639],
        [32639, 32639],
        [-32639, 32639],
        [127 * 256 - 128, -126 * 256 - 128],
        [127, -128],
    ];
    for (row, integers) in x.chunks_mut(k).zip(integers) {
        for (i, x) in row.iter_mut().enumerate() {
            *x = if i == 0 { 32639 } else { integers[i % 2] } as f32;
        }
    }
    x
}

/// Returns the first rows of weights in each layout that the type has.
fn layouts(ty: GgmlType, k: usize, blocks: &[u8]) -> Vec<(Vec<u8>, WeightLayout)> {
    let stride = ty.row_bytes(k).unwrap();
    let rows = blocks[..ROWS * stride].to_vec();
    let mut layouts = Vec::new();
    if can_interleave(ty, k) {
        let bytes = interleaved_bytes(ty, k);
        let mut groups = vec![0; ROWS / GROUP_ROWS * bytes];
        for (rows, group) in rows.chunks(GROUP_ROWS * stride).zip(groups.chunks_mut(bytes)) {
            interleave(ty, k, rows, group);
        }
        layouts.push((groups, WeightLayout::Interleaved));
    }
    layouts.push((rows, WeightLayout::Rows { stride }));
    layouts
}

/// Yields the kernels that share their f32 operations in integer matmuls with AVX2, [`Isa::Avx2`] first.
fn integer_kernels() -> Vec<&'static Kernels> {
    all_kernels().filter(|kernels| kernels.isa >= Isa::Avx2).collect()
}

fn check(ty: GgmlType, form: ActivationForm, k: usize) {
    for blocks in kinds_of_blocks(ty) {
        for (w, layout) in layouts(ty, k, &blocks) {
            for columns in 1..=9 {
                let bits = |kernels: &'static Kernels| {
                    let x = Rows::new(kernels, form, k, &activations(k));
                    let out = product_of(kernels, (ty, &w, layout), ROWS, &x, ROWS, columns);
                    out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                };
                let all: Vec<(Isa, Vec<u32>)> = integer_kernels()
                    .into_iter()
                    .map(|kernels| (kernels.isa, bits(kernels)))
                    .collect();
                for (isa, bits) in all.iter().skip(1) {
                    assert!(
                        *bits == all[0].1,
                        "{isa:?} {ty} {form:?} {layout:?} k {k}, {columns} columns"
                    );
                }
            }
        }
    }
}

#[test]
fn integer_matmul_bits_match_across_isas() {
    for (ty, k) in scalar_decoders()
        .into_iter()
        .flat_map(|(ty, _)| [32, 288, 512, MOST].map(|k| (ty, k)))
    {
        if kernels_of(Isa::Scalar).int.find(ty).is_none() || k % ty.block_size() != 0 {
            continue;
        }
        check(ty, ActivationForm::I16Row, k);
        check(ty, ActivationForm::U8Chunk, k);
    }
}
