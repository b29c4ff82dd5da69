//! The environment of a running block: kernel, arguments, memory, and counters.

use super::fault::{Fault, Kind};
use super::inst::Kernel;
use super::lanes::LANES;
use super::shared::{LogicalTime, Shared, bank_waves};
use super::touched::AccessedRanges;
use crate::device::memory::{LookupError, Memory, View};
use crate::device::order::Range;
use crate::ptx::Space;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// First generic address of shared memory. The window does not overlap device or host addresses.
pub const SHARED_WINDOW: u64 = 1 << 62;
/// First generic address of local memory.
pub const LOCAL_WINDOW: u64 = 1 << 61;
/// Size of each generic address window in bytes.
pub const WINDOW: u64 = 1 << 32;
/// Number of cached memory regions.
pub const CURSORS: usize = 32;
/// Size of a global memory sector in bytes.
pub const SECTOR: u64 = 32;

/// Memory that kernels of a device can access.
pub struct AccessibleMemory<'a> {
    /// Memory by device number; `None` for a device without peer access.
    pub memories: Vec<Option<&'a Memory>>,
    /// Pinned host memory that kernels may access.
    pub pinned: &'a [View],
}

impl AccessibleMemory<'_> {
    fn find(&self, address: u64, len: u64) -> Result<View, LookupError> {
        if let Some(host) = self.pinned.iter().find(|h| h.offset(address, len).is_some()) {
            return Ok(*host);
        }
        let Some(device) = Memory::device_of(address) else {
            return Err(LookupError {
                kind: Kind::OutOfBounds,
                description: "the address does not belong to a device".into(),
            });
        };
        match self.memories.get(device as usize) {
            Some(Some(memory)) => memory.find(address, len).map(|(i, _)| memory.regions()[i].view()),
            Some(None) => {
                let description = format!("the address belongs to device {device}, and peer access is not enabled");
                Err(LookupError {
                    kind: Kind::OutOfBounds,
                    description,
                })
            }
            None => Err(LookupError {
                kind: Kind::OutOfBounds,
                description: "the address does not belong to a device".into(),
            }),
        }
    }

    fn name(&self, address: u64) -> String {
        let memory = Memory::device_of(address).and_then(|d| *self.memories.get(d as usize)?);
        let region = memory.and_then(|m| m.find(address, 1).ok().map(|(i, at)| (&m.regions()[i], at)));
        region.map_or("host memory".into(), |(region, at)| {
            format!("byte {at} of {}", region.name)
        })
    }
}

/// Tracks which blocks of a grid have ended.
#[derive(Default)]
pub struct BlockOrder {
    /// Index of the first block that may still run; all earlier blocks have ended.
    first: AtomicU64,
    /// Blocks after `first` that have ended.
    ended: Mutex<BTreeSet<u64>>,
}

impl BlockOrder {
    /// Marks a block as ended.
    pub fn end(&self, block: u64) {
        let mut ended = self.ended.lock().unwrap_or_else(|e| e.into_inner());
        ended.insert(block);
        let mut first = self.first.load(Ordering::Relaxed);
        while ended.remove(&first) {
            first += 1;
        }
        self.first.store(first, Ordering::Release);
    }

    /// Waits until all blocks before `block` have ended.
    pub fn wait(&self, block: u64) {
        while self.first.load(Ordering::Acquire) < block {
            std::thread::yield_now();
        }
    }
}

/// Execution counters of an instruction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of executions by a warp with at least one active lane.
    pub warps: u64,
    /// Number of executions, summed over lanes.
    pub lanes: u64,
    /// Number of bytes requested by all lanes.
    pub bytes: u64,
    /// For global memory, the transferred sectors. For shared memory, the extra waves due to bank conflicts.
    pub moved: u64,
    /// Waves of shared memory accesses without bank conflicts. A wave covers at most 128 bytes.
    pub waves: u64,
    /// Number of branches at which a warp diverged.
    pub diverged: u64,
}

impl Count {
    /// Adds the counters of `other`.
    pub fn add(&mut self, other: &Self) {
        self.warps += other.warps;
        self.lanes += other.lanes;
        self.bytes += other.bytes;
        self.moved += other.moved;
        self.waves += other.waves;
        self.diverged += other.diverged;
    }
}

/// The environment of a running block.
pub struct Env<'a> {
    pub kernel: &'a Kernel,
    /// Parameters of the kernel.
    pub params: &'a [u8],
    /// Memory that the kernel may access.
    pub accessible: &'a AccessibleMemory<'a>,
    /// Shared memory of the block.
    pub shared: &'a mut Shared,
    /// Execution counters, by instruction index.
    pub counts: &'a mut [Count],
    /// The most recently accessed memory region.
    pub cursor: View,
    /// The last region that each instruction accessed, indexed by the low bits of the instruction index. Most
    /// instructions stay within one region.
    pub cursors: &'a mut [View; CURSORS],
    /// Order of blocks for atomics, and the index of the running block.
    pub block_order: (&'a BlockOrder, u64),
    /// Byte ranges accessed by the launch.
    pub accessed: &'a mut AccessedRanges,
    /// Number of completed barriers.
    pub barriers: u32,
    /// Number of threads in the block.
    pub threads: u32,
    /// True if blocks may start before earlier kernels of the stream are done.
    pub is_early: bool,
    /// Maximum number of branches of a warp before it is reported as hanging.
    pub max_branches: u64,
}

/// Host addresses, one for each active lane.
pub type Pointers = [*mut u8; LANES];

/// A memory access of a warp.
pub struct WarpAccess<'a> {
    /// Mask of the active lanes.
    pub mask: u32,
    /// Address of each lane.
    pub addresses: &'a [u64; LANES],
    /// Access size of a lane in bytes.
    pub bytes: u32,
    /// Index of the accessing instruction.
    pub pc: usize,
    /// Index of the thread in lane 0.
    pub first_thread: u32,
    /// Number of `bar.warp.sync` executed by the warp.
    pub warp_time: u32,
    /// Mask of the lanes that must still execute `griddepcontrol.wait`, before they access global memory.
    pub unordered: u32,
    /// True if the access reads memory.
    pub reads: bool,
    /// True if the access writes memory.
    pub writes: bool,
}

impl WarpAccess<'_> {
    fn lanes(&self) -> impl Iterator<Item = usize> {
        let mask = self.mask;
        (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
    }

    fn thread(&self, lane: usize) -> u32 {
        self.first_thread + lane as u32
    }

    /// Returns the address of lane 0 if all lanes are active and access consecutive addresses.
    fn contiguous(&self) -> Option<u64> {
        let first = self.addresses[0];
        let bytes = u64::from(self.bytes);
        let mut differences = 0;
        for (i, address) in self.addresses.iter().enumerate() {
            differences |= address ^ first.wrapping_add(i as u64 * bytes);
        }
        (self.mask == u32::MAX && differences == 0).then_some(first)
    }

    fn misaligned(&self, lane: usize) -> Box<Fault> {
        let description = format!(
            "misaligned access of {} bytes at {:#x}",
            self.bytes, self.addresses[lane]
        );
        Fault::new(Kind::Misaligned, Some(self.thread(lane)), description)
    }
}

impl Env<'_> {
    /// Checks, records, and counts an access to any state space.
    #[inline]
    pub fn touch(&mut self, space: Space, touch: &WarpAccess, local: &mut [u8]) -> Result<Pointers, Box<Fault>> {
        self.counts[touch.pc].bytes += u64::from(touch.mask.count_ones() * touch.bytes);
        let misaligned = touch
            .lanes()
            .find(|lane| touch.addresses[*lane] & u64::from(touch.bytes - 1) != 0);
        if let Some(lane) = misaligned {
            return Err(touch.misaligned(lane));
        }
        match space {
            Space::Global | Space::Const => self.touch_global(touch),
            Space::Shared => self.touch_shared(touch),
            Space::Local => self.touch_local(touch, local),
            Space::Param => self.touch_params(touch),
            Space::Generic => self.touch_generic(touch, local),
        }
    }

    fn touch_generic(&mut self, touch: &WarpAccess, local: &mut [u8]) -> Result<Pointers, Box<Fault>> {
        let mut pointers = [std::ptr::null_mut(); LANES];
        for (space, window) in [
            (Space::Global, 0),
            (Space::Shared, SHARED_WINDOW),
            (Space::Local, LOCAL_WINDOW),
        ] {
            let is_here = |lane: &usize| window_of(touch.addresses[*lane]) == window;
            let mask = touch.lanes().filter(is_here).fold(0, |mask, lane| mask | 1 << lane);
            if mask == 0 {
                continue;
            }
            let addresses = touch.addresses.map(|address| address.wrapping_sub(window));
            let part = WarpAccess {
                mask,
                addresses: &addresses,
                ..*touch
            };
            let found = match space {
                Space::Shared => self.touch_shared(&part)?,
                Space::Local => self.touch_local(&part, local)?,
                _ => self.touch_global(&part)?,
            };
            part.lanes().for_each(|lane| pointers[lane] = found[lane]);
        }
        Ok(pointers)
    }

    #[inline]
    fn touch_global(&mut self, touch: &WarpAccess) -> Result<Pointers, Box<Fault>> {
        let unordered = touch.unordered & touch.mask;
        if unordered != 0 {
            let thread = touch.thread(unordered.trailing_zeros() as usize);
            let description = "access to global memory before `griddepcontrol.wait` in an early launch";
            return Err(Fault::new(Kind::Order, Some(thread), description));
        }
        let mut pointers = [std::ptr::null_mut(); LANES];
        let remembered = touch.pc % CURSORS;
        self.cursor = self.cursors[remembered];
        if let Some(first) = touch.contiguous() {
            let len = u64::from(touch.bytes) * LANES as u64;
            if self.cursor.offset(first, len).is_none()
                && let Ok(view) = self.accessible.find(first, len)
            {
                (self.cursor, self.cursors[remembered]) = (view, view);
            }
            if let Some(offset) = self.cursor.offset(first, len)
                && (!touch.reads || self.cursor.first_unwritten(offset, len).is_none())
                && !(touch.writes && self.cursor.read_only)
            {
                self.counts[touch.pc].moved += (first + len - 1) / SECTOR - first / SECTOR + 1;
                self.record(first, len, touch.reads, touch.writes);
                let data = self.cursor.data.wrapping_add(offset as usize);
                for (i, pointer) in pointers.iter_mut().enumerate() {
                    *pointer = data.wrapping_add(i * touch.bytes as usize);
                }
                return Ok(pointers);
            }
        }
        let mut sectors = [0; LANES];
        let mut n = 0;
        for lane in touch.lanes() {
            pointers[lane] = self.touch_one(touch, lane)?;
            sectors[n] = touch.addresses[lane] / SECTOR;
            n += 1;
        }
        self.cursors[remembered] = self.cursor;
        self.counts[touch.pc].moved += count_distinct(&mut sectors[..n]);
        Ok(pointers)
    }

    /// Checks and records the access of one lane to global memory.
    #[inline]
    fn touch_one(&mut self, touch: &WarpAccess, lane: usize) -> Result<*mut u8, Box<Fault>> {
        let (address, len) = (touch.addresses[lane], u64::from(touch.bytes));
        let access = if touch.writes { "write of" } else { "read of" };
        if self.cursor.offset(address, len).is_none() {
            self.cursor = self.accessible.find(address, len).map_err(|missing| {
                let description = format!("{access} {len} bytes at {address:#x}: {}", missing.description);
                Fault::new(missing.kind, Some(touch.thread(lane)), description)
            })?;
        }
        let offset = address - self.cursor.base;
        if touch.writes && self.cursor.read_only {
            let description = format!("{access} {len} bytes at {address:#x}: the memory is read-only");
            return Err(Fault::new(Kind::OutOfBounds, Some(touch.thread(lane)), description));
        }
        if touch.reads
            && let Some(at) = self.cursor.first_unwritten(offset, len)
        {
            let name = self.accessible.name(self.cursor.base + at);
            let description = format!("read of {len} bytes at {address:#x}: {name} was never written");
            return Err(Fault::new(Kind::Uninitialized, Some(touch.thread(lane)), description));
        }
        self.record(address, len, touch.reads, touch.writes);
        Ok(self.cursor.data.wrapping_add(offset as usize))
    }

    /// Records an access to the region in `cursor`.
    #[inline(always)]
    fn record(&mut self, from: u64, len: u64, reads: bool, writes: bool) {
        let (base, to) = (self.cursor.base, from + len);
        if writes {
            self.cursor.mark_written(from - base, len);
            self.accessed.record(Range {
                base,
                from,
                to,
                writes: true,
            });
        }
        if reads {
            self.accessed.record(Range {
                base,
                from,
                to,
                writes: false,
            });
        }
    }

    fn touch_shared(&mut self, touch: &WarpAccess) -> Result<Pointers, Box<Fault>> {
        let mut pointers = [std::ptr::null_mut(); LANES];
        let now = self.now(touch.warp_time);
        let data = self.shared.data();
        // If several lanes write the same word in one instruction, one of the values is stored (PTX memory
        // model).
        let is_ascending = touch.mask == u32::MAX && touch.addresses.is_sorted_by(|a, b| a < b);
        // Reads are checked before writes because the accesses of one instruction are unordered.
        for (is_write, is_performed) in [(false, touch.reads), (true, touch.writes)] {
            if !is_performed {
                continue;
            }
            for lane in touch.lanes() {
                let address = touch.addresses[lane];
                let thread = touch.thread(lane);
                let is_repeated = is_write && !is_ascending && self.is_repeated(touch, lane);
                // Two readers of a word represent all further readers.
                let is_third = |address: u64| {
                    lane > 1 && touch.addresses[lane - 1] == address && touch.addresses[lane - 2] == address
                };
                if !is_repeated && (is_write || touch.mask != u32::MAX || !is_third(address)) {
                    self.shared.touch(address, touch.bytes, thread, now, is_write)?;
                }
                pointers[lane] = data.wrapping_add(address as usize);
            }
        }
        let (waves, extra) = bank_waves(touch.addresses, touch.mask, touch.bytes);
        let count = &mut self.counts[touch.pc];
        count.waves += u64::from(waves);
        count.moved += u64::from(extra);
        Ok(pointers)
    }

    /// Checks an atomic access. Race detection is disabled because atomics are ordered with each other.
    pub fn touch_atomically(
        &mut self,
        space: Space,
        touch: &WarpAccess,
        local: &mut [u8],
    ) -> Result<Pointers, Box<Fault>> {
        let enabled = self.shared.set_race_detection(false);
        let pointers = self.touch(space, touch, local);
        self.shared.set_race_detection(enabled);
        pointers
    }

    fn is_repeated(&self, touch: &WarpAccess, lane: usize) -> bool {
        (0..lane).any(|before| touch.mask >> before & 1 != 0 && touch.addresses[before] == touch.addresses[lane])
    }

    fn touch_local(&mut self, touch: &WarpAccess, local: &mut [u8]) -> Result<Pointers, Box<Fault>> {
        let mut pointers = [std::ptr::null_mut(); LANES];
        let size = u64::from(self.kernel.local_bytes);
        for lane in touch.lanes() {
            let address = touch.addresses[lane];
            if address >= size || size - address < touch.bytes.into() {
                let description = format!(
                    "local memory has {size} bytes per thread, but the access covers {0} bytes at offset {address}",
                    touch.bytes
                );
                return Err(Fault::new(Kind::OutOfBounds, Some(touch.thread(lane)), description));
            }
            pointers[lane] = local[lane * size as usize + address as usize..].as_mut_ptr();
        }
        Ok(pointers)
    }

    fn touch_params(&mut self, touch: &WarpAccess) -> Result<Pointers, Box<Fault>> {
        let mut pointers = [std::ptr::null_mut(); LANES];
        let size = self.params.len() as u64;
        for lane in touch.lanes() {
            let address = touch.addresses[lane];
            if touch.writes || address >= size || size - address < touch.bytes.into() {
                let description = format!(
                    "the parameters have {size} bytes, but the access covers {0} bytes at offset {address}",
                    touch.bytes
                );
                return Err(Fault::new(Kind::OutOfBounds, Some(touch.thread(lane)), description));
            }
            pointers[lane] = self.params[address as usize..].as_ptr().cast_mut();
        }
        Ok(pointers)
    }

    /// Returns the logical time of the running warp.
    pub fn now(&self, warp_time: u32) -> LogicalTime {
        LogicalTime {
            block: self.barriers,
            warp: warp_time,
        }
    }
}

/// Returns the start of the window that contains a generic address, or 0 for global memory.
pub fn window_of(address: u64) -> u64 {
    let is_in = |window: &u64| address.wrapping_sub(*window) < WINDOW;
    [SHARED_WINDOW, LOCAL_WINDOW].into_iter().find(is_in).unwrap_or(0)
}

/// Returns the number of distinct values.
fn count_distinct(values: &mut [u64]) -> u64 {
    if !values.is_sorted() {
        values.sort_unstable();
    }
    let changes = values.windows(2).filter(|w| w[0] != w[1]).count() as u64;
    changes + u64::from(!values.is_empty())
}
