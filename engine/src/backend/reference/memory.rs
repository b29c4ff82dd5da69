//! Private memory of the reference backend. Other backends cannot access it, and its size is configurable, so
//! that placement and copies between devices can be tested on any machine.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::backend::{BackendError, Buffer, BufferType, check_range};

const NAME: &str = "reference";

/// Memory of a given size, shared by all buffers of a device.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) total: usize,
    used: AtomicUsize,
}

impl Budget {
    pub(super) fn new(total: usize) -> Budget {
        Budget {
            total,
            used: AtomicUsize::new(0),
        }
    }

    pub(super) fn free(&self) -> usize {
        self.total - self.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&sum| sum <= self.total)
        });
        taken.is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The kind of memory that only the reference backend can access.
#[derive(Clone, Debug)]
pub(super) struct ReferenceBufferType {
    pub(super) budget: Arc<Budget>,
}

impl BufferType for ReferenceBufferType {
    fn name(&self) -> &str {
        NAME
    }

    fn alignment(&self) -> usize {
        32
    }

    fn max_size(&self) -> usize {
        self.budget.total
    }

    fn is_host(&self) -> bool {
        false
    }

    fn allocate(&self, size: usize) -> Result<Box<dyn Buffer>, BackendError> {
        let out_of_memory = || BackendError::OutOfMemory {
            buffer_type: NAME.to_string(),
            bytes: size,
        };
        if !self.budget.take(size) {
            return Err(out_of_memory());
        }
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(size).is_err() {
            self.budget.give_back(size);
            return Err(out_of_memory());
        }
        bytes.resize(size, 0);
        Ok(Box::new(ReferenceBuffer {
            buffer_type: Arc::new(self.clone()),
            budget: self.budget.clone(),
            bytes,
        }))
    }
}

/// A buffer in the reference backend's memory.
pub(super) struct ReferenceBuffer {
    buffer_type: Arc<dyn BufferType>,
    budget: Arc<Budget>,
    bytes: Vec<u8>,
}

impl ReferenceBuffer {
    /// Returns `len` bytes at `offset`.
    pub(super) fn part(&self, offset: usize, len: usize) -> Result<&[u8], BackendError> {
        check_range(self, offset, len)?;
        Ok(&self.bytes[offset..offset + len])
    }

    /// Returns `len` bytes at `offset` for writing.
    pub(super) fn part_mut(&mut self, offset: usize, len: usize) -> Result<&mut [u8], BackendError> {
        check_range(self, offset, len)?;
        Ok(&mut self.bytes[offset..offset + len])
    }
}

impl Drop for ReferenceBuffer {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes.len());
    }
}

// SAFETY: `host_ptr` returns `None`, so no address is exposed.
unsafe impl Buffer for ReferenceBuffer {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        &self.buffer_type
    }

    fn size(&self) -> usize {
        self.bytes.len()
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }

    fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), BackendError> {
        self.part_mut(offset, data.len())?.copy_from_slice(data);
        Ok(())
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        out.copy_from_slice(self.part(offset, out.len())?);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_limited_and_released() {
        let ty = ReferenceBufferType {
            budget: Arc::new(Budget::new(100)),
        };
        let a = ty.allocate(60).unwrap();
        assert!(matches!(
            ty.allocate(41),
            Err(BackendError::OutOfMemory { bytes: 41, .. })
        ));
        assert!(matches!(ty.allocate(usize::MAX), Err(BackendError::OutOfMemory { .. })));
        let mut b = ty.allocate(40).unwrap();
        assert_eq!(ty.budget.free(), 0);
        drop(a);
        assert_eq!(ty.budget.free(), 60);
        b.write(38, &[1, 2]).unwrap();
        let mut out = [0; 3];
        b.read(37, &mut out).unwrap();
        assert_eq!(out, [0, 1, 2]);
        assert!(matches!(b.read(38, &mut out), Err(BackendError::OutOfBounds { .. })));
        assert!(b.host_ptr().is_none());
    }
}
