//! A futex-like counter: waiting threads spin first, then sleep.
//!
//! A waiting thread never yields its time slice. After a yield, another process would keep the core for
//! milliseconds, whereas a sleeping thread is scheduled soon after its wake-up.

use std::sync::PoisonError;

use super::sync::{AtomicU32, AtomicU64, Condvar, Mutex, Ordering, SPINS, full_fence, spin_loop};

/// A value on separate cache lines. Aligned to two lines, since CPUs prefetch adjacent pairs.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct OwnLine<T>(pub(super) T);

/// A 64-bit value that threads can wait on.
///
/// Waiting threads poll the value, so its cache line contains nothing else that is written.
#[derive(Default)]
pub(super) struct Futex {
    pub(super) word: OwnLine<AtomicU64>,
    /// Spin iterations of the next wait, clamped to [`SPINS`] when read. Written only if the number changes; it stays
    /// constant while waits are short.
    pub(super) patience: OwnLine<AtomicU32>,
    pub(super) sleepers: OwnLine<AtomicU32>,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Futex {
    /// Returns the current value. Writes that happened before the value was set are visible to the caller.
    pub(super) fn get(&self) -> u64 {
        self.word.0.load(Ordering::Acquire)
    }

    /// Sets the value without a wake-up. Only for values on which no thread waits yet.
    pub(super) fn reset(&self, value: u64) {
        self.word.0.store(value, Ordering::Relaxed);
    }

    /// Sets the value and wakes all waiting threads.
    pub(super) fn set(&self, value: u64) {
        self.word.0.store(value, Ordering::SeqCst);
        self.notify();
    }

    /// Adds to the value (wrapping) and wakes all waiting threads.
    pub(super) fn add(&self, amount: u64) {
        self.word.0.fetch_add(amount, Ordering::SeqCst);
        self.notify();
    }

    /// Subtracts 1 and wakes all waiting threads if the result is 0.
    pub(super) fn count_down(&self) {
        if self.word.0.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.notify();
        }
    }

    /// Wakes all waiting threads, so that they check the value again.
    pub(super) fn notify(&self) {
        // SeqCst here, in `sleep_until`, and where values are set: either the sleeper sees the new value, or this
        // thread sees the sleeper.
        full_fence();
        if self.sleepers.0.load(Ordering::SeqCst) > 0 {
            // Acquiring the lock ensures that no thread is between its check of the value and its call of
            // `Condvar::wait`.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    /// Adds to the value (wrapping) and returns the previous value. Does not wake waiting threads.
    pub(super) fn fetch_add(&self, amount: u64) -> u64 {
        self.word.0.fetch_add(amount, Ordering::SeqCst)
    }

    /// Applies `change` to the value and returns the previous value. Does not wake waiting threads; see
    /// [`Futex::notify`].
    pub(super) fn update(&self, change: impl Fn(u64) -> u64) -> u64 {
        let change = |value| Some(change(value));
        let changed = self.word.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        changed.unwrap_or_else(|value| value)
    }

    /// Waits until `ready` holds for the value.
    pub(super) fn wait_until(&self, ready: impl Fn(u64) -> bool) {
        if !self.spin_until(&ready, spin_loop) {
            self.sleep_until(ready);
        }
    }

    /// Spins until `ready` holds for the value, and returns false if the adaptive limit was reached. Calls
    /// `idle` once per iteration.
    ///
    /// This is the first part of [`Futex::wait_until`].
    pub(super) fn spin_until(&self, ready: impl Fn(u64) -> bool, idle: impl FnMut()) -> bool {
        let before = self.patience.0.load(Ordering::Relaxed);
        let patience = before.clamp(*SPINS.start(), *SPINS.end());
        let is_ready = self.spin(patience, ready, idle);
        let next = if is_ready {
            // Three or four successful waits make up for one that ended in sleep. Chains of small nodes,
            // which one thread computes, are then waited for by spinning even if some other waits are long.
            patience + patience / 2
        } else {
            patience / 4
        };
        let next = next.clamp(*SPINS.start(), *SPINS.end());
        if next != before {
            self.patience.0.store(next, Ordering::Relaxed);
        }
        is_ready
    }

    /// Spins for at most `n` iterations until `ready` holds for the value, and returns false if it never did.
    /// Calls `idle` once per iteration.
    pub(super) fn spin(&self, n: u32, ready: impl Fn(u64) -> bool, mut idle: impl FnMut()) -> bool {
        (0..n).any(|_| {
            let is_ready = ready(self.word.0.load(Ordering::Acquire));
            if !is_ready {
                idle();
            }
            is_ready
        })
    }

    /// Sleeps until `ready` holds for the value.
    pub(super) fn sleep_until(&self, ready: impl Fn(u64) -> bool) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        full_fence();
        while !ready(self.word.0.load(Ordering::SeqCst)) {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
    }
}
