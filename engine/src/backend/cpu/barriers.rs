//! Decides which nodes need a barrier. A node needs one if it writes memory that another node of the phase accesses,
//! or reads memory that another node writes.
//!
//! On a busy machine, a barrier costs more than a small op. Threads therefore continue without a barrier from one node
//! to the next if their accesses do not conflict. Examples are the Q, K, and V projections of one input. Chains of
//! small nodes run on a single thread, which needs no barrier between its own results.

/// Address range that a node reads or writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) write: bool,
}

impl Access {
    /// Pseudo-address of the scratch memory that all threads share. It overlaps no tensor.
    pub(super) const SHARED_SCRATCH: Access = Access {
        start: 0,
        end: 1,
        write: true,
    };

    /// Returns an access to the shared buffer of quantized activations. Its pseudo-address overlaps no
    /// tensor.
    pub(super) fn shared_activations(write: bool) -> Access {
        Access {
            start: 1,
            end: 2,
            write,
        }
    }

    fn conflicts(&self, other: &Access) -> bool {
        (self.write || other.write) && self.start < other.end && other.start < self.end
    }
}

/// Maximum number of accesses to track. Comparing more takes too long, while an extra barrier is harmless.
const MAX_OPEN: usize = 128;

/// Tracks the memory accessed since the last barrier.
pub(super) struct Barriers {
    /// Accesses, each with a flag for accesses by the thread that runs the small nodes. Never reallocates.
    open: Vec<(Access, bool)>,
}

impl Barriers {
    pub(super) fn new() -> Barriers {
        Barriers {
            open: Vec::with_capacity(MAX_OPEN),
        }
    }

    /// Starts a new graph, without any accesses.
    pub(super) fn start(&mut self) {
        self.open.clear();
    }

    /// Adds the accesses of the next node and returns true if the node needs a barrier before it.
    ///
    /// `solo` marks small nodes. A single thread computes all small nodes between two barriers.
    pub(super) fn before(&mut self, accesses: &[Access], solo: bool) -> bool {
        let clashes = |new: &Access| {
            self.open
                .iter()
                .any(|(old, by_one)| !(solo && *by_one) && old.conflicts(new))
        };
        let barrier = self.open.len() + accesses.len() > MAX_OPEN || accesses.iter().any(clashes);
        if barrier {
            self.open.clear();
        }
        self.open.extend(accesses.iter().map(|&access| (access, solo)));
        barrier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(start: usize) -> Access {
        Access {
            start,
            end: start + 10,
            write: false,
        }
    }

    fn write(start: usize) -> Access {
        Access {
            write: true,
            ..read(start)
        }
    }

    #[test]
    fn conflicting_nodes_get_barriers() {
        let mut barriers = Barriers::new();
        // Two matmuls that read the same input need no barrier between them.
        assert!(!barriers.before(&[read(0), write(10)], false));
        assert!(!barriers.before(&[read(0), write(20)], false));
        // Read after write. The barrier forgets all earlier accesses.
        assert!(barriers.before(&[read(15), write(40)], false));
        assert!(!barriers.before(&[read(20), write(60)], false));
        // Tests a write after a read, then a write after a write.
        assert!(barriers.before(&[write(25)], false));
        assert!(barriers.before(&[write(25)], false));
    }

    #[test]
    fn one_thread_needs_no_barrier() {
        let mut barriers = Barriers::new();
        assert!(!barriers.before(&[write(0)], true));
        assert!(!barriers.before(&[read(0), write(20)], true));
        // An unrelated node in between does not add a barrier.
        assert!(!barriers.before(&[write(50)], false));
        assert!(!barriers.before(&[read(20), write(30)], true));
        assert!(barriers.before(&[read(30), write(40)], false));
        assert!(barriers.before(&[read(40)], true));
    }

    #[test]
    fn long_graph_has_barriers() {
        let mut barriers = Barriers::new();
        let mut n = 0;
        for _ in 0..1000 {
            n += usize::from(barriers.before(&[read(0), write(20)], true));
        }
        assert_eq!(n, 1000 * 2 / MAX_OPEN);
        assert_eq!(barriers.open.capacity(), MAX_OPEN);
        barriers.start();
        assert!(!barriers.before(&[write(0)], false));
    }

    #[test]
    fn shared_scratch_is_used_by_one_node_at_a_time() {
        let mut barriers = Barriers::new();
        assert!(!barriers.before(&[read(10), write(20), Access::SHARED_SCRATCH], false));
        assert!(barriers.before(&[read(10), write(30), Access::SHARED_SCRATCH], false));
    }
}
