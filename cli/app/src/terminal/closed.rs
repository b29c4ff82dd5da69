//! Detects that standard output is closed at startup. Before `main`, Rust replaces closed standard streams by
//! `/dev/null`, so that results would be lost without an error.

use std::sync::atomic::{AtomicBool, Ordering};

static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Returns true if standard output was closed when the process started.
pub fn is_stdout_closed() -> bool {
    IS_CLOSED.load(Ordering::Relaxed)
}

#[cfg(target_os = "linux")]
mod system {
    use super::{IS_CLOSED, Ordering};

    extern "C" fn check() {
        // SAFETY: `fcntl` with F_GETFD only reads the flags of a file descriptor, which need not be open.
        let is_open = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } != -1;
        IS_CLOSED.store(!is_open, Ordering::Relaxed);
    }

    // SAFETY: the loader calls the functions of `.init_array` once, before `main`. `check` has the C calling
    // convention, and only uses libc and an atomic, which need no runtime.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static CHECK: extern "C" fn() = check;
}
