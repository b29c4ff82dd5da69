//! A file in memory, mapped or owned, and its header with all tensors' data present.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use memmap2::{Advice, Mmap, UncheckedAdvice};
use rayon::prelude::*;

use super::value::FromValue;
use super::{Gguf, GgufError, Metadata, TensorInfo};
use crate::backend::{BackendError, HostMemory};

/// The bytes of a file: mapped, or in memory of their own. The first byte is aligned to at least 64 bytes.
#[derive(Debug)]
pub struct Mapping(Memory);

#[derive(Debug)]
enum Memory {
    Mapped { map: Mmap, file: File, path: PathBuf },
    Owned { lines: Vec<Line>, len: usize },
}

/// Gives owned bytes the alignment that kernels like.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes that a thread reads at once.
const PIECE: usize = 1 << 20;

impl Mapping {
    /// Maps a file read-only. Its bytes are read from disk when they are first touched.
    ///
    /// The file must not be shortened while it is mapped: touching a page that no longer exists kills the process. Decoding
    /// looks at its length first ([`HostMemory::check`]), so that a model that was overwritten between two calls gives an
    /// error; what is overwritten during one cannot be caught. Programs that must exclude it use [`Mapping::read`].
    pub fn open(path: &Path) -> Result<Mapping, GgufError> {
        let file = open_regular(path)?;
        // SAFETY: the map is read-only and private to this process; that others do not change the file meanwhile is
        // asked for above, as it is of everything that maps files.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| GgufError::Io {
            action: "map the file",
            error,
        })?;
        let path = path.to_owned();
        Ok(Mapping(Memory::Mapped { map, file, path }))
    }

    /// Reads a whole file into memory.
    pub fn read(path: &Path) -> Result<Mapping, GgufError> {
        use std::io::Read;
        let io = read_error;
        let mut file = open_regular(path)?;
        let len = usize::try_from(file.metadata().map_err(io)?.len()).unwrap_or(usize::MAX);
        let mut lines = Vec::new();
        lines
            .try_reserve_exact(len.div_ceil(size_of::<Line>()))
            .map_err(|e| io(std::io::Error::new(std::io::ErrorKind::OutOfMemory, e)))?;
        lines.resize(len.div_ceil(size_of::<Line>()), Line::zeroed());
        file.read_exact(&mut bytemuck::cast_slice_mut(&mut lines)[..len])
            .map_err(io)?;
        Ok(Mapping(Memory::Owned { lines, len }))
    }

    /// A copy of `bytes` as if they were a file.
    pub fn from_bytes(bytes: &[u8]) -> Mapping {
        let mut lines = vec![Line::zeroed(); bytes.len().div_ceil(size_of::<Line>())];
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        Mapping(Memory::Owned {
            lines,
            len: bytes.len(),
        })
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Memory::Mapped { map, .. } => map,
            Memory::Owned { lines, len } => &bytemuck::cast_slice(lines)[..*len],
        }
    }

    /// Some of the bytes. Those of a mapped file are read into `scratch`: its pages do not become the process's, and an error is an error.
    ///
    /// Panics if the range ends beyond [`Mapping::bytes`].
    pub fn read_at<'a>(&'a self, range: Range<usize>, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], GgufError> {
        let Memory::Mapped { map, file, .. } = &self.0 else {
            return Ok(&self.bytes()[range]);
        };
        assert!(range.start <= range.end && range.end <= map.len());
        scratch.resize(range.len(), 0);
        let pieces = scratch.par_chunks_mut(PIECE).enumerate();
        pieces
            .try_for_each(|(i, piece)| file.read_exact_at(piece, (range.start + i * PIECE) as u64))
            .map_err(read_error)?;
        Ok(scratch)
    }

    /// Says that these bytes of a mapped file will soon be needed, so that the system reads them from disk meanwhile.
    pub fn prefetch(&self, range: Range<usize>) {
        if let Some((map, range)) = self.mapped_part(range) {
            // A hint: without it bytes are read when they are touched.
            let _ = map.advise_range(Advice::WillNeed, range.start, range.len());
        }
    }

    /// Lets go of the pages of a mapped file that hold these bytes: they no longer count as the process's memory, stay in the system's cache, and
    /// come back when they are touched.
    pub fn release(&self, range: Range<usize>) {
        if let Some((map, range)) = self.mapped_part(range) {
            // SAFETY: the pages are those of a file and never written here, so what comes back is what was there; the range lies within the map.
            let released = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
            // Locked pages stay.
            let _ = released;
        }
    }

    /// The map, and the part of the range that lies within it.
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
        let Memory::Mapped { map, file, path } = &self.0 else {
            return Ok(());
        };
        let found = file.metadata().map_or(0, |m| m.len());
        if found >= map.len() as u64 {
            return Ok(());
        }
        Err(BackendError::Shrunk {
            path: path.clone(),
            expected: map.len(),
            found,
        })
    }
}

/// Opens a file for reading; asks first whether it is one, because opening a pipe would wait for its writer.
fn open_regular(path: &Path) -> Result<File, GgufError> {
    let io = |error| GgufError::Io {
        action: "open the file",
        error,
    };
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(GgufError::NotAFile);
    }
    File::open(path).map_err(io)
}

/// A whole file: its header, and the data of every tensor known to be there.
#[derive(Clone, Debug)]
pub struct GgufFile {
    path: PathBuf,
    header: Gguf,
    mapping: Arc<Mapping>,
}

impl GgufFile {
    /// Maps a file and checks its header and that every tensor's data lies inside it. Errors name the file.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufFile, GgufError> {
        let path = path.as_ref();
        Mapping::open(path)
            .and_then(|mapping| Self::from_mapping(path, mapping))
            .map_err(|e| e.in_file(path))
    }

    /// Like [`GgufFile::open`], but reads the file into memory instead of mapping it.
    pub fn read(path: impl AsRef<Path>) -> Result<GgufFile, GgufError> {
        let path = path.as_ref();
        Mapping::read(path)
            .and_then(|mapping| Self::from_mapping(path, mapping))
            .map_err(|e| e.in_file(path))
    }

    /// A copy of a file's bytes; `path` is what to call it.
    pub fn from_bytes(path: impl AsRef<Path>, bytes: &[u8]) -> Result<GgufFile, GgufError> {
        let path = path.as_ref();
        Self::from_mapping(path, Mapping::from_bytes(bytes)).map_err(|e| e.in_file(path))
    }

    fn from_mapping(path: &Path, mapping: Mapping) -> Result<GgufFile, GgufError> {
        let header = Gguf::parse_header(mapping.bytes())?;
        let present = mapping.bytes().len();
        if let Some((last, needed)) = header.required_len()
            && needed > present
        {
            return Err(GgufError::DataTruncated {
                name: last.name.clone(),
                needed,
                present,
            });
        }
        Ok(GgufFile {
            path: path.to_owned(),
            header,
            mapping: Arc::new(mapping),
        })
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Everything but the data.
    pub fn header(&self) -> &Gguf {
        &self.header
    }

    /// Keys and values.
    pub fn metadata(&self) -> &Metadata {
        &self.header.metadata
    }

    /// Keys and values, to be overridden. The alignment of the data is not read again.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.header.metadata
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.header.tensors()
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.header.tensor(name)
    }

    /// The value of `key` as `T`; errors name the file and the key.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.header.require(key).map_err(|e| e.in_file(&self.path))
    }

    /// The value of `key` as `T`, `None` if it is missing; errors name the file and the key.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        self.header.optional(key).map_err(|e| e.in_file(&self.path))
    }

    /// Where a tensor of this file begins, in bytes from the start of [`GgufFile::mapping`].
    pub fn tensor_offset(&self, info: &TensorInfo) -> usize {
        self.header.data_offset() + info.offset
    }

    /// The data of a tensor of this file. Its address is a multiple of the smaller of [`Gguf::alignment`] and 64.
    ///
    /// Panics if `info` comes from another file and reaches beyond this one.
    pub fn tensor_data(&self, info: &TensorInfo) -> &[u8] {
        &self.mapping.bytes()[self.tensor_offset(info)..][..info.bytes]
    }

    /// The whole file, to be shared with devices that use it in place.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}
