//! After a reservation the CPU backend computes without touching the heap. Alone in its program, since others would allocate meanwhile.

mod counting;
mod layer;

use std::sync::atomic::Ordering;

use counting::ALLOCATIONS;
use engine::backend::{BackendParams, device};
use engine::graph::{Graph, Op, TensorId};
use layer::layer;

#[test]
fn computing_allocates_nothing_after_a_reservation() {
    let cpu = device("cpu").unwrap();
    let (largest, _) = layer(48, &*cpu);
    let mut graphs = [1, 2, 48].map(|n| layer(n, &*cpu));
    let computed = |g: &Graph, op: Op| g.nodes().iter().any(|&id: &TensorId| g.tensor(id).op == op);
    assert!(computed(&largest, Op::MulMatId) && computed(&largest, Op::SetRows));
    for n_threads in 1..=3 {
        let params = BackendParams {
            n_threads: 1,
            n_threads_batch: n_threads,
        };
        let mut backend = cpu.clone().backend(&params).unwrap();
        backend.reserve(&largest, largest.nodes()).unwrap();
        // The first run may set up what the system's primitives and the choice of kernels need.
        let (g, memory) = &mut graphs[0];
        backend.set_threads(n_threads);
        backend.compute(g, g.nodes(), memory).unwrap();
        for active in 1..=n_threads {
            backend.set_threads(active);
            for (g, memory) in &mut graphs {
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                backend.compute(g, g.nodes(), memory).unwrap();
                assert_eq!(
                    ALLOCATIONS.load(Ordering::Relaxed) - before,
                    0,
                    "{active} of {n_threads} threads"
                );
            }
        }
    }
}
