//! A GGUF file in memory (mapped or owned) whose tensor data is complete.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::value::FromValue;
use super::{Gguf, GgufError, Mapping, Metadata, TensorInfo};

/// A complete file: parsed header and the data of every tensor.
#[derive(Clone, Debug)]
pub struct GgufFile {
    path: PathBuf,
    header: Gguf,
    mapping: Arc<Mapping>,
}

impl GgufFile {
    /// Maps a file, parses its header, and checks that the data of every tensor is within the file. Errors
    /// name the file.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufFile, GgufError> {
        let path = path.as_ref();
        Mapping::open(path)
            .and_then(|mapping| Self::from_mapping(path, mapping))
            .map_err(|e| e.in_file(path))
    }

    /// Like [`GgufFile::open`], but reads the file into memory instead of mapping it. Errors name the file.
    pub fn read(path: impl AsRef<Path>) -> Result<GgufFile, GgufError> {
        let path = path.as_ref();
        Mapping::read(path)
            .and_then(|mapping| Self::from_mapping(path, mapping))
            .map_err(|e| e.in_file(path))
    }

    /// Copies the bytes of a file; `path` appears in error messages only.
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
        mapping.check_unchanged()?;
        Ok(GgufFile {
            path: path.to_owned(),
            header,
            mapping: Arc::new(mapping),
        })
    }

    /// Creates a file from a header without overlapping or misplaced tensors, and contents of any format that has the
    /// tensors of the header.
    pub(crate) fn of_parts(path: &Path, header: Gguf, mapping: Arc<Mapping>) -> GgufFile {
        GgufFile {
            path: path.to_owned(),
            header,
            mapping,
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the parsed header.
    pub fn header(&self) -> &Gguf {
        &self.header
    }

    /// Returns the metadata of the header.
    pub fn metadata(&self) -> &Metadata {
        &self.header.metadata
    }

    /// Returns the metadata for overrides. Changing `general.alignment` has no effect on the parsed data
    /// offsets.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.header.metadata
    }

    /// Returns all tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.header.tensors()
    }

    /// Returns the tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.header.tensor(name)
    }

    /// Returns the value of `key` as `T`; see [`Metadata::require`]. Errors name the file and the key.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.header.require(key).map_err(|e| e.in_file(&self.path))
    }

    /// Returns the value of `key` as `T`, or `None` if the key is missing; see [`Metadata::optional`]. Errors
    /// name the file and the key.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        self.header.optional(key).map_err(|e| e.in_file(&self.path))
    }

    /// Returns the byte offset of a tensor's data in [`GgufFile::mapping`].
    pub fn tensor_offset(&self, info: &TensorInfo) -> usize {
        self.header.data_offset() + info.offset
    }

    /// Returns the data of a tensor, aligned to the smaller of [`Gguf::alignment`] and 64 bytes.
    ///
    /// # Panics
    /// Panics if `info` belongs to another file and its range exceeds this one.
    pub fn tensor_data(&self, info: &TensorInfo) -> &[u8] {
        &self.mapping.bytes()[self.tensor_offset(info)..][..info.bytes]
    }

    /// Returns the contents of the file, shareable with devices that use the bytes without a copy.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}
