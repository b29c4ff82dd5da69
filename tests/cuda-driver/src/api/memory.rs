//! Memory: allocations, copies, fills.

use super::error::Error;
use super::state::{Driver, Handle, Outcome};
use super::work::Work;
use super::{driver_functions, put};
use std::ffi::{c_int, c_uint, c_void};

impl Driver {
    fn allocate(&mut self, device: u32, size: u64) -> Outcome<u64> {
        if size == 0 {
            return Err(Error::INVALID_VALUE);
        }
        self.count_allocation()?;
        if size > self.free_bytes(device) {
            return Err(Error::OUT_OF_MEMORY);
        }
        self.devices[device as usize]
            .memory
            .allocate(size, "allocation")
            .ok_or(Error::OUT_OF_MEMORY)
    }

    /// One more allocation, which may be the one that is to fail.
    pub fn count_allocation(&mut self) -> Outcome {
        self.allocations += 1;
        if self.config.fail_alloc == Some(self.allocations) {
            Err(Error::OUT_OF_MEMORY)
        } else {
            Ok(())
        }
    }

    fn free_bytes(&self, device: u32) -> u64 {
        let used = self.devices[device as usize].memory.used() + self.config.used;
        self.config.memory.saturating_sub(used)
    }

    /// Memory of a failed device is given back, too, and the error told.
    fn free(&mut self, address: u64) -> Outcome {
        self.initialized()?;
        if address == 0 {
            return Ok(());
        }
        let device = crate::device::memory::Memory::device_of(address).ok_or(Error::INVALID_VALUE)?;
        let state = self.devices.get_mut(device as usize).ok_or(Error::INVALID_VALUE)?;
        let was_there = state.memory.free(address);
        self.forget_accesses(address);
        self.working(device)?;
        if was_there { Ok(()) } else { Err(Error::INVALID_VALUE) }
    }

    /// A copy that ends before the call does, in the default stream.
    fn copy_now(&mut self, to: u64, from: u64, len: usize) -> Outcome {
        let (stream, device) = self.stream_key(std::ptr::null_mut())?;
        self.submit(
            stream,
            device,
            Work::Copy {
                to,
                from,
                len: len as u64,
            },
        )?;
        self.host_waits_for_stream(stream);
        self.working(device)
    }

    fn copy_later(&mut self, to: u64, from: u64, len: usize, stream: Handle) -> Outcome {
        let (stream, device) = self.stream_key(stream)?;
        self.submit(
            stream,
            device,
            Work::Copy {
                to,
                from,
                len: len as u64,
            },
        )
    }

    fn fill(&mut self, to: u64, value: u32, width: u32, count: usize, stream: Handle) -> Outcome {
        let (stream, device) = self.stream_key(stream)?;
        if !to.is_multiple_of(u64::from(width)) {
            return Err(Error::INVALID_VALUE);
        }
        self.submit(
            stream,
            device,
            Work::Fill {
                to,
                value,
                width,
                count: count as u64,
            },
        )
    }
}

driver_functions! {
    /// Free and all memory of the current device, in bytes.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |driver| {
        let device = driver.current()?;
        put(free, driver.free_bytes(device) as usize)?;
        put(total, driver.config.memory as usize)
    }

    /// Memory of the current device.
    fn cuMemAlloc_v2(address: *mut u64, size: usize) |driver| {
        let device = driver.current()?;
        driver.refuse_in_capture(device)?;
        let allocated = driver.allocate(device, size as u64)?;
        put(address, allocated)
    }

    /// The end of an allocation.
    fn cuMemFree_v2(address: u64) |driver| {
        driver.free(address)
    }

    /// Memory of a stream's device, from its pool.
    fn cuMemAllocAsync(address: *mut u64, size: usize, stream: Handle) |driver| {
        let (_, device) = driver.stream_key(stream)?;
        let allocated = driver.allocate(device, size as u64)?;
        put(address, allocated)
    }

    /// Memory of a pool's device.
    fn cuMemAllocFromPoolAsync(address: *mut u64, size: usize, pool: Handle, stream: Handle) |driver| {
        driver.stream_key(stream)?;
        let device = *driver.pools.get(&(pool as u64)).ok_or(Error::INVALID_HANDLE)?;
        let allocated = driver.allocate(device, size as u64)?;
        put(address, allocated)
    }

    /// The end of such an allocation.
    fn cuMemFreeAsync(address: u64, stream: Handle) |driver| {
        let known = driver.stream_key(stream).map(drop);
        driver.free(address)?;
        known
    }

    /// Base and size of the allocation that an address lies in.
    fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, address: u64) |driver| {
        let (device, region, _) = driver.find(address, 1)?.ok_or(Error::INVALID_VALUE)?;
        let region = &driver.devices[device].memory.regions()[region];
        put(base, region.base)?;
        put(size, region.size as usize)
    }

    /// Pinned memory.
    fn cuMemHostAlloc(pointer: *mut *mut c_void, size: usize, flags: c_uint) |driver| {
        driver.current()?;
        let data = driver.allocate_host(size, flags)?;
        put(pointer, data.cast())
    }

    /// As `cuMemHostAlloc`.
    fn cuMemAllocHost_v2(pointer: *mut *mut c_void, size: usize) |driver| {
        driver.current()?;
        let data = driver.allocate_host(size, 0)?;
        put(pointer, data.cast())
    }

    /// The end of pinned memory.
    fn cuMemFreeHost(pointer: *mut c_void) |driver| {
        driver.free_host(pointer)
    }

    /// The device's address of pinned memory: the same.
    fn cuMemHostGetDevicePointer_v2(address: *mut u64, pointer: *mut c_void, _flags: c_uint) |driver| {
        driver.current()?;
        let host = driver.pinned_mut(pointer as u64).ok_or(Error::INVALID_VALUE)?;
        host.is_mapped = true;
        put(address, pointer as u64)
    }

    /// The host to the device, at once.
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, len: usize) |driver| {
        driver.copy_now(to, from as u64, len)
    }

    /// The device to the host, at once.
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: usize) |driver| {
        driver.copy_now(to as u64, from, len)
    }

    /// Within devices, at once.
    fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) |driver| {
        driver.copy_now(to, from, len)
    }

    /// Any to any, at once.
    fn cuMemcpy(to: u64, from: u64, len: usize) |driver| {
        driver.copy_now(to, from, len)
    }

    /// The host to the device, in a stream.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, len: usize, stream: Handle) |driver| {
        driver.copy_later(to, from as u64, len, stream)
    }

    /// The device to the host, in a stream.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, stream: Handle) |driver| {
        driver.copy_later(to as u64, from, len, stream)
    }

    /// Within devices, in a stream.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: Handle) |driver| {
        driver.copy_later(to, from, len, stream)
    }

    /// Any to any, in a stream.
    fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: Handle) |driver| {
        driver.copy_later(to, from, len, stream)
    }

    /// From device to device, at once.
    fn cuMemcpyPeer(to: u64, _to_context: Handle, from: u64, _from_context: Handle, len: usize) |driver| {
        driver.copy_now(to, from, len)
    }

    /// From device to device, in a stream.
    fn cuMemcpyPeerAsync(to: u64, _to_context: Handle, from: u64, _from_context: Handle, len: usize, stream: Handle) |driver| {
        driver.copy_later(to, from, len, stream)
    }

    /// Bytes of one value.
    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) |driver| {
        driver.fill(to, value.into(), 1, count, std::ptr::null_mut())
    }

    /// Pairs of bytes of one value.
    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) |driver| {
        driver.fill(to, value.into(), 2, count, std::ptr::null_mut())
    }

    /// Words of one value.
    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) |driver| {
        driver.fill(to, value, 4, count, std::ptr::null_mut())
    }

    /// Bytes of one value, in a stream.
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) |driver| {
        driver.fill(to, value.into(), 1, count, stream)
    }

    /// Pairs of bytes of one value, in a stream.
    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle) |driver| {
        driver.fill(to, value.into(), 2, count, stream)
    }

    /// Words of one value, in a stream.
    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle) |driver| {
        driver.fill(to, value, 4, count, stream)
    }

    /// A device's own pool.
    fn cuDeviceGetDefaultMemPool(pool: *mut Handle, device: c_int) |driver| {
        let device = driver.device(device)?;
        let key = 0x800 + 16 * u64::from(device);
        driver.pools.insert(key, device);
        put(pool, key as Handle)
    }

    /// The pool that a device allocates from.
    fn cuDeviceGetMemPool(pool: *mut Handle, device: c_int) |driver| {
        let device = driver.device(device)?;
        let key = 0x800 + 16 * u64::from(device);
        driver.pools.insert(key, device);
        put(pool, key as Handle)
    }

    /// What a pool keeps changes nothing here: it keeps nothing.
    fn cuMemPoolSetAttribute(pool: Handle, _attribute: c_uint, _value: *mut c_void) |driver| {
        driver.pools.get(&(pool as u64)).map(drop).ok_or(Error::INVALID_HANDLE)
    }

    /// Bytes in use for the attributes that ask for them (7 and 8), 0 for the others.
    fn cuMemPoolGetAttribute(pool: Handle, attribute: c_uint, value: *mut c_void) |driver| {
        let device = *driver.pools.get(&(pool as u64)).ok_or(Error::INVALID_HANDLE)?;
        let used = driver.devices[device as usize].memory.used();
        match attribute {
            1..=3 => put(value.cast::<c_int>(), 0),
            7 | 8 => put(value.cast::<u64>(), used),
            _ => put(value.cast::<u64>(), 0),
        }
    }

    /// Nothing is kept.
    fn cuMemPoolTrimTo(pool: Handle, _keep: usize) |driver| {
        driver.pools.get(&(pool as u64)).map(drop).ok_or(Error::INVALID_HANDLE)
    }

    /// A property of an address: 2 is the kind of memory, 3 and 4 its addresses, 9 its device.
    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_uint, address: u64) |driver| {
        let place = driver.find(address, 1)?;
        if place.is_none() && !driver.is_pinned(address, 1) {
            return Err(Error::INVALID_VALUE);
        }
        match attribute {
            2 => put(value.cast::<c_uint>(), if place.is_some() { 2 } else { 1 }),
            3 | 4 => put(value.cast::<u64>(), address),
            9 => put(value.cast::<c_int>(), place.map_or(0, |(device, ..)| device as c_int)),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}
