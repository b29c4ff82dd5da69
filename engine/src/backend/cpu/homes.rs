//! NUMA nodes of worker threads, for memory that is local to its readers.

use std::thread;

use super::affinity::Affinity;
use super::topology::Cpu;

/// Maximum number of nodes that are distinguished.
pub(super) const MAX_NODES: usize = 16;

/// The node of each thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Homes {
    /// Node of each thread, and its index among the node's threads.
    of: Vec<(usize, usize)>,
    /// CPUs of each node. Empty for a single node, whose memory any thread allocates.
    cpus: Vec<Vec<usize>>,
}

impl Homes {
    /// Creates homes of `n_threads` threads on a single node.
    pub(super) fn one(n_threads: usize) -> Homes {
        Homes {
            of: (0..n_threads).map(|ith| (0, ith)).collect(),
            cpus: Vec::new(),
        }
    }

    /// Creates homes of threads on these CPUs, ordered by node.
    pub(super) fn new(placement: &[Cpu]) -> Homes {
        let mut homes = Homes::one(0);
        for (node, threads) in placement.chunk_by(|a, b| a.node == b.node).enumerate() {
            homes.of.extend((0..threads.len()).map(|i| (node, i)));
            homes.cpus.push(threads.iter().map(|cpu| cpu.id).collect());
        }
        if (2..=MAX_NODES).contains(&homes.cpus.len()) {
            homes
        } else {
            Homes::one(placement.len())
        }
    }

    /// Creates homes on nodes with these numbers of threads, all in the memory of one node.
    #[cfg(test)]
    pub(super) fn simulated(threads: &[usize]) -> Homes {
        let of_node = |(node, &n): (usize, &usize)| (0..n).map(move |i| (node, i));
        Homes {
            of: threads.iter().enumerate().flat_map(of_node).collect(),
            cpus: vec![Vec::new(); threads.len()],
        }
    }

    /// Returns the number of nodes.
    pub(super) fn n_nodes(&self) -> usize {
        self.cpus.len().max(1)
    }

    /// Returns the number of threads of a node.
    pub(super) fn n_threads(&self, node: usize) -> usize {
        self.of.iter().filter(|home| home.0 == node).count()
    }

    /// Returns the node of a thread, and the thread's index on the node.
    pub(super) fn of(&self, ith: usize) -> (usize, usize) {
        self.of[ith]
    }

    /// Runs `work` on a thread of a node, so that pages that it touches first are allocated there. Returns false if the
    /// thread cannot be started.
    pub(super) fn run_on(&self, node: usize, work: impl FnOnce() + Send) -> bool {
        let cpus = self.cpus.get(node).map_or(&[][..], Vec::as_slice);
        if cpus.is_empty() {
            work();
            return true;
        }
        thread::scope(|scope| {
            let on_node = move || {
                Affinity::new(cpus.iter().copied()).apply();
                work();
            };
            thread::Builder::new().spawn_scoped(scope, on_node).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::topology::simulated_nodes;
    use super::*;

    #[test]
    fn threads_are_on_nodes_of_their_cpus() {
        let homes = Homes::new(&simulated_nodes(2, 96).spread(10));
        assert_eq!((homes.n_nodes(), homes.n_threads(0), homes.n_threads(1)), (2, 5, 5));
        assert_eq!([0, 4, 5, 9].map(|ith| homes.of(ith)), [(0, 0), (0, 4), (1, 0), (1, 4)]);
        assert_eq!(Homes::new(&simulated_nodes(1, 96).spread(10)), Homes::one(10));
        assert_eq!(Homes::new(&simulated_nodes(17, 8).spread(136)), Homes::one(136));
    }
}
