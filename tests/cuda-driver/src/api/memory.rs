//! Driver functions for allocations, copies, and fills.

use super::error::Error;
use super::state::{Driver, Handle, Outcome};
use super::work::Work;
use super::{driver_functions, write_result};
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

    /// Counts an allocation and fails if the setting `fail_alloc` selects it.
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

    /// Frees an allocation, even on a failed device, whose error is then returned.
    fn free(&mut self, address: u64) -> Outcome {
        self.check_initialized()?;
        if address == 0 {
            return Ok(());
        }
        let device = crate::device::memory::Memory::device_of(address).ok_or(Error::INVALID_VALUE)?;
        if device as usize >= self.devices.len() {
            return Err(Error::INVALID_VALUE);
        }
        self.reject_during_capture(device)?;
        let state = &mut self.devices[device as usize];
        let was_allocated = state.memory.free(address);
        self.forget_accesses(address);
        self.check_not_failed(device)?;
        if was_allocated {
            Ok(())
        } else {
            Err(Error::INVALID_VALUE)
        }
    }

    /// Copies synchronously in the default stream.
    fn copy_sync(&mut self, to: u64, from: u64, len: usize) -> Outcome {
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
        self.check_not_failed(device)
    }

    fn copy_async(&mut self, to: u64, from: u64, len: usize, stream: Handle) -> Outcome {
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
    /// Returns the free and the total memory of the current device in bytes.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |driver| {
        let device = driver.current()?;
        write_result(free, driver.free_bytes(device) as usize)?;
        write_result(total, driver.config.memory as usize)
    }

    /// Allocates memory on the current device.
    fn cuMemAlloc_v2(address: *mut u64, size: usize) |driver| {
        let device = driver.current()?;
        driver.reject_during_capture(device)?;
        let allocated = driver.allocate(device, size as u64)?;
        write_result(address, allocated)
    }

    /// Frees an allocation.
    fn cuMemFree_v2(address: u64) |driver| {
        driver.free(address)
    }

    /// Allocates memory on the device of a stream.
    fn cuMemAllocAsync(address: *mut u64, size: usize, stream: Handle) |driver| {
        let (_, device) = driver.stream_key(stream)?;
        let allocated = driver.allocate(device, size as u64)?;
        write_result(address, allocated)
    }

    /// Allocates memory on the device of a pool.
    fn cuMemAllocFromPoolAsync(address: *mut u64, size: usize, pool: Handle, stream: Handle) |driver| {
        driver.stream_key(stream)?;
        let device = *driver.pools.get(&(pool as u64)).ok_or(Error::INVALID_HANDLE)?;
        let allocated = driver.allocate(device, size as u64)?;
        write_result(address, allocated)
    }

    /// Frees an allocation made by `cuMemAllocAsync`.
    fn cuMemFreeAsync(address: u64, stream: Handle) |driver| {
        let known = driver.stream_key(stream).map(drop);
        driver.free(address)?;
        known
    }

    /// Returns the base address and size of the allocation that contains `address`.
    fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, address: u64) |driver| {
        let (device, region, _) = driver.find(address, 1)?.ok_or(Error::INVALID_VALUE)?;
        let region = &driver.devices[device].memory.regions()[region];
        write_result(base, region.base)?;
        write_result(size, region.size as usize)
    }

    /// Allocates pinned host memory.
    fn cuMemHostAlloc(pointer: *mut *mut c_void, size: usize, flags: c_uint) |driver| {
        let device = driver.current()?;
        driver.reject_during_capture(device)?;
        let data = driver.allocate_host(size, flags)?;
        write_result(pointer, data.cast())
    }

    /// Allocates pinned host memory without flags.
    fn cuMemAllocHost_v2(pointer: *mut *mut c_void, size: usize) |driver| {
        let device = driver.current()?;
        driver.reject_during_capture(device)?;
        let data = driver.allocate_host(size, 0)?;
        write_result(pointer, data.cast())
    }

    /// Frees pinned host memory.
    fn cuMemFreeHost(pointer: *mut c_void) |driver| {
        driver.free_host(pointer)
    }

    /// Returns the device address of pinned memory, which equals its host address.
    fn cuMemHostGetDevicePointer_v2(address: *mut u64, pointer: *mut c_void, _flags: c_uint) |driver| {
        driver.current()?;
        let host = driver.pinned_mut(pointer as u64).ok_or(Error::INVALID_VALUE)?;
        host.is_mapped = true;
        write_result(address, pointer as u64)
    }

    /// Copies from host to device synchronously.
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, len: usize) |driver| {
        driver.copy_sync(to, from as u64, len)
    }

    /// Copies from device to host synchronously.
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: usize) |driver| {
        driver.copy_sync(to as u64, from, len)
    }

    /// Copies from device to device synchronously.
    fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) |driver| {
        driver.copy_sync(to, from, len)
    }

    /// Copies between any two addresses synchronously.
    fn cuMemcpy(to: u64, from: u64, len: usize) |driver| {
        driver.copy_sync(to, from, len)
    }

    /// Copies from host to device in a stream.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, len: usize, stream: Handle) |driver| {
        driver.copy_async(to, from as u64, len, stream)
    }

    /// Copies from device to host in a stream.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, stream: Handle) |driver| {
        driver.copy_async(to as u64, from, len, stream)
    }

    /// Copies from device to device in a stream.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: Handle) |driver| {
        driver.copy_async(to, from, len, stream)
    }

    /// Copies between any two addresses in a stream.
    fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: Handle) |driver| {
        driver.copy_async(to, from, len, stream)
    }

    /// Copies between devices synchronously.
    fn cuMemcpyPeer(to: u64, _to_context: Handle, from: u64, _from_context: Handle, len: usize) |driver| {
        driver.copy_sync(to, from, len)
    }

    /// Copies between devices in a stream.
    fn cuMemcpyPeerAsync(to: u64, _to_context: Handle, from: u64, _from_context: Handle, len: usize, stream: Handle) |driver| {
        driver.copy_async(to, from, len, stream)
    }

    /// Fills memory with an 8-bit value.
    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) |driver| {
        driver.fill(to, value.into(), 1, count, std::ptr::null_mut())
    }

    /// Fills memory with a 16-bit value.
    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) |driver| {
        driver.fill(to, value.into(), 2, count, std::ptr::null_mut())
    }

    /// Fills memory with a 32-bit value.
    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) |driver| {
        driver.fill(to, value, 4, count, std::ptr::null_mut())
    }

    /// Fills memory with an 8-bit value in a stream.
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) |driver| {
        driver.fill(to, value.into(), 1, count, stream)
    }

    /// Fills memory with a 16-bit value in a stream.
    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle) |driver| {
        driver.fill(to, value.into(), 2, count, stream)
    }

    /// Fills memory with a 32-bit value in a stream.
    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle) |driver| {
        driver.fill(to, value, 4, count, stream)
    }

    /// Returns the default memory pool of a device.
    fn cuDeviceGetDefaultMemPool(pool: *mut Handle, device: c_int) |driver| {
        let device = driver.device(device)?;
        let key = 0x800 + 16 * u64::from(device);
        driver.pools.insert(key, device);
        write_result(pool, key as Handle)
    }

    /// Returns the current memory pool of a device, which is always the default pool.
    fn cuDeviceGetMemPool(pool: *mut Handle, device: c_int) |driver| {
        let device = driver.device(device)?;
        let key = 0x800 + 16 * u64::from(device);
        driver.pools.insert(key, device);
        write_result(pool, key as Handle)
    }

    /// Accepts any attribute; an emulated pool keeps no freed memory.
    fn cuMemPoolSetAttribute(pool: Handle, _attribute: c_uint, _value: *mut c_void) |driver| {
        driver.pools.get(&(pool as u64)).map(drop).ok_or(Error::INVALID_HANDLE)
    }

    /// Returns a pool attribute: the bytes in use for attributes 7 and 8, otherwise 0.
    fn cuMemPoolGetAttribute(pool: Handle, attribute: c_uint, value: *mut c_void) |driver| {
        let device = *driver.pools.get(&(pool as u64)).ok_or(Error::INVALID_HANDLE)?;
        let used = driver.devices[device as usize].memory.used();
        match attribute {
            1..=3 => write_result(value.cast::<c_int>(), 0),
            7 | 8 => write_result(value.cast::<u64>(), used),
            _ => write_result(value.cast::<u64>(), 0),
        }
    }

    /// Checks the handle; an emulated pool keeps no freed memory to trim.
    fn cuMemPoolTrimTo(pool: Handle, _keep: usize) |driver| {
        driver.pools.get(&(pool as u64)).map(drop).ok_or(Error::INVALID_HANDLE)
    }

    /// Returns an attribute of an address: 2 is the memory type, 3 and 4 are its device and host address, 9
    /// is the device.
    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_uint, address: u64) |driver| {
        let location = driver.find(address, 1)?;
        if location.is_none() && !driver.is_pinned(address, 1) {
            return Err(Error::INVALID_VALUE);
        }
        match attribute {
            2 => write_result(value.cast::<c_uint>(), if location.is_some() { 2 } else { 1 }),
            3 | 4 => write_result(value.cast::<u64>(), address),
            9 => write_result(value.cast::<c_int>(), location.map_or(0, |(device, ..)| device as c_int)),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}
