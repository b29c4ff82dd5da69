//! Prompts of mixtures of experts on GPUs with different limits.

use engine::backend::cuda::loaded;
use kernels::{GgmlType, Precision};
use tests::emulator::with_settings;

use crate::cuda_fusion::Sketch;

/// Sizes that select the largest tile: 210 columns of each expert, and enough rows for all multiprocessors.
const EXPERTS: usize = 4;
const USED: usize = 2;
const TOKENS: usize = 420;
const ROWS: usize = 4096;
const WIDTH: usize = 64;

/// Multiplies the columns of a prompt by the matrices of their experts, and compares some results with sums
/// in double precision.
fn products_match_double_precision() {
    let mut s = Sketch::new(Precision::Fast);
    let w = s.values(GgmlType::Q8_0, [WIDTH, ROWS, EXPERTS, 1]);
    let x = s.values(GgmlType::F32, [WIDTH, 1, TOKENS, 1]);
    let expert = |token: usize, slot: usize| (token + slot * (1 + token / EXPERTS % 3)) % EXPERTS;
    let ids: Vec<i32> = (0..TOKENS * USED).map(|i| expert(i / USED, i % USED) as i32).collect();
    let ids = s.ints(&ids, [USED, TOKENS, 1, 1]);
    let product = s.graph.mul_mat_id(w, x, ids).expect("the shapes match");
    s.graph.expand(product);
    let row_bytes = GgmlType::Q8_0.row_bytes(WIDTH).expect("whole blocks");
    let (weights, columns) = (s.contents(w).to_vec(), floats(s.contents(x)));
    let [_, (results, _)] = s.both(&[product]);
    let results = floats(&results[0]);
    let (mut error, mut total) = (0.0, 0.0);
    for i in (0..results.len()).step_by(97) {
        let (row, pair) = (i % ROWS, i / ROWS);
        let (token, slot) = (pair / USED, pair % USED);
        let mut values = [0.0; WIDTH];
        let at = (expert(token, slot) * ROWS + row) * row_bytes;
        kernels::dequantize_row(GgmlType::Q8_0, &weights[at..at + row_bytes], &mut values);
        let products = values.iter().zip(&columns[token * WIDTH..]);
        let want: f64 = products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        error += (f64::from(results[i]) - want).powi(2);
        total += want * want;
    }
    // Both operands are rounded to bf16, each by up to 2^-9 relative to its size.
    assert!(error / total < 2f64.powi(-16), "NMSE {:.3e}", error / total);
    let used: Vec<String> = loaded().iter().map(|kernel| kernel.describe()).collect();
    let is_largest = |name: &String| name.contains("COLUMNS=256") && name.contains("IDS=1");
    assert!(used.iter().any(is_largest), "{used:?}");
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (values, _) = bytes.as_chunks::<4>();
    values.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// 99 KB of shared memory per block, as GeForce RTX 30, A10, and A40.
#[test]
fn largest_tiles_of_experts_fit_on_sm_86() {
    let name = "cuda_experts::largest_tiles_of_experts_fit_on_sm_86";
    with_settings(name, "sm=86,races=0", products_match_double_precision);
}

/// 99 KB of shared memory per block, as GeForce RTX 40, L4, and L40.
#[test]
fn largest_tiles_of_experts_fit_on_sm_89() {
    let name = "cuda_experts::largest_tiles_of_experts_fit_on_sm_89";
    with_settings(name, "sm=89,races=0", products_match_double_precision);
}

/// 227 KB of shared memory per block, as H100.
#[test]
fn largest_tiles_of_experts_fit_on_sm_90() {
    let name = "cuda_experts::largest_tiles_of_experts_fit_on_sm_90";
    with_settings(name, "sm=90", products_match_double_precision);
}

/// 99 KB of shared memory per block, as GeForce RTX 50.
#[test]
fn largest_tiles_of_experts_fit_on_sm_120() {
    let name = "cuda_experts::largest_tiles_of_experts_fit_on_sm_120";
    with_settings(name, "sm=120,races=0", products_match_double_precision);
}
