//! Threads that run one function together, many thousand times a second.
//!
//! The caller is worker 0; the others are started once and wait between runs. Workers wait for each other at barriers. Nothing is
//! allocated and no thread is started per run. A worker that panics, or gives up, ends the run for all, and the pool stays usable.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::gate::Gate;
use crate::backend::BackendError;

/// What a thread knows in a run.
#[derive(Clone, Copy)]
pub(super) struct Worker<'a> {
    /// Which of the threads this is, from 0.
    pub(super) ith: usize,
    /// How many take part.
    pub(super) nth: usize,
    barrier: &'a Barrier,
    cancel: &'a AtomicBool,
}

/// The run is over before its end, so every worker has to return.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abandoned;

impl Worker<'_> {
    /// Waits until all workers are here. What any did before is visible to all after.
    pub(super) fn barrier(&self) -> Result<(), Abandoned> {
        if self.nth == 1 {
            return self.check();
        }
        self.barrier.wait(self.nth)
    }

    /// An error if the run was cancelled or another worker ended it.
    pub(super) fn check(&self) -> Result<(), Abandoned> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(self.abandon());
        }
        if self.barrier.is_broken() {
            Err(Abandoned)
        } else {
            Ok(())
        }
    }

    /// Ends the run for all workers: those at a barrier, and the others when they next come to one or [check](Worker::check).
    pub(super) fn abandon(&self) -> Abandoned {
        self.barrier.break_up();
        Abandoned
    }

    /// This worker as the only one.
    pub(super) fn alone(self) -> Self {
        Worker { ith: 0, nth: 1, ..self }
    }

    /// This worker's share of `n` equal pieces of work.
    pub(super) fn share(&self, n: usize) -> std::ops::Range<usize> {
        let (each, rest) = (n / self.nth, n % self.nth);
        let start = self.ith * each + self.ith.min(rest);
        start..start + each + usize::from(self.ith < rest)
    }
}

/// The function that all workers run.
pub(super) type Job<'a> = dyn Fn(Worker<'_>) -> Result<(), Abandoned> + Sync + 'a;

/// Why a run has no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// A worker gave up, or the run was cancelled.
    Abandoned,
    /// A worker panicked, and said this.
    Panicked(String),
}

/// Threads that compute graphs together with the thread that asks them to. Several contexts may share a pool: it computes for one
/// at a time, in the order in which they ask.
pub struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    callers: TicketLock,
}

struct Shared {
    /// One per thread; its value goes up by one for each run that the thread takes part in.
    starts: Vec<Gate>,
    /// The job, written before the gates of those who take part in it open, and read only by them.
    job: UnsafeCell<Option<Assignment>>,
    /// Threads that have not finished the job.
    unfinished: Gate,
    barrier: Barrier,
    stop: AtomicBool,
    /// What the first worker that panicked said.
    panic: Mutex<Option<String>>,
}

#[derive(Clone, Copy)]
struct Assignment {
    run: *const Job<'static>,
    cancel: *const AtomicBool,
    nth: usize,
}

// SAFETY: `job` is the only part that is not Sync by itself. The caller writes it while it holds the lock of callers and no
// thread takes part in a job (`unfinished` is 0), and the threads read it after their gate opened, which happens after the write.
unsafe impl Sync for Shared {}
// SAFETY: the pointers in `job` are used only while what they point to is borrowed by `run`.
unsafe impl Send for Shared {}

impl ThreadPool {
    /// A pool of `n_threads`, of which the thread that asks for a run is one: it starts one fewer.
    pub fn new(n_threads: usize) -> Result<ThreadPool, BackendError> {
        let failed = |e| super::error(format!("cannot start {n_threads} threads: {e}"));
        ThreadPool::start(n_threads).map_err(failed)
    }

    fn start(n_threads: usize) -> std::io::Result<ThreadPool> {
        let n_started = n_threads.max(1) - 1;
        let shared = Arc::new(Shared {
            starts: (0..n_started).map(|_| Gate::default()).collect(),
            job: UnsafeCell::new(None),
            unfinished: Gate::default(),
            barrier: Barrier::default(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = ThreadPool {
            shared: shared.clone(),
            threads: Vec::with_capacity(n_started),
            callers: TicketLock::default(),
        };
        for i in 0..n_started {
            let shared = shared.clone();
            let builder = thread::Builder::new().name(format!("cpu-{}", i + 1));
            // On failure the pool is dropped, which stops those already started.
            pool.threads.push(builder.spawn(move || shared.work(i))?);
        }
        Ok(pool)
    }

    /// Most threads that compute together, the caller included.
    pub fn n_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job` on `n` workers, of which the caller is one, and returns when all are done. Waits until earlier callers are served.
    pub(super) fn run(&self, n: usize, cancel: &AtomicBool, job: &Job<'_>) -> Result<(), Stopped> {
        let nth = n.clamp(1, self.n_threads());
        let n_started = nth - 1;
        if n_started == 0 {
            let (barrier, panic) = (Barrier::default(), Mutex::new(None));
            take_part(job, Worker::new(0, 1, &barrier, cancel), &panic);
            return outcome(&barrier, &panic);
        }
        let _turn = self.callers.lock();
        let shared = &*self.shared;
        shared.barrier.reset();
        // SAFETY: only the lifetime changes. The threads use the pointer before they count `unfinished` down, and this
        // function does not return, nor unwind, before that is 0.
        let run = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        // SAFETY: no thread takes part in a job now, and no other caller is let in, so nobody else uses the cell.
        unsafe { *shared.job.get() = Some(Assignment { run, cancel, nth }) };
        shared.unfinished.reset(n_started as u64);
        for start in &shared.starts[..n_started] {
            start.add(1);
        }
        take_part(job, Worker::new(0, nth, &shared.barrier, cancel), &shared.panic);
        shared.unfinished.wait_until(|n| n == 0);
        outcome(&shared.barrier, &shared.panic)
    }
}

/// A pool equals itself only.
impl PartialEq for ThreadPool {
    fn eq(&self, other: &ThreadPool) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadPool({})", self.n_threads())
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.starts.iter().for_each(|start| start.add(1));
        for thread in self.threads.drain(..) {
            // A thread catches the panics of its jobs, so there is nothing to hear here.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The life of started thread `i`, which is worker `i + 1`.
    fn work(&self, i: usize) {
        let mut seen = 0;
        loop {
            seen = self.starts[i].wait_until(|epoch| epoch != seen);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            // SAFETY: the gate opened after the cell was written, and it is written next only after `unfinished` is 0.
            let assignment = unsafe { *self.job.get() };
            if let Some(Assignment { run, cancel, nth }) = assignment {
                // SAFETY: the caller of `run` borrows both until this thread has counted down.
                let (job, cancel) = unsafe { (&*run, &*cancel) };
                take_part(job, Worker::new(i + 1, nth, &self.barrier, cancel), &self.panic);
                self.unfinished.count_down();
            }
        }
    }
}

impl<'a> Worker<'a> {
    fn new(ith: usize, nth: usize, barrier: &'a Barrier, cancel: &'a AtomicBool) -> Worker<'a> {
        Worker {
            ith,
            nth,
            barrier,
            cancel,
        }
    }
}

fn take_part(job: &Job<'_>, worker: Worker<'_>, panic: &Mutex<Option<String>>) {
    match catch_unwind(AssertUnwindSafe(|| job(worker))) {
        Ok(Ok(())) => {}
        Ok(Err(Abandoned)) => worker.barrier.break_up(),
        Err(payload) => {
            let mut first = panic.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| panic_message(&*payload));
            drop(first);
            worker.barrier.break_up();
        }
    }
}

fn outcome(barrier: &Barrier, panic: &Mutex<Option<String>>) -> Result<(), Stopped> {
    if !barrier.is_broken() {
        return Ok(());
    }
    let said = panic.lock().unwrap_or_else(PoisonError::into_inner).take();
    Err(said.map_or(Stopped::Abandoned, Stopped::Panicked))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a thread panicked")
        .to_string()
}

/// Lets callers in one at a time, in the order in which they came.
#[derive(Default)]
struct TicketLock {
    next: AtomicU64,
    serving: Gate,
}

impl TicketLock {
    fn lock(&self) -> Ticket<'_> {
        let mine = self.next.fetch_add(1, Ordering::Relaxed);
        self.serving.wait_until(|now| now == mine);
        Ticket(self)
    }
}

/// Held by the caller that was let in.
struct Ticket<'a>(&'a TicketLock);

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.0.serving.add(1);
    }
}

/// Where the workers of a run wait for each other.
#[derive(Default)]
struct Barrier {
    arrived: AtomicUsize,
    /// Goes up by one each time that all have arrived.
    rounds: Gate,
    broken: AtomicBool,
}

impl Barrier {
    fn wait(&self, nth: usize) -> Result<(), Abandoned> {
        // Read before arriving: it cannot change until this worker has arrived.
        let round = self.rounds.get();
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == nth {
            // Before the gate opens, since the fastest worker may arrive at the next barrier right after.
            self.arrived.store(0, Ordering::Relaxed);
            self.rounds.add(1);
        } else {
            self.rounds.wait_until(|now| now != round || self.is_broken());
        }
        if self.is_broken() { Err(Abandoned) } else { Ok(()) }
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    fn break_up(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.rounds.notify();
    }

    /// Only between runs.
    fn reset(&self) {
        self.arrived.store(0, Ordering::Relaxed);
        self.broken.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    static NEVER: AtomicBool = AtomicBool::new(false);

    #[test]
    fn shares_cover_the_work_once() {
        let barrier = Barrier::default();
        for nth in 1..=5 {
            for n in 0..20 {
                let parts: Vec<usize> = (0..nth)
                    .flat_map(|ith| {
                        let barrier = &barrier;
                        Worker::new(ith, nth, barrier, &NEVER).share(n)
                    })
                    .collect();
                assert_eq!(parts, (0..n).collect::<Vec<_>>());
            }
        }
    }

    /// Every worker adds to its own cell and, after each barrier, finds the cells of all others as they must be then.
    #[test]
    fn workers_wait_for_each_other_thousands_of_times() {
        for n in 1..=4 {
            let pool = ThreadPool::new(n).unwrap();
            let cells: Vec<AtomicU64> = (0..n).map(|_| AtomicU64::new(0)).collect();
            let wrong = AtomicUsize::new(0);
            let mut expected = 0;
            for epoch in 0..3000 {
                // Jobs of fewer threads than the pool has come in between.
                let nth = if epoch % 3 == 0 { n.div_ceil(2) } else { n };
                let base = expected;
                pool.run(nth, &NEVER, &|m| {
                    assert_eq!(m.nth, nth);
                    for step in 1..=4 {
                        // Relaxed: the barrier has to order these.
                        cells[m.ith].store(base + step, Ordering::Relaxed);
                        m.barrier()?;
                        for cell in &cells[..nth] {
                            let seen = cell.load(Ordering::Relaxed);
                            wrong.fetch_add(usize::from(seen != base + step), Ordering::Relaxed);
                        }
                        m.barrier()?;
                    }
                    Ok(())
                })
                .unwrap();
                expected += 4;
            }
            assert_eq!(wrong.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn sleeping_workers_are_woken() {
        let pool = ThreadPool::new(3).unwrap();
        let runs = AtomicUsize::new(0);
        for _ in 0..20 {
            thread::sleep(std::time::Duration::from_millis(3));
            let late = |m: Worker<'_>| {
                if m.ith == 2 {
                    // The others fall asleep at the barrier.
                    thread::sleep(std::time::Duration::from_millis(2));
                }
                m.barrier()?;
                runs.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            pool.run(3, &NEVER, &late).unwrap();
        }
        assert_eq!(runs.load(Ordering::Relaxed), 60);
    }

    #[test]
    fn a_panic_ends_the_run_and_not_the_pool() {
        let pool = ThreadPool::new(3).unwrap();
        for who in [0, 1, 2, 1] {
            let error = pool
                .run(3, &NEVER, &|m| {
                    assert!(m.ith != who, "worker {who} gives up");
                    loop {
                        m.barrier()?;
                    }
                })
                .unwrap_err();
            let Stopped::Panicked(said) = error else {
                panic!("{error:?}")
            };
            assert!(said.contains(&format!("worker {who} gives up")), "{said}");
            let runs = AtomicUsize::new(0);
            let job = |m: Worker<'_>| {
                runs.fetch_add(1, Ordering::Relaxed);
                m.barrier()
            };
            pool.run(3, &NEVER, &job).unwrap();
            assert_eq!(runs.load(Ordering::Relaxed), 3);
        }
    }

    /// Whoever notices first, workers at a barrier and workers in a long loop all return.
    #[test]
    fn a_cancelled_run_ends_for_all() {
        let pool = ThreadPool::new(3).unwrap();
        for n in 1..=3 {
            let (cancel, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
            let stopped = pool.run(n, &cancel, &|m| {
                loop {
                    if m.ith == 0 && rounds.fetch_add(1, Ordering::Relaxed) == 10 {
                        cancel.store(true, Ordering::Relaxed);
                    }
                    m.check()?;
                    m.barrier()?;
                }
            });
            assert_eq!(stopped, Err(Stopped::Abandoned));
            assert_eq!(rounds.load(Ordering::Relaxed), 11);
            pool.run(n, &NEVER, &|m| m.barrier()).unwrap();
        }
    }

    /// Callers on threads of their own: never two jobs at once, and each job runs on its caller.
    #[test]
    fn callers_take_turns() {
        let pool = ThreadPool::new(3).unwrap();
        let (inside, runs) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let started: Mutex<BTreeSet<String>> = Mutex::default();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let caller = thread::current().id();
                    for _ in 0..200 {
                        let job = |m: Worker<'_>| {
                            if m.ith == 0 {
                                assert_eq!(thread::current().id(), caller);
                                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            } else {
                                let name = thread::current().name().unwrap_or_default().to_owned();
                                started.lock().unwrap().insert(name);
                            }
                            m.barrier()?;
                            runs.fetch_add(1, Ordering::Relaxed);
                            m.barrier()?;
                            if m.ith == 0 {
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
}
