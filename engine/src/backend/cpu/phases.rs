//! The phases of a run: the barrier between two of them waits for those threads only that are in the phase.
//!
//! A phase is some work that threads share, taken from queues piece by piece. A thread enters the phase that is under way, and leaves it when
//! it finds nothing more to take. The last one to leave starts the next phase, since then all pieces are done. A thread that has lost its
//! core is not waited for as long as it is in no phase: what it would have done, others do, and when it is back it enters the phase that is
//! under way by then.
//!
//! A thread that loses its core with a piece in its hands would hold up all others for a time slice, which is as long as many
//! phases. So a piece that is computed from what nobody writes during the run, into memory of the thread's own, is *offered* while it is
//! computed: a thread that has waited in vain takes it over, and with it the other's place in the phase. Only the one who has the piece at its end
//! writes the result, so that it is written once.

use std::hint;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::gate::Gate;
use super::pool::Abandoned;

/// Pauses that a thread waits for another to be done with the piece in its hands before it takes it over: longer than a piece takes.
const PATIENCE: u32 = 1024;

/// A place in a phase.
pub(super) struct Place {
    /// Number of the phase, from 0.
    pub(super) phase: usize,
    /// The piece that was taken over with the place.
    pub(super) piece: Option<Piece>,
}

/// Work that a thread has taken and another may take over, with all that has to be known to go on in the other's stead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which of the nodes of the run.
    pub(super) node: usize,
    /// Which of the node's pieces.
    pub(super) range: Range<usize>,
    /// The thread is the one that computes the phase's small nodes.
    pub(super) solo: bool,
}

/// What a thread offers: a [`Piece`], or one of the values below. No piece is offered twice in a run by one thread unless it was taken over
/// in between, so that equal values mean the same piece.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Offer(AtomicU64);

/// Nothing is offered.
const NOTHING: u64 = 0;

/// What was offered has been taken over.
const GONE: u64 = 1;

/// A piece is offered.
const OFFERED: u64 = 1 << 63;

const SOLO: u64 = 1 << 62;
const LEN_BITS: u32 = 16;
const START_BITS: u32 = 24;
const NODE_BITS: u32 = 22;

impl Piece {
    /// As a word; `None` if the numbers are too large for one.
    fn to_word(&self) -> Option<u64> {
        let part = |x: usize, bits: u32| (x >> bits == 0).then_some(x as u64);
        let node = part(self.node, NODE_BITS)?;
        let start = part(self.range.start, START_BITS)?;
        let len = part(self.range.len(), LEN_BITS)?;
        let solo = if self.solo { SOLO } else { 0 };
        Some(OFFERED | solo | node << (START_BITS + LEN_BITS) | start << LEN_BITS | len)
    }

    fn from_word(word: u64) -> Piece {
        let part = |at: u32, bits: u32| (word >> at) as usize & ((1 << bits) - 1);
        let start = part(LEN_BITS, START_BITS);
        Piece {
            node: part(START_BITS + LEN_BITS, NODE_BITS),
            range: start..start + part(0, LEN_BITS),
            solo: word & SOLO != 0,
        }
    }
}

impl Offer {
    /// Lets others take over a piece from now on. Whoever does sees all that this thread did before.
    pub(super) fn make(&self, piece: &Piece) {
        if let Some(word) = piece.to_word() {
            self.0.store(word, Ordering::Release);
        }
    }

    /// Ends the offer. False if the piece was taken over: then it is no more this thread's, nor is its place in the phase.
    pub(super) fn end(&self) -> bool {
        self.0.swap(NOTHING, Ordering::AcqRel) != GONE
    }

    /// The piece that is offered, for [`Offer::take`].
    fn seen(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|word| word & OFFERED != 0)
    }

    /// True if what was seen is offered still.
    fn is_still(&self, seen: u64) -> bool {
        self.0.load(Ordering::Relaxed) == seen
    }

    /// Takes over what was seen, unless the thread has finished it or somebody else was faster.
    fn take(&self, seen: u64) -> Option<Piece> {
        let taken = self.0.compare_exchange(seen, GONE, Ordering::AcqRel, Ordering::Relaxed);
        taken.ok().map(Piece::from_word)
    }
}

/// Which phase is under way, and how many threads are in it.
#[derive(Default)]
pub(super) struct Phases {
    /// The phase in the upper half, the threads in the lower.
    word: Gate,
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
    /// Enters the phase that is under way. What was done in all phases before is visible from now on.
    pub(super) fn enter(&self) -> Result<Place, Abandoned> {
        self.check()?;
        let phase = phase(self.word.fetch_add(1));
        Ok(Place { phase, piece: None })
    }

    /// Leaves phase `left`, in which nothing is left to take, and waits for those that are in it. The place that the thread has then is in a
    /// later phase, or that of another thread with what it was doing. `ith` is this thread, which calls `idle` while it waits.
    pub(super) fn next(
        &self,
        left: usize,
        ith: usize,
        offers: &[Offer],
        idle: impl FnMut(),
    ) -> Result<Place, Abandoned> {
        let next = |word| match n_inside(word) {
            // Who starts a phase is in it.
            1 => word - 1 + PHASE + 1,
            _ => word - 1,
        };
        if n_inside(self.word.update(next)) == 1 {
            self.word.notify();
            let place = Place {
                phase: left + 1,
                piece: None,
            };
            return self.check().map(|()| place);
        }
        let is_over = |word| phase(word) != left || self.is_broken();
        if !self.word.spin_until(is_over, idle) {
            if let Some(place) = self.take_over(ith, offers, is_over) {
                return Ok(place);
            }
            self.word.sleep_until(is_over);
        }
        self.enter()
    }

    /// Takes over a piece that some thread has not been done with for a while, if there is one.
    fn take_over(&self, ith: usize, offers: &[Offer], is_over: impl Fn(u64) -> bool) -> Option<Place> {
        let others = (1..offers.len()).map(|i| &offers[(ith + i) % offers.len()]);
        for (offer, seen) in others.filter_map(|offer| Some((offer, offer.seen()?))) {
            let is_done = |word| is_over(word) || !offer.is_still(seen);
            if self.word.spin(PATIENCE, is_done, hint::spin_loop) {
                continue;
            }
            if let Some(piece) = offer.take(seen) {
                // The other was in the phase and this thread is now, so the phase cannot have ended since.
                let phase = phase(self.word.get());
                return Some(Place {
                    phase,
                    piece: Some(piece),
                });
            }
        }
        None
    }

    /// An error if the run was [abandoned](Phases::break_up).
    pub(super) fn check(&self) -> Result<(), Abandoned> {
        if self.is_broken() { Err(Abandoned) } else { Ok(()) }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Ends the run for all threads: those that wait, and the others when they next enter a phase or [check](Phases::check).
    pub(super) fn break_up(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.word.notify();
    }

    /// Back to the start of phase 0. Only between runs.
    pub(super) fn reset(&self, offers: &[Offer]) {
        self.word.reset(0);
        self.broken.store(false, Ordering::Relaxed);
        offers
            .iter()
            .for_each(|offer| offer.0.store(NOTHING, Ordering::Relaxed));
    }
}
