//! Matmuls with 5 to 128 columns: accuracy of f16 integers, and work counted by the emulated driver.

use engine::backend::cuda::{Counters, Specialization, loaded};
use engine::graph::{Layout, TensorId};
use kernels::{GgmlType, Precision};
use tests::emulator::{with_device, with_settings};
use tests::nmse;

use crate::cuda::card;
use crate::cuda_fusion::Sketch;

/// Types that are converted to f16 integers, with the smallest number of values in rows of whole 16-byte loads.
pub(crate) const TYPES: [(GgmlType, usize); 13] = [
    (GgmlType::Q4_0, 256),
    (GgmlType::Q4_1, 256),
    (GgmlType::Q5_0, 256),
    (GgmlType::Q5_1, 256),
    (GgmlType::Q8_0, 256),
    (GgmlType::Q2_K, 1024),
    (GgmlType::Q3_K, 2048),
    (GgmlType::Q4_K, 256),
    (GgmlType::Q5_K, 256),
    (GgmlType::Q6_K, 2048),
    (GgmlType::IQ4_NL, 256),
    (GgmlType::IQ4_XS, 512),
    (GgmlType::MXFP4, 512),
];

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
    words.map(f32::from_le_bytes).collect()
}

/// Multiplies in double precision.
pub(crate) fn product(weights: &[f32], columns: &[f32], k: usize) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32;
    let column = |x| weights.chunks_exact(k).map(move |row| dot(row, x));
    columns.chunks_exact(k).flat_map(column).collect()
}

/// Adds random weights in the layout that the GPU prefers. Returns the tensor and its values.
fn weights(s: &mut Sketch, ty: GgmlType, ne: [usize; 4]) -> (TensorId, Vec<f32>) {
    let plain = s.values(ty, ne);
    let bytes = s.contents(plain).to_vec();
    weights_of(s, ty, ne, &bytes)
}

/// Like [`weights`], with the bytes of a file.
pub(crate) fn weights_of(s: &mut Sketch, ty: GgmlType, ne: [usize; 4], bytes: &[u8]) -> (TensorId, Vec<f32>) {
    let mut values = vec![0.0; ne.iter().product()];
    kernels::dequantize_row(ty, bytes, &mut values);
    let places = engine::backend::device(&card())
        .expect("the GPU exists")
        .weight_storage();
    let repacked = places.iter().find_map(|place| match place.layout {
        Layout::Repacked(repack) if place.layout.accepts(ty, ne) => Some((place.layout, repack)),
        _ => None,
    });
    let Some((layout, repack)) = repacked else {
        return (s.leaf(ty, ne, bytes.to_vec()), values);
    };
    let row_bytes = ty.row_bytes(ne[0]).expect("rows are whole blocks");
    let packed_bytes = repack.group_bytes(ty, ne[0]);
    let mut packed = vec![0; bytes.len() / row_bytes * packed_bytes];
    for (row, to) in bytes.chunks_exact(row_bytes).zip(packed.chunks_exact_mut(packed_bytes)) {
        repack.pack(ty, ne[0], row, to);
    }
    let w = s.leaf(ty, ne, packed);
    s.graph.tensor_mut(w).layout = layout;
    (w, values)
}

/// Adds columns of very different magnitudes. Returns the tensor and its values.
fn columns(s: &mut Sketch, ne: [usize; 4]) -> (TensorId, Vec<f32>) {
    let random = s.values(GgmlType::F32, ne);
    let mut values = floats(s.contents(random));
    for (c, column) in values.chunks_exact_mut(ne[0]).enumerate() {
        let factor = [1.0, 0.0, 1e-6, 3e4][c % 4];
        column.iter_mut().for_each(|x| *x *= factor);
    }
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    (s.leaf(GgmlType::F32, ne, bytes), values)
}

/// Asserts that a column of results is accurate. Columns are rounded to 11 bits, and so are some products of weights and
/// scales, each with a relative error of at most 2^-12.
pub(crate) fn check_column(want: &[f32], got: &[f32], title: &str) {
    let error = if want.iter().all(|x| *x == 0.0) {
        f64::from(got.iter().fold(0.0f32, |most, x| most.max(x.abs())))
    } else {
        nmse(want, got)
    };
    assert!(error < 2e-6, "{title}: {error:.2e}");
}

fn assert_streamed(ty: GgmlType, mark: &str) {
    let used: Vec<String> = loaded().iter().map(Specialization::describe).collect();
    let is_streamed = |name: &String| {
        let of_type = format!("TYPE={}", ty.name());
        name.starts_with("mul_stream") && name.contains(&of_type) && name.contains(mark)
    };
    assert!(used.iter().any(is_streamed), "{ty}: {used:?}");
}

/// Returns the floats of a result. Results of two runs must be identical.
fn stable([first, second]: [(Vec<Vec<u8>>, Option<usize>); 2], title: &str) -> Vec<f32> {
    assert!(first.0 == second.0, "{title}: the results of two runs differ");
    floats(&first.0[0])
}

/// Multiplies weights of a type by `n` columns of very different magnitudes.
pub(crate) fn check_matmul(ty: GgmlType, [k, m, n]: [usize; 3]) {
    let mut s = Sketch::new(Precision::Fast);
    let (w, weights) = weights(&mut s, ty, [k, m, 1, 1]);
    let (x, columns) = columns(&mut s, [k, n, 1, 1]);
    let node = s.graph.mul_mat(w, x).expect("the shapes match");
    s.graph.expand(node);
    let title = format!("{ty}, {k} x {m}");
    let (want, got) = (product(&weights, &columns, k), stable(s.both(&[node]), &title));
    for (c, (want, got)) in want.chunks_exact(m).zip(got.chunks_exact(m)).enumerate() {
        check_column(want, got, &format!("{title}, column {c} of {n}"));
    }
}

/// Rows that end within a block, divided rows, both tile sizes, and columns of very different magnitudes.
#[test]
fn streamed_matmuls_match_double_precision() {
    with_device("cuda_stream::streamed_matmuls_match_double_precision", || {
        for (ty, unit) in TYPES {
            for (k, m, n) in [
                (256, 60, 9),
                (2048, 130, 16),
                (1280, 40, 17),
                (512, 50, 64),
                (512, 70, 100),
            ] {
                let k: usize = unit.max(k / unit * unit);
                check_matmul(ty, [k, m, n]);
            }
            assert_streamed(ty, "IDS=0");
        }
    });
}

/// With fast memory, `mul_stream` multiplies five or more columns of large matrices, because it needs fewer instructions
/// than the kernel for few columns.
#[test]
fn large_matrices_stream_few_columns_if_memory_is_fast() {
    let name = "cuda_stream::large_matrices_stream_few_columns_if_memory_is_fast";
    with_settings(name, "sm=90", || {
        let (k, m) = (2048, 1 << 14);
        let sizes = [[k, m, 4], [k, m - 1, 8], [k, m, 5]];
        sizes.into_iter().for_each(|size| check_matmul(GgmlType::Q6_K, size));
        let used: Vec<String> = loaded().iter().map(Specialization::describe).collect();
        for columns in ["COLS=4", "COLS=8"] {
            let is_few = |name: &&String| name.starts_with("mul_few_int") && name.contains(columns);
            assert!(used.iter().any(|name| is_few(&name)), "{columns}: {used:?}");
        }
        let device = engine::backend::device(&card()).expect("the GPU exists");
        if device.description().contains("compute capability 9.0") {
            assert_streamed(GgmlType::Q6_K, "COLUMNS=16");
        }
    });
}

/// Sizes of rows that are not whole steps, or whose bytes are padded.
pub(crate) fn incomplete_sizes(ty: GgmlType) -> Vec<usize> {
    match ty.block_size() {
        32 => vec![288, 576],
        block => vec![3 * block],
    }
}

/// Rows whose last step is incomplete, and rows that are padded to multiples of 16 bytes.
#[test]
fn streamed_matmuls_with_incomplete_steps_match_double_precision() {
    let name = "cuda_stream::streamed_matmuls_with_incomplete_steps_match_double_precision";
    with_device(name, || {
        for (ty, _) in TYPES {
            for k in incomplete_sizes(ty) {
                check_matmul(ty, [k, 60, 20]);
            }
            assert_streamed(ty, "IDS=0");
        }
        // Rows are divided, and only their last part ends with an incomplete step.
        check_matmul(GgmlType::MXFP4, [2880, 40, 17]);
        check_experts(GgmlType::MXFP4, [2880, 40], [14, 1]);
        assert_streamed(GgmlType::MXFP4, "IDS=1");
    });
}

/// Number of experts, and experts per token.
const EXPERTS: usize = 5;
const USED: usize = 2;

/// Multiplies the matrices of experts with `rows` rows by the columns of `n_tokens` tokens, each with `of_token` columns.
pub(crate) fn check_experts(ty: GgmlType, [k, rows]: [usize; 2], [n_tokens, of_token]: [usize; 2]) {
    let mut s = Sketch::new(Precision::Fast);
    let (w, weights) = weights(&mut s, ty, [k, rows, EXPERTS, 1]);
    let (x, columns) = columns(&mut s, [k, of_token, n_tokens, 1]);
    // The first expert is in half of the pairs, and the last in none.
    let expert = |token: usize, slot: usize| {
        if slot == token % USED {
            0
        } else {
            1 + token % (EXPERTS - 2)
        }
    };
    let ids: Vec<i32> = (0..n_tokens * USED)
        .map(|i| expert(i / USED, i % USED) as i32)
        .collect();
    let ids = s.ints(&ids, [USED, n_tokens, 1, 1]);
    let node = s.graph.mul_mat_id(w, x, ids).expect("the shapes match");
    s.graph.expand(node);
    let found = stable(s.both(&[node]), &format!("experts of {ty}"));
    for (pair, got) in found.chunks_exact(rows).enumerate() {
        let (token, slot) = (pair / USED, pair % USED);
        let column = &columns[(token * of_token + slot % of_token) * k..][..k];
        let matrix = &weights[expert(token, slot) * rows * k..][..rows * k];
        let title = format!("{ty}, token {token} of {n_tokens}, slot {slot}");
        check_column(&product(matrix, column, k), got, &title);
    }
}

/// Experts with few and with many columns, with columns shared by the experts of a token, and without.
#[test]
fn streamed_experts_match_double_precision() {
    with_device("cuda_stream::streamed_experts_match_double_precision", || {
        for (ty, k) in TYPES {
            for counts in [[14, 1], [60, USED]] {
                check_experts(ty, [k, 40], counts);
            }
            assert_streamed(ty, "IDS=1");
        }
    });
}

/// Types with the bytes that a step of a row loads, and warp instructions per KiB of weights with 16 and with 32 columns.
const INSTRUCTIONS: [(GgmlType, usize, [f64; 2]); 13] = [
    (GgmlType::Q4_0, 144, [217.0, 309.0]),
    (GgmlType::Q4_1, 160, [200.0, 291.0]),
    (GgmlType::Q5_0, 176, [249.0, 324.0]),
    (GgmlType::Q5_1, 192, [238.0, 314.0]),
    (GgmlType::Q8_0, 272, [130.0, 180.0]),
    (GgmlType::Q2_K, 96, [395.0, 493.0]),
    (GgmlType::Q3_K, 144, [382.0, 440.0]),
    (GgmlType::Q4_K, 144, [206.0, 262.0]),
    (GgmlType::Q5_K, 176, [215.0, 262.0]),
    (GgmlType::Q6_K, 224, [197.0, 227.0]),
    (GgmlType::IQ4_NL, 144, [332.0, 424.0]),
    (GgmlType::IQ4_XS, 144, [345.0, 392.0]),
    (GgmlType::MXFP4, 144, [333.0, 431.0]),
];

/// Each block loads its weights once for all columns of a tile. The numbers of instructions must be
/// within 5 % of the recorded numbers.
#[test]
fn streamed_weights_are_loaded_once() {
    with_device("cuda_stream::streamed_weights_are_loaded_once", || {
        let Some(counters) = Counters::find() else {
            eprintln!("skipped: only the emulated driver counts accesses");
            return;
        };
        let (k, m) = (4096, 256);
        let mut faults = Vec::new();
        for (ty, of_step, recorded) in INSTRUCTIONS {
            for (n, recorded) in [16, 32].into_iter().zip(recorded) {
                let mut s = Sketch::new(Precision::Fast);
                let (w, _) = weights(&mut s, ty, [k, m, 1, 1]);
                let x = s.values(GgmlType::F32, [k, n, 1, 1]);
                let node = s.graph.mul_mat(w, x).expect("the shapes match");
                s.graph.expand(node);
                s.both(&[node]);
                let all: serde_json::Value = serde_json::from_str(&counters.json()).expect("the counters are JSON");
                let kernels = all["kernels"].as_object().expect("kernels were launched");
                let found = kernels.iter().find(|(name, _)| name.starts_with("mul_stream"));
                let (_, matmul) = found.expect("the matmul is streamed");
                let number = |value: &serde_json::Value| value.as_u64().expect("a counter") as usize;
                // Two halves per value and four bytes per sum, for each of two blocks of rows.
                let sums = if ty == GgmlType::Q2_K { 16 } else { 8 };
                let columns = 2 * n * (2 * k + 4 * sums * k / 256);
                assert_eq!(
                    number(&matmul["copies"]["bytes"]),
                    m * k / 256 * of_step + columns,
                    "{ty}, {n} columns"
                );
                let classes = matmul["instructions"].as_object().expect("classes of instructions");
                let warps: usize = classes.values().map(|class| number(&class["warps"])).sum();
                let weights = ty.row_bytes(k).expect("rows are whole blocks") * m;
                let found = warps as f64 / (weights as f64 / 1024.0);
                if (found / recorded - 1.0).abs() > 0.05 {
                    faults.push(format!("{ty}, {n} columns: {found:.0}, recorded {recorded}"));
                }
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    });
}
