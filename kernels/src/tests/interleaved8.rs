//! Tests of interleaved rows: matmuls have the same bits as with panels of rows in file layout, which
//! [`panels`](super::panels) compares with the definition.

use super::panels::{Rows, filled, product_of};
use super::*;
use crate::ActivationForm;
use crate::dispatch::TILE_MODEL;
use crate::interleaved::{GROUP_ROWS, can_interleave, deinterleave, deinterleave_row, interleave, interleaved_bytes};

/// Row lengths: a single block, with a remainder, longer than a panel's part.
const K: [usize; 7] = [32, 64, 96, 256, 288, 768, 1280];

/// Yields the types that can be interleaved, with blocks for at least [`GROUPS`] groups of each length.
fn types() -> impl Iterator<Item = (GgmlType, Vec<u8>)> {
    let can = |ty: &GgmlType| can_interleave(*ty, 256);
    let types = scalar_decoders().into_iter().map(|(ty, _)| ty).filter(can);
    types.map(|ty| (ty, blocks(ty).repeat(8)))
}

const GROUPS: usize = 3;

/// Number of columns, more than registers or tiles multiply at a time.
const COLUMNS: usize = 17;

/// Yields all kernels and the kernels of the tile model.
fn kernels_and_model() -> impl Iterator<Item = &'static Kernels> {
    all_kernels().chain([&TILE_MODEL])
}

/// Returns the first rows of `k` weights in file layout and interleaved.
fn both_layouts(ty: GgmlType, blocks: &[u8], k: usize) -> [Vec<u8>; 2] {
    let of_rows = GROUP_ROWS * ty.row_bytes(k).unwrap();
    let rows = blocks[..GROUPS * of_rows].to_vec();
    let groups = interleaved(ty, &rows, k);
    [rows, groups]
}

/// Interleaves rows of `k` weights.
fn interleaved(ty: GgmlType, rows: &[u8], k: usize) -> Vec<u8> {
    let (bytes, of_rows) = (interleaved_bytes(ty, k), GROUP_ROWS * ty.row_bytes(k).unwrap());
    let mut groups = vec![0; rows.len() / of_rows * bytes];
    for (rows, group) in rows.chunks(of_rows).zip(groups.chunks_mut(bytes)) {
        interleave(ty, k, rows, group);
    }
    groups
}

fn lengths(ty: GgmlType) -> impl Iterator<Item = usize> {
    K.into_iter().filter(move |&k| can_interleave(ty, k))
}

/// Returns the bits of a result without the gaps between rows.
fn bits(out: &[f32], m: usize) -> Vec<Vec<u32>> {
    let rows = out.chunks(m + 2);
    rows.map(|row| row[..m].iter().map(|x| x.to_bits()).collect()).collect()
}

#[test]
fn can_interleave_lists_supported_types() {
    let names: Vec<String> = types().map(|(ty, _)| ty.name().to_lowercase()).collect();
    let expected = [
        "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq2_xxs", "iq2_xs", "iq3_xxs",
        "iq1_s", "iq4_nl", "iq3_s", "iq2_s", "iq4_xs", "iq1_m", "mxfp4", "tq1_0", "tq2_0", "nvfp4", "q1_0", "q2_0",
        "iq4_k", "iq4_ks_d",
    ];
    assert_eq!(names, expected);
    assert!(
        !can_interleave(GgmlType::Q4_K, 128),
        "half a block must not be accepted"
    );
    assert!(!can_interleave(GgmlType::Q4_0, 0) && !can_interleave(GgmlType::F32, 256));
}

#[test]
fn deinterleave_restores_rows() {
    for (ty, blocks) in types() {
        for k in lengths(ty) {
            let [rows, groups] = both_layouts(ty, &blocks, k);
            assert_ne!(rows, groups, "{ty} {k}");
            let (bytes, of_rows) = (interleaved_bytes(ty, k), GROUP_ROWS * ty.row_bytes(k).unwrap());
            for (rows, group) in rows.chunks(of_rows).zip(groups.chunks(bytes)) {
                let mut back = vec![0xAA; of_rows];
                deinterleave(ty, k, group, &mut back);
                let last = GROUP_ROWS - 1;
                let mut row = vec![0; of_rows / GROUP_ROWS];
                deinterleave_row(ty, k, group, last, &mut row);
                assert_eq!(row, back[last * row.len()..], "{ty}, {k}");
                assert!(back == rows, "{ty} {k}");
            }
        }
    }
}

#[test]
fn interleaved_matmul_matches_panels_bitwise() {
    let m = GROUPS * GROUP_ROWS;
    for (ty, blocks) in types() {
        for k in lengths(ty) {
            let [rows, groups] = both_layouts(ty, &blocks, k);
            for (kernels, form) in kernels_and_model()
                .flat_map(|kernels| [ActivationForm::I16Row, ActivationForm::U8Chunk].map(|form| (kernels, form)))
            {
                let x = Rows::new(kernels, form, k, &noise(51, COLUMNS * k));
                let stride = ty.row_bytes(k).unwrap();
                let plain = (ty, &rows[..], WeightLayout::Rows { stride });
                let expected = bits(&product_of(kernels, plain, m, &x, m, COLUMNS), m);
                // With 16-bit activations, any number of columns gives the same bits as the panels used for
                // many columns.
                let all: &[_] = if form == ActivationForm::I16Row {
                    &[1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, COLUMNS]
                } else {
                    &[COLUMNS]
                };
                for &columns in all {
                    for at_once in [m, GROUP_ROWS] {
                        let interleaved = (ty, &groups[..], WeightLayout::Interleaved);
                        let out = bits(&product_of(kernels, interleaved, m, &x, at_once, columns), m);
                        let what = format!("{:?} {ty} {form:?} k {k}", kernels.isa);
                        assert!(out == expected, "{what}: {at_once} rows, {columns} columns at a time");
                    }
                }
            }
        }
    }
}

/// Covers few and many groups and columns, below and above the limits of registers and tiles. Rows have one
/// block, a remainder, or several blocks.
#[test]
fn interleaved_matmul_any_size_matches_panels() {
    let form = ActivationForm::I16Row;
    for (ty, blocks) in types() {
        for k in [32, 96, 288, 2304].into_iter().filter(|&k| can_interleave(ty, k)) {
            let n_columns = 33;
            for n_groups in [1, 2, 4, 5] {
                let (m, stride) = (n_groups * GROUP_ROWS, ty.row_bytes(k).unwrap());
                let rows: Vec<u8> = blocks.iter().copied().cycle().take(m * stride).collect();
                let groups = interleaved(ty, &rows, k);
                for kernels in kernels_and_model() {
                    let x = Rows::new(kernels, form, k, &noise(54, n_columns * k));
                    let plain = (ty, &rows[..], WeightLayout::Rows { stride });
                    let expected = bits(&product_of(kernels, plain, m, &x, m, n_columns), m);
                    for columns in [1, 2, 15, 16, 17, 31, 32, 33] {
                        let weights = (ty, &groups[..], WeightLayout::Interleaved);
                        let out = bits(&product_of(kernels, weights, m, &x, m, columns), m);
                        let what = format!("{:?} {ty} k {k}", kernels.isa);
                        assert!(
                            out == expected,
                            "{what}: {n_groups} groups, {columns} columns at a time"
                        );
                    }
                }
            }
        }
    }
}

/// Covers every number of columns per tile and of groups after the last whole panels.
#[test]
fn group_panels_match_single_columns_bitwise() {
    let form = ActivationForm::I16Row;
    let mut n_kernels = 0;
    for (ty, blocks) in types() {
        for k in [32, 288, 512].into_iter().filter(|&k| can_interleave(ty, k)) {
            for n_groups in [1, 3, 6, 7] {
                let (m, stride) = (n_groups * GROUP_ROWS, ty.row_bytes(k).unwrap());
                let rows: Vec<u8> = blocks.iter().copied().cycle().take(m * stride).collect();
                let groups = interleaved(ty, &rows, k);
                let weights = (ty, &groups[..], WeightLayout::Interleaved);
                for kernels in all_kernels().filter(|kernels| kernels.int.group_panels.is_some()) {
                    n_kernels += 1;
                    let x = Rows::new(kernels, form, k, &noise(58, 35 * k));
                    let expected = bits(&product_of(kernels, weights, m, &x, m, 1), m);
                    for columns in [4, 5, 6, 7, 8, 9, 35] {
                        let out = bits(&product_of(kernels, weights, m, &x, m, columns), m);
                        let what = format!("{:?} {ty} k {k}", kernels.isa);
                        assert!(
                            out == expected,
                            "{what}: {n_groups} groups, {columns} columns at a time"
                        );
                    }
                }
            }
        }
    }
    assert!(n_kernels > 0 || !crate::Isa::Avx2.is_available());
}

/// Forms of activations that matmuls of row groups accept.
const FORMS: [ActivationForm; 2] = [ActivationForm::I16Row, ActivationForm::U8Chunk];

#[test]
fn interleaved_matmul_subnormal_scales_match_panels() {
    let (m, k) = (GROUPS * GROUP_ROWS, 512);
    let stride = |ty: GgmlType| ty.row_bytes(k).unwrap();
    for (ty, blocks) in types() {
        let (blocks, _) = super::blocks::with_subnormal_scales(ty, blocks).unwrap();
        let [rows, groups] = both_layouts(ty, &blocks, k);
        let x: Vec<f32> = noise(55, COLUMNS * k).into_iter().map(|x| 1e20 * x).collect();
        for (kernels, form) in kernels_and_model().flat_map(|kernels| FORMS.map(move |form| (kernels, form))) {
            let x = Rows::new(kernels, form, k, &x);
            let plain = (ty, &rows[..], WeightLayout::Rows { stride: stride(ty) });
            let expected = bits(&product_of(kernels, plain, m, &x, m, COLUMNS), m);
            assert!(
                expected.iter().flatten().any(|x| *x << 1 != 0),
                "{ty}: all results are zero"
            );
            let all: &[_] = if form == ActivationForm::I16Row {
                &[1, 2, 3, 8, COLUMNS]
            } else {
                &[COLUMNS]
            };
            for &columns in all {
                let weights = (ty, &groups[..], WeightLayout::Interleaved);
                let out = bits(&product_of(kernels, weights, m, &x, m, columns), m);
                assert!(
                    out == expected,
                    "{:?} {ty} {form:?}, {columns} columns at a time",
                    kernels.isa
                );
            }
        }
    }
}

#[test]
fn interleaved_matmul_propagates_non_finite_scales() {
    let (m, k) = (GROUPS * GROUP_ROWS, 512);
    for (ty, blocks) in types() {
        for bad in super::blocks::spoiled(ty, &blocks, 11, k) {
            let [_, groups] = both_layouts(ty, &bad, k);
            let weights = (ty, &groups[..], WeightLayout::Interleaved);
            for (kernels, form) in kernels_and_model().flat_map(|kernels| FORMS.map(move |form| (kernels, form))) {
                let x = Rows::new(kernels, form, k, &noise(56, COLUMNS * k));
                for columns in [1, 2, 3, 8, COLUMNS] {
                    let out = product_of(kernels, weights, m, &x, m, columns);
                    for row in out.chunks(m + 2) {
                        let is_expected = row[..m].iter().enumerate().all(|(i, x)| x.is_finite() == (i != 11));
                        let what = format!("{:?} {ty} {form:?}, {columns} columns at a time", kernels.isa);
                        assert!(is_expected, "{what}: {row:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn interleaved_matmul_propagates_non_finite_activations() {
    let (m, k) = (GROUPS * GROUP_ROWS, 512);
    for (ty, blocks) in types() {
        let [_, groups] = both_layouts(ty, &blocks, k);
        let weights = (ty, &groups[..], WeightLayout::Interleaved);
        for (kernels, form) in kernels_and_model().flat_map(|kernels| FORMS.map(move |form| (kernels, form))) {
            for (bad, at) in [(f32::NAN, 0), (f32::INFINITY, 17), (f32::NEG_INFINITY, k - 1)] {
                let mut x = noise(57, COLUMNS * k);
                x[3 * k + at] = bad;
                let x = Rows::new(kernels, form, k, &x);
                for columns in [1, 2, 3, 8, COLUMNS] {
                    let out = product_of(kernels, weights, m, &x, m, columns);
                    for (j, row) in out.chunks(m + 2).enumerate() {
                        let is_expected = row[..m].iter().all(|x| x.is_finite() == (j != 3));
                        let what = format!("{:?} {ty} {form:?}, {columns} columns at a time", kernels.isa);
                        assert!(is_expected, "{what}, column {j}: {row:?}");
                    }
                }
            }
        }
    }
}

/// Depending on their number and length, rows are read as one stream, as two streams of adjacent groups, or
/// as two halves.
#[test]
fn interleaved_matmul_stream_order_keeps_bits() {
    let ty = GgmlType::Q8_0;
    // Row groups range from 1 to 140 KiB.
    for k in [128, 1024, 4096, 16384] {
        for n_groups in [1, 2, 3, 4, 7, 12] {
            let m = n_groups * GROUP_ROWS;
            let n_bytes = m * ty.row_bytes(k).unwrap();
            let rows: Vec<u8> = blocks(ty).into_iter().cycle().take(n_bytes).collect();
            let groups = interleaved(ty, &rows, k);
            let weights = (ty, &groups[..], WeightLayout::Interleaved);
            for kernels in kernels_and_model() {
                let x = Rows::new(kernels, ActivationForm::I16Row, k, &noise(53, 6 * k));
                for columns in [1, 3, 6] {
                    let [one_by_one, together] =
                        [GROUP_ROWS, m].map(|at_once| bits(&product_of(kernels, weights, m, &x, at_once, columns), m));
                    assert!(
                        together == one_by_one,
                        "{:?}, k {k}, {n_groups} groups, {columns} columns",
                        kernels.isa
                    );
                }
            }
        }
    }
}

/// Multiplies the largest weights by the largest byte parts of activations and compares 16-bit accumulation
/// with panels, which accumulate in 32 bits.
#[test]
fn interleaved_matmul_largest_operands_do_not_overflow() {
    let (m, k) = (GROUPS * GROUP_ROWS, 512);
    // The first element of each row forces a scale of 1, so that integers `256 high + low` have the chosen
    // parts of -128 to 127.
    let integers = [
        -32639,
        32639,
        127 * 256 - 128,
        -126 * 256 - 128,
        -128,
        127,
        128,
        -127 * 256 + 1,
        0,
    ];
    let x: Vec<f32> = (0..integers.len() * k)
        .map(|i| if i % k == 0 { 32639 } else { integers[i / k] } as f32)
        .collect();
    for (ty, blocks) in types() {
        for pattern in [0x00, 0xff, 0xf0, 0x0f, 0x55, 0xaa] {
            let [_, groups] = both_layouts(ty, &filled(ty, &blocks, pattern), k);
            let weights = (ty, &groups[..], WeightLayout::Interleaved);
            for kernels in kernels_and_model() {
                let x = Rows::new(kernels, ActivationForm::I16Row, k, &x);
                let expected = bits(&product_of(kernels, weights, m, &x, m, integers.len()), m);
                for columns in [1, 2, 3, 5, integers.len()] {
                    let out = bits(&product_of(kernels, weights, m, &x, m, columns), m);
                    assert!(
                        out == expected,
                        "{:?} {ty} {pattern:#x}: {columns} columns",
                        kernels.isa
                    );
                }
            }
        }
    }
}

/// Checks that f32 activations give the same result for interleaved rows as for rows in file layout.
#[test]
fn interleaved_matmul_accepts_f32_activations() {
    let m = GROUPS * GROUP_ROWS;
    for (ty, blocks) in types() {
        for (k, n) in lengths(ty).flat_map(|k| [1, 5].map(|n| (k, n))) {
            let [rows, groups] = both_layouts(ty, &blocks, k);
            let x = noise(52, n * k);
            let stride = ty.row_bytes(k).unwrap();
            for kernels in all_kernels() {
                let [expected, out] = [
                    (&rows, WeightLayout::Rows { stride }),
                    (&groups, WeightLayout::Interleaved),
                ]
                .map(|(w, layout)| {
                    let mut out = vec![f32::NAN; n * m];
                    let mut scratch = vec![f32::NAN; matmul_scratch(k, n)];
                    let x = Activations::F32 { x: &x, stride: k };
                    let args = MatMul {
                        ty,
                        w,
                        layout,
                        m,
                        k,
                        x,
                        n,
                        allow_reassociation: false,
                        reuse_prepared_x: false,
                    };
                    // SAFETY: `out` has `n` rows of `m` floats; the CPU supports `kernels`.
                    unsafe { matmul_with(kernels, &args, out.as_mut_ptr(), m, &mut scratch) };
                    out
                });
                assert!(out == expected, "{:?} {ty} k {k} n {n}", kernels.isa);
            }
        }
    }
}

#[test]
#[should_panic(expected = "expected whole row groups, found 12 rows")]
fn matmul_rejects_partial_groups() {
    let w = vec![0; 16 * 18];
    let args = MatMul {
        ty: GgmlType::Q4_0,
        w: &w,
        layout: WeightLayout::Interleaved,
        m: 12,
        k: 32,
        x: Activations::F32 {
            x: &[0.0; 32],
            stride: 32,
        },
        n: 1,
        allow_reassociation: false,
        reuse_prepared_x: false,
    };
    let mut out = [0.0; 16];
    // SAFETY: `out` has a row of 16 floats.
    unsafe { crate::matmul(&args, out.as_mut_ptr(), 16, &mut vec![0.0; matmul_scratch(32, 1)]) };
}
