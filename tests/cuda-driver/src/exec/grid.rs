//! A launch: the blocks of a grid, shared among threads of the host.
//!
//! Blocks are taken in order. The result does not depend on the number of threads: atomic instructions, which could tell the order of blocks,
//! wait until all blocks before theirs have ended, and of several faults that of the first block is kept.

use super::block;
use super::env::{CURSORS, Count, Env, Reach, Turns};
use super::fault::Fault;
use super::inst::Kernel;
use super::lanes::{ALL, LANES, write};
use super::shared::Shared;
use super::touched::Touched;
use super::warp::Warp;
use crate::device::memory::View;
use crate::device::order::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Fewest threads of a grid for which more than one thread of the host is woken.
const PARALLEL_THREADS: u64 = 1 << 15;

/// What is launched.
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Its parameters.
    pub params: &'a [u8],
    /// Blocks, by dimension.
    pub blocks: [u32; 3],
    /// Threads of a block, by dimension.
    pub threads: [u32; 3],
    /// Shared memory beyond the kernel's own.
    pub dynamic_shared: u32,
    /// Memory that it may touch.
    pub reach: Reach<'a>,
    /// Whether races on shared memory are looked for.
    pub watch_races: bool,
    /// Whether anybody wants to know what it touches.
    pub watch_order: bool,
    /// Branches that a warp may take until it is said to hang.
    pub branches_max: u64,
}

/// What a thread of the host keeps from block to block and launch to launch.
#[derive(Default)]
pub struct Worker {
    warps: Vec<Warp>,
    shared: Shared,
    counts: Vec<Count>,
    touched: Touched,
    cursors: Cursors,
    barriers: u32,
}

/// Regions that instructions of the running kernel touched last.
struct Cursors([View; CURSORS]);

impl Default for Cursors {
    fn default() -> Self {
        Self([View::NONE; CURSORS])
    }
}

/// What a launch did.
pub struct Done {
    /// How often each instruction was executed.
    pub counts: Vec<Count>,
    /// What it touched, if that is watched.
    pub ranges: Vec<Range>,
}

/// Runs a grid on the threads of `workers`.
pub fn run(launch: &Launch, workers: &mut [Worker]) -> Result<Done, Box<Fault>> {
    let blocks: u64 = launch.blocks.iter().map(|b| u64::from(*b)).product();
    let threads: u64 = launch.threads.iter().map(|t| u64::from(*t)).product();
    let is_small = blocks * threads < PARALLEL_THREADS || blocks == 1;
    let used = if is_small {
        1
    } else {
        workers.len().min(blocks as usize)
    };
    let share = Share {
        launch,
        blocks,
        next: AtomicU64::new(0),
        turns: Turns::default(),
        fault: Mutex::new(None),
    };
    let workers = &mut workers[..used];
    if let [worker] = workers {
        share.run(worker);
    } else {
        std::thread::scope(|scope| {
            let (first, others) = workers.split_at_mut(1);
            for worker in others {
                scope.spawn(|| share.run(worker));
            }
            share.run(&mut first[0]);
        });
    }
    let mut counts = std::mem::take(&mut workers[0].counts);
    for worker in &workers[1..] {
        counts
            .iter_mut()
            .zip(&worker.counts)
            .for_each(|(sum, count)| sum.add(count));
    }
    let ranges = workers.iter_mut().flat_map(|worker| worker.touched.take()).collect();
    match share.fault.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some((_, fault)) => Err(fault),
        None => Ok(Done { counts, ranges }),
    }
}

/// What threads of the host share.
struct Share<'a> {
    launch: &'a Launch<'a>,
    blocks: u64,
    next: AtomicU64,
    turns: Turns,
    /// That of the first block, with its number.
    fault: Mutex<Option<(u64, Box<Fault>)>>,
}

impl Share<'_> {
    fn run(&self, worker: &mut Worker) {
        worker.begin(self.launch);
        loop {
            let block = self.next.fetch_add(1, Ordering::Relaxed);
            if block >= self.blocks {
                return;
            }
            let result = worker.block(self.launch, block, &self.turns);
            self.turns.end(block);
            if let Err(fault) = result {
                // What a block left behind in the middle is forgotten.
                worker.shared = Shared::default();
                // Blocks before this one are taken; those after it need not run.
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
    /// Counts that were taken by [`run`], to be used again.
    pub fn give_back(&mut self, counts: Vec<Count>) {
        self.counts = counts;
    }

    /// Warps with the kernel's constants.
    fn begin(&mut self, launch: &Launch) {
        let kernel = launch.kernel;
        self.touched.watch = launch.watch_order;
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
        for warp in &mut self.warps {
            block::set_specials(warp, kernel, launch.threads, launch.blocks, launch.dynamic_shared);
            let file = warp.file_mut();
            for (slot, bits, bytes) in &kernel.constants {
                // SAFETY: the decoder made room for constants of these widths.
                unsafe {
                    match bytes {
                        2 => write(file, *slot, &[*bits as u16; LANES], ALL),
                        4 => write(file, *slot, &[*bits as u32; LANES], ALL),
                        _ => write(file, *slot, &[*bits; LANES], ALL),
                    }
                }
            }
        }
        // Times of blocks are told apart by the number of barriers; before it wraps around, what is known of words is forgotten.
        if self.barriers > u32::MAX / 2 {
            (self.shared, self.barriers) = (Shared::default(), 0);
        }
    }

    fn block(&mut self, launch: &Launch, number: u64, turns: &Turns) -> Result<(), Box<Fault>> {
        let [x, y, _] = launch.blocks.map(u64::from);
        let place = [number % x, number / x % y, number / x / y].map(|i| i as u32);
        self.shared
            .begin(launch.kernel.shared_bytes + launch.dynamic_shared, launch.watch_races);
        let mut env = Env {
            kernel: launch.kernel,
            params: launch.params,
            reach: &launch.reach,
            shared: &mut self.shared,
            counts: &mut self.counts,
            cursor: View::NONE,
            cursors: &mut self.cursors.0,
            touched: &mut self.touched,
            turn: (turns, number),
            barriers: self.barriers,
            threads: launch.threads.iter().product(),
            branches_max: launch.branches_max,
        };
        let result = block::run(&mut self.warps, &mut env, place);
        self.barriers = env.barriers;
        result
    }
}
