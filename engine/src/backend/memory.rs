//! Buffers by number: where the tensors of a graph lie.
//!
//! Rust's ownership says who may touch which bytes. What one context alone uses (caches, intermediate results) is owned by its map and
//! written through `&mut`; weights are shared by any number of maps and only ever read. A computation borrows its map exclusively.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{BackendError, Buffer, Usage, check_range};
use crate::graph::{BufferId, Home};

/// Bytes that go through the host at a time when neither side of a copy is host memory.
const STAGE_BYTES: usize = 1 << 20;

/// A buffer as a [`MemoryMap`] holds it.
pub enum Held {
    /// Its own: read and written.
    Owned(Box<dyn Buffer>),
    /// Shared with other maps: read only.
    Shared(Arc<dyn Buffer>),
}

impl From<Box<dyn Buffer>> for Held {
    fn from(buffer: Box<dyn Buffer>) -> Held {
        Held::Owned(buffer)
    }
}

impl From<Arc<dyn Buffer>> for Held {
    fn from(buffer: Arc<dyn Buffer>) -> Held {
        Held::Shared(buffer)
    }
}

impl Held {
    fn as_ref(&self) -> &dyn Buffer {
        match self {
            Held::Owned(buffer) => &**buffer,
            Held::Shared(buffer) => &**buffer,
        }
    }

    fn is_writable(&self) -> bool {
        matches!(self, Held::Owned(buffer) if !buffer.is_read_only())
    }

    fn as_mut(&mut self) -> Result<&mut dyn Buffer, BackendError> {
        match self {
            Held::Owned(buffer) => Ok(&mut **buffer),
            Held::Shared(buffer) => Err(BackendError::ReadOnly {
                buffer_type: buffer.buffer_type().name().to_owned(),
            }),
        }
    }
}

/// Bytes of host memory that lie within one buffer of a [`MemoryMap`]. They stay there as long as the map's
/// [stamp](MemoryMap::stamp) is the same. To use them takes unsafe code, which must hold the map: by `&mut` to write.
#[derive(Clone, Copy, Debug)]
pub struct HostRange {
    /// The first byte.
    pub start: NonNull<u8>,
    /// Number of bytes.
    pub len: usize,
    /// Who holds the map by `&mut` may write here.
    pub writable: bool,
}

/// Every buffer that a graph's tensors may live in, by [`BufferId`].
///
/// A map cannot be cloned, since its buffers are its own:
/// ```compile_fail,E0599
/// # use engine::backend::MemoryMap;
/// let map = MemoryMap::default();
/// let other = map.clone();
/// ```
/// Nor can somebody write while another reads:
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
    buffers: Vec<(Option<Held>, Usage)>,
    stamp: u64,
}

impl MemoryMap {
    /// Adds a buffer: a `Box` that becomes the map's own, or an `Arc` that others read too.
    pub fn insert(&mut self, buffer: impl Into<Held>, usage: Usage) -> BufferId {
        let id = BufferId(u32::try_from(self.buffers.len()).expect("fewer than 2^32 buffers"));
        self.buffers.push((Some(buffer.into()), usage));
        self.stamp = new_stamp();
        id
    }

    /// Puts another buffer in the place of an existing one; tensors that live there must be placed anew. Panics if the map never gave
    /// this id.
    pub fn replace(&mut self, id: BufferId, buffer: impl Into<Held>) {
        self.buffers[id.0 as usize].0 = Some(buffer.into());
        self.stamp = new_stamp();
    }

    /// Lets go of a buffer; its id stays taken until [`replace`](MemoryMap::replace) puts another one there. Panics if the map never
    /// gave this id.
    pub fn release(&mut self, id: BufferId) {
        self.buffers[id.0 as usize].0 = None;
        self.stamp = new_stamp();
    }

    /// A number that no other map has, and that changes with every buffer that comes or goes; 0 while the map is new. What was found
    /// out about the buffers, addresses above all, holds as long as it is the same.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// The buffer with this id, for reading. An error if there is none.
    pub fn get(&self, id: BufferId) -> Result<&dyn Buffer, BackendError> {
        Ok(self.held(id)?.as_ref())
    }

    /// The buffer with this id, for writing. An error if there is none, or if it is shared.
    pub fn get_mut(&mut self, id: BufferId) -> Result<&mut dyn Buffer, BackendError> {
        let held = self.buffers.get_mut(id.0 as usize).and_then(|(held, _)| held.as_mut());
        held.ok_or(BackendError::NoBuffer(id))?.as_mut()
    }

    /// What the buffer is used for; [`Usage::Any`] if there is none.
    pub fn usage(&self, id: BufferId) -> Usage {
        self.buffers.get(id.0 as usize).map_or(Usage::Any, |(_, usage)| *usage)
    }

    /// True if there is a buffer with this id that may be written.
    pub fn is_writable(&self, id: BufferId) -> bool {
        self.held(id).is_ok_and(Held::is_writable)
    }

    /// Reads from a buffer into `out`.
    pub fn read(&self, from: Home, out: &mut [u8]) -> Result<(), BackendError> {
        self.get(from.buffer)?.read(from.offset, out)
    }

    /// Writes `data` to a buffer.
    pub fn write(&mut self, to: Home, data: &[u8]) -> Result<(), BackendError> {
        self.get_mut(to.buffer)?.write(to.offset, data)
    }

    /// A buffer to read and another one to write. An error if they are the same.
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

    /// Copies `len` bytes through host memory, when both sides are idle. Two ranges of one buffer must not overlap. `stage` is kept by
    /// the caller to allocate once.
    pub fn copy(&mut self, from: Home, to: Home, len: usize, stage: &mut Vec<u8>) -> Result<(), BackendError> {
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

    /// Where `len` bytes lie in host memory. `None` if their buffer is elsewhere; an error if they are not all within it.
    pub fn host_range(&self, home: Home, len: usize) -> Result<Option<HostRange>, BackendError> {
        let held = self.held(home.buffer)?;
        let buffer = held.as_ref();
        check_range(buffer, home.offset, len)?;
        let range = |base: NonNull<u8>| HostRange {
            // SAFETY: the range was just found to lie within the buffer, whose bytes begin at `base`.
            start: unsafe { base.add(home.offset) },
            len,
            writable: held.is_writable(),
        };
        Ok(buffer.host_ptr().map(range))
    }

    fn held(&self, id: BufferId) -> Result<&Held, BackendError> {
        let held = self.buffers.get(id.0 as usize).and_then(|(held, _)| held.as_ref());
        held.ok_or(BackendError::NoBuffer(id))
    }
}

fn new_stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
