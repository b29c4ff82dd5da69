//! Tests of matmuls in bf16 tiles, with the software model and, if the CPU supports them, with AMX and bf16 dot
//! products.
//!
//! bf16 has 8 significant bits, so a rounded number has a relative error of at most u = 2^-8. The error of a sum of
//! products is at most 2 u + u^2 times the sum of magnitudes, plus the rounding errors of f32 additions.

use super::panels::{Rows, product_of};
use super::*;
use crate::activations::form_with;
use crate::dispatch::TILE_MODEL;
use crate::generic::tiles::rounds_floats;
use crate::interleaved::{GROUP_ROWS, can_interleave, interleave, interleaved_bytes};
use crate::simd::TileUnit;
use crate::simd::portable::Portable;
use crate::simd::tile_model::TileModel;
use crate::simd::tiles::{TILE_BYTES, TileBlock, TileSums};
use crate::{ActivationForm, FAST_COLUMNS, Precision, activation_bytes};

const FORM: ActivationForm = ActivationForm::Bf16Row;

/// Relative error of a number rounded to bf16.
pub(super) const U: f64 = 1.0 / 256.0;

pub(super) fn tile_kernels() -> impl Iterator<Item = &'static Kernels> {
    let unit = Isa::AmxBf16.is_available().then(|| kernels_of(Isa::AmxBf16));
    [&TILE_MODEL].into_iter().chain(unit)
}

/// Yields the kernels that multiply weights of a type by bf16 activations.
fn kernels_for(ty: GgmlType) -> impl Iterator<Item = &'static Kernels> {
    let dots = if Isa::Avx512Bf16.is_available() && rounds_floats(ty) {
        Some(kernels_of(Isa::Avx512Bf16))
    } else {
        None
    };
    tile_kernels().chain(dots)
}

/// Rows of weights in some layout, with their dequantized values.
struct Weights {
    ty: GgmlType,
    layout: WeightLayout,
    k: usize,
    bytes: Vec<u8>,
    floats: Vec<f32>,
}

impl Weights {
    fn product(&self, kernels: &'static Kernels, m: usize, x: &Rows, rows: usize, columns: usize) -> Vec<f32> {
        product_of(kernels, (self.ty, &self.bytes, self.layout), m, x, rows, columns)
    }

    fn row(&self, i: usize) -> &[f32] {
        &self.floats[i * self.k..(i + 1) * self.k]
    }

    /// Returns the rounding error of a weight in f32, relative to integers and minimums, which can be larger
    /// than the weight.
    fn rounding(&self) -> f64 {
        1e-6 * f64::from(self.floats.iter().fold(0.0f32, |max, w| max.max(w.abs())))
    }
}

fn is_for_tiles(ty: GgmlType) -> bool {
    form_with(&TILE_MODEL, ty, FAST_COLUMNS, Precision::Fast) == FORM
}

/// Yields at least `m` rows of `k` weights of each type, in each layout that the type has.
fn all_weights(m: usize, k: usize) -> impl Iterator<Item = Weights> {
    let decoders = scalar_decoders().into_iter();
    let types = decoders.filter(move |(ty, _)| is_for_tiles(*ty) && k.is_multiple_of(ty.block_size()));
    types.flat_map(move |(ty, dequantize)| {
        let m = m.next_multiple_of(GROUP_ROWS);
        let stride = ty.row_bytes(k).unwrap();
        let bytes: Vec<u8> = blocks(ty).into_iter().cycle().take(m * stride).collect();
        let mut floats = vec![0.0; m * k];
        dequantize(&bytes, &mut floats);
        let groups = can_interleave(ty, k).then_some(WeightLayout::Interleaved);
        let layouts = groups.into_iter().chain([WeightLayout::Rows { stride }]);
        layouts.map(move |layout| Weights {
            floats: floats.clone(),
            ..in_layout(ty, layout, k, bytes.clone())
        })
    })
}

/// Returns whole groups of rows in some layout, without dequantized values.
fn in_layout(ty: GgmlType, layout: WeightLayout, k: usize, rows: Vec<u8>) -> Weights {
    let bytes = match layout {
        WeightLayout::Rows { .. } => rows,
        WeightLayout::Interleaved => {
            let stride = ty.row_bytes(k).unwrap();
            let mut groups = vec![0; rows.len() / stride / GROUP_ROWS * interleaved_bytes(ty, k)];
            let rows = rows.chunks(GROUP_ROWS * stride);
            for (rows, group) in rows.zip(groups.chunks_mut(interleaved_bytes(ty, k))) {
                interleave(ty, k, rows, group);
            }
            groups
        }
    };
    Weights {
        ty,
        layout,
        k,
        bytes,
        floats: Vec::new(),
    }
}

/// Multiplies by columns with a single 1, which must reproduce each weight.
#[test]
fn tile_packing_preserves_positions() {
    let m = 3 * GROUP_ROWS;
    for (k, step) in [(32, 1), (288, 5), (768, 29)] {
        let ones: Vec<usize> = (0..k).step_by(step).collect();
        let mut x = vec![0.0; ones.len() * k];
        ones.iter().enumerate().for_each(|(j, at)| x[j * k + at] = 1.0);
        for weights in all_weights(m, k) {
            for kernels in kernels_for(weights.ty) {
                let x = Rows::new(kernels, FORM, k, &x);
                let out = weights.product(kernels, m, &x, m, ones.len());
                for ((j, &at), i) in ones.iter().enumerate().flat_map(|one| (0..m).map(move |i| (one, i))) {
                    let (w, got) = (f64::from(weights.row(i)[at]), f64::from(out[j * (m + 2) + i]));
                    let bound = U * w.abs() + weights.rounding();
                    let Weights { ty, layout, .. } = weights;
                    assert!((got - w).abs() <= bound, "{ty} {layout:?} k {k}: {got} instead of {w}");
                }
            }
        }
    }
}

/// Compares with the exact products of the weights and the rows of `x`.
fn check(kernels: &'static Kernels, weights: &Weights, m: usize, x: &[f32]) {
    let (k, n) = (weights.k, x.len() / weights.k);
    let out = weights.product(kernels, m, &Rows::new(kernels, FORM, k, x), m, n);
    for (j, x) in x.chunks(k).enumerate() {
        for i in 0..m {
            let products = weights.row(i).iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let magnitude: f64 = products.clone().map(f64::abs).sum();
            let of_weights = weights.rounding() * x.iter().map(|x| f64::from(x.abs())).sum::<f64>();
            // The unit accumulates 32 elements in two sums of 16, then adds both to the total.
            let additions = (18 + k / 32) as f64 * 3.0 * 2f64.powi(-24);
            // The unit may flush subnormal numbers to zero.
            let lost = x
                .iter()
                .map(|x| f64::from(x.abs()) * f64::from(f32::MIN_POSITIVE))
                .sum::<f64>();
            let bound = (2.0 * U + U * U + additions) * magnitude + of_weights + lost + 1e-37;
            let (got, expected) = (f64::from(out[j * (m + 2) + i]), products.sum::<f64>());
            let what = format!("{:?} {} {:?}", kernels.isa, weights.ty, weights.layout);
            assert!(
                (got - expected).abs() <= bound,
                "{what} m {m} k {k} n {n}, row {i} column {j}: {got} instead of {expected} +- {bound}"
            );
        }
    }
}

#[test]
fn tile_matmul_error_is_bounded() {
    // Rows and columns around one and two tiles. Rows have one step, a remainder, or several blocks.
    let sizes = [
        (1, 32, 1),
        (2, 96, 2),
        (15, 64, 17),
        (16, 224, 31),
        (17, 544, 15),
        (31, 288, 33),
        (32, 1056, 1),
        (33, 256, 16),
        (65, 544, 35),
        (8, 1280, 32),
        (9, 2304, 8),
        (3, 4352, 3),
    ];
    for (m, k, n) in sizes {
        let x = noise(71, n * k);
        for weights in all_weights(m, k) {
            let m = if weights.layout == WeightLayout::Interleaved {
                m.next_multiple_of(GROUP_ROWS)
            } else {
                m
            };
            for kernels in kernels_for(weights.ty) {
                check(kernels, &weights, m, &x);
            }
        }
    }
}

/// Checks that interleaved rows and rows in file layout give the same results.
#[test]
fn tile_matmul_layouts_agree() {
    let (m, k) = (3 * GROUP_ROWS, 256);
    let all: Vec<Weights> = all_weights(m, k).collect();
    for (interleaved, rows) in all.iter().zip(&all[1..]).filter(|(a, b)| a.ty == b.ty) {
        for kernels in kernels_for(rows.ty) {
            let x = Rows::new(kernels, FORM, k, &noise(78, 3 * k));
            let [a, b] = [interleaved, rows].map(|weights| weights.product(kernels, m, &x, m, 3));
            let is_same = a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(is_same, "{:?} {}", kernels.isa, rows.ty);
        }
    }
}

/// Checks that splitting rows and columns, as threads do, does not change a bit.
#[test]
fn tile_matmul_split_keeps_bits() {
    let (m, n) = (72, 35);
    for k in [64, 576] {
        let x = noise(72, n * k);
        let types = [GgmlType::Q4_1, GgmlType::Q8_0, GgmlType::NVFP4, GgmlType::F16];
        for weights in all_weights(m, k).filter(|weights| types.contains(&weights.ty)) {
            for kernels in kernels_for(weights.ty) {
                let bits = |out: Vec<f32>| out.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                let x = Rows::new(kernels, FORM, k, &x);
                let expected = bits(weights.product(kernels, m, &x, m, n));
                for (rows, columns) in [(8, n), (m, 9), (32, 33), (64, 15)] {
                    let split = bits(weights.product(kernels, m, &x, rows, columns));
                    let what = format!("{:?} {} {:?} k {k}", kernels.isa, weights.ty, weights.layout);
                    assert!(split == expected, "{what}: {rows} rows, {columns} columns at a time");
                }
            }
        }
    }
}

#[test]
fn tile_matmul_propagates_non_finite_activations() {
    let (m, n, k) = (8, 35, 544);
    for weights in all_weights(m, k) {
        for kernels in kernels_for(weights.ty) {
            let bad = [(3, 0, f32::NAN), (17, 31, f32::INFINITY), (34, 543, f32::NEG_INFINITY)];
            let mut x = noise(73, n * k);
            bad.iter().for_each(|(j, at, bad)| x[j * k + at] = *bad);
            let out = weights.product(kernels, m, &Rows::new(kernels, FORM, k, &x), m, n);
            for (j, row) in out.chunks(m + 2).enumerate() {
                let is_bad = bad.iter().any(|&(column, _, _)| column == j);
                let as_expected = row[..m].iter().all(|x| x.is_finite() != is_bad);
                let Weights { ty, layout, .. } = weights;
                assert!(as_expected, "{:?} {ty} {layout:?}, column {j}: {row:?}", kernels.isa);
            }
        }
    }
}

#[test]
fn tile_matmul_propagates_non_finite_scales() {
    let (m, n, k) = (24, 35, 512);
    for Weights { ty, layout, .. } in all_weights(m, k) {
        let rows: Vec<u8> = blocks(ty)
            .into_iter()
            .cycle()
            .take(m * ty.row_bytes(k).unwrap())
            .collect();
        for bad in super::blocks::spoiled(ty, &rows, 11, k) {
            let weights = in_layout(ty, layout, k, bad);
            for kernels in kernels_for(weights.ty) {
                let x = Rows::new(kernels, FORM, k, &noise(79, n * k));
                for (j, row) in weights.product(kernels, m, &x, m, n).chunks(m + 2).enumerate() {
                    let is_expected = row[..m].iter().enumerate().all(|(i, x)| x.is_finite() == (i != 11));
                    assert!(is_expected, "{:?} {ty} {layout:?}, column {j}: {row:?}", kernels.isa);
                }
            }
        }
    }
}

/// Uses activations large enough that products of the smallest weights exceed the rounding errors of sums.
#[test]
fn tile_matmul_handles_subnormal_scales() {
    let (m, n, k) = (24, 17, 512);
    let x: Vec<f32> = noise(80, n * k).into_iter().map(|x| 1e20 * x).collect();
    for Weights { ty, layout, .. } in all_weights(m, k) {
        let rows = blocks(ty)
            .into_iter()
            .cycle()
            .take(m * ty.row_bytes(k).unwrap())
            .collect();
        let Some((rows, floats)) = super::blocks::with_subnormal_scales(ty, rows) else {
            continue;
        };
        let weights = Weights {
            floats,
            ..in_layout(ty, layout, k, rows)
        };
        for kernels in kernels_for(weights.ty) {
            check(kernels, &weights, m, &x);
        }
    }
}

#[test]
fn tile_matmul_handles_extreme_activations() {
    let (m, k) = (8, 64);
    for weights in all_weights(m, k) {
        for kernels in kernels_for(weights.ty) {
            for factor in [0.0, 1e-40, 1e-20, 1e20, 1e34] {
                let x: Vec<f32> = noise(74, 2 * k).into_iter().map(|x| x * factor).collect();
                check(kernels, &weights, m, &x);
            }
        }
    }
}

#[test]
fn quantize_bf16_rounds_to_nearest() {
    for kernels in kernels_for(GgmlType::BF16) {
        for k in [1, 5, 31, 32, 33, 255, 1000] {
            let x = noise(75, k);
            let mut row = vec![0xAA; activation_bytes(FORM, k)];
            crate::activations::quantize_with(kernels, FORM, &x, &mut row);
            let n = k.next_multiple_of(32);
            let value = |i: usize| f64::from(half::bf16::from_le_bytes([row[2 * i], row[2 * i + 1]]).to_f32());
            for i in 0..n {
                let expected = f64::from(*x.get(i).unwrap_or(&0.0));
                let got = value(i);
                let error = (got - expected).abs();
                assert!(error <= U * expected.abs(), "k {k}: {expected} was rounded to {got}");
            }
        }
    }
}

#[test]
fn activation_form_bf16_needs_many_columns() {
    for ty in [GgmlType::Q4_0, GgmlType::Q8_0] {
        let form = |n, precision| form_with(&TILE_MODEL, ty, n, precision);
        assert_eq!(form(FAST_COLUMNS - 1, Precision::Fast), ActivationForm::I16Row);
        assert_eq!(form(FAST_COLUMNS, Precision::Fast), ActivationForm::Bf16Row);
        assert_eq!(form(FAST_COLUMNS, Precision::High), ActivationForm::I16Row);
        assert_eq!(form(FAST_COLUMNS, Precision::Exact), ActivationForm::F32);
    }
    for ty in [GgmlType::F16, GgmlType::BF16] {
        let form = |n, precision| form_with(&TILE_MODEL, ty, n, precision);
        assert_eq!(form(FAST_COLUMNS - 1, Precision::Fast), ActivationForm::F32);
        assert_eq!(form(FAST_COLUMNS, Precision::Fast), ActivationForm::Bf16Row);
        assert_eq!(form(FAST_COLUMNS, Precision::High), ActivationForm::F32);
    }
    if Isa::Avx512Bf16.is_available() {
        let form = |ty| form_with(kernels_of(Isa::Avx512Bf16), ty, FAST_COLUMNS, Precision::Fast);
        assert_eq!(
            [form(GgmlType::F16), form(GgmlType::BF16)],
            [ActivationForm::I16Pairs, FORM]
        );
    }
    let of_floats = form_with(&TILE_MODEL, GgmlType::F32, FAST_COLUMNS, Precision::Fast);
    assert_eq!(of_floats, ActivationForm::F32);
}

/// Checks rows of floats that are not whole tiles.
#[test]
fn tile_matmul_accepts_any_row_length() {
    for k in [1, 7, 33, 250, 257, 330, 583] {
        let weights = all_weights(40, k).filter(|weights| weights.ty.block_size() == 1);
        for weights in weights {
            for kernels in kernels_for(weights.ty) {
                check(kernels, &weights, 39, &noise(76, 35 * k));
            }
        }
    }
}

/// Checks that bf16 rows fit the memory reserved for 16-bit rows. Their distance must not be a multiple of
/// 4096 bytes, which would map all rows to the same cache sets.
#[test]
fn bf16_rows_fit_reserved_memory() {
    for k in (1..=64).chain([255, 256, 576, 1024, 2048, 4096, 8192, 11008]) {
        let bytes = activation_bytes(FORM, k);
        assert!(bytes <= activation_bytes(ActivationForm::I16Row, k), "{k}");
        assert!(bytes.is_multiple_of(64) && !bytes.is_multiple_of(4096), "{k}");
    }
}

/// Checks that the model, and the units of this CPU, compute sums of products.
#[test]
fn tile_unit_computes_sums_of_products() {
    let (steps, x_stride) = (8, 8 * 64 + 6);
    let bf16 = |seed, n| -> Vec<half::bf16> { noise(seed, n).into_iter().map(half::bf16::from_f32).collect() };
    let x = bf16(76, 32 * x_stride / 2);
    // Allocates extra bytes for alignment.
    let w = bf16(77, steps * TILE_BYTES + 32);
    let w = &w[w.as_ptr().cast::<u8>().align_offset(64) / 2..];
    for (steps, is_first, streams) in [
        (1, true, true),
        (1, false, false),
        (steps, false, true),
        (steps, true, false),
    ] {
        let block = TileBlock {
            streams,
            x: x.as_ptr().cast(),
            x_stride,
            columns: 32,
            w: w.as_ptr().cast(),
            steps,
            sums: std::ptr::null(),
            to: std::ptr::null_mut(),
            to_stride: TO_STRIDE,
        };
        let product = |column: usize, row: usize, e: usize| {
            let tile = 2 * (e / 32) + row / 16;
            let weight = w[tile * TILE_BYTES / 2 + e % 32 / 2 * 32 + row % 16 * 2 + e % 2];
            weight.to_f64() * x[column * x_stride / 2 + e].to_f64()
        };
        let check = |what: &str, sums: Vec<f32>| {
            for (column, row) in (0..32).flat_map(|column| (0..32).map(move |row| (column, row))) {
                let products: f64 = (0..32 * steps).map(|e| product(column, row, e)).sum();
                let expected = products + if is_first { 0.0 } else { BEFORE.into() };
                let got = f64::from(sums[column * TO_STRIDE / 4 + row]);
                // The unit rounds one addition per lane for every two elements.
                let bound = 1e-6 * (1 + 16 * steps) as f64;
                assert!(
                    (got - expected).abs() <= bound,
                    "{what}, {steps} steps: {got} instead of {expected}"
                );
            }
        };
        check("model", sums_of::<TileModel<Portable>>(&block, is_first));
        #[cfg(target_arch = "x86_64")]
        if Isa::AmxBf16.is_available() {
            check("unit", sums_of::<crate::simd::x86_64::amx::Amx>(&block, is_first));
        }
        #[cfg(target_arch = "x86_64")]
        if Isa::Avx512Bf16.is_available() {
            check(
                "dots",
                sums_of::<crate::simd::x86_64::bf16_dots::Bf16Dots>(&block, is_first),
            );
        }
    }
}

/// Initial value of the accumulators.
const BEFORE: f32 = 0.25;

/// Unaligned distance in bytes between the sums of two columns.
const TO_STRIDE: usize = 32 * 4 + 20;

/// Returns the sums of a block computed by a unit. The CPU must support it, and the operands must be large
/// enough.
fn sums_of<U: TileUnit>(block: &TileBlock, is_first: bool) -> Vec<f32> {
    let before = TileSums([[BEFORE; 32]; 32]);
    let mut to = vec![f32::NAN; 32 * TO_STRIDE / 4];
    let block = TileBlock {
        sums: if is_first { std::ptr::null() } else { &raw const before },
        to: to.as_mut_ptr(),
        ..*block
    };
    // SAFETY: the operands suffice for the largest block. The CPU supports the unit, or `U` is the model.
    unsafe { U::new().add(&block) };
    let whole = to.clone();
    // SAFETY: as above.
    unsafe {
        let mut unit = U::new();
        unit.begin(block.sums);
        for step in 0..block.steps {
            unit.add_step(&block, step);
        }
        unit.end(block.to, block.to_stride);
    }
    assert!(
        whole.iter().zip(&to).all(|(a, b)| a.to_bits() == b.to_bits()),
        "by steps"
    );
    // The gaps between columns must stay untouched.
    assert!(
        to.chunks(TO_STRIDE / 4)
            .all(|column| column[32..].iter().all(|x| x.is_nan()))
    );
    to
}
