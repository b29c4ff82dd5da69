//! Runs kernel launches and distributes the blocks of a grid over host threads.
//!
//! Blocks start in order, and results do not depend on the number of host threads. Atomics could reveal the
//! order of blocks, so they wait until all earlier blocks have ended. If several blocks have faults, the
//! fault of the first block is reported.

use super::block;
use super::env::{AccessibleMemory, BlockOrder, CURSORS, Count, Env};
use super::fault::Fault;
use super::inst::Kernel;
use super::lanes::{ALL, LANES, write};
use super::shared::Shared;
use super::touched::AccessedRanges;
use super::warp::Warp;
use crate::device::memory::View;
use crate::device::order::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Minimum number of threads in a grid for using more than one host thread.
const PARALLEL_THREADS: u64 = 1 << 15;

/// The parameters of a launch.
pub struct Launch<'a> {
    pub kernel: &'a Kernel,
    /// The kernel parameters, each at its offset.
    pub params: &'a [u8],
    /// Number of blocks in each dimension.
    pub blocks: [u32; 3],
    /// Number of threads per block in each dimension.
    pub threads: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub dynamic_shared: u32,
    /// Memory that the kernel may access.
    pub accessible: AccessibleMemory<'a>,
    /// True to detect data races on shared memory.
    pub detect_races: bool,
    /// True to record the accessed byte ranges.
    pub record_ranges: bool,
    /// True to measure the latency of blocks.
    pub measure_latency: bool,
    /// True if blocks may start before earlier kernels of the stream are done.
    pub is_early: bool,
    /// Maximum number of branches of a warp before it is reported as hanging.
    pub max_branches: u64,
}

/// The state of a host thread, reused between blocks and launches.
#[derive(Default)]
pub struct Worker {
    warps: Vec<Warp>,
    shared: Shared,
    counts: Vec<Count>,
    accessed: AccessedRanges,
    cursors: Cursors,
    barriers: u32,
    latency: Latency,
}

/// The latency of blocks in clocks; 0 if not measured.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    /// Clocks of the slowest block.
    pub longest: u64,
    /// Clocks of all blocks, added.
    pub total: u64,
}

impl Latency {
    fn add(&mut self, other: Latency) {
        self.longest = self.longest.max(other.longest);
        self.total += other.total;
    }
}

/// The last region that each instruction of the running kernel accessed.
struct Cursors([View; CURSORS]);

impl Default for Cursors {
    fn default() -> Self {
        Self([View::NONE; CURSORS])
    }
}

/// The result of a successful launch.
pub struct LaunchResult {
    /// Counters, by instruction index.
    pub counts: Vec<Count>,
    /// Accessed byte ranges, if recorded.
    pub ranges: Vec<Range>,
    pub latency: Latency,
}

/// Executes a grid on the threads of `workers`.
pub fn run(launch: &Launch, workers: &mut [Worker]) -> Result<LaunchResult, Box<Fault>> {
    let blocks: u64 = launch.blocks.iter().map(|b| u64::from(*b)).product();
    let threads: u64 = launch.threads.iter().map(|t| u64::from(*t)).product();
    let is_small = blocks * threads < PARALLEL_THREADS || blocks == 1;
    let used = if is_small {
        1
    } else {
        workers.len().min(blocks as usize)
    };
    let state = SharedState {
        launch,
        blocks,
        next: AtomicU64::new(0),
        block_order: BlockOrder::default(),
        fault: Mutex::new(None),
    };
    let workers = &mut workers[..used];
    if let [worker] = workers {
        state.run(worker);
    } else {
        std::thread::scope(|scope| {
            let (first, others) = workers.split_at_mut(1);
            for worker in others {
                scope.spawn(|| state.run(worker));
            }
            state.run(&mut first[0]);
        });
    }
    let mut counts = std::mem::take(&mut workers[0].counts);
    for worker in &workers[1..] {
        counts
            .iter_mut()
            .zip(&worker.counts)
            .for_each(|(sum, count)| sum.add(count));
    }
    let ranges = workers.iter_mut().flat_map(|worker| worker.accessed.take()).collect();
    let mut latency = Latency::default();
    workers.iter().for_each(|worker| latency.add(worker.latency));
    match state.fault.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some((_, fault)) => Err(fault),
        None => Ok(LaunchResult {
            counts,
            ranges,
            latency,
        }),
    }
}

/// The state that host threads share during a launch.
struct SharedState<'a> {
    launch: &'a Launch<'a>,
    blocks: u64,
    next: AtomicU64,
    block_order: BlockOrder,
    /// The fault of the block with the lowest number.
    fault: Mutex<Option<(u64, Box<Fault>)>>,
}

impl SharedState<'_> {
    fn run(&self, worker: &mut Worker) {
        worker.begin(self.launch);
        loop {
            let block = self.next.fetch_add(1, Ordering::Relaxed);
            if block >= self.blocks {
                return;
            }
            let result = worker.block(self.launch, block, &self.block_order);
            self.block_order.end(block);
            if let Err(fault) = result {
                // An aborted block leaves an inconsistent state, which is discarded.
                worker.shared = Shared::default();
                // All earlier blocks have started, and later blocks need not run.
                self.next.store(self.blocks, Ordering::Relaxed);
                let mut first = self.fault.lock().unwrap_or_else(|e| e.into_inner());
                if first.as_ref().is_none_or(|(number, _)| block < *number) {
                    *first = Some((block, fault));
                }
                return;
            }
        }
    }
}

impl Worker {
    /// Returns counters from [`LaunchResult`] for reuse.
    pub fn recycle(&mut self, counts: Vec<Count>) {
        self.counts = counts;
    }

    /// Prepares the warps, registers, and counters for a launch.
    fn begin(&mut self, launch: &Launch) {
        let kernel = launch.kernel;
        self.accessed.enabled = launch.record_ranges;
        self.cursors = Cursors::default();
        let threads: u32 = launch.threads.iter().product();
        let n = threads.div_ceil(LANES as u32);
        self.counts.clear();
        self.counts.resize(kernel.code.len(), Count::default());
        self.warps.truncate(n as usize);
        for index in 0..n {
            match self.warps.get_mut(index as usize) {
                Some(warp) => warp.grow(kernel.file_bytes),
                None => self.warps.push(Warp::new(kernel.file_bytes, index)),
            }
        }
        self.latency = Latency::default();
        for warp in &mut self.warps {
            warp.chain = launch.measure_latency.then(Box::default);
            block::set_specials(warp, kernel, launch.threads, launch.blocks, launch.dynamic_shared);
            let file = warp.file_mut();
            for (slot, bits, bytes) in &kernel.constants {
                // SAFETY: the decoder allocated a slot of `bytes` bytes per lane for each constant
                // (`Decoder::constant`).
                unsafe {
                    match bytes {
                        2 => write(file, *slot, &[*bits as u16; LANES], ALL),
                        4 => write(file, *slot, &[*bits as u32; LANES], ALL),
                        _ => write(file, *slot, &[*bits; LANES], ALL),
                    }
                }
            }
        }
        // Logical times are barrier counts that increase across blocks. The history is cleared before the
        // count overflows.
        if self.barriers > u32::MAX / 2 {
            (self.shared, self.barriers) = (Shared::default(), 0);
        }
    }

    fn block(&mut self, launch: &Launch, number: u64, block_order: &BlockOrder) -> Result<(), Box<Fault>> {
        let [x, y, _] = launch.blocks.map(u64::from);
        let index = [number % x, number / x % y, number / x / y].map(|i| i as u32);
        self.shared
            .begin(launch.kernel.shared_bytes + launch.dynamic_shared, launch.detect_races);
        let threads = launch.threads.iter().product();
        if launch.kernel.has_mbarriers {
            self.shared.begin_mbarriers(threads);
        }
        let mut env = Env {
            kernel: launch.kernel,
            params: launch.params,
            accessible: &launch.accessible,
            shared: &mut self.shared,
            counts: &mut self.counts,
            cursor: View::NONE,
            cursors: &mut self.cursors.0,
            accessed: &mut self.accessed,
            block_order: (block_order, number),
            barriers: self.barriers,
            threads,
            is_early: launch.is_early,
            max_branches: launch.max_branches,
        };
        let result = block::run(&mut self.warps, &mut env, index);
        self.barriers = env.barriers;
        let clocks = result?;
        self.latency.add(Latency {
            longest: clocks,
            total: clocks,
        });
        Ok(())
    }
}
