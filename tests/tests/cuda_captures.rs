//! Stream captures that other threads disturb.

use std::sync::Barrier;

use engine::backend::cuda::Counters;
use tests::emulator::{with_device, with_settings};
use tests::{context, decode_last, exact, fixture, nmse, tokens};

use crate::cuda::{card, params};

const MODEL: &str = "qwen3-dense";

/// Number of decoded tokens, more than a plan runs before its kernels are captured.
const N_TOKENS: usize = 8;

/// Returns a counter of the emulated driver, or `None` for a real driver.
fn counter(name: &str) -> Option<u64> {
    let all: serde_json::Value = serde_json::from_str(&Counters::find()?.json()).expect("the counters are JSON");
    Some(all[name].as_u64().expect("a counter"))
}

/// Returns the logits of each of the first tokens, decoded one by one in a new context.
fn decode(params: &engine::conformance::CheckParams) -> Vec<Vec<f32>> {
    let model = fixture(MODEL)
        .model(archs::ALL, params)
        .expect("the fixture's model loads");
    let mut ctx = context(&model, |_| {});
    let tokens = tokens(MODEL);
    let one = |(pos, token)| decode_last(&mut ctx, std::slice::from_ref(token), pos, 0);
    tokens[..N_TOKENS].iter().enumerate().map(one).collect()
}

#[test]
fn decode_continues_after_broken_capture() {
    let name = "cuda_captures::decode_continues_after_broken_capture";
    with_settings(name, "break_capture=1", || {
        let (want, got) = (decode(&exact()), decode(&params(&card(), usize::MAX)));
        for (pos, (want, got)) in want.iter().zip(&got).enumerate() {
            let error = nmse(want, got);
            assert!(error < 1e-6, "token {pos}: NMSE {error:.3e}");
        }
        if let (Some(broken), Some(graphs)) = (counter("broken_captures"), counter("graph_launches")) {
            // The kernels are captured again, and then run as a graph.
            assert_eq!(broken, 1);
            assert!(graphs > 0, "no graph was launched");
        }
    });
}

/// Settings of the emulated driver, and whether kernels start early: on GPUs of compute capability 9.0 and later, with
/// drivers for CUDA 12.3 and later. A driver that rejects such launches gets launches in order, and a capture that
/// rejects them is broken once.
const EARLY: [(&str, bool); 6] = [
    ("sm=90", true),
    ("sm=120", true),
    ("early_captures=0", true),
    ("early_launches=0", false),
    ("sm=89", false),
    ("driver=12020", false),
];

#[test]
fn kernels_start_early_if_gpu_and_driver_support_it() {
    let name = "cuda_captures::kernels_start_early_if_gpu_and_driver_support_it";
    for (settings, _) in EARLY {
        with_settings(name, settings, || {
            let decoded = decode(&params(&card(), usize::MAX));
            for (pos, (want, got)) in decode(&exact()).iter().zip(&decoded).enumerate() {
                let error = nmse(want, got);
                assert!(error < 1e-6, "token {pos}: NMSE {error:.3e}");
            }
            let own = std::env::var("LLAMA_CUDA_EMU").unwrap_or_default();
            let Some((_, is_early)) = EARLY.into_iter().find(|(settings, _)| *settings == own) else {
                eprintln!("skipped: the launches of a real driver are not counted");
                return;
            };
            let counted = |name| counter(name).expect("the driver is emulated");
            assert_eq!(counted("early_launches") > 0, is_early, "{own}");
            assert_eq!(
                counted("broken_captures"),
                u64::from(own == "early_captures=0"),
                "{own}"
            );
            assert!(counted("graph_launches") > 0, "{own}: no graph was launched");
        });
        if std::env::var_os("LLAMA_CUDA").is_some() {
            return;
        }
    }
}

/// Models that are loaded and dropped on one thread wait for the device, while another thread captures.
#[test]
fn contexts_on_two_threads_do_not_break_captures() {
    const ROUNDS: usize = 12;
    let name = "cuda_captures::contexts_on_two_threads_do_not_break_captures";
    with_device(name, || {
        let params = params(&card(), usize::MAX);
        let want = decode(&params);
        let before = counter("graph_launches");
        let start = Barrier::new(2);
        let work = || {
            start.wait();
            for round in 0..ROUNDS {
                assert!(
                    decode(&params) == want,
                    "round {round}: the results differ from those of one thread"
                );
            }
        };
        std::thread::scope(|scope| {
            let threads = [scope.spawn(work), scope.spawn(work)];
            threads
                .into_iter()
                .for_each(|thread| thread.join().expect("the thread does not panic"));
        });
        if let (Some(broken), Some(graphs)) = (counter("broken_captures"), counter("graph_launches")) {
            assert_eq!(broken, 0, "captures were broken");
            assert!(Some(graphs) > before, "no graph was launched");
        }
    });
}
