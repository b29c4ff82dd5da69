//! Instruction sets that only differ in their integers give the same bits: sums of integers are exact.

use super::panels::{Rows, filled, product_of};
use super::*;
use crate::ActivationForm;
use crate::interleaved::{GROUP_ROWS, can_interleave, interleave, interleaved_bytes};

/// Four groups, which some kernels take at a time, and one that is left over.
const ROWS: usize = 5 * GROUP_ROWS;

/// Most elements of a row: so many that four groups are taken at a time with few columns.
const MOST: usize = 1024;

/// Blocks of a type with weights of all kinds, and with the largest and smallest ones.
fn kinds_of_blocks(ty: GgmlType) -> impl Iterator<Item = Vec<u8>> {
    let blocks = blocks(ty).repeat(ROWS * MOST / 4096);
    let extremes = [0x00, 0xff, 0xf0, 0x0f, 0x55, 0xaa, 0x7f, 0x80];
    let extremes = extremes.map(|pattern| filled(ty, &blocks, pattern));
    std::iter::once(blocks).chain(extremes)
}

/// 9 rows of activations. Five have a scale of 1 and integers whose parts are -128 or 127, or of either sign by turns, the others noise.
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

/// The first rows of weights in either layout, as far as the type has it.
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

/// Kernels whose floats are those of AVX2 where integers are involved, [`Isa::Avx2`] first.
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
fn products_of_integers_have_the_same_bits() {
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
