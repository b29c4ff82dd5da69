//! Byte ranges that a launch accesses.

use crate::device::order::Range;

/// Ranges closer than this number of bytes are merged.
const GAP: u64 = 64;
/// Maximum number of separate ranges per launch. Beyond it, each new range is merged with the nearest one.
const MAX_RANGES: usize = 256;

/// The byte ranges that a launch has accessed.
#[derive(Default)]
pub struct AccessedRanges {
    ranges: Vec<Range>,
    /// Indices of the ranges that were last extended by a read and by a write.
    last: [usize; 2],
    /// True if accesses are recorded.
    pub enabled: bool,
}

impl AccessedRanges {
    /// Records an access to a range of an allocation.
    #[inline(always)]
    pub fn record(&mut self, range: Range) {
        if !self.enabled {
            return;
        }
        let last = self.last[usize::from(range.writes)];
        match self.ranges.get_mut(last) {
            Some(known) if is_near(known, &range) => extend(known, &range),
            _ => self.add(range),
        }
    }

    #[cold]
    fn add(&mut self, range: Range) {
        let is_alike = |known: &Range| known.base == range.base && known.writes == range.writes;
        let mut at = self.ranges.iter().position(|known| is_near(known, &range));
        if at.is_none() && self.ranges.len() >= MAX_RANGES {
            let distance = |known: &Range| known.from.abs_diff(range.from).min(known.to.abs_diff(range.to));
            let alike = self.ranges.iter().enumerate().filter(|(_, known)| is_alike(known));
            at = alike.min_by_key(|(_, known)| distance(known)).map(|(i, _)| i);
        }
        match at {
            Some(i) => extend(&mut self.ranges[i], &range),
            None => self.ranges.push(range),
        }
        self.last[usize::from(range.writes)] = at.unwrap_or(self.ranges.len() - 1);
    }

    /// Removes and returns all ranges.
    pub fn take(&mut self) -> Vec<Range> {
        self.last = [0; 2];
        std::mem::take(&mut self.ranges)
    }
}

#[inline(always)]
fn is_near(known: &Range, range: &Range) -> bool {
    known.base == range.base
        && known.writes == range.writes
        && range.from <= known.to + GAP
        && known.from <= range.to + GAP
}

#[inline(always)]
fn extend(known: &mut Range, range: &Range) {
    known.from = known.from.min(range.from);
    known.to = known.to.max(range.to);
}
