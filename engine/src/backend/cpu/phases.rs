//! The phases of a run, separated by barriers that wait only for the threads that have entered the phase.
//!
//! The threads take the work of a phase from queues, chunk by chunk. A thread enters the current phase, and
//! leaves it when the queues are empty. The last thread to leave starts the next phase, since all chunks are
//! done by then. A thread that is descheduled between two phases does not delay other threads: they do
//! its share of the work. The thread enters the current phase when it runs again.
//!
//! A thread that is descheduled in the middle of a chunk would delay the other threads for a time slice. Many phases
//! take as long. If a chunk only reads memory that is constant during the run and computes into the thread's own
//! buffer, the thread *offers* it for stealing. A thread that has waited too long steals the chunk together with the
//! other thread's membership in the phase. Only the final owner of the chunk writes the result, so that it is written
//! once.

use std::ops::Range;
use std::sync::Arc;

use super::arrivals::GroupCounter;
use super::futex::Futex;
use super::groups::{Groups, MAX_GROUPS};
use super::sync::{AtomicBool, AtomicU64, Ordering, PATIENCE, spin_loop};

/// Error: the run ended early, so every worker must return.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abandoned;

/// Membership of a thread in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    /// Index of the phase, starting at 0.
    pub(super) phase: usize,
    /// The counter that counts the thread: the counter of a group, or [`ROOT`].
    pub(super) counter: u8,
}

/// Number of the root counter in a [`Membership`].
pub(super) const ROOT: u8 = 63;
const _: () = assert!(MAX_GROUPS <= ROOT as usize);

/// Membership of a thread in a phase.
pub(super) struct PhaseSlot {
    pub(super) membership: Membership,
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
    /// Counter of the thread's [`Membership`].
    pub(super) counter: u8,
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
const COUNTER_BITS: u32 = 6;
const LEN_BITS: u32 = 12;
const START_BITS: u32 = 24;
const NODE_BITS: u32 = 20;

const LEN_AT: u32 = COUNTER_BITS;
const START_AT: u32 = LEN_AT + LEN_BITS;
const NODE_AT: u32 = START_AT + START_BITS;
const _: () = assert!(NODE_AT + NODE_BITS == 62);

impl Chunk {
    /// Packs the chunk into a word, or returns `None` if a field does not fit.
    pub(super) fn to_word(&self) -> Option<u64> {
        let part = |x: usize, bits: u32| if x >> bits == 0 { Some(x as u64) } else { None };
        let node = part(self.node, NODE_BITS)?;
        let start = part(self.range.start, START_BITS)?;
        let len = part(self.range.len(), LEN_BITS)?;
        let counter = part(self.counter.into(), COUNTER_BITS)?;
        let solo = if self.solo { SOLO } else { 0 };
        Some(OFFERED | solo | node << NODE_AT | start << START_AT | len << LEN_AT | counter)
    }

    pub(super) fn from_word(word: u64) -> Chunk {
        let part = |at: u32, bits: u32| (word >> at) as usize & ((1 << bits) - 1);
        let start = part(START_AT, START_BITS);
        Chunk {
            node: part(NODE_AT, NODE_BITS),
            range: start..start + part(LEN_AT, LEN_BITS),
            solo: word & SOLO != 0,
            counter: part(0, COUNTER_BITS) as u8,
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

/// The current phase and the threads in it.
///
/// The threads of a group are counted by the group's [counter](GroupCounter), and the root counts the groups with
/// members. With one group, the root counts the threads themselves.
///
/// ```text
/// root:      phase | members     members: non-empty groups, and the thread that started the phase
///              |
///        +-----+-----+
/// group: members   members       16 threads at most, which share a cache
///        gate      gate          number of the phase, on which the group's threads wait
/// ```
#[derive(Default)]
pub(super) struct Phases {
    /// The phase in the upper half, the number of members in the lower half.
    pub(super) root: Futex,
    broken: AtomicBool,
    /// Empty if the root counts all threads.
    pub(super) groups: Vec<Group>,
    /// Group of each thread.
    partition: Option<Arc<Groups>>,
}

/// A group of threads.
#[derive(Default)]
pub(super) struct Group {
    pub(super) members: GroupCounter,
    /// The phase in the upper half. Set by the thread that starts a phase.
    pub(super) gate: Futex,
}

const PHASE: u64 = 1 << 32;

fn phase(word: u64) -> usize {
    (word / PHASE) as usize
}

fn n_inside(word: u64) -> u64 {
    word % PHASE
}

impl Phases {
    /// Creates phases for threads in groups.
    pub(super) fn new(groups: Arc<Groups>) -> Phases {
        if groups.len() == 1 {
            return Phases::default();
        }
        Phases {
            groups: (0..groups.len()).map(|_| Group::default()).collect(),
            partition: Some(groups),
            ..Phases::default()
        }
    }

    /// Returns the number of a thread's group, or `None` if the root counts all threads.
    fn group(&self, ith: usize) -> Option<usize> {
        self.partition.as_ref().map(|groups| groups.of(ith))
    }

    /// Enters thread `ith` into the current phase. All writes of earlier phases are visible afterwards.
    pub(super) fn enter(&self, ith: usize) -> Result<PhaseSlot, Abandoned> {
        self.check()?;
        let membership = match self.group(ith) {
            None => Membership {
                phase: phase(self.root.fetch_add(1)),
                counter: ROOT,
            },
            Some(group) => {
                self.groups[group].members.arrive(&self.root);
                // The phase cannot end while it has a member.
                Membership {
                    phase: phase(self.root.get()),
                    counter: group as u8,
                }
            }
        };
        Ok(PhaseSlot {
            membership,
            piece: None,
        })
    }

    /// Ends a membership. Returns true if it was the last of the phase. The next phase has then started, and the
    /// thread is counted by the root.
    pub(super) fn leave(&self, left: Membership) -> bool {
        if left.counter != ROOT && !self.groups[usize::from(left.counter)].members.depart() {
            return false;
        }
        let next = |word| match n_inside(word) {
            // The thread that starts a phase is its first member.
            1 => word - 1 + PHASE + 1,
            _ => word - 1,
        };
        n_inside(self.root.update(next)) == 1
    }

    /// Wakes the threads that wait for `phase`.
    pub(super) fn announce(&self, phase: usize) {
        self.root.notify();
        for group in &self.groups {
            group.gate.set(phase as u64 * PHASE);
        }
    }

    /// Ends the membership of thread `ith` in a phase whose queues are empty, and waits for the threads that are
    /// still in the phase.
    ///
    /// Returns either a later phase, or the membership of another thread whose chunk was stolen from one of
    /// `offers`, in this order. Calls `idle` on every spin iteration.
    pub(super) fn next<'a>(
        &self,
        left: Membership,
        ith: usize,
        offers: impl Iterator<Item = &'a StealSlot>,
        idle: impl FnMut(),
    ) -> Result<PhaseSlot, Abandoned> {
        if self.leave(left) {
            let phase = left.phase + 1;
            self.announce(phase);
            let membership = Membership { phase, counter: ROOT };
            return self.check().map(|()| PhaseSlot {
                membership,
                piece: None,
            });
        }
        let gate = self.group(ith).map_or(&self.root, |group| &self.groups[group].gate);
        let is_over = |word| phase(word) > left.phase || self.is_broken();
        if !gate.spin_until(is_over, idle) {
            if let Some(piece) = steal(offers, gate, is_over) {
                // The other thread was in a phase, and this thread has replaced it, so the phase cannot have
                // ended. It may be later than `left` if the announcement has not reached the gate yet.
                let membership = Membership {
                    phase: phase(self.root.get()),
                    counter: piece.counter,
                };
                return Ok(PhaseSlot {
                    membership,
                    piece: Some(piece),
                });
            }
            gate.sleep_until(is_over);
        }
        self.enter(ith)
    }

    /// Returns an error if the run was [abandoned](Phases::break_up).
    pub(super) fn check(&self) -> Result<(), Abandoned> {
        if self.is_broken() { Err(Abandoned) } else { Ok(()) }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Ends the run for all threads. Waiting threads return immediately. Other threads return when they next
    /// enter a phase or [check](Phases::check).
    pub(super) fn break_up(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.root.notify();
        self.groups.iter().for_each(|group| group.gate.notify());
    }

    /// Resets to the start of phase 0. Must not be called during a run.
    pub(super) fn reset(&self, offers: &[StealSlot]) {
        self.root.reset(0);
        self.broken.store(false, Ordering::Relaxed);
        for group in &self.groups {
            group.members.reset();
            group.gate.reset(0);
        }
        offers
            .iter()
            .for_each(|offer| offer.0.store(NOTHING, Ordering::Relaxed));
    }
}

/// Steals a chunk that another thread has been working on for a while, if any.
fn steal<'a>(
    offers: impl Iterator<Item = &'a StealSlot>,
    gate: &Futex,
    is_over: impl Fn(u64) -> bool,
) -> Option<Chunk> {
    for (offer, seen) in offers.filter_map(|offer| Some((offer, offer.seen()?))) {
        let is_done = |word| is_over(word) || !offer.is_still(seen);
        if gate.spin(PATIENCE, is_done, spin_loop) {
            continue;
        }
        if let Some(piece) = offer.take(seen) {
            return Some(piece);
        }
    }
    None
}
