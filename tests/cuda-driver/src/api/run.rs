//! Execution of work. Work runs when it is submitted, or is recorded if the stream is being captured.

use super::error::Error;
use super::report;
use super::state::{Driver, Outcome};
use super::work::{LaunchWork, Work};
use crate::device::memory::{Memory, View};
use crate::device::order::Range;
use crate::exec::env::AccessibleMemory;
use crate::exec::fault::{Fault, Kind};
use crate::exec::grid::{self, Launch};
use crate::exec::inst::Kernel;

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
        self.counts.early_launches += u64::from(work.is_early);
        let is_now = |n: Option<u64>| n == Some(self.launches);
        if is_now(self.config.fail_launch) || self.config.fail_products && work.kernel.has_products {
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
            measure_latency: self.measures_latency,
            is_early: work.is_early,
            max_branches: self.config.branches,
        };
        match grid::run(&launch, &mut self.workers) {
            Ok(done) => {
                let name = &work.kernel.name;
                self.check_order(stream, work.device, &done.ranges, &format!("kernel `{name}`"));
                let counts = self.counts.kernels.entry(work.title.to_string()).or_default();
                counts.add(work, &done);
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
        self.counts.copies[direction] += 1;
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
