//! Errors that can occur when reading and writing GGUF files. Each message names the location, the expected
//! value, and the value found.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::ValueType;
use kernels::GgmlType;

/// An error that can occur when reading or writing a GGUF file.
///
/// Offsets are in bytes from the start of the file unless noted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum GgufError {
    /// An error with the path of the affected file.
    #[error("{}: {error}", path.display())]
    InFile { path: PathBuf, error: Box<GgufError> },
    /// An I/O operation failed.
    #[error("cannot {action}: {error}")]
    Io { action: &'static str, error: io::Error },
    /// The path is a directory.
    #[error("expected a GGUF file, found a directory")]
    Directory,
    /// The path is a pipe or device.
    #[error("not a regular file")]
    NotAFile,

    /// The file does not start with `GGUF`.
    #[error("not a GGUF file: expected the bytes \"GGUF\" at offset 0, found \"{}\"{}", found.escape_ascii(), guess_format(*found))]
    BadMagic { found: [u8; 4] },
    /// Unsupported version: 1, or newer than [`VERSION`](super::VERSION).
    #[error("unsupported GGUF version {found}: expected 2 or 3{}", if *found == 1 { " (version 1 is obsolete; convert the model again)" } else { "" })]
    BadVersion { found: u32 },
    /// The version number is byte-swapped, so the file is big-endian.
    #[error("unsupported byte order: expected a little-endian GGUF file, found big-endian (version {version})")]
    BigEndian { version: u32 },

    /// The file ends before its header is complete.
    #[error("truncated header: {what} at offset {offset} needs {needed} bytes, but only {present} remain")]
    HeaderTruncated {
        what: HeaderField,
        offset: usize,
        /// Minimum number of bytes required.
        needed: u64,
        /// Bytes from `offset` to the end of the file.
        present: usize,
    },
    /// A declared element count exceeds the rest of the file.
    #[error(
        "{what} at offset {offset} is too large: {count} elements need at least {min_bytes} bytes each, but only {present} bytes remain"
    )]
    CountTooLarge {
        what: HeaderField,
        offset: usize,
        count: u64,
        /// Minimum encoded size of an element in bytes.
        min_bytes: usize,
        /// Number of bytes after the count.
        present: usize,
    },
    /// A metadata key is the empty string.
    #[error("the metadata key at offset {offset} is empty")]
    EmptyKey { offset: usize },
    /// A metadata key is longer than [`MAX_KEY_LEN`](super::MAX_KEY_LEN).
    #[error(
        "the metadata key at offset {offset} is {len} bytes long; the maximum is {}",
        super::MAX_KEY_LEN
    )]
    KeyTooLong { offset: usize, len: u64 },
    /// A metadata key or tensor name is not valid UTF-8.
    #[error("{what} at offset {offset} is not UTF-8: \"{}\"", found.escape_ascii())]
    NotUtf8 {
        what: HeaderField,
        offset: usize,
        /// First bytes of the string.
        found: Vec<u8>,
    },
    /// A metadata key occurs twice.
    #[error("duplicate metadata key \"{}\" at offset {offset}", key.escape_debug())]
    DuplicateKey {
        key: String,
        /// Offset of the second occurrence.
        offset: usize,
    },
    /// The type id of a metadata value is unknown.
    #[error("key \"{}\": unknown value type {id} at offset {offset}, expected 0..=12", key.escape_debug())]
    UnknownValueType { key: String, id: u32, offset: usize },
    /// A bool is neither 0 nor 1.
    #[error("key \"{}\": expected a bool (0 or 1) at offset {offset}, found {found}", key.escape_debug())]
    InvalidBool { key: String, found: u8, offset: usize },
    /// Array values are nested deeper than [`MAX_ARRAY_DEPTH`](super::MAX_ARRAY_DEPTH).
    #[error("key \"{}\": arrays nested deeper than {} levels at offset {offset}", key.escape_debug(), super::MAX_ARRAY_DEPTH)]
    ArrayTooDeep {
        key: String,
        /// Offset of the innermost array.
        offset: usize,
    },
    /// A string array is larger than 4 GiB.
    #[error("key \"{}\": the string array at offset {offset} exceeds 4 GiB", key.escape_debug())]
    StringsTooLarge {
        key: String,
        /// Offset of the array.
        offset: usize,
    },
    /// `general.alignment` is not a u32.
    #[error("key \"{}\": expected u32, found {found}", super::KEY_ALIGNMENT)]
    AlignmentType { found: ValueType },
    /// `general.alignment` is not a power of two, or too large.
    #[error(
        "key \"{}\": expected a power of two up to 65536, found {found}",
        super::KEY_ALIGNMENT
    )]
    BadAlignment { found: u32 },

    /// A required key is missing.
    #[error("missing key \"{}\": expected {expected}", key.escape_debug())]
    MissingKey { key: String, expected: &'static str },
    /// The value of a key cannot be converted to the requested type.
    #[error("key \"{}\": expected {expected}, found {found}", key.escape_debug())]
    WrongType {
        key: String,
        expected: &'static str,
        found: String,
    },

    /// A tensor name is the empty string.
    #[error("the name of tensor {index} at offset {offset} is empty")]
    EmptyName {
        /// Index in the tensor table.
        index: u64,
        offset: usize,
    },
    /// A tensor name is longer than [`MAX_NAME_LEN`](super::MAX_NAME_LEN).
    #[error(
        "the name of tensor {index} at offset {offset} is {len} bytes long; the maximum is {}",
        super::MAX_NAME_LEN
    )]
    NameTooLong {
        /// Index in the tensor table.
        index: u64,
        offset: usize,
        len: u64,
    },
    /// Two tensors have the same name.
    #[error("duplicate tensor name \"{}\"", name.escape_debug())]
    DuplicateTensor { name: String },
    /// A tensor has zero dimensions or more than [`MAX_DIMS`](super::MAX_DIMS).
    #[error("tensor \"{}\": expected 1 to {} dimensions, found {found}", name.escape_debug(), super::MAX_DIMS)]
    BadDims { name: String, found: u32 },
    /// A dimension is zero or at least 2^63.
    #[error("tensor \"{}\": dimension {dim} is {found}, expected 1..2^63", name.escape_debug())]
    BadDim {
        name: String,
        /// Index of the dimension, from 0.
        dim: usize,
        found: u64,
    },
    /// The number of elements or bytes of a tensor overflows.
    #[error("tensor \"{}\": shape {} of type {ty} exceeds the address space", name.escape_debug(), Shape(ne))]
    ShapeOverflow {
        name: String,
        /// Declared shape, fastest-varying dimension first.
        ne: Vec<u64>,
        ty: GgmlType,
    },
    /// The type id of a tensor is unknown or was removed from the format.
    #[error("tensor \"{}\": {} (id {id})", name.escape_debug(), describe_bad_type(*id))]
    UnknownTensorType { name: String, id: u32 },
    /// The row length is not a multiple of the block size of the type.
    #[error("tensor \"{}\": row length {ne0} is not a multiple of {}, the block size of {ty}", name.escape_debug(), ty.block_size())]
    PartialBlock {
        name: String,
        /// Elements per row.
        ne0: u64,
        ty: GgmlType,
    },
    /// The data offset of a tensor is not aligned.
    #[error("tensor \"{}\": data offset {offset} is not a multiple of the alignment {alignment}", name.escape_debug())]
    Misaligned {
        name: String,
        /// Data offset, relative to the start of the tensor data.
        offset: u64,
        alignment: usize,
    },
    /// The data of a tensor ends beyond the address space.
    #[error("tensor \"{}\": data offset {offset} plus {bytes} bytes exceeds the address space", name.escape_debug())]
    OffsetOverflow {
        name: String,
        /// Data offset, relative to the start of the tensor data.
        offset: u64,
        bytes: usize,
    },
    /// The data of two tensors overlap.
    #[error("tensors \"{}\" and \"{}\" overlap: the first ends at data offset {end}, the second starts at {start}", first.escape_debug(), second.escape_debug())]
    Overlap {
        /// Tensor with the lower offset.
        first: String,
        /// Tensor with the higher offset.
        second: String,
        /// End of `first`, relative to the start of the tensor data.
        end: usize,
        /// Start of `second`, relative to the start of the tensor data.
        start: usize,
    },
    /// The data passed to the writer does not match the size of its tensor.
    #[error("tensor \"{}\": expected {expected} bytes of data, found {found}", name.escape_debug())]
    DataSize {
        name: String,
        /// Size in bytes implied by type and shape.
        expected: usize,
        /// Bytes supplied; a lower bound if a producer was stopped early.
        found: usize,
    },
    /// A tensor has a type that the operation does not support.
    #[error("tensor \"{}\": expected type {expected}, found {found}", name.escape_debug())]
    TensorType {
        name: String,
        expected: GgmlType,
        found: GgmlType,
    },
    /// A tensor does not exist.
    #[error("tensor \"{}\" is missing", name.escape_debug())]
    NoTensor { name: String },
    /// Data cannot be computed from another file, as the text describes.
    #[error("{text}")]
    Computed { text: String },
    /// The model is too large to be generated in memory.
    #[error("cannot generate the model in memory: its size is {needed} bytes; the limit is {limit}")]
    ModelTooLarge {
        /// Size of the complete file in bytes.
        needed: usize,
        /// Maximum size in bytes.
        limit: usize,
    },

    /// A part of a split model other than the first was opened.
    #[error("cannot open part {} of {count} of a split model directly; open the first part, {}", no + 1, first.display())]
    NotFirstShard {
        /// Index of the opened part, from 0.
        no: u16,
        /// Total number of parts.
        count: u16,
        /// Path of the first part, to be opened instead.
        first: PathBuf,
    },
    /// The file name of a split model does not follow the naming scheme of parts.
    #[error(
        "cannot find the {count} parts of the split model: expected a file name that ends in -00001-of-{count:05}.gguf"
    )]
    SplitName {
        /// Number of parts according to the metadata.
        count: u16,
    },
    /// The metadata of a part contradicts the first part or the file name.
    #[error("key \"{key}\": expected {expected} (from the first part and the file name), found {found}")]
    SplitMismatch {
        key: &'static str,
        expected: u64,
        found: u64,
    },
    /// The number of tensors in all parts differs from `split.tensors.count`.
    #[error("key \"split.tensors.count\": expected {expected} tensors across all parts, found {found}")]
    SplitTensorCount { expected: u64, found: usize },

    /// The file ends before the data of its last tensor.
    #[error("truncated file: tensor \"{}\" ends at byte {needed}, but the file has only {present} bytes", name.escape_debug())]
    DataTruncated {
        /// Tensor with the highest end offset.
        name: String,
        /// Minimum file size in bytes.
        needed: usize,
        /// Actual file size in bytes.
        present: usize,
    },
}

impl GgufError {
    /// Adds the path of the file, unless the error already has one.
    pub fn in_file(self, path: &Path) -> GgufError {
        match self {
            e @ (GgufError::InFile { .. } | GgufError::Computed { .. }) => e,
            e => GgufError::InFile {
                path: path.to_owned(),
                error: Box::new(e),
            },
        }
    }

    /// Returns the error without the path of the file.
    pub fn kind(&self) -> &GgufError {
        match self {
            GgufError::InFile { error, .. } => error.kind(),
            e => e,
        }
    }
}

/// Field of the header that a parse error refers to.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum HeaderField {
    Magic,
    Version,
    TensorCount,
    KeyCount,
    /// Key of the metadata pair with this index.
    Key(u64),
    /// Value of the metadata key with this name.
    Value(String),
    /// Name of the tensor with this index.
    TensorName(u64),
    /// Shape, type, or offset of the tensor with this name.
    Tensor(String),
}

impl fmt::Display for HeaderField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeaderField::Magic => f.write_str("the magic"),
            HeaderField::Version => f.write_str("the version"),
            HeaderField::TensorCount => f.write_str("the tensor count"),
            HeaderField::KeyCount => f.write_str("the metadata count"),
            HeaderField::Key(i) => write!(f, "metadata key {i}"),
            HeaderField::Value(key) => write!(f, "the value of key \"{}\"", key.escape_debug()),
            HeaderField::TensorName(i) => write!(f, "the name of tensor {i}"),
            HeaderField::Tensor(name) => write!(f, "the description of tensor \"{}\"", name.escape_debug()),
        }
    }
}

/// Returns a hint if `magic` belongs to a file type that is often mistaken for GGUF.
fn guess_format(magic: [u8; 4]) -> &'static str {
    match &magic {
        b"vers" => " (looks like a Git LFS pointer; download the model itself)",
        b"<!DO" | b"<!do" | b"<htm" => " (looks like a web page; download the model again)",
        b"PK\x03\x04" => " (looks like a zip archive or PyTorch model; convert the model to GGUF)",
        b"lmgg" | b"fmgg" | b"tjgg" | b"algg" => " (a predecessor of GGUF; convert the model again)",
        [_, _, _, 0] => " (looks like a safetensors model; convert the model to GGUF)",
        _ => "",
    }
}

struct Shape<'a>(&'a [u64]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0).finish()
    }
}

/// Describes an invalid tensor type id, naming types that were removed from GGUF.
fn describe_bad_type(id: u32) -> String {
    let removed = match id {
        4 => "q4_2",
        5 => "q4_3",
        31 => "q4_0_4_4 (use q4_0)",
        32 => "q4_0_4_8 (use q4_0)",
        33 => "q4_0_8_8 (use q4_0)",
        36 => "iq4_nl_4_4 (use iq4_nl)",
        37 => "iq4_nl_4_8 (use iq4_nl)",
        38 => "iq4_nl_8_8 (use iq4_nl)",
        _ => return "unknown type".to_owned(),
    };
    format!("type {removed} was removed from the format")
}
