//! Tests of the scalar decoders and encoders against recorded blocks (`tests/data/quants`).

use super::*;
use crate::layout::block::{Block, Quantize};
use crate::{can_dequantize, can_quantize, dequantize_row, quantize_row};

fn fixture(name: &str) -> Vec<u8> {
    let path = crate::tests::root::root().join("tests/data/quants").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn floats(name: &str) -> Vec<f32> {
    fixture(name)
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

pub(crate) type DequantizeRow = fn(&[u8], &mut [f32]);

/// Returns all types with their scalar decoders.
pub(crate) fn scalar_decoders() -> Vec<(GgmlType, DequantizeRow)> {
    fn dequantize<B: Block>(src: &[u8], dst: &mut [f32]) {
        let blocks: &[B] = bytemuck::cast_slice(src);
        for (block, out) in blocks.iter().zip(dst.chunks_exact_mut(B::TYPE.block_size())) {
            block.dequantize(out);
        }
    }
    macro_rules! decoders {
        (() $( $block:ident $quantize:tt $unpack:tt $interleave:tt; )*) => { vec![ $( ($block::TYPE, dequantize::<$block> as DequantizeRow) ),* ] };
    }
    for_each_block!(decoders!())
}

pub(crate) type QuantizeRow = fn(&[f32], &mut [u8]);

/// Returns the types that can be quantized, with their scalar encoders.
pub(crate) fn scalar_encoders() -> Vec<(GgmlType, QuantizeRow)> {
    fn quantize<B: Quantize>(src: &[f32], dst: &mut [u8]) {
        let blocks: &mut [B] = bytemuck::cast_slice_mut(dst);
        for (x, block) in src.chunks_exact(B::TYPE.block_size()).zip(blocks) {
            *block = B::quantize(x);
        }
    }
    macro_rules! encoders {
        (() $( $block:ident [$($can:ident)?] $unpack:tt $interleave:tt; )*) => {
            [$( encoders!($block $($can)?) ),*].into_iter().flatten().collect()
        };
        ($block:ident quantize) => { Some(($block::TYPE, quantize::<$block> as QuantizeRow)) };
        ($block:ident) => { None };
    }
    for_each_block!(encoders!())
}

/// Yields the types with recorded blocks: all except F32.
fn recorded() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL
        .iter()
        .copied()
        .filter(|&ty| can_dequantize(ty) && ty != GgmlType::F32)
}

/// Returns blocks of 4096 elements, and their recorded values.
fn recorded_blocks(ty: GgmlType) -> (Vec<u8>, Vec<f32>) {
    let of_file = crate::tests::recorded_type(ty);
    (crate::tests::blocks(ty), floats(&format!("{of_file}.f32")))
}

fn squared_error(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
}

#[test]
fn scalar_decoders_match_recorded_floats_bitwise() {
    for (ty, dequantize) in scalar_decoders().into_iter().filter(|(ty, _)| *ty != GgmlType::F32) {
        let (blocks, expected) = recorded_blocks(ty);
        let mut out = vec![f32::NAN; expected.len()];
        dequantize(&blocks, &mut out);
        for (i, (out, expected)) in out.iter().zip(&expected).enumerate() {
            assert_eq!(
                out.to_bits(),
                expected.to_bits(),
                "{ty} element {i}: {out} instead of {expected}"
            );
        }
    }
}

#[test]
fn dequantize_row_accepts_unaligned_blocks() {
    for ty in recorded() {
        let (blocks, expected) = recorded_blocks(ty);
        let mut shifted = vec![0; blocks.len() + 1];
        shifted[1..].copy_from_slice(&blocks);
        let mut out = vec![f32::NAN; expected.len()];
        dequantize_row(ty, &shifted[1..], &mut out);
        assert_eq!(out, expected, "{ty}");
    }
}

/// Checks rows of files whose scale is before the blocks.
#[test]
fn rows_with_header_match_recorded_floats_bitwise() {
    for ty in GgmlType::ALL.iter().copied().filter(|ty| ty.row_header() > 0) {
        let (rows, expected) = (fixture(&format!("{ty}.blocks")), floats(&format!("{ty}.f32")));
        let row_bytes = ty.row_bytes(512).unwrap();
        assert_eq!(rows.len() / row_bytes * 512, expected.len());
        for (i, (row, expected)) in rows.chunks_exact(row_bytes).zip(expected.chunks_exact(512)).enumerate() {
            let mut out = [f32::NAN; 512];
            dequantize_row(ty, row, &mut out);
            assert_eq!(
                out.map(f32::to_bits).as_slice(),
                expected.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                "{ty} row {i}"
            );
        }
    }
}

#[test]
fn quantizers_match_recorded_error() {
    let source = floats("source.f32");
    for ty in recorded().filter(|&ty| can_quantize(ty)) {
        let theirs = squared_error(&source, &floats(&format!("{ty}.f32")));
        let mut blocks = vec![0; ty.row_bytes(source.len()).unwrap()];
        quantize_row(ty, &source, &mut blocks);
        let mut out = vec![f32::NAN; source.len()];
        dequantize_row(ty, &blocks, &mut out);
        let ours = squared_error(&source, &out);
        assert!(
            ours <= theirs,
            "{ty}: squared error {ours} exceeds the recorded {theirs}"
        );
    }
}

/// Returns the size of the scales and minimums at the start of a block. Its elements follow.
fn scale_bytes(ty: GgmlType) -> usize {
    match ty {
        GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 | GgmlType::IQ4_NL => 2,
        GgmlType::Q4_1 | GgmlType::Q5_1 => 4,
        _ => panic!("{ty} has no known position of scales"),
    }
}

/// Returns every value that an element can have in a block with these scales, using blocks whose elements are
/// one byte repeated.
fn values_of(ty: GgmlType, scales: &[u8]) -> Vec<f32> {
    let mut values = Vec::new();
    for byte in 0..=255 {
        let mut block = vec![byte; ty.block_bytes()];
        block[..scales.len()].copy_from_slice(scales);
        let mut out = vec![f32::NAN; ty.block_size()];
        dequantize_row(ty, &block, &mut out);
        values.extend(out);
    }
    values
}

/// Checks that every element becomes the nearest value that its block's scales can represent, at the same
/// position.
#[test]
fn quantizers_choose_nearest_value() {
    let source = floats("source.f32");
    for (ty, quantize) in scalar_encoders().into_iter().filter(|(ty, _)| ty.block_size() > 1) {
        let mut blocks = vec![0; ty.row_bytes(source.len()).unwrap()];
        quantize(&source, &mut blocks);
        let mut out = vec![f32::NAN; source.len()];
        dequantize_row(ty, &blocks, &mut out);
        let n = ty.block_size();
        for (i, block) in blocks.chunks_exact(ty.block_bytes()).enumerate() {
            let (x, found) = (&source[i * n..(i + 1) * n], &out[i * n..(i + 1) * n]);
            let values = values_of(ty, &block[..scale_bytes(ty)]);
            let largest = values.iter().fold(0f32, |max, v| max.max(v.abs()));
            for (x, found) in x.iter().zip(found) {
                let nearest = values.iter().map(|v| (x - v).abs()).fold(f32::INFINITY, f32::min);
                // Ties may round in either direction.
                let error = (x - found).abs();
                assert!(
                    error <= nearest + 1e-6 * largest,
                    "{ty} block {i}: {x} was quantized to {found}"
                );
            }
        }
    }
}

/// Checks the types without blocks: F32 is exact, F16 and BF16 are within half a unit in the last place.
#[test]
fn plain_types_round_to_nearest() {
    let source = floats("source.f32");
    for (ty, quantize) in scalar_encoders().into_iter().filter(|(ty, _)| ty.block_size() == 1) {
        let mut bytes = vec![0; ty.row_bytes(source.len()).unwrap()];
        quantize(&source, &mut bytes);
        let mut out = vec![f32::NAN; source.len()];
        dequantize_row(ty, &bytes, &mut out);
        let half_of_the_last_place = match ty {
            GgmlType::F32 => 0.0,
            GgmlType::F16 => 2f32.powi(-11),
            _ => 2f32.powi(-8),
        };
        for (x, found) in source.iter().zip(&out) {
            // Below 2^-14, the unit in the last place of F16 is constant.
            let size = if ty == GgmlType::F16 {
                x.abs().max(2f32.powi(-14))
            } else {
                x.abs()
            };
            assert!(
                (x - found).abs() <= half_of_the_last_place * size,
                "{ty}: {x} was rounded to {found}"
            );
        }
    }
}

#[test]
fn quantizers_accept_any_float() {
    for ty in GgmlType::ALL.iter().copied().filter(|&ty| can_quantize(ty)) {
        for x in [0.0, 1e-30, -1e30, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let row = [x; 32];
            let mut blocks = vec![0; ty.row_bytes(row.len()).unwrap()];
            quantize_row(ty, &row, &mut blocks);
            let mut out = [f32::NAN; 32];
            dequantize_row(ty, &blocks, &mut out);
            assert!(x != 0.0 || out == row, "{ty}: zeros were quantized to {out:?}");
        }
    }
}

#[test]
#[should_panic(expected = "q4_0: expected whole rows, found 18 bytes for 31 elements")]
fn dequantize_row_rejects_length_mismatch() {
    dequantize_row(GgmlType::Q4_0, &[0; 18], &mut [0.0; 31]);
}

/// Returns the FNV-1a hash of the bytes of a table.
fn checksum(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Checks the grids against checksums of the format's complete tables, because the recorded blocks do not use
/// every point. The IQ1 checksum is of the table with 1 added to each element.
#[test]
fn grids_match_format_checksums() {
    let of_points = |grid: &[u64]| checksum(grid.iter().flat_map(|point| point.to_le_bytes()));
    let of_half_points = |grid: &[u32]| checksum(grid.iter().flat_map(|point| point.to_le_bytes()));
    assert_eq!(of_points(&grids::IQ1), 0xec28_b636_8f0c_62e0);
    assert_eq!(of_points(&grids::IQ2_XXS), 0xbb4e_e025_b5ac_6e8e);
    assert_eq!(of_points(&grids::IQ2_XS), 0xc9b1_ee61_e799_09bd);
    assert_eq!(of_points(&grids::IQ2_S), 0x123e_dd38_a3b6_2b90);
    assert_eq!(of_half_points(&grids::IQ3_XXS), 0xdfa5_dc83_d6a1_55d5);
    assert_eq!(of_half_points(&grids::IQ3_S), 0xfa37_020c_25b4_4829);
}

#[test]
fn even_signs_have_even_parity() {
    for bits in 0..128 {
        let signs = grids::even_signs(bits << 7 | bits << 21 | 0xf000_0000).to_le_bytes();
        assert_eq!([signs[0], signs[2]], [0, 0]);
        assert_eq!(signs[1], signs[3]);
        assert_eq!(u32::from(signs[1]) & 127, bits);
        assert!(signs[1].count_ones().is_multiple_of(2), "{bits:#x}: {:#x}", signs[1]);
    }
}
