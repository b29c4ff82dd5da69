//! What the inputs of graphs hold: the host's copy of what was last written, so that only what changed is written again, to the input
//! itself and to its copies on other devices.

use std::ops::Range;

use crate::backend::{BackendError, MemoryMap};
use crate::graph::Home;

/// Inputs are compared and written in pieces of this many bytes.
const PIECE: usize = 64;

/// More ranges than this are joined into one.
const MAX_RANGES: usize = 32;

/// What one input holds.
#[derive(Default)]
struct Contents {
    /// Where it lies; `None` if what lies there is not known.
    home: Option<Home>,
    /// Its first bytes. What follows is not known.
    bytes: Vec<u8>,
    /// What changed since it was last copied to other devices, ascending.
    changed: Vec<Range<usize>>,
}

/// Graphs of the same place have their inputs in the same memory, which nothing but inputs is written to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Place {
    /// [`GraphAllocator::plan_number`](crate::alloc::GraphAllocator::plan_number)
    pub plan: u64,
    /// [`MemoryMap::stamp`]
    pub buffers: u64,
    /// Version of a graph whose nodes write to its leafs: it has the place for itself.
    pub writer: Option<u64>,
}

/// What the inputs of the graphs of one memory plan hold. Inputs are never overlapped by other tensors of the same plan.
#[derive(Default)]
pub(super) struct InputContents {
    inputs: Vec<Contents>,
    place: Place,
    /// Version of the graph whose copies on other devices hold all but what changed.
    copied: Option<u64>,
}

impl InputContents {
    /// Forgets everything if graphs that lie elsewhere are written or computed from here on.
    pub fn follow(&mut self, place: Place) {
        if self.place != place {
            self.place = place;
            self.copied = None;
            self.inputs.iter_mut().for_each(|input| input.home = None);
        }
    }

    /// Writes `data` from byte `offset` of the input at `home` on, as far as it is not there yet.
    pub fn write(
        &mut self,
        memory: &mut MemoryMap,
        home: Home,
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

    /// Takes memory for an input of `len` bytes.
    pub fn reserve(&mut self, home: Home, len: usize) {
        self.find_or_add(home, len);
    }

    /// Begins to compute a graph; true if the copies of its inputs hold all but what [changed](InputContents::changed).
    pub fn begin(&mut self, version: u64) -> bool {
        self.copied.take() == Some(version)
    }

    /// All copies of the inputs of a graph hold what they do.
    pub fn end(&mut self, version: u64) {
        self.copied = Some(version);
        self.inputs.iter_mut().for_each(|input| input.changed.clear());
    }

    /// Number of ranges that changed in the input at `home`; `None` if that is not known.
    pub fn n_changed(&self, home: Home) -> Option<usize> {
        Some(self.find(home)?.changed.len())
    }

    /// A range that changed.
    pub fn changed(&self, home: Home, i: usize) -> Option<Range<usize>> {
        self.find(home)?.changed.get(i).cloned()
    }

    /// What a range of an input holds, if it is known.
    pub fn bytes(&self, home: Home, range: Range<usize>) -> Option<&[u8]> {
        self.find(home)?.bytes.get(range)
    }

    fn find(&self, home: Home) -> Option<&Contents> {
        self.inputs.iter().find(|input| input.home == Some(home))
    }

    /// The input at `home`, of which nothing is known if it is new, with memory for `len` bytes.
    fn find_or_add(&mut self, home: Home, len: usize) -> &mut Contents {
        let known = self.inputs.iter().position(|input| input.home == Some(home));
        let index = known.unwrap_or_else(|| {
            let unused = (self.inputs.iter().enumerate()).filter(|(_, input)| input.home.is_none());
            // The one whose memory is enough and least too large, so that none has to grow.
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
        // Whole pieces, as memory is aligned: a graph with slightly larger inputs may lie in the same places.
        let len = len.next_multiple_of(PIECE);
        input.bytes.reserve(len.saturating_sub(input.bytes.len()));
        input
    }
}

impl Contents {
    fn write(&mut self, memory: &mut MemoryMap, home: Home, offset: usize, data: &[u8]) -> Result<(), BackendError> {
        let known = self.bytes.len();
        if offset > known {
            // There would be a gap in what is known: this part stays unknown.
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

    /// Adds a range to what changed.
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

/// The next range from `from` on in which `data` differs from `held`, in whole pieces; what `held` lacks differs.
fn next_difference(held: &[u8], data: &[u8], from: usize) -> Option<Range<usize>> {
    let piece = |i: usize| i..(i + PIECE).min(data.len());
    let differs = |i: &usize| held.get(piece(*i)) != data.get(piece(*i));
    let start = (from..data.len()).step_by(PIECE).find(differs)?;
    let end = (start..data.len())
        .step_by(PIECE)
        .find(|i| !differs(i))
        .unwrap_or(data.len());
    Some(start..end)
}

fn at(home: Home, offset: usize) -> Home {
    Home {
        offset: home.offset.saturating_add(offset),
        ..home
    }
}
