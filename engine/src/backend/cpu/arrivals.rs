//! Counting of threads without contention on one cache line.
//!
//! A counter per group of threads reports to the root only when the group gets its first member or loses its last one.
//! This is a scalable non-zero indicator (Ellen, Lev, Luchangco, and Moir: SNZI, PODC 2007) of two levels. A phase
//! of the barrier ends when the root has no members left, so the barrier does not need their number.

use super::futex::Futex;
use super::sync::{AtomicU64, Ordering};

/// Number of members of a group, on separate cache lines.
///
/// The lower half of the word counts halves: 0 for an empty group, 1 while the first member arrives at the root, 2
/// per member. The upper half counts first arrivals, so that a thread does not complete an arrival of a later time.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct GroupCounter(AtomicU64);

const ARRIVING: u64 = 1;
const MEMBER: u64 = 2;
const ARRIVAL: u64 = 1 << 32;

fn count(word: u64) -> u64 {
    word % ARRIVAL
}

impl GroupCounter {
    /// Adds a member. The root counts the group when this function returns.
    pub(super) fn arrive(&self, root: &Futex) {
        // Memberships of the root that other threads have made redundant.
        let mut surplus = 0;
        let mut is_member = false;
        while !is_member {
            let mut word = self.0.load(Ordering::SeqCst);
            if count(word) >= MEMBER {
                is_member = self.replace(word, word + MEMBER);
                continue;
            }
            if count(word) == 0 {
                let arriving = word.wrapping_add(ARRIVAL) + ARRIVING;
                if !self.replace(word, arriving) {
                    continue;
                }
                is_member = true;
                word = arriving;
            }
            // Completes the first arrival, be it of this thread or of another.
            root.fetch_add(1);
            if !self.replace(word, word - ARRIVING + MEMBER) {
                surplus += 1;
            }
        }
        if surplus > 0 {
            // The group is counted, so the root does not become empty.
            root.fetch_add(0_u64.wrapping_sub(surplus));
        }
    }

    /// Removes a member. Returns true if it was the last; the caller must then remove the group from the root.
    pub(super) fn depart(&self) -> bool {
        count(self.0.fetch_sub(MEMBER, Ordering::SeqCst)) == MEMBER
    }

    /// Removes all members. Must not be called during a run.
    pub(super) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns the word, for tests.
    #[cfg(test)]
    pub(super) fn word(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn replace(&self, word: u64, by: u64) -> bool {
        self.0
            .compare_exchange(word, by, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}
