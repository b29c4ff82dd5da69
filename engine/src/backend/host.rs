//! Host memory: buffers that the CPU, and every backend with the same address space, access through their
//! address.

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

use memmap2::MmapMut;

use super::{BackendError, Buffer, BufferType, Stored, Upload, check_range};

/// Alignment in bytes of tensors in host memory: a cache line, which is also the widest vector register.
pub const HOST_ALIGNMENT: usize = 64;

/// Existing memory at a fixed address, such as a mapped file.
pub type HostBytes = Arc<dyn HostMemory>;

/// Owner of existing host memory.
pub trait HostMemory: AsRef<[u8]> + Send + Sync {
    /// Returns an error if the memory can no longer be read, for example because a mapped file was truncated.
    fn check(&self) -> Result<(), BackendError> {
        Ok(())
    }
}

impl HostMemory for Vec<u8> {}

/// Buffer type of [`HostBuffer`]s.
#[derive(Debug)]
pub struct HostBufferType {
    name: &'static str,
}

/// Returns the type of ordinary process memory, named `CPU`.
pub fn host_buffer_type() -> Arc<dyn BufferType> {
    static TYPE: LazyLock<Arc<dyn BufferType>> = LazyLock::new(|| Arc::new(HostBufferType { name: "CPU" }));
    TYPE.clone()
}

/// Returns the type of read-only memory with the contents of a file, named `CPU_Mapped`.
pub fn mapped_buffer_type() -> Arc<dyn BufferType> {
    static TYPE: LazyLock<Arc<dyn BufferType>> = LazyLock::new(|| Arc::new(HostBufferType { name: "CPU_Mapped" }));
    TYPE.clone()
}

impl BufferType for HostBufferType {
    fn name(&self) -> &str {
        self.name
    }

    fn alignment(&self) -> usize {
        HOST_ALIGNMENT
    }

    fn is_host(&self) -> bool {
        true
    }

    fn allocate(&self, size: usize) -> Result<Box<dyn Buffer>, BackendError> {
        let out_of_memory = || BackendError::OutOfMemory {
            buffer_type: self.name.to_string(),
            bytes: size,
        };
        // Anonymous pages are zeroed and take physical memory only when touched. A cache sized for a long context thus
        // costs only the part in use. An empty mapping is not possible, so the size is at least 1 byte.
        let mut pages = MmapMut::map_anon(size.max(1)).map_err(|_| out_of_memory())?;
        let base = NonNull::new(pages.as_mut_ptr()).ok_or_else(out_of_memory)?;
        Ok(Box::new(HostBuffer {
            buffer_type: host_buffer_type(),
            base,
            size,
            owner: Owner::Pages(pages),
        }))
    }
}

/// A buffer in host memory.
pub struct HostBuffer {
    buffer_type: Arc<dyn BufferType>,
    base: NonNull<u8>,
    size: usize,
    owner: Owner,
}

/// Keeps the memory alive. Pages are accessed through `base` only, never through the mapping.
enum Owner {
    Pages(MmapMut),
    Shared(HostBytes),
}

// SAFETY: the memory is plain bytes owned by `owner`, which can move between threads, and is written through
// `&mut` only.
unsafe impl Send for HostBuffer {}
// SAFETY: shared references allow only reads, since writes require `&mut`.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Creates a read-only buffer over existing memory.
    pub fn over(keep: HostBytes) -> HostBuffer {
        let bytes: &[u8] = (*keep).as_ref();
        let (base, size) = (NonNull::from(bytes).cast(), bytes.len());
        HostBuffer {
            buffer_type: mapped_buffer_type(),
            base,
            size,
            owner: Owner::Shared(keep),
        }
    }

    /// Requests transparent huge pages, which reduce page faults and TLB misses. Only for memory that is
    /// filled and read as a whole, since partially used huge pages waste memory.
    pub(super) fn use_huge_pages(&mut self) {
        #[cfg(target_os = "linux")]
        if let Owner::Pages(pages) = &self.owner {
            // Only a hint; on failure, small pages work as well.
            let _ = pages.advise(memmap2::Advice::HugePage);
        }
    }
}

// SAFETY: `base` and `size` describe memory that `owner` keeps at a fixed address. Pages are accessed through
// `base` alone. Shared bytes are borrowed from the stored `Arc`, so nobody can get `&mut` access, and the
// buffer is read-only.
unsafe impl Buffer for HostBuffer {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        &self.buffer_type
    }

    fn size(&self) -> usize {
        self.size
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        Some(self.base)
    }

    fn is_read_only(&self) -> bool {
        matches!(self.owner, Owner::Shared(_))
    }

    fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), BackendError> {
        check_range(self, offset, data.len())?;
        let Some(bytes) = self.bytes_mut() else {
            let buffer_type = self.buffer_type.name().to_owned();
            return Err(BackendError::ReadOnly { buffer_type });
        };
        bytes[offset..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        check_range(self, offset, out.len())?;
        let bytes = self.bytes().unwrap_or_default();
        out.copy_from_slice(&bytes[offset..][..out.len()]);
        Ok(())
    }

    fn check(&self) -> Result<(), BackendError> {
        match &self.owner {
            Owner::Pages(_) => Ok(()),
            Owner::Shared(keep) => keep.check(),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// An upload that writes synchronously.
pub(super) struct DirectUpload(pub(super) Box<dyn Buffer>);

impl Upload for DirectUpload {
    fn set_tensor(&mut self, tensor: &Stored, rows: Range<usize>, data: &[u8]) -> Result<(), BackendError> {
        self.0.set_tensor(tensor, rows, data)
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn Buffer>, BackendError> {
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_memory_is_zeroed_aligned_and_checked() {
        let mut buffer = host_buffer_type().allocate(100).unwrap();
        assert_eq!(buffer.size(), 100);
        assert!((buffer.host_ptr().unwrap().as_ptr() as usize).is_multiple_of(HOST_ALIGNMENT));
        let mut out = [1u8; 100];
        buffer.read(0, &mut out).unwrap();
        assert_eq!(out, [0; 100]);

        buffer.write(90, &[7; 10]).unwrap();
        buffer.read(80, &mut out[..20]).unwrap();
        assert_eq!(out[..20], [[0; 10], [7; 10]].concat());

        assert!(matches!(
            buffer.write(91, &[0; 10]),
            Err(BackendError::OutOfBounds { .. })
        ));
        assert!(matches!(
            buffer.read(usize::MAX, &mut out),
            Err(BackendError::OutOfBounds { .. })
        ));
    }

    #[test]
    fn failed_allocation_returns_error() {
        match host_buffer_type().allocate(usize::MAX / 2) {
            Err(BackendError::OutOfMemory { bytes, .. }) => assert_eq!(bytes, usize::MAX / 2),
            other => panic!("{:?}", other.map(|b| b.size())),
        }
        assert_eq!(host_buffer_type().allocate(0).unwrap().size(), 0);
    }

    #[test]
    fn existing_bytes_are_used_in_place_and_read_only() {
        let bytes: Arc<Vec<u8>> = Arc::new((0..=255).collect());
        let address = bytes.as_ptr();
        let mut buffer = HostBuffer::over(bytes);
        assert_eq!(buffer.host_ptr().unwrap().as_ptr().cast_const(), address);
        assert_eq!(buffer.size(), 256);
        let mut out = [0u8; 2];
        buffer.read(254, &mut out).unwrap();
        assert_eq!(out, [254, 255]);
        let message = buffer.write(0, &[1]).unwrap_err().to_string();
        assert!(message.contains("read-only"), "{message}");
    }
}
