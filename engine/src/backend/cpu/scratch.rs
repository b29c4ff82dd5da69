//! Scratch memory: a part for each thread and a part that all share. It only grows.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

/// Floats of one cache line.
const LINE: usize = 16;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// The memory. Parts of different threads do not share cache lines.
#[derive(Default)]
pub(super) struct Scratch {
    lines: Vec<Line>,
    per_thread: usize,
    shared: usize,
}

impl Scratch {
    /// Makes room for `n_threads` parts of `per_thread` floats and a shared part; allocates only if it grows.
    /// False if the memory cannot be had.
    pub(super) fn ensure(&mut self, n_threads: usize, per_thread: usize, shared: usize) -> bool {
        self.per_thread = self.per_thread.max(per_thread.div_ceil(LINE));
        self.shared = self.shared.max(shared.div_ceil(LINE));
        let total = self
            .per_thread
            .checked_mul(n_threads)
            .and_then(|n| n.checked_add(self.shared));
        let Some(more) = total.map(|total| total.saturating_sub(self.lines.len())) else {
            return false;
        };
        if self.lines.try_reserve_exact(more).is_err() {
            return false;
        }
        self.lines.resize(self.lines.len() + more, Line([0.0; LINE]));
        true
    }

    /// The parts, to be handed out to threads.
    pub(super) fn parts(&mut self) -> Parts<'_> {
        Parts {
            start: NonNull::from(&mut self.lines[..]).cast(),
            n_lines: self.lines.len(),
            per_thread: self.per_thread,
            shared: self.shared,
            lifetime: PhantomData,
        }
    }
}

/// The scratch memory while a plan runs.
pub(super) struct Parts<'a> {
    start: NonNull<f32>,
    n_lines: usize,
    per_thread: usize,
    shared: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: the parts borrow the memory exclusively and hand it out by the rules of `thread` and `shared`.
unsafe impl Sync for Parts<'_> {}

impl Parts<'_> {
    /// The part of one thread.
    ///
    /// # Safety
    /// No two slices of one thread's part may be alive.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn of_thread(&self, ith: usize) -> &mut [f32] {
        let end = self.shared + (ith + 1) * self.per_thread;
        assert!(end <= self.n_lines);
        // SAFETY: the part lies within the memory; the caller promises that the slice is the only one.
        unsafe {
            let start = self.start.add((end - self.per_thread) * LINE);
            slice::from_raw_parts_mut(start.as_ptr(), self.per_thread * LINE)
        }
    }

    /// The part that all threads share.
    pub(super) fn shared(&self) -> Shared<'_> {
        Shared {
            start: self.start,
            len: self.shared * LINE,
            lifetime: PhantomData,
        }
    }
}

/// Floats that threads write for one another; barriers order the writing and the reading.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    start: NonNull<f32>,
    len: usize,
    lifetime: PhantomData<&'a f32>,
}

impl<'a> Shared<'a> {
    /// A part for writing.
    ///
    /// # Safety
    /// As long as the slice lives, no other slice of any of these floats may be made, by this thread or another.
    pub(super) unsafe fn write(&self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: within the memory; the caller promises that the slice is the only one.
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start).as_ptr(), range.len()) }
    }

    /// A part for reading.
    ///
    /// # Safety
    /// As long as the slice lives, nobody may write any of these floats, and there was a barrier since they were written.
    pub(super) unsafe fn read(&self, range: Range<usize>) -> &'a [f32] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: within the memory; the caller promises that nobody writes.
        unsafe { slice::from_raw_parts(self.start.add(range.start).as_ptr(), range.len()) }
    }
}

/// Splits the first `n` floats off a thread's scratch.
pub(super) fn take<'a>(scratch: &mut &'a mut [f32], n: usize) -> &'a mut [f32] {
    let (first, rest) = std::mem::take(scratch).split_at_mut(n);
    *scratch = rest;
    first
}
