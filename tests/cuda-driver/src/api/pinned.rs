//! Pinned memory of the host. What a stream copies to it arrives when the host waits for that, and not before: a program that does not wait
//! reads what was there earlier.

use super::error::Error;
use super::state::{Driver, Outcome};
use crate::device::memory::View;
use crate::device::order::Clock;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;

/// Boundary of pinned memory.
const PAGE: usize = 4096;
/// Flag of allocations that kernels touch.
const MAPPED: u32 = 2;

/// Pinned memory.
pub struct Pinned {
    /// Its place.
    pub view: View,
    /// Whether kernels may touch it. To such memory copies are made at once.
    pub is_mapped: bool,
    layout: Layout,
}

/// A copy to pinned memory that the host did not wait for yet.
pub struct Delivery {
    stream: u64,
    time: u64,
    to: u64,
    bytes: Vec<u8>,
}

impl Driver {
    /// New pinned memory, which is zeros.
    pub fn allocate_host(&mut self, size: usize, flags: u32) -> Outcome<*mut u8> {
        if size == 0 {
            return Err(Error::INVALID_VALUE);
        }
        self.count_allocation()?;
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| Error::OUT_OF_MEMORY)?;
        // SAFETY: the size is not 0.
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
        self.hosts.push(Pinned {
            view,
            is_mapped: flags & MAPPED != 0,
            layout,
        });
        Ok(data)
    }

    /// The end of pinned memory.
    pub fn free_host(&mut self, pointer: *mut c_void) -> Outcome {
        self.initialized()?;
        if pointer.is_null() {
            return Ok(());
        }
        let at = self
            .hosts
            .iter()
            .position(|h| h.view.base == pointer as u64)
            .ok_or(Error::INVALID_VALUE)?;
        let host = self.hosts.swap_remove(at);
        self.forget_accesses(host.view.base);
        self.deliveries.retain(|d| host.view.offset(d.to, 1).is_none());
        // SAFETY: it was allocated with this layout.
        unsafe { dealloc(host.view.data, host.layout) };
        Ok(())
    }

    /// Whether bytes lie in pinned memory.
    pub fn is_pinned(&self, address: u64, len: u64) -> bool {
        self.hosts.iter().any(|h| h.view.offset(address, len).is_some())
    }

    /// The pinned memory that an address lies in.
    pub fn pinned_mut(&mut self, address: u64) -> Option<&mut Pinned> {
        self.hosts.iter_mut().find(|h| h.view.offset(address, 1).is_some())
    }

    /// Bytes that a stream copied to the host: they arrive when the host waits, or at once where nobody could tell the difference.
    pub fn deliver(&mut self, stream: u64, to: u64, bytes: &[u8]) {
        let is_later = self.pinned_mut(to).is_some_and(|host| !host.is_mapped);
        if is_later && self.config.order {
            let time = self.order.clock(stream).get(&stream).copied().unwrap_or_default();
            self.deliveries.push(Delivery {
                stream,
                time,
                to,
                bytes: bytes.to_vec(),
            });
            return;
        }
        write(to, bytes);
    }

    /// What was copied to these bytes arrives, since a copy reads them.
    pub fn deliver_for(&mut self, from: u64, len: u64) {
        self.deliver_if(|d| d.to < from + len && from < d.to + d.bytes.len() as u64);
    }

    /// The host waits for all work of a clock.
    pub fn host_waits(&mut self, clock: &Clock) {
        self.order.host_waits(clock);
        self.deliver_if(|d| clock.get(&d.stream).is_some_and(|time| *time >= d.time));
    }

    fn deliver_if(&mut self, arrives: impl Fn(&Delivery) -> bool) {
        self.deliveries.retain(|delivery| {
            let arrives = arrives(delivery);
            if arrives {
                write(delivery.to, &delivery.bytes);
            }
            !arrives
        });
    }
}

fn write(to: u64, bytes: &[u8]) {
    // SAFETY: the program gave a place for these bytes, or it is pinned memory that is not freed.
    unsafe { (to as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
}
