//! Device memory. Each allocation is a separate region, and addresses are never reused.

use super::super::exec::fault::Kind;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Address bits within a device. Device addresses are above the 48-bit addresses of the host process.
const DEVICE_BITS: u32 = 44;
const FIRST_DEVICE: u64 = 16;
/// Alignment of allocations in bytes.
const ALIGN: u64 = 256;
/// Minimum distance between allocations in bytes.
const GUARD: u64 = 1 << 20;
/// Number of freed allocations that are remembered for error reports.
const MAX_FREED: usize = 1 << 16;

/// A memory region. It is accessed through raw pointers only, because several host threads run kernels
/// concurrently.
pub struct Region {
    /// Device address of the first byte.
    pub base: u64,
    /// Size in bytes.
    pub size: u64,
    /// Name in messages, for example `allocation 7 of device 0`.
    pub name: String,
    pub read_only: bool,
    data: *mut u8,
    /// Initialization marks, one byte for each byte of data: 1 if written. Null once all bytes are written.
    shadow: *mut u8,
}

// SAFETY: `data` and `shadow` are heap allocations owned by the region and are not bound to a thread.
unsafe impl Send for Region {}
// SAFETY: shared references give access through raw pointers only. Emulated kernels may race on the bytes, as
// on a GPU.
unsafe impl Sync for Region {}

impl Region {
    fn new(base: u64, size: u64, name: String) -> Option<Self> {
        let layout = layout(size)?;
        // SAFETY: `layout` never has size 0 (see `fn layout`).
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

    /// Returns a pointer to the byte at `offset`, valid while the region lives.
    pub fn data(&self, offset: u64) -> *mut u8 {
        self.data.wrapping_add(offset as usize)
    }

    /// Marks `len` bytes at `offset` as written.
    pub fn mark_written(&mut self, offset: u64, len: u64) {
        if self.shadow.is_null() {
            return;
        }
        if offset == 0 && len == self.size {
            self.drop_shadow();
            return;
        }
        // SAFETY: the shadow has `size` bytes, and `offset + len <= size` because callers pass offsets from
        // `Memory::find`.
        unsafe { self.shadow.add(offset as usize).write_bytes(1, len as usize) };
    }

    /// Returns one mark for each of the `len` bytes at `offset`, 1 if written; `None` if all are written.
    pub fn written_marks(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        self.first_unwritten(offset, len)?;
        // SAFETY: the shadow is not null because `first_unwritten` found an unwritten byte. It has `size`
        // bytes, and `offset + len <= size` because callers pass offsets from `Memory::find`.
        Some(unsafe { std::slice::from_raw_parts(self.shadow.add(offset as usize), len as usize) }.to_vec())
    }

    /// Sets marks obtained from [`Region::written_marks`].
    pub fn set_written_marks(&mut self, offset: u64, marks: &[u8]) {
        if !self.shadow.is_null() {
            // SAFETY: the shadow has `size` bytes, and `offset + marks.len() <= size` because callers pass
            // offsets from `Memory::find`.
            unsafe { self.shadow.add(offset as usize).copy_from(marks.as_ptr(), marks.len()) };
        }
    }

    /// Returns the offset of the first unwritten byte among the `len` bytes at `offset`.
    pub fn first_unwritten(&self, offset: u64, len: u64) -> Option<u64> {
        self.view().first_unwritten(offset, len)
    }

    /// Returns the location of the region, for accesses without a lookup.
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
            // SAFETY: `Region::new` allocated the shadow with this layout, and it is freed only here.
            unsafe { dealloc(self.shadow, layout) };
        }
        self.shadow = std::ptr::null_mut();
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.drop_shadow();
        if let (false, Some(layout)) = (self.data.is_null(), layout(self.size)) {
            // SAFETY: `Region::new` allocated `data` with this layout.
            unsafe { dealloc(self.data, layout) };
        }
    }
}

fn layout(size: u64) -> Option<Layout> {
    Layout::from_size_align(usize::try_from(size).ok()?.max(1), 64).ok()
}

/// The location of a memory region on the device and in the host process.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// Device address of the first byte.
    pub base: u64,
    /// Size in bytes.
    pub size: u64,
    /// Address of the first byte in the host process.
    pub data: *mut u8,
    /// Initialization marks, one byte for each byte of data: 1 if written. Null if all bytes are written.
    pub shadow: *mut u8,
    pub read_only: bool,
}

// SAFETY: the pointers belong to a region or to pinned memory, neither of which is bound to a thread.
unsafe impl Send for View {}
// SAFETY: a view gives access through raw pointers only, like a region.
unsafe impl Sync for View {}

impl View {
    /// An empty view that contains no address.
    pub const NONE: Self = Self {
        base: 0,
        size: 0,
        data: std::ptr::null_mut(),
        shadow: std::ptr::null_mut(),
        read_only: true,
    };

    /// Returns the offset of an access, or `None` if it is out of bounds.
    #[inline(always)]
    pub fn offset(&self, address: u64, len: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.base);
        (offset < self.size && len <= self.size - offset).then_some(offset)
    }

    /// Returns the offset of the first unwritten byte among the `len` bytes at `offset`, which must be in
    /// bounds.
    #[inline(always)]
    pub fn first_unwritten(&self, offset: u64, len: u64) -> Option<u64> {
        if self.shadow.is_null() {
            return None;
        }
        // SAFETY: the shadow has `size` bytes, and `offset` is the result of `View::offset` or `Memory::find`
        // for `len` bytes. Another thread can only change a mark from 0 to 1, and both values are accepted.
        let marks = unsafe { std::slice::from_raw_parts(self.shadow.add(offset as usize), len as usize) };
        let all = marks.iter().fold(1, |all, mark| all & mark);
        if all == 1 {
            return None;
        }
        marks.iter().position(|mark| *mark == 0).map(|i| offset + i as u64)
    }

    /// Marks `len` bytes at `offset` as written; the range must be in bounds.
    #[inline(always)]
    pub fn mark_written(&self, offset: u64, len: u64) {
        if !self.shadow.is_null() {
            // SAFETY: the shadow has `size` bytes, and `offset` is the result of `View::offset` for `len`
            // bytes.
            unsafe { self.shadow.add(offset as usize).write_bytes(1, len as usize) };
        }
    }
}

/// The memory of a device.
pub struct Memory {
    device: u32,
    /// Allocations, sorted by base address.
    regions: Vec<Region>,
    freed: Vec<(u64, u64, String)>,
    next: u64,
    count: u64,
}

/// A failed address lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupError {
    pub kind: Kind,
    /// Description of the address relative to the nearest allocation.
    pub description: String,
}

impl Memory {
    /// Creates the memory of device number `device`.
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

    /// Returns the number of the device that owns the address range of `address`.
    pub fn device_of(address: u64) -> Option<u32> {
        (address >> DEVICE_BITS)
            .checked_sub(FIRST_DEVICE)
            .and_then(|d| u32::try_from(d).ok())
    }

    /// Allocates `size` bytes and returns their address, or `None` if the host process is out of memory.
    pub fn allocate(&mut self, size: u64, kind: &str) -> Option<u64> {
        self.count += 1;
        let base = self.next;
        self.regions.push(Region::new(
            base,
            size,
            format!("{kind} {} of device {}", self.count, self.device),
        )?);
        self.next = (base + size + GUARD).next_multiple_of(ALIGN);
        Some(base)
    }

    /// Frees the allocation at `base`; false if there is none.
    pub fn free(&mut self, base: u64) -> bool {
        let Ok(at) = self.regions.binary_search_by_key(&base, |r| r.base) else {
            return false;
        };
        let region = self.regions.remove(at);
        if self.freed.len() == MAX_FREED {
            self.freed.remove(0);
        }
        self.freed.push((region.base, region.size, region.name.clone()));
        true
    }

    /// Returns the number of allocated bytes.
    pub fn used(&self) -> u64 {
        self.regions.iter().map(|r| r.size).sum()
    }

    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the index of the region that contains the access, and the offset within it.
    pub fn find(&self, address: u64, len: u64) -> Result<(usize, u64), LookupError> {
        let at = self.regions.partition_point(|r| r.base <= address);
        if let Some(i) = at.checked_sub(1)
            && let Some(offset) = self.regions[i].view().offset(address, len)
        {
            return Ok((i, offset));
        }
        Err(LookupError {
            kind: Kind::OutOfBounds,
            description: self.describe_address(address, len),
        })
    }

    pub fn region_mut(&mut self, i: usize) -> &mut Region {
        &mut self.regions[i]
    }

    /// Describes an invalid address relative to the nearest allocation.
    fn describe_address(&self, address: u64, len: u64) -> String {
        let freed = self
            .freed
            .iter()
            .rev()
            .find(|(base, size, _)| address >= *base && address < base + size);
        if let Some((base, size, name)) = freed {
            return format!("offset {} is in {name} ({size} bytes), which was freed", address - base);
        }
        let at = self.regions.partition_point(|r| r.base <= address);
        if let Some(before) = at.checked_sub(1).map(|i| &self.regions[i])
            && address < before.base + before.size + GUARD
        {
            let offset = address - before.base;
            return format!(
                "{} has {} bytes, but the access covers {len} bytes at offset {offset}",
                before.name, before.size
            );
        }
        match self.regions.get(at) {
            Some(after) if after.base - address < GUARD => {
                format!("the address is {} bytes before {}", after.base - address, after.name)
            }
            _ => "no allocation is near this address".into(),
        }
    }
}
