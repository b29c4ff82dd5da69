//! Scratch memory: a part for each member of the team and a part that all share. It only grows.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

/// Floats of one cache line.
const LINE: usize = 16;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// The memory. Parts of different members do not share cache lines.
#[derive(Default)]
pub(super) struct Scratch {
    lines: Vec<Line>,
    per_member: usize,
    shared: usize,
}

impl Scratch {
    /// Makes room for `n_members` parts of `per_member` floats and a shared part; allocates only if it grows.
    /// False if the memory cannot be had.
    pub(super) fn ensure(&mut self, n_members: usize, per_member: usize, shared: usize) -> bool {
        self.per_member = self.per_member.max(per_member.div_ceil(LINE));
        self.shared = self.shared.max(shared.div_ceil(LINE));
        let total = self
            .per_member
            .checked_mul(n_members)
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

    /// The parts, to be handed out to members.
    pub(super) fn parts(&mut self) -> Parts<'_> {
        Parts {
            start: NonNull::from(&mut self.lines[..]).cast(),
            n_lines: self.lines.len(),
            per_member: self.per_member,
            shared: self.shared,
            lifetime: PhantomData,
        }
    }
}

/// The scratch memory while a job runs.
pub(super) struct Parts<'a> {
    start: NonNull<f32>,
    n_lines: usize,
    per_member: usize,
    shared: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: the parts borrow the memory exclusively and hand it out by the rules of `member` and `shared`.
unsafe impl Sync for Parts<'_> {}

impl Parts<'_> {
    /// The part of one member.
    ///
    /// # Safety
    /// No two slices of one member's part may be alive.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn member(&self, ith: usize) -> &mut [f32] {
        let end = self.shared + (ith + 1) * self.per_member;
        assert!(end <= self.n_lines);
        // SAFETY: the part lies within the memory; the caller promises that the slice is the only one.
        unsafe {
            let start = self.start.add((end - self.per_member) * LINE);
            slice::from_raw_parts_mut(start.as_ptr(), self.per_member * LINE)
        }
    }

    /// The part that all members share.
    pub(super) fn shared(&self) -> Shared<'_> {
        Shared {
            start: self.start,
            len: self.shared * LINE,
            lifetime: PhantomData,
        }
    }
}

/// Floats that members write for one another; meetings order the writing and the reading.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    start: NonNull<f32>,
    len: usize,
    lifetime: PhantomData<&'a f32>,
}

impl<'a> Shared<'a> {
    /// Floats.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A part for writing.
    ///
    /// # Safety
    /// As long as the slice lives, no other slice of any of these floats may be made, by this member or another.
    pub(super) unsafe fn write(&self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: within the memory; the caller promises that the slice is the only one.
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start).as_ptr(), range.len()) }
    }

    /// A part for reading.
    ///
    /// # Safety
    /// As long as the slice lives, nobody may write any of these floats, and all that wrote them have met this member since.
    pub(super) unsafe fn read(&self, range: Range<usize>) -> &'a [f32] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: within the memory; the caller promises that nobody writes.
        unsafe { slice::from_raw_parts(self.start.add(range.start).as_ptr(), range.len()) }
    }
}

/// Splits the first `n` floats off a member's scratch.
pub(super) fn take<'a>(scratch: &mut &'a mut [f32], n: usize) -> &'a mut [f32] {
    let (first, rest) = std::mem::take(scratch).split_at_mut(n);
    *scratch = rest;
    first
}
