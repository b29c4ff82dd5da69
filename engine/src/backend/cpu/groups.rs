//! Groups of worker threads whose cores share a cache.

use std::ops::Range;

/// Maximum number of groups. Larger machines have larger groups.
pub(super) const MAX_GROUPS: usize = 62;

/// Maximum number of threads per group, unless there would be more than [`MAX_GROUPS`].
pub(super) const MAX_MEMBERS: usize = 16;

/// Maximum number of threads of other groups whose work a thread tries to steal.
pub(super) const MAX_FAR: usize = 8;

/// A partition of the workers `0..n` into groups of adjacent workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    /// First worker of each group, then the number of workers.
    starts: Vec<usize>,
    /// Group of each worker.
    of: Vec<u8>,
}

impl Groups {
    /// Creates groups of the given sizes. If there are too many, adjacent groups are merged.
    pub(super) fn new(sizes: &[usize]) -> Groups {
        let merged = sizes.len().div_ceil(MAX_GROUPS).max(1);
        let sizes = sizes.chunks(merged).map(|sizes| sizes.iter().sum::<usize>());
        let mut groups = Groups {
            starts: vec![0],
            of: Vec::new(),
        };
        for (group, size) in sizes.filter(|&size| size > 0).enumerate() {
            groups.of.resize(groups.of.len() + size, group as u8);
            groups.starts.push(groups.of.len());
        }
        groups
    }

    /// Returns the number of groups.
    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the number of workers.
    pub(super) fn n_workers(&self) -> usize {
        self.of.len()
    }

    /// Returns the group of a worker.
    pub(super) fn of(&self, ith: usize) -> usize {
        usize::from(self.of[ith])
    }

    /// Returns the workers of a group that are among the first `nth`.
    pub(super) fn members(&self, group: usize, nth: usize) -> Range<usize> {
        self.starts[group].min(nth)..self.starts[group + 1].min(nth)
    }

    /// Iterates over the workers among the first `nth` from which worker `ith` may steal: all of its own group, then a
    /// few others. Workers with different numbers start at different positions.
    pub(super) fn victims(&self, ith: usize, nth: usize) -> impl Iterator<Item = usize> {
        let own = self.members(self.of(ith), nth);
        let (first, n_own) = (own.start, own.len());
        let near = (1..n_own).map(move |i| first + (ith - first + i) % n_own);
        let n_far = nth - n_own;
        let far = (0..n_far.min(MAX_FAR)).map(move |i| {
            let other = (ith + i) % n_far;
            if other < first { other } else { other + n_own }
        });
        near.chain(far)
    }
}
