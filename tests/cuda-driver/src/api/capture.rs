//! Stream captures, and the graphs that they record.

use super::work::Work;
use crate::device::order::StreamOrder;
use std::collections::BTreeSet;
use std::thread::ThreadId;

/// A stream capture in progress.
pub struct Capture {
    /// Handle of the stream in which the capture began.
    pub origin: u64,
    pub device: u32,
    /// False once a call that cannot be captured was made.
    pub is_valid: bool,
    /// Streams with captured work that the origin stream does not wait for yet.
    pub unjoined: BTreeSet<u64>,
    /// Clocks of the captured streams.
    pub order: StreamOrder,
    pub nodes: Vec<Work>,
    /// The `CUstreamCaptureMode`, and the thread that began the capture.
    pub mode: u32,
    pub thread: ThreadId,
}

/// Capture mode: prohibits unsafe calls in the capturing thread only.
const THREAD_LOCAL: u32 = 1;
/// Relaxed capture mode, which prohibits no calls.
const RELAXED: u32 = 2;

/// Recorded work, in an order that satisfies all dependencies.
pub struct Graph {
    pub device: u32,
    pub nodes: Vec<Work>,
}

impl Capture {
    /// Creates a capture that the calling thread began in stream `origin`.
    pub fn new(origin: u64, device: u32, mode: u32) -> Self {
        let (unjoined, order, nodes) = (BTreeSet::new(), StreamOrder::default(), Vec::new());
        Self {
            origin,
            device,
            is_valid: true,
            unjoined,
            order,
            nodes,
            mode,
            thread: std::thread::current().id(),
        }
    }

    /// Returns true if the calling thread must not make calls that cannot be captured.
    pub fn covers_this_thread(&self) -> bool {
        match self.mode {
            RELAXED => false,
            THREAD_LOCAL => self.thread == std::thread::current().id(),
            _ => true,
        }
    }
}
