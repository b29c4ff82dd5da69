//! Work of streams: launches, copies, and fills. Work runs when it is submitted, or is recorded if the stream
//! is being captured.

use super::error::Error;
use super::report;
use super::state::{Driver, Outcome};
use crate::device::memory::{Memory, View};
use crate::device::order::Range;
use crate::exec::env::{AccessibleMemory, Count};
use crate::exec::fault::{Fault, Kind};
use crate::exec::grid::{self, Launch};
use crate::exec::inst::{Action, Class, Kernel};
use crate::exec::matrix::Matrix;
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
    pub params: Vec<u8>,
}

/// Counters, by kernel name or by the title set with `llamaEmuTitle`.
#[derive(Default)]
pub struct Counts {
    pub kernels: BTreeMap<String, KernelCounts>,
    /// Number of bytes copied to, from, and within devices.
    pub copied: [u64; 3],
    pub graph_launches: u64,
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
    /// Number of multiply-adds executed by `mma`.
    pub matrix_operations: u64,
    /// Largest shared memory of a block in bytes.
    pub shared_max: u32,
}

impl KernelCounts {
    fn add(&mut self, launch: &LaunchWork, counts: &[Count], accessed: &[Range]) {
        self.launches += 1;
        let product = |sizes: [u32; 3]| sizes.iter().map(|s| u64::from(*s)).product::<u64>();
        self.blocks += product(launch.blocks);
        self.threads += product(launch.blocks) * product(launch.threads);
        for (sum, writes) in self.footprint.iter_mut().zip([false, true]) {
            *sum += footprint(accessed, writes);
        }
        self.shared_max = self.shared_max.max(launch.kernel.shared_bytes + launch.dynamic_shared);
        for (inst, count) in launch.kernel.code.iter().zip(counts).filter(|(_, c)| c.warps > 0) {
            self.classes.entry(inst.class).or_default().add(count);
            match &inst.action {
                Action::Load(_) if inst.class == Class::Global => self.loads.add(count),
                Action::AsyncCopy(_) => {
                    self.loads.add(count);
                    self.copies.add(count);
                }
                Action::Store(_) if inst.class == Class::Global => self.stores.add(count),
                Action::Matrix(Matrix::Multiply(m)) => self.matrix_operations += count.warps * m.operations(),
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

impl Driver {
    /// Runs work of a stream.
    pub fn execute(&mut self, stream: u64, device: u32, work: &Work) -> Outcome {
        match work {
            Work::Launch(launch) => self.launch(stream, launch),
            Work::Copy { to, from, len } => self.copy(stream, device, *to, *from, *len),
            Work::Fill {
                to,
                value,
                width,
                count,
            } => self.run_fill(stream, device, *to, *value, *width, *count),
            Work::Call(function, argument) => {
                // SAFETY: the function may be called with this argument (contract of `cuLaunchHostFunc`).
                unsafe { function(*argument as *mut std::ffi::c_void) };
                Ok(())
            }
        }
    }

    /// Runs a launch, with injected failures. Errors within a kernel are returned by later calls.
    fn launch(&mut self, stream: u64, work: &LaunchWork) -> Outcome {
        self.launches += 1;
        let is_now = |n: Option<u64>| n == Some(self.launches);
        if is_now(self.config.fail_launch) {
            return Err(Error::LAUNCH_OUT_OF_RESOURCES);
        }
        if is_now(self.config.lost_at) {
            self.devices[work.device as usize].failed = Some(Error::UNKNOWN);
            return Err(Error::UNKNOWN);
        }
        if is_now(self.config.fault_at) {
            self.devices[work.device as usize].failed = Some(Error::ILLEGAL_ADDRESS);
            return Ok(());
        }
        let mapped = self.pinned.iter().filter(|h| h.is_mapped);
        let views: Vec<View> = mapped.map(|h| h.view).collect();
        let (own, peers) = (work.device as usize, &self.devices[work.device as usize].peers);
        let memories = self.devices.iter().enumerate();
        let memories = memories
            .map(|(i, d)| (i == own || peers[i]).then_some(&d.memory))
            .collect();
        let launch = Launch {
            kernel: &work.kernel,
            params: &work.params,
            blocks: work.blocks,
            threads: work.threads,
            dynamic_shared: work.dynamic_shared,
            accessible: AccessibleMemory {
                memories,
                pinned: &views,
            },
            detect_races: self.config.races,
            record_ranges: self.is_order_checked(),
            max_branches: self.config.branches,
        };
        match grid::run(&launch, &mut self.workers) {
            Ok(done) => {
                let name = &work.kernel.name;
                self.check_order(stream, work.device, &done.ranges, &format!("kernel `{name}`"));
                let counts = self.counts.kernels.entry(work.title.to_string()).or_default();
                counts.add(work, &done.counts, &done.ranges);
                self.workers[0].recycle(done.counts);
            }
            Err(fault) => {
                let text = describe(&work.kernel, &fault);
                self.report_fault(work.device, fault.kind, &text);
            }
        }
        Ok(())
    }

    /// Order is checked even with one stream, because a later stream may access the same memory.
    fn is_order_checked(&self) -> bool {
        self.config.order
    }

    /// Reports a data race if another stream's access to one of the ranges is not ordered before this work.
    fn check_order(&mut self, stream: u64, device: u32, ranges: &[Range], operation: &str) {
        if !self.is_order_checked() {
            return;
        }
        for range in ranges {
            if let Err(text) = self.order.touch(stream, *range, operation) {
                self.report_fault(device, Kind::Order, &text);
                return;
            }
        }
    }

    /// Returns the range of one side of a copy; `None` for host memory that is not pinned.
    fn range(&self, location: Option<(usize, usize, u64)>, address: u64, len: u64, writes: bool) -> Option<Range> {
        let base = match location {
            Some((device, region, _)) => self.devices[device].memory.regions()[region].base,
            None => {
                self.pinned
                    .iter()
                    .find(|h| h.view.offset(address, len).is_some())?
                    .view
                    .base
            }
        };
        Some(Range {
            base,
            from: address,
            to: address + len,
            writes,
        })
    }

    /// Reports an error of a kernel or copy and marks the device as failed.
    pub fn report_fault(&mut self, device: u32, kind: Kind, text: &str) {
        self.counts.faults += 1;
        report::log(text);
        self.devices[device as usize]
            .failed
            .get_or_insert(Error::from_fault(kind));
    }

    fn copy(&mut self, stream: u64, device: u32, to: u64, from: u64, len: u64) -> Outcome {
        self.copies += 1;
        if self.config.fail_copy == Some(self.copies) {
            return Err(Error::UNKNOWN);
        }
        if len == 0 {
            return Ok(());
        }
        self.deliver_range(from, len);
        let source = self.find(from, len)?;
        let target = self.find(to, len)?;
        let direction = match (&source, &target) {
            (None, _) => 0,
            (_, None) => 1,
            _ => 2,
        };
        self.counts.copied[direction] += len;
        let address = |found: &Option<(usize, usize, u64)>, host: u64| match found {
            Some((device, region, offset)) => self.devices[*device].memory.regions()[*region].data(*offset),
            None => host as *mut u8,
        };
        let (source_data, target_data) = (address(&source, from), address(&target, to));
        if let (Some((d, region, offset)), None) = (source, target)
            && let Some(at) = self.devices[d].memory.regions()[region].first_unwritten(offset, len)
        {
            let name = &self.devices[d].memory.regions()[region].name;
            let text = format!("cannot copy {len} bytes to the host: byte {at} of {name} was never written");
            self.report_fault(device, Kind::Uninitialized, &text);
            return Err(Error::ILLEGAL_ADDRESS);
        }
        if target.is_none() {
            // SAFETY: `find` checked device memory; host memory is valid for `len` bytes (contract of the
            // copy functions).
            let bytes = unsafe { std::slice::from_raw_parts(source_data, len as usize) };
            self.deliver(stream, to, bytes);
        } else {
            // SAFETY: `find` checked device memory, and host memory is valid for `len` bytes (contract of the
            // copy functions). The ranges may overlap, which `copy_from` allows.
            unsafe { target_data.copy_from(source_data, len as usize) };
        }
        self.mark_copied(source, target, len);
        let ranges = [self.range(source, from, len, false), self.range(target, to, len, true)];
        let ranges: Vec<Range> = ranges.into_iter().flatten().collect();
        self.check_order(stream, device, &ranges, "a copy");
        Ok(())
    }

    /// Marks the target of a copy as written where the source was written.
    fn mark_copied(&mut self, source: Option<(usize, usize, u64)>, target: Option<(usize, usize, u64)>, len: u64) {
        let Some((device, region, offset)) = target else { return };
        let marks = source.and_then(|(d, r, o)| self.devices[d].memory.regions()[r].written_marks(o, len));
        let region = self.devices[device].memory.region_mut(region);
        match marks {
            Some(marks) => region.set_written_marks(offset, &marks),
            None => region.mark_written(offset, len),
        }
    }

    fn run_fill(&mut self, stream: u64, on: u32, to: u64, value: u32, width: u32, count: u64) -> Outcome {
        let len = count * u64::from(width);
        if len == 0 {
            return Ok(());
        }
        let bytes = &value.to_le_bytes()[..width as usize];
        let Some((device, region, offset)) = self.find(to, len)? else {
            return Err(Error::INVALID_VALUE);
        };
        let region = self.devices[device].memory.region_mut(region);
        let data = region.data(offset);
        for i in 0..count as usize {
            // SAFETY: `find` checked that `count * width` bytes at `data` are in the region.
            unsafe { data.add(i * width as usize).copy_from(bytes.as_ptr(), width as usize) };
        }
        region.mark_written(offset, len);
        let range = Range {
            base: region.base,
            from: to,
            to: to + len,
            writes: true,
        };
        self.check_order(stream, on, &[range], "a fill");
        Ok(())
    }

    /// Returns device, region, and offset of a device address; `None` for a host address.
    pub fn find(&self, address: u64, len: u64) -> Outcome<Option<(usize, usize, u64)>> {
        let Some(device) = Memory::device_of(address) else {
            return if address == 0 {
                Err(Error::INVALID_VALUE)
            } else {
                Ok(None)
            };
        };
        let device = device as usize;
        let memory = &self.devices.get(device).ok_or(Error::INVALID_VALUE)?.memory;
        match memory.find(address, len) {
            Ok((region, offset)) => Ok(Some((device, region, offset))),
            Err(missing) => {
                report::log(&format!(
                    "cannot copy or fill {len} bytes at {address:#x}: {}",
                    missing.description
                ));
                Err(Error::INVALID_VALUE)
            }
        }
    }
}

fn describe(kernel: &Kernel, fault: &Fault) -> String {
    let [x, y, z] = fault.block;
    let thread = fault.thread.map_or(String::new(), |t| format!(", thread {t}"));
    format!(
        "kernel `{}`, PTX line {}, block ({x}, {y}, {z}){thread}: {}",
        kernel.name, fault.line, fault.description
    )
}
