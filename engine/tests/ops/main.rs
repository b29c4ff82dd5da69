//! Every op as a value, computed by every device and compared with the reference.

mod case;
mod cases;
mod exec;
mod faults;
mod linear_attention;

use case::Case;
use exec::{Prepared, devices_under_test, nmse};

/// Runs the cases on each device with 1, 2 and 3 threads, in place too where the op allows it.
#[track_caller]
fn compare(cases: Vec<Case>) {
    let reference = engine::backend::device("reference").unwrap();
    let mut failures = Vec::new();
    for case in &cases {
        let want = Prepared::new(case, reference.clone(), false).compute(1).unwrap();
        assert!(
            !want.is_empty() && want.iter().all(|x| x.is_finite()),
            "{case:?} gives {want:?}"
        );
        for device in devices_under_test() {
            for in_place in [false, true] {
                for n_threads in 1..=3 {
                    let prepared = Prepared::new(case, device.clone(), false);
                    if in_place && !prepared.can_run_in_place() {
                        continue;
                    }
                    let prepared = Prepared::new(case, device.clone(), in_place);
                    let got = prepared.compute(n_threads).unwrap_or_else(|e| panic!("{case:?}: {e}"));
                    let error = nmse(&got, &want);
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
    matrix_products
    matrix_products_of_all_types
    matrix_products_by_expert
    rows_by_number
    rows_by_number_of_all_types
    rows_written
    copies
    reductions
    recurrences
    attention
    attention_of_all_types
    attention_windows
    attention_by_relative_position
    attention_of_many_cells
}

suites! { linear_attention:
    linear_attention
    linear_attention_over_cells
}
