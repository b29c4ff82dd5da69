//! Independent lanes of a recurrence.

/// Independent lanes of a recurrence, and the state of each lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lanes {
    /// Number of independent lanes.
    pub n: usize,
    /// State per lane in floats; a row of the state tensor stores the lanes consecutively.
    pub state: usize,
    /// Output elements per lane and token; the output of a token stores the lanes consecutively.
    pub out: usize,
    /// Output shape, with the token dimension last.
    pub ne: [usize; 4],
}

impl Lanes {
    /// Returns the floats of state per cell.
    pub fn row(&self) -> usize {
        self.n * self.state
    }

    /// Returns the number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.ne.iter().product::<usize>() / (self.n * self.out).max(1)
    }
}
