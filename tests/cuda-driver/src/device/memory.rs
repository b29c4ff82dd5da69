//! Memory of devices: each allocation is a region of its own, at an address that is never used again.

use super::super::exec::fault::Kind;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Bits of an address within a device. Addresses of devices are no addresses of this process: those have at most 48 bits.
const DEVICE_BITS: u32 = 44;
const FIRST_DEVICE: u64 = 16;
/// Multiple of the addresses of allocations.
const ALIGN: u64 = 256;
/// Least distance between allocations.
const GUARD: u64 = 1 << 20;
/// Freed allocations that are remembered.
const REMEMBERED: usize = 1 << 16;

/// A piece of memory. Kernels of several threads of this process write to it, so that it is only touched by address.
pub struct Region {
    /// The device's address.
    pub base: u64,
    /// In bytes.
    pub size: u64,
    /// What it is, for messages: `allocation 7`.
    pub name: String,
    /// Whether kernels may write to it.
    pub read_only: bool,
    data: *mut u8,
    /// One byte for each: 1 if it was ever written. Null if all were.
    shadow: *mut u8,
}

// SAFETY: a region is only memory; who may touch it when is the affair of the kernels that are emulated, which race here as they do on a card.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn new(base: u64, size: u64, name: String) -> Option<Self> {
        let layout = layout(size)?;
        // SAFETY: the layout's size is not 0.
        let (data, shadow) = unsafe { (alloc_zeroed(layout), alloc_zeroed(layout)) };
        let region = Self {
            base,
            size,
            name,
            read_only: false,
            data,
            shadow,
        };
        (!data.is_null() && !shadow.is_null()).then_some(region)
    }

    /// What lies at an offset, for as long as the region lives.
    pub fn data(&self, offset: u64) -> *mut u8 {
        self.data.wrapping_add(offset as usize)
    }

    /// Marks bytes as written.
    pub fn mark(&mut self, offset: u64, len: u64) {
        if self.shadow.is_null() {
            return;
        }
        if offset == 0 && len == self.size {
            self.drop_shadow();
            return;
        }
        // SAFETY: the shadow is as long as the data, and callers stay inside of that.
        unsafe { self.shadow.add(offset as usize).write_bytes(1, len as usize) };
    }

    /// Which bytes are written, one mark for each; `None`: all.
    pub fn marks(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        self.first_unwritten(offset, len)?;
        // SAFETY: a byte that is not written is told by the shadow, which is as long as the region.
        Some(unsafe { std::slice::from_raw_parts(self.shadow.add(offset as usize), len as usize) }.to_vec())
    }

    /// Sets marks that [`Region::marks`] told.
    pub fn set_marks(&mut self, offset: u64, marks: &[u8]) {
        if !self.shadow.is_null() {
            // SAFETY: the shadow is as long as the region, and callers stay inside of that.
            unsafe { self.shadow.add(offset as usize).copy_from(marks.as_ptr(), marks.len()) };
        }
    }

    /// Offset of the first of these bytes that was never written.
    pub fn first_unwritten(&self, offset: u64, len: u64) -> Option<u64> {
        self.view().first_unwritten(offset, len)
    }

    /// Its place, for accesses without a look-up.
    pub fn view(&self) -> View {
        View {
            base: self.base,
            size: self.size,
            data: self.data,
            shadow: self.shadow,
            read_only: self.read_only,
        }
    }

    fn drop_shadow(&mut self) {
        if let (false, Some(layout)) = (self.shadow.is_null(), layout(self.size)) {
            // SAFETY: it was allocated with this layout.
            unsafe { dealloc(self.shadow, layout) };
        }
        self.shadow = std::ptr::null_mut();
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.drop_shadow();
        if let (false, Some(layout)) = (self.data.is_null(), layout(self.size)) {
            // SAFETY: it was allocated with this layout.
            unsafe { dealloc(self.data, layout) };
        }
    }
}

fn layout(size: u64) -> Option<Layout> {
    Layout::from_size_align(usize::try_from(size).ok()?.max(1), 64).ok()
}

/// Where a region lies.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// The device's address.
    pub base: u64,
    /// In bytes.
    pub size: u64,
    /// The address in this process.
    pub data: *mut u8,
    /// One byte for each; null if all are written.
    pub shadow: *mut u8,
    /// Whether kernels may write.
    pub read_only: bool,
}

// SAFETY: as a region's.
unsafe impl Send for View {}
// SAFETY: as a region's.
unsafe impl Sync for View {}

impl View {
    /// Nothing.
    pub const NONE: Self = Self {
        base: 0,
        size: 0,
        data: std::ptr::null_mut(),
        shadow: std::ptr::null_mut(),
        read_only: true,
    };

    /// Offset of an access that lies inside.
    #[inline(always)]
    pub fn offset(&self, address: u64, len: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.base);
        (offset < self.size && len <= self.size - offset).then_some(offset)
    }

    /// Offset of the first of these bytes that was never written. The bytes lie inside.
    #[inline(always)]
    pub fn first_unwritten(&self, offset: u64, len: u64) -> Option<u64> {
        if self.shadow.is_null() {
            return None;
        }
        // SAFETY: the shadow is as long as the region. Bytes of it that another thread sets are read as 0 or 1.
        let marks = unsafe { std::slice::from_raw_parts(self.shadow.add(offset as usize), len as usize) };
        let all = marks.iter().fold(1, |all, mark| all & mark);
        if all == 1 {
            return None;
        }
        marks.iter().position(|mark| *mark == 0).map(|i| offset + i as u64)
    }

    /// Marks bytes as written. They lie inside.
    #[inline(always)]
    pub fn mark(&self, offset: u64, len: u64) {
        if !self.shadow.is_null() {
            // SAFETY: the shadow is as long as the region.
            unsafe { self.shadow.add(offset as usize).write_bytes(1, len as usize) };
        }
    }
}

/// The memory of a device.
pub struct Memory {
    device: u32,
    /// By address.
    regions: Vec<Region>,
    freed: Vec<(u64, u64, String)>,
    next: u64,
    count: u64,
}

/// Why memory is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The kind of fault.
    pub kind: Kind,
    /// What lies next to the address.
    pub what: String,
}

impl Memory {
    /// Of a device, by number.
    pub fn new(device: u32) -> Self {
        let next = (FIRST_DEVICE + u64::from(device)) << DEVICE_BITS;
        Self {
            device,
            regions: Vec::new(),
            freed: Vec::new(),
            next: next + GUARD,
            count: 0,
        }
    }

    /// The device that an address belongs to.
    pub fn device_of(address: u64) -> Option<u32> {
        (address >> DEVICE_BITS)
            .checked_sub(FIRST_DEVICE)
            .and_then(|d| u32::try_from(d).ok())
    }

    /// A new region; `None` if this process has no memory for it.
    pub fn allocate(&mut self, size: u64, what: &str) -> Option<u64> {
        self.count += 1;
        let base = self.next;
        self.regions.push(Region::new(
            base,
            size,
            format!("{what} {} of device {}", self.count, self.device),
        )?);
        self.next = (base + size + GUARD).next_multiple_of(ALIGN);
        Some(base)
    }

    /// Whether there was an allocation of that address.
    pub fn free(&mut self, base: u64) -> bool {
        let Ok(at) = self.regions.binary_search_by_key(&base, |r| r.base) else {
            return false;
        };
        let region = self.regions.remove(at);
        if self.freed.len() == REMEMBERED {
            self.freed.remove(0);
        }
        self.freed.push((region.base, region.size, region.name.clone()));
        true
    }

    /// Bytes in all regions.
    pub fn used(&self) -> u64 {
        self.regions.iter().map(|r| r.size).sum()
    }

    /// All regions.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The region that an access lies in, and the offset there.
    pub fn find(&self, address: u64, len: u64) -> Result<(usize, u64), Missing> {
        let at = self.regions.partition_point(|r| r.base <= address);
        if let Some(i) = at.checked_sub(1)
            && let Some(offset) = self.regions[i].view().offset(address, len)
        {
            return Ok((i, offset));
        }
        Err(Missing {
            kind: Kind::OutOfBounds,
            what: self.near(address, len),
        })
    }

    /// A region, mutably.
    pub fn region_mut(&mut self, i: usize) -> &mut Region {
        &mut self.regions[i]
    }

    /// What is next to an address, in words.
    fn near(&self, address: u64, len: u64) -> String {
        let freed = self
            .freed
            .iter()
            .rev()
            .find(|(base, size, _)| address >= *base && address < base + size);
        if let Some((base, size, name)) = freed {
            return format!("byte {} of {name}, which had {size} bytes and is freed", address - base);
        }
        let at = self.regions.partition_point(|r| r.base <= address);
        if let Some(before) = at.checked_sub(1).map(|i| &self.regions[i])
            && address < before.base + before.size + GUARD
        {
            let offset = address - before.base;
            return format!(
                "{len} bytes at byte {offset} of {}, which has {} bytes",
                before.name, before.size
            );
        }
        match self.regions.get(at) {
            Some(after) if after.base - address < GUARD => {
                format!("{} bytes before {}", after.base - address, after.name)
            }
            _ => "next to no allocation".into(),
        }
    }
}
