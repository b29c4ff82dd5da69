//! What a running block sees: its kernel, arguments, memory, and the counters.

use super::fault::{Fault, Kind};
use super::inst::Kernel;
use super::lanes::LANES;
use super::shared::{Now, Shared, ways};
use super::touched::Touched;
use crate::device::memory::{Memory, Missing, View};
use crate::device::order::Range;
use crate::ptx::Space;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where generic addresses of shared memory begin. Allocations and memory of this process have others.
pub const SHARED_WINDOW: u64 = 1 << 62;
/// Where generic addresses of local memory begin.
pub const LOCAL_WINDOW: u64 = 1 << 61;
/// Bytes of either window.
pub const WINDOW: u64 = 1 << 32;
/// Regions that are remembered.
pub const CURSORS: usize = 32;
/// Bytes that memory moves at once.
pub const SECTOR: u64 = 32;

/// Memory that kernels of a device may touch.
pub struct Reach<'a> {
    /// By number; `None` where there is no access between the devices.
    pub memories: Vec<Option<&'a Memory>>,
    /// Pinned memory of the host.
    pub hosts: &'a [View],
}

impl Reach<'_> {
    fn find(&self, address: u64, len: u64) -> Result<View, Missing> {
        if let Some(host) = self.hosts.iter().find(|h| h.offset(address, len).is_some()) {
            return Ok(*host);
        }
        let Some(device) = Memory::device_of(address) else {
            return Err(Missing {
                kind: Kind::OutOfBounds,
                what: "no address of a device".into(),
            });
        };
        match self.memories.get(device as usize) {
            Some(Some(memory)) => memory.find(address, len).map(|(i, _)| memory.regions()[i].view()),
            Some(None) => {
                let what = format!("an address of device {device}, to which this one has no access");
                Err(Missing {
                    kind: Kind::OutOfBounds,
                    what,
                })
            }
            None => Err(Missing {
                kind: Kind::OutOfBounds,
                what: "no address of a device".into(),
            }),
        }
    }

    fn name(&self, address: u64) -> String {
        let memory = Memory::device_of(address).and_then(|d| *self.memories.get(d as usize)?);
        let region = memory.and_then(|m| m.find(address, 1).ok().map(|(i, at)| (&m.regions()[i], at)));
        region.map_or("memory of the host".into(), |(region, at)| {
            format!("byte {at} of {}", region.name)
        })
    }
}

/// Which blocks of a grid have ended.
#[derive(Default)]
pub struct Turns {
    /// All blocks before this one have.
    first: AtomicU64,
    /// Those behind it that have, too.
    ended: Mutex<BTreeSet<u64>>,
}

impl Turns {
    /// A block has ended.
    pub fn end(&self, block: u64) {
        let mut ended = self.ended.lock().unwrap_or_else(|e| e.into_inner());
        ended.insert(block);
        let mut first = self.first.load(Ordering::Relaxed);
        while ended.remove(&first) {
            first += 1;
        }
        self.first.store(first, Ordering::Release);
    }

    /// Waits until all blocks before this one have ended.
    pub fn wait(&self, block: u64) {
        while self.first.load(Ordering::Acquire) < block {
            std::thread::yield_now();
        }
    }
}

/// How often an instruction was executed, and what it moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Times that a warp came to it with at least one lane on.
    pub warps: u64,
    /// Lanes that did it.
    pub lanes: u64,
    /// Bytes that lanes asked for.
    pub bytes: u64,
    /// Sectors of global memory that were moved, or additional ways of shared memory.
    pub moved: u64,
    /// Groups of lanes of accesses to shared memory that are served at once, 128 bytes at most: the ways without a conflict.
    pub waves: u64,
    /// Branches at which lanes of a warp went different ways.
    pub diverged: u64,
}

impl Count {
    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        self.warps += other.warps;
        self.lanes += other.lanes;
        self.bytes += other.bytes;
        self.moved += other.moved;
        self.waves += other.waves;
        self.diverged += other.diverged;
    }
}

/// A running block.
pub struct Env<'a> {
    /// What it runs.
    pub kernel: &'a Kernel,
    /// All parameters.
    pub params: &'a [u8],
    /// Memory of devices.
    pub reach: &'a Reach<'a>,
    /// Its own memory.
    pub shared: &'a mut Shared,
    /// For each instruction.
    pub counts: &'a mut [Count],
    /// The region that was touched last.
    pub cursor: View,
    /// Those that instructions touched last, by the low bits of their numbers: an instruction mostly stays in one region.
    pub cursors: &'a mut [View; CURSORS],
    /// Which blocks have ended, and its own number.
    pub turn: (&'a Turns, u64),
    /// What it touched.
    pub touched: &'a mut Touched,
    /// Barriers so far.
    pub barriers: u32,
    /// Threads in the block.
    pub threads: u32,
    /// Branches that a warp may take until it is said to hang.
    pub branches_max: u64,
}

/// Addresses of this process, one for each lane that is on.
pub type Pointers = [*mut u8; LANES];

/// An access by a warp: where each lane reads or writes how many bytes.
pub struct Touch<'a> {
    /// Lanes that are on.
    pub mask: u32,
    /// For each lane.
    pub addresses: &'a [u64; LANES],
    /// For each lane.
    pub bytes: u32,
    /// The instruction.
    pub pc: usize,
    /// The first lane's thread.
    pub first_thread: u32,
    /// The warp's time.
    pub warp_time: u32,
    /// Whether memory is read.
    pub reads: bool,
    /// Whether it is written.
    pub writes: bool,
}

impl Touch<'_> {
    fn lanes(&self) -> impl Iterator<Item = usize> {
        let mask = self.mask;
        (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
    }

    fn thread(&self, lane: usize) -> u32 {
        self.first_thread + lane as u32
    }

    /// The address of the first lane if all lanes are on and lie one behind the other.
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
        let what = format!(
            "an access of {} bytes at {:#x} is not aligned",
            self.bytes, self.addresses[lane]
        );
        Fault::new(Kind::Misaligned, Some(self.thread(lane)), what)
    }
}

impl Env<'_> {
    /// Checks an access to any space, notes and counts it.
    #[inline]
    pub fn touch(&mut self, space: Space, touch: &Touch, local: &mut [u8]) -> Result<Pointers, Box<Fault>> {
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

    fn touch_generic(&mut self, touch: &Touch, local: &mut [u8]) -> Result<Pointers, Box<Fault>> {
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
            let part = Touch {
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
    fn touch_global(&mut self, touch: &Touch) -> Result<Pointers, Box<Fault>> {
        let mut pointers = [std::ptr::null_mut(); LANES];
        let remembered = touch.pc % CURSORS;
        self.cursor = self.cursors[remembered];
        if let Some(first) = touch.contiguous() {
            let len = u64::from(touch.bytes) * LANES as u64;
            if self.cursor.offset(first, len).is_none()
                && let Ok(view) = self.reach.find(first, len)
            {
                (self.cursor, self.cursors[remembered]) = (view, view);
            }
            if let Some(offset) = self.cursor.offset(first, len)
                && (!touch.reads || self.cursor.first_unwritten(offset, len).is_none())
                && !(touch.writes && self.cursor.read_only)
            {
                self.counts[touch.pc].moved += (first + len - 1) / SECTOR - first / SECTOR + 1;
                self.note(first, len, touch.reads, touch.writes);
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
        self.counts[touch.pc].moved += different(&mut sectors[..n]);
        Ok(pointers)
    }

    /// One lane's access to global memory.
    #[inline]
    fn touch_one(&mut self, touch: &Touch, lane: usize) -> Result<*mut u8, Box<Fault>> {
        let (address, len) = (touch.addresses[lane], u64::from(touch.bytes));
        let access = if touch.writes { "write of" } else { "read of" };
        if self.cursor.offset(address, len).is_none() {
            self.cursor = self.reach.find(address, len).map_err(|missing| {
                let what = format!("{access} {len} bytes at {address:#x}: {}", missing.what);
                Fault::new(missing.kind, Some(touch.thread(lane)), what)
            })?;
        }
        let offset = address - self.cursor.base;
        if touch.writes && self.cursor.read_only {
            let what = format!("{access} {len} bytes at {address:#x}, which kernels only read");
            return Err(Fault::new(Kind::OutOfBounds, Some(touch.thread(lane)), what));
        }
        if touch.reads
            && let Some(at) = self.cursor.first_unwritten(offset, len)
        {
            let name = self.reach.name(self.cursor.base + at);
            let what = format!("read of {len} bytes at {address:#x}: {name} was never written");
            return Err(Fault::new(Kind::Uninitialized, Some(touch.thread(lane)), what));
        }
        self.note(address, len, touch.reads, touch.writes);
        Ok(self.cursor.data.wrapping_add(offset as usize))
    }

    /// Bytes of the cursor's region are touched.
    #[inline(always)]
    fn note(&mut self, from: u64, len: u64, reads: bool, writes: bool) {
        let (base, to) = (self.cursor.base, from + len);
        if writes {
            self.cursor.mark(from - base, len);
            self.touched.note(Range {
                base,
                from,
                to,
                writes: true,
            });
        }
        if reads {
            self.touched.note(Range {
                base,
                from,
                to,
                writes: false,
            });
        }
    }

    fn touch_shared(&mut self, touch: &Touch) -> Result<Pointers, Box<Fault>> {
        let mut pointers = [std::ptr::null_mut(); LANES];
        let now = self.now(touch.warp_time);
        let data = self.shared.data();
        // Lanes that write the same word in one instruction: one of them wins, as the language has it.
        let is_ascending = touch.mask == u32::MAX && touch.addresses.is_sorted_by(|a, b| a < b);
        // Reads before writes: what lanes do in one instruction has no order.
        for (is_write, wanted) in [(false, touch.reads), (true, touch.writes)] {
            for lane in touch.lanes().filter(|_| wanted) {
                let address = touch.addresses[lane];
                let thread = touch.thread(lane);
                let is_repeated = is_write && !is_ascending && self.is_repeated(touch, lane);
                // Two lanes that read a word say of it what more of them do.
                let is_third = |address: u64| {
                    lane > 1 && touch.addresses[lane - 1] == address && touch.addresses[lane - 2] == address
                };
                if !is_repeated && (is_write || touch.mask != u32::MAX || !is_third(address)) {
                    self.shared.touch(address, touch.bytes, thread, now, is_write)?;
                }
                pointers[lane] = data.wrapping_add(address as usize);
            }
        }
        let (waves, extra) = ways(touch.addresses, touch.mask, touch.bytes);
        let count = &mut self.counts[touch.pc];
        count.waves += u64::from(waves);
        count.moved += u64::from(extra);
        Ok(pointers)
    }

    /// An access that is ordered with other atomic ones: no race is looked for.
    pub fn touch_atomically(&mut self, space: Space, touch: &Touch, local: &mut [u8]) -> Result<Pointers, Box<Fault>> {
        let watch = self.shared.watch(false);
        let pointers = self.touch(space, touch, local);
        self.shared.watch(watch);
        pointers
    }

    fn is_repeated(&self, touch: &Touch, lane: usize) -> bool {
        (0..lane).any(|before| touch.mask >> before & 1 != 0 && touch.addresses[before] == touch.addresses[lane])
    }

    fn touch_local(&mut self, touch: &Touch, local: &mut [u8]) -> Result<Pointers, Box<Fault>> {
        let mut pointers = [std::ptr::null_mut(); LANES];
        let size = u64::from(self.kernel.local_bytes);
        for lane in touch.lanes() {
            let address = touch.addresses[lane];
            if address >= size || size - address < touch.bytes.into() {
                let what = format!(
                    "{} bytes at {address} of a thread's local memory, which has {size}",
                    touch.bytes
                );
                return Err(Fault::new(Kind::OutOfBounds, Some(touch.thread(lane)), what));
            }
            pointers[lane] = local[lane * size as usize + address as usize..].as_mut_ptr();
        }
        Ok(pointers)
    }

    fn touch_params(&mut self, touch: &Touch) -> Result<Pointers, Box<Fault>> {
        let mut pointers = [std::ptr::null_mut(); LANES];
        let size = self.params.len() as u64;
        for lane in touch.lanes() {
            let address = touch.addresses[lane];
            if touch.writes || address >= size || size - address < touch.bytes.into() {
                let what = format!(
                    "{} bytes at {address} of the parameters, which have {size}",
                    touch.bytes
                );
                return Err(Fault::new(Kind::OutOfBounds, Some(touch.thread(lane)), what));
            }
            pointers[lane] = self.params[address as usize..].as_ptr().cast_mut();
        }
        Ok(pointers)
    }

    /// The running warp's place in time.
    pub fn now(&self, warp_time: u32) -> Now {
        Now {
            block: self.barriers,
            warp: warp_time,
        }
    }
}

/// The window that a generic address lies in; 0: none.
pub fn window_of(address: u64) -> u64 {
    let is_in = |window: &u64| address.wrapping_sub(*window) < WINDOW;
    [SHARED_WINDOW, LOCAL_WINDOW].into_iter().find(is_in).unwrap_or(0)
}

/// How many different values there are.
fn different(values: &mut [u64]) -> u64 {
    if !values.is_sorted() {
        values.sort_unstable();
    }
    let changes = values.windows(2).filter(|w| w[0] != w[1]).count() as u64;
    changes + u64::from(!values.is_empty())
}
