//! Interleaved rows: the bits of the products are those of panels of rows as in a file, which [`panels`](super::panels) compares with the definition.

use super::panels::{Rows, filled, product_of};
use super::*;
use crate::ActivationForm;
use crate::dispatch::TILE_MODEL;
use crate::interleaved::{GROUP_ROWS, can_interleave, deinterleave, deinterleave_row, interleave, interleaved_bytes};

/// Lengths of rows: one block, with rests, longer than a panel's part.
const K: [usize; 7] = [32, 64, 96, 256, 288, 768, 1280];

/// Types that can be interleaved with blocks for [`GROUPS`] groups of rows of each length.
fn types() -> impl Iterator<Item = (GgmlType, Vec<u8>)> {
    let can = |ty: &GgmlType| can_interleave(*ty, 256);
    let types = scalar_decoders().into_iter().map(|(ty, _)| ty).filter(can);
    types.map(|ty| (ty, blocks(ty).repeat(8)))
}

const GROUPS: usize = 3;

/// Columns: more than are multiplied together in registers or in tiles.
const COLUMNS: usize = 17;

/// With those over a model of the unit for tiles.
fn kernels_and_model() -> impl Iterator<Item = &'static Kernels> {
    all_kernels().chain([&TILE_MODEL])
}

/// The first rows of `k` weights, plain and interleaved.
fn both_layouts(ty: GgmlType, blocks: &[u8], k: usize) -> [Vec<u8>; 2] {
    let of_rows = GROUP_ROWS * ty.row_bytes(k).unwrap();
    let rows = blocks[..GROUPS * of_rows].to_vec();
    let groups = interleaved(ty, &rows, k);
    [rows, groups]
}

/// Rows of `k` weights, interleaved.
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

/// Bits of a product, without what lies between rows of the result.
fn bits(out: &[f32], m: usize) -> Vec<Vec<u32>> {
    let rows = out.chunks(m + 2);
    rows.map(|row| row[..m].iter().map(|x| x.to_bits()).collect()).collect()
}

#[test]
fn the_types_that_can_be_interleaved() {
    let names: Vec<String> = types().map(|(ty, _)| ty.name().to_lowercase()).collect();
    let expected = [
        "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq2_xxs", "iq2_xs", "iq3_xxs",
        "iq1_s", "iq4_nl", "iq3_s", "iq2_s", "iq4_xs", "iq1_m", "mxfp4", "tq1_0", "tq2_0", "nvfp4", "q1_0", "q2_0",
    ];
    assert_eq!(names, expected);
    assert!(!can_interleave(GgmlType::Q4_K, 128), "no whole block");
    assert!(!can_interleave(GgmlType::Q4_0, 0) && !can_interleave(GgmlType::F32, 256));
}

#[test]
fn interleaving_can_be_undone() {
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
fn groups_are_multiplied_as_panels_of_rows_are() {
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
                // With activations of 16 bits any number of columns gives the bits of many, which are multiplied by panels.
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

/// Few and many groups and columns, below and above what registers and tiles hold; rows of one block, with a rest, and longer than any block.
#[test]
fn any_number_of_groups_and_columns() {
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

/// Forms of activations that groups take.
const FORMS: [ActivationForm; 2] = [ActivationForm::I16Row, ActivationForm::U8Chunk];

#[test]
fn groups_with_subnormal_scales_are_multiplied_as_panels_of_rows_are() {
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
            assert!(expected.iter().flatten().any(|x| *x << 1 != 0), "{ty}: all zeros");
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
fn weights_that_are_not_finite_make_their_rows_so() {
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
fn activations_that_are_not_finite_spoil_their_column() {
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

/// Rows are read as one stream, as two of neighbouring groups, or as two halves: it depends on how many there are and how long they are.
#[test]
fn rows_have_the_same_bits_in_any_order_of_reading() {
    let ty = GgmlType::Q8_0;
    // Groups of 1 to 140 KiB.
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

/// The largest weights times the largest parts of activations: sums of 16 bits hold them. Panels add up in 32 bits.
#[test]
fn sums_of_the_largest_parts_do_not_wrap_around() {
    let (m, k) = (GROUPS * GROUP_ROWS, 512);
    // A scale of 1: `256 high + low` with parts of -128 to 127. A first one of the largest magnitude makes it so.
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

/// Floats are multiplied with groups, too, by the kernels for rows.
#[test]
fn groups_take_activations_that_are_floats() {
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
                        any_order: false,
                        again: false,
                    };
                    // SAFETY: `out` holds n rows of m floats; the CPU has the instructions.
                    unsafe { matmul_with(kernels, &args, out.as_mut_ptr(), m, &mut scratch) };
                    out
                });
                assert!(out == expected, "{:?} {ty} k {k} n {n}", kernels.isa);
            }
        }
    }
}

#[test]
#[should_panic(expected = "12 rows are no whole groups")]
fn rows_must_be_whole_groups() {
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
        any_order: false,
        again: false,
    };
    let mut out = [0.0; 16];
    // SAFETY: `out` holds one row.
    unsafe { crate::matmul(&args, out.as_mut_ptr(), 16, &mut vec![0.0; matmul_scratch(32, 1)]) };
}
