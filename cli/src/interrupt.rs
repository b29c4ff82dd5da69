//! Ctrl-C: while something that can be stopped is going on, it is stopped; otherwise the process ends as usual.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static FLAG: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// The program has a handler of its own.
static IS_HANDLED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C is handled elsewhere: it does nothing here until [`stop`] is called.
pub fn leave_alone() {
    IS_HANDLED.store(true, Ordering::Relaxed);
}

/// Stops whatever can be stopped, now and later.
pub fn stop() {
    FLAG.store(true, Ordering::Relaxed);
}

/// While this lives, the first Ctrl-C sets the flag; a second one ends the process.
#[must_use]
pub struct Guard(());

/// Clears the flag and begins to listen.
pub fn listen() -> Guard {
    if !IS_HANDLED.load(Ordering::Relaxed) {
        // Also makes sure that the flag exists before the handler can run.
        FLAG.store(false, Ordering::Relaxed);
        system::install();
    }
    Guard(())
}

impl Guard {
    /// The flag, to be given to whatever polls one.
    pub fn flag(&self) -> Arc<AtomicBool> {
        FLAG.clone()
    }

    /// True once Ctrl-C was pressed.
    pub fn is_set(&self) -> bool {
        FLAG.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !IS_HANDLED.load(Ordering::Relaxed) {
            system::restore();
        }
    }
}

#[cfg(unix)]
mod system {
    use super::{FLAG, Ordering};

    extern "C" fn on_interrupt(_signal: libc::c_int) {
        // An atomic load and store, which a signal handler may do: `listen` has initialized the flag.
        FLAG.store(true, Ordering::Relaxed);
    }

    pub fn install() {
        // SAFETY: a zeroed `sigaction` is a valid empty one, and the handler does nothing but touch an atomic.
        // SA_RESETHAND: the second signal finds the default action. SA_RESTART: reads and writes go on.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_interrupt as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
            libc::sigaction(libc::SIGINT, &action, std::ptr::null_mut());
        }
    }

    pub fn restore() {
        // SAFETY: setting the default action has no preconditions.
        unsafe {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
        }
    }
}

#[cfg(not(unix))]
mod system {
    pub fn install() {}
    pub fn restore() {}
}
