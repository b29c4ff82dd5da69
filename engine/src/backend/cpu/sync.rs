//! Primitives of the barrier and the durations of its spin loops. The [model of the barrier](../../../tests/barrier.rs)
//! replaces this module.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(super) use std::sync::{Condvar, Mutex};

use std::ops::RangeInclusive;

/// Range of spin iterations before a waiting thread sleeps.
///
/// The maximum is about 300 µs, longer than the other threads usually need for their last chunks of a prompt
/// (a wake-up takes 50 µs). The minimum is about the time that going to sleep takes. Between the limits, the count
/// adapts. It falls after a wait that ended in sleep, since the awaited thread then has no core or shares a core.
pub(super) const SPINS: RangeInclusive<u32> = 64..=16384;

/// Spin iterations that a thread waits for another thread's chunk before it steals the chunk. Longer than a
/// chunk usually takes.
pub(super) const PATIENCE: u32 = 1024;

/// Orders all earlier stores of a thread before its later loads. Between sequentially consistent accesses, no
/// instruction is needed. The model has a fence here, because `loom` does not order such accesses.
pub(super) fn full_fence() {}
