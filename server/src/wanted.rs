//! Tracks whether the result of the work on the current thread is still wanted: work for a request ends with its
//! client.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static CURRENT: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Client that waits for work. The work is no longer wanted once this value is dropped.
pub struct Waiting(Arc<AtomicBool>);

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting::new()
    }
}

impl Waiting {
    /// Creates the value, which must live as long as the client waits.
    pub fn new() -> Waiting {
        Waiting(Arc::new(AtomicBool::new(true)))
    }

    /// Returns a function that runs `work`. Within it, [`is_wanted`] returns whether the client is still waiting.
    pub fn follow<T, F: FnOnce() -> T>(&self, work: F) -> impl FnOnce() -> T + use<T, F> {
        let flag = self.0.clone();
        move || {
            let _scope = Scope(CURRENT.replace(Some(flag)));
            work()
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Restores the previous client of the thread when dropped, even after a panic.
struct Scope(Option<Arc<AtomicBool>>);

impl Drop for Scope {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Returns false if the client of the current thread's work has disconnected.
pub fn is_wanted() -> bool {
    CURRENT.with_borrow(|flag| flag.as_ref().is_none_or(|flag| flag.load(Ordering::Acquire)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_wanted_while_its_client_waits() {
        let waiting = Waiting::new();
        let (before, after) = (waiting.follow(is_wanted), waiting.follow(is_wanted));
        assert!(before());
        drop(waiting);
        assert!(!after());
        assert!(is_wanted(), "other work is not affected");
    }
}
