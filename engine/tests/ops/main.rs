//! Every op as a value, computed by every device and compared with the reference.

mod attention;
mod case;
mod cases;
mod exec;
mod faults;
mod linear_attention;
mod select;

use case::Case;
use engine::backend::{BackendParams, DeviceKind};
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

/// The same bits with 1, 2 and 3 threads, near those of the reference, where activations may be quantized.
#[track_caller]
fn compare_quantized(cases: Vec<Case>) {
    let reference = engine::backend::device("reference").unwrap();
    let cpu = engine::backend::device("cpu").unwrap();
    let mut differs = false;
    for case in &cases {
        let want = Prepared::new(case, reference.clone(), false).compute(1).unwrap();
        let exact = Prepared::new(case, cpu.clone(), false).compute(1).unwrap();
        for (precision, limit) in [(Precision::High, ROUNDED_TO_16), (Precision::Fast, ROUNDED_TO_8)] {
            let results = (1..=3).map(|n_threads| {
                let params = BackendParams {
                    precision,
                    ..BackendParams::new(n_threads)
                };
                Prepared::new(case, cpu.clone(), false).compute_with(&params).unwrap()
            });
            let results: Vec<_> = results.collect();
            let error = nmse(&want, &results[0]);
            assert!(error <= limit, "{precision:?}: nmse {error:.3e} of {case:?}");
            assert!(results.iter().all(|r| *r == results[0]), "threads matter: {case:?}");
            differs |= results[0] != exact;
        }
    }
    assert!(differs, "no activations are quantized");
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
    compare_quantized(cases::matrix_products());
    compare_quantized(cases::matrix_products_of_all_types());
}

#[test]
fn products_of_quantized_activations_by_expert() {
    compare_quantized(cases::matrix_products_by_expert());
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
