//! Tests of panel matmuls on every instruction set against their definition: dequantized weights times
//! dequantized activations.

use super::*;
use crate::activations::quantize_with;
use crate::generic::pack::{IntFormat, RowChunk};
use crate::interleaved::{GROUP_ROWS, interleaved_bytes};
use crate::limits::PANEL_COLUMNS;
use crate::{ActivationForm, activation_bytes};

/// Forms of activations for integer matmuls with many columns.
const FORMS: [ActivationForm; 2] = [ActivationForm::I16Row, ActivationForm::U8Chunk];

/// Rows of quantized activations, with gaps between rows and without alignment.
pub(super) struct Rows {
    form: ActivationForm,
    k: usize,
    n: usize,
    bytes: Vec<u8>,
}

impl Rows {
    pub(super) fn new(kernels: &'static Kernels, form: ActivationForm, k: usize, x: &[f32]) -> Rows {
        let stride = Self::stride(form, k);
        let mut bytes = vec![0xAA; x.len() / k * stride + 1];
        for (x, row) in x.chunks(k).zip(bytes[1..].chunks_mut(stride)) {
            quantize_with(kernels, form, x, &mut row[..activation_bytes(form, k)]);
        }
        Rows {
            form,
            k,
            n: x.len() / k,
            bytes,
        }
    }

    fn stride(form: ActivationForm, k: usize) -> usize {
        activation_bytes(form, k) + 7
    }

    /// Returns the rows starting at row `j`.
    fn from(&self, j: usize) -> Activations<'_> {
        let stride = Self::stride(self.form, self.k);
        Activations::Quantized {
            form: self.form,
            rows: &self.bytes[1 + j * stride..],
            stride,
        }
    }

    /// Returns the values that the integers of row `j` represent.
    fn dequantized(&self, j: usize) -> Vec<f64> {
        let row = &self.bytes[1 + j * Self::stride(self.form, self.k)..];
        let f32_at = |at: usize| f64::from(f32::from_le_bytes(row[at..at + 4].try_into().unwrap()));
        if self.form == ActivationForm::U8Chunk {
            // A chunk of 256 has a scale, 4 outliers in units of the scale, their indices, and sums (100
            // bytes with padding), then the integers. Odd runs of 32 are negated.
            let sign = |i: usize| if (i / 32).is_multiple_of(2) { 1.0 } else { -1.0 };
            let value = |i: usize| {
                let chunk = i / 256 * 384;
                let is_outlier = |j: &usize| usize::from(row[chunk + 20 + 2 * j]) == i % 256;
                match (0..4).find(|j| is_outlier(j) && f32_at(chunk + 4 + 4 * j) != 0.0) {
                    Some(j) => f32_at(chunk) * sign(i) * f32_at(chunk + 4 + 4 * j),
                    None => f32_at(chunk) * sign(i) * (f64::from(row[chunk + 128 + i % 256]) - 128.0),
                }
            };
            return (0..self.k).map(value).collect();
        }
        let i16_at = |at: usize| i16::from_le_bytes([row[at], row[at + 1]]);
        // A row has a header of 64 bytes. A chunk of 256 has 192 bytes of sums, then runs of 32 with even
        // elements first.
        let integer = |i: usize| {
            let run = 64 + i / 256 * 1216 + 192 + i % 256 / 32 * 64;
            f64::from(i16_at(run + i % 2 * 32 + i % 32 / 2 * 2))
        };
        let scale = f32_at(0);
        (0..self.k).map(|i| scale * integer(i)).collect()
    }

    /// Returns the scale of chunk `c` of row `j` for [`ActivationForm::U8Chunk`].
    fn scale_of_chunk(&self, j: usize, c: usize) -> f64 {
        let at = 1 + j * Self::stride(self.form, self.k) + c * 384;
        f64::from(f32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap()))
    }
}

/// Returns the rounding error in the products of row `i` of `w` with each row of `x`. The error is due to the offset
/// of 1.5 x 2^23 in integer sums (see `gemm_u8.rs`). A float sum contains the scales of all remaining runs times the
/// offset. Each addition to the sum rounds by at most half a unit in the last place.
fn rounding_of_offsets(w: &Weights, i: usize, x: &Rows) -> Vec<f64> {
    let mut all = vec![0.0; x.n];
    if x.form != ActivationForm::U8Chunk {
        return all;
    }
    let row_bytes = w.ty.row_bytes(x.k).unwrap();
    let type_kernels = kernels_of(Isa::Scalar).int.find(w.ty).unwrap();
    let chunk_bytes = 256 / w.ty.block_size().min(256) * w.ty.block_bytes();
    for c in 0..x.k.div_ceil(256) {
        let runs = ((x.k - c * 256) / 32).min(8);
        let mut chunk = RowChunk::default();
        // SAFETY: the row has this chunk, and scalar kernels run on any CPU.
        unsafe { (type_kernels.unpack)(w.blocks[i * row_bytes + c * chunk_bytes..].as_ptr(), runs, &mut chunk) };
        let rounding = rounding_of_chunk(&type_kernels.integers, &chunk, runs);
        for (j, all) in all.iter_mut().enumerate() {
            *all += rounding * x.scale_of_chunk(j, c);
        }
    }
    all
}

/// Returns the [`rounding_of_offsets`] for one chunk in units of the activations' scale.
fn rounding_of_chunk(integers: &IntFormat, chunk: &RowChunk, runs: usize) -> f64 {
    let halves = if integers.by_16 { 2 } else { 1 };
    // Value of an integer's lowest bit: integers are shifted up. Scales alternate in sign from run to run.
    let unit = |run: usize, half: usize| {
        let scale = f64::from(chunk.scales.scales[half][run]) / f64::from(1 << integers.spare_bits());
        if run.is_multiple_of(2) { scale } else { -scale }
    };
    let steps = (0..runs).flat_map(|run| (0..halves).map(move |half| (run, half)));
    let mut to_come: f64 = steps.clone().map(|(run, half)| unit(run, half)).sum();
    let (mut before, mut sum) = (0.0, 0.0f64);
    for (run, half) in steps {
        before += unit(run, half);
        to_come -= unit(run, half);
        // Each step adds the scaled sum and, if present, the minimum. Every other run also adds an outlier.
        let has_outlier = run.is_multiple_of(2) && half + 1 == halves;
        let additions = 1 + u32::from(integers.has_own_mins()) + u32::from(has_outlier);
        // The initial value of the sum is computed in the same number of steps.
        sum += before.abs() + f64::from(additions) * to_come.abs();
    }
    sum * 1.5 * f64::from(1 << 23) * f64::from(f32::EPSILON) / 2.0
}

/// Yields the types with integer kernels, with blocks and their dequantized values.
fn types() -> impl Iterator<Item = (GgmlType, Vec<u8>, Vec<f32>)> {
    scalar_decoders().into_iter().filter_map(|(ty, dequantize)| {
        kernels_of(Isa::Scalar).int.find(ty)?;
        let (blocks, mut floats) = (blocks(ty), vec![0.0; 4096]);
        dequantize(&blocks, &mut floats);
        Some((ty, blocks.repeat(8), floats.repeat(8)))
    })
}

fn forms_and_types() -> impl Iterator<Item = (ActivationForm, GgmlType, Vec<u8>, Vec<f32>)> {
    FORMS
        .into_iter()
        .flat_map(|form| types().map(move |(ty, blocks, floats)| (form, ty, blocks, floats)))
}

/// Multiplies the first `m` rows of weights, `rows` rows and `columns` columns at a time. Rows of the result
/// have gaps.
fn product(kernels: &'static Kernels, w: &Weights, m: usize, x: &Rows, rows: usize, columns: usize) -> Vec<f32> {
    let stride = w.ty.row_bytes(x.k).unwrap();
    let weights = (w.ty, w.blocks, WeightLayout::Rows { stride });
    product_of(kernels, weights, m, x, rows, columns)
}

/// Multiplies weights in either layout, like [`product`].
pub(super) fn product_of(
    kernels: &'static Kernels,
    (ty, w, layout): (GgmlType, &[u8], WeightLayout),
    m: usize,
    x: &Rows,
    rows: usize,
    columns: usize,
) -> Vec<f32> {
    let row_bytes = match layout {
        WeightLayout::Rows { stride } => stride,
        WeightLayout::Interleaved => interleaved_bytes(ty, x.k) / GROUP_ROWS,
    };
    let out_stride = m + 2;
    let mut out = vec![f32::NAN; x.n * out_stride];
    let mut scratch = vec![f32::NAN; matmul_scratch(x.k, x.n)];
    for (i, j) in (0..x.n)
        .step_by(columns)
        .flat_map(|j| (0..m).step_by(rows).map(move |i| (i, j)))
    {
        let args = MatMul {
            ty,
            w: &w[i * row_bytes..],
            layout,
            m: rows.min(m - i),
            k: x.k,
            x: x.from(j),
            n: columns.min(x.n - j),
            allow_reassociation: false,
            reuse_prepared_x: i > 0,
        };
        let to = j * out_stride + i;
        // SAFETY: `out` has `n` rows of `m` floats, `out_stride` apart; the CPU supports `kernels`.
        unsafe { matmul_with(kernels, &args, out.as_mut_ptr().add(to), out_stride, &mut scratch) };
    }
    for row in out.chunks(out_stride) {
        assert!(row[m..].iter().all(|x| x.is_nan()), "wrote past row {m}");
    }
    out
}

/// Returns the largest magnitude.
fn magnitude(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |max, x| max.max(x.abs()))
}

/// Compares with the definition. Only sums over half runs are rounded, relative to the magnitude of the
/// integers. That can exceed the weights' magnitude by the subtracted minimum; `least` bounds it from below.
fn check(kernels: &'static Kernels, w: &Weights, m: usize, x: &Rows, least: f32) {
    let out = product(kernels, w, m, x, m, x.n);
    let offsets: Vec<_> = (0..m).map(|i| rounding_of_offsets(w, i, x)).collect();
    for j in 0..x.n {
        let values = x.dequantized(j);
        for (i, offsets) in offsets.iter().enumerate() {
            let weights = &w.floats[i * x.k..(i + 1) * x.k];
            let products = weights.iter().zip(&values).map(|(w, x)| f64::from(*w) * x);
            let largest = f64::from(magnitude(weights).max(least));
            let magnitude = largest * values.iter().map(|x| x.abs()).sum::<f64>();
            let what = format!(
                "{:?} {} {:?} m {m} k {} n {}: row {i} column {j}",
                kernels.isa, w.ty, x.form, x.k, x.n
            );
            assert_close_within(&what, out[j * (m + 2) + i], products.sum(), magnitude, offsets[j]);
        }
    }
}

#[test]
fn panel_matmul_matches_dequantized_operands() {
    // Odd numbers of rows and columns. Rows have a single block, a remainder, or exceed a panel's part.
    let sizes = [
        (1, 32, 9),
        (2, 64, 31),
        (15, 96, 33),
        (16, 128, 16),
        (17, 224, 17),
        (31, 256, 9),
        (32, 288, 15),
        (33, 576, 13),
        (65, 256, 10),
        (3, 1024, 32),
        (2, 1280, 12),
        (5, 2304, 9),
        (1, 32768, 9),
    ];
    for (form, ty, blocks, floats) in forms_and_types() {
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        for (m, k, n) in sizes.into_iter().filter(|(_, k, _)| k % ty.block_size() == 0) {
            for kernels in all_kernels() {
                check(
                    kernels,
                    &weights,
                    m,
                    &Rows::new(kernels, form, k, &noise(41, n * k)),
                    1.0,
                );
            }
        }
    }
}

/// Returns blocks whose bytes are `pattern`, except for scales that would become infinite.
pub(super) fn filled(ty: GgmlType, blocks: &[u8], pattern: u8) -> Vec<u8> {
    let mut filled = blocks.to_vec();
    for block in filled.chunks_mut(ty.block_bytes()) {
        let original = block.to_vec();
        block.fill(pattern);
        for &(at, mask) in super::blocks::bits_of_infinity(ty) {
            let scale = at.saturating_sub(1)..=at;
            block[scale.clone()].copy_from_slice(&original[scale]);
            block[at] &= !mask;
        }
    }
    filled
}

/// Multiplies the largest integers of both operands. An overflow of 16 bits would change a result by as much
/// as all products together.
#[test]
fn panel_matmul_largest_operands_do_not_overflow() {
    for (form, ty, blocks, floats) in forms_and_types() {
        let original = magnitude(&floats);
        let (_, dequantize) = scalar_decoders().into_iter().find(|(of, _)| *of == ty).unwrap();
        for pattern in [0x00, 0xff, 0xf0, 0x0f, 0x55, 0xaa] {
            let blocks = filled(ty, &blocks, pattern);
            let k = 512;
            let mut floats = vec![0.0; blocks.len() / ty.block_bytes() * ty.block_size()];
            dequantize(&blocks, &mut floats);
            // Both sums round equal terms equally.
            let least = 10.0 * magnitude(&floats).max(original);
            let weights = Weights {
                ty,
                blocks: &blocks,
                floats: &floats,
            };
            let x: Vec<f32> = (0..9 * k)
                .map(|i| match i / k % 4 {
                    0 => 1.0,
                    1 => -1.0,
                    2 if i % 2 == 0 => 1.0,
                    3 if i % 4 < 2 => 1.0,
                    _ => -1.0,
                })
                .collect();
            for kernels in all_kernels() {
                check(kernels, &weights, 4, &Rows::new(kernels, form, k, &x), least);
            }
        }
    }
}

#[test]
fn panel_matmul_split_keeps_bits() {
    for (form, ty, blocks, floats) in forms_and_types() {
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        for k in [64, 256, 320, 1280].into_iter().filter(|k| k % ty.block_size() == 0) {
            for kernels in all_kernels() {
                let (m, n) = (19, 45);
                let bits = |out: Vec<f32>| out.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                let x = Rows::new(kernels, form, k, &noise(42, n * k));
                let expected = bits(product(kernels, &weights, m, &x, m, n));
                for (rows, columns) in [(1, n), (m, PANEL_COLUMNS), (8, 33), (5, 36), (16, 15)] {
                    let split = bits(product(kernels, &weights, m, &x, rows, columns));
                    let what = format!("{:?} {ty} {form:?} k {k}: {rows} rows, {columns} columns", kernels.isa);
                    assert!(split == expected, "{what} at a time");
                }
            }
        }
    }
}

/// Multiplies more rows and columns than are processed at a time.
#[test]
fn panel_matmul_large_shapes_keep_bits() {
    let (m, k, n) = (270, 288, 530);
    let form = ActivationForm::U8Chunk;
    for (ty, blocks, floats) in types().filter(|(ty, ..)| [GgmlType::Q4_0, GgmlType::Q5_1].contains(ty)) {
        let blocks = blocks.repeat(3);
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        for kernels in all_kernels() {
            let x = Rows::new(kernels, form, k, &noise(47, n * k));
            let bits = |rows, columns| {
                let out = product(kernels, &weights, m, &x, rows, columns);
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            assert!(bits(m, n) == bits(40, 77), "{:?} {ty}", kernels.isa);
        }
    }
}

#[test]
fn panel_matmul_propagates_non_finite_activations() {
    for (form, ty, blocks, floats) in forms_and_types() {
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        for kernels in all_kernels() {
            for (bad, at) in [
                (f32::NAN, 0),
                (f32::INFINITY, 17),
                (f32::NEG_INFINITY, 255),
                (f32::NAN, 511),
            ] {
                let mut x = noise(43, 9 * 512);
                x[3 * 512 + at] = bad;
                let out = product(kernels, &weights, 4, &Rows::new(kernels, form, 512, &x), 4, 9);
                for (j, row) in out.chunks(6).enumerate() {
                    let finite = row[..4].iter().all(|x| x.is_finite());
                    assert_eq!(finite, j != 3, "{:?} {ty} {form:?}: column {j}: {row:?}", kernels.isa);
                }
            }
        }
    }
}

#[test]
fn panel_matmul_handles_subnormal_scales() {
    let k = 512;
    for (form, ty, blocks, _) in forms_and_types() {
        let (blocks, floats) = super::blocks::with_subnormal_scales(ty, blocks).unwrap();
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        // Large enough that products of the smallest weights exceed the rounding errors of sums.
        let x: Vec<f32> = noise(48, 17 * k).into_iter().map(|x| 1e20 * x).collect();
        let least = 10.0 * magnitude(&floats);
        for kernels in all_kernels() {
            for m in [2, 17] {
                check(kernels, &weights, m, &Rows::new(kernels, form, k, &x), least);
            }
        }
    }
}

#[test]
fn panel_matmul_propagates_non_finite_scales() {
    let (m, k, n) = (17, 512, 17);
    for (form, ty, blocks, floats) in forms_and_types() {
        for bad in super::blocks::spoiled(ty, &blocks, 9, k) {
            let weights = Weights {
                ty,
                blocks: &bad,
                floats: &floats,
            };
            for kernels in all_kernels() {
                let x = Rows::new(kernels, form, k, &noise(49, n * k));
                for (j, row) in product(kernels, &weights, m, &x, m, n).chunks(m + 2).enumerate() {
                    let is_expected = row[..m].iter().enumerate().all(|(i, x)| x.is_finite() == (i != 9));
                    assert!(is_expected, "{:?} {ty} {form:?}, column {j}: {row:?}", kernels.isa);
                }
            }
        }
    }
}

/// Checks the error of 8-bit activations: each 256 have a scale, and the 4 largest are outliers.
#[test]
fn quantize_u8_error_is_relative_to_fifth_largest() {
    for kernels in all_kernels() {
        for (k, factor) in [1, 3, 5, 31, 32, 33, 255, 256, 257, 1000]
            .into_iter()
            .flat_map(|k| [(k, 1.0), (k, 1e37), (k, 3e38), (k, 1e-30)])
        {
            // Tests fewer than 4, exactly 4, and more than 4 outliers.
            let size = |i: usize| if i % 256 < i / 256 * 3 { 1.0 } else { 0.01 };
            let x: Vec<f32> = noise(46, k)
                .iter()
                .enumerate()
                .map(|(i, x)| factor * x * size(i))
                .collect();
            let values = Rows::new(kernels, ActivationForm::U8Chunk, k, &x).dequantized(0);
            for (x, values) in x.chunks(256).zip(values.chunks(256)) {
                let mut magnitudes: Vec<f32> = x.iter().map(|x| x.abs()).collect();
                magnitudes.sort_by(|a, b| b.total_cmp(a));
                let fifth = f64::from(magnitudes.get(4).copied().unwrap_or(0.0));
                // Outliers are stored in units of the scale, which rounds them like any float operation.
                let of_rounding = |x: f64| f64::from(f32::EPSILON) * x.abs();
                let differences = || {
                    x.iter()
                        .map(|&x| f64::from(x))
                        .zip(values)
                        .map(|(x, value)| (x, (x - value).abs()))
                };
                let n_kept = differences()
                    .filter(|&(x, difference)| difference <= of_rounding(x))
                    .count();
                assert!(
                    n_kept >= 4.min(x.len()),
                    "{:?} k {k}: {n_kept} elements are exact",
                    kernels.isa
                );
                for (x, difference) in differences() {
                    assert!(
                        difference <= fifth / 252.0 + of_rounding(x),
                        "{:?} k {k}: {x}, {difference}",
                        kernels.isa
                    );
                }
            }
        }
    }
}

#[test]
fn quantize_u8_handles_zeros_and_subnormals() {
    for (form, ty, blocks, floats) in forms_and_types() {
        let weights = Weights {
            ty,
            blocks: &blocks,
            floats: &floats,
        };
        let k = 256.max(ty.block_size());
        for kernels in all_kernels() {
            let zeros = Rows::new(kernels, form, k, &vec![0.0; 9 * k]);
            let out = product(kernels, &weights, 4, &zeros, 4, 9);
            assert!(
                out.chunks(6).all(|row| row[..4].iter().all(|&x| x == 0.0)),
                "{ty} {form:?}"
            );
            check(
                kernels,
                &weights,
                4,
                &Rows::new(kernels, form, k, &vec![1e-40; 9 * k]),
                1.0,
            );
        }
    }
}

/// Checks that all instruction sets produce the same integers.
#[test]
fn quantize_u8_matches_across_isas() {
    let form = ActivationForm::U8Chunk;
    for k in LENGTHS.into_iter().filter(|&k| k > 0).chain([256, 4096]) {
        let mut x = noise(45, 3 * k);
        x[..k].iter_mut().for_each(|x| *x *= 1e-39);
        x[k..2 * k].iter_mut().for_each(|x| *x *= 3e38);
        let all: Vec<Rows> = all_kernels().map(|kernels| Rows::new(kernels, form, k, &x)).collect();
        assert!(all.iter().all(|rows| rows.bytes == all[0].bytes), "{form:?} k {k}");
    }
}
