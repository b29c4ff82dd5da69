//! The ownership layer: device resources that are released with their owner. A [`Context`] outlives
//! everything created in it.

use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::code::Code;
use super::counters::Counters;
use super::driver::{CudaError, LaunchArguments, Result};
use super::raw::{Driver, cu};

/// A device in use by this process.
#[derive(Debug)]
pub(super) struct Context {
    driver: Driver,
    device: cu::CUdevice,
    handle: cu::CUcontext,
    /// Held for reading during stream captures, and for writing during waits for all streams. The driver rejects such
    /// a wait during a capture, and invalidates the capture.
    captures: RwLock<()>,
}

// SAFETY: driver functions are thread-safe, and `bind` sets the context of the calling thread before each
// call.
unsafe impl Send for Context {}
// SAFETY: driver functions are thread-safe, so shared references can be used from any thread.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device.
    pub(super) fn new(driver: Driver, device: cu::CUdevice) -> Result<Arc<Context>> {
        let handle = driver.retain_context(device)?;
        Ok(Arc::new(Context {
            driver,
            device,
            handle,
            captures: RwLock::default(),
        }))
    }

    /// Makes this context current on the calling thread and returns the driver.
    fn bind(&self) -> Result<Driver> {
        // SAFETY: the context is retained until it is dropped.
        unsafe { self.driver.set_context(self.handle) }?;
        Ok(self.driver)
    }

    /// Returns the CUDA version of the driver: 1000 * major + 10 * minor.
    pub(super) fn version(&self) -> Result<i32> {
        self.driver.version()
    }

    /// Returns true if blocks of a kernel may start before the previous kernel is done.
    pub(super) fn has_early_launches(&self) -> bool {
        self.driver.has_early_launches()
    }

    /// Returns the free and total memory of the device in bytes.
    pub(super) fn memory(&self) -> Result<(usize, usize)> {
        self.bind()?.memory_info()
    }

    /// Waits for all streams, then calls `release`. Must not be called by a thread that captures.
    fn when_idle(&self, release: impl FnOnce(Driver) -> Result<()>) -> Result<()> {
        let _no_captures = self.captures.write().unwrap_or_else(PoisonError::into_inner);
        let driver = self.bind()?;
        // A lost device computes nothing, so resources are released even after a failed wait.
        let waited = driver.synchronize_context();
        release(driver)?;
        waited
    }

    /// Enables direct access to the memory of another device, if the hardware supports it. Copies between the
    /// devices work in either case.
    pub(super) fn reach(&self, other: &Context) -> Result<()> {
        let driver = self.bind()?;
        if self.device == other.device || !driver.can_reach(self.device, other.device)? {
            return Ok(());
        }
        // SAFETY: the other context is retained until it is dropped.
        unsafe { driver.reach(other.handle) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was retained once. Everything created in it holds an `Arc` to it and has been
        // dropped. On a lost device, the release fails harmlessly.
        let _ = unsafe { self.driver.release_context(self.device) };
    }
}

/// A CUDA stream: a queue of work.
#[derive(Debug)]
pub(super) struct Stream {
    context: Arc<Context>,
    handle: cu::CUstream,
}

// SAFETY: driver functions are thread-safe, and `Context::bind` precedes each call.
unsafe impl Send for Stream {}
// SAFETY: driver functions are thread-safe, so streams can be used from several threads.
unsafe impl Sync for Stream {}

impl Stream {
    pub(super) fn new(context: &Arc<Context>) -> Result<Stream> {
        let handle = context.bind()?.create_stream()?;
        let context = context.clone();
        Ok(Stream { context, handle })
    }

    /// Waits until all enqueued work is done.
    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive while `self` is.
        unsafe { self.context.bind()?.synchronize_stream(self.handle) }
    }

    /// Enqueues zeroing of `len` bytes of device memory, starting at `offset`.
    pub(super) fn zero(&self, memory: &DeviceMemory, offset: usize, len: usize) -> Result<()> {
        let at = memory.part(offset, len);
        // SAFETY: `part` checked the bounds, and memory is freed only after its context is idle.
        unsafe { self.context.bind()?.zero(at, len, self.handle) }
    }

    /// Copies `data` to device memory at `offset` and waits for completion.
    pub(super) fn write(&self, memory: &DeviceMemory, offset: usize, data: &[u8]) -> Result<()> {
        let to = memory.part(offset, data.len());
        // SAFETY: `part` checked the bounds, and both sides are alive until the copy is done, since this
        // function waits for it.
        unsafe {
            let driver = self.context.bind()?;
            driver.copy_to_device(to, data.as_ptr().cast(), data.len(), self.handle)?;
            driver.synchronize_stream(self.handle)
        }
    }

    /// Copies device memory at `offset` to `out` and waits for completion.
    pub(super) fn read(&self, memory: &DeviceMemory, offset: usize, out: &mut [u8]) -> Result<()> {
        let from = memory.part(offset, out.len());
        // SAFETY: `part` checked the bounds, and both sides are alive until the copy is done, since this
        // function waits for it.
        unsafe {
            let driver = self.context.bind()?;
            driver.copy_to_host(out.as_mut_ptr().cast(), from, out.len(), self.handle)?;
            driver.synchronize_stream(self.handle)
        }
    }

    /// Enqueues a copy of the bytes `range` of `from` and records its completion in the event of `from`.
    pub(super) fn queue_write(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        from: &mut Staging,
        range: Range<usize>,
    ) -> Result<()> {
        let data = &from.memory.as_slice()[range];
        let to = memory.part(offset, data.len());
        // SAFETY: device memory is freed only after its context is idle. Host memory belongs to `from`, which
        // waits for the event before the memory is written or freed.
        unsafe {
            let driver = self.context.bind()?;
            driver.copy_to_device(to, data.as_ptr().cast(), data.len(), self.handle)?;
            driver.record_event(from.event.handle, self.handle)
        }
    }

    /// Enqueues a copy to the first `len` bytes of `to` and records its completion in the event of `to`.
    pub(super) fn queue_read(&self, memory: &DeviceMemory, offset: usize, to: &mut Staging, len: usize) -> Result<()> {
        let from = memory.part(offset, len);
        let out = &mut to.memory.as_mut_slice()[..len];
        // SAFETY: device memory is freed only after its context is idle. Host memory belongs to `to`, which
        // waits for the event before the memory is read or freed.
        unsafe {
            let driver = self.context.bind()?;
            driver.copy_to_host(out.as_mut_ptr().cast(), from, len, self.handle)?;
            driver.record_event(to.event.handle, self.handle)
        }
    }

    /// Records an event of the same device after all enqueued work.
    pub(super) fn mark(&self, event: &Event) -> Result<()> {
        // SAFETY: event and stream are alive while borrowed.
        unsafe { self.context.bind()?.record_event(event.handle, self.handle) }
    }

    /// Makes later work of this stream wait for an event of any device.
    pub(super) fn wait_for(&self, event: &Event) -> Result<()> {
        // SAFETY: event and stream are alive while borrowed.
        unsafe { self.context.bind()?.stream_waits(self.handle, event.handle) }
    }

    /// Enqueues a copy of `len` bytes from memory of any device to memory of this stream's device. Both sides
    /// are given with a byte offset.
    pub(super) fn queue_copy(
        &self,
        (to, to_offset): (&DeviceMemory, usize),
        (from, from_offset): (&DeviceMemory, usize),
        len: usize,
    ) -> Result<()> {
        let to_part = (to.part(to_offset, len), to.context.handle);
        let from_part = (from.part(from_offset, len), from.context.handle);
        // SAFETY: `part` checked the bounds, and memory is freed only after its context is idle. The source's
        // stream waits for the copy (`copy_from_device` in `backend.rs`).
        unsafe { self.context.bind()?.copy_between(to_part, from_part, len, self.handle) }
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// `parameter` points to the kernel's parameter struct. All memory that the kernel accesses is alive
    /// until the kernel is done, and is accessed only by work on this stream.
    pub(super) unsafe fn launch(
        &self,
        function: &Function,
        shape: LaunchShape,
        start: Start,
        parameter: *const c_void,
    ) -> Result<()> {
        let launch = LaunchArguments {
            function: function.handle,
            grid: shape.grid,
            block: shape.block,
            shared: shape.shared,
            stream: self.handle,
            parameter,
        };
        let driver = self.context.bind()?;
        // SAFETY: parameter and memory are valid (function contract), and function and stream are alive. Functions that
        // wait were loaded for drivers with early launches (`Library::function`).
        unsafe {
            match start {
                Start::Early if function.waits => driver.launch_early(&launch),
                Start::Early | Start::InOrder => driver.launch(&launch),
            }
        }
    }
}

impl Stream {
    /// Captures the work that `queue` enqueues on this stream, without executing it.
    ///
    /// # Safety
    /// The conditions of [`launch`](Stream::launch) hold for each captured kernel whenever the recording is
    /// replayed.
    pub(super) unsafe fn record(&self, queue: impl FnOnce() -> Result<()>) -> Result<Recording> {
        let _no_waits = self.context.captures.read().unwrap_or_else(PoisonError::into_inner);
        let driver = self.context.bind()?;
        // SAFETY: the stream is alive. The graph is consumed by `instantiate` and used nowhere else.
        let handle = unsafe {
            driver.begin_capture(self.handle)?;
            let queued = queue();
            // End the capture mode of the stream even if an error occurred.
            let graph = driver.end_capture(self.handle);
            queued?;
            driver.instantiate(graph?)?
        };
        let context = self.context.clone();
        Ok(Recording { context, handle })
    }

    /// Enqueues the captured work.
    ///
    /// # Safety
    /// The conditions of [`launch`](Stream::launch) hold for each captured kernel.
    pub(super) unsafe fn replay(&self, recording: &Recording) -> Result<()> {
        // SAFETY: parameters and memory are valid (function contract), and stream and recording are alive.
        unsafe { self.context.bind()?.launch_graph(recording.handle, self.handle) }
    }
}

/// Captured work that can be enqueued as a unit (a CUDA graph).
#[derive(Debug)]
pub(super) struct Recording {
    context: Arc<Context>,
    handle: cu::CUgraphExec,
}

// SAFETY: driver functions are thread-safe, and `Context::bind` precedes each call.
unsafe impl Send for Recording {}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.bind() {
            // SAFETY: the handle is not used afterwards. The driver defers the destruction until a run in
            // flight is done.
            let _ = unsafe { driver.destroy_exec(self.handle) };
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Readers on other streams rely on the work being done.
        let _ = self.synchronize();
        if let Ok(driver) = self.context.bind() {
            // SAFETY: the handle is not used afterwards.
            let _ = unsafe { driver.destroy_stream(self.handle) };
        }
    }
}

/// The earliest start of a kernel's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Start {
    /// Blocks start after all previous work of the stream.
    InOrder,
    /// Blocks start while the previous kernel of the stream ends, if the function waits for that kernel itself.
    Early,
}

/// Launch configuration of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LaunchShape {
    /// Number of blocks in each dimension.
    pub(super) grid: [u32; 3],
    /// Number of threads per block.
    pub(super) block: u32,
    /// Dynamic shared memory per block in bytes.
    pub(super) shared: u32,
}

/// A point in a stream that can be waited for. An event that was never recorded counts as completed.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<Context>,
    handle: cu::CUevent,
}

// SAFETY: driver functions are thread-safe, and `Context::bind` precedes each call.
unsafe impl Send for Event {}
// SAFETY: driver functions are thread-safe, so events can be used from several threads.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(context: &Arc<Context>) -> Result<Event> {
        let handle = context.bind()?.create_event()?;
        let context = context.clone();
        Ok(Event { context, handle })
    }

    /// Creates an event that records the time.
    pub(super) fn timed(context: &Arc<Context>) -> Result<Event> {
        let handle = context.bind()?.create_timed_event()?;
        let context = context.clone();
        Ok(Event { context, handle })
    }

    /// Returns the milliseconds since another event. Both record the time, and their work is done.
    pub(super) fn since(&self, start: &Event) -> Result<f32> {
        // SAFETY: the events are alive while borrowed.
        unsafe { self.context.bind()?.elapsed(start.handle, self.handle) }
    }

    fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is alive while `self` is.
        unsafe { self.context.bind()?.synchronize_event(self.handle) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.bind() {
            // SAFETY: the handle is not used afterwards.
            let _ = unsafe { driver.destroy_event(self.handle) };
        }
    }
}

/// Device memory. Dropping it waits until the context is idle.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    context: Arc<Context>,
    address: cu::CUdeviceptr,
    len: usize,
}

impl DeviceMemory {
    /// Allocates `len` bytes, uninitialized. An empty allocation does not call the driver.
    pub(super) fn new(context: &Arc<Context>, len: usize) -> Result<DeviceMemory> {
        let address = match len {
            0 => 0,
            _ => context.bind()?.allocate(len)?,
        };
        let context = context.clone();
        Ok(DeviceMemory { context, address, len })
    }

    /// Returns the size in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the context that owns the memory.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the device address of the first byte.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Returns the address of `len` bytes at `offset`. Panics if they are out of bounds, which callers check
    /// first.
    fn part(&self, offset: usize, len: usize) -> u64 {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "copies are checked against the buffer size"
        );
        self.address + offset as u64
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        // Enqueued work may still use the memory. A lost device accesses no memory, and its allocations no longer
        // exist. SAFETY: the address comes from `allocate`, and the context is idle.
        let _ = self.context.when_idle(|driver| unsafe { driver.free(self.address) });
    }
}

/// Pinned host memory, which the device accesses directly.
#[derive(Debug)]
struct PinnedMemory {
    context: Arc<Context>,
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: plain bytes, accessed according to the borrow of the value.
unsafe impl Send for PinnedMemory {}
// SAFETY: the memory is plain bytes, and writing requires `&mut`.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates `len` zeroed bytes.
    fn new(context: &Arc<Context>, len: usize) -> Result<PinnedMemory> {
        let address: *mut u8 = context.bind()?.allocate_pinned(len.max(1))?.cast();
        let address = NonNull::new(address).expect("the driver returns an address or an error");
        // SAFETY: the driver allocated `len.max(1)` bytes.
        unsafe { address.write_bytes(0, len.max(1)) };
        let context = context.clone();
        Ok(PinnedMemory { context, address, len })
    }

    fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes were allocated and initialized in `new`.
        unsafe { slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes were allocated and initialized in `new`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.bind() {
            // SAFETY: the address comes from `allocate_pinned`, and `Staging` has waited for pending copies.
            let _ = unsafe { driver.free_pinned(self.address.as_ptr().cast()) };
        }
    }
}

/// Pinned memory with the event of its last copy. Accessing the bytes waits for the event.
#[derive(Debug)]
pub(super) struct Staging {
    memory: PinnedMemory,
    event: Event,
}

impl Staging {
    /// Allocates a staging buffer of `len` zeroed bytes.
    pub(super) fn new(context: &Arc<Context>, len: usize) -> Result<Staging> {
        Ok(Staging {
            memory: PinnedMemory::new(context, len)?,
            event: Event::new(context)?,
        })
    }

    /// Returns the size in bytes.
    pub(super) fn len(&self) -> usize {
        self.memory.len
    }

    /// Returns true if the last copy is done.
    pub(super) fn is_done(&self) -> Result<bool> {
        // SAFETY: the event is alive while `self` is.
        unsafe { self.event.context.bind()?.event_is_done(self.event.handle) }
    }

    /// Waits for the last copy and returns the bytes.
    pub(super) fn wait(&mut self) -> Result<&mut [u8]> {
        self.event.synchronize()?;
        Ok(self.memory.as_mut_slice())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // A lost device copies nothing, so an error can be ignored.
        let _ = self.event.synchronize();
    }
}

/// A module of device code, loaded into a context.
#[derive(Debug)]
struct Module {
    context: Arc<Context>,
    handle: cu::CUmodule,
}

/// A kernel and the module that contains it.
#[derive(Debug)]
pub(super) struct Function {
    module: Module,
    handle: cu::CUfunction,
    title: Arc<str>,
    /// True if each block first waits for earlier kernels of the stream, and the driver supports early launches.
    waits: bool,
    /// Dynamic shared memory in bytes that launches may use since they opted in.
    allowed: Mutex<u32>,
}

// SAFETY: driver functions are thread-safe, and `Context::bind` precedes each call.
unsafe impl Send for Function {}
// SAFETY: driver functions are thread-safe, so kernel functions can be used from several threads.
unsafe impl Sync for Function {}

impl Function {
    /// Loads the kernel `name`. `title` is the kernel's name in measurements. `waits` is true if each block of the code
    /// first waits for earlier kernels, and the driver supports early launches.
    pub(super) fn load(
        context: &Arc<Context>,
        code: &Code,
        name: &CStr,
        title: &CStr,
        waits: bool,
    ) -> Result<Function> {
        let module = Module {
            context: context.clone(),
            handle: context.bind()?.load_module(code)?,
        };
        // SAFETY: the module is alive, and `Function` owns it.
        let handle = unsafe { context.bind()?.function(module.handle, name) }?;
        if let Some(counters) = Counters::of(context.driver) {
            // SAFETY: the module is alive.
            unsafe { counters.entitle(handle, title) };
        }
        let title = title.to_string_lossy().as_ref().into();
        Ok(Function {
            module,
            handle,
            title,
            waits,
            allowed: Mutex::default(),
        })
    }

    /// Returns name, source, and definitions of the kernel.
    pub(super) fn title(&self) -> &Arc<str> {
        &self.title
    }

    /// Permits launches with up to this amount of dynamic shared memory. Earlier launches keep their amount.
    pub(super) fn allow_shared_memory(&self, bytes: u32) -> Result<()> {
        let mut allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes > *allowed {
            // SAFETY: the module is alive.
            unsafe { self.module.context.bind()?.allow_shared_memory(self.handle, bytes) }?;
            *allowed = bytes;
        }
        Ok(())
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the handle is not used afterwards, and the context is idle.
        let _ = self
            .context
            .when_idle(|driver| unsafe { driver.unload_module(self.handle) });
    }
}

/// Converts a CUDA error to an error of the engine.
pub(super) fn device_error(device: &str, error: &CudaError) -> crate::backend::BackendError {
    crate::backend::BackendError::Device {
        device: device.to_owned(),
        message: error.to_string(),
    }
}
