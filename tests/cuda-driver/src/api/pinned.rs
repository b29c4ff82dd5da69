//! Pinned host memory. A copy to pinned memory becomes visible only when the host waits for it, so that a
//! program with a missing wait reads stale data.

use super::error::Error;
use super::state::{Driver, Outcome, PendingCopy, Pinned};
use crate::device::memory::View;
use crate::device::order::Clock;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;

/// Alignment of pinned memory in bytes.
const PAGE: usize = 4096;
/// `CU_MEMHOSTALLOC_DEVICEMAP`: kernels can access the allocation.
const MAPPED: u32 = 2;

impl Driver {
    /// Allocates zeroed pinned memory.
    pub fn allocate_host(&mut self, size: usize, flags: u32) -> Outcome<*mut u8> {
        if size == 0 {
            return Err(Error::INVALID_VALUE);
        }
        self.count_allocation()?;
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| Error::OUT_OF_MEMORY)?;
        // SAFETY: `size` is not 0 (checked above).
        let data = unsafe { alloc_zeroed(layout) };
        if data.is_null() {
            return Err(Error::OUT_OF_MEMORY);
        }
        let view = View {
            base: data as u64,
            size: size as u64,
            data,
            shadow: std::ptr::null_mut(),
            read_only: false,
        };
        self.pinned.push(Pinned {
            view,
            is_mapped: flags & MAPPED != 0,
            layout,
        });
        Ok(data)
    }

    /// Frees pinned memory and drops pending copies to it.
    pub fn free_host(&mut self, pointer: *mut c_void) -> Outcome {
        self.check_initialized()?;
        if pointer.is_null() {
            return Ok(());
        }
        let at = self
            .pinned
            .iter()
            .position(|h| h.view.base == pointer as u64)
            .ok_or(Error::INVALID_VALUE)?;
        let host = self.pinned.swap_remove(at);
        self.forget_accesses(host.view.base);
        self.pending_copies.retain(|d| host.view.offset(d.to, 1).is_none());
        // SAFETY: `allocate_host` allocated the memory with this layout, and its entry was just removed.
        unsafe { dealloc(host.view.data, host.layout) };
        Ok(())
    }

    /// Returns true if the whole range is in one pinned allocation.
    pub fn is_pinned(&self, address: u64, len: u64) -> bool {
        self.pinned.iter().any(|h| h.view.offset(address, len).is_some())
    }

    /// Returns the pinned allocation that contains `address`.
    pub fn pinned_mut(&mut self, address: u64) -> Option<&mut Pinned> {
        self.pinned.iter_mut().find(|h| h.view.offset(address, 1).is_some())
    }

    /// Delivers bytes that a stream copied to the host: to pinned memory when the host waits, otherwise
    /// immediately.
    pub fn deliver(&mut self, stream: u64, to: u64, bytes: &[u8]) {
        let is_later = self.pinned_mut(to).is_some_and(|host| !host.is_mapped);
        if is_later && self.config.order {
            let time = self.order.clock(stream).get(&stream).copied().unwrap_or_default();
            self.pending_copies.push(PendingCopy {
                stream,
                time,
                to,
                bytes: bytes.to_vec(),
            });
            return;
        }
        write(to, bytes);
    }

    /// Delivers pending copies to the given range, because another copy reads it.
    pub fn deliver_range(&mut self, from: u64, len: u64) {
        self.deliver_if(|d| d.to < from + len && from < d.to + d.bytes.len() as u64);
    }

    /// Orders later work after the work covered by `clock` and delivers its copies.
    pub fn host_waits(&mut self, clock: &Clock) {
        self.order.host_waits(clock);
        self.deliver_if(|d| clock.get(&d.stream).is_some_and(|time| *time >= d.time));
    }

    fn deliver_if(&mut self, arrives: impl Fn(&PendingCopy) -> bool) {
        self.pending_copies.retain(|copy| {
            let arrives = arrives(copy);
            if arrives {
                write(copy.to, &copy.bytes);
            }
            !arrives
        });
    }
}

fn write(to: u64, bytes: &[u8]) {
    // SAFETY: `to` is valid for `bytes.len()` bytes: host memory that the program passed to a copy function,
    // or pinned memory. `free_host` drops pending copies to freed memory.
    unsafe { (to as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
}
