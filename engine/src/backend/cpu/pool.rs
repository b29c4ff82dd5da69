//! A team of threads that run one function together, many thousand times a second.
//!
//! The caller is member 0; the others are started once and wait between jobs. Members meet at barriers. Nothing is
//! allocated and no thread is started per job. A member that panics ends the job for all, and the pool stays usable.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::gate::Gate;

/// What a member of the team knows in a job.
#[derive(Clone, Copy)]
pub(super) struct Member<'a> {
    /// Which member this is, from 0.
    pub(super) ith: usize,
    /// How many take part.
    pub(super) nth: usize,
    barrier: &'a Barrier,
}

/// A member panicked, so the others have to stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abandoned;

impl Member<'_> {
    /// Waits until all members are here. What any did before is visible to all after.
    pub(super) fn meet(&self) -> Result<(), Abandoned> {
        if self.nth == 1 {
            return Ok(());
        }
        self.barrier.wait(self.nth)
    }

    /// This member as a team of its own.
    pub(super) fn alone(self) -> Self {
        Member { ith: 0, nth: 1, ..self }
    }

    /// This member's share of `n` equal pieces of work.
    pub(super) fn share(&self, n: usize) -> std::ops::Range<usize> {
        let (each, rest) = (n / self.nth, n % self.nth);
        let start = self.ith * each + self.ith.min(rest);
        start..start + each + usize::from(self.ith < rest)
    }
}

/// A job: the function that all members run.
pub(super) type Job<'a> = dyn Fn(Member<'_>) -> Result<(), Abandoned> + Sync + 'a;

/// The threads.
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// One per worker; its value goes up by one for each job that the worker takes part in.
    starts: Vec<Gate>,
    /// The job, written before the gates of those who take part in it open, and read only by them.
    job: UnsafeCell<Option<Assignment>>,
    /// Workers that have not finished the job.
    unfinished: Gate,
    barrier: Barrier,
    stop: AtomicBool,
    /// What the first member that panicked said.
    panic: Mutex<Option<String>>,
}

#[derive(Clone, Copy)]
struct Assignment {
    run: *const Job<'static>,
    nth: usize,
}

// SAFETY: `job` is the only part that is not Sync by itself. The caller writes it while no worker takes part in a job
// (`unfinished` is 0), and the workers read it after their gate opened, which happens after the write.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is used only while the function it points to is borrowed by `run`.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `n` members: the caller and `n - 1` threads.
    pub(super) fn new(n: usize) -> std::io::Result<Pool> {
        let n_workers = n.max(1) - 1;
        let shared = Arc::new(Shared {
            starts: (0..n_workers).map(|_| Gate::default()).collect(),
            job: UnsafeCell::new(None),
            unfinished: Gate::default(),
            barrier: Barrier::default(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Pool {
            shared: shared.clone(),
            workers: Vec::with_capacity(n_workers),
        };
        for i in 0..n_workers {
            let shared = shared.clone();
            let builder = thread::Builder::new().name(format!("cpu-{}", i + 1));
            // On failure the pool is dropped, which stops those already started.
            pool.workers.push(builder.spawn(move || shared.work(i))?);
        }
        Ok(pool)
    }

    /// Number of members.
    pub(super) fn len(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job` on the first `n` members, of which the caller is one, and returns when all are done.
    /// If a member panicked, the error is what it said.
    pub(super) fn run(&mut self, n: usize, job: &Job<'_>) -> Result<(), String> {
        let nth = n.clamp(1, self.len());
        let shared = &*self.shared;
        shared.barrier.reset();
        let n_workers = nth - 1;
        if n_workers > 0 {
            // SAFETY: only the lifetime changes. The workers use the pointer before they count `unfinished` down, and this
            // function does not return, nor unwind, before that is 0.
            let run = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
            // SAFETY: no worker takes part in a job now, so nobody reads the cell.
            unsafe { *shared.job.get() = Some(Assignment { run, nth }) };
            shared.unfinished.reset(n_workers as u64);
            for start in &shared.starts[..n_workers] {
                start.add(1);
            }
        }
        shared.take_part(job, 0, nth);
        if n_workers > 0 {
            shared.unfinished.wait_until(|n| n == 0);
        }
        if shared.barrier.is_broken() {
            let said = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
            return Err(said.unwrap_or_default());
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.starts.iter().for_each(|start| start.add(1));
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its jobs, so there is nothing to hear here.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The life of worker `i`, which is member `i + 1`.
    fn work(&self, i: usize) {
        let mut seen = 0;
        loop {
            seen = self.starts[i].wait_until(|epoch| epoch != seen);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            // SAFETY: the gate opened after the cell was written, and it is written next only after `unfinished` is 0.
            let assignment = unsafe { *self.job.get() };
            if let Some(Assignment { run, nth }) = assignment {
                // SAFETY: `run` borrows the function until this worker has counted down.
                self.take_part(unsafe { &*run }, i + 1, nth);
                self.unfinished.count_down();
            }
        }
    }

    fn take_part(&self, job: &Job<'_>, ith: usize, nth: usize) {
        let member = Member {
            ith,
            nth,
            barrier: &self.barrier,
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(member))) {
            let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| panic_message(&*panic));
            drop(first);
            self.barrier.break_up();
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a thread panicked")
        .to_string()
}

/// A meeting point for the members of a job.
#[derive(Default)]
struct Barrier {
    arrived: AtomicUsize,
    /// Goes up by one each time that all have arrived.
    meetings: Gate,
    broken: AtomicBool,
}

impl Barrier {
    fn wait(&self, nth: usize) -> Result<(), Abandoned> {
        // Read before arriving: it cannot change until this member has arrived.
        let meeting = self.meetings.get();
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == nth {
            // Before the gate opens, since the fastest member may arrive at the next meeting right after.
            self.arrived.store(0, Ordering::Relaxed);
            self.meetings.add(1);
        } else {
            self.meetings.wait_until(|now| now != meeting || self.is_broken());
        }
        if self.is_broken() { Err(Abandoned) } else { Ok(()) }
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    fn break_up(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.meetings.notify();
    }

    /// Only between jobs.
    fn reset(&self) {
        self.arrived.store(0, Ordering::Relaxed);
        self.broken.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn shares_cover_the_work_once() {
        let barrier = Barrier::default();
        for nth in 1..=5 {
            for n in 0..20 {
                let parts: Vec<usize> = (0..nth)
                    .flat_map(|ith| {
                        let barrier = &barrier;
                        Member { ith, nth, barrier }.share(n)
                    })
                    .collect();
                assert_eq!(parts, (0..n).collect::<Vec<_>>());
            }
        }
    }

    /// Every member adds to its own cell and, after each meeting, finds the cells of all others as they must be then.
    #[test]
    fn members_meet_thousands_of_times() {
        for n in 1..=4 {
            let mut pool = Pool::new(n).unwrap();
            let cells: Vec<AtomicU64> = (0..n).map(|_| AtomicU64::new(0)).collect();
            let wrong = AtomicUsize::new(0);
            let mut expected = 0;
            for epoch in 0..3000 {
                // Jobs of fewer members than the pool has come in between.
                let nth = if epoch % 3 == 0 { n.div_ceil(2) } else { n };
                let base = expected;
                pool.run(nth, &|m| {
                    assert_eq!(m.nth, nth);
                    for step in 1..=4 {
                        // Relaxed: the meeting has to order these.
                        cells[m.ith].store(base + step, Ordering::Relaxed);
                        m.meet()?;
                        for cell in &cells[..nth] {
                            let seen = cell.load(Ordering::Relaxed);
                            wrong.fetch_add(usize::from(seen != base + step), Ordering::Relaxed);
                        }
                        m.meet()?;
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
        let mut pool = Pool::new(3).unwrap();
        let runs = AtomicUsize::new(0);
        for _ in 0..20 {
            thread::sleep(std::time::Duration::from_millis(3));
            let late = |m: Member<'_>| {
                if m.ith == 2 {
                    // The others fall asleep at the meeting.
                    thread::sleep(std::time::Duration::from_millis(2));
                }
                m.meet()?;
                runs.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            pool.run(3, &late).unwrap();
        }
        assert_eq!(runs.load(Ordering::Relaxed), 60);
    }

    #[test]
    fn a_panic_ends_the_job_and_not_the_pool() {
        let mut pool = Pool::new(3).unwrap();
        for who in [0, 1, 2, 1] {
            let error = pool
                .run(3, &|m| {
                    assert!(m.ith != who, "member {who} gives up");
                    loop {
                        m.meet()?;
                    }
                })
                .unwrap_err();
            assert!(error.contains(&format!("member {who} gives up")), "{error}");
            let runs = AtomicUsize::new(0);
            let job = |m: Member<'_>| {
                runs.fetch_add(1, Ordering::Relaxed);
                m.meet()
            };
            pool.run(3, &job).unwrap();
            assert_eq!(runs.load(Ordering::Relaxed), 3);
        }
    }
}
