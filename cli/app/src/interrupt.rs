//! Ctrl-C handling. Ctrl-C stops an interruptible operation; at other times it ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static FLAG: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// True if another handler is installed.
static IS_HANDLED: AtomicBool = AtomicBool::new(false);

/// Disables the handler of this module. After that, only [`stop`] sets the flag.
pub fn leave_alone() {
    IS_HANDLED.store(true, Ordering::Relaxed);
}

/// Stops current and future interruptible operations.
pub fn stop() {
    FLAG.store(true, Ordering::Relaxed);
}

/// Guard during which the first Ctrl-C sets the flag and the second ends the process.
#[must_use]
pub struct Guard(());

/// Clears the interrupt flag and installs the signal handler.
pub fn listen() -> Guard {
    if !IS_HANDLED.load(Ordering::Relaxed) {
        // The access also initializes the flag before the handler can run.
        FLAG.store(false, Ordering::Relaxed);
        system::install();
    }
    Guard(())
}

/// Returns the flag that is set by Ctrl-C during an interruptible operation.
pub fn flag() -> Arc<AtomicBool> {
    FLAG.clone()
}

impl Guard {
    /// Returns the flag, for code that polls it.
    pub fn flag(&self) -> Arc<AtomicBool> {
        FLAG.clone()
    }

    /// Returns true if Ctrl-C was pressed.
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
        // Async-signal-safe: only atomic accesses, because `listen` has initialized the lazy flag.
        FLAG.store(true, Ordering::Relaxed);
    }

    pub fn install() {
        // SAFETY: a zeroed `sigaction` is a valid empty action, and the handler only accesses an atomic.
        // SA_RESETHAND restores the default action for the second signal. SA_RESTART resumes interrupted
        // reads and writes.
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
