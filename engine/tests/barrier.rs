//! A model of the barrier between phases, run by `loom` in all orders of memory accesses with a bounded number of
//! preemptions.
//!
//! The sources of the CPU backend are compiled with loom's primitives, and without spinning.

#[path = "../src/backend/cpu/arrivals.rs"]
#[allow(dead_code)]
mod arrivals;
#[path = "../src/backend/cpu/futex.rs"]
#[allow(dead_code)]
mod futex;
#[path = "../src/backend/cpu/groups.rs"]
#[allow(dead_code)]
mod groups;
#[path = "../src/backend/cpu/phases.rs"]
#[allow(dead_code)]
mod phases;

mod sync {
    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    pub(super) use loom::sync::{Condvar, Mutex};

    pub(super) const SPINS: std::ops::RangeInclusive<u32> = 1..=1;
    pub(super) const PATIENCE: u32 = 1;

    pub(super) fn full_fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

use std::sync::Arc;

use loom::cell::UnsafeCell;

use groups::Groups;
use phases::{Chunk, Phases, StealSlot};
use sync::{AtomicU32, Ordering};

/// Memory that the threads share without further synchronization, like the tensors of a graph.
struct Shared {
    phases: Phases,
    offers: Vec<StealSlot>,
    groups: Arc<Groups>,
    /// Per phase: the value of its only chunk, and whether the chunk was taken.
    results: Vec<(UnsafeCell<usize>, AtomicU32)>,
}

/// Runs thread `ith`: each phase has one chunk, which reads the result of the previous phase.
fn run(shared: &Shared, ith: usize) {
    let Ok(mut slot) = shared.phases.enter(ith) else {
        panic!("nothing breaks the run")
    };
    while let Some((result, taken)) = shared.results.get(slot.membership.phase) {
        let phase = slot.membership.phase;
        let mut chunk = slot.piece.take();
        if chunk.is_none() && taken.fetch_add(1, Ordering::Relaxed) == 0 {
            chunk = Some(Chunk {
                node: phase,
                range: 0..1,
                solo: false,
                counter: slot.membership.counter,
            });
        }
        if let Some(chunk) = chunk {
            assert_eq!(chunk.node, phase, "a chunk was stolen together with another phase");
            shared.offers[ith].make(&chunk);
            let before = match phase {
                0 => 0,
                // SAFETY: the previous phase is over, so no thread writes its result. Loom checks this.
                _ => shared.results[phase - 1].0.with(|value| unsafe { *value }),
            };
            assert_eq!(before, phase, "a phase ended before its chunk was done");
            if !shared.offers[ith].end() {
                slot = shared
                    .phases
                    .enter(ith)
                    .unwrap_or_else(|_| panic!("nothing breaks the run"));
                continue;
            }
            // SAFETY: this thread owns the chunk, since the offer was withdrawn. Loom checks this.
            result.with_mut(|value| unsafe { *value = phase + 1 });
        }
        let victims = shared.groups.victims(ith, shared.offers.len());
        let offers = victims.map(|victim| &shared.offers[victim]);
        let next = shared.phases.next(slot.membership, ith, offers, || ());
        slot = next.unwrap_or_else(|_| panic!("nothing breaks the run"));
    }
}

/// Explores threads in groups of these sizes, with at most `preemptions` preemptions.
fn explore(sizes: &'static [usize], n_phases: usize, preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let groups = Arc::new(Groups::new(sizes));
        let n = groups.n_workers();
        let shared = loom::sync::Arc::new(Shared {
            phases: Phases::new(groups.clone()),
            offers: (0..n).map(|_| StealSlot::default()).collect(),
            groups,
            results: (0..n_phases).map(|_| (UnsafeCell::new(0), AtomicU32::new(0))).collect(),
        });
        let threads: Vec<_> = (1..n)
            .map(|ith| {
                let shared = shared.clone();
                loom::thread::spawn(move || run(&shared, ith))
            })
            .collect();
        run(&shared, 0);
        for thread in threads {
            thread.join().unwrap();
        }
        let last = shared.results.last().map(|(value, _)| {
            // SAFETY: all threads have ended, so none writes the cell.
            value.with(|value| unsafe { *value })
        });
        assert_eq!(last, Some(n_phases));
    });
}

/// Explores threads that each write a cell in phase 0. The last thread to leave, and threads that enter later, read all
/// cells.
fn explore_end_of_phase(sizes: &'static [usize], preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let groups = Arc::new(Groups::new(sizes));
        let cells: Vec<_> = (0..groups.n_workers()).map(|_| UnsafeCell::new(0)).collect();
        let shared = loom::sync::Arc::new((Phases::new(groups.clone()), cells));
        let visit = |shared: &(Phases, Vec<UnsafeCell<usize>>), ith: usize| {
            let (phases, cells) = shared;
            let Ok(slot) = phases.enter(ith) else {
                panic!("nothing breaks the run")
            };
            if slot.membership.phase == 0 {
                // SAFETY: phase 0 is not over, so no thread reads the cell. Loom checks this.
                cells[ith].with_mut(|cell| unsafe { *cell = 1 });
            }
            if slot.membership.phase > 0 || phases.leave(slot.membership) {
                // SAFETY: phase 0 is over, so no thread writes a cell. Loom checks this.
                let read = |cell: &UnsafeCell<usize>| cell.with(|cell| unsafe { *cell });
                assert!(cells.iter().map(read).sum::<usize>() > 0);
            }
        };
        let threads: Vec<_> = (1..groups.n_workers())
            .map(|ith| {
                let shared = shared.clone();
                loom::thread::spawn(move || visit(&shared, ith))
            })
            .collect();
        visit(&shared, 0);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn last_thread_of_a_phase_sees_all_writes() {
    explore_end_of_phase(&[3], 3);
    explore_end_of_phase(&[2, 1], 3);
}

#[test]
fn threads_of_one_group_pass_phases_in_order() {
    explore(&[2], 3, 3);
    explore(&[3], 1, 2);
}

#[test]
fn threads_of_two_groups_pass_phases_in_order() {
    explore(&[1, 1], 3, 2);
    explore(&[2, 1], 2, 1);
    explore(&[2, 1], 1, 2);
}
