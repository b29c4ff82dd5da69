//! Tests that sampling does not allocate in steady state.

mod counting;

use std::sync::atomic::Ordering;

use counting::{ALLOCATIONS, ignore_harness};
use engine::sample::{Rng, SamplerChain, SamplerParams};

/// This test is the only test of its binary, because it would also count the allocations of other tests.
#[test]
fn sampling_does_not_allocate() {
    ignore_harness();
    let n_vocab = 50_000;
    let mut rng = Rng::new(1, 1);
    let logits: Vec<f32> = (0..n_vocab).map(|_| (rng.uniform() * 20.0) as f32).collect();
    let seeded = SamplerParams {
        seed: Some(1),
        ..SamplerParams::default()
    };
    let everything = SamplerParams {
        penalty_repeat: 1.1,
        dry_multiplier: 0.8,
        top_n_sigma: 3.0,
        typical_p: 0.9,
        xtc_probability: 0.5,
        dynatemp_range: 0.2,
        top_k: 0,
        ..seeded.clone()
    };
    let mirostat = |mirostat| SamplerParams {
        mirostat,
        ..seeded.clone()
    };
    for params in [
        seeded.clone(),
        SamplerParams::greedy(),
        everything,
        mirostat(1),
        mirostat(2),
    ] {
        let mut chain = SamplerChain::new(&params, n_vocab, None).unwrap();
        let mut run = |n| {
            for _ in 0..n {
                let token = chain.sample(&logits).unwrap();
                chain.accept(token);
            }
        };
        // Run until the workspace has grown and the penalty windows are full.
        run(80);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        run(40);
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(allocations, 0, "allocations in 40 tokens with {params:?}");
    }
}
