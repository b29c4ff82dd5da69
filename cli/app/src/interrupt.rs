//! Signals. Ctrl-C stops an interruptible operation; at other times it ends the process. SIGTERM and SIGHUP stop an
//! interruptible operation, which then deletes incomplete files, and end the process afterwards. A signal that ends
//! the process at once deletes incomplete files first.

use std::path::Path;
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
pub struct Guard {
    /// False if another handler is installed.
    is_counted: bool,
}

/// Clears the interrupt flag, unless another guard exists, and installs the signal handler.
pub fn listen() -> Guard {
    let is_counted = !IS_HANDLED.load(Ordering::Relaxed);
    if is_counted {
        system::add_guard();
    }
    Guard { is_counted }
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
        if self.is_counted {
            system::remove_guard();
        }
    }
}

/// Registration of a file that is deleted if a signal ends the process.
#[must_use]
pub struct Incomplete {
    /// Index of the registration; `None` if the file is not registered.
    slot: Option<usize>,
}

/// Registers a file, which need not exist yet, until the result is dropped.
pub fn delete_on_signal(path: &Path) -> Incomplete {
    let is_counted = !IS_HANDLED.load(Ordering::Relaxed);
    let slot = is_counted.then(|| system::add_file(path)).flatten();
    Incomplete { slot }
}

impl Drop for Incomplete {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            system::remove_file(slot);
        }
    }
}

#[cfg(unix)]
mod system {
    use std::ffi::{CString, c_char};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::{FLAG, Ordering};

    /// Signals that stop an operation and end the process afterwards. Ctrl-C only ends the process outside of a guard.
    const TERMINATING: [libc::c_int; 2] = [libc::SIGTERM, libc::SIGHUP];
    /// Signals that end the process at once, most of them with a core dump.
    const IMMEDIATE: [libc::c_int; 3] = [libc::SIGQUIT, libc::SIGXCPU, libc::SIGXFSZ];

    /// The first signal of `TERMINATING` during a guard, or 0.
    static TERMINATED: AtomicI32 = AtomicI32::new(0);
    /// Bits of the signals that arrived since the first guard was created.
    static ARRIVED: AtomicU64 = AtomicU64::new(0);
    /// True while guards exist.
    static IS_GUARDED: AtomicBool = AtomicBool::new(false);
    /// Paths of incomplete files. The strings are never freed, because the handler may read them at any time.
    static FILES: [AtomicPtr<c_char>; 1024] = [const { AtomicPtr::new(null_mut()) }; 1024];
    /// Number of guards and of files.
    static USERS: Mutex<[usize; 2]> = Mutex::new([0; 2]);

    /// Only calls async-signal-safe functions: atomic accesses (`add_guard` has initialized the lazy flag), `unlink`,
    /// `signal`, and `raise`.
    extern "C" fn on_signal(signal: libc::c_int) {
        let bit = 1 << signal;
        let is_first = ARRIVED.fetch_or(bit, Ordering::Relaxed) & bit == 0;
        if is_first && IS_GUARDED.load(Ordering::Relaxed) && !IMMEDIATE.contains(&signal) {
            if signal != libc::SIGINT {
                TERMINATED.store(signal, Ordering::Relaxed);
            }
            FLAG.store(true, Ordering::Relaxed);
            return;
        }
        for file in &FILES {
            let path = file.load(Ordering::Acquire);
            if !path.is_null() {
                // SAFETY: paths are C strings that are never freed.
                unsafe { libc::unlink(path) };
            }
        }
        end_by(signal);
    }

    pub fn terminated() -> Option<libc::c_int> {
        Some(TERMINATED.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }

    pub fn end() {
        if let Some(signal) = terminated() {
            end_by(signal);
        }
    }

    /// Ends the process by a signal; within the handler of the signal, when the handler returns.
    fn end_by(signal: libc::c_int) {
        // SAFETY: setting the default action and raising a signal have no preconditions.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }

    fn users() -> MutexGuard<'static, [usize; 2]> {
        USERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add_guard() {
        let mut users = users();
        if users[0] == 0 {
            // The access also initializes the flag before the handler can run.
            FLAG.store(terminated().is_some(), Ordering::Relaxed);
            ARRIVED.store(0, Ordering::Relaxed);
            IS_GUARDED.store(true, Ordering::Relaxed);
        }
        install(&users);
        users[0] += 1;
    }

    pub fn remove_guard() {
        let mut users = users();
        users[0] -= 1;
        IS_GUARDED.store(users[0] > 0, Ordering::Relaxed);
        restore(&users);
    }

    /// Returns the index of the registered file. A file that exceeds the number of slots is not registered.
    pub fn add_file(path: &Path) -> Option<usize> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?.into_raw();
        let is_free =
            |file: &AtomicPtr<c_char>| file.compare_exchange(null_mut(), path, Ordering::Release, Ordering::Relaxed);
        let slot = FILES.iter().position(|file| is_free(file).is_ok())?;
        let mut users = users();
        install(&users);
        users[1] += 1;
        Some(slot)
    }

    pub fn remove_file(slot: usize) {
        FILES[slot].store(null_mut(), Ordering::Relaxed);
        let mut users = users();
        users[1] -= 1;
        restore(&users);
    }

    /// Installs the handler for the first user.
    fn install(users: &[usize; 2]) {
        if *users != [0; 2] {
            return;
        }
        set(libc::SIGINT, on_signal as *const () as libc::sighandler_t);
        for signal in TERMINATING.into_iter().chain(IMMEDIATE) {
            // `nohup` ignores SIGHUP.
            if action(signal) == libc::SIG_DFL {
                set(signal, on_signal as *const () as libc::sighandler_t);
            }
        }
    }

    /// Restores the default actions after the last user.
    fn restore(users: &[usize; 2]) {
        if *users != [0; 2] {
            return;
        }
        set(libc::SIGINT, libc::SIG_DFL);
        for signal in TERMINATING.into_iter().chain(IMMEDIATE) {
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
        // SAFETY: a zeroed `sigaction` is a valid empty action, and the handler is async-signal-safe. SA_RESTART resumes
        // interrupted reads and writes.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, null_mut());
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::path::Path;

    pub fn add_guard() {}
    pub fn remove_guard() {}
    pub fn add_file(_: &Path) -> Option<usize> {
        None
    }
    pub fn remove_file(_: usize) {}
    pub fn end() {}
    pub fn terminated() -> Option<i32> {
        None
    }
}
