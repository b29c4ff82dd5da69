//! Detection of data races between streams with vector clocks.
//!
//! If two streams access the same bytes and one of them writes, an event must order the accesses, or the host must
//! wait in between.
//!
//! The clock of a stream records how much work of each stream precedes its next operation. An event stores
//! the clock of its stream at the time of recording. A stream that waits for the event merges that clock into
//! its own. Work that the host waited for precedes all work submitted later.

use std::collections::{BTreeMap, HashMap};

/// A vector clock: for each stream, the number of operations that precede the next one.
pub type Clock = BTreeMap<u64, u64>;

/// A range of bytes that an operation accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Base address of the allocation.
    pub base: u64,
    /// Device address of the first byte accessed.
    pub from: u64,
    /// Device address after the last byte accessed.
    pub to: u64,
    /// True for a write, false for a read.
    pub writes: bool,
}

/// A past access that later accesses may conflict with.
struct Access {
    range: Range,
    stream: u64,
    time: u64,
    operation: String,
}

/// The clocks of all streams and the recorded accesses.
#[derive(Default)]
pub struct StreamOrder {
    clocks: HashMap<u64, Clock>,
    host: Clock,
    /// Recorded accesses, by base address of the allocation.
    accesses: HashMap<u64, Vec<Access>>,
}

fn merge(into: &mut Clock, from: &Clock) {
    for (stream, time) in from {
        let known = into.entry(*stream).or_default();
        *known = (*known).max(*time);
    }
}

impl StreamOrder {
    /// Begins an operation in a stream, ordered after the streams in `before`. Returns its time.
    pub fn begin(&mut self, stream: u64, before: &[u64]) -> u64 {
        let mut clock = self.clocks.remove(&stream).unwrap_or_default();
        merge(&mut clock, &self.host);
        for other in before {
            if let Some(theirs) = self.clocks.get(other) {
                merge(&mut clock, theirs);
            }
        }
        let own = clock.entry(stream).or_default();
        *own += 1;
        let time = *own;
        self.clocks.insert(stream, clock);
        time
    }

    /// Returns the clock that an event recorded now in `stream` stores.
    pub fn clock(&self, stream: u64) -> Clock {
        self.clocks.get(&stream).cloned().unwrap_or_default()
    }

    /// Orders later work of `stream` after the event.
    pub fn wait(&mut self, stream: u64, event: &Clock) {
        merge(self.clocks.entry(stream).or_default(), event);
    }

    /// Orders all later work after the work covered by `clock`, because the host waited for it.
    pub fn host_waits(&mut self, clock: &Clock) {
        merge(&mut self.host, clock);
        let host = &self.host;
        for accesses in self.accesses.values_mut() {
            accesses.retain(|a| host.get(&a.stream).is_none_or(|time| *time < a.time));
        }
        self.accesses.retain(|_, accesses| !accesses.is_empty());
    }

    /// Removes the recorded accesses to a freed allocation.
    pub fn forget(&mut self, base: u64) {
        self.accesses.remove(&base);
    }

    /// Records an access of the current operation of `stream`.
    ///
    /// # Errors
    /// Returns a message if a conflicting access of another stream is not ordered before this one.
    pub fn touch(&mut self, stream: u64, range: Range, operation: &str) -> Result<(), String> {
        let clock = self.clocks.entry(stream).or_default();
        let time = clock.get(&stream).copied().unwrap_or_default();
        let accesses = self.accesses.entry(range.base).or_default();
        let overlaps = |a: &Access| a.range.from < range.to && range.from < a.range.to;
        let is_ordered = |a: &Access| clock.get(&a.stream).is_some_and(|known| *known >= a.time);
        let conflict = accesses
            .iter()
            .find(|a| (a.range.writes || range.writes) && overlaps(a) && !is_ordered(a));
        if let Some(other) = conflict {
            let verb = |writes: bool| if writes { "writes" } else { "reads" };
            return Err(format!(
                "data race: {operation} {} bytes {}..{} of an allocation that {} {} in another stream; no event orders the two accesses",
                verb(range.writes),
                range.from - range.base,
                range.to - range.base,
                other.operation,
                verb(other.range.writes),
            ));
        }
        // An earlier access that is ordered before this one and covered by it cannot reveal further
        // conflicts.
        let is_covered = |a: &Access| {
            range.from <= a.range.from && a.range.to <= range.to && (range.writes || !a.range.writes) && is_ordered(a)
        };
        accesses.retain(|a| !is_covered(a));
        accesses.push(Access {
            range,
            stream,
            time,
            operation: operation.to_owned(),
        });
        Ok(())
    }
}
