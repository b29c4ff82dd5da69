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
