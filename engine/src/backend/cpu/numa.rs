//! Placement of threads and weights on NUMA nodes.
//!
//! Each thread reads the same part of every dense weight matrix, so the memory of the thread's node should hold this
//! part. Threads are pinned to CPUs, ordered by node, and divided among the nodes in proportion to their cores. Before
//! a matrix is copied, a thread on each node touches the pages of the node's part. Linux then allocates these pages on
//! the node.

use std::sync::OnceLock;
use std::thread;

use super::affinity::{Affinity, current_cpu};
use super::topology::{Cpu, Topology};

/// Use of NUMA nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumaMode {
    /// Threads and weights are divided among all nodes that the process may use.
    Distribute,
    /// Threads and weights are on the node on which the process runs.
    Isolate,
}

/// Set by [`set_numa`].
static CPUS: OnceLock<Topology> = OnceLock::new();

/// Distance in bytes between touched addresses: the smallest page.
const PAGE: usize = 4096;

/// Sets the use of NUMA nodes for all models and thread pools that are created later. Only the first call has an
/// effect. Returns the number of NUMA nodes that the process may use, or 0 if this machine's topology is unknown.
///
/// [`NumaMode::Isolate`] also restricts the calling thread, and all threads that it starts later, to the node.
pub fn set_numa(mode: NumaMode) -> usize {
    let machine = Topology::of_machine();
    let mut topology = machine.clone();
    if mode == NumaMode::Isolate {
        let current = current_cpu();
        let cpu = machine.cpus().iter().find(|cpu| Some(cpu.id) == current);
        topology = topology.on_node(cpu.map_or(0, |cpu| cpu.node));
    }
    if topology.cpus().is_empty() {
        return 0;
    }
    if mode == NumaMode::Isolate {
        Affinity::new(topology.cpus().iter().map(|cpu| cpu.id)).apply();
    }
    CPUS.get_or_init(|| topology);
    machine.nodes().len()
}

/// Returns true if threads and copied weights are divided among several nodes. The pages of a mapped file are on the
/// nodes of the threads that read the file first.
pub fn is_distributed() -> bool {
    CPUS.get().is_some_and(|topology| topology.nodes().len() > 1)
}

/// Returns the CPUs of `n` threads, and whether the threads are pinned to them.
pub(super) fn placement(n: usize) -> (Vec<Cpu>, bool) {
    match CPUS.get() {
        Some(topology) => (topology.spread(n), true),
        None => (Topology::of_machine().placement(n), false),
    }
}

/// Returns the default number of threads: one per physical performance core that the process may use.
pub fn default_threads() -> usize {
    let limit = thread::available_parallelism().map_or(1, usize::from);
    match CPUS.get().unwrap_or(Topology::of_machine()).n_cores() {
        0 => limit,
        n_cores => n_cores.min(limit),
    }
}

/// Pins the calling thread to a CPU.
pub(super) fn pin(cpu: usize) {
    Affinity::new([cpu]).apply();
}

/// Guard that pins the calling thread to a CPU, if any. Threads that the thread starts later are not pinned.
pub(super) struct Pinned(Option<Affinity>);

impl Pinned {
    /// Pins the calling thread until the guard is dropped.
    pub(super) fn to(cpu: Option<usize>) -> Pinned {
        let before = cpu.and_then(|cpu| Some((cpu, Affinity::current()?)));
        Pinned(before.map(|(cpu, before)| {
            pin(cpu);
            before
        }))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            before.apply();
        }
    }
}

/// Allocates the pages of a zeroed matrix on the nodes whose threads read them. No effect without [`set_numa`] or
/// with a single node.
pub(super) fn place(matrix: &mut [u8]) {
    let Some(topology) = CPUS.get() else { return };
    let nodes = topology.nodes();
    if nodes.len() < 2 || matrix.len() < nodes.len() * PAGE {
        return;
    }
    let parts = topology.divide(matrix.len());
    thread::scope(|scope| {
        let mut rest = matrix;
        for (cpus, part) in nodes.into_iter().zip(parts) {
            let (own, others) = rest.split_at_mut(part.len());
            rest = others;
            let touch_own = move || {
                Affinity::new(cpus).apply();
                own.iter_mut().step_by(PAGE).for_each(touch);
            };
            // Without a thread, the copy allocates the pages, which is only slower.
            let _ = thread::Builder::new().spawn_scoped(scope, touch_own);
        }
    });
}

/// Writes a byte back, which allocates its page.
fn touch(byte: &mut u8) {
    *byte = std::hint::black_box(*byte);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kernels::{ActivationForm, activation_bytes};

    use super::super::homes::Homes;
    use super::super::ops::Pieces;
    use super::super::queue::WorkShare;
    use super::super::topology::simulated_nodes;
    use super::*;

    /// Weights read from the memory of another node, for `n_threads` threads and matrices of `n_rows` rows of
    /// `row_bytes` bytes, as a share of all.
    fn remote_share(
        topology: &Topology,
        n_threads: usize,
        [n_rows, row_bytes]: [usize; 2],
        rows_per_chunk: usize,
    ) -> f64 {
        let threads = topology.spread(n_threads);
        let parts = topology.divide(n_rows * row_bytes);
        let owner = |page: usize| parts.iter().position(|part| part.contains(&(page * PAGE)));
        let n_chunks = n_rows.div_ceil(rows_per_chunk);
        let mut n_remote = 0;
        for (ith, cpu) in threads.iter().enumerate() {
            let share = WorkShare { ith, nth: n_threads }.of(n_chunks);
            let chunk_bytes = rows_per_chunk * row_bytes;
            let bytes = share.start * chunk_bytes..(share.end * chunk_bytes).min(n_rows * row_bytes);
            let first_page = bytes.start / PAGE;
            for page in first_page..bytes.end.div_ceil(PAGE) {
                let of_page = bytes.end.min((page + 1) * PAGE) - bytes.start.max(page * PAGE);
                if owner(page) != Some(cpu.node) {
                    n_remote += of_page;
                }
            }
        }
        n_remote as f64 / (n_rows * row_bytes) as f64
    }

    #[test]
    fn weights_are_on_the_node_of_their_reader() {
        let topology = simulated_nodes(2, 96);
        for n_threads in [192, 96, 64, 2] {
            // Q4_K rows of 4096 and of 14336 values, in chunks of 16 rows.
            for shape in [[4096, 2304], [14336, 2304], [4096, 8064], [128_256, 2304]] {
                let remote = remote_share(&topology, n_threads, shape, 16);
                // Only the pages on the border between two nodes, and chunks that do not divide evenly.
                assert!(remote < 0.005, "{n_threads} threads, {shape:?}: {remote}");
            }
        }
    }

    /// Returns the share of the weights of `n_active` experts that threads read from the memory of another node.
    fn remote_share_of_experts(
        topology: &Topology,
        n_threads: usize,
        [n_rows, row_bytes]: [usize; 2],
        n_active: usize,
    ) -> f64 {
        let threads = topology.spread(n_threads);
        let parts = topology.divide(n_rows * row_bytes);
        let pieces = Pieces::new(n_rows, n_threads);
        let mut n_remote = 0;
        for (ith, cpu) in threads.iter().enumerate() {
            for chunk in (WorkShare { ith, nth: n_threads }).of(pieces.len() * n_active) {
                let (expert, piece) = pieces.of_chunk(chunk, n_active, true);
                assert!(expert < n_active);
                let rows = pieces.rows(piece);
                let own = &parts[cpu.node];
                let local = own
                    .end
                    .min(rows.end * row_bytes)
                    .saturating_sub(own.start.max(rows.start * row_bytes));
                n_remote += rows.len() * row_bytes - local;
            }
        }
        n_remote as f64 / (n_rows * row_bytes * n_active) as f64
    }

    #[test]
    fn experts_are_on_the_node_of_their_reader() {
        let topology = simulated_nodes(2, 96);
        for n_threads in [192, 96, 64, 2] {
            // Q4_K rows of 2048 values, with 8 experts per token or all of 128.
            for n_active in [8, 128] {
                let remote = remote_share_of_experts(&topology, n_threads, [768, 1152], n_active);
                assert!(remote < 0.005, "{n_threads} threads, {n_active} experts: {remote}");
            }
        }
    }

    /// Values of the activations that the matmuls of a layer read: query, key, and value; output; gate and up; down.
    /// The second entry is true for results of a norm. A thread computes whole rows of these.
    const PANELS_OF_1B: [(usize, bool); 4] = [(2048, true), (2048, false), (2048, true), (8192, false)];

    const LAYERS_OF_1B: usize = 16;

    /// Returns the bytes read from other nodes and the bytes written to other nodes for the activations of a 1B model
    /// with `n` tokens. Each last-level cache reads each panel once. With `copied`, each node has a copy; otherwise the
    /// caller's node has the panel, and both nodes have a part of quantized norms.
    fn remote_bytes_of_panels(topology: &Topology, n: usize, form: ActivationForm, copied: bool) -> [usize; 2] {
        let threads = topology.spread(topology.n_cores());
        let homes = Homes::new(&threads);
        let caches: BTreeSet<(usize, usize)> = threads.iter().map(|cpu| (cpu.node, cpu.cache)).collect();
        let [mut n_read, mut n_written] = [0, 0];
        for (k, is_norm) in PANELS_OF_1B {
            let panel = n * activation_bytes(form, k).next_multiple_of(64);
            // A row of a result of a matmul is computed on all nodes, and quantized on one.
            if !is_norm {
                n_read += n * k * size_of::<f32>() * (homes.n_nodes() - 1) / homes.n_nodes();
            }
            if copied {
                n_written += panel * (homes.n_nodes() - 1);
            } else if is_norm {
                n_read += caches.len() * panel * (homes.n_nodes() - 1) / homes.n_nodes();
            } else {
                n_read += caches.iter().filter(|(node, _)| *node != threads[0].node).count() * panel;
            }
        }
        [n_read, n_written].map(|bytes| bytes * LAYERS_OF_1B)
    }

    /// Returns the bytes of per-thread panels that threads outside the caller's node read for a token.
    fn panel_bytes_of_token(topology: &Topology, form: ActivationForm) -> usize {
        let threads = topology.spread(topology.n_cores());
        let n_remote = threads.iter().filter(|cpu| cpu.node != threads[0].node).count();
        let of_layer: usize = PANELS_OF_1B.iter().map(|&(k, _)| activation_bytes(form, k)).sum();
        n_remote * (of_layer * LAYERS_OF_1B + activation_bytes(form, PANELS_OF_1B[0].0))
    }

    #[test]
    fn copies_of_panels_reduce_remote_bytes() {
        let topology = simulated_nodes(2, 96);
        let megabytes = |bytes: [usize; 2]| bytes.map(|n| n / 1_000_000);
        for (form, before, after, of_token) in [
            (ActivationForm::U8Chunk, 2382, [167, 184], 34),
            (ActivationForm::I16Row, 6962, [167, 566], 107),
        ] {
            let found = [false, true].map(|copied| megabytes(remote_bytes_of_panels(&topology, 512, form, copied)));
            assert_eq!(found, [[before, 0], after], "{form:?}");
            assert_eq!(panel_bytes_of_token(&topology, form) / 1_000_000, of_token, "{form:?}");
        }
        // With one node, no bytes are remote.
        let one = simulated_nodes(1, 96);
        for copied in [false, true] {
            assert_eq!(
                remote_bytes_of_panels(&one, 512, ActivationForm::U8Chunk, copied),
                [0, 0]
            );
        }
    }

    #[test]
    fn threads_are_divided_evenly_among_nodes() {
        let topology = simulated_nodes(2, 96);
        for n in [2, 10, 64, 192] {
            let threads = topology.spread(n);
            let on_first = threads.iter().filter(|cpu| cpu.node == 0).count();
            assert_eq!((threads.len(), on_first), (n, n / 2));
            assert!(threads.is_sorted_by_key(|cpu| cpu.node));
        }
        assert_eq!(topology.spread(3).iter().filter(|cpu| cpu.node == 0).count(), 1);
    }

    /// With 4 of 96 cores of the first node, as by `taskset`.
    #[test]
    fn threads_and_weights_are_divided_by_cores() {
        let topology = simulated_nodes(2, 96).without(4..96);
        let threads = topology.spread(100);
        assert_eq!(threads.iter().filter(|cpu| cpu.node == 0).count(), 4);
        assert!(
            threads.windows(2).all(|pair| pair[0].id < pair[1].id),
            "one thread per core"
        );
        assert_eq!(topology.divide(1000), [0..40, 40..1000]);
    }

    #[test]
    fn parts_cover_a_matrix() {
        for (len, n) in [(10, 3), (4096, 2), (usize::MAX, 4)] {
            let parts = simulated_nodes(n, 8).divide(len);
            assert_eq!((parts[0].start, parts[n - 1].end, parts.len()), (0, len, n));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    #[test]
    fn pinned_thread_may_use_all_cpus_afterwards() {
        let n_cpus = || thread::available_parallelism().unwrap();
        let before = n_cpus();
        let current = current_cpu();
        let pinned = Pinned::to(current);
        assert!(n_cpus().get() == 1 || current.is_none());
        drop(pinned);
        assert_eq!(n_cpus(), before);
    }

    #[test]
    fn default_is_one_thread_per_core() {
        let n = default_threads();
        assert!(n >= 1 && n <= thread::available_parallelism().unwrap().get());
    }
}
