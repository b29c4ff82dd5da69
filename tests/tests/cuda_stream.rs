//! Matmuls with 9 to 128 columns: accuracy of f16 integers, and work counted by the emulated driver.

use engine::backend::cuda::Counters;
use kernels::{GgmlType, Precision};
use tests::emulator::with_device;
use tests::nmse;

use crate::cuda_fusion::Sketch;

/// Types that are converted to f16 integers, in the layout of files.
const TYPES: [GgmlType; 4] = [GgmlType::Q4_0, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q5_K];

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
    words.map(f32::from_le_bytes).collect()
}

/// Multiplies in double precision.
fn product(weights: &[f32], columns: &[f32], k: usize) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32;
    let column = |x| weights.chunks_exact(k).map(move |row| dot(row, x));
    columns.chunks_exact(k).flat_map(column).collect()
}

/// Rows that end within a block, divided rows, both tile sizes, and columns of very different magnitudes.
#[test]
fn streamed_matmuls_match_double_precision() {
    with_device("cuda_stream::streamed_matmuls_match_double_precision", || {
        for ty in TYPES {
            for (k, m, n) in [
                (256, 60, 9),
                (2048, 130, 16),
                (1280, 40, 17),
                (512, 50, 64),
                (512, 70, 100),
            ] {
                let mut s = Sketch::new(Precision::Fast);
                let w = s.values(ty, [k, m, 1, 1]);
                let random = s.values(GgmlType::F32, [k, n, 1, 1]);
                let mut columns = floats(s.contents(random));
                for (c, column) in columns.chunks_exact_mut(k).enumerate() {
                    let factor = [1.0, 0.0, 1e-6, 3e4][c % 4];
                    column.iter_mut().for_each(|x| *x *= factor);
                }
                let bytes = columns.iter().flat_map(|x| x.to_le_bytes()).collect();
                let x = s.leaf(GgmlType::F32, [k, n, 1, 1], bytes);
                let mut weights = vec![0.0; k * m];
                kernels::dequantize_row(ty, s.contents(w), &mut weights);
                let node = s.graph.mul_mat(w, x).expect("the shapes match");
                s.graph.expand(node);
                let [found, _] = s.both(&[node]);
                let (want, got) = (product(&weights, &columns, k), floats(&found.0[0]));
                for (c, (want, got)) in want.chunks_exact(m).zip(got.chunks_exact(m)).enumerate() {
                    let error = if want.iter().all(|x| *x == 0.0) {
                        f64::from(got.iter().fold(0.0f32, |most, x| most.max(x.abs())))
                    } else {
                        nmse(want, got)
                    };
                    assert!(error < 2e-6, "{ty}, {k} x {m}, column {c} of {n}: {error:.2e}");
                }
            }
        }
    });
}

/// Warp instructions per KiB of weights with 16 and with 32 columns.
const INSTRUCTIONS: [(GgmlType, [f64; 2]); 4] = [
    (GgmlType::Q4_0, [213.0, 305.0]),
    (GgmlType::Q8_0, [130.0, 179.0]),
    (GgmlType::Q4_K, [205.0, 260.0]),
    (GgmlType::Q5_K, [215.0, 260.0]),
];

/// Each block loads its weights once for all columns of a tile. The numbers of instructions are a record, which must not
/// grow by more than 5 %.
#[test]
fn streamed_weights_are_loaded_once() {
    with_device("cuda_stream::streamed_weights_are_loaded_once", || {
        let Some(counters) = Counters::find() else {
            eprintln!("skipped: only the emulated driver counts accesses");
            return;
        };
        let (k, m) = (4096, 256);
        for (ty, recorded) in INSTRUCTIONS {
            for (n, recorded) in [16, 32].into_iter().zip(recorded) {
                let mut s = Sketch::new(Precision::Fast);
                let (w, x) = (s.values(ty, [k, m, 1, 1]), s.values(GgmlType::F32, [k, n, 1, 1]));
                let node = s.graph.mul_mat(w, x).expect("the shapes match");
                s.graph.expand(node);
                s.both(&[node]);
                let all: serde_json::Value = serde_json::from_str(&counters.json()).expect("the counters are JSON");
                let kernels = all["kernels"].as_object().expect("kernels were launched");
                let found = kernels.iter().find(|(name, _)| name.starts_with("mul_stream"));
                let (_, matmul) = found.expect("the matmul is streamed");
                let number = |value: &serde_json::Value| value.as_u64().expect("a counter") as usize;
                let weights = ty.row_bytes(k).expect("rows are whole blocks") * m;
                // Two halves per value and four per group, for each of two blocks of rows.
                let columns = 2 * n * (2 * k + 4 * k / 32);
                assert_eq!(
                    number(&matmul["copies"]["bytes"]),
                    weights + columns,
                    "{ty}, {n} columns"
                );
                let classes = matmul["instructions"].as_object().expect("classes of instructions");
                let warps: usize = classes.values().map(|class| number(&class["warps"])).sum();
                let found = warps as f64 / (weights as f64 / 1024.0);
                assert!(
                    found <= 1.05 * recorded,
                    "{ty}, {n} columns: {found:.0}, recorded {recorded}"
                );
            }
        }
    });
}
