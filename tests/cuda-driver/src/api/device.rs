//! Devices and contexts.

use super::error::Error;
use super::state::{Driver, Handle, Outcome};
use super::{driver_functions, put};
use crate::exec::block::PROCESSORS;
use std::ffi::{CStr, c_char, c_int, c_uint};

/// Shared memory that a block may use without asking, in bytes.
pub const SHARED_DEFAULT: u32 = 48 << 10;

impl Driver {
    /// Shared memory that a block may ask for, in bytes.
    pub fn shared_max(&self) -> u32 {
        match self.config.sm {
            80 | 87 => 163 << 10,
            86 | 89 | 120..=129 => 99 << 10,
            90..=119 => 227 << 10,
            _ => SHARED_DEFAULT,
        }
    }

    /// Of those that programs ask for; others that there are have the value 0.
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
            self.end_context(device);
        }
        Ok(())
    }

    /// What is left in a context ends with it, and is reported.
    pub fn end_context(&mut self, device: u32) {
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
    // SAFETY: the program gave room for `len` characters.
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
        super::control::at_exit();
        Ok(())
    }

    /// The CUDA version that the driver supports, before `cuInit`, too.
    fn cuDriverGetVersion(version: *mut c_int) |driver| {
        put(version, driver.config.driver)
    }

    /// How many devices there are.
    fn cuDeviceGetCount(count: *mut c_int) |driver| {
        driver.initialized()?;
        put(count, driver.config.devices as c_int)
    }

    /// A device by number.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |driver| {
        let found = driver.device(ordinal)?;
        put(device, found as c_int)
    }

    /// A device's name.
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) |driver| {
        driver.device(device)?;
        copy_text(c"Emulated CUDA device", name, len)
    }

    /// A device's number for all programs.
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) |driver| {
        let number = driver.device(device)?;
        let mut bytes = *b"emulated device\0";
        bytes[15] = number as u8;
        put(uuid, bytes)
    }

    /// As `cuDeviceGetUuid_v2`.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) |driver| {
        let number = driver.device(device)?;
        let mut bytes = *b"emulated device\0";
        bytes[15] = number as u8;
        put(uuid, bytes)
    }

    /// A device's memory in bytes.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |driver| {
        driver.device(device)?;
        put(bytes, driver.config.memory as usize)
    }

    /// A property of a device.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) |driver| {
        driver.device(device)?;
        put(value, driver.attribute(attribute).ok_or(Error::INVALID_VALUE)?)
    }

    /// Where a device is plugged in.
    fn cuDeviceGetPCIBusId(name: *mut c_char, len: c_int, device: c_int) |driver| {
        driver.device(device)?;
        copy_text(c"0000:00:00.0", name, len)
    }

    /// Whether a device can reach another one's memory.
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) |driver| {
        let (device, peer) = (driver.device(device)?, driver.device(peer)?);
        put(can, c_int::from(driver.config.peer && device != peer))
    }

    /// A property of a pair of devices: 2 is access, others are 0.
    fn cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_uint, device: c_int, peer: c_int) |driver| {
        let (device, peer) = (driver.device(device)?, driver.device(peer)?);
        put(value, c_int::from(attribute == 2 && driver.config.peer && device != peer))
    }

    /// The context of a device, which lives until it is released as often.
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) |driver| {
        let device = driver.device(device)?;
        driver.working(device)?;
        if driver.config.busy {
            return Err(Error::DEVICE_UNAVAILABLE);
        }
        driver.devices[device as usize].retained += 1;
        put(context, Driver::context_handle(Some(device)))
    }

    /// The end of a use of a device's context.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) |driver| {
        let device = driver.device(device)?;
        driver.release_context(device)
    }

    /// The end of all uses.
    fn cuDevicePrimaryCtxReset_v2(device: c_int) |driver| {
        let device = driver.device(device)?;
        driver.end_context(device);
        Ok(())
    }

    /// Whether a device's context is in use.
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) |driver| {
        let device = driver.device(device)?;
        put(flags, 0)?;
        put(active, c_int::from(driver.devices[device as usize].retained > 0))
    }

    /// How threads wait changes nothing here.
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) |driver| {
        driver.device(device).map(drop)
    }

    /// Makes a context that of the calling thread.
    fn cuCtxSetCurrent(context: Handle) |driver| {
        driver.initialized()?;
        Driver::set_current(driver.context(context)?);
        Ok(())
    }

    /// The calling thread's context.
    fn cuCtxGetCurrent(context: *mut Handle) |driver| {
        driver.initialized()?;
        put(context, Driver::context_handle(Driver::get_current()))
    }

    /// As `cuCtxSetCurrent`, until it is popped.
    fn cuCtxPushCurrent_v2(context: Handle) |driver| {
        driver.initialized()?;
        Driver::push_current(driver.context(context)?);
        Ok(())
    }

    /// Back to the context before.
    fn cuCtxPopCurrent_v2(context: *mut Handle) |driver| {
        driver.initialized()?;
        let left = Driver::pop_current();
        if context.is_null() { Ok(()) } else { put(context, Driver::context_handle(left)) }
    }

    /// The device of the calling thread's context.
    fn cuCtxGetDevice(device: *mut c_int) |driver| {
        let current = driver.current_or_failed()?;
        put(device, current as c_int)
    }

    /// Waits for all work of the context.
    fn cuCtxSynchronize() |driver| {
        let device = driver.current()?;
        driver.refuse_in_capture(device)?;
        driver.host_waits_for_device(device);
        Ok(())
    }

    /// The version of contexts.
    fn cuCtxGetApiVersion(_context: Handle, version: *mut c_uint) |driver| {
        put(version, driver.config.driver as c_uint)
    }

    /// How threads wait changes nothing here.
    fn cuCtxSetFlags(_flags: c_uint) |driver| {
        driver.current().map(drop)
    }

    /// A limit of the context: those of the emulated device are not reached.
    fn cuCtxSetLimit(_limit: c_uint, _value: usize) |driver| {
        driver.current().map(drop)
    }

    /// A limit of the context.
    fn cuCtxGetLimit(value: *mut usize, _limit: c_uint) |driver| {
        driver.current()?;
        put(value, 1 << 20)
    }

    /// The least and greatest priority of streams.
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |driver| {
        driver.current()?;
        put(least, 0)?;
        put(greatest, -5)
    }

    /// Lets the current context's kernels touch another one's memory.
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

    /// The end of that.
    fn cuCtxDisablePeerAccess(peer: Handle) |driver| {
        let device = driver.current()?;
        let peer = driver.context(peer)?.ok_or(Error::INVALID_CONTEXT)?;
        let allowed = &mut driver.devices[device as usize].peers[peer as usize];
        if std::mem::replace(allowed, false) { Ok(()) } else { Err(Error::PEER_ACCESS_NOT_ENABLED) }
    }

    /// The name of an error.
    fn cuGetErrorName(error: c_uint, name: *mut *const c_char) |_driver| {
        let (text, _) = Error(error).describe().ok_or(Error::INVALID_VALUE)?;
        put(name, text.as_ptr())
    }

    /// The description of an error.
    fn cuGetErrorString(error: c_uint, text: *mut *const c_char) |_driver| {
        let (_, description) = Error(error).describe().ok_or(Error::INVALID_VALUE)?;
        put(text, description.as_ptr())
    }

    /// The start of a profile, which nobody makes here.
    fn cuProfilerStart() |driver| {
        driver.current().map(drop)
    }

    /// Its end.
    fn cuProfilerStop() |driver| {
        driver.current().map(drop)
    }
}
