//! After preparing the largest graph, the CPU backend prepares and computes other graphs without allocating. This test
//! has its own binary, because other tests would allocate at the same time.

mod counting;
mod layer;

use std::sync::atomic::{AtomicBool, Ordering};

use counting::{ALLOCATIONS, ignore_harness};
use engine::backend::{BackendParams, device};
use engine::graph::{Graph, Op, TensorId};
use kernels::Precision;
use layer::{layer, prepare, uses_of};

static NEVER: AtomicBool = AtomicBool::new(false);

#[test]
fn nothing_is_allocated_after_the_largest_graph() {
    ignore_harness();
    let cpu = device("cpu").unwrap();
    let (largest, mut memory) = layer(80, &*cpu);
    // The same counts for all graphs, since they have the same nodes.
    let uses = uses_of(&largest);
    let mut graphs = [1, 2, 80].map(|n| layer(n, &*cpu));
    let computed = |g: &Graph, op: Op| g.nodes().iter().any(|&id: &TensorId| g.tensor(id).op == op);
    assert!(computed(&largest, Op::MulMatId) && computed(&largest, Op::SetRows));
    for (n_threads, precision) in (1..=3).flat_map(|n| [(n, Precision::Exact), (n, Precision::High)]) {
        let params = BackendParams {
            precision,
            ..BackendParams::new(n_threads)
        };
        let mut backend = cpu.clone().backend(&params).unwrap();
        // The first run may initialize system primitives and the kernel dispatch.
        let mut plan = prepare(&mut *backend, &largest, &uses, &memory, None);
        backend.set_threads(n_threads);
        backend.run(&mut *plan, &largest, &mut memory, &NEVER).unwrap();
        for active in 1..=n_threads {
            backend.set_threads(active);
            for (g, memory) in &mut graphs {
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                plan = prepare(&mut *backend, g, &uses, memory, Some(plan));
                for _ in 0..2 {
                    backend.run(&mut *plan, g, memory, &NEVER).unwrap();
                }
                assert_eq!(
                    ALLOCATIONS.load(Ordering::Relaxed) - before,
                    0,
                    "{active} of {n_threads} threads, {precision:?}"
                );
            }
        }
    }
}
