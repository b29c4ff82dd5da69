//! The CUDA backend: a stream on which plans, input writes, and result reads are enqueued in order.

use std::any::Any;
use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kernels::Precision;

use super::best::{self, BestSearch};
use super::buffer::{CudaBuffer, foreign};
use super::context::{DeviceMemory, Event, Staging, Start, Stream, device_error};
use super::driver::CudaError;
use super::fuse::{self, Steps};
use super::input_errors::{ErrorWatch, WatchedStream};
use super::kernel::Kernel;
use super::library::KernelError;
use super::ops::{self, Unplanned};
use super::plan::{CudaPlan, Launch, N_TABLES, Planner, Scratch, ScratchAreas};
use super::state::DeviceState;
use super::times::{self, Timer};
use super::work::Work;
use super::writes::{self, Writes};
use crate::backend::{
    Backend, BackendError, BestRows, Buffer, Device, GraphView, MemoryMap, PendingRead, Plan, check_range, rules,
};
use crate::graph::Graph;

/// Pool of unused staging buffers. Pinning memory takes longer than copying through it.
type Idle = Arc<Mutex<Vec<Staging>>>;

/// Number of runs of a plan before its kernels are captured in a CUDA graph. Most graphs of prompts run only
/// once.
const RUNS_BEFORE_RECORDING: u32 = 2;

/// Maximum number of pooled staging buffers, and maximum size of a write through a staging buffer.
const MAX_IDLE: usize = 64;
const MAX_STAGED: usize = 1 << 20;

/// Computes graphs on a device.
pub(super) struct CudaBackend {
    device: Arc<dyn Device>,
    ready: Arc<DeviceState>,
    precision: Precision,
    stream: Arc<Stream>,
    scratch: Scratch,
    own: WatchedStream,
    watch: ErrorWatch,
    /// Event that streams of other devices wait for.
    point: Event,
    idle: Idle,
    writes: Writes,
    best: BestSearch,
    timer: Timer,
    /// False after the driver rejected an early launch, or a capture failed.
    starts_early: AtomicBool,
}

impl CudaBackend {
    pub(super) fn new(
        device: Arc<dyn Device>,
        ready: Arc<DeviceState>,
        precision: Precision,
    ) -> Result<CudaBackend, BackendError> {
        times::start_for(&*device);
        let failed = |error| device_error(device.name(), &error);
        let stream = Arc::new(Stream::new(&ready.context).map_err(failed)?);
        let own = WatchedStream::new(device.clone(), &ready.context, &stream).map_err(failed)?;
        Ok(CudaBackend {
            scratch: Scratch {
                memory: Arc::new(DeviceMemory::new(&ready.context, 0).map_err(failed)?),
                sizes: ScratchAreas::default(),
            },
            watch: ErrorWatch::new(own.clone()),
            own,
            point: Event::new(&ready.context).map_err(failed)?,
            stream,
            idle: Idle::default(),
            writes: Writes::new(&ready.context).map_err(failed)?,
            best: BestSearch::default(),
            timer: Timer::default(),
            starts_early: AtomicBool::new(true),
            device,
            ready,
            precision,
        })
    }

    fn failed(&self, error: CudaError) -> BackendError {
        device_error(self.device.name(), &error)
    }

    /// Enqueues all pending writes.
    fn flush(&mut self) -> Result<(), BackendError> {
        let flushed = self.writes.flush(&self.stream);
        flushed.map_err(|error| self.failed(error))
    }

    fn load(&self, kernels: &[Kernel]) -> Result<(), BackendError> {
        self.ready
            .library
            .load(kernels)
            .map_err(|error| self.not_loaded(&error))
    }

    fn not_loaded(&self, error: &KernelError) -> BackendError {
        BackendError::Device {
            device: self.device.name().to_owned(),
            message: error.to_string(),
        }
    }

    /// Loads the kernel that scatters batched writes.
    fn load_writes(&mut self) -> Result<(), BackendError> {
        if self.writes.has_kernel() {
            return Ok(());
        }
        let kernel = writes::kernel();
        self.load(&[kernel])?;
        let function = self.ready.library.loaded(&kernel, 0);
        if let Some(function) = function.map_err(|error| self.not_loaded(&error))? {
            self.writes.use_kernel(function);
        }
        Ok(())
    }

    /// Loads the kernels that find the largest values of rows.
    fn load_best(&mut self) -> Result<(), BackendError> {
        if self.best.has_kernels() {
            return Ok(());
        }
        let kernels = best::kernels();
        self.load(&kernels)?;
        let function = |kernel| {
            let function = self.ready.library.loaded(kernel, 0);
            function.map_err(|error| self.not_loaded(&error))
        };
        if let (Some(first), Some(second)) = (function(&kernels[0])?, function(&kernels[1])?) {
            self.best.use_kernels([first, second]);
        }
        Ok(())
    }

    /// Grows the scratch memory to fit every node and `moved` bytes of relocated results.
    fn reserve_scratch(&mut self, view: &GraphView<'_>, moved: usize) -> Result<(), BackendError> {
        let mut most = self.scratch.sizes;
        most.moved = most.moved.max(moved);
        for id in view.computing() {
            let need = ops::check(view.graph, id, self.precision, self.ready.gpu);
            let need = need.map_err(|_| rules::unsupported(view.graph, id))?;
            most = most.max(ScratchAreas {
                work: need.scratch,
                columns: need.columns,
                moved,
                angles: N_TABLES * need.angles.next_multiple_of(ScratchAreas::ALIGNMENT),
            });
        }
        if most.total() > self.scratch.sizes.total() {
            let memory = DeviceMemory::new(&self.ready.context, most.total());
            let memory = memory.map_err(|error| {
                if !error.is_out_of_memory() {
                    return self.failed(error);
                }
                BackendError::OutOfMemory {
                    buffer_type: self.device.name().to_owned(),
                    bytes: most.total(),
                }
            })?;
            self.scratch = Scratch {
                memory: Arc::new(memory),
                sizes: most,
            };
        }
        Ok(())
    }

    /// Plans the launches of all steps. Returns the kernels that are not loaded yet; without these kernels, the plan is
    /// incomplete.
    fn plan(
        &self,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        steps: &Steps,
        plan: &mut CudaPlan,
    ) -> Result<Vec<Kernel>, BackendError> {
        plan.clear();
        (plan.version, plan.stamp) = (view.graph.version(), memory.stamp());
        plan.scratch = Some(self.scratch.clone());
        let mut faults = self.own.lock();
        let mut planner = Planner {
            device: self.device.name(),
            graph: view.graph,
            memory,
            library: &self.ready.library,
            gpu: self.ready.gpu,
            faults: &mut faults,
            scratch: &self.scratch,
            moved: &steps.moved,
            precision: self.precision,
            work: Work::default(),
            missing: Vec::new(),
            plan,
        };
        for step in &steps.steps {
            planner.work = Work::of(view.graph, step);
            ops::plan_step(view.graph, step, &mut planner).map_err(|refusal| match refusal {
                Unplanned::Unsupported(_) => rules::unsupported(view.graph, step.first()),
                Unplanned::Error(error) => error,
            })?;
        }
        Ok(planner.missing)
    }

    /// Enqueues the kernels of a plan: individually at first, then as a CUDA graph.
    fn queue(&self, plan: &mut CudaPlan, cancel: &AtomicBool) -> Result<(), BackendError> {
        let failed = |error| device_error(self.device.name(), &error);
        if plan.recording.is_none() && plan.n_runs >= RUNS_BEFORE_RECORDING && plan.launches.len() > 1 {
            // SAFETY: parameters and addresses of the launches are valid, as for `launch` below. The
            // recording holds addresses of the plan and is dropped when the plan is prepared again.
            let recording = unsafe {
                self.stream.record(|| {
                    self.starts(plan)
                        .try_for_each(|(launch, start)| self.launch(plan, launch, start))
                })
            };
            match recording {
                Ok(recording) => plan.recording = Some(recording),
                // Calls of other libraries in this process can invalidate a capture, and some drivers reject early
                // launches in captures. The kernels are then enqueued individually, and recorded after further
                // runs. If the device has failed, the launches return the error.
                Err(_) => {
                    plan.n_runs = 0;
                    self.starts_early.store(false, Ordering::Relaxed);
                }
            }
        }
        if let Some(recording) = &plan.recording {
            // SAFETY: the recorded launches hold valid parameters and addresses, as for `launch` below.
            return unsafe { self.stream.replay(recording) }.map_err(failed);
        }
        for (launch, start) in self.starts(plan) {
            if cancel.load(Ordering::Relaxed) {
                return Err(BackendError::Cancelled);
            }
            self.launch(plan, launch, start).map_err(failed)?;
        }
        plan.n_runs += 1;
        Ok(())
    }

    /// Returns the launches of a plan with their starts. Only kernels that follow a kernel of the plan start early.
    fn starts<'a>(&self, plan: &'a CudaPlan) -> impl Iterator<Item = (&'a Launch, Start)> + use<'a> {
        let others = if self.starts_early.load(Ordering::Relaxed) {
            Start::Early
        } else {
            Start::InOrder
        };
        let starts = iter::once(Start::InOrder).chain(iter::repeat(others));
        plan.launches.iter().zip(starts)
    }

    /// Enqueues the kernels of a plan individually, waits, and measures their times.
    fn queue_timed(&mut self, plan: &CudaPlan, cancel: &AtomicBool) -> Result<(), BackendError> {
        let mut timer = std::mem::take(&mut self.timer);
        let ran = timer.run(
            &self.ready.context,
            &self.stream,
            &plan.launches,
            cancel,
            |launch| self.launch(plan, launch, Start::InOrder),
            |error| self.failed(error),
        );
        self.timer = timer;
        ran
    }

    /// Enqueues a kernel of a plan. Graph and memory must be unchanged since the plan was prepared.
    fn launch(&self, plan: &CudaPlan, launch: &Launch, start: Start) -> Result<(), CudaError> {
        self.enqueue(plan, launch, start).map_err(|error| {
            let substitute = launch.substitute.as_ref().and_then(|other| other.function.get());
            error.at_launch_of(substitute.unwrap_or(&launch.function).title())
        })
    }

    /// Enqueues a kernel, or its substitute if the GPU cannot run the kernel.
    fn enqueue(&self, plan: &CudaPlan, launch: &Launch, start: Start) -> Result<(), CudaError> {
        let parameters = plan.words[launch.parameters..].as_ptr().cast();
        // SAFETY: `parameters` are the words that the op built for this kernel. The addresses are within
        // buffers of the memory map, whose stamp was compared in `run`, or within the plan's scratch memory.
        // The map is borrowed mutably, so other accesses are ordered by this stream or wait for it. A buffer
        // is freed only after its context is idle. A substitute has the parameters of the kernel that it replaces.
        let at = |function, shape, start| unsafe { self.stream.launch(function, shape, start, parameters) };
        let enqueue = |function, shape| match at(function, shape, start) {
            Err(error) if start == Start::Early && error.refuses_early_launch() => {
                at(function, shape, Start::InOrder).inspect(|()| self.starts_early.store(false, Ordering::Relaxed))
            }
            launched => launched,
        };
        let Some(substitute) = &launch.substitute else {
            return enqueue(&launch.function, launch.shape);
        };
        if let Some(function) = substitute.function.get() {
            return enqueue(function, substitute.shape);
        }
        match enqueue(&launch.function, launch.shape) {
            Err(error) if error.refuses_kernel() => {
                let library = &self.ready.library;
                library.refuse(&substitute.replaced, &error);
                let Ok(Some(function)) = library.function_for(&substitute.kernel, substitute.shape.shared) else {
                    return Err(error);
                };
                enqueue(substitute.function.get_or_init(|| function), substitute.shape)
            }
            launched => launched,
        }
    }

    /// Returns the read whose data arrives in `staging`.
    fn pending(&self, staging: Staging) -> Box<dyn PendingRead> {
        Box::new(Pending {
            device: self.device.clone(),
            watch: self.watch.clone(),
            idle: self.idle.clone(),
            staging,
        })
    }

    /// Returns a staging buffer of at least `len` bytes. Takes a pooled buffer whose copy is done, or the
    /// oldest one if the pool is full; otherwise allocates a new buffer.
    fn staging(&self, len: usize) -> Result<Staging, BackendError> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // Uses the oldest buffer that is large enough. If the copy of this buffer is still in flight, so are the copies
        // of later buffers.
        if let Some(i) = idle.iter().position(|staging| staging.len() >= len)
            && (idle.len() == MAX_IDLE || idle[i].is_done().map_err(|error| self.failed(error))?)
        {
            return Ok(idle.remove(i));
        }
        drop(idle);
        Staging::new(&self.ready.context, len.next_power_of_two()).map_err(|error| self.failed(error))
    }
}

impl Backend for CudaBackend {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn prepare(
        &mut self,
        view: &GraphView<'_>,
        memory: &MemoryMap,
        old: Option<Box<dyn Plan>>,
    ) -> Result<Box<dyn Plan>, BackendError> {
        let mut plan = <dyn Plan>::recycle::<CudaPlan>(old);
        self.load_writes()?;
        let steps = fuse::steps(view, memory, self.precision, self.ready.gpu);
        self.reserve_scratch(view, steps.moved_bytes)?;
        // `load` loads or rejects every kernel, or returns an error. Substitutes of rejected kernels may also be
        // missing.
        loop {
            let missing = self.plan(view, memory, &steps, &mut plan)?;
            if missing.is_empty() {
                return Ok(plan);
            }
            self.load(&missing)?;
        }
    }

    fn run(
        &mut self,
        plan: &mut dyn Plan,
        graph: &Graph,
        memory: &mut MemoryMap,
        cancel: &AtomicBool,
    ) -> Result<(), BackendError> {
        let plan = plan.downcast_mut::<CudaPlan>(self.device.name())?;
        if (plan.version, plan.stamp) != (graph.version(), memory.stamp()) {
            return Err(BackendError::StalePlan {
                device: self.device.name().to_owned(),
            });
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(BackendError::Cancelled);
        }
        self.flush()?;
        if times::is_on() {
            self.queue_timed(plan, cancel)?;
        } else {
            self.queue(plan, cancel)?;
        }
        if plan.may_fail {
            let fetched = self.own.lock().fetch(&self.stream);
            fetched.map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.flush()?;
        self.stream.synchronize().map_err(|error| self.failed(error))?;
        self.watch.take()
    }

    fn write_async(&mut self, to: &mut dyn Buffer, offset: usize, data: &[u8]) -> Result<bool, BackendError> {
        check_range(to, offset, data.len())?;
        let buffer = to.as_any().downcast_ref::<CudaBuffer>().ok_or_else(|| foreign(to))?;
        // Only kernels of plans are timed. While times are measured, no other kernel runs.
        if !times::is_on() && self.writes.suits(buffer.memory(), data.len()) {
            let added = self.writes.add(&self.stream, buffer.memory(), offset, data);
            return added.map(|()| true).map_err(|error| self.failed(error));
        }
        self.flush()?;
        for (i, piece) in data.chunks(MAX_STAGED).enumerate() {
            let (n, at) = (piece.len(), offset + i * MAX_STAGED);
            let mut staging = self.staging(n)?;
            staging.wait().map_err(|error| self.failed(error))?[..n].copy_from_slice(piece);
            let queued = self.stream.queue_write(buffer.memory(), at, &mut staging, 0..n);
            queued.map_err(|error| self.failed(error))?;
            give_back(&self.idle, staging);
        }
        Ok(true)
    }

    fn read_async(
        &mut self,
        from: &dyn Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Option<Box<dyn PendingRead>>, BackendError> {
        check_range(from, offset, len)?;
        let buffer = from
            .as_any()
            .downcast_ref::<CudaBuffer>()
            .ok_or_else(|| foreign(from))?;
        self.flush()?;
        let mut staging = self.staging(len.max(1))?;
        if len > 0 {
            let queued = self.stream.queue_read(buffer.memory(), offset, &mut staging, len);
            queued.map_err(|error| self.failed(error))?;
        }
        Ok(Some(self.pending(staging)))
    }

    fn read_best_async(
        &mut self,
        from: &dyn Buffer,
        rows: BestRows,
    ) -> Result<Option<Box<dyn PendingRead>>, BackendError> {
        // Only kernels of plans are timed. While times are measured, no other kernel runs.
        if !best::suits(rows) || times::is_on() {
            return Ok(None);
        }
        check_range(from, rows.offset, size_of::<f32>() * rows.n_values * rows.n_rows)?;
        let buffer = from
            .as_any()
            .downcast_ref::<CudaBuffer>()
            .ok_or_else(|| foreign(from))?;
        if !Arc::ptr_eq(buffer.memory().context(), &self.ready.context) {
            return Ok(None);
        }
        self.load_best()?;
        self.flush()?;
        let mut staging = self.staging(best::result_bytes(rows))?;
        let failed = |error| device_error(self.device.name(), &error);
        let found = self
            .best
            .queue(&self.ready.context, &self.stream, buffer.memory(), rows)
            .map_err(failed)?;
        let Some((memory, range)) = found else { return Ok(None) };
        let queued = self.stream.queue_read(memory, range.start, &mut staging, range.len());
        queued.map_err(failed)?;
        Ok(Some(self.pending(staging)))
    }

    fn copy_from_async(
        &mut self,
        source: &mut dyn Backend,
        from: (&dyn Buffer, usize),
        to: (&mut dyn Buffer, usize),
        len: usize,
    ) -> Result<bool, BackendError> {
        let (from, start) = from;
        check_range(from, start, len)?;
        if from.host_ptr().is_some() {
            source.synchronize()?;
            let bytes = from.bytes().unwrap_or_default();
            return self.write_async(to.0, to.1, &bytes[start..][..len]);
        }
        check_range(to.0, to.1, len)?;
        let buffers = (from.as_any().downcast_ref(), to.0.as_any().downcast_ref());
        let (Some(from), Some(target)) = buffers else {
            return Ok(false);
        };
        let source = (source as &mut dyn Any).downcast_mut::<CudaBackend>();
        source.map_or(Ok(false), |source| {
            source.flush()?;
            self.flush()?;
            self.copy_from_device(source, (from, start), (target, to.1), len)
        })
    }
}

impl CudaBackend {
    /// Enqueues a copy between GPUs without blocking the host. Returns false if the memory does not belong to
    /// the devices of these backends.
    fn copy_from_device(
        &self,
        source: &CudaBackend,
        (from, start): (&CudaBuffer, usize),
        (to, offset): (&CudaBuffer, usize),
        len: usize,
    ) -> Result<bool, BackendError> {
        let is_of =
            |buffer: &CudaBuffer, backend: &CudaBackend| Arc::ptr_eq(buffer.memory().context(), &backend.ready.context);
        if !is_of(from, source) || !is_of(to, self) {
            return Ok(false);
        }
        let queue = || {
            if self.watch.add(&source.watch) {
                self.ready.context.reach(&source.ready.context)?;
            }
            source.stream.mark(&source.point)?;
            self.stream.wait_for(&source.point)?;
            if len > 0 {
                self.stream
                    .queue_copy((to.memory(), offset), (from.memory(), start), len)?;
            }
            // Later work of the source may overwrite the memory that the copy reads.
            self.stream.mark(&self.point)?;
            source.stream.wait_for(&self.point)
        };
        queue().map(|()| true).map_err(|error| self.failed(error))
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        // A write fails only on a lost device, whose memory nobody reads.
        let _ = self.flush();
        times::write();
    }
}

/// A read from the device that is in flight.
struct Pending {
    device: Arc<dyn Device>,
    watch: ErrorWatch,
    idle: Idle,
    staging: Staging,
}

impl PendingRead for Pending {
    fn wait(mut self: Box<Self>, out: &mut [u8]) -> Result<(), BackendError> {
        let device = self.device.name();
        let bytes = self.staging.wait().map_err(|error| device_error(device, &error))?;
        out.copy_from_slice(&bytes[..out.len()]);
        give_back(&self.idle, self.staging);
        self.watch.take()
    }
}

/// Returns a staging buffer to the pool.
fn give_back(idle: &Idle, staging: Staging) {
    let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
    if idle.len() < MAX_IDLE {
        idle.push(staging);
    }
}
