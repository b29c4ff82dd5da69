//! Scratch memory: one part per thread and one shared part. It only grows.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

/// Number of floats per cache line.
const LINE: usize = 16;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// Scratch memory in floats.
#[derive(Clone, Copy, Default)]
pub(super) struct ScratchSize {
    pub(super) per_thread: usize,
    pub(super) shared: usize,
}

impl ScratchSize {
    pub(super) fn max(self, other: ScratchSize) -> ScratchSize {
        ScratchSize {
            per_thread: self.per_thread.max(other.per_thread),
            shared: self.shared.max(other.shared),
        }
    }
}

/// The scratch memory. Parts of different threads are in different cache lines.
#[derive(Default)]
pub(super) struct Scratch {
    lines: Vec<Line>,
    per_thread: usize,
    shared: usize,
}

impl Scratch {
    /// Grows the memory to `size` for `n_threads` threads. Returns false if the allocation fails.
    pub(super) fn ensure(&mut self, n_threads: usize, size: ScratchSize) -> bool {
        self.per_thread = self.per_thread.max(size.per_thread.div_ceil(LINE));
        self.shared = self.shared.max(size.shared.div_ceil(LINE));
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

    /// Returns a handle from which threads get their parts.
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

// SAFETY: `Parts` borrows the memory exclusively. Disjointness of the slices is the contract of `of_thread`,
// `Shared::write`, and `Shared::read`.
unsafe impl Sync for Parts<'_> {}

impl Parts<'_> {
    /// Returns the part of thread `ith`.
    ///
    /// # Safety
    /// No other slice of this thread's part is alive.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn of_thread(&self, ith: usize) -> &mut [f32] {
        let end = self.shared + (ith + 1) * self.per_thread;
        assert!(end <= self.n_lines);
        // SAFETY: `end` is within the memory (asserted), and no other slice of the part is alive (function
        // contract).
        unsafe {
            let start = self.start.add((end - self.per_thread) * LINE);
            slice::from_raw_parts_mut(start.as_ptr(), self.per_thread * LINE)
        }
    }

    /// Returns the part that all threads share.
    pub(super) fn shared(&self) -> Shared<'_> {
        Shared {
            start: self.start,
            len: self.shared * LINE,
            lifetime: PhantomData,
        }
    }
}

/// Floats that threads exchange. Barriers order writes and reads.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    start: NonNull<f32>,
    len: usize,
    lifetime: PhantomData<&'a f32>,
}

impl<'a> Shared<'a> {
    /// Returns the number of floats.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns a part for writing.
    ///
    /// # Safety
    /// While the slice is alive, no thread accesses these floats through another slice.
    pub(super) unsafe fn write(&self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds (asserted), and no other slice of these floats is alive (function contract).
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start).as_ptr(), range.len()) }
    }

    /// Returns a part for reading.
    ///
    /// # Safety
    /// While the slice is alive, no thread writes these floats. A barrier separates this call from earlier
    /// writes.
    pub(super) unsafe fn read(&self, range: Range<usize>) -> &'a [f32] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds (asserted), and no thread writes these floats (function contract).
        unsafe { slice::from_raw_parts(self.start.add(range.start).as_ptr(), range.len()) }
    }
}

/// Splits the first `n` floats off a thread's scratch memory.
pub(super) fn take<'a>(scratch: &mut &'a mut [f32], n: usize) -> &'a mut [f32] {
    let (first, rest) = std::mem::take(scratch).split_at_mut(n);
    *scratch = rest;
    first
}
