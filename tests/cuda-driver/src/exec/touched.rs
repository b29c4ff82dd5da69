//! Which bytes of which allocations a launch touches.

use crate::device::order::Range;

/// Ranges closer than this are one.
const GAP: u64 = 64;
/// Most ranges of a launch that are kept apart; from then on the nearest ones become one.
const RANGES_MAX: usize = 256;

/// The ranges so far.
#[derive(Default)]
pub struct Touched {
    ranges: Vec<Range>,
    /// The last one that was read, and the last one that was written.
    last: [usize; 2],
    /// Whether anybody wants to know.
    pub watch: bool,
}

impl Touched {
    /// Some bytes of an allocation were touched.
    #[inline(always)]
    pub fn note(&mut self, range: Range) {
        if !self.watch {
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
        if at.is_none() && self.ranges.len() >= RANGES_MAX {
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

    /// All ranges; there are none afterwards.
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
