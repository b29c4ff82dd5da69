//! The upper floor: what of a device is owned, and freed with its owner. A [`Context`] outlives all that was made in it.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::counters::Counters;
use super::driver::{CudaError, Result};
use super::raw::{Driver, cu};

/// A device in use by this process.
#[derive(Debug)]
pub(super) struct Context {
    driver: Driver,
    device: cu::CUdevice,
    handle: cu::CUcontext,
}

// SAFETY: the driver's functions can be called from any thread, and the handle is set for the calling thread before each.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Begins to use a device.
    pub(super) fn new(driver: Driver, device: cu::CUdevice) -> Result<Arc<Context>> {
        let handle = driver.retain_context(device)?;
        Ok(Arc::new(Context { driver, device, handle }))
    }

    /// The driver, for calls that are about this context.
    fn bind(&self) -> Result<Driver> {
        // SAFETY: the context was retained and is released when dropped.
        unsafe { self.driver.set_context(self.handle) }?;
        Ok(self.driver)
    }

    /// Free and total bytes of the device's memory.
    pub(super) fn memory(&self) -> Result<(usize, usize)> {
        self.bind()?.memory_info()
    }

    /// Waits for all streams.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.bind()?.synchronize_context()
    }

    /// Lets this device fetch from another one's memory by itself, if it can. Copies between them need not be told whether it does.
    pub(super) fn reach(&self, other: &Context) -> Result<()> {
        let driver = self.bind()?;
        if self.device == other.device || !driver.can_reach(self.device, other.device)? {
            return Ok(());
        }
        // SAFETY: the other context was retained and is released when dropped.
        unsafe { driver.reach(other.handle) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once; whatever was made in the context holds it, and so is gone. A device that is lost cannot be released.
        let _ = unsafe { self.driver.release_context(self.device) };
    }
}

/// A queue of work.
#[derive(Debug)]
pub(super) struct Stream {
    context: Arc<Context>,
    handle: cu::CUstream,
}

// SAFETY: as for `Context`.
unsafe impl Send for Stream {}
// SAFETY: as for `Context`.
unsafe impl Sync for Stream {}

impl Stream {
    pub(super) fn new(context: &Arc<Context>) -> Result<Stream> {
        let handle = context.bind()?.create_stream()?;
        let context = context.clone();
        Ok(Stream { context, handle })
    }

    /// Waits until all that was queued is done.
    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.context.bind()?.synchronize_stream(self.handle) }
    }

    /// Sets `len` bytes of device memory from `offset` on to 0.
    pub(super) fn zero(&self, memory: &DeviceMemory, offset: usize, len: usize) -> Result<()> {
        let at = memory.part(offset, len);
        // SAFETY: the bytes are there, and memory is not freed before its context is idle.
        unsafe { self.context.bind()?.zero(at, len, self.handle) }
    }

    /// Copies to device memory from `offset` on, and waits for it.
    pub(super) fn write(&self, memory: &DeviceMemory, offset: usize, data: &[u8]) -> Result<()> {
        let to = memory.part(offset, data.len());
        // SAFETY: both sides are there until the copy is done, which is waited for.
        unsafe {
            let driver = self.context.bind()?;
            driver.copy_to_device(to, data.as_ptr().cast(), data.len(), self.handle)?;
            driver.synchronize_stream(self.handle)
        }
    }

    /// Copies from device memory from `offset` on, and waits for it.
    pub(super) fn read(&self, memory: &DeviceMemory, offset: usize, out: &mut [u8]) -> Result<()> {
        let from = memory.part(offset, out.len());
        // SAFETY: both sides are there until the copy is done, which is waited for.
        unsafe {
            let driver = self.context.bind()?;
            driver.copy_to_host(out.as_mut_ptr().cast(), from, out.len(), self.handle)?;
            driver.synchronize_stream(self.handle)
        }
    }

    /// Queues a copy of the first `len` bytes of `from`, whose event is then that of the copy.
    pub(super) fn queue_write(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        from: &mut Staging,
        len: usize,
    ) -> Result<()> {
        let (to, data) = (memory.part(offset, len), &from.memory.as_slice()[..len]);
        // SAFETY: the device's memory is freed only when its context is idle, and the host's belongs to `from`, which waits for the event
        // before it lets anybody write or free it.
        unsafe {
            let driver = self.context.bind()?;
            driver.copy_to_device(to, data.as_ptr().cast(), len, self.handle)?;
            driver.record_event(from.event.handle, self.handle)
        }
    }

    /// Queues a copy to the first `len` bytes of `to`, whose event is then that of the copy.
    pub(super) fn queue_read(&self, memory: &DeviceMemory, offset: usize, to: &mut Staging, len: usize) -> Result<()> {
        let from = memory.part(offset, len);
        let out = &mut to.memory.as_mut_slice()[..len];
        // SAFETY: as in `queue_write`.
        unsafe {
            let driver = self.context.bind()?;
            driver.copy_to_host(out.as_mut_ptr().cast(), from, len, self.handle)?;
            driver.record_event(to.event.handle, self.handle)
        }
    }

    /// Puts an event of the same device behind what is queued.
    pub(super) fn mark(&self, event: &Event) -> Result<()> {
        // SAFETY: both are alive.
        unsafe { self.context.bind()?.record_event(event.handle, self.handle) }
    }

    /// Later work waits for an event, of whatever device.
    pub(super) fn wait_for(&self, event: &Event) -> Result<()> {
        // SAFETY: both are alive.
        unsafe { self.context.bind()?.stream_waits(self.handle, event.handle) }
    }

    /// Queues a copy of `len` bytes from memory of any device to memory of this stream's. Both are given with an offset.
    pub(super) fn queue_copy(
        &self,
        (to, to_offset): (&DeviceMemory, usize),
        (from, from_offset): (&DeviceMemory, usize),
        len: usize,
    ) -> Result<()> {
        let to_part = (to.part(to_offset, len), to.context.handle);
        let from_part = (from.part(from_offset, len), from.context.handle);
        // SAFETY: the bytes are there, and memory is not freed before its context is idle: `backend.rs` lets the sender's stream wait for the copy.
        unsafe { self.context.bind()?.copy_between(to_part, from_part, len, self.handle) }
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// `parameter` points to what the kernel takes. Whatever memory it uses is there until it is done, and in use by nobody but work that
    /// was queued on this stream.
    pub(super) unsafe fn launch(&self, function: &Function, shape: Shape, parameter: *const c_void) -> Result<()> {
        let Shape { grid, block, shared } = shape;
        // SAFETY: the caller's promise; function and stream are alive.
        unsafe {
            let driver = self.context.bind()?;
            driver.launch(function.handle, grid, block, shared, self.handle, parameter)
        }
    }
}

impl Stream {
    /// Records what `queue` queues on this stream, without doing it.
    ///
    /// # Safety
    /// As for [`launch`](Stream::launch), whenever the recording is replayed.
    pub(super) unsafe fn record(&self, queue: impl FnOnce() -> Result<()>) -> Result<Recording> {
        let driver = self.context.bind()?;
        // SAFETY: the stream is alive; the graph is what was recorded, and nobody else has it.
        let handle = unsafe {
            driver.begin_capture(self.handle)?;
            let queued = queue();
            // The stream leaves the capture even if something failed.
            let graph = driver.end_capture(self.handle);
            queued?;
            driver.instantiate(graph?)?
        };
        let context = self.context.clone();
        Ok(Recording { context, handle })
    }

    /// Queues what was recorded.
    ///
    /// # Safety
    /// As for [`launch`](Stream::launch).
    pub(super) unsafe fn replay(&self, recording: &Recording) -> Result<()> {
        // SAFETY: the caller's promise; stream and recording are alive.
        unsafe { self.context.bind()?.launch_graph(recording.handle, self.handle) }
    }
}

/// Work that was recorded once, to be queued as one (a CUDA graph).
#[derive(Debug)]
pub(super) struct Recording {
    context: Arc<Context>,
    handle: cu::CUgraphExec,
}

// SAFETY: as for `Context`.
unsafe impl Send for Recording {}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.bind() {
            // SAFETY: nobody has the handle any more; the driver lets a run that is under way end.
            let _ = unsafe { driver.destroy_exec(self.handle) };
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Whoever reads what it computed, by another stream, finds it done.
        let _ = self.synchronize();
        if let Ok(driver) = self.context.bind() {
            // SAFETY: nobody has the handle any more.
            let _ = unsafe { driver.destroy_stream(self.handle) };
        }
    }
}

/// How many threads a kernel runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// Blocks in each dimension.
    pub(super) grid: [u32; 3],
    /// Threads of a block.
    pub(super) block: u32,
    /// Bytes of dynamic shared memory of a block.
    pub(super) shared: u32,
}

/// A point in a stream that can be waited for. One that was never recorded counts as passed.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<Context>,
    handle: cu::CUevent,
}

// SAFETY: as for `Context`.
unsafe impl Send for Event {}
// SAFETY: as for `Context`.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(context: &Arc<Context>) -> Result<Event> {
        let handle = context.bind()?.create_event()?;
        let context = context.clone();
        Ok(Event { context, handle })
    }

    fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives as long as `self`.
        unsafe { self.context.bind()?.synchronize_event(self.handle) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.bind() {
            // SAFETY: nobody has the handle any more.
            let _ = unsafe { driver.destroy_event(self.handle) };
        }
    }
}

/// Memory of a device, freed once all that the context has queued is done.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    context: Arc<Context>,
    address: cu::CUdeviceptr,
    len: usize,
}

impl DeviceMemory {
    /// Memory of `len` bytes, not initialized. The driver is not asked for nothing.
    pub(super) fn new(context: &Arc<Context>, len: usize) -> Result<DeviceMemory> {
        let address = match len {
            0 => 0,
            _ => context.bind()?.allocate(len)?,
        };
        let context = context.clone();
        Ok(DeviceMemory { context, address, len })
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The context that it is of.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Address of the first byte on the device.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Address of `len` bytes at `offset`. Panics if they are not all there: callers look first.
    fn part(&self, offset: usize, len: usize) -> u64 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "a copy beyond device memory");
        self.address + offset as u64
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        // What is queued may still use it. A device that is lost uses nothing, and its memory is gone.
        let _ = self.context.synchronize();
        if let Ok(driver) = self.context.bind() {
            // SAFETY: the address is from `allocate`, and the context is idle.
            let _ = unsafe { driver.free(self.address) };
        }
    }
}

/// Host memory that the device copies from and to by itself.
#[derive(Debug)]
struct PinnedMemory {
    context: Arc<Context>,
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: plain bytes; borrowing follows that of the value.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Memory of `len` bytes, all 0.
    fn new(context: &Arc<Context>, len: usize) -> Result<PinnedMemory> {
        let address: *mut u8 = context.bind()?.allocate_pinned(len.max(1))?.cast();
        let address = NonNull::new(address).expect("the driver gives memory or an error");
        // SAFETY: there are so many bytes.
        unsafe { address.write_bytes(0, len.max(1)) };
        let context = context.clone();
        Ok(PinnedMemory { context, address, len })
    }

    fn as_slice(&self) -> &[u8] {
        // SAFETY: so many bytes are there, initialized by `new`.
        unsafe { slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above; `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.bind() {
            // SAFETY: the address is from `allocate_pinned`; `Staging` waited for the copies.
            let _ = unsafe { driver.free_pinned(self.address.as_ptr().cast()) };
        }
    }
}

/// Pinned memory with the event of the last copy from or to it: whoever wants the bytes waits for it.
#[derive(Debug)]
pub(super) struct Staging {
    memory: PinnedMemory,
    event: Event,
}

impl Staging {
    /// Staging memory of `len` bytes, all 0.
    pub(super) fn new(context: &Arc<Context>, len: usize) -> Result<Staging> {
        Ok(Staging {
            memory: PinnedMemory::new(context, len)?,
            event: Event::new(context)?,
        })
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.memory.len
    }

    /// True if the last copy is done.
    pub(super) fn is_done(&self) -> Result<bool> {
        // SAFETY: the event lives as long as `self`.
        unsafe { self.event.context.bind()?.event_is_done(self.event.handle) }
    }

    /// The bytes, once the last copy is done.
    pub(super) fn wait(&mut self) -> Result<&mut [u8]> {
        self.event.synchronize()?;
        Ok(self.memory.as_mut_slice())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // If the device is lost it copies nothing any more.
        let _ = self.event.synchronize();
    }
}

/// Code on a device.
#[derive(Debug)]
struct Module {
    context: Arc<Context>,
    handle: cu::CUmodule,
}

/// A kernel, and the module that it is of.
#[derive(Debug)]
pub(super) struct Function {
    module: Module,
    handle: cu::CUfunction,
}

// SAFETY: as for `Context`.
unsafe impl Send for Function {}
// SAFETY: as for `Context`.
unsafe impl Sync for Function {}

impl Function {
    /// The kernel of this name in PTX. Among counters, where there are any, it is called `title`.
    pub(super) fn load(context: &Arc<Context>, ptx: &CStr, name: &CStr, title: &CStr) -> Result<Function> {
        let module = Module {
            context: context.clone(),
            handle: context.bind()?.load_module(ptx)?,
        };
        // SAFETY: the module is alive, and stays so as long as the function.
        let handle = unsafe { context.bind()?.function(module.handle, name) }?;
        if let Some(counters) = Counters::of(context.driver) {
            // SAFETY: the module is alive.
            unsafe { counters.entitle(handle, title) };
        }
        Ok(Function { module, handle })
    }

    /// Lets the kernel be launched with so much dynamic shared memory.
    pub(super) fn allow_shared_memory(&self, bytes: u32) -> Result<()> {
        // SAFETY: the module is alive.
        unsafe { self.module.context.bind()?.allow_shared_memory(self.handle, bytes) }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.context.synchronize();
        if let Ok(driver) = self.context.bind() {
            // SAFETY: nobody has the handle any more, and the context is idle.
            let _ = unsafe { driver.unload_module(self.handle) };
        }
    }
}

/// As an error of the engine.
pub(super) fn device_error(device: &str, error: &CudaError) -> crate::backend::BackendError {
    crate::backend::BackendError::Device {
        device: device.to_owned(),
        message: error.to_string(),
    }
}
