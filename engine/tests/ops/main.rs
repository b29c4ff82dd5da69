//! Computes every op on every device and compares the results with the reference.

mod attention;
mod case;
mod cases;
mod exec;
mod faults;
mod linear_attention;
mod select;

use std::sync::Arc;

use case::Case;

use engine::backend::{BackendParams, Device, DeviceKind};
use engine::gguf::logits::nmse;
use engine::graph::Op;
use exec::{Prepared, devices_under_test};
use kernels::Precision;

/// Runs the cases on each device, with 1 to 3 threads on the CPU, and in place if the op permits.
#[track_caller]
fn compare(cases: Vec<Case>) {
    let reference = engine::backend::device("reference").unwrap();
    let mut failures = Vec::new();
    for case in &cases {
        let want = Prepared::new(case, reference.clone(), false).compute(1).unwrap();
        let hides = case.op == Op::IndexScores;
        assert!(
            !want.is_empty() && want.iter().all(|x| x.is_finite() || (hides && *x == f32::NEG_INFINITY)),
            "{case:?} gives the invalid result {want:?}"
        );
        for device in devices_under_test() {
            // Only the CPU uses host threads.
            let most_threads = if device.kind() == DeviceKind::Cpu { 3 } else { 1 };
            for in_place in [false, true] {
                for n_threads in 1..=most_threads {
                    let mut prepared = Prepared::new(case, device.clone(), false);
                    if in_place && !prepared.can_run_in_place() {
                        continue;
                    }
                    if in_place {
                        prepared = Prepared::new(case, device.clone(), true);
                    }
                    let got = prepared.compute(n_threads).unwrap_or_else(|e| panic!("{case:?}: {e}"));
                    let error = if hides {
                        nmse_of_seen(&got, &want)
                    } else {
                        nmse(&want, &got)
                    };
                    if error.is_nan() || error > case.limit {
                        let how = format!("{} threads{}", n_threads, if in_place { ", in place" } else { "" });
                        failures.push(format!("{} ({how}): nmse {error:.3e} of {case:?}", device.name()));
                    }
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Maximum error of matmuls with activations quantized to 16 bits, and to 8 bits.
const ROUNDED_TO_16: f64 = 1e-8;
const ROUNDED_TO_8: f64 = 1e-4;
/// Maximum error of matmuls with both operands rounded to bf16.
const ROUNDED_TO_BF16: f64 = 1e-5;

/// Checks that results are bit-identical with 1 to 3 threads and close to the reference when activations may
/// be quantized. They must be quantized in some cases on the CPU, and in `on_gpus` cases on each GPU.
#[track_caller]
fn compare_quantized(cases: &[Case], on_gpus: usize) {
    for device in devices_under_test() {
        let n_rounded = cases.iter().filter(|case| is_rounded(case, &device)).count();
        match device.kind() {
            DeviceKind::Cpu => assert!(n_rounded > 0, "no activations are quantized"),
            _ => assert_eq!(
                n_rounded,
                on_gpus,
                "number of cases with activations quantized by {}",
                device.name()
            ),
        }
    }
}

/// Compares a case on a device. Returns true if the activations were quantized.
#[track_caller]
fn is_rounded(case: &Case, device: &Arc<dyn Device>) -> bool {
    let reference = engine::backend::device("reference").unwrap();
    let want = Prepared::new(case, reference, false).compute(1).unwrap();
    let exact = Prepared::new(case, device.clone(), false).compute(1).unwrap();
    // GPUs quantize to 16 bits. With `Precision::Fast`, they round many columns and their weights to bf16.
    let (most_threads, fast) = match device.kind() {
        DeviceKind::Cpu => (3, ROUNDED_TO_8),
        _ => (1, ROUNDED_TO_BF16),
    };
    let mut differs = false;
    for (precision, limit) in [(Precision::High, ROUNDED_TO_16), (Precision::Fast, fast)] {
        let results = (1..=most_threads).map(|n_threads| {
            let params = BackendParams {
                precision,
                ..BackendParams::new(n_threads)
            };
            Prepared::new(case, device.clone(), false)
                .compute_with(&params)
                .unwrap()
        });
        let results: Vec<_> = results.collect();
        let (name, error) = (device.name(), nmse(&want, &results[0]));
        assert!(error <= limit, "{name}, {precision:?}: nmse {error:.3e} of {case:?}");
        assert!(
            results.iter().all(|r| *r == results[0]),
            "the result depends on the number of threads: {case:?}"
        );
        differs |= results[0] != exact;
    }
    differs
}

/// Returns the error over unmasked scores; infinite unless the same scores are masked.
fn nmse_of_seen(got: &[f32], want: &[f32]) -> f64 {
    let hidden = |x: &f32| *x == f32::NEG_INFINITY;
    if got.iter().map(hidden).ne(want.iter().map(hidden)) {
        return f64::INFINITY;
    }
    let seen = |all: &[f32]| all.iter().copied().filter(|x| !hidden(x)).collect::<Vec<_>>();
    match seen(want) {
        none if none.is_empty() => 0.0,
        want => nmse(&want, &seen(got)),
    }
}

#[test]
fn matmuls_with_quantized_activations_match_reference() {
    // Four matmuls of more than 8 columns with F16 weights, and four with Q8_0 weights.
    compare_quantized(&cases::matrix_products(), 2 * 4);
    // 15 quantized types have rows of 512 values aligned to 16 bytes, so that GPUs multiply them in integers.
    // With 17 columns, all types except F32 are rounded to bf16.
    compare_quantized(
        &cases::matrix_products_of_all_types(),
        2 * 15 + cases::readable_types().count() - 1,
    );
}

#[test]
fn long_row_matmuls_with_quantized_activations_match_reference() {
    // Rows of 6144 values are aligned to 16 bytes for all quantized types. Rows of 3072 values are aligned for 20
    // types, and rows of 1280 values for 11 types.
    compare_quantized(&cases::matrix_products_of_long_rows(), 30 + 20 + 2 * 11);
}

#[test]
fn repacked_matmuls_with_quantized_activations_match_reference() {
    // The cases cover all 30 quantized types.
    compare_quantized(&cases::matrix_products_of_arranged_weights(), 4 * 30);
}

#[test]
fn tiled_matmuls_with_quantized_activations_match_reference() {
    // Excludes the cases with f32 weights.
    let cases = cases::matrix_products_in_tiles();
    compare_quantized(&cases, cases.len() - 1);
}

#[test]
fn expert_matmuls_with_quantized_activations_match_reference() {
    // Q8_0 and Q4_0 weights with 9 or more tokens.
    compare_quantized(&cases::matrix_products_by_expert(), 2 * 3 * 4);
    let in_tiles = cases::matrix_products_by_expert_in_tiles();
    compare_quantized(&in_tiles, in_tiles.len());
}

/// On tensor cores, queries and weights of prompts have 11 bits.
#[test]
fn attention_of_prompts_uses_tile_kernels() {
    let cases = attention::attention_of_prompts();
    for device in devices_under_test().iter().filter(|d| d.kind() != DeviceKind::Cpu) {
        let n_rounded = cases.iter().filter(|case| is_rounded(case, device)).count();
        let has_kernel = |case: &&Case| !lacks_bfloats(device) || !is_bfloat(case) && !is_long(case);
        assert_eq!(
            n_rounded,
            cases.iter().filter(has_kernel).count(),
            "number of cases that {} computes with tile kernels",
            device.name()
        );
    }
}

/// Maximum error of attention if queries and weights are split into two 16-bit numbers. Keys and values are rounded to
/// f16, or come from 16-bit caches.
const ROUNDED_KEYS: f64 = 1e-6;
const STORED_KEYS: f64 = 1e-9;

/// Maximum error of linear attention on tensor cores, whose factors are two numbers of 8 bits.
const IN_TWO_BFLOATS: f64 = 1e-9;

/// Returns true for GPUs of compute capability 7.5, whose tensor cores do not multiply bf16.
fn lacks_bfloats(device: &Arc<dyn Device>) -> bool {
    device.description().contains("compute capability 7.5")
}

/// Returns true for attention with keys in bf16.
fn is_bfloat(case: &Case) -> bool {
    case.operands[1].ty == kernels::GgmlType::BF16
}

/// Returns true for attention with keys whose tiles may exceed the 64 KiB of compute capability 7.5.
fn is_long(case: &Case) -> bool {
    case.operands[1].ne[0] > 256
}

#[test]
fn linear_attention_in_chunks_is_near_reference() {
    let reference = engine::backend::device("reference").unwrap();
    for device in devices_under_test().iter().filter(|d| d.kind() != DeviceKind::Cpu) {
        for case in linear_attention::linear_attention_in_chunks() {
            let compute = |device: &Arc<dyn Device>, precision| {
                let params = BackendParams {
                    precision,
                    ..BackendParams::new(1)
                };
                Prepared::new(&case, device.clone(), false)
                    .compute_with(&params)
                    .unwrap()
            };
            let want = compute(&reference, Precision::Exact);
            let (exact, fast) = (compute(device, Precision::Exact), compute(device, Precision::Fast));
            assert_eq!(exact != fast, !lacks_bfloats(device), "wrong kernel: {case:?}");
            assert_eq!(fast, compute(device, Precision::High), "{case:?}");
            let error = nmse(&want, &fast);
            assert!(error < IN_TWO_BFLOATS, "nmse {error:.3e} of {case:?}");
        }
    }
}

#[test]
fn attention_of_few_tokens_on_tensor_cores_is_near_reference() {
    let reference = engine::backend::device("reference").unwrap();
    for device in devices_under_test().iter().filter(|d| d.kind() != DeviceKind::Cpu) {
        let latents = attention::attention_to_latents().into_iter();
        let on_tensor_cores = latents.filter(|case| case.operands[1].ty != kernels::GgmlType::F32);
        for case in attention::attention_of_few_tokens().into_iter().chain(on_tensor_cores) {
            let compute = |device: &Arc<dyn Device>, precision| {
                let params = BackendParams {
                    precision,
                    ..BackendParams::new(1)
                };
                Prepared::new(&case, device.clone(), false)
                    .compute_with(&params)
                    .unwrap()
            };
            let want = compute(&reference, Precision::Exact);
            let (exact, fast) = (compute(device, Precision::Exact), compute(device, Precision::Fast));
            if !lacks_bfloats(device) || is_bfloat(&case) || !is_long(&case) {
                let has_kernel = !lacks_bfloats(device) || !is_bfloat(&case);
                assert_eq!(exact != fast, has_kernel, "wrong kernel: {case:?}");
            }
            let limit = if case.operands[1].ty.is_quantized() {
                ROUNDED_KEYS
            } else {
                STORED_KEYS
            };
            let error = nmse(&want, &fast);
            assert!(error <= limit, "nmse {error:.3e} of {case:?}");
        }
    }
}

macro_rules! suites {
    ($module:ident: $( $name:ident )*) => { $(
        #[test]
        fn $name() {
            compare($module::$name());
        }
    )* };
}

suites! { cases:
    sums_and_products
    scaling
    activations
    gated_units
    norms
    softmax
    rope
    rope_scaling
    rope_sections
    attention_temperature
    matrix_products
    matrix_products_of_all_types
    matrix_products_of_arranged_weights
    matrix_products_by_expert
    rows_by_number
    rows_by_number_of_all_types
    rows_written
    copies
    reductions
    recurrences
    recurrences_of_many_tokens
}

suites! { attention:
    attention
    attention_of_all_types
    attention_windows
    attention_by_relative_position
    compressed_attention
    attention_of_many_cells
    attention_of_few_tokens
    attention_to_latents
}

suites! { linear_attention:
    linear_attention
    linear_attention_over_cells
    linear_attention_of_many_tokens
    linear_attention_in_chunks
}

suites! { select:
    index_scores
    blocks
    blocks_of_many_cells
    cells_by_position
    attention_to_selections
}
