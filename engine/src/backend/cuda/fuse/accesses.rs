//! What nodes touch, and whether they may change places.

use super::{MAX_MOVED, Pass, Range};
use crate::graph::TensorId;

/// True if two ranges have something in common.
fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Pass<'_> {
    fn owner(&self, id: TensorId) -> TensorId {
        self.graph.tensor(id).view.map_or(id, |(owner, _)| owner)
    }

    fn is_moved(&self, id: TensorId) -> bool {
        self.found.moved.contains_key(&self.owner(id))
    }

    /// Where a tensor lies: nowhere that concerns others if it was moved, and everywhere if that is not known.
    fn place(&self, id: TensorId) -> Range<u64> {
        if self.is_moved(id) {
            return 0..0;
        }
        let range = self
            .address(id)
            .zip(self.graph.tensor(id).checked_nbytes())
            .map(|(start, n)| start..start + n as u64);
        range.unwrap_or(0..u64::MAX)
    }

    /// True if two tensors have no byte in common.
    pub(super) fn is_apart(&self, a: TensorId, b: TensorId) -> bool {
        !overlap(&self.place(a), &self.place(b))
    }

    /// True if two tensors have no byte in common, or are the same elements at the same places.
    pub(super) fn is_apart_or_same(&self, a: TensorId, b: TensorId) -> bool {
        let (t, u) = (self.graph.tensor(a), self.graph.tensor(b));
        let same = (t.ne, t.nb, t.ty) == (u.ne, u.nb, u.ty) && self.place(a).start == self.place(b).start;
        same || self.is_apart(a, b)
    }

    /// True if node `at` may be computed where node `first` is, together with the `members` of a step. `stores`: its result goes to its home.
    pub(super) fn may_come_to(&self, first: usize, at: usize, members: &[usize], stores: bool) -> bool {
        let reads: Vec<Range<u64>> = self.tensor(at).sources().map(|id| self.place(id)).collect();
        let writes = self.writes(at).filter(|_| stores);
        let writes: Vec<Range<u64>> = writes.collect();
        let mut between = (first..at).filter(|k| !self.taken[*k] && !members.contains(k));
        between.all(|k| {
            let their_reads = self.tensor(k).sources().map(|id| self.place(id));
            let mut theirs = their_reads.chain(self.writes(k));
            let disturbs = theirs.any(|place| writes.iter().any(|mine| overlap(mine, &place)));
            let is_disturbed = self
                .writes(k)
                .any(|place| reads.iter().any(|mine| overlap(mine, &place)));
            !disturbs && !is_disturbed
        })
    }

    /// What a node writes: its result, and states.
    fn writes(&self, at: usize) -> impl Iterator<Item = Range<u64>> {
        let node = self.tensor(at);
        let state = node.op.state_operand().map(|i| self.place(node.source(i)));
        [Some(self.place(self.nodes[at])), state].into_iter().flatten()
    }

    /// True if a result could lie anywhere: whoever reads it is planned here.
    pub(super) fn may_be_moved(&self, id: TensorId) -> bool {
        let t = self.graph.tensor(id);
        !t.flags.output && t.view.is_none() && self.readers_of(id).is_some_and(|readers| !readers.is_empty())
    }

    /// Moves results of the step that takes the place of node `first`. False, and nothing is moved, if there is no room.
    pub(super) fn try_move(&mut self, first: usize, ids: &[TensorId]) -> bool {
        if first > self.moved_until {
            // All that was moved has been read.
            self.moved_bytes = 0;
        }
        let mut end = self.moved_bytes;
        let mut places = Vec::new();
        for &id in ids {
            places.push((id, end));
            end = (end + self.graph.tensor(id).nbytes()).next_multiple_of(256);
        }
        if end > MAX_MOVED {
            return false;
        }
        self.moved_bytes = end;
        self.found.moved_bytes = self.found.moved_bytes.max(end);
        let readers = ids.iter().filter_map(|&id| self.readers_of(id)).flatten();
        self.moved_until = readers.fold(self.moved_until, usize::max);
        self.found.moved.extend(places);
        true
    }
}
