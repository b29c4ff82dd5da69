//! Tests of the barrier's parts. They are in a separate file because the model checker compiles the barrier with other
//! primitives.

use std::hint;
use std::sync::Arc;

use super::futex::Futex;
use super::groups::{Groups, MAX_FAR};
use super::phases::{Chunk, Membership, Phases, ROOT, StealSlot};
use super::sync::{Ordering, SPINS};

#[test]
fn futex_fields_are_on_separate_lines() {
    let futex = Futex::default();
    let at = |field: *const u8| field.addr() / 128;
    let fields = [
        at((&raw const futex.word).cast()),
        at((&raw const futex.patience).cast()),
        at((&raw const futex.sleepers).cast()),
    ];
    assert!(fields.windows(2).all(|pair| pair[0] != pair[1]), "{fields:?}");
    assert!(fields[2] != fields[0]);
}

#[test]
fn patience_is_written_only_if_it_changes() {
    let futex = Futex::default();
    for _ in 0..64 {
        assert!(futex.spin_until(|value| value == 0, hint::spin_loop));
    }
    let longest = futex.patience.0.load(Ordering::Relaxed);
    assert_eq!(longest, *SPINS.end());
    assert!(!futex.spin_until(|value| value == 1, || ()));
    assert_eq!(futex.patience.0.load(Ordering::Relaxed), longest / 4);
}

#[test]
fn workers_steal_from_own_group_first_and_a_few_others() {
    let groups = Groups::new(&[3, 2, 4]);
    let victims = |ith, nth| groups.victims(ith, nth).collect::<Vec<_>>();
    assert_eq!(victims(1, 9), [2, 0, 4, 5, 6, 7, 8, 3]);
    assert_eq!(victims(4, 9), [3, 6, 7, 8, 0, 1, 2, 5]);
    assert_eq!(victims(1, 2), [0]);
    assert_eq!(victims(0, 1), [0; 0]);
    let large = Groups::new(&[16; 12]);
    for ith in 0..192 {
        let victims: Vec<usize> = large.victims(ith, 192).collect();
        assert_eq!(victims.len(), 15 + MAX_FAR);
        assert!(!victims.contains(&ith) && victims.iter().all(|&victim| victim < 192));
    }
}

#[test]
fn too_many_groups_are_merged() {
    let groups = Groups::new(&[2; 100]);
    assert_eq!((groups.len(), groups.n_workers()), (50, 200));
    assert_eq!(groups.members(49, 199), 196..199);
    assert_eq!(Groups::new(&[0, 5]).len(), 1);
}

/// Returns all words that threads contend for: the root, then the counter and the gate of each group.
fn words(phases: &Phases) -> Vec<u64> {
    let of_groups = phases
        .groups
        .iter()
        .flat_map(|group| [group.members.word(), group.gate.get()]);
    std::iter::once(phases.root.get()).chain(of_groups).collect()
}

/// Counts how often each word changes while `nth` threads pass through a phase, one after the other.
fn changes(groups: &[usize], nth: usize) -> Vec<usize> {
    let phases = Phases::new(Arc::new(Groups::new(groups)));
    let mut before = words(&phases);
    let mut changes = vec![0; before.len()];
    let mut count = || {
        let after = words(&phases);
        for (changes, (before, after)) in changes.iter_mut().zip(before.iter().zip(&after)) {
            *changes += usize::from(before != after);
        }
        before = after;
    };
    let mut members = Vec::new();
    for ith in 0..nth {
        members.push(phases.enter(ith).unwrap().membership);
        count();
    }
    for (i, &member) in members.iter().enumerate() {
        assert_eq!(member.phase, 0);
        let is_last = phases.leave(member);
        assert_eq!(is_last, i + 1 == nth);
        count();
    }
    phases.announce(1);
    count();
    assert!(phases.enter(0).unwrap().membership.phase == 1);
    changes
}

/// With 192 threads, a word changes at most 48 times. One word for all threads would change 384 times.
#[test]
fn contended_words_change_once_per_group_or_member() {
    assert_eq!(changes(&[8], 8), [16]);
    for (groups, nth) in [(&[8; 2][..], 16), (&[8; 8], 64), (&[8; 24], 192), (&[16; 6], 96)] {
        let changes = changes(groups, nth);
        assert_eq!(changes[0], 2 * groups.len());
        for of_group in changes[1..].chunks(2) {
            assert_eq!(of_group, [2 * groups[0], 1]);
        }
    }
}

#[test]
fn thread_that_starts_a_phase_is_its_first_member() {
    let phases = Phases::new(Arc::new(Groups::new(&[1, 2])));
    let first = phases.enter(0).unwrap().membership;
    assert_eq!((first.phase, first.counter), (0, 0));
    let next = phases.next(first, 0, std::iter::empty(), || ()).unwrap();
    let expected = Membership {
        phase: 1,
        counter: ROOT,
    };
    assert_eq!(next.membership, expected);
    // The phase lasts until the thread that started it also leaves.
    let late = phases.enter(2).unwrap().membership;
    assert_eq!((late.phase, late.counter), (1, 1));
    assert!(!phases.leave(late));
    assert!(phases.leave(expected));
}

/// The announcement of a phase reaches groups one after the other. A thread whose group has not been notified yet can
/// already see offers from the new phase.
#[test]
fn chunk_is_stolen_with_its_own_phase_before_announcement() {
    let phases = Phases::new(Arc::new(Groups::new(&[2, 1])));
    let offer = StealSlot::default();
    let starter = phases.enter(0).unwrap().membership;
    let waiting = phases.enter(2).unwrap().membership;
    let start_phase_and_offer = || {
        assert!(phases.leave(starter));
        let counter = phases.enter(1).unwrap().membership.counter;
        offer.make(&Chunk {
            node: 7,
            range: 0..1,
            solo: false,
            counter,
        });
        &offer
    };
    let offers = std::iter::once_with(start_phase_and_offer);
    let slot = phases.next(waiting, 2, offers, || ()).unwrap();
    assert_eq!(slot.membership, Membership { phase: 1, counter: 0 });
    assert_eq!(slot.piece.unwrap().node, 7);
    assert!(!offer.end(), "the chunk was stolen");
}

#[test]
fn chunks_survive_packing() {
    let chunk = |node, start, len, counter| Chunk {
        node,
        range: start..start + len,
        solo: node % 2 == 0,
        counter,
    };
    for chunk in [
        chunk(0, 0, 1, 0),
        chunk((1 << 20) - 1, (1 << 24) - 1, (1 << 12) - 1, ROOT),
        chunk(7, 9, 3, 61),
    ] {
        assert_eq!(Chunk::from_word(chunk.to_word().unwrap()), chunk);
    }
    for chunk in [
        chunk(1 << 20, 0, 1, 0),
        chunk(0, 1 << 24, 1, 0),
        chunk(0, 0, 1 << 12, 0),
    ] {
        assert_eq!(chunk.to_word(), None);
    }
}
