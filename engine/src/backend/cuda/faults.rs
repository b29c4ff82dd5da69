//! Numbers beyond their tables that kernels find: noted on the device, told to whoever reads results.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable};

use super::context::{Context, DeviceMemory, Staging, Stream, device_error};
use super::driver::CudaError;
use crate::backend::{BackendError, Device};
use crate::graph::Name;

/// As kernels note a fault: see `common.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Fault {
    /// Number of the node's name, counted from 1; 0 if there was none.
    node: u32,
    rows: u32,
    row: i64,
}

/// What kernels noted: on the device, and as it was copied from there last.
pub(super) struct Faults {
    memory: DeviceMemory,
    copied: Staging,
    /// Names by number, less 1.
    names: Vec<Name>,
    numbers: HashMap<Name, u32>,
}

impl Faults {
    pub(super) fn new(context: &Arc<Context>, stream: &Stream) -> Result<Faults, CudaError> {
        let memory = DeviceMemory::new(context, size_of::<Fault>())?;
        stream.zero(&memory, 0, memory.len())?;
        Ok(Faults {
            copied: Staging::new(context, memory.len())?,
            memory,
            names: Vec::new(),
            numbers: HashMap::new(),
        })
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.address()
    }

    /// The number of a name.
    pub(super) fn number(&mut self, name: Name) -> u32 {
        let names = &mut self.names;
        *self.numbers.entry(name).or_insert_with(|| {
            names.push(name);
            names.len() as u32
        })
    }

    /// Queues the copy, once for each run that may have noted something.
    pub(super) fn fetch(&mut self, stream: &Stream) -> Result<(), CudaError> {
        stream.queue_read(&self.memory, 0, &mut self.copied, size_of::<Fault>())
    }

    /// The first fault of the runs so far, which is then forgotten.
    fn take(&mut self, device: &str, stream: &Stream) -> Result<(), BackendError> {
        let failed = |error| device_error(device, &error);
        let bytes = self.copied.wait().map_err(failed)?;
        let fault: Fault = bytemuck::pod_read_unaligned(bytes);
        let Some(name) = (fault.node as usize).checked_sub(1).and_then(|i| self.names.get(i)) else {
            return Ok(());
        };
        bytes.fill(0);
        stream.zero(&self.memory, 0, size_of::<Fault>()).map_err(failed)?;
        Err(BackendError::Device {
            device: device.to_owned(),
            message: format!("{name}: row {} of {}", fault.row, fault.rows),
        })
    }
}

/// Faults of the kernels of a stream.
#[derive(Clone)]
pub(super) struct Watched {
    device: Arc<dyn Device>,
    stream: Arc<Stream>,
    faults: Arc<Mutex<Faults>>,
}

impl Watched {
    /// Those of a new backend of a device.
    pub(super) fn new(
        device: Arc<dyn Device>,
        context: &Arc<Context>,
        stream: &Arc<Stream>,
    ) -> Result<Watched, CudaError> {
        Ok(Watched {
            faults: Arc::new(Mutex::new(Faults::new(context, stream)?)),
            stream: stream.clone(),
            device,
        })
    }

    /// The faults, for kernels to note some.
    pub(super) fn lock(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Result<(), BackendError> {
        self.lock().take(self.device.name(), &self.stream)
    }
}

/// The streams that results of a backend come from: its own, and those of backends that it copied from. What was computed from a number beyond its
/// table, wherever, is not to be used.
#[derive(Clone)]
pub(super) struct Watch(Arc<Mutex<Vec<Watched>>>);

impl Watch {
    /// Of a backend that has not copied anything.
    pub(super) fn new(own: Watched) -> Watch {
        Watch(Arc::new(Mutex::new(vec![own])))
    }

    fn list(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches what another backend watches, too. True if that is new.
    pub(super) fn add(&self, source: &Watch) -> bool {
        let theirs = source.list().clone();
        let mut list = self.list();
        let before = list.len();
        for watched in theirs {
            if !list.iter().any(|known| Arc::ptr_eq(&known.stream, &watched.stream)) {
                list.push(watched);
            }
        }
        list.len() > before
    }

    /// The first fault of the runs so far, which is then forgotten.
    pub(super) fn take(&self) -> Result<(), BackendError> {
        self.list().iter().try_for_each(Watched::take)
    }
}
