//! What a recurrence is given for one token.

use std::ops::Range;

/// One token of some lanes: the state of each lane goes from before the token to after it.
pub(super) struct LaneStep<'a> {
    /// The token's number in the ubatch.
    pub(super) t: usize,
    pub(super) lanes: Range<usize>,
    /// Of these lanes, before and after the token.
    pub(super) state: &'a mut [f32],
    /// The result of these lanes.
    pub(super) out: &'a mut [f32],
    pub(super) scratch: &'a mut [f32],
}
