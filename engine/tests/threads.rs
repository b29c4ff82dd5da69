//! The CPU backend computes the same result for a layer, regardless of the number of threads and their
//! scheduling.

use std::sync::atomic::AtomicBool;

use crate::layer::{layer, prepare, result, uses_of};
use engine::backend::{BackendParams, device};
use kernels::Precision;

/// Upper bound of the relative distance between adjacent F16 values.
const F16_STEP: f64 = 1.0 / 1024.0;

static NEVER: AtomicBool = AtomicBool::new(false);

/// The computation is repeated many times, to detect threads that start too early.
#[test]
fn layer_result_is_independent_of_threads() {
    let (cpu, reference) = (device("cpu").unwrap(), device("reference").unwrap());
    for (n, precision) in [
        (1, Precision::Exact),
        (3, Precision::Exact),
        (80, Precision::Exact),
        (1, Precision::High),
        (3, Precision::High),
        (16, Precision::Fastest),
        (80, Precision::High),
        (160, Precision::Exact),
        (160, Precision::Fast),
    ] {
        let (g, mut memory) = layer(n, &*reference);
        let mut backend = reference.clone().backend(&BackendParams::new(1)).unwrap();
        let mut plan = prepare(&mut *backend, &g, &uses_of(&g), &memory, None);
        backend.run(&mut *plan, &g, &mut memory, &NEVER).unwrap();
        let want = result(&g, &memory);
        let size: f64 = want.iter().map(|x| f64::from(*x).powi(2)).sum();
        assert!(size > 0.0);
        let mut first = None;
        for n_threads in 1..=4 {
            let (g, mut memory) = layer(n, &*cpu);
            let params = BackendParams {
                precision,
                ..BackendParams::new(n_threads)
            };
            let mut backend = cpu.clone().backend(&params).unwrap();
            let mut plan = prepare(&mut *backend, &g, &uses_of(&g), &memory, None);
            for _ in 0..if n >= 80 { 20 } else { 200 } {
                backend.run(&mut *plan, &g, &mut memory, &NEVER).unwrap();
                let got = result(&g, &memory);
                let case = format!("{n} tokens on {n_threads} threads, {precision:?}");
                let mut errors: Vec<f64> = (got.chunks(got.len() / n).zip(want.chunks(want.len() / n)))
                    .map(|(a, b)| a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>() / size)
                    .collect();
                errors.sort_by(f64::total_cmp);
                let limit = match precision {
                    Precision::Exact => 1e-10,
                    Precision::High => 1e-3,
                    Precision::Fast | Precision::Fastest => 1e-2,
                };
                // Out of 80 tokens, one may have a value that rounds to the adjacent F16 value in the cache.
                let others = errors.split_off(n - n / 80);
                let (nmse, of_others) = (errors.iter().sum::<f64>(), others.iter().sum::<f64>());
                let limit_of_others = limit + others.len() as f64 * F16_STEP.powi(2) / n as f64;
                assert!(nmse < limit, "{case}: nmse {nmse:e}");
                assert!(
                    of_others < limit_of_others,
                    "{case}: nmse of {} tokens {of_others:e}",
                    others.len()
                );
                assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "{case}");
            }
        }
    }
}
