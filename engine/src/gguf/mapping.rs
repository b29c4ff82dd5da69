//! Contents of a file: mapped, read into memory, or computed when they are read.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use bytemuck::{Pod, Zeroable};
use memmap2::{Advice, Mmap, UncheckedAdvice};
use rayon::prelude::*;

use super::faults::Guarded;
use super::{ComputedBytes, GgufError};
use crate::backend::{BackendError, HostMemory};

/// Contents of a file, mapped, in owned memory, or computed. The first byte is aligned to at least 64 bytes.
#[derive(Debug)]
pub struct Mapping(Memory);

#[derive(Debug)]
enum Memory {
    Mapped {
        /// Dropped before the map, whose addresses it guards.
        guard: Guarded,
        map: Mmap,
        file: File,
        path: PathBuf,
        modified: Option<SystemTime>,
    },
    Owned {
        lines: Vec<AlignedBlock>,
        len: usize,
    },
    Computed {
        source: Box<dyn ComputedBytes>,
        /// All bytes, once [`Mapping::bytes`] was called.
        whole: OnceLock<ComputedBlocks>,
    },
}

/// Result of a computation of all bytes.
#[derive(Debug)]
struct ComputedBlocks {
    lines: Vec<AlignedBlock>,
    /// Error of the computation, after which the bytes are invalid.
    error: Option<String>,
}

/// 64-byte unit of owned memory, so that tensor data meets the alignment of the SIMD kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct AlignedBlock([u8; 64]);

/// Bytes that a thread reads per call.
const PIECE: usize = 1 << 20;

impl Mapping {
    /// Maps a file read-only. Pages are read from disk on first access.
    ///
    /// The file should not change while it is mapped. [`HostMemory::check`], which runs before and after each decode
    /// call, returns an error if the file was truncated or written. Access to a page beyond the new end reads zeros,
    /// and all later checks fail. Use [`Mapping::read`] if the file may change.
    ///
    /// The first call installs a handler for SIGBUS, which passes other signals on to the handler before it.
    ///
    /// # Errors
    /// Returns [`GgufError::Directory`], [`GgufError::NotAFile`], or [`GgufError::Io`].
    pub fn open(path: &Path) -> Result<Mapping, GgufError> {
        let file = open_regular(path)?;
        let modified = file.metadata().and_then(|metadata| metadata.modified()).ok();
        // SAFETY: the map is private and read-only. Reads of missing pages are handled by `guard`. A process that
        // writes to the file can change bytes, which all readers treat as untrusted.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| GgufError::Io {
            action: "map the file",
            error,
        })?;
        Ok(Mapping(Memory::Mapped {
            guard: Guarded::new(&map),
            map,
            file,
            path: path.to_owned(),
            modified,
        }))
    }

    /// Reads a whole file into memory.
    ///
    /// # Errors
    /// Returns [`GgufError::Directory`], [`GgufError::NotAFile`], or [`GgufError::Io`].
    pub fn read(path: &Path) -> Result<Mapping, GgufError> {
        use std::io::Read;
        let io = read_error;
        let mut file = open_regular(path)?;
        let len = usize::try_from(file.metadata().map_err(io)?.len()).unwrap_or(usize::MAX);
        let mut lines = Vec::new();
        lines
            .try_reserve_exact(len.div_ceil(size_of::<AlignedBlock>()))
            .map_err(|e| io(std::io::Error::new(std::io::ErrorKind::OutOfMemory, e)))?;
        lines.resize(len.div_ceil(size_of::<AlignedBlock>()), AlignedBlock::zeroed());
        file.read_exact(&mut bytemuck::cast_slice_mut(&mut lines)[..len])
            .map_err(io)?;
        Ok(Mapping(Memory::Owned { lines, len }))
    }

    /// Copies `bytes` into aligned owned memory.
    pub fn from_bytes(bytes: &[u8]) -> Mapping {
        let mut lines = vec![AlignedBlock::zeroed(); bytes.len().div_ceil(size_of::<AlignedBlock>())];
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        Mapping(Memory::Owned {
            lines,
            len: bytes.len(),
        })
    }

    /// Creates contents that are computed when they are read.
    pub fn computed(source: Box<dyn ComputedBytes>) -> Mapping {
        Mapping(Memory::Computed {
            source,
            whole: OnceLock::new(),
        })
    }

    /// Returns true if reading the contents computes them.
    pub fn is_computed(&self) -> bool {
        matches!(self.0, Memory::Computed { .. })
    }

    /// Returns the bytes of the whole file. Computed bytes then stay in memory; [`Mapping::view`] computes only a part.
    /// After a failed computation, the bytes are invalid, and [`HostMemory::check`] returns the error.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Memory::Mapped { map, .. } => map,
            Memory::Owned { lines, len } => &bytemuck::cast_slice(lines)[..*len],
            Memory::Computed { source, whole } => {
                let blocks = whole.get_or_init(|| {
                    let n_lines = source.n_bytes().div_ceil(size_of::<AlignedBlock>());
                    let mut lines = vec![AlignedBlock::zeroed(); n_lines];
                    let bytes = &mut bytemuck::cast_slice_mut(&mut lines)[..source.n_bytes()];
                    let error = source.compute(0, bytes).err().map(|error| error.to_string());
                    ComputedBlocks { lines, error }
                });
                &bytemuck::cast_slice(&blocks.lines)[..source.n_bytes()]
            }
        }
    }

    /// Returns the bytes of `range` without a copy, or computes them into `scratch`.
    ///
    /// # Errors
    /// Returns an error if computed bytes are invalid.
    ///
    /// # Panics
    /// Panics if the range ends beyond the contents.
    pub fn view<'a>(&'a self, range: Range<usize>, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], GgufError> {
        match &self.0 {
            Memory::Computed { .. } => self.read_at(range, scratch),
            _ => Ok(&self.bytes()[range]),
        }
    }

    /// Returns the bytes of `range`. Copies computed bytes and bytes of a mapped file to `scratch`. Pages of the file
    /// do not enter the resident set, and read errors are returned instead of raising SIGBUS.
    ///
    /// # Panics
    /// Panics if the range ends beyond [`Mapping::bytes`].
    pub fn read_at<'a>(&'a self, range: Range<usize>, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], GgufError> {
        let (map, file) = match &self.0 {
            Memory::Mapped { map, file, .. } => (map, file),
            Memory::Owned { .. } => return Ok(&self.bytes()[range]),
            Memory::Computed { source, .. } => {
                assert!(range.start <= range.end && range.end <= source.n_bytes());
                scratch.resize(range.len(), 0);
                source.compute(range.start, scratch)?;
                return Ok(scratch);
            }
        };
        assert!(range.start <= range.end && range.end <= map.len());
        scratch.resize(range.len(), 0);
        let pieces = scratch.par_chunks_mut(PIECE).enumerate();
        pieces
            .try_for_each(|(i, piece)| file.read_exact_at(piece, (range.start + i * PIECE) as u64))
            .map_err(read_error)?;
        Ok(scratch)
    }

    /// Returns an error if a mapped file was truncated or written since it was mapped. Bytes read since then may mix
    /// two states of the file. Also returns the error of [`Mapping::bytes`] if it failed to compute the contents.
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        self.check().map_err(|error| match error {
            BackendError::Computed { text } => GgufError::Computed { text },
            error => read_error(std::io::Error::other(error)),
        })
    }

    /// Starts asynchronous readahead of these bytes of a mapped file (`MADV_WILLNEED`).
    pub fn prefetch(&self, range: Range<usize>) {
        if let Some((map, range)) = self.mapped_part(range) {
            // Only a hint: without readahead, pages are read on first access.
            let _ = map.advise_range(Advice::WillNeed, range.start, range.len());
        }
    }

    /// Drops the pages of a mapped file that contain these bytes from the resident set. They stay in the page
    /// cache and are mapped again on the next access.
    pub fn release(&self, range: Range<usize>) {
        if let Memory::Computed { source, .. } = &self.0 {
            source.release(range);
            return;
        }
        if let Some((map, range)) = self.mapped_part(range) {
            // SAFETY: the pages are file-backed and never written, so a later access reads identical bytes;
            // `mapped_part` clamps the range to the map.
            let released = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
            // Locked pages cannot be released and stay resident.
            let _ = released;
        }
    }

    /// Returns the map and the part of `range` inside the map.
    fn mapped_part(&self, range: Range<usize>) -> Option<(&Mmap, Range<usize>)> {
        let Memory::Mapped { map, .. } = &self.0 else {
            return None;
        };
        let range = range.start..range.end.min(map.len());
        (!range.is_empty()).then_some((map, range))
    }
}

fn read_error(error: std::io::Error) -> GgufError {
    GgufError::Io {
        action: "read the file",
        error,
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl HostMemory for Mapping {
    fn check(&self) -> Result<(), BackendError> {
        if let Memory::Computed { whole, .. } = &self.0 {
            let error = whole.get().and_then(|blocks| blocks.error.as_ref());
            return error.map_or(Ok(()), |text| Err(BackendError::Computed { text: text.clone() }));
        }
        let Memory::Mapped {
            guard,
            map,
            file,
            path,
            modified,
        } = &self.0
        else {
            return Ok(());
        };
        let path = || path.clone();
        let now = file.metadata();
        let found = now.as_ref().map_or(0, |m| m.len());
        if found < map.len() as u64 {
            let expected = map.len();
            return Err(BackendError::Shrunk {
                path: path(),
                expected,
                found,
            });
        }
        if guard.is_damaged() {
            return Err(BackendError::Unreadable { path: path() });
        }
        if found > map.len() as u64 || now.and_then(|m| m.modified()).ok() != *modified {
            return Err(BackendError::Overwritten { path: path() });
        }
        Ok(())
    }
}

/// Opens a regular file. The type is checked first because opening a pipe would block until a writer appears.
fn open_regular(path: &Path) -> Result<File, GgufError> {
    let io = |error| GgufError::Io {
        action: "open the file",
        error,
    };
    let metadata = fs::metadata(path).map_err(io)?;
    if metadata.is_dir() {
        return Err(GgufError::Directory);
    }
    if !metadata.is_file() {
        return Err(GgufError::NotAFile);
    }
    File::open(path).map_err(io)
}
