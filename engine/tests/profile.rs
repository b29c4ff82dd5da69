//! The CPU backend reports the time of each op if profiling is enabled.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::layer::{layer, prepare, uses_of};
use engine::backend::{BackendParams, Profile, device};
use engine::graph::Op;
use kernels::GgmlType::{Q4_0, Q8_0};
use kernels::Precision;

static NEVER: AtomicBool = AtomicBool::new(false);

#[test]
fn each_op_is_counted() {
    // With several threads, a phase may be complete before the measured thread enters it.
    for n_threads in [1, 2] {
        ops_are_counted(n_threads);
    }
}

fn ops_are_counted(n_threads: usize) {
    let cpu = device("cpu").unwrap();
    let (g, mut memory) = layer(3, &*cpu);
    let profile = Profile::new();
    let params = BackendParams {
        precision: Precision::High,
        profile: Some(profile.clone()),
        ..BackendParams::new(n_threads)
    };
    let mut backend = cpu.backend(&params).unwrap();
    let mut plan = prepare(&mut *backend, &g, &uses_of(&g), &memory, None);
    let start = Instant::now();
    for _ in 0..5 {
        backend.run(&mut *plan, &g, &mut memory, &NEVER).unwrap();
    }
    let elapsed = start.elapsed();
    let times = profile.times();
    let count = |name: &str| {
        times
            .iter()
            .filter(|t| t.activity.name == name)
            .map(|t| t.n)
            .sum::<u64>()
    };
    // Two matmuls share an operand. A norm that only matmuls read is computed when it is quantized.
    let quantized = count("quantize") + count("rms_norm + quantize");
    for (activity, found, n) in [
        (Op::MulMat.name(), count(Op::MulMat.name()), 10),
        (Op::MulMatId.name(), count(Op::MulMatId.name()), 5),
        ("quantize", quantized, 10),
    ] {
        assert!(found == n || n_threads > 1 && found < n, "{activity}: {times:?}");
    }
    assert!(count("wait") > 0 || n_threads > 1, "{times:?}");
    let mut products = times.iter().filter(|t| t.activity.name.starts_with("mul_mat"));
    assert!(products.all(|t| matches!(t.activity.weights, Some(Q4_0 | Q8_0))));
    assert!(times.iter().map(|t| t.time).sum::<Duration>() <= elapsed);
    assert!(times.is_sorted_by(|a, b| a.time >= b.time));
    profile.clear();
    assert!(profile.times().is_empty());
}
