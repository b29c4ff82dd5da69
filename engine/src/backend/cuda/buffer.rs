//! Device memory as engine buffers, and uploads from host memory.

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::context::{Context, DeviceMemory, Staging, Stream, device_error};
use super::driver::CudaError;
use crate::backend::{BackendError, Buffer, BufferType, Stored, Upload, check_range};

/// Alignment of tensors in bytes, as required by the widest loads of a warp.
const ALIGNMENT: usize = 256;

/// Buffer type of a device's memory.
#[derive(Clone)]
pub(super) struct CudaBufferType {
    /// Name of the device.
    name: Arc<str>,
    context: Arc<Context>,
    /// Stream for synchronous copies.
    stream: Arc<Stream>,
    total: usize,
}

impl CudaBufferType {
    /// Describes the memory of the named device, `total` bytes.
    pub(super) fn new(name: &str, context: &Arc<Context>, total: usize) -> Result<CudaBufferType, CudaError> {
        Ok(CudaBufferType {
            name: name.into(),
            context: context.clone(),
            stream: Arc::new(Stream::new(context)?),
            total,
        })
    }
}

impl BufferType for CudaBufferType {
    fn name(&self) -> &str {
        &self.name
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn max_size(&self) -> usize {
        self.total
    }

    fn is_host(&self) -> bool {
        false
    }

    fn allocate(&self, size: usize) -> Result<Box<dyn Buffer>, BackendError> {
        let failed = |error: CudaError| {
            if !error.is_out_of_memory() {
                return device_error(&self.name, &error);
            }
            BackendError::OutOfMemory {
                buffer_type: self.name.to_string(),
                bytes: size,
            }
        };
        let memory = DeviceMemory::new(&self.context, size).map_err(failed)?;
        if size > 0 {
            self.stream.zero(&memory, 0, size).map_err(failed)?;
            self.stream.synchronize().map_err(failed)?;
        }
        Ok(Box::new(CudaBuffer {
            buffer_type: Arc::new(self.clone()),
            name: self.name.clone(),
            stream: self.stream.clone(),
            memory: Arc::new(memory),
        }))
    }
}

/// A buffer in device memory.
pub(super) struct CudaBuffer {
    buffer_type: Arc<dyn BufferType>,
    name: Arc<str>,
    stream: Arc<Stream>,
    /// Shared with writes that are not enqueued yet.
    memory: Arc<DeviceMemory>,
}

impl CudaBuffer {
    /// Returns the underlying device memory.
    pub(super) fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }

    fn failed(&self, error: CudaError) -> BackendError {
        device_error(&self.name, &error)
    }
}

// SAFETY: `host_ptr` returns `None`, so no address is exposed.
unsafe impl Buffer for CudaBuffer {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        &self.buffer_type
    }

    fn size(&self) -> usize {
        self.memory.len()
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }

    fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), BackendError> {
        check_range(self, offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        let written = self.stream.write(&self.memory, offset, data);
        written.map_err(|error| self.failed(error))
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        check_range(self, offset, out.len())?;
        if out.is_empty() {
            return Ok(());
        }
        let read = self.stream.read(&self.memory, offset, out);
        read.map_err(|error| self.failed(error))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Size of an upload slot in bytes. Large enough to amortize the latency of a transfer.
const SLOT: usize = 4 << 20;
/// Number of slots: one being filled, one being transferred, and one in between.
const N_SLOTS: usize = 3;

/// An upload through a ring of pinned buffers. The host fills one slot while the device transfers another, so
/// that file reads and transfers overlap.
pub(super) struct CudaUpload {
    buffer: Box<dyn Buffer>,
    stream: Stream,
    slots: Vec<Staging>,
    next: usize,
}

impl CudaUpload {
    /// Starts an upload into a buffer of this device.
    pub(super) fn new(buffer: Box<dyn Buffer>, context: &Arc<Context>) -> Result<CudaUpload, CudaError> {
        let slots = (0..N_SLOTS).map(|_| Staging::new(context, SLOT));
        Ok(CudaUpload {
            slots: slots.collect::<Result<_, _>>()?,
            stream: Stream::new(context)?,
            buffer,
            next: 0,
        })
    }

    fn write(&mut self, mut offset: usize, data: &[u8]) -> Result<(), BackendError> {
        check_range(&*self.buffer, offset, data.len())?;
        let ours = self.buffer.as_any().downcast_ref::<CudaBuffer>();
        let ours = ours.ok_or_else(|| foreign(&*self.buffer))?;
        for piece in data.chunks(SLOT) {
            let slot = &mut self.slots[self.next];
            slot.wait().map_err(|error| ours.failed(error))?[..piece.len()].copy_from_slice(piece);
            let queued = self.stream.queue_write(&ours.memory, offset, slot, 0..piece.len());
            queued.map_err(|error| ours.failed(error))?;
            offset += piece.len();
            self.next = (self.next + 1) % N_SLOTS;
        }
        Ok(())
    }
}

impl Upload for CudaUpload {
    fn set_tensor(&mut self, tensor: &Stored, rows: Range<usize>, data: &[u8]) -> Result<(), BackendError> {
        let (offset, stored) = tensor.pack(&rows, data)?;
        self.write(offset, &stored)
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn Buffer>, BackendError> {
        let name = self.buffer.buffer_type().name();
        self.stream.synchronize().map_err(|error| device_error(name, &error))?;
        Ok(self.buffer)
    }
}

/// Returns the error for an operand that is not in device memory.
pub(super) fn foreign(buffer: &dyn Buffer) -> BackendError {
    BackendError::Device {
        device: "cuda".to_owned(),
        message: format!("cannot access an operand in {:?} memory", buffer.buffer_type()),
    }
}
