//! The backend: one stream, to which plans, inputs and results are queued in order.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kernels::Precision;

use super::CudaDevice;
use super::buffer::{CudaBuffer, foreign};
use super::context::{DeviceMemory, Event, Staging, Stream, device_error};
use super::device::Ready;
use super::driver::CudaError;
use super::faults::{Watch, Watched};
use super::fuse;
use super::ops::{self, Refusal};
use super::plan::{Areas, CudaPlan, Launch, Planner, Scratch};
use crate::backend::{
    Backend, BackendError, Buffer, Device, GraphView, MemoryMap, PendingRead, Plan, check_range, rules,
};
use crate::graph::Graph;

/// Staging memory that nobody uses, kept to be used again: pinning memory takes longer than copying through it.
type Idle = Arc<Mutex<Vec<Staging>>>;

/// Runs of a plan before its kernels are recorded: most graphs of prompts are computed once.
const RUNS_BEFORE_RECORDING: u32 = 2;

/// Pieces of staging memory that are kept, and bytes that are written through one of them.
const MAX_IDLE: usize = 64;
const MAX_STAGED: usize = 1 << 20;

/// Computes graphs on a device.
pub(super) struct CudaBackend {
    device: Arc<dyn Device>,
    ready: Arc<Ready>,
    precision: Precision,
    stream: Arc<Stream>,
    scratch: Scratch,
    own: Watched,
    watch: Watch,
    /// A point of the stream that streams of other devices wait for.
    point: Event,
    idle: Idle,
}

impl CudaBackend {
    pub(super) fn new(
        device: Arc<CudaDevice>,
        ready: Arc<Ready>,
        precision: Precision,
    ) -> Result<CudaBackend, BackendError> {
        let failed = |error| device_error(device.name(), &error);
        let stream = Arc::new(Stream::new(&ready.context).map_err(failed)?);
        let own = Watched::new(device.clone(), &ready.context, &stream).map_err(failed)?;
        Ok(CudaBackend {
            scratch: Scratch {
                memory: Arc::new(DeviceMemory::new(&ready.context, 0).map_err(failed)?),
                sizes: Areas::default(),
            },
            watch: Watch::new(own.clone()),
            own,
            point: Event::new(&ready.context).map_err(failed)?,
            stream,
            idle: Idle::default(),
            device,
            ready,
            precision,
        })
    }

    fn failed(&self, error: CudaError) -> BackendError {
        device_error(self.device.name(), &error)
    }

    /// Sees to it that every node finds as much scratch memory as it needs, and results that are moved as well.
    fn set_scratch_aside(&mut self, view: &GraphView<'_>, moved: usize) -> Result<(), BackendError> {
        let mut most = self.scratch.sizes;
        most.moved = most.moved.max(moved);
        for id in view.computing() {
            let need = ops::check(view.graph, id, self.precision);
            let ops::Need { scratch: work, columns } = need.map_err(|_| rules::unsupported(view.graph, id))?;
            most = most.max(Areas { work, columns, moved });
        }
        if most.total() > self.scratch.sizes.total() {
            let memory = DeviceMemory::new(&self.ready.context, most.total());
            let memory = memory.map_err(|error| match error.is_out_of_memory() {
                true => BackendError::OutOfMemory {
                    buffer_type: self.device.name().to_owned(),
                    bytes: most.total(),
                },
                false => self.failed(error),
            })?;
            self.scratch = Scratch {
                memory: Arc::new(memory),
                sizes: most,
            };
        }
        Ok(())
    }

    /// Queues the kernels of a plan: one by one at first, then as one.
    fn queue(&self, plan: &mut CudaPlan, cancel: &AtomicBool) -> Result<(), BackendError> {
        let failed = |error| device_error(self.device.name(), &error);
        if plan.recording.is_none() && plan.n_runs >= RUNS_BEFORE_RECORDING && plan.launches.len() > 1 {
            // SAFETY: see `launch`. A recording is dropped with the addresses that it holds, when its plan is prepared anew.
            let recording = unsafe {
                self.stream
                    .record(|| plan.launches.iter().try_for_each(|l| self.launch(plan, l)))
            };
            plan.recording = Some(recording.map_err(failed)?);
        }
        if let Some(recording) = &plan.recording {
            // SAFETY: see `launch`.
            return unsafe { self.stream.replay(recording) }.map_err(failed);
        }
        for launch in &plan.launches {
            if cancel.load(Ordering::Relaxed) {
                return Err(BackendError::Cancelled);
            }
            self.launch(plan, launch).map_err(failed)?;
        }
        plan.n_runs += 1;
        Ok(())
    }

    /// Queues a kernel of a plan whose graph and memory are those that it was prepared for.
    fn launch(&self, plan: &CudaPlan, launch: &Launch) -> Result<(), CudaError> {
        let parameters = plan.words[launch.parameters..].as_ptr().cast();
        // SAFETY: the words are what the op made for this kernel. Addresses are those of tensors within buffers that the map, whose
        // stamp is the same, still holds, and who holds it by `&mut` touches them in the order of this stream or waits for it; a buffer is
        // freed only when its context is idle. What is written lies in buffers of the map's own, or in the plan's scratch memory.
        unsafe { self.stream.launch(&launch.function, launch.shape, parameters) }
    }

    /// Staging memory of at least `len` bytes, new unless the copy of some that is kept is done, or too many are under way: then the oldest is to be
    /// waited for.
    fn staging(&self, len: usize) -> Result<Staging, BackendError> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // The oldest one that is large enough. Where its copy is under way, those of later ones are, too.
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
        plan.clear();
        (plan.version, plan.stamp) = (view.graph.version(), memory.stamp());
        let steps = fuse::steps(view, memory, self.precision);
        self.set_scratch_aside(view, steps.moved_bytes)?;
        plan.scratch = Some(self.scratch.clone());
        let mut faults = self.own.lock();
        let mut planner = Planner {
            device: self.device.name(),
            graph: view.graph,
            memory,
            library: &self.ready.library,
            faults: &mut faults,
            scratch: &self.scratch,
            moved: &steps.moved,
            precision: self.precision,
            plan: &mut plan,
        };
        for step in &steps.steps {
            ops::plan_step(view.graph, step, &mut planner).map_err(|refusal| match refusal {
                Refusal::Flaw(_) => rules::unsupported(view.graph, step.first()),
                Refusal::Error(error) => error,
            })?;
        }
        Ok(plan)
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
        self.queue(plan, cancel)?;
        if plan.has_faults {
            let fetched = self.own.lock().fetch(&self.stream);
            fetched.map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.stream.synchronize().map_err(|error| self.failed(error))?;
        self.watch.take()
    }

    fn write_async(&mut self, to: &mut dyn Buffer, offset: usize, data: &[u8]) -> Result<bool, BackendError> {
        check_range(to, offset, data.len())?;
        let buffer = to.as_any().downcast_ref::<CudaBuffer>().ok_or_else(|| foreign(to))?;
        for (i, piece) in data.chunks(MAX_STAGED).enumerate() {
            let (n, at) = (piece.len(), offset + i * MAX_STAGED);
            let mut staging = self.staging(n)?;
            staging.wait().map_err(|error| self.failed(error))?[..n].copy_from_slice(piece);
            let queued = self.stream.queue_write(buffer.memory(), at, &mut staging, n);
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
        let mut staging = self.staging(len.max(1))?;
        if len > 0 {
            let queued = self.stream.queue_read(buffer.memory(), offset, &mut staging, len);
            queued.map_err(|error| self.failed(error))?;
        }
        Ok(Some(Box::new(Pending {
            device: self.device.clone(),
            watch: self.watch.clone(),
            idle: self.idle.clone(),
            staging,
        })))
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
            self.copy_from_card(source, (from, start), (target, to.1), len)
        })
    }
}

impl CudaBackend {
    /// Queues a copy between cards, without the host waiting for either. False if the memory is not that of these backends' devices.
    fn copy_from_card(
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
            // What the source computes next may be stored where the copy reads.
            self.stream.mark(&self.point)?;
            source.stream.wait_for(&self.point)
        };
        queue().map(|()| true).map_err(|error| self.failed(error))
    }
}

/// Bytes on their way from the device.
struct Pending {
    device: Arc<dyn Device>,
    watch: Watch,
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

/// Keeps staging memory to be used again.
fn give_back(idle: &Idle, staging: Staging) {
    let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
    if idle.len() < MAX_IDLE {
        idle.push(staging);
    }
}
