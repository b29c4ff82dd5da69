//! How threads share the work on a node.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::phases::Piece;
use super::pool::Worker;

/// Parts of what is left of a range, of which a thread takes one: cores may differ in speed, and some may be busy with other things.
const PARTS: usize = 3;

/// Counters that share a pair of cache lines.
const SIDE_BY_SIDE: usize = 16;

/// One of equal shares of the work on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Which share this is, from 0.
    pub(super) ith: usize,
    /// How many there are.
    pub(super) nth: usize,
}

impl Share {
    /// All the work.
    pub(super) const WHOLE: Share = Share { ith: 0, nth: 1 };

    /// What of `n` equal pieces belongs to this share.
    pub(super) fn of(self, n: usize) -> Range<usize> {
        let (each, rest) = (n / self.nth, n % self.nth);
        let start = self.ith * each + self.ith.min(rest);
        start..start + each + usize::from(self.ith < rest)
    }
}

/// How much of the work on each node of a plan threads have taken in a run.
#[derive(Default)]
pub(super) struct Counters {
    /// Those of a thread lie side by side, because mostly it alone uses them.
    all: Vec<AtomicUsize>,
    /// Counters from one thread to the next.
    stride: usize,
}

impl Counters {
    /// Has counters for so many nodes.
    pub(super) fn resize(&mut self, n_nodes: usize, n_threads: usize) {
        self.stride = n_nodes.next_multiple_of(SIDE_BY_SIDE);
        self.all.resize_with(self.stride * n_threads, AtomicUsize::default);
    }

    /// Before a run: nothing is taken.
    pub(super) fn start(&mut self) {
        self.all.iter_mut().for_each(|taken| *taken.get_mut() = 0);
    }

    /// Those of a node.
    pub(super) fn of(&self, node: usize) -> Taken<'_> {
        Taken {
            all: &self.all[node..],
            stride: self.stride,
        }
    }
}

/// How much of the work on a node threads have taken.
#[derive(Clone, Copy)]
pub(super) struct Taken<'a> {
    all: &'a [AtomicUsize],
    stride: usize,
}

impl<'a> Taken<'a> {
    /// Of the range of a thread.
    fn of(self, ith: usize) -> &'a AtomicUsize {
        &self.all[ith * self.stride]
    }
}

/// Another thread has taken over the piece that this one was working on, and its place in the phase: nothing more may be read or written
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TakenOver;

/// Pieces of the work on a node, of which each thread takes the next when it is done with one.
pub(super) struct WorkQueue<'a> {
    pub(super) taken: Taken<'a>,
    pub(super) worker: Worker<'a>,
    /// Threads that take pieces.
    pub(super) nth: usize,
    /// If pieces may be taken over: what tells a piece of this node from others. The function of the node keeps to the rules of
    /// [`WorkQueue::finish`].
    pub(super) offered: Option<Piece>,
    /// A piece to begin with.
    pub(super) first: Cell<Option<Range<usize>>>,
}

impl WorkQueue<'_> {
    /// The next of `n` pieces that no thread has taken. None are left once the run was cancelled: the result is then not whole, and
    /// the worker's next [check](Worker::check) fails.
    pub(super) fn take(&self, n: usize) -> Option<usize> {
        // Threads stop asking after the first refusal, so the counter cannot run far beyond `n`.
        let next = || Some(self.taken.of(0).fetch_add(1, Ordering::Relaxed)).filter(|&i| i < n);
        self.begin(|| next().map(|i| i..i + 1)).map(|piece| piece.start)
    }

    /// Of `n` pieces of one size, the next that no thread has taken, together with some that follow: at most `most`, and fewer as the work comes
    /// to its end, so that nobody waits long for the last ones. `None` as for [`take`](WorkQueue::take). Each thread has a range of the pieces,
    /// which it takes in order, so that it reads memory in order; after it those of others.
    pub(super) fn take_some(&self, n: usize, most: usize) -> Option<Range<usize>> {
        let nth = self.nth;
        self.begin(|| (0..nth).find_map(|i| self.take_of((self.worker.ith + i) % nth, n, most)))
    }

    /// The next of the pieces in the range of a thread.
    fn take_of(&self, ith: usize, n: usize, most: usize) -> Option<Range<usize>> {
        let range = Share { ith, nth: self.nth }.of(n);
        let some = |taken: usize| ((range.len() - taken) / PARTS).clamp(1, most);
        let next = |taken: usize| (taken < range.len()).then(|| range.len().min(taken + some(taken)));
        let counter = self.taken.of(ith);
        let taken = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        next(taken).map(|end| range.start + taken..range.start + end)
    }

    fn begin(&self, next: impl FnOnce() -> Option<Range<usize>>) -> Option<Range<usize>> {
        self.worker.check().ok()?;
        let range = self.first.take().or_else(next)?;
        if let Some(offered) = &self.offered {
            self.worker.offer(&Piece {
                range: range.clone(),
                ..*offered
            });
        }
        Some(range)
    }

    /// Ends the work on the piece that was taken last, of which nothing has been written yet but to the thread's own memory, and of which nothing
    /// was read but that memory and what nobody writes during the run. If it was taken over, nothing of it may be written.
    pub(super) fn finish(&self) -> Result<(), TakenOver> {
        if self.offered.is_none() {
            return Ok(());
        }
        #[cfg(test)]
        stalls::stall();
        if self.worker.end_offer() {
            return Ok(());
        }
        #[cfg(test)]
        stalls::count();
        Err(TakenOver)
    }
}

/// Makes threads lose time with pieces, as if they had no core.
#[cfg(test)]
pub(super) mod stalls {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    static EVERY: AtomicUsize = AtomicUsize::new(0);
    static N_PIECES: AtomicUsize = AtomicUsize::new(0);
    static N_TAKEN_OVER: AtomicUsize = AtomicUsize::new(0);

    /// Whoever has every `n`th piece loses time while `f` runs.
    pub(in crate::backend::cpu) fn every(n: usize, f: impl FnOnce()) {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        EVERY.store(n, Ordering::Relaxed);
        f();
        EVERY.store(0, Ordering::Relaxed);
    }

    /// Pieces that were taken over so far.
    pub(in crate::backend::cpu) fn n_taken_over() -> usize {
        N_TAKEN_OVER.load(Ordering::Relaxed)
    }

    pub(super) fn stall() {
        let every = EVERY.load(Ordering::Relaxed);
        if every > 0 && N_PIECES.fetch_add(1, Ordering::Relaxed).is_multiple_of(every) {
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    pub(super) fn count() {
        N_TAKEN_OVER.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::backend::ThreadPool;

    #[test]
    fn shares_cover_the_work_once() {
        for nth in 1..=5 {
            for n in 0..20 {
                let parts: Vec<usize> = (0..nth).flat_map(|ith| Share { ith, nth }.of(n)).collect();
                assert_eq!(parts, (0..n).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn pieces_cover_the_work_once_and_the_last_are_small() {
        let pool = ThreadPool::new(3).unwrap();
        for (n, most) in [(100, 8), (100, 100), (3, 8), (1, 1), (0, 8)] {
            let mut counters = Counters::default();
            counters.resize(2, 3);
            let parts = Mutex::new(Vec::new());
            pool.run(3, &AtomicBool::new(false), &|worker| {
                let queue = WorkQueue {
                    taken: counters.of(1),
                    worker,
                    nth: 3,
                    offered: None,
                    first: Cell::new(None),
                };
                while let Some(part) = queue.take_some(n, most) {
                    parts.lock().unwrap().push(part);
                }
                Ok(())
            })
            .unwrap();
            let mut parts = parts.into_inner().unwrap();
            parts.sort_by_key(|part| part.start);
            assert!(parts.iter().cloned().flatten().eq(0..n), "{parts:?}");
            for ith in 0..3 {
                let range = Share { ith, nth: 3 }.of(n);
                let of_range = parts.iter().filter(|part| range.contains(&part.start));
                let sizes: Vec<usize> = of_range.map(|part| part.len()).collect();
                assert!(
                    sizes.is_sorted_by(|a, b| a >= b) && sizes.iter().all(|&size| size <= most),
                    "{sizes:?}"
                );
                assert!(sizes.last().is_none_or(|&size| size == 1), "{sizes:?}");
            }
        }
    }
}
