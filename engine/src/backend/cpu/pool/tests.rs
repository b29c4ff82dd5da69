use std::cell::Cell;
use std::collections::BTreeSet;
use std::hint;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use super::*;
use crate::backend::cpu::queue::{Counters, Stolen, WorkQueue};

static NEVER: AtomicBool = AtomicBool::new(false);

/// Waits until `ready` holds, and panics after a minute.
fn wait_for(ready: impl Fn() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < Duration::from_secs(60), "timed out after 60 s");
        thread::yield_now();
    }
}

/// Walks a worker through one phase per counter, with `n` chunks per phase. `work` receives the queue, the
/// phase, and the chunk.
fn walk(
    worker: Worker<'_>,
    counters: &[Counters],
    n: usize,
    offers: bool,
    work: impl Fn(&WorkQueue<'_>, usize, usize) -> Result<(), Stolen>,
) -> Result<(), Abandoned> {
    let mut place = worker.enter()?;
    while let Some(taken) = counters.get(place.membership.phase) {
        let phase = place.membership.phase;
        let piece = Chunk {
            node: phase,
            range: 0..0,
            solo: false,
            counter: place.membership.counter,
        };
        let queue = WorkQueue {
            taken: taken.of(0),
            worker,
            nth: worker.nth,
            offered: offers.then_some(piece),
            first: Cell::new(place.piece.take().map(|piece| piece.range)),
        };
        let mut end = Ok(());
        while end.is_ok()
            && let Some(i) = queue.take(n)
        {
            end = work(&queue, phase, i);
        }
        place = match end {
            Ok(()) => worker.next(place.membership, hint::spin_loop)?,
            Err(Stolen) => worker.enter()?,
        };
    }
    worker.check()
}

fn counters(n: usize) -> Vec<AtomicUsize> {
    (0..n).map(|_| AtomicUsize::new(0)).collect()
}

/// Returns reset work counters of a pool's threads for `n` phases.
fn nothing_taken(pool: &ThreadPool, n: usize) -> Vec<Counters> {
    let one = |_| {
        let mut counters = Counters::default();
        counters.resize(1, pool.groups());
        counters
    };
    (0..n).map(one).collect()
}

/// Threads by group.
const GROUPS: [&[usize]; 11] = [
    &[1],
    &[2],
    &[3],
    &[4],
    &[5],
    &[8],
    &[1, 1],
    &[2, 2],
    &[1, 3],
    &[2, 3, 1],
    &[1, 1, 1, 1, 1, 1, 1, 1],
];

/// Runs phases like the nodes of a graph with reused memory. A phase reads the results of all chunks of the previous
/// phase, and overwrites the inputs of that phase. If `stall` is given, some chunks are delayed.
fn phases_in_order(groups: &[usize], offers: bool, stall: Option<Duration>) {
    const PHASES: usize = 2000;
    const PIECES: usize = 7;
    let pool = ThreadPool::with_core_per_thread(groups);
    let n_threads = pool.n_threads();
    let (taken, stalled) = (nothing_taken(&pool, PHASES), counters(PHASES));
    let written = [counters(PIECES), counters(PIECES)];
    let (n_written, n_lost) = (AtomicUsize::new(0), AtomicUsize::new(0));
    pool.run(n_threads, &NEVER, &|worker| {
        walk(worker, &taken, PIECES, offers, |queue, phase, i| {
            if (phase * PIECES + i).is_multiple_of(97)
                && stalled[phase].swap(1, Ordering::Relaxed) == 0
                && let Some(stall) = stall
            {
                thread::sleep(stall);
            }
            if queue.finish().is_err() {
                n_lost.fetch_add(1, Ordering::Relaxed);
                return Err(Stolen);
            }
            // Relaxed ordering: the phase barriers must synchronize the threads.
            let [from, to] = [&written[phase % 2], &written[(phase + 1) % 2]];
            for cell in from {
                assert_eq!(cell.load(Ordering::Relaxed), phase, "in phase {phase}");
            }
            n_written.fetch_add(1, Ordering::Relaxed);
            let before = to[i].swap(phase + 1, Ordering::Relaxed);
            assert_eq!(
                before,
                phase.saturating_sub(1),
                "chunk {i} of phase {phase} is written once"
            );
            Ok(())
        })
    })
    .unwrap();
    let case = format!("threads: {groups:?}, offers: {offers}");
    assert_eq!(n_written.into_inner(), PHASES * PIECES, "{case}");
    if !offers || n_threads == 1 {
        assert_eq!(n_lost.into_inner(), 0, "{case}");
    } else if stall.is_some() {
        assert!(n_lost.into_inner() > 0, "{case}: no work was stolen");
    }
}

#[test]
fn phase_begins_after_previous_phase_is_done() {
    for groups in GROUPS {
        phases_in_order(groups, false, None);
        phases_in_order(groups, true, None);
    }
}

#[test]
fn stolen_chunks_are_written_once() {
    for groups in GROUPS {
        phases_in_order(groups, true, Some(Duration::from_millis(1)));
    }
    for groups in [&[3][..], &[1, 2]] {
        phases_in_order(groups, false, Some(Duration::from_millis(1)));
    }
}

/// Simulates a worker that is descheduled until the run is nearly over.
#[test]
fn worker_outside_phases_does_not_block_run() {
    let pool = ThreadPool::new(2).unwrap();
    let (taken, late, done) = (nothing_taken(&pool, 5), AtomicBool::new(false), AtomicUsize::new(0));
    let work = |_: &WorkQueue<'_>, _, _| {
        done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    pool.run(2, &NEVER, &|worker| {
        if worker.ith == 0 {
            wait_for(|| late.load(Ordering::Relaxed));
            return walk(worker, &taken, 2, false, work);
        }
        late.store(true, Ordering::Relaxed);
        wait_for(|| done.load(Ordering::Relaxed) == 2 * 5);
        walk(worker, &taken, 2, false, work)
    })
    .unwrap();
    assert_eq!(done.into_inner(), 2 * 5);
}

/// Simulates a worker that is descheduled in the middle of a chunk.
#[test]
fn worker_stuck_in_chunk_does_not_block_run() {
    let pool = ThreadPool::with_core_per_thread(&[2]);
    let (taken, done) = (nothing_taken(&pool, 5), AtomicUsize::new(0));
    let (stuck, lost) = (AtomicBool::new(false), AtomicBool::new(false));
    pool.run(2, &NEVER, &|worker| {
        walk(worker, &taken, 2, true, |queue, phase, _| {
            if worker.ith == 1 && phase == 0 {
                stuck.store(true, Ordering::Relaxed);
                wait_for(|| done.load(Ordering::Relaxed) == 2 * 5);
            } else {
                wait_for(|| stuck.load(Ordering::Relaxed));
            }
            let end = queue.finish();
            match end {
                Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                Err(Stolen) => usize::from(lost.swap(true, Ordering::Relaxed)),
            };
            end
        })
    })
    .unwrap();
    assert_eq!(done.into_inner(), 2 * 5);
    assert!(lost.into_inner());
}

/// With more threads than cores, waiting threads sleep, which frees a core for the thread with work.
#[test]
fn nothing_is_stolen_with_more_threads_than_cores() {
    let mut pool = ThreadPool::with_core_per_thread(&[4]);
    pool.n_cores = 3;
    let (taken, lost) = (nothing_taken(&pool, 200), AtomicUsize::new(0));
    pool.run(4, &NEVER, &|worker| {
        walk(worker, &taken, 8, true, |queue, phase, i| {
            if phase % 20 == 0 && i == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            lost.fetch_add(usize::from(queue.finish().is_err()), Ordering::Relaxed);
            Ok(())
        })
    })
    .unwrap();
    assert_eq!(lost.into_inner(), 0);
}

/// A thread that wakes up after the end of a run must not join the run.
#[test]
fn worker_never_starts_after_run_ended() {
    let pool = ThreadPool::new(4).unwrap();
    let (open, taken) = (AtomicBool::new(false), nothing_taken(&pool, 1));
    for run in 0..20_000 {
        open.store(true, Ordering::SeqCst);
        pool.run(1 + run % 4, &NEVER, &|worker| {
            assert!(open.load(Ordering::SeqCst));
            let end = walk(worker, &taken, 0, false, |_, _, _| Ok(()));
            assert!(open.load(Ordering::SeqCst));
            end
        })
        .unwrap();
        open.store(false, Ordering::SeqCst);
    }
}

#[test]
fn sleeping_workers_are_woken() {
    let pool = ThreadPool::new(3).unwrap();
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(3));
        let (taken, holders, done) = (nothing_taken(&pool, 2), counters(2), AtomicUsize::new(0));
        pool.run(3, &NEVER, &|worker| {
            walk(worker, &taken, 3, false, |_, phase, i| {
                // Every worker takes a chunk before any worker finishes one.
                holders[phase].fetch_add(1, Ordering::Relaxed);
                wait_for(|| holders[phase].load(Ordering::Relaxed) == 3);
                if i == 2 {
                    // Gives the other workers time to fall asleep.
                    thread::sleep(Duration::from_millis(2));
                }
                done.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        })
        .unwrap();
        assert_eq!(done.into_inner(), 6);
    }
}

/// Walks from phase to phase until the run is ended.
fn endless(worker: Worker<'_>) -> Result<(), Abandoned> {
    let mut place = worker.enter()?;
    loop {
        place = worker.next(place.membership, hint::spin_loop)?;
    }
}

#[test]
fn panic_ends_the_run_but_not_the_pool() {
    let pool = ThreadPool::new(3).unwrap();
    for who in [0, 1, 2, 1] {
        let error = pool
            .run(3, &NEVER, &|m| {
                assert!(m.ith != who, "worker {who} gives up");
                endless(m)
            })
            .unwrap_err();
        let Stopped::Panicked(said) = error else {
            panic!("{error:?}")
        };
        assert!(said.contains(&format!("worker {who} gives up")), "{said}");
        let begun = AtomicUsize::new(0);
        let job = |_: Worker<'_>| {
            begun.fetch_add(1, Ordering::Relaxed);
            wait_for(|| begun.load(Ordering::Relaxed) == 3);
            Ok(())
        };
        pool.run(3, &NEVER, &job).unwrap();
    }
}

/// Both waiting workers and workers in a long loop must return, whichever notices the flag first.
#[test]
fn cancelled_run_ends_for_all_workers() {
    let pool = ThreadPool::new(3).unwrap();
    for n in 1..=3 {
        let (cancel, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        let stopped = pool.run(n, &cancel, &|m| {
            let mut place = m.enter()?;
            loop {
                if m.ith == 0 && rounds.fetch_add(1, Ordering::Relaxed) == 10 {
                    cancel.store(true, Ordering::Relaxed);
                }
                m.check()?;
                place = m.next(place.membership, hint::spin_loop)?;
            }
        });
        assert_eq!(stopped, Err(Stopped::Abandoned));
        assert_eq!(rounds.load(Ordering::Relaxed), 11);
        pool.run(n, &NEVER, &|m| m.enter().map(drop)).unwrap();
    }
}

/// Jobs from several caller threads never overlap, and each job also runs on its caller.
#[test]
fn jobs_of_several_callers_never_overlap() {
    let pool = ThreadPool::new(3).unwrap();
    let (inside, runs) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let started: Mutex<BTreeSet<String>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let caller = thread::current().id();
                for _ in 0..200 {
                    let begun = AtomicUsize::new(0);
                    let job = |m: Worker<'_>| {
                        if m.ith == 0 {
                            assert_eq!(thread::current().id(), caller);
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        } else {
                            let name = thread::current().name().unwrap_or_default().to_owned();
                            started.lock().unwrap().insert(name);
                        }
                        begun.fetch_add(1, Ordering::Relaxed);
                        wait_for(|| begun.load(Ordering::Relaxed) == 3);
                        runs.fetch_add(1, Ordering::Relaxed);
                        if m.ith == 0 {
                            wait_for(|| runs.load(Ordering::Relaxed).is_multiple_of(3));
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                        Ok(())
                    };
                    pool.run(3, &NEVER, &job).unwrap();
                }
            });
        }
    });
    assert_eq!(runs.load(Ordering::Relaxed), 3 * 3 * 200);
    let started = started.into_inner().unwrap();
    assert!(started.iter().eq(["cpu-1", "cpu-2"]), "{started:?}");
}
