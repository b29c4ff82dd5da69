//! Input errors found by kernels, such as row indices out of range. A kernel records the error on the device,
//! and the next read of results returns it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable};

use super::context::{Context, DeviceMemory, Staging, Stream, device_error};
use super::driver::CudaError;
use crate::backend::{BackendError, Device};
use crate::graph::Name;

/// Error record that kernels write; the layout matches `common.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ErrorRecord {
    /// Index of the node's name, starting at 1; 0 if no error occurred.
    node: u32,
    rows: u32,
    row: i64,
}

/// The error record on the device, and a host copy.
pub(super) struct ErrorBuffer {
    memory: DeviceMemory,
    copied: Staging,
    /// Node names; a kernel records the index plus 1.
    names: Vec<Name>,
    numbers: HashMap<Name, u32>,
}

impl ErrorBuffer {
    pub(super) fn new(context: &Arc<Context>, stream: &Stream) -> Result<ErrorBuffer, CudaError> {
        let memory = DeviceMemory::new(context, size_of::<ErrorRecord>())?;
        stream.zero(&memory, 0, memory.len())?;
        Ok(ErrorBuffer {
            copied: Staging::new(context, memory.len())?,
            memory,
            names: Vec::new(),
            numbers: HashMap::new(),
        })
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Returns the index of a node's name.
    pub(super) fn number(&mut self, name: Name) -> u32 {
        let names = &mut self.names;
        *self.numbers.entry(name).or_insert_with(|| {
            names.push(name);
            names.len() as u32
        })
    }

    /// Enqueues a copy of the record to the host. Called once per run that may record an error.
    pub(super) fn fetch(&mut self, stream: &Stream) -> Result<(), CudaError> {
        stream.queue_read(&self.memory, 0, &mut self.copied, size_of::<ErrorRecord>())
    }

    /// Returns the first error of the runs so far and clears the record.
    fn take(&mut self, device: &str, stream: &Stream) -> Result<(), BackendError> {
        let failed = |error| device_error(device, &error);
        let bytes = self.copied.wait().map_err(failed)?;
        let fault: ErrorRecord = bytemuck::pod_read_unaligned(bytes);
        let Some(name) = (fault.node as usize).checked_sub(1).and_then(|i| self.names.get(i)) else {
            return Ok(());
        };
        bytes.fill(0);
        stream.zero(&self.memory, 0, size_of::<ErrorRecord>()).map_err(failed)?;
        Err(BackendError::Device {
            device: device.to_owned(),
            message: format!(
                "{name}: index {} is out of range for a table of {} rows",
                fault.row, fault.rows
            ),
        })
    }
}

/// Error record of the kernels of a stream.
#[derive(Clone)]
pub(super) struct WatchedStream {
    device: Arc<dyn Device>,
    stream: Arc<Stream>,
    faults: Arc<Mutex<ErrorBuffer>>,
}

impl WatchedStream {
    /// Creates the record for a new backend of a device.
    pub(super) fn new(
        device: Arc<dyn Device>,
        context: &Arc<Context>,
        stream: &Arc<Stream>,
    ) -> Result<WatchedStream, CudaError> {
        Ok(WatchedStream {
            faults: Arc::new(Mutex::new(ErrorBuffer::new(context, stream)?)),
            stream: stream.clone(),
            device,
        })
    }

    /// Locks the record.
    pub(super) fn lock(&self) -> MutexGuard<'_, ErrorBuffer> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Result<(), BackendError> {
        self.lock().take(self.device.name(), &self.stream)
    }
}

/// Error records of all streams that contributed to a backend's results: its own stream, and the streams of backends
/// that it copied from. Results computed from an invalid index must not be used, whichever GPU found the error.
#[derive(Clone)]
pub(super) struct ErrorWatch(Arc<Mutex<Vec<WatchedStream>>>);

impl ErrorWatch {
    /// Creates a watch with only the backend's own stream.
    pub(super) fn new(own: WatchedStream) -> ErrorWatch {
        ErrorWatch(Arc::new(Mutex::new(vec![own])))
    }

    fn list(&self) -> MutexGuard<'_, Vec<WatchedStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the streams that another backend watches. Returns true if any of these streams is new.
    pub(super) fn add(&self, source: &ErrorWatch) -> bool {
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

    /// Returns the first error of the runs so far and clears the record.
    pub(super) fn take(&self) -> Result<(), BackendError> {
        self.list().iter().try_for_each(WatchedStream::take)
    }
}
