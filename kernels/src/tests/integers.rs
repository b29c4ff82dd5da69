//! Tests of integer matmuls on every instruction set against their definition: dequantized weights times
//! dequantized activations.

use super::*;
use crate::activations::{form_with, quantize_with};
use crate::{ActivationForm, Precision, activation_bytes};

const FORM: ActivationForm = ActivationForm::I16Row;

#[test]
fn activation_form_u8_needs_many_columns() {
    let kernels = kernels_of(Isa::Scalar);
    let form = |n, precision| form_with(kernels, GgmlType::Q4_0, n, precision);
    for n in [1, 2, 8, 9, 16, 31] {
        assert_eq!(form(n, Precision::Fast), ActivationForm::I16Row);
    }
    assert_eq!(form(32, Precision::Fast), ActivationForm::U8Chunk);
    assert_eq!(form(32, Precision::High), ActivationForm::I16Row);
    assert_eq!(
        form_with(kernels, GgmlType::Q8_0, 32, Precision::Fast),
        ActivationForm::I16Row
    );
}

/// With the fastest precision, batches of 9 to 31 rows are stored as bytes, and smaller batches in the default form.
#[test]
fn activation_form_of_fastest_is_u8_for_9_rows_or_more() {
    for kernels in all_kernels() {
        let form = |ty, n, precision| form_with(kernels, ty, n, precision);
        for ty in [GgmlType::Q4_0, GgmlType::Q6_K, GgmlType::Q8_0, GgmlType::F32] {
            for n in [1, 8, 32] {
                assert_eq!(
                    form(ty, n, Precision::Fastest),
                    form(ty, n, Precision::Fast),
                    "{:?} {ty} {n}",
                    kernels.isa
                );
            }
        }
        let few = [9, 31].map(|n| form(GgmlType::Q4_0, n, Precision::Fastest));
        let expected = match kernels.tile_unit {
            Some(_) => ActivationForm::I16Row,
            None => ActivationForm::U8Chunk,
        };
        assert_eq!(few, [expected; 2], "{:?}", kernels.isa);
        assert_eq!(form(GgmlType::F32, 31, Precision::Fastest), ActivationForm::F32);
    }
}

/// With VNNI, weights of all types are multiplied as bytes.
#[test]
fn activation_form_vnni_prefers_u8() {
    for kernels in all_kernels().filter(|kernels| kernels.int.prefers_u8) {
        for ty in [GgmlType::Q4_0, GgmlType::Q8_0, GgmlType::Q6_K] {
            let form = |n, precision| form_with(kernels, ty, n, precision);
            assert_eq!(form(31, Precision::Fast), ActivationForm::I16Row);
            assert_eq!(form(32, Precision::High), ActivationForm::I16Row);
            let expected = match kernels.tile_unit {
                Some(_) => ActivationForm::Bf16Row,
                None => ActivationForm::U8Chunk,
            };
            assert_eq!(form(32, Precision::Fast), expected, "{:?} {ty}", kernels.isa);
        }
    }
}

/// Rows of activations as floats and as integers, with gaps between rows and without alignment.
struct Rows {
    k: usize,
    floats: Vec<f32>,
    bytes: Vec<u8>,
}

impl Rows {
    fn new(kernels: &'static Kernels, k: usize, floats: Vec<f32>) -> Rows {
        let mut bytes = vec![0xAA; floats.len() / k * Self::stride(k) + 1];
        for (x, row) in floats.chunks(k).zip(bytes[1..].chunks_mut(Self::stride(k))) {
            quantize_with(kernels, FORM, x, &mut row[..activation_bytes(FORM, k)]);
        }
        Rows { k, floats, bytes }
    }

    fn stride(k: usize) -> usize {
        activation_bytes(FORM, k) + 7
    }

    /// Returns the values that the integers of row `j` represent.
    fn dequantized(&self, j: usize) -> Vec<f64> {
        let row = &self.bytes[1 + j * Self::stride(self.k)..];
        let scale = f64::from(f32::from_le_bytes(row[..4].try_into().unwrap()));
        let value = |i: usize| {
            // A row has a header of 64 bytes. A chunk of 256 has 192 bytes of sums, then runs of 32 with even
            // elements first.
            let (chunk, run, at) = (i / 256, i % 256 / 32, i % 32);
            let byte = 64 + chunk * 1216 + 192 + run * 64 + at % 2 * 32 + at / 2 * 2;
            scale * f64::from(i16::from_le_bytes([row[byte], row[byte + 1]]))
        };
        (0..self.k).map(value).collect()
    }

    fn operand(&self) -> Activations<'_> {
        Activations::Quantized {
            form: FORM,
            rows: &self.bytes[1..],
            stride: Self::stride(self.k),
        }
    }
}

/// Multiplies rows of weights, `rows` rows and `columns` columns at a time.
fn product(kernels: &'static Kernels, weights: &Weights, m: usize, x: &Rows, rows: usize, columns: usize) -> Vec<f32> {
    let (k, n) = (x.k, x.floats.len() / x.k);
    let row_bytes = weights.ty.row_bytes(k).unwrap();
    let out_stride = m + 2;
    let mut out = vec![f32::NAN; n * out_stride];
    let mut scratch = vec![f32::NAN; matmul_scratch(k, n)];
    for (i, j) in (0..m)
        .step_by(rows)
        .flat_map(|i| (0..n).step_by(columns).map(move |j| (i, j)))
    {
        let Activations::Quantized {
            form,
            rows: bytes,
            stride,
        } = x.operand()
        else {
            unreachable!()
        };
        let args = MatMul {
            ty: weights.ty,
            w: &weights.blocks[i * row_bytes..],
            layout: WeightLayout::Rows { stride: row_bytes },
            m: rows.min(m - i),
            k,
            x: Activations::Quantized {
                form,
                rows: &bytes[j * stride..],
                stride,
            },
            n: columns.min(n - j),
            allow_reassociation: false,
            reuse_prepared_x: false,
        };
        // SAFETY: `out` has `n` rows of `m` floats, `out_stride` apart; the CPU supports `kernels`.
        unsafe {
            matmul_with(
                kernels,
                &args,
                out.as_mut_ptr().add(j * out_stride + i),
                out_stride,
                &mut scratch,
            )
        };
    }
    for row in out.chunks(out_stride) {
        assert!(row[m..].iter().all(|x| x.is_nan()), "wrote past row {m}");
    }
    out
}

/// Compares with the definition. Only sums over runs are rounded. These are at most k / 32 additions per lane and the
/// sum of the lanes, relative to the magnitude of the integers. That can exceed the weights' magnitude by the
/// subtracted minimum.
fn check(kernels: &'static Kernels, weights: &Weights, m: usize, x: &Rows) -> Vec<f32> {
    let (k, n) = (x.k, x.floats.len() / x.k);
    let out = product(kernels, weights, m, x, m, n);
    for j in 0..n {
        let values = x.dequantized(j);
        for i in 0..m {
            let w = &weights.floats[i * k..(i + 1) * k];
            let expected: f64 = w.iter().zip(&values).map(|(w, x)| f64::from(*w) * x).sum();
            let largest = w.iter().fold(0.0f64, |max, w| max.max(f64::from(w.abs())));
            let magnitude = largest * values.iter().map(|x| x.abs()).sum::<f64>();
            let what = format!("{:?} {} m {m} k {k} n {n}: row {i} column {j}", kernels.isa, weights.ty);
            assert_close(&what, out[j * (m + 2) + i], expected, magnitude);
        }
    }
    out
}

fn integer_types() -> impl Iterator<Item = (GgmlType, Vec<u8>, Vec<f32>)> {
    scalar_decoders().into_iter().filter_map(|(ty, dequantize)| {
        kernels_of(Isa::Scalar).int.find(ty)?;
        let (blocks, mut floats) = (blocks(ty), vec![0.0; 4096]);
        dequantize(&blocks, &mut floats);
        // Blocks are repeated to provide enough rows.
        Some((ty, blocks.repeat(3), floats.repeat(3)))
    })
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn int_matmul_matches_dequantized_operands() {
    for (ty, blocks, floats) in integer_types() {
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        let lengths = [32, 64, 96, 128, 224, 256, 288, 512, 576, 4096];
        for k in lengths.into_iter().filter(|k| k % ty.block_size() == 0) {
            for kernels in all_kernels() {
                for (m, n) in [
                    (1, 1),
                    (2, 3),
                    (3, 1),
                    (5, 9),
                    (15, 2),
                    (16, 1),
                    (17, 4),
                    (31, 5),
                    (32, 8),
                    (33, 1),
                ] {
                    let m = m.min(3 * 4096 / k);
                    check(kernels, &weights, m, &Rows::new(kernels, k, noise(31, n * k)));
                }
            }
        }
    }
}

#[test]
fn int_matmul_split_keeps_bits() {
    for (ty, blocks, floats) in integer_types() {
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        for k in [64, 256, 320, 768].into_iter().filter(|k| k % ty.block_size() == 0) {
            for kernels in all_kernels() {
                let (m, n) = (13, 8);
                let x = Rows::new(kernels, k, noise(32, n * k));
                let expected = bits(&product(kernels, &weights, m, &x, m, n));
                for (rows, columns) in [(m, 1), (1, n), (1, 1), (2, 2), (3, 4), (5, 8), (6, 7)] {
                    let split = bits(&product(kernels, &weights, m, &x, rows, columns));
                    let what = format!("{:?} {ty} k {k}: {rows} rows, {columns} columns", kernels.isa);
                    assert_eq!(split, expected, "{what} at a time");
                }
            }
        }
    }
}

/// Checks that all instruction sets produce the same integers. Sums of floats may be rounded once or twice
/// per addition.
#[test]
fn quantize_i16_matches_across_isas() {
    for k in LENGTHS.into_iter().filter(|&k| k > 0).chain([256, 4096]) {
        let mut x = noise(33, 3 * k);
        x[..k].iter_mut().for_each(|x| *x *= 1e-39);
        x[k..2 * k].iter_mut().for_each(|x| *x *= 3e38);
        let [expected, rest @ ..] = &all_kernels()
            .map(|kernels| Rows::new(kernels, k, x.clone()))
            .collect::<Vec<_>>()[..]
        else {
            unreachable!()
        };
        assert!(rest.iter().all(|rows| rows.bytes == expected.bytes), "k {k}");
    }
}

#[test]
fn quantize_i16_rounds_to_nearest() {
    for kernels in all_kernels() {
        for (k, factor) in [1, 5, 31, 32, 33, 255, 257, 1000]
            .into_iter()
            .flat_map(|k| [(k, 1.0), (k, 1e30), (k, 1e-30)])
        {
            let x: Vec<f32> = noise(34, k).into_iter().map(|x| x * factor).collect();
            let max = x.iter().fold(0.0f64, |max, &x| max.max(f64::from(x.abs())));
            let rows = Rows::new(kernels, k, x);
            for (x, value) in rows.floats.iter().zip(rows.dequantized(0)) {
                let error = (f64::from(*x) - value).abs();
                assert!(error <= max / 65000.0, "{:?} k {k}: {x} became {value}", kernels.isa);
            }
        }
    }
}

/// Checks that byte parts and sums agree with the 16-bit integers.
#[test]
fn quantize_i16_parts_and_sums_match() {
    for (kernels, k) in all_kernels().flat_map(|kernels| [1, 33, 256, 1000].map(|k| (kernels, k))) {
        // A scale of 1 and all kinds of low bytes.
        let mut x: Vec<f32> = (0..k).map(|i| (i as f32 * 129.0 + 1.0) % 65279.0 - 32639.0).collect();
        x[0] = -32639.0;
        let rows = Rows::new(kernels, k, x.clone());
        assert_eq!(rows.dequantized(0), x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        x.resize(k.next_multiple_of(256), 0.0);
        for (chunk, x) in rows.bytes[1 + 64..].chunks(1216).zip(x.chunks(256)) {
            let word = |at: usize| chunk[at..at + 4].try_into().unwrap();
            for (run, x) in x.chunks(32).enumerate() {
                let sum = |x: &[f32]| x.iter().sum::<f32>();
                for (i, sum) in [sum(x), sum(&x[..16]), sum(&x[16..])].into_iter().enumerate() {
                    let at = (8 * i + run) * 4;
                    assert_eq!(f32::from_le_bytes(word(at)), sum, "{:?} k {k} run {run}", kernels.isa);
                    assert_eq!(i32::from_le_bytes(word(96 + at)) as f32, sum);
                }
                for (i, x) in x.iter().enumerate() {
                    let [low, high] = [0, 32].map(|at| f32::from(chunk[192 + 512 + run * 64 + at + i] as i8));
                    assert_eq!(256.0 * high + low, *x, "{:?} k {k} run {run}", kernels.isa);
                }
            }
        }
    }
}

#[test]
fn quantize_i16_handles_zeros_and_subnormals() {
    for (ty, blocks, floats) in integer_types() {
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        let k = 64.max(ty.block_size());
        for kernels in all_kernels() {
            let zeros = check(kernels, &weights, 4, &Rows::new(kernels, k, vec![0.0; k]));
            assert!(zeros[..4].iter().all(|&x| x == 0.0), "{ty}: {zeros:?}");
            // Subnormal numbers are rounded to multiples of the smallest normal number.
            check(kernels, &weights, 4, &Rows::new(kernels, k, vec![1e-40; k]));
            // Values near the largest float must not overflow.
            let huge = Rows::new(kernels, k, vec![f32::MAX; k]);
            assert!((huge.dequantized(0)[0] / f64::from(f32::MAX) - 1.0).abs() < 1e-4);
        }
    }
}

/// Uses activations large enough that products of the smallest weights exceed the rounding errors of sums.
#[test]
fn int_matmul_handles_subnormal_scales() {
    for (ty, blocks, _) in integer_types() {
        let (blocks, floats) = super::blocks::with_subnormal_scales(ty, blocks).unwrap();
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        for kernels in all_kernels() {
            for (m, n) in [(1, 1), (2, 2), (17, 3), (16, 8)] {
                let x = noise(38, n * 512).into_iter().map(|x| 1e20 * x).collect();
                check(kernels, &weights, m, &Rows::new(kernels, 512, x));
            }
        }
    }
}

#[test]
fn int_matmul_propagates_non_finite_activations() {
    for (ty, blocks, floats) in integer_types() {
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        for (kernels, bad) in
            all_kernels().flat_map(|kernels| [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|bad| (kernels, bad)))
        {
            for at in [0, 7, 8, 100, 255, 256, 511] {
                let mut x = noise(35, 3 * 512);
                x[512 + at] = bad;
                let out = product(kernels, &weights, 4, &Rows::new(kernels, 512, x), 4, 3);
                for (j, row) in out.chunks(6).enumerate() {
                    let finite = row[..4].iter().all(|x| x.is_finite());
                    assert_eq!(
                        finite,
                        j != 1,
                        "{:?} {ty}: column {j} with {bad} at {at}: {row:?}",
                        kernels.isa
                    );
                }
            }
        }
    }
}

/// Uses weights whose scale is infinite or NaN.
#[test]
fn int_matmul_propagates_non_finite_scales() {
    for (ty, blocks, floats) in integer_types() {
        for bad in super::blocks::spoiled(ty, &blocks, 2, 512) {
            let weights = Weights {
                ty,
                blocks: &bad,
                floats: &floats,
            };
            for (kernels, n) in all_kernels().flat_map(|kernels| [1, 2, 5].map(|n| (kernels, n))) {
                let x = Rows::new(kernels, 512, noise(36, n * 512));
                let out = product(kernels, &weights, 5, &x, 5, n);
                for row in out.chunks(7) {
                    let is_expected = row[..5].iter().enumerate().all(|(i, x)| x.is_finite() == (i != 2));
                    assert!(is_expected, "{:?} {ty}: {row:?}", kernels.isa);
                }
            }
        }
    }
}

#[test]
fn int_simd_matches_portable() {
    for (ty, blocks, floats) in integer_types() {
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        let k = 1024.max(ty.block_size());
        let results =
            all_kernels().map(|kernels| check(kernels, &weights, 4, &Rows::new(kernels, k, noise(37, 2 * k))));
        let results: Vec<Vec<f32>> = results.collect();
        for other in &results[1..] {
            for (a, b) in other.iter().zip(&results[0]).filter(|(a, _)| a.is_finite()) {
                let largest = floats.iter().fold(0.0f32, |max, w| max.max(w.abs()));
                assert!((a - b).abs() <= 1e-6 * largest * k as f32, "{ty}: {a} and {b}");
            }
        }
    }
}
