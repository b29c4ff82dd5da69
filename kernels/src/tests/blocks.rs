//! Tests of arbitrary bytes for every type: any bytes are valid blocks, finite if their scales are, and every
//! kernel decodes them like the definition.

use super::*;
use crate::interleaved::{GROUP_ROWS, can_interleave, deinterleave, interleave, interleaved_bytes};

/// Returns random bytes based on [`noise`].
fn random_bytes(seed: u64, n: usize) -> Vec<u8> {
    noise(seed, n).into_iter().map(|x| ((x + 1.0) * 128.0) as u8).collect()
}

/// Returns (byte, mask) pairs of bits that are set in every infinite or NaN scale of a block. The bit is the lowest
/// exponent bit of an f16. For types whose largest finite values are too large to add, it is the highest exponent
/// bit.
pub(super) fn bits_of_infinity(ty: GgmlType) -> &'static [(usize, u8)] {
    use GgmlType::*;
    match ty {
        F32 => &[(3, 0x40)],
        // An f32, multiplied by at most 127 * 121.
        IQ4_KS_D | IQ5_KS_D => &[(3, 0x40)],
        BF16 => &[(1, 0x40)],
        MXFP4 => &[(0, 0x80)],
        // These scales have no infinity, and their single NaN is treated as zero.
        NVFP4 => &[],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[(1, 4), (3, 4)],
        F16 | Q4_0 | Q5_0 | Q8_0 | Q1_0 | Q2_0 => &[(1, 4)],
        IQ1_S | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_NL | IQ4_XS => &[(1, 4)],
        IQ4_K | IQ5_K | IQ6_K => &[(1, 4)],
        // An f16 in the top nibbles of four words; the lowest exponent bit is in the third.
        IQ1_M => &[(53, 0x40)],
        Q2_K => &[(81, 4), (83, 4)],
        Q3_K => &[(109, 4)],
        Q6_K => &[(209, 4)],
        TQ1_0 => &[(53, 4)],
        TQ2_0 => &[(65, 4)],
        _ => panic!("{ty} has no known position of scales"),
    }
}

/// Kinds of scales that tests need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Subnormal,
    Infinite,
    Nan,
}

impl Scale {
    /// Returns an f16 of this kind with the sign, and for subnormal scales the mantissa, of `half`.
    fn of(self, half: u16) -> u16 {
        match self {
            Scale::Subnormal => half & 0x83ff | 1,
            Scale::Infinite => half & 0x8000 | 0x7c00,
            Scale::Nan => half & 0x8000 | 0x7e00,
        }
    }

    /// Returns an f32 of this kind with the sign, and for subnormal scales the mantissa, of `word`.
    fn of_f32(self, word: u32) -> u32 {
        match self {
            Scale::Subnormal => word & 0x807f_ffff | 1,
            Scale::Infinite => word & 0x8000_0000 | 0x7f80_0000,
            Scale::Nan => word & 0x8000_0000 | 0x7fc0_0000,
        }
    }
}

/// Replaces the scales of a block. Returns false if the type has no scale of this kind.
pub(super) fn set_scales(ty: GgmlType, block: &mut [u8], scale: Scale) -> bool {
    match ty {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => return false,
        // 8-bit powers of two, and 8-bit floats without an infinity.
        GgmlType::MXFP4 | GgmlType::NVFP4 if scale != Scale::Subnormal => return false,
        GgmlType::MXFP4 => block[0] &= 1,
        GgmlType::NVFP4 => block[..4].iter_mut().for_each(|scale| *scale = *scale & 7 | 1),
        GgmlType::IQ4_KS_D | GgmlType::IQ5_KS_D => {
            let word = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
            block[..4].copy_from_slice(&scale.of_f32(word).to_le_bytes());
        }
        // An f16 in the top nibbles of four words.
        GgmlType::IQ1_M => {
            let nibbles = [49, 51, 53, 55];
            let half = nibbles
                .iter()
                .rev()
                .fold(0, |half, &at| half << 4 | u16::from(block[at] >> 4));
            for (i, at) in nibbles.into_iter().enumerate() {
                block[at] = block[at] & 15 | ((scale.of(half) >> (4 * i)) as u8) << 4;
            }
        }
        _ => {
            for &(at, _) in bits_of_infinity(ty) {
                let half = u16::from_le_bytes([block[at - 1], block[at]]);
                block[at - 1..=at].copy_from_slice(&scale.of(half).to_le_bytes());
            }
        }
    }
    true
}

/// Returns blocks with subnormal scales and their dequantized values, or `None` if the type has no scales.
pub(super) fn with_subnormal_scales(ty: GgmlType, mut blocks: Vec<u8>) -> Option<(Vec<u8>, Vec<f32>)> {
    let mut all = blocks.chunks_mut(ty.block_bytes());
    if !all.all(|block| set_scales(ty, block, Scale::Subnormal)) {
        return None;
    }
    let (_, dequantize) = scalar_decoders().into_iter().find(|(of, _)| *of == ty)?;
    let mut floats = vec![f32::NAN; blocks.len() / ty.block_bytes() * ty.block_size()];
    dequantize(&blocks, &mut floats);
    assert!(
        floats.iter().all(|x| x.is_finite()) && floats.iter().any(|x| *x != 0.0),
        "{ty}"
    );
    Some((blocks, floats))
}

/// Yields copies of the weights in which the first or last block of row `i` has an infinite or NaN scale.
/// Types without such scales yield nothing.
pub(super) fn spoiled(ty: GgmlType, blocks: &[u8], i: usize, k: usize) -> impl Iterator<Item = Vec<u8>> {
    let (stride, bytes) = (ty.row_bytes(k).unwrap(), ty.block_bytes());
    let ways = [0, stride - bytes]
        .into_iter()
        .flat_map(|at| [(at, Scale::Infinite), (at, Scale::Nan)]);
    ways.filter_map(move |(at, scale)| {
        let mut blocks = blocks.to_vec();
        set_scales(ty, &mut blocks[i * stride + at..][..bytes], scale).then_some(blocks)
    })
}

/// Returns random blocks of `n` elements with finite scales.
fn random_blocks(ty: GgmlType, seed: u64, n: usize) -> Vec<u8> {
    let mut bytes = random_bytes(seed, ty.row_bytes(n).unwrap());
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for &(at, mask) in bits_of_infinity(ty) {
            block[at] &= !mask;
        }
    }
    bytes
}

#[test]
fn decoders_cover_all_fixture_types() {
    let folder = super::root::root().join("tests/data/quants");
    let mut n = 0;
    for file in std::fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|e| e == "blocks") {
            let ty = GgmlType::from_name(path.file_stem().unwrap().to_str().unwrap()).unwrap();
            assert!(crate::can_decode(ty), "{ty}");
            n += 1;
        }
    }
    assert_eq!(n, 32);
}

#[test]
fn decoders_finite_scales_give_finite_values() {
    const N: usize = 1 << 16;
    for (ty, dequantize) in scalar_decoders() {
        let blocks = random_blocks(ty, 11, N);
        let mut expected = vec![f32::NAN; N];
        dequantize(&blocks, &mut expected);
        let infinite = expected.iter().position(|x| !x.is_finite());
        assert_eq!(infinite, None, "{ty}: index of the first non-finite element");
        assert!(expected.iter().any(|&x| x != 0.0), "{ty}: all elements are zero");
        for kernels in all_kernels() {
            let mut out = vec![f32::NAN; N];
            // SAFETY: the blocks have `n` elements, and the CPU supports `kernels`.
            unsafe { (kernels.for_type(ty).dequantize)(blocks.as_ptr(), out.as_mut_ptr(), N) };
            let differing = out.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(differing, None, "{:?} {ty}: index of the first difference", kernels.isa);
        }
    }
}

#[test]
fn decoders_accept_any_bytes() {
    const N: usize = 1 << 12;
    for (ty, dequantize) in scalar_decoders() {
        let n_bytes = ty.row_bytes(N).unwrap();
        for blocks in [vec![0; n_bytes], vec![0xff; n_bytes], random_bytes(12, n_bytes)] {
            let mut expected = vec![0.0; N];
            dequantize(&blocks, &mut expected);
            for kernels in all_kernels() {
                let mut out = vec![0.0; N];
                // SAFETY: the blocks have `n` elements, and the CPU supports `kernels`.
                unsafe { (kernels.for_type(ty).dequantize)(blocks.as_ptr(), out.as_mut_ptr(), N) };
                let same = |(a, b): (&f32, &f32)| a == b || a.is_nan() && b.is_nan();
                let differing = out.iter().zip(&expected).position(|pair| !same(pair));
                assert_eq!(differing, None, "{:?} {ty}: index of the first difference", kernels.isa);
            }
        }
    }
}

#[test]
fn interleave_preserves_weights_of_any_bytes() {
    const K: usize = 512;
    for (ty, dequantize) in scalar_decoders() {
        if !can_interleave(ty, K) {
            continue;
        }
        let rows = random_blocks(ty, 13, GROUP_ROWS * K);
        let mut group = vec![0; interleaved_bytes(ty, K)];
        interleave(ty, K, &rows, &mut group);
        let mut back = vec![0; rows.len()];
        deinterleave(ty, K, &group, &mut back);
        let weights = |rows: &[u8]| {
            let mut out = vec![f32::NAN; GROUP_ROWS * K];
            dequantize(rows, &mut out);
            out
        };
        assert!(weights(&back) == weights(&rows), "{ty}");
        // In TQ1_0, several bytes represent the same digits.
        if ty == GgmlType::TQ1_0 {
            let mut again = group.clone();
            interleave(ty, K, &back, &mut again);
            assert!(again == group, "{ty}");
        } else {
            assert!(back == rows, "{ty}");
        }
    }
}

#[test]
fn matmul_random_blocks_match_f64() {
    const K: usize = 512;
    for (ty, dequantize) in scalar_decoders() {
        for seed in 20..24 {
            let blocks = random_blocks(ty, seed, 8 * K);
            let mut weights = vec![f32::NAN; 8 * K];
            dequantize(&blocks, &mut weights);
            let weights = Weights {
                ty,
                blocks: &blocks,
                floats: &weights,
            };
            for kernels in all_kernels() {
                check_product(kernels, &weights, 7, K, 1, false);
                check_product(kernels, &weights, 8, K, 5, false);
            }
        }
    }
}

#[test]
fn set_scales_supports_most_types() {
    let count = |scale| {
        let can = |ty: GgmlType| {
            let mut block = blocks(ty)[..ty.block_bytes()].to_vec();
            set_scales(ty, &mut block, scale)
        };
        scalar_decoders().into_iter().filter(|(ty, _)| can(*ty)).count()
    };
    assert_eq!([Scale::Subnormal, Scale::Infinite, Scale::Nan].map(count), [30, 28, 28]);
    for (ty, dequantize) in scalar_decoders() {
        for bad in spoiled(ty, &blocks(ty), 0, 256.max(ty.block_size())) {
            let mut floats = vec![0.0; 4096];
            dequantize(&bad, &mut floats);
            assert!(floats.iter().any(|x| !x.is_finite()), "{ty}");
        }
    }
}

#[test]
fn matmul_f32_handles_subnormal_scales() {
    const K: usize = 512;
    for (ty, _) in scalar_decoders() {
        let Some((blocks, floats)) = with_subnormal_scales(ty, blocks(ty).repeat(5)) else {
            continue;
        };
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        for kernels in all_kernels() {
            for (m, n, allow_reassociation) in [(7, 1, false), (17, 5, false), (33, 33, true)] {
                check_product(kernels, &weights, m, K, n, allow_reassociation);
            }
        }
    }
}

#[test]
fn matmul_f32_propagates_non_finite_scales() {
    const K: usize = 512;
    for (ty, _) in scalar_decoders() {
        for bad in spoiled(ty, &blocks(ty).repeat(3), 2, K) {
            let weights = Weights {
                ty,
                blocks: &bad,
                floats: &[],
            };
            for kernels in all_kernels() {
                for (n, allow_reassociation) in [(1, false), (5, false), (33, true)] {
                    let out = product(kernels, &weights, 5, K, n, allow_reassociation, 5);
                    for (column, i) in (0..n).flat_map(|j| (0..5).map(move |i| (j, i))) {
                        let x = out[column * 7 + i];
                        assert_eq!(
                            x.is_finite(),
                            i != 2,
                            "{:?} {ty}: row {i} column {column}: {x}",
                            kernels.isa
                        );
                    }
                }
            }
        }
    }
}

/// Checks weights of floating-point types, including float panels.
#[test]
fn matmul_f32_propagates_non_finite_weights() {
    const K: usize = 37;
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
        let bytes = ty.block_bytes();
        for (at, bad) in [(0, f32::INFINITY), (K - 1, f32::NAN), (16, f32::NEG_INFINITY)] {
            let mut blocks = blocks(ty);
            crate::quantize_row(ty, &[bad], &mut blocks[(2 * K + at) * bytes..][..bytes]);
            let weights = Weights {
                ty,
                blocks: &blocks,
                floats: &[],
            };
            for kernels in all_kernels() {
                for (n, allow_reassociation) in [(1, false), (5, false), (33, true)] {
                    let out = product(kernels, &weights, 17, K, n, allow_reassociation, 17);
                    for (j, row) in out.chunks(19).enumerate() {
                        let is_expected = row[..17].iter().enumerate().all(|(i, x)| x.is_finite() == (i != 2));
                        assert!(
                            is_expected,
                            "{:?} {ty}, column {j}, {bad} at {at}: {row:?}",
                            kernels.isa
                        );
                    }
                }
            }
        }
    }
}
