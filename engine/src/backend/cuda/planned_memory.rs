//! Memory of a GPU that only plans: ranges of addresses without contents.

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::{BackendError, Buffer, BufferType, Stored, check_range};

/// Alignment of buffers and tensors in bytes, as on a GPU.
const ALIGNMENT: usize = 256;

/// Address of the first buffer.
const FIRST_ADDRESS: u64 = 1 << 40;

/// Memory with addresses but without contents.
pub(super) struct Addresses {
    /// Address of the next buffer.
    next: Arc<AtomicU64>,
}

impl Addresses {
    pub(super) fn new() -> Addresses {
        Addresses {
            next: Arc::new(AtomicU64::new(FIRST_ADDRESS)),
        }
    }
}

impl BufferType for Addresses {
    fn name(&self) -> &str {
        "planning"
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn is_host(&self) -> bool {
        false
    }

    fn allocate(&self, size: usize) -> Result<Box<dyn Buffer>, BackendError> {
        let bytes = size.next_multiple_of(ALIGNMENT) as u64;
        Ok(Box::new(PlannedBuffer {
            buffer_type: Arc::new(Addresses {
                next: self.next.clone(),
            }),
            address: self.next.fetch_add(bytes, Ordering::Relaxed),
            size,
        }))
    }
}

/// A range of addresses without contents.
pub(super) struct PlannedBuffer {
    buffer_type: Arc<dyn BufferType>,
    pub(super) address: u64,
    size: usize,
}

// SAFETY: `host_ptr` returns `None`, so no address is exposed.
unsafe impl Buffer for PlannedBuffer {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        &self.buffer_type
    }

    fn size(&self) -> usize {
        self.size
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }

    fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), BackendError> {
        check_range(self, offset, data.len())
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        check_range(self, offset, out.len())?;
        out.fill(0);
        Ok(())
    }

    fn set_tensor(&mut self, _: &Stored, _: Range<usize>, _: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
