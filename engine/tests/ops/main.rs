//! Every op as a value, computed by every device and compared with the reference.

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

/// Runs the cases on each device, on the CPU with 1, 2 and 3 threads, in place too where the op allows it.
#[track_caller]
fn compare(cases: Vec<Case>) {
    let reference = engine::backend::device("reference").unwrap();
    let mut failures = Vec::new();
    for case in &cases {
        let want = Prepared::new(case, reference.clone(), false).compute(1).unwrap();
        let hides = case.op == Op::IndexScores;
        assert!(
            !want.is_empty() && want.iter().all(|x| x.is_finite() || (hides && *x == f32::NEG_INFINITY)),
            "{case:?} gives {want:?}"
        );
        for device in devices_under_test() {
            // Threads of the host matter to the CPU alone.
            let most_threads = if device.kind() == DeviceKind::Cpu { 3 } else { 1 };
            for in_place in [false, true] {
                for n_threads in 1..=most_threads {
                    let prepared = Prepared::new(case, device.clone(), false);
                    if in_place && !prepared.can_run_in_place() {
                        continue;
                    }
                    let mut prepared = Prepared::new(case, device.clone(), in_place);
                    let got = prepared.compute(n_threads).unwrap_or_else(|e| panic!("{case:?}: {e}"));
                    let error = match hides {
                        true => nmse_of_seen(&got, &want),
                        false => nmse(&want, &got),
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

/// Largest error of products of activations that were rounded to 16 bits, and to 8.
const ROUNDED_TO_16: f64 = 1e-8;
const ROUNDED_TO_8: f64 = 1e-4;
/// And of both operands rounded to bf16.
const ROUNDED_TO_BF16: f64 = 1e-5;

/// The same bits with 1, 2 and 3 threads, near those of the reference, where activations may be quantized, as they are in some cases on the CPU and in
/// `on_cards` on each other device.
#[track_caller]
fn compare_quantized(cases: &[Case], on_cards: usize) {
    for device in devices_under_test() {
        let n_rounded = cases.iter().filter(|case| is_rounded(case, &device)).count();
        match device.kind() {
            DeviceKind::Cpu => assert!(n_rounded > 0, "no activations are quantized"),
            _ => assert_eq!(
                n_rounded,
                on_cards,
                "cases with activations that {} quantizes",
                device.name()
            ),
        }
    }
}

/// Compares a case on a device. True if its activations were quantized.
#[track_caller]
fn is_rounded(case: &Case, device: &Arc<dyn Device>) -> bool {
    let reference = engine::backend::device("reference").unwrap();
    let want = Prepared::new(case, reference, false).compute(1).unwrap();
    let exact = Prepared::new(case, device.clone(), false).compute(1).unwrap();
    // Cards round to 16 bits, and with `fast` many columns and their weights to bf16.
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
        assert!(results.iter().all(|r| *r == results[0]), "threads matter: {case:?}");
        differs |= results[0] != exact;
    }
    differs
}

/// The error where scores are expected; infinite unless the same ones are hidden.
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
fn products_of_quantized_activations() {
    // Four products of more than 8 columns with weights of F16, and with those of Q8_0.
    compare_quantized(&cases::matrix_products(), 2 * 4);
    // Of quantized types 13 have rows of 512 values at multiples of 16 bytes, so that cards multiply them in integers; 17 columns of all types but F32 are
    // rounded to bf16.
    compare_quantized(
        &cases::matrix_products_of_all_types(),
        2 * 13 + cases::readable_types().count() - 1,
    );
}

#[test]
fn products_of_quantized_activations_with_long_rows() {
    // Rows of 6144 values of all quantized types begin at multiples of 16 bytes, of 3072 values those of 15, of 1280 values those of 9.
    compare_quantized(&cases::matrix_products_of_long_rows(), 25 + 15 + 2 * 9);
}

#[test]
fn products_of_quantized_activations_with_arranged_weights() {
    // Of all 25 quantized types.
    compare_quantized(&cases::matrix_products_of_arranged_weights(), 4 * 25);
}

#[test]
fn products_of_quantized_activations_in_tiles() {
    // All but those with weights of F32.
    let cases = cases::matrix_products_in_tiles();
    compare_quantized(&cases, cases.len() - 1);
}

#[test]
fn products_of_quantized_activations_by_expert() {
    // Of Q8_0 and Q4_0, those of 9 tokens and more.
    compare_quantized(&cases::matrix_products_by_expert(), 2 * 3 * 4);
    let in_tiles = cases::matrix_products_by_expert_in_tiles();
    compare_quantized(&in_tiles, in_tiles.len());
}

/// Scores of prompts on tensor cores have the accuracy of the keys, and weights 11 bits.
#[test]
fn attention_of_prompts_by_tiles() {
    let cases = attention::attention_of_prompts();
    for device in devices_under_test().iter().filter(|d| d.kind() != DeviceKind::Cpu) {
        let n_rounded = cases.iter().filter(|case| is_rounded(case, device)).count();
        assert_eq!(n_rounded, cases.len(), "cases that {} computes by tiles", device.name());
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
}

suites! { attention:
    attention
    attention_of_all_types
    attention_windows
    attention_by_relative_position
    compressed_attention
    attention_of_many_cells
}

suites! { linear_attention:
    linear_attention
    linear_attention_over_cells
}

suites! { select:
    index_scores
    blocks
    blocks_of_many_cells
    cells_by_position
    attention_to_selections
}
