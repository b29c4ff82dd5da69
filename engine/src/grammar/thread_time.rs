//! Processor time of a thread, which other threads can read.

use std::time::Duration;

/// CPU time clock of a thread. Falls back to wall-clock time on systems without such a clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadClock(system::Clock);

impl ThreadClock {
    /// Returns the clock of the calling thread. The clock is valid until the thread ends.
    pub fn of_this_thread() -> ThreadClock {
        ThreadClock(system::of_this_thread())
    }

    /// Returns the time of the clock. The clock of a thread that has ended returns zero.
    pub fn now(self) -> Duration {
        system::now(self.0)
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::time::Duration;

    pub(super) type Clock = libc::clockid_t;

    pub fn of_this_thread() -> Clock {
        let mut clock = libc::CLOCK_MONOTONIC;
        // SAFETY: the thread is alive, since it makes this call, and the out-parameter is valid. On failure, the
        // clock of real time remains.
        unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
        clock
    }

    pub fn now(clock: Clock) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the out-parameter is valid. The kernel rejects clocks of threads that have ended, which leaves
        // zeros.
        unsafe { libc::clock_gettime(clock, &mut time) };
        let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
        Duration::new(seconds.unwrap_or_default(), nanoseconds.unwrap_or_default())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::sync::LazyLock;
    use std::time::{Duration, Instant};

    pub(super) type Clock = ();

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    pub fn of_this_thread() -> Clock {
        LazyLock::force(&START);
    }

    pub fn now(_: Clock) -> Duration {
        START.elapsed()
    }
}
