//! Tests of every kernel of every instruction set that this CPU supports, against double-precision code on
//! shared data.

use crate::dispatch::{Kernels, kernels_of};
use crate::generic::float_panels::is_for;
use crate::generic::products::Product;
use crate::matmul::matmul_with;
use crate::quants::{scalar_decoders, scalar_encoders};
use crate::{Activations, GgmlType, Isa, MatMul, WeightLayout, matmul_scratch};

/// Lengths around the sizes of registers and unrolled loops.
const LENGTHS: [usize; 18] = [0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 129, 577, 1023];

fn all_kernels() -> impl Iterator<Item = &'static Kernels> {
    let available = Isa::ALL.into_iter().filter(|isa| isa.is_available()).map(kernels_of);
    available.chain(vnni_model())
}

/// Returns the emulated VNNI kernels, which test the VNNI code on CPUs without it.
fn vnni_model() -> Option<&'static Kernels> {
    #[cfg(target_arch = "x86_64")]
    return Isa::Avx2.is_available().then_some(&crate::dispatch::VNNI_MODEL);
    #[cfg(not(target_arch = "x86_64"))]
    None
}

fn fixture(name: &str) -> Vec<u8> {
    let path = root::root().join("tests/data/quants").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns blocks of 4096 elements.
pub(crate) fn blocks(ty: GgmlType) -> Vec<u8> {
    if ty == GgmlType::F32 {
        return fixture("source.f32");
    }
    let of_file = recorded_type(ty);
    let recorded = fixture(&format!("{of_file}.blocks"));
    if of_file == ty {
        return recorded;
    }
    let mut blocks = vec![0; ty.row_bytes(4096).unwrap()];
    crate::rows_in_memory(of_file, 512, &recorded, &mut blocks);
    blocks
}

/// Returns the type of the recorded blocks, in rows of 512 elements if `ty` exists only in memory.
pub(crate) fn recorded_type(ty: GgmlType) -> GgmlType {
    let mut of_files = GgmlType::ALL.iter().copied().filter(|of| of.is_in_files());
    of_files.find(|of| of.in_memory() == ty).unwrap()
}

/// Returns pseudo-random numbers in -1..1 (SplitMix64).
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Converts to double precision.
fn wide(x: &[f32]) -> impl Iterator<Item = f64> + Clone + '_ {
    x.iter().map(|&x| f64::from(x))
}

#[track_caller]
fn assert_close(what: &str, got: f32, expected: f64, magnitude: f64) {
    assert_close_within(what, got, expected, magnitude, 0.0);
}

/// Asserts closeness like [`assert_close`], with the additional tolerance `more`.
fn assert_close_within(what: &str, got: f32, expected: f64, magnitude: f64, more: f64) {
    let error = (f64::from(got) - expected).abs();
    assert!(
        error <= 4e-7 * magnitude + more + 1e-37,
        "{what}: {got} instead of {expected}"
    );
}

#[test]
fn decoders_match_scalar_bitwise() {
    for (ty, dequantize) in scalar_decoders() {
        let blocks = blocks(ty);
        let mut expected = vec![f32::NAN; 4096];
        dequantize(&blocks, &mut expected);
        for kernels in all_kernels() {
            for n in LENGTHS
                .into_iter()
                .chain([256, 4096])
                .filter(|n| n % ty.block_size() == 0)
            {
                let mut out = vec![f32::NAN; n];
                let bytes = &blocks[..ty.row_bytes(n).unwrap()];
                // SAFETY: `bytes` and `out` have `n` elements, and the CPU supports `kernels`.
                unsafe { (kernels.for_type(ty).dequantize)(bytes.as_ptr(), out.as_mut_ptr(), n) };
                // Compared as floats, because 0 and -0 are the same weight.
                let differing = out.iter().zip(&expected).position(|(a, b)| a != b);
                assert_eq!(
                    differing, None,
                    "{:?} {ty} {n}: index of the first difference",
                    kernels.isa
                );
            }
        }
    }
}

/// Compares the encoders of each instruction set with the scalar ones, which have their own tests. F16, BF16,
/// and Q8_0 have vector code; the other types call the scalar encoder.
#[test]
fn encoders_match_scalar_bitwise() {
    let mut x = noise(1, 1024);
    x[..8].copy_from_slice(&[0.0, -0.0, 1e-8, -7e-7, 65519.0, -65520.0, 3e38, 1e-40]);
    for (ty, quantize) in scalar_encoders() {
        for n in LENGTHS
            .into_iter()
            .chain([32, 1024])
            .filter(|n| n % ty.block_size() == 0)
        {
            let mut expected = vec![0xAA; ty.row_bytes(n).unwrap()];
            quantize(&x[..n], &mut expected);
            for kernels in all_kernels() {
                let mut out = vec![0x55; expected.len()];
                // SAFETY: `x` has at least `n` elements and `out` their blocks; the CPU supports `kernels`.
                unsafe { kernels.for_type(ty).quantize.unwrap()(x.as_ptr(), out.as_mut_ptr(), n) };
                assert_eq!(out, expected, "{:?} {ty} {n}", kernels.isa);
            }
        }
    }
}

#[test]
fn matvec_of_one_row_matches_f64() {
    for (ty, dequantize) in scalar_decoders() {
        let blocks = blocks(ty);
        let mut weights = vec![0.0; 4096];
        dequantize(&blocks, &mut weights);
        let x = noise(2, 4096);
        for kernels in all_kernels() {
            for n in LENGTHS
                .into_iter()
                .chain([256, 768, 4096])
                .filter(|n| n % ty.block_size() == 0)
            {
                let what = format!("{:?} {ty} {n}", kernels.isa);
                let products = weights
                    .iter()
                    .zip(&x)
                    .take(n)
                    .map(|(w, x)| f64::from(*w) * f64::from(*x));
                let magnitude: f64 = products.clone().map(f64::abs).sum();
                let mut dot = f32::NAN;
                let product = Product {
                    w: blocks.as_ptr(),
                    row_stride: ty.row_bytes(n).unwrap(),
                    m: 1,
                    k: n,
                    x: x.as_ptr(),
                    x_stride: n,
                    n: 1,
                    out: &raw mut dot,
                    out_stride: 1,
                    panel: std::ptr::null_mut(),
                };
                // SAFETY: the row and `x` have at least `n` elements, `dot` is the only result, and the CPU
                // supports `kernels`.
                unsafe { (kernels.for_type(ty).matvec)(&product) };
                assert_close(&what, dot, products.sum(), magnitude);
            }
        }
    }
}

/// Quantized blocks with their dequantized values.
struct Weights<'a> {
    ty: GgmlType,
    blocks: &'a [u8],
    floats: &'a [f32],
}

/// Multiplies the first `m` rows of weights by noise, in chunks of `rows` rows.
fn product(
    kernels: &'static Kernels,
    w: &Weights,
    m: usize,
    k: usize,
    n: usize,
    allow_reassociation: bool,
    rows: usize,
) -> Vec<f32> {
    let &Weights { ty, blocks, .. } = w;
    let row_bytes = ty.row_bytes(k).unwrap();
    // Tests rows that are neither contiguous nor aligned.
    let row_stride = row_bytes + 3;
    let mut w = vec![0u8; m * row_stride];
    for (row, bytes) in w.chunks_mut(row_stride).zip(blocks.chunks(row_bytes)) {
        row[1..=row_bytes].copy_from_slice(bytes);
    }
    let (x_stride, out_stride) = (k + 5, m + 2);
    let x = noise(3, n * x_stride);
    let mut out = vec![f32::NAN; n * out_stride];
    let mut scratch = vec![f32::NAN; matmul_scratch(k, n)];
    for i in (0..m).step_by(rows) {
        let args = MatMul {
            ty,
            w: &w[i * row_stride + 1..],
            layout: WeightLayout::Rows { stride: row_stride },
            m: rows.min(m - i),
            k,
            x: Activations::F32 {
                x: &x,
                stride: x_stride,
            },
            n,
            allow_reassociation,
            reuse_prepared_x: i > 0,
        };
        // SAFETY: `out` has `n` rows of `m` floats, `out_stride` apart; the CPU supports `kernels`.
        unsafe { matmul_with(kernels, &args, out.as_mut_ptr().add(i), out_stride, &mut scratch) };
    }
    for row in out.chunks(out_stride) {
        assert!(row[m..].iter().all(|x| x.is_nan()), "wrote past row {m}");
    }
    out
}

/// Checks the matmul of the first `m` rows of weights with `n` columns of noise, and that splitting the rows
/// does not change a bit.
fn check_product(
    kernels: &'static Kernels,
    weights: &Weights,
    m: usize,
    k: usize,
    n: usize,
    allow_reassociation: bool,
) {
    let &Weights { ty, floats, .. } = weights;
    let out = product(kernels, weights, m, k, n, allow_reassociation, m);
    let x = noise(3, n * (k + 5));
    for j in 0..n {
        for i in 0..m {
            let (w, x) = (&floats[i * k..(i + 1) * k], &x[j * (k + 5)..]);
            let products = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let magnitude: f64 = products.clone().map(f64::abs).sum();
            let what = format!("{:?} {ty} m {m} k {k} n {n}: row {i} column {j}", kernels.isa);
            assert_close(&what, out[j * (m + 2) + i], products.sum(), magnitude);
        }
    }
    for rows in [1, 3, 4, 6] {
        let split = product(kernels, weights, m, k, n, allow_reassociation, rows);
        let same = out.iter().zip(&split).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(
            same,
            "{:?} {ty} m {m} k {k} n {n}: splitting into chunks of {rows} rows changed the result",
            kernels.isa
        );
    }
}

#[test]
fn matmul_f32_matches_f64_and_split_keeps_bits() {
    for (ty, dequantize) in scalar_decoders() {
        let (blocks, mut floats) = (blocks(ty), vec![0.0; 4096]);
        dequantize(&blocks, &mut floats);
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        let lengths = [1, 5, 16, 37, 64, 100, 224, 256, 512, 585]
            .into_iter()
            .filter(|k| k % ty.block_size() == 0);
        for (k, kernels) in lengths.flat_map(|k| all_kernels().map(move |kernels| (k, kernels))) {
            for n in 1..=17 {
                check_product(kernels, &weights, (4096 / k).min(1 + n % 13), k, n, false);
            }
            // Whole and partial panels of rows, and tiles of all widths.
            for (m, n) in [(16, 32), (31, 33), (32, 38), (33, 41), (40, 64)] {
                check_product(kernels, &weights, (4096 / k).min(m), k, n, true);
            }
        }
    }
}

#[test]
fn matmul_f32_handles_large_shapes() {
    for (ty, dequantize) in scalar_decoders() {
        let (blocks, mut floats) = (blocks(ty), vec![0.0; 4096]);
        dequantize(&blocks, &mut floats);
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        for kernels in all_kernels() {
            check_product(kernels, &weights, 1, 4096, 3, false);
            check_product(kernels, &weights, 3, 1280, 40, false);
        }
    }
}

#[test]
fn matmul_f32_columns_keep_bits_among_many() {
    for (ty, dequantize) in scalar_decoders().into_iter().filter(|(ty, _)| is_for(*ty)) {
        let (blocks, mut floats) = (blocks(ty), vec![0.0; 4096]);
        dequantize(&blocks, &mut floats);
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        let (m, k) = (16, 256);
        for kernels in all_kernels() {
            check_product(kernels, &weights, m, k, 521, true);
            let [few, many] = [40, 521].map(|n| product(kernels, &weights, m, k, n, true, m));
            let same = few.iter().zip(&many).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{:?} {ty}: columns changed with their number", kernels.isa);
        }
    }
}

#[test]
fn matmul_accepts_empty_operands() {
    let args = MatMul {
        ty: GgmlType::Q4_0,
        w: &[],
        layout: WeightLayout::Rows { stride: 18 },
        m: 0,
        k: 32,
        x: Activations::F32 { x: &[], stride: 32 },
        n: 0,
        allow_reassociation: false,
        reuse_prepared_x: false,
    };
    // SAFETY: the output is empty.
    unsafe { crate::matmul(&args, std::ptr::NonNull::dangling().as_ptr(), 0, &mut []) };
}

mod attention;
mod blocks;
mod instruction_sets;
mod int_attention;
mod integers;
mod interleaved8;
#[cfg(target_arch = "x86_64")]
mod kernel_table;
mod pair_panels;
mod panels;
mod recurrent;
#[path = "../../tests/src/root.rs"]
pub mod root;
mod rope;
mod rows;
mod tile_attention;
mod tiles;
mod weight_prefetch;
