//! A thread pool that runs one function on several threads, many thousand times per second.
//!
//! The caller is worker 0. The other threads are started once and wait between runs. Workers that have a core go
//! through the [phases](super::phases) of a run together. A run does not allocate memory or start threads. A worker
//! that panics or returns an error ends the run for all workers, and the pool stays usable.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::error::error;
use super::futex::Futex;
use super::groups::{Groups, MAX_MEMBERS};
use super::homes::Homes;
use super::numa::{self, Pinned};
use super::phases::{Abandoned, Chunk, Membership, PhaseSlot, Phases, StealSlot};
use super::topology::cache_groups;
use crate::backend::BackendError;

/// A thread's handle to the current run.
#[derive(Clone, Copy)]
pub(super) struct Worker<'a> {
    /// Index of the thread, starting at 0.
    pub(super) ith: usize,
    /// Number of threads in the run.
    pub(super) nth: usize,
    phases: &'a Phases,
    groups: &'a Groups,
    /// Slots for stealing, one per thread; empty if stealing is disabled.
    offers: &'a [StealSlot],
    cancel: &'a AtomicBool,
}

impl Worker<'_> {
    /// Enters the current phase. All writes of earlier phases are visible afterwards.
    pub(super) fn enter(&self) -> Result<PhaseSlot, Abandoned> {
        self.phases.enter(self.ith)
    }

    /// Leaves a phase whose queues are empty, and waits until a later phase starts or a chunk of another
    /// worker can be stolen.
    ///
    /// Calls `idle` on every spin iteration, which must not take longer than a pause instruction.
    pub(super) fn next(&self, left: Membership, idle: impl FnMut()) -> Result<PhaseSlot, Abandoned> {
        self.check()?;
        let victims = self.groups.victims(self.ith, self.nth);
        let offers = victims.filter_map(|victim| self.offers.get(victim));
        self.phases.next(left, self.ith, offers, idle)
    }

    /// Offers a chunk for stealing while this worker computes it. The chunk may read only memory that is
    /// constant during the run, and write only to the worker's own memory.
    pub(super) fn offer(&self, piece: &Chunk) {
        if let Some(offer) = self.offers.get(self.ith) {
            offer.make(piece);
        }
    }

    /// Withdraws the offer. Returns false if the chunk was stolen; this worker is then no longer in a phase.
    pub(super) fn end_offer(&self) -> bool {
        self.offers.get(self.ith).is_none_or(StealSlot::end)
    }

    /// Returns an error if the run was cancelled or another worker ended it.
    pub(super) fn check(&self) -> Result<(), Abandoned> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(self.abandon());
        }
        self.phases.check()
    }

    /// Ends the run for all workers. Waiting workers return immediately. Other workers return when they next
    /// leave a phase or [check](Worker::check).
    pub(super) fn abandon(&self) -> Abandoned {
        self.phases.break_up();
        Abandoned
    }
}

/// The function that all workers run.
pub(super) type Job<'a> = dyn Fn(Worker<'_>) -> Result<(), Abandoned> + Sync + 'a;

/// Reason why a run ended early.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// A worker gave up, or the run was cancelled.
    Abandoned,
    /// A worker panicked with this message.
    Panicked(String),
}

/// Threads that compute graphs together with the calling thread.
///
/// Several contexts may share a pool. It serves one caller at a time, in the order of arrival.
pub struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    callers: TicketLock,
    groups: Arc<Groups>,
    homes: Arc<Homes>,
    /// CPUs of the threads; empty if threads are not pinned.
    pins: Vec<usize>,
    /// Number of cores available to the process.
    n_cores: usize,
}

struct Shared {
    /// Start signals, one per started thread.
    starts: Vec<Start>,
    /// The job. Written before the participating threads are woken, and read only by those threads.
    job: UnsafeCell<Option<Assignment>>,
    /// Number of threads that take part in the job, or still may, and have not finished.
    unfinished: Futex,
    phases: Phases,
    offers: Vec<StealSlot>,
    stop: AtomicBool,
    /// Message of the first worker that panicked.
    panic: Mutex<Option<String>>,
}

/// Start signal of a thread.
#[derive(Default)]
struct Start {
    /// Incremented for each run that the thread may join.
    epoch: Futex,
    /// True while the thread may join the run. Cleared by the thread when it joins, or by the caller if the
    /// run ends first.
    invited: AtomicBool,
}

#[derive(Clone, Copy)]
struct Assignment {
    run: *const Job<'static>,
    cancel: *const AtomicBool,
    nth: usize,
    /// Number of threads that may offer work for stealing: all or none.
    n_offers: usize,
}

// SAFETY: `job` is the only field that is not `Sync`. The caller writes it while it holds the `callers` lock
// and `unfinished` is 0, so no thread reads it. Threads read it after they observe `invited`, which is set
// after the write.
unsafe impl Sync for Shared {}
// SAFETY: `run` dereferences the pointers in `job` only while their targets are borrowed.
unsafe impl Send for Shared {}

impl ThreadPool {
    /// Creates a pool of `n_threads` threads. The calling thread of a run counts as one, so `n_threads - 1`
    /// threads are started.
    pub fn new(n_threads: usize) -> Result<ThreadPool, BackendError> {
        let n_threads = n_threads.max(1);
        let failed = |e| error(format!("cannot start {n_threads} threads: {e}"));
        let (cpus, is_pinned) = numa::placement(n_threads);
        let mut sizes = cache_groups(&cpus, MAX_MEMBERS);
        if sizes.is_empty() {
            sizes.push(n_threads);
        }
        let pins = if is_pinned {
            cpus.iter().map(|cpu| cpu.id).collect()
        } else {
            Vec::new()
        };
        let homes = if is_pinned {
            Homes::new(&cpus)
        } else {
            Homes::one(n_threads)
        };
        ThreadPool::start(Groups::new(&sizes), homes, pins).map_err(failed)
    }

    /// Starts a pool whose thread `i` is pinned to CPU `pins[i]`, if present.
    fn start(groups: Groups, homes: Homes, pins: Vec<usize>) -> std::io::Result<ThreadPool> {
        let n_started = groups.n_workers() - 1;
        let groups = Arc::new(groups);
        let shared = Arc::new(Shared {
            starts: (0..n_started).map(|_| Start::default()).collect(),
            job: UnsafeCell::new(None),
            unfinished: Futex::default(),
            phases: Phases::new(groups.clone()),
            offers: (0..=n_started).map(|_| StealSlot::default()).collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = ThreadPool {
            shared: shared.clone(),
            threads: Vec::with_capacity(n_started),
            callers: TicketLock::default(),
            groups,
            homes: Arc::new(homes),
            pins,
            n_cores: thread::available_parallelism().map_or(1, usize::from),
        };
        shared.unfinished.reset(n_started as u64);
        for i in 0..n_started {
            let (shared, groups) = (shared.clone(), pool.groups.clone());
            let builder = thread::Builder::new().name(format!("cpu-{}", i + 1));
            // On failure the pool is dropped, which stops the threads that are already running.
            let pin = pool.pins.get(i + 1).copied();
            let work = move || {
                pin.into_iter().for_each(numa::pin);
                shared.work(i, &groups);
            };
            pool.threads.push(builder.spawn(work)?);
        }
        // Thread startup allocates memory, and runs do not wait for late threads. Wait here instead.
        shared.unfinished.wait_until(|n| n == 0);
        Ok(pool)
    }

    /// Creates a pool that assumes one core per thread, and that the threads of each group share a cache.
    #[cfg(test)]
    pub(super) fn with_core_per_thread(groups: &[usize]) -> ThreadPool {
        let homes = Homes::one(groups.iter().sum());
        let mut pool = ThreadPool::start(Groups::new(groups), homes, Vec::new()).unwrap();
        pool.n_cores = pool.n_threads();
        pool
    }

    /// Creates such a pool with a NUMA node for each group.
    #[cfg(test)]
    pub(super) fn with_node_per_group(groups: &[usize]) -> ThreadPool {
        let mut pool = ThreadPool::with_core_per_thread(groups);
        pool.homes = Arc::new(Homes::simulated(groups));
        pool
    }

    /// Returns the nodes of the threads.
    pub(super) fn homes(&self) -> &Arc<Homes> {
        &self.homes
    }

    /// Returns the groups of threads.
    pub(super) fn groups(&self) -> &Arc<Groups> {
        &self.groups
    }

    /// Returns the number of threads, including the caller.
    pub fn n_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job` on up to `n` workers, including the caller, and returns when all workers are done.
    ///
    /// A worker that has not started by the time the caller finishes never starts. Blocks until earlier
    /// callers are served.
    pub(super) fn run(&self, n: usize, cancel: &AtomicBool, job: &Job<'_>) -> Result<(), Stopped> {
        let nth = n.clamp(1, self.n_threads());
        let n_started = nth - 1;
        if n_started == 0 {
            let (phases, panic) = (Phases::default(), Mutex::new(None));
            let worker = Worker {
                ith: 0,
                nth: 1,
                phases: &phases,
                groups: &self.groups,
                offers: &[],
                cancel,
            };
            take_part(job, worker, &panic);
            return outcome(&phases, &panic);
        }
        let _turn = self.callers.lock();
        let _pinned = Pinned::to(self.pins.first().copied());
        let shared = &*self.shared;
        shared.phases.reset(&shared.offers);
        // SAFETY: only the lifetime changes. Threads use the pointer before they decrement `unfinished`, and
        // this function neither returns nor unwinds before `unfinished` is 0.
        let run = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        let assignment = Assignment {
            run,
            cancel,
            nth,
            // With more threads than cores, a descheduled thread gets a core as soon as the waiting threads
            // sleep. This wastes less time than repeating the work of that thread.
            n_offers: if nth <= self.n_cores { nth } else { 0 },
        };
        // SAFETY: `unfinished` is 0 and this caller holds the `callers` lock, so no other thread accesses the
        // cell.
        unsafe { *shared.job.get() = Some(assignment) };
        shared.unfinished.reset(n_started as u64);
        for start in &shared.starts[..n_started] {
            // Release: a thread that reads `invited` sees all of the writes above.
            start.invited.store(true, Ordering::Release);
            start.epoch.add(1);
        }
        take_part(job, shared.worker(0, &assignment, &self.groups), &shared.panic);
        for start in &shared.starts[..n_started] {
            if start.invited.swap(false, Ordering::AcqRel) {
                shared.unfinished.count_down();
            }
        }
        shared.unfinished.wait_until(|n| n == 0);
        outcome(&shared.phases, &shared.panic)
    }
}

/// Thread pools are equal only if they are the same object.
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
        self.shared.starts.iter().for_each(|start| start.epoch.add(1));
        for thread in self.threads.drain(..) {
            // `work` catches the panics of jobs, so `join` has nothing to report.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Runs the main loop of started thread `i`, which is worker `i + 1`.
    fn work(&self, i: usize, groups: &Groups) {
        self.unfinished.count_down();
        let start = &self.starts[i];
        let mut seen = 0;
        loop {
            start.epoch.wait_until(|epoch| epoch != seen);
            seen = start.epoch.get();
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if !start.invited.swap(false, Ordering::AcqRel) {
                continue;
            }
            // SAFETY: the cell was written before `invited` was set, and is not written again before
            // `unfinished` is 0.
            let assignment = unsafe { *self.job.get() };
            if let Some(assignment) = assignment {
                // SAFETY: the caller of `run` borrows the job until this thread decrements `unfinished`.
                let job = unsafe { &*assignment.run };
                take_part(job, self.worker(i + 1, &assignment, groups), &self.panic);
                self.unfinished.count_down();
            }
        }
    }

    fn worker<'a>(&'a self, ith: usize, assignment: &'a Assignment, groups: &'a Groups) -> Worker<'a> {
        // SAFETY: the caller of `run` borrows the flag until `unfinished` is 0.
        let cancel = unsafe { &*assignment.cancel };
        Worker {
            ith,
            nth: assignment.nth,
            phases: &self.phases,
            groups,
            offers: &self.offers[..assignment.n_offers],
            cancel,
        }
    }
}

fn take_part(job: &Job<'_>, worker: Worker<'_>, panic: &Mutex<Option<String>>) {
    match catch_unwind(AssertUnwindSafe(|| job(worker))) {
        Ok(Ok(())) => {}
        Ok(Err(Abandoned)) => worker.phases.break_up(),
        Err(payload) => {
            let mut first = panic.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| panic_message(&*payload));
            drop(first);
            worker.phases.break_up();
        }
    }
}

fn outcome(phases: &Phases, panic: &Mutex<Option<String>>) -> Result<(), Stopped> {
    if !phases.is_broken() {
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

/// A fair lock that serves callers in the order of arrival.
#[derive(Default)]
struct TicketLock {
    next: AtomicU64,
    serving: Futex,
}

impl TicketLock {
    fn lock(&self) -> Ticket<'_> {
        let mine = self.next.fetch_add(1, Ordering::Relaxed);
        self.serving.wait_until(|now| now == mine);
        Ticket(self)
    }
}

/// Guard of a [`TicketLock`].
struct Ticket<'a>(&'a TicketLock);

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.0.serving.add(1);
    }
}

#[cfg(test)]
mod tests;
