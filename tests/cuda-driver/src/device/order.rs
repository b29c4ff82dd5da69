//! Which work is ordered before which, by clocks of streams: work of two streams that touches the same bytes, one of them writing, must be
//! ordered by an event, or by the host waiting in between.
//!
//! A stream's clock says how much of each stream's work comes before its next one. An event holds the clock of its stream when it was recorded,
//! a stream that waits for it takes that over. What the host waited for comes before all that is submitted later.

use std::collections::{BTreeMap, HashMap};

/// How much of each stream's work comes before.
pub type Clock = BTreeMap<u64, u64>;

/// Bytes that a piece of work touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The allocation, by address.
    pub base: u64,
    /// The first byte's address.
    pub from: u64,
    /// That behind the last one.
    pub to: u64,
    /// Whether it writes.
    pub writes: bool,
}

/// An access that others may have to be ordered with.
struct Access {
    range: Range,
    stream: u64,
    time: u64,
    what: String,
}

/// The clocks of all streams, and what was touched.
#[derive(Default)]
pub struct Order {
    clocks: HashMap<u64, Clock>,
    host: Clock,
    /// By allocation.
    accesses: HashMap<u64, Vec<Access>>,
}

fn merge(into: &mut Clock, from: &Clock) {
    for (stream, time) in from {
        let known = into.entry(*stream).or_default();
        *known = (*known).max(*time);
    }
}

impl Order {
    /// A piece of work begins in a stream, after `before` others; its time.
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

    /// What an event that is recorded in a stream stands for.
    pub fn clock(&self, stream: u64) -> Clock {
        self.clocks.get(&stream).cloned().unwrap_or_default()
    }

    /// A stream waits for an event.
    pub fn wait(&mut self, stream: u64, event: &Clock) {
        merge(self.clocks.entry(stream).or_default(), event);
    }

    /// The host waits for all work of a clock.
    pub fn host_waits(&mut self, clock: &Clock) {
        merge(&mut self.host, clock);
        let host = &self.host;
        for accesses in self.accesses.values_mut() {
            accesses.retain(|a| host.get(&a.stream).is_none_or(|time| *time < a.time));
        }
        self.accesses.retain(|_, accesses| !accesses.is_empty());
    }

    /// An allocation is gone.
    pub fn forget(&mut self, base: u64) {
        self.accesses.remove(&base);
    }

    /// Work that began in a stream touches bytes. If other work is not ordered with it, a sentence says so.
    pub fn touch(&mut self, stream: u64, range: Range, what: &str) -> Result<(), String> {
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
                "{what} {} bytes {}..{} of an allocation, which {} {} in another stream, with no event between",
                verb(range.writes),
                range.from - range.base,
                range.to - range.base,
                other.what,
                verb(other.range.writes),
            ));
        }
        // Accesses that are ordered before this one and lie inside of it say nothing new to those that come later.
        let is_covered = |a: &Access| {
            range.from <= a.range.from && a.range.to <= range.to && (range.writes || !a.range.writes) && is_ordered(a)
        };
        accesses.retain(|a| !is_covered(a));
        accesses.push(Access {
            range,
            stream,
            time,
            what: what.to_owned(),
        });
        Ok(())
    }
}
