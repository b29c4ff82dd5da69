//! Caches the contents of graph inputs, so that only changed ranges are written, to the input and to its
//! copies on other devices.

use std::ops::Range;

use crate::backend::{BackendError, MemoryMap};
use crate::graph::BufferSlice;

/// Granularity in bytes at which inputs are compared and written.
const PIECE: usize = 64;

/// Maximum number of changed ranges. Beyond this, ranges are merged.
const MAX_RANGES: usize = 32;

/// Cached contents of one input, to skip uploads of unchanged bytes.
#[derive(Default)]
struct Contents {
    /// Location of the input; `None` if its contents are unknown.
    home: Option<BufferSlice>,
    /// Known prefix of the contents.
    bytes: Vec<u8>,
    /// Ranges that changed since the last copy to other devices, ascending.
    changed: Vec<Range<usize>>,
}

/// Identifies the memory of a graph's inputs. Graphs with equal values have their inputs at the same
/// locations, which no other tensor overlaps.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct GraphSlot {
    /// [`GraphAllocator::plan_number`](crate::alloc::GraphAllocator::plan_number)
    pub plan: u64,
    /// [`MemoryMap::stamp`]
    pub buffers: u64,
    /// Version of a graph whose nodes write to its leafs; such a graph does not share its inputs with other graphs.
    pub writer: Option<u64>,
}

/// Contents of the inputs of all graphs with the same memory plan. Other tensors of the plan never overlap
/// inputs.
#[derive(Default)]
pub(super) struct InputContents {
    inputs: Vec<Contents>,
    place: GraphSlot,
    /// Version of the graph whose copies on other devices are current, except for changed ranges.
    copied: Option<u64>,
}

impl InputContents {
    /// Switches to the graphs identified by `place`. Discards the cached contents if they belong to other
    /// memory.
    pub fn follow(&mut self, place: GraphSlot) {
        if self.place != place {
            self.place = place;
            self.copied = None;
            self.inputs.iter_mut().for_each(|input| input.home = None);
        }
    }

    /// Writes `data` at byte `offset` of the input at `home`, skipping unchanged ranges.
    pub fn write(
        &mut self,
        memory: &mut MemoryMap,
        home: BufferSlice,
        offset: usize,
        data: &[u8],
    ) -> Result<(), BackendError> {
        let input = self.find_or_add(home, offset + data.len());
        let written = input.write(memory, home, offset, data);
        if written.is_err() {
            input.home = None;
        }
        written
    }

    /// Reserves memory for an input of `len` bytes.
    pub fn reserve(&mut self, home: BufferSlice, len: usize) {
        self.find_or_add(home, len);
    }

    /// Begins the computation of a graph. Returns true if the copies of its inputs are current, except for
    /// the [changed](InputContents::changed) ranges.
    pub fn begin(&mut self, version: u64) -> bool {
        self.copied.take() == Some(version)
    }

    /// Records that all copies of a graph's inputs are current.
    pub fn end(&mut self, version: u64) {
        self.copied = Some(version);
        self.inputs.iter_mut().for_each(|input| input.changed.clear());
    }

    /// Returns the number of changed ranges of the input at `home`, or `None` if unknown.
    pub fn n_changed(&self, home: BufferSlice) -> Option<usize> {
        Some(self.find(home)?.changed.len())
    }

    /// Returns changed range `i` of the input at `home`.
    pub fn changed(&self, home: BufferSlice, i: usize) -> Option<Range<usize>> {
        self.find(home)?.changed.get(i).cloned()
    }

    /// Returns the contents of a range of an input, or `None` if unknown.
    pub fn bytes(&self, home: BufferSlice, range: Range<usize>) -> Option<&[u8]> {
        self.find(home)?.bytes.get(range)
    }

    fn find(&self, home: BufferSlice) -> Option<&Contents> {
        self.inputs.iter().find(|input| input.home == Some(home))
    }

    /// Returns the entry of the input at `home`, with capacity for `len` bytes. Creates an entry with unknown
    /// contents if necessary.
    fn find_or_add(&mut self, home: BufferSlice, len: usize) -> &mut Contents {
        let known = self.inputs.iter().position(|input| input.home == Some(home));
        let index = known.unwrap_or_else(|| {
            let unused = (self.inputs.iter().enumerate()).filter(|(_, input)| input.home.is_none());
            // Prefer the smallest sufficient buffer, so that no buffer must grow.
            let best = unused.min_by_key(|(_, input)| (input.bytes.capacity() < len, input.bytes.capacity()));
            best.map(|(i, _)| i).unwrap_or_else(|| {
                self.inputs.push(Contents::default());
                self.inputs.len() - 1
            })
        });
        let input = &mut self.inputs[index];
        if known.is_none() {
            input.home = Some(home);
            input.bytes.clear();
            input.changed.clear();
            input.changed.reserve(MAX_RANGES);
        }
        // Round up to whole blocks, as memory alignment does: a graph with slightly larger inputs may use the
        // same locations.
        let len = len.next_multiple_of(PIECE);
        input.bytes.reserve(len.saturating_sub(input.bytes.len()));
        input
    }
}

impl Contents {
    fn write(
        &mut self,
        memory: &mut MemoryMap,
        home: BufferSlice,
        offset: usize,
        data: &[u8],
    ) -> Result<(), BackendError> {
        let known = self.bytes.len();
        if offset > known {
            // Known contents must stay contiguous, so contents after a gap remain unknown.
            self.note(offset..offset + data.len());
            return memory.write(at(home, offset), data);
        }
        let mut from = 0;
        while let Some(range) = next_difference(&self.bytes[offset..], data, from) {
            from = range.end;
            self.note(offset + range.start..offset + range.end);
            memory.write(at(home, offset + range.start), &data[range])?;
        }
        let n_known = data.len().min(known - offset);
        self.bytes[offset..offset + n_known].copy_from_slice(&data[..n_known]);
        self.bytes.extend_from_slice(&data[n_known..]);
        Ok(())
    }

    /// Adds a range to the changed ranges.
    fn note(&mut self, range: Range<usize>) {
        let is_full = self.changed.len() == MAX_RANGES;
        match self.changed.last_mut() {
            Some(last) if last.start <= range.start && range.start <= last.end => last.end = last.end.max(range.end),
            Some(last) if range.start < last.start || is_full => {
                let all = self
                    .changed
                    .iter()
                    .fold(range, |all, r| all.start.min(r.start)..all.end.max(r.end));
                self.changed.clear();
                self.changed.push(all);
            }
            _ => self.changed.push(range),
        }
    }
}

/// Returns the next range at or after `from` in which `data` differs from the known contents, in whole
/// blocks. Bytes past the end of the known contents count as different.
fn next_difference(stored: &[u8], data: &[u8], from: usize) -> Option<Range<usize>> {
    let piece = |i: usize| i..(i + PIECE).min(data.len());
    let differs = |i: &usize| stored.get(piece(*i)) != data.get(piece(*i));
    let start = (from..data.len()).step_by(PIECE).find(differs)?;
    let end = (start..data.len())
        .step_by(PIECE)
        .find(|i| !differs(i))
        .unwrap_or(data.len());
    Some(start..end)
}

fn at(home: BufferSlice, offset: usize) -> BufferSlice {
    BufferSlice {
        offset: home.offset.saturating_add(offset),
        ..home
    }
}
