//! Threads that run one function together, many thousand times a second.
//!
//! The caller is worker 0; the others are started once and wait between runs. Workers go through the [phases](super::phases) of the run, those
//! of them that have a core. Nothing is allocated and no thread is started per run. A worker that panics, or gives up, ends the run for
//! all, and the pool stays usable.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::gate::Gate;
use super::phases::{Offer, Phases, Piece, Place};
use crate::backend::BackendError;

/// What a thread knows in a run.
#[derive(Clone, Copy)]
pub(super) struct Worker<'a> {
    /// Which of the threads this is, from 0.
    pub(super) ith: usize,
    /// How many take part.
    pub(super) nth: usize,
    phases: &'a Phases,
    /// One for each thread that takes part, if pieces may be taken over.
    offers: &'a [Offer],
    cancel: &'a AtomicBool,
}

/// The run is over before its end, so every worker has to return.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abandoned;

impl Worker<'_> {
    /// Enters the phase that is under way. What any worker did in earlier ones is visible from now on.
    pub(super) fn enter(&self) -> Result<Place, Abandoned> {
        self.phases.enter()
    }

    /// Leaves a phase in which nothing is left to take, and waits until a later one is under way or a piece of another worker can be taken over.
    /// While it waits it calls `idle` over and over, which is to take no longer than a pause of the processor does.
    pub(super) fn next(&self, left: usize, idle: impl FnMut()) -> Result<Place, Abandoned> {
        self.check()?;
        self.phases.next(left, self.ith, self.offers, idle)
    }

    /// Lets others take over a piece of work while this worker computes it: from memory that is not written in this run, into its own.
    pub(super) fn offer(&self, piece: &Piece) {
        if let Some(offer) = self.offers.get(self.ith) {
            offer.make(piece);
        }
    }

    /// Ends the offer. False if the piece was taken over: then this worker is in no phase any more.
    pub(super) fn end_offer(&self) -> bool {
        self.offers.get(self.ith).is_none_or(Offer::end)
    }

    /// An error if the run was cancelled or another worker ended it.
    pub(super) fn check(&self) -> Result<(), Abandoned> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(self.abandon());
        }
        self.phases.check()
    }

    /// Ends the run for all workers: those that wait, and the others when they next leave a phase or [check](Worker::check).
    pub(super) fn abandon(&self) -> Abandoned {
        self.phases.break_up();
        Abandoned
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
    /// Cores that the threads may use.
    n_cores: usize,
}

struct Shared {
    /// One per started thread.
    starts: Vec<Start>,
    /// The job, written before the gates of those who take part in it open, and read only by them.
    job: UnsafeCell<Option<Assignment>>,
    /// Threads that take part in the job, or may yet, and have not finished it.
    unfinished: Gate,
    phases: Phases,
    offers: Vec<Offer>,
    stop: AtomicBool,
    /// What the first worker that panicked said.
    panic: Mutex<Option<String>>,
}

/// Where a thread waits for a run that it takes part in.
#[derive(Default)]
struct Start {
    /// Goes up by one for each such run.
    epoch: Gate,
    /// The thread may take part in the run: it answers to itself by setting this to false, or the caller does when the run is over before the
    /// thread had a core.
    invited: AtomicBool,
}

#[derive(Clone, Copy)]
struct Assignment {
    run: *const Job<'static>,
    cancel: *const AtomicBool,
    nth: usize,
    /// Threads that may offer pieces of work: all or none.
    n_offers: usize,
}

// SAFETY: `job` is the only part that is not Sync by itself. The caller writes it while it holds the lock of callers and no
// thread takes part in a job (`unfinished` is 0), and the threads read it after they found themselves invited, which happens after the write.
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
            starts: (0..n_started).map(|_| Start::default()).collect(),
            job: UnsafeCell::new(None),
            unfinished: Gate::default(),
            phases: Phases::default(),
            offers: (0..=n_started).map(|_| Offer::default()).collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = ThreadPool {
            shared: shared.clone(),
            threads: Vec::with_capacity(n_started),
            callers: TicketLock::default(),
            n_cores: thread::available_parallelism().map_or(1, usize::from),
        };
        shared.unfinished.reset(n_started as u64);
        for i in 0..n_started {
            let shared = shared.clone();
            let builder = thread::Builder::new().name(format!("cpu-{}", i + 1));
            // On failure the pool is dropped, which stops those already started.
            pool.threads.push(builder.spawn(move || shared.work(i))?);
        }
        // A thread takes memory while it starts, and runs do not wait for threads that are late.
        shared.unfinished.wait_until(|n| n == 0);
        Ok(pool)
    }

    /// A pool that takes the machine to have a core for each of its threads.
    #[cfg(test)]
    pub(super) fn on_as_many_cores(n_threads: usize) -> ThreadPool {
        let mut pool = ThreadPool::new(n_threads).unwrap();
        pool.n_cores = n_threads;
        pool
    }

    /// Most threads that compute together, the caller included.
    pub fn n_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job` on up to `n` workers, of which the caller is one, and returns when all are done. A worker that has not begun by the time that
    /// the caller is done never begins. Waits until earlier callers are served.
    pub(super) fn run(&self, n: usize, cancel: &AtomicBool, job: &Job<'_>) -> Result<(), Stopped> {
        let nth = n.clamp(1, self.n_threads());
        let n_started = nth - 1;
        if n_started == 0 {
            let (phases, panic) = (Phases::default(), Mutex::new(None));
            take_part(job, Worker::new(0, 1, &phases, &[], cancel), &panic);
            return outcome(&phases, &panic);
        }
        let _turn = self.callers.lock();
        let shared = &*self.shared;
        shared.phases.reset(&shared.offers);
        // SAFETY: only the lifetime changes. The threads use the pointer before they count `unfinished` down, and this
        // function does not return, nor unwind, before that is 0.
        let run = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        let assignment = Assignment {
            run,
            cancel,
            nth,
            // Where threads are more than cores, a thread without a core gets one as soon as those that wait sleep: that is better than to do its
            // work once more.
            n_offers: if nth <= self.n_cores { nth } else { 0 },
        };
        // SAFETY: no thread takes part in a job now, and no other caller is let in, so nobody else uses the cell.
        unsafe { *shared.job.get() = Some(assignment) };
        shared.unfinished.reset(n_started as u64);
        for start in &shared.starts[..n_started] {
            // After all of the above, which the thread sees that reads it.
            start.invited.store(true, Ordering::Release);
            start.epoch.add(1);
        }
        take_part(job, shared.worker(0, &assignment), &shared.panic);
        for start in &shared.starts[..n_started] {
            if start.invited.swap(false, Ordering::AcqRel) {
                shared.unfinished.count_down();
            }
        }
        shared.unfinished.wait_until(|n| n == 0);
        outcome(&shared.phases, &shared.panic)
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
        self.shared.starts.iter().for_each(|start| start.epoch.add(1));
        for thread in self.threads.drain(..) {
            // A thread catches the panics of its jobs, so there is nothing to hear here.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The life of started thread `i`, which is worker `i + 1`.
    fn work(&self, i: usize) {
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
            // SAFETY: the cell was written before the thread was invited, and it is written next only after `unfinished` is 0.
            let assignment = unsafe { *self.job.get() };
            if let Some(assignment) = assignment {
                // SAFETY: the caller of `run` borrows the job until this thread has counted down.
                let job = unsafe { &*assignment.run };
                take_part(job, self.worker(i + 1, &assignment), &self.panic);
                self.unfinished.count_down();
            }
        }
    }

    fn worker<'a>(&'a self, ith: usize, assignment: &'a Assignment) -> Worker<'a> {
        let offers = &self.offers[..assignment.n_offers];
        // SAFETY: the caller of `run` borrows the flag until no thread takes part in the job any more.
        let cancel = unsafe { &*assignment.cancel };
        Worker::new(ith, assignment.nth, &self.phases, offers, cancel)
    }
}

impl<'a> Worker<'a> {
    fn new(ith: usize, nth: usize, phases: &'a Phases, offers: &'a [Offer], cancel: &'a AtomicBool) -> Worker<'a> {
        Worker {
            ith,
            nth,
            phases,
            offers,
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

#[cfg(test)]
mod tests;
