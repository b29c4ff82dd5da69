//! Scratch memory: one part per thread and one shared part. It only grows.
//!
//! With several NUMA nodes, each thread's part is on the node of the thread, and each node can have a copy of the
//! shared part.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::homes::{Homes, MAX_NODES};

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
pub(super) struct Scratch {
    /// Memory of each node: the shared part, then the parts of the node's threads.
    nodes: Vec<Vec<Line>>,
    homes: Arc<Homes>,
    /// True if each node has a shared part, false if only the first node has one.
    is_copied: bool,
    per_thread: usize,
    shared: usize,
}

impl Scratch {
    /// Creates empty memory for threads on these nodes, with one shared part, or with one per node.
    pub(super) fn new(homes: Arc<Homes>, is_copied: bool) -> Scratch {
        Scratch {
            nodes: vec![Vec::new(); homes.n_nodes()],
            homes,
            is_copied,
            per_thread: 0,
            shared: 0,
        }
    }

    /// Grows the memory to `size`. Returns false if memory or a thread for its allocation is missing.
    pub(super) fn ensure(&mut self, size: ScratchSize) -> bool {
        self.per_thread = self.per_thread.max(size.per_thread.div_ceil(LINE));
        self.shared = self.shared.max(size.shared.div_ceil(LINE));
        let homes = &self.homes;
        for (node, lines) in self.nodes.iter_mut().enumerate() {
            let shared = if node == 0 || self.is_copied { self.shared } else { 0 };
            let of_threads = self.per_thread.checked_mul(homes.n_threads(node));
            let Some(total) = of_threads.and_then(|n| n.checked_add(shared)) else {
                return false;
            };
            if total <= lines.len() {
                continue;
            }
            if homes.n_nodes() > 1 {
                // Resizing would copy the old contents on this thread, and so place the pages on its NUMA node.
                *lines = Vec::new();
            }
            if lines.try_reserve_exact(total - lines.len()).is_err() {
                return false;
            }
            if !homes.run_on(node, || lines.resize(total, Line([0.0; LINE]))) {
                return false;
            }
        }
        true
    }

    /// Returns a handle from which threads get their parts.
    pub(super) fn parts(&mut self) -> Parts<'_> {
        let mut nodes = [(NonNull::dangling(), 0); MAX_NODES];
        for (node, lines) in nodes.iter_mut().zip(&mut self.nodes) {
            *node = (NonNull::from(&mut lines[..]).cast(), lines.len());
        }
        Parts {
            nodes,
            homes: &self.homes,
            is_copied: self.is_copied,
            per_thread: self.per_thread,
            shared: self.shared,
            lifetime: PhantomData,
        }
    }
}

/// The scratch memory while a plan runs.
pub(super) struct Parts<'a> {
    /// Start and number of lines of each node's memory.
    nodes: [(NonNull<f32>, usize); MAX_NODES],
    homes: &'a Homes,
    is_copied: bool,
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
        let (node, index) = self.homes.of(ith);
        let (start, n_lines) = self.nodes[node];
        let shared = if node == 0 || self.is_copied { self.shared } else { 0 };
        let end = shared + (index + 1) * self.per_thread;
        assert!(end <= n_lines);
        // SAFETY: `end` is within the memory (asserted), and no other slice of the part is alive (function
        // contract).
        unsafe {
            let start = start.add((end - self.per_thread) * LINE);
            slice::from_raw_parts_mut(start.as_ptr(), self.per_thread * LINE)
        }
    }

    /// Returns the part that all threads share.
    pub(super) fn shared(&self) -> Shared<'_> {
        self.shared_on(0)
    }

    /// Returns the copy of the shared part for thread `ith`: that on its node, if each node has a copy.
    pub(super) fn shared_for(&self, ith: usize) -> Shared<'_> {
        self.shared_on(if self.is_copied { self.homes.of(ith).0 } else { 0 })
    }

    /// Returns the other copies of the shared part.
    pub(super) fn copies_for_others(&self, ith: usize) -> impl Iterator<Item = Shared<'_>> {
        let own = self.homes.of(ith).0;
        let n_copies = if self.is_copied { self.homes.n_nodes() } else { 0 };
        let others = (0..n_copies).filter(move |&node| node != own);
        others.map(|node| self.shared_on(node))
    }

    fn shared_on(&self, node: usize) -> Shared<'_> {
        let (start, n_lines) = self.nodes[node];
        assert!(self.shared <= n_lines);
        Shared {
            start,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_in_the_memory_of_their_node() {
        for is_copied in [false, true] {
            let mut scratch = Scratch::new(Arc::new(Homes::simulated(&[2, 3])), is_copied);
            for (per_thread, shared) in [(40, 100), (100, 1000)] {
                assert!(scratch.ensure(ScratchSize { per_thread, shared }));
            }
            let memory: Vec<_> = scratch.nodes.iter().map(|lines| lines.as_ptr_range()).collect();
            let node_of = |part: &[f32]| memory.iter().position(|lines| lines.contains(&part.as_ptr().cast()));
            let parts = scratch.parts();
            let mut starts = Vec::new();
            for ith in 0..5 {
                let node = usize::from(ith >= 2);
                // SAFETY: one slice exists at a time, and no other thread exists.
                let part = unsafe { parts.of_thread(ith) };
                assert!(part.len() >= 100);
                assert_eq!(node_of(part), Some(node));
                starts.push(part.as_ptr());
                let copy = parts.shared_for(ith);
                // SAFETY: no slice for writing exists.
                let (copy, first) = unsafe { (copy.read(0..1000), parts.shared().read(0..1000)) };
                assert_eq!(node_of(copy), Some(if is_copied { node } else { 0 }));
                assert_eq!(node_of(first), Some(0));
                assert_eq!(parts.copies_for_others(ith).count(), usize::from(is_copied));
            }
            starts.sort();
            starts.dedup();
            assert_eq!(starts.len(), 5);
        }
    }

    #[test]
    fn one_node_has_no_copies() {
        let mut scratch = Scratch::new(Arc::new(Homes::one(3)), true);
        assert!(scratch.ensure(ScratchSize {
            per_thread: 16,
            shared: 32
        }));
        assert_eq!(scratch.nodes.len(), 1);
        assert_eq!(scratch.nodes[0].len(), 3 + 2);
        let parts = scratch.parts();
        assert!((0..3).all(|ith| parts.copies_for_others(ith).next().is_none()));
    }

    #[test]
    fn impossible_sizes_are_rejected() {
        let mut scratch = Scratch::new(Arc::new(Homes::simulated(&[1, 1])), true);
        assert!(!scratch.ensure(ScratchSize {
            per_thread: usize::MAX,
            shared: 0
        }));
    }
}
