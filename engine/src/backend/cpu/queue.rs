//! Distribution of a node's work among threads.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::groups::Groups;
use super::phases::Chunk;
use super::pool::Worker;

/// A thread takes `1 / PARTS` of the rest of a range at a time, since cores may differ in speed or run other
/// processes.
const PARTS: usize = 3;

/// Number of counters per pair of cache lines.
const SIDE_BY_SIDE: usize = 16;

/// Share of the work on a node: part `ith` of `nth` equal parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkShare {
    /// Index of the share, starting at 0.
    pub(super) ith: usize,
    /// Number of work shares, one per thread.
    pub(super) nth: usize,
}

impl WorkShare {
    /// The share that covers all the work.
    pub(super) const WHOLE: WorkShare = WorkShare { ith: 0, nth: 1 };

    /// Returns the range of `n` equal chunks that belongs to this share. Longer ranges are spread evenly, so that
    /// adjacent shares, such as those of a NUMA node, have their part of the chunks.
    pub(super) fn of(self, n: usize) -> Range<usize> {
        WorkShare::between(self.ith..self.ith + 1, self.nth, n)
    }

    /// Returns the range of `n` chunks that belongs to adjacent shares.
    fn between(shares: Range<usize>, nth: usize, n: usize) -> Range<usize> {
        let (each, rest) = (n / nth, n % nth);
        let of_rest = |ith: usize| if rest > 0 { (ith * rest).div_ceil(nth) } else { 0 };
        let start = |ith: usize| ith * each + of_rest(ith);
        start(shares.start)..start(shares.end)
    }
}

/// Work counters for each node of a plan.
///
/// The upper half of a counter is the number of the run that wrote it. The lower half counts the chunks taken in that
/// run. Counters of earlier runs count as 0, so a run starts without writing to the counters of all threads.
///
/// With several groups of threads, a group also counts its ranges that are used up, and another counter counts such
/// groups. A thread without work then reads a counter per group instead of one per thread.
#[derive(Default)]
pub(super) struct Counters {
    /// Grouped by thread, because a counter is mainly used by its own thread. The counters of groups follow, then the
    /// one that counts groups.
    all: Vec<AtomicU64>,
    /// Distance between the counters of two threads.
    stride: usize,
    /// `None` for a single group.
    groups: Option<Arc<Groups>>,
    /// Number of the current run in the upper half.
    run: u64,
}

/// Increment of the number of the run in a counter.
const RUN: u64 = 1 << 32;

impl Counters {
    /// Resizes the table to `n_nodes` nodes and the workers of `groups`.
    pub(super) fn resize(&mut self, n_nodes: usize, groups: &Arc<Groups>) {
        let mut n_counters = groups.n_workers();
        self.groups = None;
        if groups.len() > 1 {
            n_counters += groups.len() + 1;
            self.groups = Some(groups.clone());
        }
        self.stride = n_nodes.next_multiple_of(SIDE_BY_SIDE);
        self.all.resize_with(self.stride * n_counters, AtomicU64::default);
    }

    /// Resets all counters before a run.
    pub(super) fn start(&mut self) {
        self.run = self.run.wrapping_add(RUN);
        if self.run == 0 {
            // After this point, the numbers of runs repeat.
            self.all.iter_mut().for_each(|taken| *taken.get_mut() = 0);
        }
    }

    /// Returns the counters of a node.
    pub(super) fn of(&self, node: usize) -> Progress<'_> {
        Progress {
            all: &self.all[node..],
            stride: self.stride,
            groups: self.groups.as_deref(),
            run: self.run,
        }
    }
}

/// Work counters of one node.
#[derive(Clone, Copy)]
pub(super) struct Progress<'a> {
    all: &'a [AtomicU64],
    stride: usize,
    groups: Option<&'a Groups>,
    run: u64,
}

impl Progress<'_> {
    /// Returns the chunks counted by a word.
    fn taken(self, word: u64) -> usize {
        if word / RUN == self.run / RUN {
            (word % RUN) as usize
        } else {
            0
        }
    }

    /// Adds one to the count in row `row` and returns the previous count. Incremented without retries, since all
    /// threads may use the counter at the same time.
    fn take_one(self, row: usize) -> usize {
        let counter = &self.all[row * self.stride];
        let word = counter.load(Ordering::Relaxed);
        if word / RUN != self.run / RUN {
            // On failure, another thread has started the counter.
            let _ = counter.compare_exchange(word, self.run, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.taken(counter.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the count in row `row` of the counters.
    fn count(self, row: usize) -> usize {
        self.taken(self.all[row * self.stride].load(Ordering::Relaxed))
    }

    /// Replaces the count of a range by `next` of the count, unless that is `None`. Returns the previous count.
    fn advance(self, ith: usize, next: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        let change = |word| next(self.taken(word)).map(|count| self.run + count as u64);
        let counter = &self.all[ith * self.stride];
        let before = counter
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, change)
            .ok()?;
        Some(self.taken(before))
    }
}

/// Counters of used ranges for `n` chunks and `nth` threads.
#[derive(Clone, Copy)]
struct GroupCounts<'a> {
    groups: &'a Groups,
    n: usize,
    nth: usize,
}

impl GroupCounts<'_> {
    /// Returns the row of the counter of a group.
    fn row(self, group: usize) -> usize {
        self.groups.n_workers() + group
    }

    /// Returns the row of the counter of all groups.
    fn row_of_all(self) -> usize {
        self.row(self.groups.len())
    }

    /// Returns the number of ranges of a group that contain chunks.
    fn n_ranges(self, group: usize) -> usize {
        let members = self.groups.members(group, self.nth);
        let chunks = WorkShare::between(members.clone(), self.nth, self.n);
        members.len().min(chunks.len())
    }

    /// Returns the number of groups with such ranges.
    fn n_groups_with_work(self) -> usize {
        (0..self.groups.len()).filter(|&group| self.n_ranges(group) > 0).count()
    }
}

/// Error: another thread has stolen the current chunk and this thread's membership in the phase. The thread must no
/// longer access the node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stolen;

/// The chunks of work on a node. Each thread takes the next chunk when it has finished one.
pub(super) struct WorkQueue<'a> {
    pub(super) taken: Progress<'a>,
    pub(super) worker: Worker<'a>,
    /// Number of threads that take chunks.
    pub(super) nth: usize,
    /// Template for the chunks to offer for stealing, or `None` if stealing is disabled. The function of the
    /// node must then follow the contract of [`WorkQueue::finish`].
    pub(super) offered: Option<Chunk>,
    /// First range to return, if it was stolen from another thread.
    pub(super) first: Cell<Option<Range<usize>>>,
}

impl WorkQueue<'_> {
    /// Takes the next of `n` chunks.
    ///
    /// Returns `None` if all chunks are taken or the run was cancelled. In the latter case the result is
    /// incomplete, and the worker's next [check](Worker::check) fails.
    pub(super) fn take(&self, n: usize) -> Option<usize> {
        if self.groups().is_some() {
            // All threads would use one counter.
            return self.take_some(n, 1).map(|chunk| chunk.start);
        }
        // A thread stops after the first `None`, so the counter cannot run far past `n`.
        let next = || Some(self.taken.take_one(0)).filter(|&i| i < n);
        self.begin(|| next().map(|i| i..i + 1)).map(|piece| piece.start)
    }

    /// Takes up to `most` consecutive chunks out of `n`. Near the end of the work, it takes fewer, so that no thread
    /// waits long for the last chunks.
    ///
    /// Each thread has a range of chunks that it takes in order, for sequential memory access. It then takes chunks
    /// from the ranges of other threads, beginning with threads of its group. Returns `None` under the conditions of
    /// [`take`](WorkQueue::take).
    pub(super) fn take_some(&self, n: usize, most: usize) -> Option<Range<usize>> {
        let (ith, nth) = (self.worker.ith, self.nth);
        self.begin(|| match self.groups() {
            None => (0..nth).find_map(|i| self.take_of((ith + i) % nth, n, most)),
            Some(groups) => self.take_in_groups(groups, n, most),
        })
    }

    /// Returns true if [`take`](WorkQueue::take) gives each thread a [share](WorkShare) of the chunks first.
    pub(super) fn has_shares(&self) -> bool {
        self.groups().is_some()
    }

    /// Returns the groups of threads if several take part in this node.
    fn groups(&self) -> Option<&Groups> {
        let groups = self.taken.groups?;
        if self.nth > groups.members(0, self.nth).len() {
            Some(groups)
        } else {
            None
        }
    }

    /// Takes the next chunks from the thread's own range, from its group, or from the next group with work.
    fn take_in_groups(&self, groups: &Groups, n: usize, most: usize) -> Option<Range<usize>> {
        let (ith, nth) = (self.worker.ith, self.nth);
        if let Some(own) = self.take_of(ith, n, most) {
            return Some(own);
        }
        let n_groups = groups.len();
        let used = GroupCounts { groups, n, nth };
        if self.taken.count(used.row_of_all()) >= used.n_groups_with_work() {
            return None;
        }
        (0..n_groups).find_map(|i| {
            let group = (groups.of(ith) + i) % n_groups;
            if self.taken.count(used.row(group)) >= used.n_ranges(group) {
                return None;
            }
            let members = groups.members(group, nth);
            let (first, size) = (members.start, members.len());
            (0..size).find_map(|j| self.take_of(first + (ith + j) % size, n, most))
        })
    }

    /// Takes the next chunks from the range of a thread.
    fn take_of(&self, ith: usize, n: usize, most: usize) -> Option<Range<usize>> {
        let range = WorkShare { ith, nth: self.nth }.of(n);
        let some = |taken: usize| ((range.len() - taken) / PARTS).clamp(1, most);
        let next = |taken: usize| {
            if taken < range.len() {
                Some(range.len().min(taken + some(taken)))
            } else {
                None
            }
        };
        let taken = self.taken.advance(ith, next)?;
        let end = next(taken)?;
        if end == range.len()
            && let Some(groups) = self.groups()
        {
            let used = GroupCounts {
                groups,
                n,
                nth: self.nth,
            };
            self.count_used_range(used, groups.of(ith));
        }
        Some(range.start + taken..range.start + end)
    }

    /// Counts a range whose last chunk was taken.
    fn count_used_range(&self, used: GroupCounts<'_>, group: usize) {
        if self.taken.take_one(used.row(group)) + 1 == used.n_ranges(group) {
            self.taken.take_one(used.row_of_all());
        }
    }

    fn begin(&self, next: impl FnOnce() -> Option<Range<usize>>) -> Option<Range<usize>> {
        self.worker.check().ok()?;
        let range = self.first.take().or_else(next)?;
        if let Some(offered) = &self.offered {
            self.worker.offer(&Chunk {
                range: range.clone(),
                ..*offered
            });
        }
        Some(range)
    }

    /// Finishes the chunk that was taken last.
    ///
    /// Until this call, the thread may write only to its own memory. It may read only its own memory and memory that
    /// is constant during the run. On `Err`, the chunk was stolen and its result must not be written.
    pub(super) fn finish(&self) -> Result<(), Stolen> {
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
        Err(Stolen)
    }
}

/// Test hooks that delay chunks, as if threads were descheduled.
#[cfg(test)]
pub(super) mod stalls {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    static EVERY: AtomicUsize = AtomicUsize::new(0);
    static N_PIECES: AtomicUsize = AtomicUsize::new(0);
    static N_TAKEN_OVER: AtomicUsize = AtomicUsize::new(0);

    /// Delays every `n`th chunk while `f` runs.
    pub(in crate::backend::cpu) fn every(n: usize, f: impl FnOnce()) {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        EVERY.store(n, Ordering::Relaxed);
        f();
        EVERY.store(0, Ordering::Relaxed);
    }

    /// Returns the number of chunks stolen so far.
    pub(in crate::backend::cpu) fn n_stolen() -> usize {
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
                let parts: Vec<usize> = (0..nth).flat_map(|ith| WorkShare { ith, nth }.of(n)).collect();
                assert_eq!(parts, (0..n).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn adjacent_shares_have_their_part() {
        for (nth, n) in [(192, 256), (192, 512), (96, 1000), (8, 3)] {
            for parts in [2, 4] {
                let chunks = WorkShare::between(0..nth / parts, nth, n).len();
                assert!(
                    chunks == n / parts || chunks == n.div_ceil(parts),
                    "{nth} threads, {n} chunks"
                );
            }
        }
    }

    #[test]
    fn groups_count_nonempty_ranges() {
        let groups = Groups::new(&[2, 3, 3]);
        for nth in 1..=8 {
            for n in 0..20 {
                let counts = GroupCounts {
                    groups: &groups,
                    n,
                    nth,
                };
                let has_chunks = |&ith: &usize| !WorkShare { ith, nth }.of(n).is_empty();
                let expected = [0, 1, 2].map(|group| groups.members(group, nth).filter(has_chunks).count());
                assert_eq!(
                    [0, 1, 2].map(|group| counts.n_ranges(group)),
                    expected,
                    "{nth} threads, {n} chunks"
                );
                let with_work = expected.iter().filter(|&&n_ranges| n_ranges > 0).count();
                assert_eq!(counts.n_groups_with_work(), with_work);
            }
        }
    }

    #[test]
    fn counters_of_earlier_runs_count_as_zero() {
        let mut counters = Counters::default();
        counters.resize(1, &Arc::new(Groups::new(&[2])));
        for run in 0..3 {
            assert_eq!([0, 1].map(|_| counters.of(0).take_one(0)), [0, 1], "run {run}");
            assert_eq!(counters.of(0).advance(1, |taken| Some(taken + 5)), Some(0), "run {run}");
            assert_eq!(counters.of(0).advance(1, |_| None), None);
            assert_eq!(counters.of(0).take_one(1), 5);
            let before: Vec<u64> = counters.all.iter_mut().map(|word| *word.get_mut()).collect();
            counters.start();
            let after: Vec<u64> = counters.all.iter_mut().map(|word| *word.get_mut()).collect();
            assert_eq!(before, after, "a start writes no counter");
        }
    }

    /// The number of a run is used again after 2^32 runs.
    #[test]
    fn counters_are_cleared_when_run_numbers_repeat() {
        let mut counters = Counters::default();
        counters.resize(1, &Arc::new(Groups::new(&[1])));
        counters.run = u64::MAX / RUN * RUN;
        assert_eq!(counters.of(0).take_one(0), 0);
        counters.start();
        assert_eq!((counters.run, *counters.all[0].get_mut()), (0, 0));
        assert_eq!([0, 1].map(|_| counters.of(0).take_one(0)), [0, 1]);
    }

    #[test]
    fn chunks_cover_the_work_once_and_shrink() {
        for (groups, nth) in [
            (&[3][..], 3),
            (&[2, 1], 3),
            (&[1, 2, 2], 3),
            (&[1, 2, 2], 4),
            (&[2, 1, 2, 3], 8),
            (&[2, 2], 2),
        ] {
            for (n, most) in [(100, 8), (100, 100), (3, 8), (1, 1), (0, 8)] {
                chunks_cover_work_of(groups, nth, n, most);
            }
        }
    }

    fn chunks_cover_work_of(groups: &[usize], nth: usize, n: usize, most: usize) {
        let pool = ThreadPool::with_core_per_thread(groups);
        let mut counters = Counters::default();
        counters.resize(2, pool.groups());
        let parts = Mutex::new(Vec::new());
        pool.run(nth, &AtomicBool::new(false), &|worker| {
            let queue = WorkQueue {
                taken: counters.of(1),
                worker,
                nth,
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
        for ith in 0..nth {
            let range = WorkShare { ith, nth }.of(n);
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
