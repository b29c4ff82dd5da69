//! The phases of a run, separated by barriers that wait only for the threads that have entered the phase.
//!
//! The threads take the work of a phase from queues, chunk by chunk. A thread enters the current phase, and
//! leaves it when the queues are empty. The last thread to leave starts the next phase, since all chunks are
//! done by then. A thread that is descheduled while it is in no phase does not delay the others: they do its
//! share of the work, and it enters the current phase when it runs again.
//!
//! A thread that is descheduled in the middle of a chunk would delay the others for a time slice, which lasts
//! as long as many phases. If a chunk only reads memory that is constant during the run and computes into the
//! thread's own buffer, the thread *offers* it for stealing. A thread that has waited too long steals the
//! chunk together with the other thread's membership in the phase. Only the final owner of the chunk writes
//! the result, so that it is written once.

use std::hint;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::futex::Futex;

/// Spin iterations that a thread waits for another thread's chunk before it steals the chunk. Longer than a
/// chunk usually takes.
const PATIENCE: u32 = 1024;

/// Error: the run ended early, so every worker must return.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abandoned;

/// Membership of a thread in a phase.
pub(super) struct PhaseSlot {
    /// Index of the phase, starting at 0.
    pub(super) phase: usize,
    /// The chunk that was stolen together with the membership.
    pub(super) piece: Option<Chunk>,
}

/// A chunk of work that another thread may steal, with all state needed to continue it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Index of the node in the plan.
    pub(super) node: usize,
    /// Range of the node's chunks.
    pub(super) range: Range<usize>,
    /// True if the thread also computes the small nodes of the phase.
    pub(super) solo: bool,
}

/// The chunk that a thread offers for stealing: a [`Chunk`] or a sentinel below.
///
/// A thread never offers the same chunk twice in a run, unless the chunk was stolen in between. Equal values
/// therefore mean the same chunk, without an ABA problem.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct StealSlot(AtomicU64);

/// Sentinel: no chunk is offered.
const NOTHING: u64 = 0;

/// Sentinel: the offered chunk has been stolen.
const GONE: u64 = 1;

/// Flag: a chunk is offered.
const OFFERED: u64 = 1 << 63;

const SOLO: u64 = 1 << 62;
const LEN_BITS: u32 = 16;
const START_BITS: u32 = 24;
const NODE_BITS: u32 = 22;

impl Chunk {
    /// Packs the chunk into a word, or returns `None` if a field does not fit.
    fn to_word(&self) -> Option<u64> {
        let part = |x: usize, bits: u32| if x >> bits == 0 { Some(x as u64) } else { None };
        let node = part(self.node, NODE_BITS)?;
        let start = part(self.range.start, START_BITS)?;
        let len = part(self.range.len(), LEN_BITS)?;
        let solo = if self.solo { SOLO } else { 0 };
        Some(OFFERED | solo | node << (START_BITS + LEN_BITS) | start << LEN_BITS | len)
    }

    fn from_word(word: u64) -> Chunk {
        let part = |at: u32, bits: u32| (word >> at) as usize & ((1 << bits) - 1);
        let start = part(LEN_BITS, START_BITS);
        Chunk {
            node: part(START_BITS + LEN_BITS, NODE_BITS),
            range: start..start + part(0, LEN_BITS),
            solo: word & SOLO != 0,
        }
    }
}

impl StealSlot {
    /// Offers a chunk for stealing. The stealing thread sees all earlier writes of this thread.
    pub(super) fn make(&self, piece: &Chunk) {
        if let Some(word) = piece.to_word() {
            self.0.store(word, Ordering::Release);
        }
    }

    /// Withdraws the offer. Returns false if the chunk was stolen; the thread then has lost the chunk and its
    /// membership in the phase.
    pub(super) fn end(&self) -> bool {
        self.0.swap(NOTHING, Ordering::AcqRel) != GONE
    }

    /// Returns the offered chunk as a token for [`StealSlot::take`].
    fn seen(&self) -> Option<u64> {
        let word = self.0.load(Ordering::Relaxed);
        if word & OFFERED != 0 { Some(word) } else { None }
    }

    /// Returns true if the chunk `seen` is still offered.
    fn is_still(&self, seen: u64) -> bool {
        self.0.load(Ordering::Relaxed) == seen
    }

    /// Steals the chunk `seen`, unless it was finished or stolen by another thread.
    fn take(&self, seen: u64) -> Option<Chunk> {
        let taken = self.0.compare_exchange(seen, GONE, Ordering::AcqRel, Ordering::Relaxed);
        taken.ok().map(Chunk::from_word)
    }
}

/// The current phase and the number of threads in it.
#[derive(Default)]
pub(super) struct Phases {
    /// The phase in the upper half, the number of threads in the lower half.
    word: Futex,
    broken: AtomicBool,
}

const PHASE: u64 = 1 << 32;

fn phase(word: u64) -> usize {
    (word / PHASE) as usize
}

fn n_inside(word: u64) -> u64 {
    word % PHASE
}

impl Phases {
    /// Enters the current phase. All writes of earlier phases are visible afterwards.
    pub(super) fn enter(&self) -> Result<PhaseSlot, Abandoned> {
        self.check()?;
        let phase = phase(self.word.fetch_add(1));
        Ok(PhaseSlot { phase, piece: None })
    }

    /// Leaves phase `left`, whose queues are empty, and waits for the threads that are still in the phase.
    ///
    /// Returns either a later phase, or the membership of another thread whose chunk was stolen. `ith` is the
    /// index of this thread. Calls `idle` on every spin iteration.
    pub(super) fn next(
        &self,
        left: usize,
        ith: usize,
        offers: &[StealSlot],
        idle: impl FnMut(),
    ) -> Result<PhaseSlot, Abandoned> {
        let next = |word| match n_inside(word) {
            // The thread that starts a phase is its first member.
            1 => word - 1 + PHASE + 1,
            _ => word - 1,
        };
        if n_inside(self.word.update(next)) == 1 {
            self.word.notify();
            let place = PhaseSlot {
                phase: left + 1,
                piece: None,
            };
            return self.check().map(|()| place);
        }
        let is_over = |word| phase(word) != left || self.is_broken();
        if !self.word.spin_until(is_over, idle) {
            if let Some(place) = self.steal(ith, offers, is_over) {
                return Ok(place);
            }
            self.word.sleep_until(is_over);
        }
        self.enter()
    }

    /// Steals a chunk that another thread has been working on for a while, if any.
    fn steal(&self, ith: usize, offers: &[StealSlot], is_over: impl Fn(u64) -> bool) -> Option<PhaseSlot> {
        let others = (1..offers.len()).map(|i| &offers[(ith + i) % offers.len()]);
        for (offer, seen) in others.filter_map(|offer| Some((offer, offer.seen()?))) {
            let is_done = |word| is_over(word) || !offer.is_still(seen);
            if self.word.spin(PATIENCE, is_done, hint::spin_loop) {
                continue;
            }
            if let Some(piece) = offer.take(seen) {
                // The other thread was in the phase and this thread has replaced it, so the phase cannot have
                // ended.
                let phase = phase(self.word.get());
                return Some(PhaseSlot {
                    phase,
                    piece: Some(piece),
                });
            }
        }
        None
    }

    /// Returns an error if the run was [abandoned](Phases::break_up).
    pub(super) fn check(&self) -> Result<(), Abandoned> {
        if self.is_broken() { Err(Abandoned) } else { Ok(()) }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Ends the run for all threads. Waiting threads return at once. Other threads return when they next
    /// enter a phase or [check](Phases::check).
    pub(super) fn break_up(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.word.notify();
    }

    /// Resets to the start of phase 0. Must not be called during a run.
    pub(super) fn reset(&self, offers: &[StealSlot]) {
        self.word.reset(0);
        self.broken.store(false, Ordering::Relaxed);
        offers
            .iter()
            .for_each(|offer| offer.0.store(NOTHING, Ordering::Relaxed));
    }
}
