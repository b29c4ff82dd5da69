//! Waiting for another thread: first by spinning, then by sleeping.
//!
//! A waiting thread never yields its time slice: whoever else wants the core would keep it for milliseconds, while a thread that
//! sleeps is soon let in again when it is woken.

use std::hint;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Pauses before a waiting thread sleeps: at most some three hundred microseconds, longer than the other threads of a prompt usually take for their last pieces
/// (to be woken takes 50), and at least the time that falling asleep takes. In between it is a matter of experience: where spinning was in vain, since the thread
/// that is waited for has no core or shares one, the next waits spin less.
const SPINS: RangeInclusive<u32> = 64..=16384;

/// A number that threads wait on to change. Aligned to two cache lines, since processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Gate {
    word: AtomicU64,
    sleepers: AtomicU32,
    /// Pauses of the next wait, within [`SPINS`] once it is read.
    patience: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Gate {
    /// The present value. What happened before it was set is visible to the caller.
    pub(super) fn get(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    /// Sets the value without waking anybody: for values that nobody waits on yet.
    pub(super) fn reset(&self, value: u64) {
        self.word.store(value, Ordering::Relaxed);
    }

    /// Adds to the value (wrapping) and wakes all who wait.
    pub(super) fn add(&self, amount: u64) {
        // Sequentially consistent, as is the sleeper's side: either the sleeper sees the new value or we see the sleeper.
        self.word.fetch_add(amount, Ordering::SeqCst);
        self.notify();
    }

    /// Subtracts 1 and wakes all who wait when that leaves 0.
    pub(super) fn count_down(&self) {
        if self.word.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.notify();
        }
    }

    /// Makes all who wait look again.
    pub(super) fn notify(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // Holding the lock once means that nobody is between looking at the value and falling asleep.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    /// Adds to the value (wrapping) and returns what it was. Nobody is woken.
    pub(super) fn fetch_add(&self, amount: u64) -> u64 {
        self.word.fetch_add(amount, Ordering::SeqCst)
    }

    /// Changes the value and returns what it was. Nobody is woken: see [`Gate::notify`].
    pub(super) fn update(&self, change: impl Fn(u64) -> u64) -> u64 {
        let change = |value| Some(change(value));
        let changed = self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        changed.unwrap_or_else(|value| value)
    }

    /// Waits until `ready` holds for the value.
    pub(super) fn wait_until(&self, ready: impl Fn(u64) -> bool) {
        if !self.spin_until(&ready, hint::spin_loop) {
            self.sleep_until(ready);
        }
    }

    /// Waits a little for `ready` to hold for the value: the first part of [`Gate::wait_until`]. False if it did not come to that. Each pause is
    /// a call of `idle`.
    pub(super) fn spin_until(&self, ready: impl Fn(u64) -> bool, idle: impl FnMut()) -> bool {
        let patience = self
            .patience
            .load(Ordering::Relaxed)
            .clamp(*SPINS.start(), *SPINS.end());
        let is_ready = self.spin(patience, ready, idle);
        let next = if is_ready {
            // Three or four of these make up for one in vain: chains of small nodes, which one thread computes, are to be waited for awake although some
            // other waits are long.
            patience + patience / 2
        } else {
            patience / 4
        };
        self.patience.store(next, Ordering::Relaxed);
        is_ready
    }

    /// Waits for at most `n` pauses, calls of `idle`, until `ready` holds for the value. False if it did not come to that.
    pub(super) fn spin(&self, n: u32, ready: impl Fn(u64) -> bool, mut idle: impl FnMut()) -> bool {
        (0..n).any(|_| {
            let is_ready = ready(self.word.load(Ordering::Acquire));
            if !is_ready {
                idle();
            }
            is_ready
        })
    }

    /// Sleeps until `ready` holds for the value.
    pub(super) fn sleep_until(&self, ready: impl Fn(u64) -> bool) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !ready(self.word.load(Ordering::SeqCst)) {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
