//! Signals. Ctrl-C stops an interruptible operation; at other times it ends the process. SIGTERM and SIGHUP stop an
//! interruptible operation, which then deletes incomplete files, and end the process afterwards.

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

/// Returns true if a signal other than Ctrl-C stopped an operation, so that the process must end.
pub fn is_terminated() -> bool {
    system::terminated().is_some()
}

/// Ends the process by the signal that stopped an operation, if any. Parent processes expect this status.
pub fn end_if_terminated() {
    system::end();
}

/// Guard during which the first signal sets the flag and the second ends the process.
#[must_use]
pub struct Guard(());

/// Clears the interrupt flag and installs the signal handler.
pub fn listen() -> Guard {
    if !IS_HANDLED.load(Ordering::Relaxed) {
        // The access also initializes the flag before the handler can run.
        FLAG.store(is_terminated(), Ordering::Relaxed);
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
    use std::sync::atomic::AtomicI32;

    use super::{FLAG, Ordering};

    /// Signals that end the process. Ctrl-C only does so outside of a guard.
    const TERMINATING: [libc::c_int; 2] = [libc::SIGTERM, libc::SIGHUP];

    /// The first signal of `TERMINATING` during a guard, or 0.
    static TERMINATED: AtomicI32 = AtomicI32::new(0);

    extern "C" fn on_signal(signal: libc::c_int) {
        // Async-signal-safe: only atomic accesses, because `listen` has initialized the lazy flag.
        if signal != libc::SIGINT {
            TERMINATED.store(signal, Ordering::Relaxed);
        }
        FLAG.store(true, Ordering::Relaxed);
    }

    pub fn terminated() -> Option<libc::c_int> {
        Some(TERMINATED.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }

    pub fn end() {
        if let Some(signal) = terminated() {
            // SAFETY: setting the default action and raising a signal have no preconditions.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
    }

    pub fn install() {
        set(libc::SIGINT, on_signal as *const () as libc::sighandler_t);
        for signal in TERMINATING {
            // `nohup` ignores SIGHUP.
            if action(signal) == libc::SIG_DFL {
                set(signal, on_signal as *const () as libc::sighandler_t);
            }
        }
    }

    pub fn restore() {
        set(libc::SIGINT, libc::SIG_DFL);
        for signal in TERMINATING {
            if action(signal) != libc::SIG_IGN {
                set(signal, libc::SIG_DFL);
            }
        }
    }

    /// Returns the action of a signal.
    fn action(signal: libc::c_int) -> libc::sighandler_t {
        // SAFETY: a zeroed `sigaction` is a valid empty action, and a null action changes nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            action.sa_sigaction
        }
    }

    fn set(signal: libc::c_int, handler: libc::sighandler_t) {
        // SAFETY: a zeroed `sigaction` is a valid empty action, and the handler only accesses atomics.
        // SA_RESETHAND restores the default action for the second signal. SA_RESTART resumes interrupted
        // reads and writes.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

#[cfg(not(unix))]
mod system {
    pub fn install() {}
    pub fn restore() {}
    pub fn end() {}
    pub fn terminated() -> Option<i32> {
        None
    }
}
