//! Everything that can be wrong with a GGUF file, each as one sentence with place, expected and found.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::ValueType;
use kernels::GgmlType;

/// What is wrong with a file. Offsets are in bytes from the file's start unless said otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// Another error, with the file it is about.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<GgufError>,
    },
    /// The operating system refused.
    #[error("cannot {action}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// A directory, pipe or device.
    #[error("not a regular file")]
    NotAFile,

    /// Does not start with `GGUF`.
    #[error("not a GGUF file: expected the bytes \"GGUF\" at offset 0, found \"{}\"{}", found.escape_ascii(), guess_format(*found))]
    BadMagic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// Version 1, or one that is not known.
    #[error("GGUF version {found} is not supported: expected 2 or 3{}", if *found == 1 { " (version 1 is obsolete: convert the model again)" } else { "" })]
    BadVersion {
        /// The version in the file.
        found: u32,
    },
    /// The version's bytes are in the wrong order.
    #[error("a big-endian GGUF file (version {version}): expected a little-endian one")]
    BigEndian {
        /// The version, read as big-endian.
        version: u32,
    },

    /// The header goes on where the file ends.
    #[error("the file ends inside its header: {what} at offset {offset} needs {needed} bytes, {present} are left")]
    HeaderTruncated {
        /// What was being read.
        what: What,
        /// Where it starts.
        offset: usize,
        /// Bytes that it needs at least.
        needed: u64,
        /// Bytes from there to the end of the file.
        present: usize,
    },
    /// A count that the rest of the file cannot hold.
    #[error(
        "{what} at offset {offset} says {count} elements of at least {min_bytes} bytes each, only {present} bytes are left"
    )]
    CountTooLarge {
        /// What the count is about.
        what: What,
        /// Where the count stands.
        offset: usize,
        /// The count.
        count: u64,
        /// Fewest bytes of one element.
        min_bytes: usize,
        /// Bytes after the count.
        present: usize,
    },
    /// A key of no bytes.
    #[error("the metadata key at offset {offset} is empty")]
    EmptyKey {
        /// Where it stands.
        offset: usize,
    },
    /// A key of more than [`MAX_KEY_LEN`](super::MAX_KEY_LEN) bytes.
    #[error(
        "the metadata key at offset {offset} has {len} bytes, at most {} are allowed",
        super::MAX_KEY_LEN
    )]
    KeyTooLong {
        /// Where it stands.
        offset: usize,
        /// Bytes it has.
        len: u64,
    },
    /// A key or tensor name that is not text.
    #[error("{what} at offset {offset} is not UTF-8: \"{}\"", found.escape_ascii())]
    NotUtf8 {
        /// Key or tensor name.
        what: What,
        /// Where it stands.
        offset: usize,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// The same key twice.
    #[error("duplicate metadata key \"{}\" at offset {offset}", key.escape_debug())]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where it stands the second time.
        offset: usize,
    },
    /// A value's type id that does not exist.
    #[error("key \"{}\": unknown value type {id} at offset {offset}, expected 0..=12", key.escape_debug())]
    UnknownValueType {
        /// The key.
        key: String,
        /// The id in the file.
        id: u32,
        /// Where it stands.
        offset: usize,
    },
    /// A bool that is neither 0 nor 1.
    #[error("key \"{}\": expected a bool (0 or 1) at offset {offset}, found {found}", key.escape_debug())]
    InvalidBool {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
        /// Where it stands.
        offset: usize,
    },
    /// Arrays of arrays of arrays …
    #[error("key \"{}\": arrays nested deeper than {} levels at offset {offset}", key.escape_debug(), super::MAX_ARRAY_DEPTH)]
    ArrayTooDeep {
        /// The key.
        key: String,
        /// Where the innermost begins.
        offset: usize,
    },
    /// An array of strings of more than 4 GiB.
    #[error("key \"{}\": the strings of the array at offset {offset} have more than 4 GiB together", key.escape_debug())]
    StringsTooLarge {
        /// The key.
        key: String,
        /// Where the array begins.
        offset: usize,
    },
    /// `general.alignment` is not a u32.
    #[error("key \"{}\": expected u32, found {found}", super::KEY_ALIGNMENT)]
    AlignmentType {
        /// Its type.
        found: ValueType,
    },
    /// `general.alignment` is zero or not a power of two.
    #[error("key \"{}\": expected a power of two, found {found}", super::KEY_ALIGNMENT)]
    BadAlignment {
        /// Its value.
        found: u32,
    },

    /// A key that is needed is not there.
    #[error("missing key \"{}\": expected {expected}", key.escape_debug())]
    MissingKey {
        /// The key.
        key: String,
        /// What its value should be.
        expected: &'static str,
    },
    /// A key's value cannot be used as what it is needed for.
    #[error("key \"{}\": expected {expected}, found {found}", key.escape_debug())]
    WrongType {
        /// The key.
        key: String,
        /// What its value should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },

    /// A tensor name of no bytes.
    #[error("the name of tensor {index} at offset {offset} is empty")]
    EmptyName {
        /// Number of the tensor, from 0.
        index: u64,
        /// Where the name stands.
        offset: usize,
    },
    /// A tensor name of more than [`MAX_NAME_LEN`](super::MAX_NAME_LEN) bytes.
    #[error(
        "the name of tensor {index} at offset {offset} has {len} bytes, at most {} are allowed",
        super::MAX_NAME_LEN
    )]
    NameTooLong {
        /// Number of the tensor, from 0.
        index: u64,
        /// Where the name stands.
        offset: usize,
        /// Bytes it has.
        len: u64,
    },
    /// The same tensor name twice.
    #[error("duplicate tensor name \"{}\"", name.escape_debug())]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// Not 1 to 4 dimensions.
    #[error("tensor \"{}\": expected 1 to {} dimensions, found {found}", name.escape_debug(), super::MAX_DIMS)]
    BadDims {
        /// The tensor.
        name: String,
        /// Number of dimensions in the file.
        found: u32,
    },
    /// A dimension of no elements, or one that is negative or too large.
    #[error("tensor \"{}\": dimension {dim} is {found}, expected 1..2^63", name.escape_debug())]
    BadDim {
        /// The tensor.
        name: String,
        /// Which dimension, from 0.
        dim: usize,
        /// Its size, as the unsigned number in the file.
        found: u64,
    },
    /// The number of elements or bytes cannot be represented.
    #[error("tensor \"{}\": shape {} of {ty} has too many elements for any file", name.escape_debug(), Shape(ne))]
    ShapeOverflow {
        /// The tensor.
        name: String,
        /// Elements of each dimension.
        ne: Vec<u64>,
        /// Its type.
        ty: GgmlType,
    },
    /// A type id that is not known or no longer exists.
    #[error("tensor \"{}\": {} (id {id})", name.escape_debug(), describe_bad_type(*id))]
    UnknownTensorType {
        /// The tensor.
        name: String,
        /// The id in the file.
        id: u32,
    },
    /// Rows that are not whole blocks.
    #[error("tensor \"{}\": rows of {ne0} elements, expected a multiple of {} ({ty})", name.escape_debug(), ty.block_size())]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Elements of a row.
        ne0: u64,
        /// Its type.
        ty: GgmlType,
    },
    /// A tensor whose data is not aligned.
    #[error("tensor \"{}\": data offset {offset} is not a multiple of the alignment {alignment}", name.escape_debug())]
    Misaligned {
        /// The tensor.
        name: String,
        /// From the start of the tensor data.
        offset: u64,
        /// The file's alignment.
        alignment: usize,
    },
    /// A tensor whose data would end beyond what can be addressed.
    #[error("tensor \"{}\": data offset {offset} plus {bytes} bytes is beyond the end of any file", name.escape_debug())]
    OffsetOverflow {
        /// The tensor.
        name: String,
        /// From the start of the tensor data.
        offset: u64,
        /// Bytes of the tensor.
        bytes: usize,
    },
    /// Two tensors share bytes.
    #[error("tensors \"{}\" and \"{}\" overlap: the first ends at data offset {end}, the second starts at {start}", first.escape_debug(), second.escape_debug())]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The other one.
        second: String,
        /// Where the first ends, from the start of the tensor data.
        end: usize,
        /// Where the second starts.
        start: usize,
    },
    /// Data to be written does not fit its tensor.
    #[error("tensor \"{}\": expected {expected} bytes of data, found {found}", name.escape_debug())]
    DataSize {
        /// The tensor.
        name: String,
        /// Bytes that type and shape ask for.
        expected: usize,
        /// Bytes that are there, at least.
        found: usize,
    },
    /// A tensor of a type that cannot be used here.
    #[error("tensor \"{}\": expected type {expected}, found {found}", name.escape_debug())]
    TensorType {
        /// The tensor.
        name: String,
        /// The type that is needed.
        expected: GgmlType,
        /// The type it has.
        found: GgmlType,
    },
    /// A model too large to be held in memory whole.
    #[error("the tensors end at byte {needed}, at most {limit} are allowed here")]
    ModelTooLarge {
        /// Bytes of the whole file.
        needed: usize,
        /// Most bytes allowed.
        limit: usize,
    },

    /// A shard that is not the first was opened.
    #[error("this is part {} of {count} of a split model: open the first part, {}", no + 1, first.display())]
    NotFirstShard {
        /// Number of this part, from 0.
        no: u16,
        /// Number of parts.
        count: u16,
        /// The first part.
        first: PathBuf,
    },
    /// A split model whose file name does not say where the other parts are.
    #[error("a split model of {count} parts: expected a file name that ends in -00001-of-{count:05}.gguf")]
    SplitName {
        /// Number of parts according to the metadata.
        count: u16,
    },
    /// A shard that belongs elsewhere.
    #[error("key \"{key}\": expected {expected}, as the first part and the file name say, found {found}")]
    SplitMismatch {
        /// The key.
        key: &'static str,
        /// What it should be.
        expected: u64,
        /// What it is.
        found: u64,
    },
    /// The shards together do not hold what the first one says.
    #[error("key \"split.tensors.count\": expected {expected} tensors in all parts together, found {found}")]
    SplitTensorCount {
        /// What the key says.
        expected: u64,
        /// Tensors that are there.
        found: usize,
    },

    /// The file is shorter than its tensors.
    #[error("truncated file: tensor \"{}\" ends at byte {needed}, the file has {present} bytes", name.escape_debug())]
    DataTruncated {
        /// The tensor that ends last.
        name: String,
        /// Bytes that the file should have at least.
        needed: usize,
        /// Bytes that it has.
        present: usize,
    },
}

impl GgufError {
    /// The same error, naming the file; an error that names one already stays as it is.
    pub fn in_file(self, path: &Path) -> GgufError {
        match self {
            e @ GgufError::InFile { .. } => e,
            e => GgufError::InFile {
                path: path.to_owned(),
                error: Box::new(e),
            },
        }
    }

    /// The error without the name of the file.
    pub fn kind(&self) -> &GgufError {
        match self {
            GgufError::InFile { error, .. } => error.kind(),
            e => e,
        }
    }
}

/// What was being read when a header turned out to be wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum What {
    Magic,
    Version,
    TensorCount,
    KeyCount,
    /// The key of pair `0`.
    Key(u64),
    /// The value of this key.
    Value(String),
    /// The name of tensor `0`.
    TensorName(u64),
    /// Shape, type or offset of this tensor.
    Tensor(String),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Magic => f.write_str("the magic"),
            What::Version => f.write_str("the version"),
            What::TensorCount => f.write_str("the tensor count"),
            What::KeyCount => f.write_str("the metadata count"),
            What::Key(i) => write!(f, "metadata key {i}"),
            What::Value(key) => write!(f, "the value of key \"{}\"", key.escape_debug()),
            What::TensorName(i) => write!(f, "the name of tensor {i}"),
            What::Tensor(name) => write!(f, "the description of tensor \"{}\"", name.escape_debug()),
        }
    }
}

/// What people most often take for a GGUF file.
fn guess_format(magic: [u8; 4]) -> &'static str {
    match &magic {
        b"vers" => " (a Git LFS pointer? the model itself was not downloaded)",
        b"<!DO" | b"<!do" | b"<htm" => " (a web page? the download went wrong)",
        b"PK\x03\x04" => " (a zip archive or PyTorch model? convert it to GGUF)",
        b"lmgg" | b"fmgg" | b"tjgg" | b"algg" => " (a format older than GGUF: convert the model again)",
        [_, _, _, 0] => " (a safetensors model? convert it to GGUF)",
        _ => "",
    }
}

struct Shape<'a>(&'a [u64]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0).finish()
    }
}

/// Ids that once had a meaning, by name.
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
