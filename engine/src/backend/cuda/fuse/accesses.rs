//! Memory accesses of nodes, and whether nodes may be reordered.

use std::ops::Range;

use super::pass::FusionPass;
use crate::graph::TensorId;

/// Maximum size in bytes of simultaneously relocated results. Results with few columns are smaller.
const MAX_MOVED: usize = 4 << 20;

/// Returns true if two ranges intersect.
fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl FusionPass<'_> {
    fn owner(&self, id: TensorId) -> TensorId {
        self.graph.tensor(id).view.map_or(id, |(owner, _)| owner)
    }

    fn is_moved(&self, id: TensorId) -> bool {
        self.found.moved.contains_key(&self.owner(id))
    }

    /// Returns the address range of a tensor. The range is empty if the tensor was relocated, because it then
    /// conflicts with nothing. It is all of memory if the address is unknown.
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

    /// Returns true if two tensors have no byte in common.
    pub(super) fn is_disjoint(&self, a: TensorId, b: TensorId) -> bool {
        !overlap(&self.place(a), &self.place(b))
    }

    /// Returns true if two tensors have no byte in common or are identical in address and layout.
    pub(super) fn is_disjoint_or_same(&self, a: TensorId, b: TensorId) -> bool {
        let (t, u) = (self.graph.tensor(a), self.graph.tensor(b));
        let same = (t.ne, t.nb, t.ty) == (u.ne, u.nb, u.ty) && self.place(a).start == self.place(b).start;
        same || self.is_disjoint(a, b)
    }

    /// Returns true if node `at` may run at the position of node `first`, together with the `members` of a
    /// step. `stores` is true if the node's result is written to its home.
    pub(super) fn can_move_to(&self, first: usize, at: usize, members: &[usize], stores: bool) -> bool {
        let reads: Vec<Range<u64>> = self.tensor(at).sources().map(|id| self.place(id)).collect();
        let writes: Vec<Range<u64>> = if stores { self.writes(at).collect() } else { Vec::new() };
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

    /// Returns the ranges that a node writes: its result, and states.
    fn writes(&self, at: usize) -> impl Iterator<Item = Range<u64>> {
        let node = self.tensor(at);
        let state = node.op.state_operand().map(|i| self.place(node.source(i)));
        [Some(self.place(self.nodes[at])), state].into_iter().flatten()
    }

    /// Returns true if a result can be relocated: all of its readers are planned here.
    pub(super) fn may_be_moved(&self, id: TensorId) -> bool {
        let t = self.graph.tensor(id);
        !t.flags.output && t.view.is_none() && self.readers_of(id).is_some_and(|readers| !readers.is_empty())
    }

    /// Relocates results of the step at node `first`. Returns false without relocating anything if the
    /// scratch area is full.
    pub(super) fn try_move(&mut self, first: usize, ids: &[TensorId]) -> bool {
        if first > self.moved_until {
            // All relocated results have been read.
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
