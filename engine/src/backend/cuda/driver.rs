//! The call layer: driver functions that return `Result`. Does not track ownership.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use super::code::Code;
use super::raw::{self, Driver, cu, driver};

/// Error of a driver call.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call}: {name}: {text}")]
pub(super) struct CudaError {
    /// Name of the driver function.
    pub(super) call: &'static str,
    /// Error code.
    pub(super) code: u32,
    /// Name of the code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(super) name: String,
    /// Description of the code, as returned by the driver.
    pub(super) text: String,
}

impl CudaError {
    /// Returns true if the device was out of memory.
    pub(super) fn is_out_of_memory(&self) -> bool {
        self.code == cu::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32
    }

    /// Returns true if the driver rejected the code of a module, so that another form of the code may load.
    pub(super) fn refuses_code(&self) -> bool {
        self.code == INVALID_PTX || self.refuses_form()
    }

    /// Returns true if the driver rejected the form of the code, so that it rejects every module of this form.
    pub(super) fn refuses_form(&self) -> bool {
        REFUSED_FORMS.contains(&self.code)
    }

    /// Returns true if the driver rejected a kernel or its launch and left the GPU unchanged. Another kernel can run
    /// instead.
    pub(super) fn refuses_kernel(&self) -> bool {
        self.refuses_code() || REFUSED_LAUNCHES.contains(&self.code)
    }

    /// Returns true if the driver or the device may have rejected an early launch, and left the GPU unchanged.
    pub(super) fn refuses_early_launch(&self) -> bool {
        REFUSED_ATTRIBUTES.contains(&self.code)
    }

    /// Adds the kernel whose launch returned the error. Later launches also return errors of earlier kernels, unless
    /// `CUDA_LAUNCH_BLOCKING` is set.
    pub(super) fn at_launch_of(mut self, kernel: &str) -> CudaError {
        self.text = format!("{}, at the launch of {kernel}", self.text);
        self
    }

    /// Appends the first lines of a log: of `errors`, or of `notes` if there are no errors.
    fn with_log(mut self, errors: &[u8], notes: &[u8]) -> CudaError {
        let text = |log| CStr::from_bytes_until_nul(log).unwrap_or_default().to_string_lossy();
        let (errors, notes) = (text(errors), text(notes));
        let log = if errors.trim().is_empty() { notes } else { errors };
        let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if !lines.is_empty() {
            let first = lines[..lines.len().min(JIT_LOG_LINES)].join("; ");
            self.text = format!("{}: {first}", self.text);
        }
        self
    }
}

/// Code of a successful call.
const SUCCESS: u32 = cu::CUresult::CUDA_SUCCESS as u32;
/// Code of a query for work that is not done yet.
const NOT_READY: u32 = cu::CUresult::CUDA_ERROR_NOT_READY as u32;

/// Code of a request that was already granted.
const ALREADY_ENABLED: u32 = cu::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as u32;

const INVALID_PTX: u32 = cu::CUresult::CUDA_ERROR_INVALID_PTX as u32;

/// Codes for a form of code that the driver or the device does not support.
const REFUSED_FORMS: [u32; 5] = [
    cu::CUresult::CUDA_ERROR_INVALID_IMAGE as u32,
    cu::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU as u32,
    cu::CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND as u32,
    cu::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION as u32,
    cu::CUresult::CUDA_ERROR_JIT_COMPILATION_DISABLED as u32,
];

/// Error codes for launches that the driver or the device does not support. Launches also return the errors of earlier
/// kernels, whose codes are not in this list.
const REFUSED_LAUNCHES: [u32; 4] = [
    cu::CUresult::CUDA_ERROR_INVALID_VALUE as u32,
    cu::CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES as u32,
    cu::CUresult::CUDA_ERROR_NOT_FOUND as u32,
    cu::CUresult::CUDA_ERROR_NOT_SUPPORTED as u32,
];

/// Codes for attributes of a launch that the driver or the device does not support.
const REFUSED_ATTRIBUTES: [u32; 2] = [
    cu::CUresult::CUDA_ERROR_INVALID_VALUE as u32,
    cu::CUresult::CUDA_ERROR_NOT_SUPPORTED as u32,
];

/// First CUDA version whose graphs have the dependencies of early launches.
const EARLY_LAUNCHES: i32 = 12030;

/// Size of the buffers for the output of the driver's compiler, and number of lines to report.
const JIT_LOG_BYTES: usize = 4096;
const JIT_LOG_LINES: usize = 3;

/// Code of a missing symbol.
const NOT_FOUND: u32 = cu::CUresult::CUDA_ERROR_NOT_FOUND as u32;

/// Signature of `cuEventElapsedTime`.
type ElapsedFn = unsafe extern "C" fn(*mut f32, cu::CUevent, cu::CUevent) -> u32;

/// Signature of functions that return the name or description of a code.
type DescribeFn = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;

pub(super) type Result<T> = std::result::Result<T, CudaError>;

/// Device attributes.
#[derive(Clone, Copy)]
pub(super) enum Attribute {
    ComputeMajor,
    ComputeMinor,
    Multiprocessors,
    /// Shared memory of a block, including memory that kernels opt in to.
    MaxSharedBytes,
}

/// Arguments of a kernel launch.
pub(super) struct LaunchArguments {
    pub(super) function: cu::CUfunction,
    /// Number of blocks in each dimension.
    pub(super) grid: [u32; 3],
    /// Number of threads per block.
    pub(super) block: u32,
    /// Dynamic shared memory per block in bytes.
    pub(super) shared: u32,
    pub(super) stream: cu::CUstream,
    /// Address of the kernel's only parameter, a struct.
    pub(super) parameter: *const c_void,
}

impl Driver {
    /// Converts a return code to a `Result`.
    fn check(self, call: &'static str, code: u32) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let text = |describe: DescribeFn| {
            let mut text = ptr::null();
            // SAFETY: the driver stores the address of a static string, or null.
            let known = unsafe { describe(code, &mut text) } == SUCCESS && !text.is_null();
            if !known {
                return "unknown".to_owned();
            }
            // SAFETY: the string is static and zero-terminated.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(CudaError {
            call,
            code,
            // SAFETY: `cuGetErrorName` has this signature.
            name: text(unsafe { raw::at(raw::driver_function(self, c"cuGetErrorName")) }),
            // SAFETY: `cuGetErrorString` has this signature.
            text: text(unsafe { raw::at(raw::driver_function(self, c"cuGetErrorString")) }),
        })
    }

    /// Initializes the driver. Must be called first; further calls do nothing.
    pub(super) fn init(self) -> Result<()> {
        // SAFETY: the function takes no pointers.
        self.check("cuInit", unsafe { driver!(self, cuInit(0)) })
    }

    /// Returns the CUDA version that the driver supports: 1000 * major + 10 * minor.
    pub(super) fn version(self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: the out-parameter is valid.
        self.check("cuDriverGetVersion", unsafe {
            driver!(self, cuDriverGetVersion(&mut version))
        })?;
        Ok(version)
    }

    /// Returns true if the driver supports [`Driver::launch_early`], also in captures.
    pub(super) fn has_early_launches(self) -> bool {
        let has_function = raw::driver_function(self, c"cuLaunchKernelEx") != 0;
        has_function && self.version().is_ok_and(|version| version >= EARLY_LAUNCHES)
    }

    /// Returns the number of devices.
    pub(super) fn device_count(self) -> Result<i32> {
        let mut n = 0;
        // SAFETY: the out-parameter is valid.
        self.check("cuDeviceGetCount", unsafe { driver!(self, cuDeviceGetCount(&mut n)) })?;
        Ok(n)
    }

    /// Returns the device with this index.
    pub(super) fn device(self, ordinal: i32) -> Result<cu::CUdevice> {
        let mut device = 0;
        // SAFETY: the out-parameter is valid.
        self.check("cuDeviceGet", unsafe {
            driver!(self, cuDeviceGet(&mut device, ordinal))
        })?;
        Ok(device)
    }

    /// Returns the name of a device.
    pub(super) fn device_name(self, device: cu::CUdevice) -> Result<String> {
        let mut name = [0u8; 256];
        // SAFETY: at most `name.len()` bytes are written to `name`.
        let code = unsafe {
            driver!(
                self,
                cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device)
            )
        };
        self.check("cuDeviceGetName", code)?;
        let text = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// Returns the total memory of a device in bytes.
    pub(super) fn device_memory(self, device: cu::CUdevice) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the out-parameter is valid.
        self.check("cuDeviceTotalMem", unsafe {
            driver!(self, cuDeviceTotalMem_v2(&mut bytes, device))
        })?;
        Ok(bytes)
    }

    /// Returns an attribute of a device.
    pub(super) fn attribute(self, device: cu::CUdevice, attribute: Attribute) -> Result<i32> {
        use cu::CUdevice_attribute::*;
        let attribute = match attribute {
            Attribute::ComputeMajor => CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            Attribute::ComputeMinor => CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            Attribute::Multiprocessors => CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            Attribute::MaxSharedBytes => CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        };
        let mut value = 0;
        // SAFETY: the out-parameter is valid.
        let code = unsafe { driver!(self, cuDeviceGetAttribute(&mut value, attribute, device)) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    /// Retains the primary context of a device, which all users in this process share. Each call must be
    /// matched by a release.
    pub(super) fn retain_context(self, device: cu::CUdevice) -> Result<cu::CUcontext> {
        let mut context = ptr::null_mut();
        // SAFETY: the out-parameter is valid.
        let code = unsafe { driver!(self, cuDevicePrimaryCtxRetain(&mut context, device)) };
        self.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(context)
    }

    /// Releases the primary context of a device.
    ///
    /// # Safety
    /// The caller has retained the context and no longer uses anything created in it.
    pub(super) unsafe fn release_context(self, device: cu::CUdevice) -> Result<()> {
        // SAFETY: the context is retained and no longer used (function contract).
        let code = unsafe { driver!(self, cuDevicePrimaryCtxRelease_v2(device)) };
        self.check("cuDevicePrimaryCtxRelease", code)
    }

    /// Makes a context current on the calling thread.
    ///
    /// # Safety
    /// The context is retained.
    pub(super) unsafe fn set_context(self, context: cu::CUcontext) -> Result<()> {
        // SAFETY: the context is retained (function contract).
        self.check("cuCtxSetCurrent", unsafe { driver!(self, cuCtxSetCurrent(context)) })
    }

    /// Waits for all work enqueued in the current context.
    pub(super) fn synchronize_context(self) -> Result<()> {
        // SAFETY: the function takes no pointers.
        self.check("cuCtxSynchronize", unsafe { driver!(self, cuCtxSynchronize()) })
    }

    /// Returns the free and total memory of the current context's device in bytes.
    pub(super) fn memory_info(self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the out-parameters are valid.
        self.check("cuMemGetInfo", unsafe {
            driver!(self, cuMemGetInfo_v2(&mut free, &mut total))
        })?;
        Ok((free, total))
    }

    /// Allocates uninitialized device memory. `bytes` must not be 0.
    pub(super) fn allocate(self, bytes: usize) -> Result<cu::CUdeviceptr> {
        let mut address = 0;
        // SAFETY: the out-parameter is valid.
        self.check("cuMemAlloc", unsafe {
            driver!(self, cuMemAlloc_v2(&mut address, bytes))
        })?;
        Ok(address)
    }

    /// Frees device memory.
    ///
    /// # Safety
    /// The address comes from [`allocate`](Driver::allocate), and the memory is no longer used.
    pub(super) unsafe fn free(self, address: cu::CUdeviceptr) -> Result<()> {
        // SAFETY: the address is valid and unused (function contract).
        self.check("cuMemFree", unsafe { driver!(self, cuMemFree_v2(address)) })
    }

    /// Allocates uninitialized pinned host memory, which devices access directly. `bytes` must not be 0.
    pub(super) fn allocate_pinned(self, bytes: usize) -> Result<*mut c_void> {
        let mut address = ptr::null_mut();
        // SAFETY: the out-parameter is valid.
        let code = unsafe { driver!(self, cuMemHostAlloc(&mut address, bytes, cu::CU_MEMHOSTALLOC_PORTABLE)) };
        self.check("cuMemHostAlloc", code)?;
        Ok(address)
    }

    /// Frees pinned host memory.
    ///
    /// # Safety
    /// The address comes from [`allocate_pinned`](Driver::allocate_pinned), and the memory is no longer used.
    pub(super) unsafe fn free_pinned(self, address: *mut c_void) -> Result<()> {
        // SAFETY: the address is valid and unused (function contract).
        self.check("cuMemFreeHost", unsafe { driver!(self, cuMemFreeHost(address)) })
    }

    /// Enqueues a copy of `bytes` bytes to the device.
    ///
    /// # Safety
    /// Both sides are valid for `bytes` bytes until the copy is done.
    pub(super) unsafe fn copy_to_device(
        self,
        to: cu::CUdeviceptr,
        from: *const c_void,
        bytes: usize,
        stream: cu::CUstream,
    ) -> Result<()> {
        // SAFETY: both sides are valid until the copy is done (function contract).
        let code = unsafe { driver!(self, cuMemcpyHtoDAsync_v2(to, from, bytes, stream)) };
        self.check("cuMemcpyHtoDAsync", code)
    }

    /// Enqueues a copy of `bytes` bytes from the device.
    ///
    /// # Safety
    /// Both sides are valid for `bytes` bytes until the copy is done.
    pub(super) unsafe fn copy_to_host(
        self,
        to: *mut c_void,
        from: cu::CUdeviceptr,
        bytes: usize,
        stream: cu::CUstream,
    ) -> Result<()> {
        // SAFETY: both sides are valid until the copy is done (function contract).
        let code = unsafe { driver!(self, cuMemcpyDtoHAsync_v2(to, from, bytes, stream)) };
        self.check("cuMemcpyDtoHAsync", code)
    }

    /// Enqueues a copy of `bytes` bytes between devices: directly if peer access is enabled, otherwise
    /// through the host.
    ///
    /// # Safety
    /// Both sides are valid for `bytes` bytes in memory of the given contexts until the copy is done. The
    /// stream belongs to the receiving context.
    pub(super) unsafe fn copy_between(
        self,
        (to, to_context): (cu::CUdeviceptr, cu::CUcontext),
        (from, from_context): (cu::CUdeviceptr, cu::CUcontext),
        bytes: usize,
        stream: cu::CUstream,
    ) -> Result<()> {
        // SAFETY: both sides are valid until the copy is done (function contract).
        let code = unsafe {
            driver!(
                self,
                cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, stream)
            )
        };
        self.check("cuMemcpyPeerAsync", code)
    }

    /// Returns true if a device can access the memory of another device directly.
    pub(super) fn can_reach(self, device: cu::CUdevice, other: cu::CUdevice) -> Result<bool> {
        let mut can = 0;
        // SAFETY: the out-parameter is valid.
        let code = unsafe { driver!(self, cuDeviceCanAccessPeer(&mut can, device, other)) };
        self.check("cuDeviceCanAccessPeer", code).map(|()| can != 0)
    }

    /// Gives the current context direct access to the memory of another context. Repeated calls do nothing.
    ///
    /// # Safety
    /// The other context is retained.
    pub(super) unsafe fn reach(self, other: cu::CUcontext) -> Result<()> {
        // SAFETY: the other context is retained (function contract).
        match unsafe { driver!(self, cuCtxEnablePeerAccess(other, 0)) } {
            ALREADY_ENABLED => Ok(()),
            code => self.check("cuCtxEnablePeerAccess", code),
        }
    }

    /// Enqueues zeroing of `bytes` bytes of device memory.
    ///
    /// # Safety
    /// The memory is valid for `bytes` bytes until the operation is done.
    pub(super) unsafe fn zero(self, at: cu::CUdeviceptr, bytes: usize, stream: cu::CUstream) -> Result<()> {
        // SAFETY: the memory is valid until the operation is done (function contract).
        self.check("cuMemsetD8Async", unsafe {
            driver!(self, cuMemsetD8Async(at, 0, bytes, stream))
        })
    }

    /// Creates a stream that does not synchronize with the default stream.
    pub(super) fn create_stream(self) -> Result<cu::CUstream> {
        let mut stream = ptr::null_mut();
        let flags = cu::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: the out-parameter is valid.
        self.check("cuStreamCreate", unsafe {
            driver!(self, cuStreamCreate(&mut stream, flags))
        })?;
        Ok(stream)
    }

    /// Destroys a stream.
    ///
    /// # Safety
    /// The stream is alive, and its handle is not used afterwards.
    pub(super) unsafe fn destroy_stream(self, stream: cu::CUstream) -> Result<()> {
        // SAFETY: the stream is alive and no longer used (function contract).
        self.check("cuStreamDestroy", unsafe { driver!(self, cuStreamDestroy_v2(stream)) })
    }

    /// Waits until all work enqueued on a stream is done.
    ///
    /// # Safety
    /// The stream is alive.
    pub(super) unsafe fn synchronize_stream(self, stream: cu::CUstream) -> Result<()> {
        // SAFETY: the stream is alive (function contract).
        self.check("cuStreamSynchronize", unsafe {
            driver!(self, cuStreamSynchronize(stream))
        })
    }

    /// Creates an event without timing.
    pub(super) fn create_event(self) -> Result<cu::CUevent> {
        let mut event = ptr::null_mut();
        let flags = cu::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        // SAFETY: the out-parameter is valid.
        self.check("cuEventCreate", unsafe {
            driver!(self, cuEventCreate(&mut event, flags))
        })?;
        Ok(event)
    }

    /// Creates an event that records the time.
    pub(super) fn create_timed_event(self) -> Result<cu::CUevent> {
        let mut event = ptr::null_mut();
        // SAFETY: the out-parameter is valid.
        self.check("cuEventCreate", unsafe { driver!(self, cuEventCreate(&mut event, 0)) })?;
        Ok(event)
    }

    /// Returns the milliseconds between two events.
    ///
    /// # Safety
    /// The events are alive.
    pub(super) unsafe fn elapsed(self, start: cu::CUevent, end: cu::CUevent) -> Result<f32> {
        // `cudarc` declares only the successor of this function, which drivers before CUDA 12.8 lack.
        let address = raw::driver_function(self, c"cuEventElapsedTime");
        if address == 0 {
            return self.check("cuEventElapsedTime", NOT_FOUND).map(|()| 0.0);
        }
        let mut ms = 0.0;
        // SAFETY: the function at the address has this type, the events are alive (function contract), and the
        // out-parameter is valid.
        let code = unsafe { raw::at::<ElapsedFn>(address)(&mut ms, start, end) };
        self.check("cuEventElapsedTime", code)?;
        Ok(ms)
    }

    /// Destroys an event.
    ///
    /// # Safety
    /// The event is alive, and its handle is not used afterwards.
    pub(super) unsafe fn destroy_event(self, event: cu::CUevent) -> Result<()> {
        // SAFETY: the event is alive and no longer used (function contract).
        self.check("cuEventDestroy", unsafe { driver!(self, cuEventDestroy_v2(event)) })
    }

    /// Records an event after all work enqueued on a stream.
    ///
    /// # Safety
    /// Event and stream are alive.
    pub(super) unsafe fn record_event(self, event: cu::CUevent, stream: cu::CUstream) -> Result<()> {
        // SAFETY: event and stream are alive (function contract).
        self.check("cuEventRecord", unsafe { driver!(self, cuEventRecord(event, stream)) })
    }

    /// Makes later work of a stream wait for an event of any device.
    ///
    /// # Safety
    /// Event and stream are alive.
    pub(super) unsafe fn stream_waits(self, stream: cu::CUstream, event: cu::CUevent) -> Result<()> {
        // SAFETY: event and stream are alive (function contract).
        self.check("cuStreamWaitEvent", unsafe {
            driver!(self, cuStreamWaitEvent(stream, event, 0))
        })
    }

    /// Waits until the work before an event is done.
    ///
    /// # Safety
    /// The event is alive.
    pub(super) unsafe fn synchronize_event(self, event: cu::CUevent) -> Result<()> {
        // SAFETY: the event is alive (function contract).
        self.check("cuEventSynchronize", unsafe {
            driver!(self, cuEventSynchronize(event))
        })
    }

    /// Returns true if the work before an event is done.
    ///
    /// # Safety
    /// The event is alive.
    pub(super) unsafe fn event_is_done(self, event: cu::CUevent) -> Result<bool> {
        // SAFETY: the event is alive (function contract).
        match unsafe { driver!(self, cuEventQuery(event)) } {
            NOT_READY => Ok(false),
            code => self.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Loads a module. The error includes the first lines that the driver's compiler printed.
    pub(super) fn load_module(self, code: &Code) -> Result<cu::CUmodule> {
        use cu::CUjit_option::*;
        let (mut errors, mut notes) = ([0u8; JIT_LOG_BYTES], [0u8; JIT_LOG_BYTES]);
        let mut options = [
            CU_JIT_ERROR_LOG_BUFFER,
            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            CU_JIT_INFO_LOG_BUFFER,
            CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        ];
        // Sizes are passed as the value of a pointer.
        let len = ptr::without_provenance_mut(JIT_LOG_BYTES);
        let mut values = [errors.as_mut_ptr().cast(), len, notes.as_mut_ptr().cast(), len];
        let mut module = ptr::null_mut();
        // SAFETY: `Code` holds zero-terminated PTX or a complete ELF file, and both arrays have `options.len()`
        // elements. The log buffers have the given lengths, and the out-parameter is valid.
        let result = unsafe {
            let (n, options) = (options.len() as c_uint, options.as_mut_ptr());
            driver!(
                self,
                cuModuleLoadDataEx(&mut module, code.address(), n, options, values.as_mut_ptr())
            )
        };
        let loaded = self.check("cuModuleLoadDataEx", result);
        loaded.map_err(|error| error.with_log(&errors, &notes)).map(|()| module)
    }

    /// Unloads a module.
    ///
    /// # Safety
    /// The module is alive, and neither the module nor its functions are used afterwards.
    pub(super) unsafe fn unload_module(self, module: cu::CUmodule) -> Result<()> {
        // SAFETY: the module is alive and no longer used (function contract).
        self.check("cuModuleUnload", unsafe { driver!(self, cuModuleUnload(module)) })
    }

    /// Returns a kernel of a module.
    ///
    /// # Safety
    /// The module is alive.
    pub(super) unsafe fn function(self, module: cu::CUmodule, name: &CStr) -> Result<cu::CUfunction> {
        let mut function = ptr::null_mut();
        // SAFETY: the module is alive (function contract), and the out-parameter is valid.
        let code = unsafe { driver!(self, cuModuleGetFunction(&mut function, module, name.as_ptr())) };
        self.check("cuModuleGetFunction", code)?;
        Ok(function)
    }

    /// Permits launches of a kernel with this amount of dynamic shared memory.
    ///
    /// # Safety
    /// The function's module is alive.
    pub(super) unsafe fn allow_shared_memory(self, function: cu::CUfunction, bytes: u32) -> Result<()> {
        let attribute = cu::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function's module is alive (function contract).
        let code = unsafe { driver!(self, cuFuncSetAttribute(function, attribute, bytes as c_int)) };
        self.check("cuFuncSetAttribute", code)
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// Function and stream are alive, and `parameter` points to the kernel's parameter struct. All memory
    /// that the kernel accesses is valid until the kernel is done, and nothing else accesses it.
    pub(super) unsafe fn launch(self, launch: &LaunchArguments) -> Result<()> {
        let mut parameters = [launch.parameter.cast_mut()];
        // SAFETY: all handles and addresses are valid (function contract). The driver copies the parameter
        // before it returns.
        let code = unsafe {
            let [x, y, z] = launch.grid;
            let parameters = parameters.as_mut_ptr();
            driver!(
                self,
                cuLaunchKernel(
                    launch.function,
                    x,
                    y,
                    z,
                    launch.block,
                    1,
                    1,
                    launch.shared,
                    launch.stream,
                    parameters,
                    ptr::null_mut(),
                )
            )
        };
        self.check("cuLaunchKernel", code)
    }

    /// Enqueues a kernel whose blocks may start before the previous kernel of the stream is done (programmatic
    /// dependent launch).
    ///
    /// # Safety
    /// The conditions of [`Driver::launch`] hold, [`Driver::has_early_launches`] returned true, and each block of the
    /// kernel begins with `griddepcontrol.wait`.
    pub(super) unsafe fn launch_early(self, launch: &LaunchArguments) -> Result<()> {
        let mut attribute = cu::CUlaunchAttribute {
            id: cu::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: cu::CUlaunchAttributeValue { pad: [0; 64] },
        };
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let [x, y, z] = launch.grid;
        let config = cu::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: launch.stream,
            attrs: &mut attribute,
            numAttrs: 1,
        };
        let mut parameters = [launch.parameter.cast_mut()];
        // SAFETY: all handles and addresses are valid (function contract), and the function exists
        // (`has_early_launches`). The driver copies parameter and attribute before it returns.
        let code = unsafe {
            driver!(
                self,
                cuLaunchKernelEx(&config, launch.function, parameters.as_mut_ptr(), ptr::null_mut())
            )
        };
        self.check("cuLaunchKernelEx", code)
    }

    /// Starts capturing: work that this thread enqueues on the stream is recorded instead of executed.
    ///
    /// # Safety
    /// The stream is alive.
    pub(super) unsafe fn begin_capture(self, stream: cu::CUstream) -> Result<()> {
        let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive (function contract).
        self.check("cuStreamBeginCapture", unsafe {
            driver!(self, cuStreamBeginCapture_v2(stream, mode))
        })
    }

    /// Ends the capture and returns the recorded graph.
    ///
    /// # Safety
    /// The stream is alive.
    pub(super) unsafe fn end_capture(self, stream: cu::CUstream) -> Result<cu::CUgraph> {
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is alive (function contract), and the out-parameter is valid.
        let code = unsafe { driver!(self, cuStreamEndCapture(stream, &mut graph)) };
        self.check("cuStreamEndCapture", code)?;
        Ok(graph)
    }

    /// Converts a recorded graph to an executable graph. Destroys the recorded graph.
    ///
    /// # Safety
    /// The graph is alive, and its handle is not used afterwards.
    pub(super) unsafe fn instantiate(self, graph: cu::CUgraph) -> Result<cu::CUgraphExec> {
        let mut exec = ptr::null_mut();
        // SAFETY: the graph is alive (function contract), and the out-parameter is valid.
        let code = unsafe { driver!(self, cuGraphInstantiateWithFlags(&mut exec, graph, 0)) };
        // SAFETY: the graph is alive and no longer used (function contract).
        let _ = unsafe { driver!(self, cuGraphDestroy(graph)) };
        self.check("cuGraphInstantiate", code)?;
        Ok(exec)
    }

    /// Enqueues an executable graph.
    ///
    /// # Safety
    /// Graph and stream are alive. The conditions of [`launch`](Driver::launch) hold for each captured
    /// kernel.
    pub(super) unsafe fn launch_graph(self, exec: cu::CUgraphExec, stream: cu::CUstream) -> Result<()> {
        // SAFETY: the handles are alive, and all captured addresses are valid (function contract).
        self.check("cuGraphLaunch", unsafe { driver!(self, cuGraphLaunch(exec, stream)) })
    }

    /// Destroys an executable graph.
    ///
    /// # Safety
    /// The graph is alive, and its handle is not used afterwards.
    pub(super) unsafe fn destroy_exec(self, exec: cu::CUgraphExec) -> Result<()> {
        // SAFETY: the graph is alive and no longer used (function contract).
        self.check("cuGraphExecDestroy", unsafe { driver!(self, cuGraphExecDestroy(exec)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u32) -> CudaError {
        CudaError {
            call: "cuModuleLoadDataEx",
            code,
            name: "CUDA_ERROR".to_owned(),
            text: "refused".to_owned(),
        }
    }

    #[test]
    fn error_ends_with_first_lines_of_the_log() {
        let log = b"\nptxas fatal 1\n\n  line 2\nline 3\nline 4\n\0rest";
        let text = |errors: &[u8], notes: &[u8]| error(218).with_log(errors, notes).text;
        assert_eq!(text(log, b"notes\0"), "refused: ptxas fatal 1; line 2; line 3");
        assert_eq!(text(b"\0", b"notes\0"), "refused: notes");
        assert_eq!(text(b"\0", b"\0"), "refused");
    }

    /// Numbers of the CUDA driver API.
    #[test]
    fn refused_code_leads_to_another_form() {
        for code in [200, 209, 221, 222, 223] {
            assert!(error(code).refuses_form() && error(code).refuses_code(), "{code}");
        }
        assert!(error(218).refuses_code() && !error(218).refuses_form());
        for code in [1, 2, 700, 719, 999] {
            assert!(!error(code).refuses_code(), "{code}");
        }
    }

    /// Errors of earlier kernels do not lead to a substitute, since the context is lost.
    #[test]
    fn refused_launch_leads_to_substitute() {
        for code in [1, 209, 218, 701, 801] {
            assert!(error(code).refuses_kernel(), "{code}");
        }
        for code in [2, 214, 700, 702, 715, 719, 999] {
            assert!(!error(code).refuses_kernel(), "{code}");
        }
    }
}
