//! Work of streams: launches, copies, and fills, and the counters of executed work.

use crate::device::order::Range;
use crate::exec::env::Count;
use crate::exec::grid::LaunchResult;
use crate::exec::inst::{Action, Class, Kernel, Matrix};
use crate::exec::scalar::Scalar;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A unit of work. Addresses are device or host addresses.
#[derive(Clone)]
pub enum Work {
    /// A kernel launch.
    Launch(LaunchWork),
    /// A copy of `len` bytes between two addresses.
    Copy { to: u64, from: u64, len: u64 },
    /// A fill with `count` values of `width` bytes.
    Fill {
        to: u64,
        value: u32,
        width: u32,
        count: u64,
    },
    /// A host function and its argument.
    Call(unsafe extern "C" fn(*mut std::ffi::c_void), u64),
}

/// A kernel launch with its arguments.
#[derive(Clone)]
pub struct LaunchWork {
    pub device: u32,
    pub kernel: Arc<Kernel>,
    /// Name under which the launch is counted.
    pub title: Arc<str>,
    pub blocks: [u32; 3],
    pub threads: [u32; 3],
    pub dynamic_shared: u32,
    /// True if blocks may start before earlier kernels of the stream are done.
    pub is_early: bool,
    pub params: Vec<u8>,
}

/// Counters, by kernel name or by the title set with `llamaEmuTitle`.
#[derive(Default)]
pub struct Counts {
    pub kernels: BTreeMap<String, KernelCounts>,
    /// Number of bytes copied to, from, and within devices.
    pub copied: [u64; 3],
    /// Number of copies to, from, and within devices.
    pub copies: [u64; 3],
    /// Kernels that were launched early.
    pub early_launches: u64,
    pub graph_launches: u64,
    /// Captures that a call of some thread invalidated.
    pub broken_captures: u64,
    pub faults: u64,
    pub leaks: u64,
}

/// Counters of a kernel, summed over all launches.
#[derive(Default)]
pub struct KernelCounts {
    pub launches: u64,
    pub blocks: u64,
    pub threads: u64,
    pub classes: BTreeMap<Class, Count>,
    /// Loads from global memory; stores are counted separately.
    pub loads: Count,
    pub stores: Count,
    /// Asynchronous copies to shared memory, which are also counted in `loads`.
    pub copies: Count,
    /// Distinct bytes read and written per launch. Counted only if order is checked; gaps of up to 64 bytes
    /// may be included.
    pub footprint: [u64; 2],
    /// Number of multiply-adds executed by `mma` on floats with sums in f32 and in f16, on integers, and by `wgmma`.
    pub matrix_operations: u64,
    pub half_operations: u64,
    pub integer_operations: u64,
    pub group_operations: u64,
    /// Largest shared memory of a block in bytes.
    pub shared_max: u32,
    /// Clocks of the slowest block of each launch, and of all blocks, added over launches. Counted after
    /// `llamaEmuMeasureLatency`.
    pub latency: [u64; 2],
}

impl KernelCounts {
    pub fn add(&mut self, launch: &LaunchWork, done: &LaunchResult) {
        self.launches += 1;
        self.latency[0] += done.latency.longest;
        self.latency[1] += done.latency.total;
        let product = |sizes: [u32; 3]| sizes.iter().map(|s| u64::from(*s)).product::<u64>();
        self.blocks += product(launch.blocks);
        self.threads += product(launch.blocks) * product(launch.threads);
        for (sum, writes) in self.footprint.iter_mut().zip([false, true]) {
            *sum += footprint(&done.ranges, writes);
        }
        self.shared_max = self.shared_max.max(launch.kernel.shared_bytes + launch.dynamic_shared);
        for (inst, count) in launch.kernel.code.iter().zip(&done.counts).filter(|(_, c)| c.warps > 0) {
            self.classes.entry(inst.class).or_default().add(count);
            match &inst.action {
                Action::Load(_) if inst.class == Class::Global => self.loads.add(count),
                Action::AsyncCopy(_) | Action::BulkCopy(_) => {
                    self.loads.add(count);
                    self.copies.add(count);
                }
                Action::Store(_) if inst.class == Class::Global => self.stores.add(count),
                Action::Matrix(Matrix::Multiply(m)) if m.sum == Scalar::S32 => {
                    self.integer_operations += count.warps * m.operations();
                }
                Action::Matrix(Matrix::Multiply(m)) if m.sum == Scalar::F16 => {
                    self.half_operations += count.warps * m.operations();
                }
                Action::Matrix(Matrix::Multiply(m)) => self.matrix_operations += count.warps * m.operations(),
                Action::Matrix(Matrix::Group(product)) => self.group_operations += count.warps * product.operations(),
                _ => {}
            }
        }
    }
}

/// Returns the number of distinct bytes in the ranges that are written, or read.
fn footprint(ranges: &[Range], writes: bool) -> u64 {
    let chosen = ranges.iter().filter(|range| range.writes == writes);
    let mut ends: Vec<(u64, u64)> = chosen.map(|range| (range.from, range.to)).collect();
    ends.sort_unstable();
    let mut behind = 0;
    let new = ends.into_iter().map(|(from, to)| {
        let new = to.saturating_sub(from.max(behind));
        behind = behind.max(to);
        new
    });
    new.sum()
}
