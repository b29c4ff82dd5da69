//! Where members have to meet: only between steps of which one writes what the other touches.
//!
//! Meetings cost more than small ops do, above all on a busy machine. So members walk on from one step to the next where they
//! cannot get into each other's way, as with the projections of one input, and small steps are left to member 0 alone, which needs
//! nobody's leave to go on with its own results.

/// Bytes that a step reads or writes, by address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) write: bool,
}

impl Access {
    /// The scratch memory that members share, which lies at no address of a tensor.
    pub(super) const SHARED_SCRATCH: Access = Access {
        start: 0,
        end: 1,
        write: true,
    };

    fn conflicts(&self, other: &Access) -> bool {
        (self.write || other.write) && self.start < other.end && other.start < self.end
    }
}

/// Most accesses that are kept in mind. A meeting too many does no harm, and more would take long to compare.
const MAX_OPEN: usize = 128;

/// What has been touched since the last meeting.
pub(super) struct Meetings {
    /// Accesses, and whether member 0 alone makes them. Never grows.
    open: Vec<(Access, bool)>,
}

impl Meetings {
    pub(super) fn new() -> Meetings {
        Meetings {
            open: Vec::with_capacity(MAX_OPEN),
        }
    }

    /// Starts a graph: all members have met.
    pub(super) fn start(&mut self) {
        self.open.clear();
    }

    /// Takes the next step's accesses; true if members have to meet before it.
    pub(super) fn before(&mut self, accesses: &[Access], solo: bool) -> bool {
        let clashes = |new: &Access| {
            self.open
                .iter()
                .any(|(old, by_one)| !(solo && *by_one) && old.conflicts(new))
        };
        let meet = self.open.len() + accesses.len() > MAX_OPEN || accesses.iter().any(clashes);
        if meet {
            self.open.clear();
        }
        self.open.extend(accesses.iter().map(|&access| (access, solo)));
        meet
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
    fn members_meet_where_steps_get_into_each_others_way() {
        let mut meetings = Meetings::new();
        // Two products of one input.
        assert!(!meetings.before(&[read(0), write(10)], false));
        assert!(!meetings.before(&[read(0), write(20)], false));
        // Read after write; then nothing before matters.
        assert!(meetings.before(&[read(15), write(40)], false));
        assert!(!meetings.before(&[read(20), write(60)], false));
        // Write after read, write after write.
        assert!(meetings.before(&[write(25)], false));
        assert!(meetings.before(&[write(25)], false));
    }

    #[test]
    fn one_member_needs_no_meeting_with_itself() {
        let mut meetings = Meetings::new();
        assert!(!meetings.before(&[write(0)], true));
        assert!(!meetings.before(&[read(0), write(20)], true));
        // Another step in between, which has nothing to do with them, changes nothing.
        assert!(!meetings.before(&[write(50)], false));
        assert!(!meetings.before(&[read(20), write(30)], true));
        assert!(meetings.before(&[read(30), write(40)], false));
        assert!(meetings.before(&[read(40)], true));
    }

    #[test]
    fn a_long_walk_has_meetings() {
        let mut meetings = Meetings::new();
        let n = (0..1000)
            .filter(|_| meetings.before(&[read(0), write(20)], true))
            .count();
        assert_eq!(n, 1000 * 2 / MAX_OPEN);
        assert_eq!(meetings.open.capacity(), MAX_OPEN);
        meetings.start();
        assert!(!meetings.before(&[write(0)], false));
    }

    #[test]
    fn shared_scratch_is_used_by_one_step_at_a_time() {
        let mut meetings = Meetings::new();
        assert!(!meetings.before(&[read(10), write(20), Access::SHARED_SCRATCH], false));
        assert!(meetings.before(&[read(10), write(30), Access::SHARED_SCRATCH], false));
    }
}
