//! Batches small writes to device memory, such as the inputs of a decode step: one host-to-device copy, and a kernel
//! that scatters the bytes.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable, bytes_of};

use super::context::{Context, DeviceMemory, Function, LaunchShape, Staging, Start, Stream};
use super::driver::CudaError;
use super::kernel::{Kernel, SCATTER};

/// Maximum number of writes per batch; matches `scatter.cu`.
const MAX_RANGES: usize = 16;

/// Bytes of the staging buffer of a batch.
const PIECE: usize = 256 << 10;

/// Largest write that is batched, in bytes.
const MAX_WRITE: usize = 64 << 10;

/// Alignment of a write in the staging buffer.
const ALIGNMENT: usize = 16;

/// Threads per block of `scatter.cu`.
const THREADS: u32 = 256;

/// Bytes that a block copies.
const BYTES_OF_BLOCK: usize = 16 << 10;

/// Number of staging buffers: one is filled while the copy of the other is in flight.
const N_PIECES: usize = 2;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct RangeArg {
    to: u64,
    at: u32,
    bytes: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    from: u64,
    ranges: [RangeArg; MAX_RANGES],
}

/// Pending write. Keeps the destination alive until the write is enqueued.
struct Pending {
    memory: Arc<DeviceMemory>,
    offset: usize,
    at: usize,
    len: usize,
}

impl Pending {
    fn overlaps(&self, memory: &Arc<DeviceMemory>, offset: usize, len: usize) -> bool {
        Arc::ptr_eq(&self.memory, memory) && self.offset < offset + len && offset < self.offset + self.len
    }
}

/// Batch of pending writes.
pub(super) struct Writes {
    pieces: Vec<Staging>,
    /// Device copy of the staging buffer.
    arena: DeviceMemory,
    current: usize,
    len: usize,
    pending: Vec<Pending>,
    /// Kernel that scatters the bytes. Until the kernel is loaded, each write is a copy.
    function: Option<Arc<Function>>,
}

/// Returns the kernel that scatters a batch.
pub(super) fn kernel() -> Kernel {
    Kernel::new(&SCATTER, "scatter")
}

impl Writes {
    pub(super) fn new(context: &Arc<Context>) -> Result<Writes, CudaError> {
        let pieces = (0..N_PIECES).map(|_| Staging::new(context, PIECE));
        Ok(Writes {
            pieces: pieces.collect::<Result<_, _>>()?,
            arena: DeviceMemory::new(context, PIECE)?,
            current: 0,
            len: 0,
            pending: Vec::with_capacity(MAX_RANGES),
            function: None,
        })
    }

    /// Sets the loaded kernel.
    pub(super) fn use_kernel(&mut self, function: Arc<Function>) {
        self.function = Some(function);
    }

    /// Returns true if the kernel is loaded.
    pub(super) fn has_kernel(&self) -> bool {
        self.function.is_some()
    }

    /// Returns true if [`Writes::add`] accepts a write of `len` bytes to `memory`: the kernel must be able to
    /// access the memory.
    pub(super) fn suits(&self, memory: &DeviceMemory, len: usize) -> bool {
        (1..=MAX_WRITE).contains(&len) && Arc::ptr_eq(memory.context(), self.arena.context())
    }

    /// Adds a write to the batch. The caller checks the bounds of `memory`. A full batch, or one with an overlapping
    /// destination, is enqueued first.
    pub(super) fn add(
        &mut self,
        stream: &Stream,
        memory: &Arc<DeviceMemory>,
        offset: usize,
        data: &[u8],
    ) -> Result<(), CudaError> {
        let is_full = self.pending.len() == MAX_RANGES || self.len + data.len() > PIECE;
        if is_full
            || self
                .pending
                .iter()
                .any(|write| write.overlaps(memory, offset, data.len()))
        {
            self.flush(stream)?;
        }
        let piece = self.pieces[self.current].wait()?;
        piece[self.len..][..data.len()].copy_from_slice(data);
        self.pending.push(Pending {
            memory: memory.clone(),
            offset,
            at: self.len,
            len: data.len(),
        });
        self.len = (self.len + data.len()).next_multiple_of(ALIGNMENT);
        Ok(())
    }

    /// Enqueues all writes.
    pub(super) fn flush(&mut self, stream: &Stream) -> Result<(), CudaError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let queued = self.queue(stream);
        self.pending.clear();
        self.len = 0;
        self.current = (self.current + 1) % N_PIECES;
        queued
    }

    fn queue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let piece = &mut self.pieces[self.current];
        let function = if self.pending.len() > 1 {
            self.function.as_ref()
        } else {
            None
        };
        let Some(function) = function else {
            let mut each = self.pending.iter();
            return each.try_for_each(|write| {
                stream.queue_write(&write.memory, write.offset, piece, write.at..write.at + write.len)
            });
        };
        let end = self.pending.last().map_or(0, |write| write.at + write.len);
        stream.queue_write(&self.arena, 0, piece, 0..end)?;
        let mut params = Params {
            from: self.arena.address(),
            ranges: [RangeArg::zeroed(); MAX_RANGES],
        };
        for (range, write) in params.ranges.iter_mut().zip(&self.pending) {
            *range = RangeArg {
                to: write.memory.address() + write.offset as u64,
                at: write.at as u32,
                bytes: write.len as u32,
            };
        }
        let longest = self.pending.iter().map(|write| write.len).max().unwrap_or(0);
        let shape = LaunchShape {
            grid: [longest.div_ceil(BYTES_OF_BLOCK) as u32, self.pending.len() as u32, 1],
            block: THREADS,
            shared: 0,
        };
        // SAFETY: `params` is the parameter struct of `scatter.cu`. The ranges are within the arena and within
        // memory whose bounds the caller of `add` checked, and do not overlap. Memory is freed only after its
        // context is idle.
        unsafe { stream.launch(function, shape, Start::InOrder, bytes_of(&params).as_ptr().cast()) }
    }
}
