//! The middle floor: calls of the driver as results. Nothing here knows who owns what.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use super::raw::{self, Driver, cu, driver};

/// What a call of the driver failed with.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call}: {name}: {text}")]
pub(super) struct CudaError {
    /// The function.
    pub(super) call: &'static str,
    /// The code.
    pub(super) code: u32,
    /// Name of the code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(super) name: String,
    /// The driver's description.
    pub(super) text: String,
}

impl CudaError {
    /// True if there was not enough memory.
    pub(super) fn is_out_of_memory(&self) -> bool {
        self.code == cu::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32
    }
}

/// The code of a call that did what it was asked.
const SUCCESS: u32 = cu::CUresult::CUDA_SUCCESS as u32;
/// The code of a question about what is not done yet.
const NOT_READY: u32 = cu::CUresult::CUDA_ERROR_NOT_READY as u32;

/// The code of a request that was granted before.
const ALREADY_ENABLED: u32 = cu::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as u32;

/// A function that gives the name or the description of a code.
type DescribeFn = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;

pub(super) type Result<T> = std::result::Result<T, CudaError>;

/// What can be asked about a device.
#[derive(Clone, Copy)]
pub(super) enum Attribute {
    ComputeMajor,
    ComputeMinor,
    Multiprocessors,
}

impl Driver {
    /// The error of a call, if it is one.
    fn check(self, call: &'static str, code: u32) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let text = |describe: DescribeFn| {
            let mut text = ptr::null();
            // SAFETY: the driver stores the address of a text that it never frees, or none.
            let known = unsafe { describe(code, &mut text) } == SUCCESS && !text.is_null();
            if !known {
                return "unknown".to_owned();
            }
            // SAFETY: see above; the text ends with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(CudaError {
            call,
            code,
            // SAFETY: this is the function's type.
            name: text(unsafe { raw::at(raw::driver_function(self, c"cuGetErrorName")) }),
            // SAFETY: as above.
            text: text(unsafe { raw::at(raw::driver_function(self, c"cuGetErrorString")) }),
        })
    }

    /// Starts the driver. To be called before all else; calling it again does nothing.
    pub(super) fn init(self) -> Result<()> {
        // SAFETY: no memory is involved.
        self.check("cuInit", unsafe { driver!(self, cuInit(0)) })
    }

    /// Version of CUDA that the driver supports: 1000 times the major and 10 times the minor number.
    pub(super) fn version(self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: the number is written to `version`.
        self.check("cuDriverGetVersion", unsafe {
            driver!(self, cuDriverGetVersion(&mut version))
        })?;
        Ok(version)
    }

    /// Number of devices.
    pub(super) fn device_count(self) -> Result<i32> {
        let mut n = 0;
        // SAFETY: the number is written to `n`.
        self.check("cuDeviceGetCount", unsafe { driver!(self, cuDeviceGetCount(&mut n)) })?;
        Ok(n)
    }

    /// The device of this number.
    pub(super) fn device(self, ordinal: i32) -> Result<cu::CUdevice> {
        let mut device = 0;
        // SAFETY: the handle is written to `device`.
        self.check("cuDeviceGet", unsafe {
            driver!(self, cuDeviceGet(&mut device, ordinal))
        })?;
        Ok(device)
    }

    /// Name of a device.
    pub(super) fn device_name(self, device: cu::CUdevice) -> Result<String> {
        let mut name = [0u8; 256];
        // SAFETY: at most as many bytes as there are in `name` are written.
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

    /// Bytes of memory of a device.
    pub(super) fn device_memory(self, device: cu::CUdevice) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the number is written to `bytes`.
        self.check("cuDeviceTotalMem", unsafe {
            driver!(self, cuDeviceTotalMem_v2(&mut bytes, device))
        })?;
        Ok(bytes)
    }

    /// What a device says about itself.
    pub(super) fn attribute(self, device: cu::CUdevice, attribute: Attribute) -> Result<i32> {
        use cu::CUdevice_attribute::*;
        let attribute = match attribute {
            Attribute::ComputeMajor => CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            Attribute::ComputeMinor => CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            Attribute::Multiprocessors => CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        };
        let mut value = 0;
        // SAFETY: the number is written to `value`.
        let code = unsafe { driver!(self, cuDeviceGetAttribute(&mut value, attribute, device)) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    /// The context that all users of a device in this process share, to be released as often as it is retained.
    pub(super) fn retain_context(self, device: cu::CUdevice) -> Result<cu::CUcontext> {
        let mut context = ptr::null_mut();
        // SAFETY: the handle is written to `context`.
        let code = unsafe { driver!(self, cuDevicePrimaryCtxRetain(&mut context, device)) };
        self.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(context)
    }

    /// # Safety
    /// The context was retained, and the caller uses nothing of it any more.
    pub(super) unsafe fn release_context(self, device: cu::CUdevice) -> Result<()> {
        // SAFETY: the caller's promise.
        let code = unsafe { driver!(self, cuDevicePrimaryCtxRelease_v2(device)) };
        self.check("cuDevicePrimaryCtxRelease", code)
    }

    /// Makes a context the one that this thread's calls are about.
    ///
    /// # Safety
    /// The context is retained.
    pub(super) unsafe fn set_context(self, context: cu::CUcontext) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check("cuCtxSetCurrent", unsafe { driver!(self, cuCtxSetCurrent(context)) })
    }

    /// Waits for everything that the thread's context has queued.
    pub(super) fn synchronize_context(self) -> Result<()> {
        // SAFETY: no memory is involved.
        self.check("cuCtxSynchronize", unsafe { driver!(self, cuCtxSynchronize()) })
    }

    /// Free and total bytes of the memory of the thread's context.
    pub(super) fn memory_info(self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the numbers are written to `free` and `total`.
        self.check("cuMemGetInfo", unsafe {
            driver!(self, cuMemGetInfo_v2(&mut free, &mut total))
        })?;
        Ok((free, total))
    }

    /// Memory of the device, not initialized. `bytes` is not 0.
    pub(super) fn allocate(self, bytes: usize) -> Result<cu::CUdeviceptr> {
        let mut address = 0;
        // SAFETY: the address is written to `address`.
        self.check("cuMemAlloc", unsafe {
            driver!(self, cuMemAlloc_v2(&mut address, bytes))
        })?;
        Ok(address)
    }

    /// # Safety
    /// The address is from [`allocate`](Driver::allocate), and nothing uses the memory any more.
    pub(super) unsafe fn free(self, address: cu::CUdeviceptr) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check("cuMemFree", unsafe { driver!(self, cuMemFree_v2(address)) })
    }

    /// Host memory that stays where it is, so that the device reads and writes it by itself. Not initialized. `bytes` is not 0.
    pub(super) fn allocate_pinned(self, bytes: usize) -> Result<*mut c_void> {
        let mut address = ptr::null_mut();
        // SAFETY: the address is written to `address`.
        let code = unsafe { driver!(self, cuMemHostAlloc(&mut address, bytes, cu::CU_MEMHOSTALLOC_PORTABLE)) };
        self.check("cuMemHostAlloc", code)?;
        Ok(address)
    }

    /// # Safety
    /// The address is from [`allocate_pinned`](Driver::allocate_pinned), and nothing uses the memory any more.
    pub(super) unsafe fn free_pinned(self, address: *mut c_void) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check("cuMemFreeHost", unsafe { driver!(self, cuMemFreeHost(address)) })
    }

    /// Queues a copy of `bytes` bytes to the device.
    ///
    /// # Safety
    /// Both sides have as many bytes, until the copy is done.
    pub(super) unsafe fn copy_to_device(
        self,
        to: cu::CUdeviceptr,
        from: *const c_void,
        bytes: usize,
        stream: cu::CUstream,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let code = unsafe { driver!(self, cuMemcpyHtoDAsync_v2(to, from, bytes, stream)) };
        self.check("cuMemcpyHtoDAsync", code)
    }

    /// Queues a copy of `bytes` bytes from the device.
    ///
    /// # Safety
    /// Both sides have as many bytes, until the copy is done.
    pub(super) unsafe fn copy_to_host(
        self,
        to: *mut c_void,
        from: cu::CUdeviceptr,
        bytes: usize,
        stream: cu::CUstream,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let code = unsafe { driver!(self, cuMemcpyDtoHAsync_v2(to, from, bytes, stream)) };
        self.check("cuMemcpyDtoHAsync", code)
    }

    /// Queues a copy of `bytes` bytes from one device to another: directly where the receiving context may touch the other's memory, and through the
    /// host otherwise.
    ///
    /// # Safety
    /// Both sides have as many bytes, in memory of these contexts, until the copy is done. The stream is the receiving context's.
    pub(super) unsafe fn copy_between(
        self,
        (to, to_context): (cu::CUdeviceptr, cu::CUcontext),
        (from, from_context): (cu::CUdeviceptr, cu::CUcontext),
        bytes: usize,
        stream: cu::CUstream,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let code = unsafe {
            driver!(
                self,
                cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, stream)
            )
        };
        self.check("cuMemcpyPeerAsync", code)
    }

    /// True if a device can touch the memory of another one.
    pub(super) fn can_reach(self, device: cu::CUdevice, other: cu::CUdevice) -> Result<bool> {
        let mut can = 0;
        // SAFETY: the number is written to `can`.
        let code = unsafe { driver!(self, cuDeviceCanAccessPeer(&mut can, device, other)) };
        self.check("cuDeviceCanAccessPeer", code).map(|()| can != 0)
    }

    /// Lets the thread's context touch the memory of another device's. Once more does nothing.
    ///
    /// # Safety
    /// The other context is retained.
    pub(super) unsafe fn reach(self, other: cu::CUcontext) -> Result<()> {
        // SAFETY: the caller's promise.
        match unsafe { driver!(self, cuCtxEnablePeerAccess(other, 0)) } {
            ALREADY_ENABLED => Ok(()),
            code => self.check("cuCtxEnablePeerAccess", code),
        }
    }

    /// Queues setting `bytes` bytes of the device to 0.
    ///
    /// # Safety
    /// So many bytes are there, until this is done.
    pub(super) unsafe fn zero(self, at: cu::CUdeviceptr, bytes: usize, stream: cu::CUstream) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check("cuMemsetD8Async", unsafe {
            driver!(self, cuMemsetD8Async(at, 0, bytes, stream))
        })
    }

    /// A stream that does not wait for the context's default stream.
    pub(super) fn create_stream(self) -> Result<cu::CUstream> {
        let mut stream = ptr::null_mut();
        let flags = cu::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: the handle is written to `stream`.
        self.check("cuStreamCreate", unsafe {
            driver!(self, cuStreamCreate(&mut stream, flags))
        })?;
        Ok(stream)
    }

    /// # Safety
    /// The stream is alive; nobody uses the handle any more.
    pub(super) unsafe fn destroy_stream(self, stream: cu::CUstream) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check("cuStreamDestroy", unsafe { driver!(self, cuStreamDestroy_v2(stream)) })
    }

    /// Waits until everything queued on a stream is done.
    ///
    /// # Safety
    /// The stream is alive.
    pub(super) unsafe fn synchronize_stream(self, stream: cu::CUstream) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check("cuStreamSynchronize", unsafe {
            driver!(self, cuStreamSynchronize(stream))
        })
    }

    /// An event without a time.
    pub(super) fn create_event(self) -> Result<cu::CUevent> {
        let mut event = ptr::null_mut();
        let flags = cu::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        // SAFETY: the handle is written to `event`.
        self.check("cuEventCreate", unsafe {
            driver!(self, cuEventCreate(&mut event, flags))
        })?;
        Ok(event)
    }

    /// # Safety
    /// The event is alive; nobody uses the handle any more.
    pub(super) unsafe fn destroy_event(self, event: cu::CUevent) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check("cuEventDestroy", unsafe { driver!(self, cuEventDestroy_v2(event)) })
    }

    /// Puts an event behind what is queued on a stream.
    ///
    /// # Safety
    /// Both are alive.
    pub(super) unsafe fn record_event(self, event: cu::CUevent, stream: cu::CUstream) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check("cuEventRecord", unsafe { driver!(self, cuEventRecord(event, stream)) })
    }

    /// Later work of a stream waits for an event, of whatever device.
    ///
    /// # Safety
    /// Both are alive.
    pub(super) unsafe fn stream_waits(self, stream: cu::CUstream, event: cu::CUevent) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check("cuStreamWaitEvent", unsafe {
            driver!(self, cuStreamWaitEvent(stream, event, 0))
        })
    }

    /// Waits until what is before the event is done.
    ///
    /// # Safety
    /// The event is alive.
    pub(super) unsafe fn synchronize_event(self, event: cu::CUevent) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check("cuEventSynchronize", unsafe {
            driver!(self, cuEventSynchronize(event))
        })
    }

    /// True if what is before the event is done.
    ///
    /// # Safety
    /// The event is alive.
    pub(super) unsafe fn event_is_done(self, event: cu::CUevent) -> Result<bool> {
        // SAFETY: the caller's promise.
        match unsafe { driver!(self, cuEventQuery(event)) } {
            NOT_READY => Ok(false),
            code => self.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// A module of PTX.
    pub(super) fn load_module(self, ptx: &CStr) -> Result<cu::CUmodule> {
        let mut module = ptr::null_mut();
        // SAFETY: the text ends with a zero; the handle is written to `module`.
        let code = unsafe { driver!(self, cuModuleLoadData(&mut module, ptx.as_ptr().cast())) };
        self.check("cuModuleLoadData", code)?;
        Ok(module)
    }

    /// # Safety
    /// The module is alive; nobody uses it or its functions any more.
    pub(super) unsafe fn unload_module(self, module: cu::CUmodule) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check("cuModuleUnload", unsafe { driver!(self, cuModuleUnload(module)) })
    }

    /// A kernel of a module.
    ///
    /// # Safety
    /// The module is alive.
    pub(super) unsafe fn function(self, module: cu::CUmodule, name: &CStr) -> Result<cu::CUfunction> {
        let mut function = ptr::null_mut();
        // SAFETY: the caller's promise; the handle is written to `function`.
        let code = unsafe { driver!(self, cuModuleGetFunction(&mut function, module, name.as_ptr())) };
        self.check("cuModuleGetFunction", code)?;
        Ok(function)
    }

    /// Lets a kernel use so much dynamic shared memory.
    ///
    /// # Safety
    /// The function's module is alive.
    pub(super) unsafe fn allow_shared_memory(self, function: cu::CUfunction, bytes: u32) -> Result<()> {
        let attribute = cu::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the caller's promise.
        let code = unsafe { driver!(self, cuFuncSetAttribute(function, attribute, bytes as c_int)) };
        self.check("cuFuncSetAttribute", code)
    }

    /// Queues a kernel that has one parameter.
    ///
    /// # Safety
    /// Function and stream are alive; `parameter` points to what the kernel takes, and whatever memory the kernel uses is there until it is
    /// done and used by nobody else.
    pub(super) unsafe fn launch(
        self,
        function: cu::CUfunction,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        stream: cu::CUstream,
        parameter: *const c_void,
    ) -> Result<()> {
        let mut parameters = [parameter.cast_mut()];
        // SAFETY: the caller's promise; the driver copies the parameter before it returns.
        let code = unsafe {
            let [x, y, z] = grid;
            let parameters = parameters.as_mut_ptr();
            driver!(
                self,
                cuLaunchKernel(
                    function,
                    x,
                    y,
                    z,
                    block,
                    1,
                    1,
                    shared,
                    stream,
                    parameters,
                    ptr::null_mut(),
                )
            )
        };
        self.check("cuLaunchKernel", code)
    }

    /// From now on, what this thread queues on a stream is recorded and not done.
    ///
    /// # Safety
    /// The stream is alive.
    pub(super) unsafe fn begin_capture(self, stream: cu::CUstream) -> Result<()> {
        let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the caller's promise.
        self.check("cuStreamBeginCapture", unsafe {
            driver!(self, cuStreamBeginCapture_v2(stream, mode))
        })
    }

    /// Ends a capture. What was recorded.
    ///
    /// # Safety
    /// The stream is alive.
    pub(super) unsafe fn end_capture(self, stream: cu::CUstream) -> Result<cu::CUgraph> {
        let mut graph = ptr::null_mut();
        // SAFETY: the caller's promise; the handle is written to `graph`.
        let code = unsafe { driver!(self, cuStreamEndCapture(stream, &mut graph)) };
        self.check("cuStreamEndCapture", code)?;
        Ok(graph)
    }

    /// What was recorded in a form that can be queued; the record itself is gone.
    ///
    /// # Safety
    /// The graph is alive; nobody uses the handle any more.
    pub(super) unsafe fn instantiate(self, graph: cu::CUgraph) -> Result<cu::CUgraphExec> {
        let mut exec = ptr::null_mut();
        // SAFETY: the caller's promise; the handle is written to `exec`.
        let code = unsafe { driver!(self, cuGraphInstantiateWithFlags(&mut exec, graph, 0)) };
        // SAFETY: the caller's promise.
        let _ = unsafe { driver!(self, cuGraphDestroy(graph)) };
        self.check("cuGraphInstantiate", code)?;
        Ok(exec)
    }

    /// Queues what was recorded.
    ///
    /// # Safety
    /// Both are alive. What holds of each recorded kernel (see [`launch`](Driver::launch)) holds again.
    pub(super) unsafe fn launch_graph(self, exec: cu::CUgraphExec, stream: cu::CUstream) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check("cuGraphLaunch", unsafe { driver!(self, cuGraphLaunch(exec, stream)) })
    }

    /// # Safety
    /// The record is alive; nobody uses the handle any more.
    pub(super) unsafe fn destroy_exec(self, exec: cu::CUgraphExec) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check("cuGraphExecDestroy", unsafe { driver!(self, cuGraphExecDestroy(exec)) })
    }
}
