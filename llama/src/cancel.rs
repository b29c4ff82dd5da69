//! Cancellation from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Handle that cancels the response in progress. All clones refer to the same response.
///
/// The response ends within about one layer of the model and keeps the generated text. The next response
/// starts uncancelled.
#[derive(Clone, Debug, Default)]
pub struct CancelHandle(Arc<AtomicBool>);

impl CancelHandle {
    /// Creates a handle that is not cancelled.
    pub fn new() -> CancelHandle {
        CancelHandle::default()
    }

    /// Cancels the response in progress.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if the response was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Allows the next response to start.
    pub(crate) fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Returns the flag, which is true once the response is cancelled.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

/// Wraps a flag that is set by other code, such as a signal handler.
impl From<Arc<AtomicBool>> for CancelHandle {
    fn from(flag: Arc<AtomicBool>) -> CancelHandle {
        CancelHandle(flag)
    }
}
