//! Which nodes need a barrier before them: only those that write what another touches, or touch what another writes.
//!
//! Barriers cost more than small ops do, above all on a busy machine. So threads go on from one node to the next where they
//! cannot get into each other's way, as with the projections of one input, and small nodes are left to one thread alone, which needs
//! no barrier to go on with its own results.

/// Bytes that a node reads or writes, by address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) write: bool,
}

impl Access {
    /// The scratch memory that threads share, which lies at no address of a tensor.
    pub(super) const SHARED_SCRATCH: Access = Access {
        start: 0,
        end: 1,
        write: true,
    };

    /// The memory where threads quantize activations for one another, which lies at no address of a tensor either.
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

/// Most accesses that are kept in mind. A barrier too many does no harm, and more would take long to compare.
const MAX_OPEN: usize = 128;

/// What has been touched since the last barrier.
pub(super) struct Barriers {
    /// Accesses, and whether the one thread makes them that computes small nodes. Never grows.
    open: Vec<(Access, bool)>,
}

impl Barriers {
    pub(super) fn new() -> Barriers {
        Barriers {
            open: Vec::with_capacity(MAX_OPEN),
        }
    }

    /// Starts a graph: no thread has touched anything.
    pub(super) fn start(&mut self) {
        self.open.clear();
    }

    /// Takes the next node's accesses; true if it needs a barrier before it. `solo`: one thread alone computes it, as all
    /// such nodes up to the next barrier.
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
    fn barriers_stand_where_nodes_get_into_each_others_way() {
        let mut barriers = Barriers::new();
        // Two products of one input.
        assert!(!barriers.before(&[read(0), write(10)], false));
        assert!(!barriers.before(&[read(0), write(20)], false));
        // Read after write; then nothing before matters.
        assert!(barriers.before(&[read(15), write(40)], false));
        assert!(!barriers.before(&[read(20), write(60)], false));
        // Write after read, write after write.
        assert!(barriers.before(&[write(25)], false));
        assert!(barriers.before(&[write(25)], false));
    }

    #[test]
    fn one_thread_needs_no_barrier() {
        let mut barriers = Barriers::new();
        assert!(!barriers.before(&[write(0)], true));
        assert!(!barriers.before(&[read(0), write(20)], true));
        // Another node in between, which has nothing to do with them, changes nothing.
        assert!(!barriers.before(&[write(50)], false));
        assert!(!barriers.before(&[read(20), write(30)], true));
        assert!(barriers.before(&[read(30), write(40)], false));
        assert!(barriers.before(&[read(40)], true));
    }

    #[test]
    fn a_long_graph_has_barriers() {
        let mut barriers = Barriers::new();
        let n = (0..1000)
            .filter(|_| barriers.before(&[read(0), write(20)], true))
            .count();
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
