//! Driver functions for devices and contexts.

use super::error::Error;
use super::state::{Driver, Handle, Outcome};
use super::{driver_functions, write_result};
use crate::exec::block::PROCESSORS;
use std::ffi::{CStr, c_char, c_int, c_uint};

/// Shared memory of a block without opt-in, in bytes.
pub const SHARED_DEFAULT: u32 = 48 << 10;

impl Driver {
    /// Returns the opt-in maximum of shared memory of a block, in bytes.
    pub fn shared_max(&self) -> u32 {
        match self.config.sm {
            75 => 64 << 10,
            80 | 87 => 163 << 10,
            86 | 89 | 120..=129 => 99 << 10,
            90..=119 => 227 << 10,
            _ => SHARED_DEFAULT,
        }
    }

    /// Returns the value of a `CUdevice_attribute`: 0 for attributes that are not emulated, `None` for
    /// unknown numbers.
    fn attribute(&self, attribute: c_uint) -> Option<i32> {
        let shared_max = self.shared_max() as i32;
        Some(match attribute {
            1..=3 => 1024,
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65535,
            8 => SHARED_DEFAULT as i32,
            9 => 65536,
            10 => 32,
            11 => i32::MAX,
            12 | 82 => 65536,
            13 => 1_980_000,
            14 => 512,
            15 | 19 | 31 | 41 | 115 => 1,
            16 => PROCESSORS as i32,
            36 => 2_619_000,
            37 => 5120,
            38 => 50 << 20,
            39 => 2048,
            40 => 3,
            75 => self.config.sm as i32 / 10,
            76 => self.config.sm as i32 % 10,
            81 => shared_max + 1024,
            97 => shared_max,
            106 => 32,
            111 => 1024,
            _ if (1..=150).contains(&attribute) => 0,
            _ => return None,
        })
    }

    fn release_context(&mut self, device: u32) -> Outcome {
        let n = &mut self.devices[device as usize].retained;
        *n = n.checked_sub(1).ok_or(Error::INVALID_CONTEXT)?;
        if *n == 0 {
            self.destroy_context(device);
        }
        Ok(())
    }

    /// Destroys everything in the context of a device and reports leaks.
    pub fn destroy_context(&mut self, device: u32) {
        self.report_leaks(device);
        self.streams.retain(|_, s| s.device != device);
        self.events.retain(|_, e| e.device != device);
        self.modules.retain(|_, m| m.device != device);
        self.functions.retain(|_, f| f.device != device);
        let state = &mut self.devices[device as usize];
        let bases: Vec<_> = state.memory.regions().iter().map(|r| r.base).collect();
        bases.into_iter().for_each(|base| {
            state.memory.free(base);
        });
        (state.failed, state.retained) = (None, 0);
    }
}

fn copy_text(text: &CStr, to: *mut c_char, len: c_int) -> Outcome {
    let bytes = text.to_bytes_with_nul();
    let n = bytes.len().min(usize::try_from(len).unwrap_or(0));
    if to.is_null() || n == 0 {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: `to` is valid for `len` bytes (contract of the driver functions), and `n <= len`.
    unsafe {
        to.cast::<u8>().copy_from(bytes.as_ptr(), n);
        to.add(n - 1).write(0);
    }
    Ok(())
}

driver_functions! {
    /// Initializes the driver.
    fn cuInit(flags: c_uint) |driver| {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        if driver.config.devices == 0 {
            return Err(Error::NO_DEVICE);
        }
        driver.is_initialized = true;
        super::control::register_exit_report();
        Ok(())
    }

    /// Returns the CUDA version of the driver. May be called before `cuInit`.
    fn cuDriverGetVersion(version: *mut c_int) |driver| {
        write_result(version, driver.config.driver)
    }

    /// Returns the number of devices.
    fn cuDeviceGetCount(count: *mut c_int) |driver| {
        driver.check_initialized()?;
        write_result(count, driver.config.devices as c_int)
    }

    /// Returns the device with the given ordinal.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |driver| {
        let found = driver.device(ordinal)?;
        write_result(device, found as c_int)
    }

    /// Returns the name of a device.
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) |driver| {
        driver.device(device)?;
        let text = if driver.config.geforce {
            c"Emulated GeForce device"
        } else {
            c"Emulated CUDA device"
        };
        copy_text(text, name, len)
    }

    /// Returns the UUID of a device.
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) |driver| {
        let number = driver.device(device)?;
        let mut bytes = *b"emulated device\0";
        bytes[15] = number as u8;
        write_result(uuid, bytes)
    }

    /// Returns the UUID of a device (older signature).
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) |driver| {
        let number = driver.device(device)?;
        let mut bytes = *b"emulated device\0";
        bytes[15] = number as u8;
        write_result(uuid, bytes)
    }

    /// Returns the memory size of a device in bytes.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |driver| {
        driver.device(device)?;
        write_result(bytes, driver.config.memory as usize)
    }

    /// Returns a device attribute.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) |driver| {
        driver.device(device)?;
        write_result(value, driver.attribute(attribute).ok_or(Error::INVALID_VALUE)?)
    }

    /// Returns the PCI bus ID of a device.
    fn cuDeviceGetPCIBusId(name: *mut c_char, len: c_int, device: c_int) |driver| {
        driver.device(device)?;
        copy_text(c"0000:00:00.0", name, len)
    }

    /// Returns whether `device` can access the memory of `peer`.
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) |driver| {
        let (device, peer) = (driver.device(device)?, driver.device(peer)?);
        write_result(can, c_int::from(driver.config.peer && device != peer))
    }

    /// Returns a peer attribute: 2 is access support, all others are 0.
    fn cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_uint, device: c_int, peer: c_int) |driver| {
        let (device, peer) = (driver.device(device)?, driver.device(peer)?);
        write_result(value, c_int::from(attribute == 2 && driver.config.peer && device != peer))
    }

    /// Retains the primary context of a device. Each call must be paired with a release.
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) |driver| {
        let device = driver.device(device)?;
        driver.check_not_failed(device)?;
        if driver.config.busy {
            return Err(Error::DEVICE_UNAVAILABLE);
        }
        driver.devices[device as usize].retained += 1;
        write_result(context, Driver::context_handle(Some(device)))
    }

    /// Releases the primary context of a device once.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) |driver| {
        let device = driver.device(device)?;
        driver.release_context(device)
    }

    /// Destroys the primary context of a device regardless of its reference count.
    fn cuDevicePrimaryCtxReset_v2(device: c_int) |driver| {
        let device = driver.device(device)?;
        driver.destroy_context(device);
        Ok(())
    }

    /// Returns whether the primary context of a device is retained.
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) |driver| {
        let device = driver.device(device)?;
        write_result(flags, 0)?;
        write_result(active, c_int::from(driver.devices[device as usize].retained > 0))
    }

    /// Accepts any flags; the scheduling mode of host threads has no effect.
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) |driver| {
        driver.device(device).map(drop)
    }

    /// Makes `context` current for the calling thread.
    fn cuCtxSetCurrent(context: Handle) |driver| {
        driver.check_initialized()?;
        Driver::set_current(driver.context(context)?);
        Ok(())
    }

    /// Returns the current context of the calling thread.
    fn cuCtxGetCurrent(context: *mut Handle) |driver| {
        driver.check_initialized()?;
        write_result(context, Driver::context_handle(Driver::get_current()))
    }

    /// Pushes `context` onto the context stack of the calling thread.
    fn cuCtxPushCurrent_v2(context: Handle) |driver| {
        driver.check_initialized()?;
        Driver::push_current(driver.context(context)?);
        Ok(())
    }

    /// Pops the current context from the stack of the calling thread.
    fn cuCtxPopCurrent_v2(context: *mut Handle) |driver| {
        driver.check_initialized()?;
        let left = Driver::pop_current();
        if context.is_null() { Ok(()) } else { write_result(context, Driver::context_handle(left)) }
    }

    /// Returns the device of the current context.
    fn cuCtxGetDevice(device: *mut c_int) |driver| {
        let current = driver.current_or_failed()?;
        write_result(device, current as c_int)
    }

    /// Waits for all work of the current context.
    fn cuCtxSynchronize() |driver| {
        let device = driver.current()?;
        driver.reject_context_wait(device)?;
        driver.host_waits_for_device(device);
        Ok(())
    }

    /// Returns the API version of a context.
    fn cuCtxGetApiVersion(_context: Handle, version: *mut c_uint) |driver| {
        write_result(version, driver.config.driver as c_uint)
    }

    /// Accepts any flags; the scheduling mode of host threads has no effect.
    fn cuCtxSetFlags(_flags: c_uint) |driver| {
        driver.current().map(drop)
    }

    /// Accepts any limit; the emulated device does not enforce limits.
    fn cuCtxSetLimit(_limit: c_uint, _value: usize) |driver| {
        driver.current().map(drop)
    }

    /// Returns a fixed value for every limit.
    fn cuCtxGetLimit(value: *mut usize, _limit: c_uint) |driver| {
        driver.current()?;
        write_result(value, 1 << 20)
    }

    /// Returns the lowest and the highest stream priority.
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |driver| {
        driver.current()?;
        write_result(least, 0)?;
        write_result(greatest, -5)
    }

    /// Allows kernels of the current context to access the memory of `peer`.
    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) |driver| {
        let device = driver.current()?;
        let peer = driver.context(peer)?.ok_or(Error::INVALID_CONTEXT)?;
        if !driver.config.peer || device == peer {
            return Err(Error::PEER_ACCESS_UNSUPPORTED);
        }
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        let allowed = &mut driver.devices[device as usize].peers[peer as usize];
        if std::mem::replace(allowed, true) { Err(Error::PEER_ACCESS_ALREADY_ENABLED) } else { Ok(()) }
    }

    /// Revokes the access granted by `cuCtxEnablePeerAccess`.
    fn cuCtxDisablePeerAccess(peer: Handle) |driver| {
        let device = driver.current()?;
        let peer = driver.context(peer)?.ok_or(Error::INVALID_CONTEXT)?;
        let allowed = &mut driver.devices[device as usize].peers[peer as usize];
        if std::mem::replace(allowed, false) { Ok(()) } else { Err(Error::PEER_ACCESS_NOT_ENABLED) }
    }

    /// Returns the name of an error.
    fn cuGetErrorName(error: c_uint, name: *mut *const c_char) |_driver| {
        let (text, _) = Error(error).describe().ok_or(Error::INVALID_VALUE)?;
        write_result(name, text.as_ptr())
    }

    /// Returns the description of an error.
    fn cuGetErrorString(error: c_uint, text: *mut *const c_char) |_driver| {
        let (_, description) = Error(error).describe().ok_or(Error::INVALID_VALUE)?;
        write_result(text, description.as_ptr())
    }

    /// Does nothing, because profiling is not emulated.
    fn cuProfilerStart() |driver| {
        driver.current().map(drop)
    }

    /// Does nothing, because profiling is not emulated.
    fn cuProfilerStop() |driver| {
        driver.current().map(drop)
    }
}
