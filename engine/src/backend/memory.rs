//! Buffers by id, in which the tensors of a graph are stored.
//!
//! Access follows Rust's ownership rules. A map owns the memory that a single context uses (caches,
//! intermediate results) and writes to it through `&mut`. Weights are shared by any number of maps and only
//! read. A computation borrows its map exclusively.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{BackendError, Buffer, Usage, check_range};
use crate::graph::{BufferId, BufferSlice};

/// Size of the staging buffer for copies in which neither side is host memory.
const STAGE_BYTES: usize = 1 << 20;

/// A buffer in a [`MemoryMap`].
pub enum BufferRef {
    /// Owned by the map: readable and writable.
    Owned(Box<dyn Buffer>),
    /// Shared with other maps: read-only.
    Shared(Arc<dyn Buffer>),
}

impl From<Box<dyn Buffer>> for BufferRef {
    fn from(buffer: Box<dyn Buffer>) -> BufferRef {
        BufferRef::Owned(buffer)
    }
}

impl From<Arc<dyn Buffer>> for BufferRef {
    fn from(buffer: Arc<dyn Buffer>) -> BufferRef {
        BufferRef::Shared(buffer)
    }
}

impl BufferRef {
    fn as_ref(&self) -> &dyn Buffer {
        match self {
            BufferRef::Owned(buffer) => &**buffer,
            BufferRef::Shared(buffer) => &**buffer,
        }
    }

    fn is_writable(&self) -> bool {
        matches!(self, BufferRef::Owned(buffer) if !buffer.is_read_only())
    }

    fn as_mut(&mut self) -> Result<&mut dyn Buffer, BackendError> {
        match self {
            BufferRef::Owned(buffer) => Ok(&mut **buffer),
            BufferRef::Shared(buffer) => Err(BackendError::ReadOnly {
                buffer_type: buffer.buffer_type().name().to_owned(),
            }),
        }
    }
}

/// A range of host memory within a buffer of a [`MemoryMap`].
///
/// The range stays valid while the map's [stamp](MemoryMap::stamp) is unchanged. Access requires unsafe code
/// that borrows the map, with `&mut` for writing.
#[derive(Clone, Copy, Debug)]
pub struct HostRange {
    /// Pointer to the first byte.
    pub start: NonNull<u8>,
    /// Number of bytes.
    pub len: usize,
    /// True if code that borrows the map with `&mut` may write here.
    pub writable: bool,
}

/// All buffers that a graph's tensors may be stored in, by [`BufferId`].
///
/// A map cannot be cloned, since it owns its buffers:
/// ```compile_fail,E0599
/// # use engine::backend::MemoryMap;
/// let map = MemoryMap::default();
/// let other = map.clone();
/// ```
/// A buffer cannot be written while it is borrowed for reading:
/// ```compile_fail,E0502
/// # use engine::backend::{MemoryMap, Usage, default_device};
/// let mut map = MemoryMap::default();
/// let id = map.insert(default_device().buffer_type().allocate(8).unwrap(), Usage::Any);
/// let reader = map.get(id).unwrap();
/// map.get_mut(id).unwrap().write(0, &[1]).unwrap();
/// reader.read(0, &mut [0]).unwrap();
/// ```
#[derive(Default)]
pub struct MemoryMap {
    buffers: Vec<(Option<BufferRef>, Usage)>,
    stamp: u64,
}

impl MemoryMap {
    /// Adds a buffer: a `Box` that the map then owns, or a shared, read-only `Arc`.
    pub fn insert(&mut self, buffer: impl Into<BufferRef>, usage: Usage) -> BufferId {
        let id = BufferId(u32::try_from(self.buffers.len()).expect("fewer than 2^32 buffers exist"));
        self.buffers.push((Some(buffer.into()), usage));
        self.stamp = new_stamp();
        id
    }

    /// Replaces the buffer with this id. Tensors in the old buffer must be placed again.
    ///
    /// Panics if the id does not belong to this map.
    pub fn replace(&mut self, id: BufferId, buffer: impl Into<BufferRef>) {
        self.buffers[id.0 as usize].0 = Some(buffer.into());
        self.stamp = new_stamp();
    }

    /// Releases the buffer with this id. The id stays reserved until [`replace`](MemoryMap::replace) assigns
    /// a new buffer.
    ///
    /// Panics if the id does not belong to this map.
    pub fn release(&mut self, id: BufferId) {
        self.buffers[id.0 as usize].0 = None;
        self.stamp = new_stamp();
    }

    /// Returns a process-wide unique number that changes whenever a buffer is added, replaced, or released; 0
    /// for a new map.
    ///
    /// Addresses and other facts about the buffers stay valid while the stamp is unchanged.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Returns the buffer with this id for reading, or an error if it does not exist.
    pub fn get(&self, id: BufferId) -> Result<&dyn Buffer, BackendError> {
        Ok(self.buffer(id)?.as_ref())
    }

    /// Returns the buffer with this id for writing, or an error if it does not exist or is shared.
    pub fn get_mut(&mut self, id: BufferId) -> Result<&mut dyn Buffer, BackendError> {
        let buffer = self
            .buffers
            .get_mut(id.0 as usize)
            .and_then(|(buffer, _)| buffer.as_mut());
        buffer.ok_or(BackendError::NoBuffer(id))?.as_mut()
    }

    /// Returns the purpose of the buffer, or [`Usage::Any`] if it does not exist.
    pub fn usage(&self, id: BufferId) -> Usage {
        self.buffers.get(id.0 as usize).map_or(Usage::Any, |(_, usage)| *usage)
    }

    /// Returns true if the buffer exists and is writable.
    pub fn is_writable(&self, id: BufferId) -> bool {
        self.buffer(id).is_ok_and(BufferRef::is_writable)
    }

    /// Copies bytes from a buffer into `out`.
    pub fn read(&self, from: BufferSlice, out: &mut [u8]) -> Result<(), BackendError> {
        self.get(from.buffer)?.read(from.offset, out)
    }

    /// Copies `data` into a buffer.
    pub fn write(&mut self, to: BufferSlice, data: &[u8]) -> Result<(), BackendError> {
        self.get_mut(to.buffer)?.write(to.offset, data)
    }

    /// Returns one buffer for reading and another for writing. Returns an error if the ids are equal.
    pub fn pair(&mut self, from: BufferId, to: BufferId) -> Result<(&dyn Buffer, &mut dyn Buffer), BackendError> {
        let indices = [from.0 as usize, to.0 as usize];
        let missing = if indices[0] < self.buffers.len() { to } else { from };
        let Ok([(source, _), (target, _)]) = self.buffers.get_disjoint_mut(indices) else {
            return Err(BackendError::NoBuffer(missing));
        };
        let source = source.as_ref().ok_or(BackendError::NoBuffer(from))?;
        let target = target.as_mut().ok_or(BackendError::NoBuffer(to))?;
        Ok((source.as_ref(), target.as_mut()?))
    }

    /// Copies `len` bytes through host memory. Both devices must be idle, and two ranges of the same buffer
    /// must not overlap.
    ///
    /// `stage` is a staging buffer that the caller reuses between calls.
    pub fn copy(
        &mut self,
        from: BufferSlice,
        to: BufferSlice,
        len: usize,
        stage: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        for home in [from, to] {
            let buffer = self.get(home.buffer)?;
            check_range(buffer, home.offset, len)?;
        }
        if from.buffer != to.buffer {
            let (source, target) = self.pair(from.buffer, to.buffer)?;
            if let Some(bytes) = source.bytes() {
                return target.write(to.offset, &bytes[from.offset..][..len]);
            }
            if let Some(bytes) = target.bytes_mut() {
                return source.read(from.offset, &mut bytes[to.offset..][..len]);
            }
        }
        stage.resize(STAGE_BYTES, 0);
        for done in (0..len).step_by(STAGE_BYTES) {
            let piece = &mut stage[..STAGE_BYTES.min(len - done)];
            self.get(from.buffer)?.read(from.offset + done, piece)?;
            self.get_mut(to.buffer)?.write(to.offset + done, piece)?;
        }
        Ok(())
    }

    /// Returns the host memory of `len` bytes at `home`, or `None` if the CPU cannot access the buffer.
    /// Returns an error if the range extends beyond the buffer.
    pub fn host_range(&self, home: BufferSlice, len: usize) -> Result<Option<HostRange>, BackendError> {
        let entry = self.buffer(home.buffer)?;
        let buffer = entry.as_ref();
        check_range(buffer, home.offset, len)?;
        let range = |base: NonNull<u8>| HostRange {
            // SAFETY: `check_range` verified that the range is within the buffer, which starts at `base`.
            start: unsafe { base.add(home.offset) },
            len,
            writable: entry.is_writable(),
        };
        Ok(buffer.host_ptr().map(range))
    }

    fn buffer(&self, id: BufferId) -> Result<&BufferRef, BackendError> {
        let buffer = self.buffers.get(id.0 as usize).and_then(|(buffer, _)| buffer.as_ref());
        buffer.ok_or(BackendError::NoBuffer(id))
    }
}

fn new_stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
