//! Operands of one step of a recurrence over some lanes.

use std::ops::Range;

/// Step of a recurrence: one token for a range of lanes. The step updates the state of each lane.
pub(super) struct LaneStep<'a> {
    /// Index of the token in the ubatch.
    pub(super) t: usize,
    pub(super) lanes: Range<usize>,
    /// States of the lanes: input and output.
    pub(super) state: &'a mut [f32],
    /// Output of the lanes.
    pub(super) out: &'a mut [f32],
    pub(super) scratch: &'a mut [f32],
}
