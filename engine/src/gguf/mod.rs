//! Reading and writing of GGUF files.
//!
//! - [`value`]: metadata types, compact arrays, and typed access
//! - [`mapping`]: contents of a file, mapped or in memory
//! - [`metadata`]: an ordered map from keys to values
//! - [`reader`]: parses and validates the header (metadata and tensor table)
//! - [`mod@file`]: a mapped file with its header and tensor data
//! - [`kind`]: models, adapters, and other kinds of files
//! - [`split`]: models split into several files
//! - [`writer`]: writes metadata and tensors to a file
//! - [`partition`]: splits a model into several files, and merges the files
//! - [`edit`]: changes metadata and tensor names of a file
//! - [`seeded`]: tiny models with weights derived from tensor names; [`logits`]: their reference logits
//! - [`error`]: all errors of this module
//!
//! GGUF files are untrusted input. Every count, length, shape, and offset is checked against the file size before use.
//! The parser never panics, and it allocates at most a small multiple of the bytes parsed.

pub mod computed;
pub mod edit;
pub mod error;
pub mod faults;
pub mod file;
pub mod kind;
pub mod logits;
pub mod mapping;
pub mod metadata;
pub mod partition;
pub mod reader;
pub mod seeded;
pub mod split;
pub mod value;
pub mod writer;

#[cfg(test)]
mod tests;

pub use computed::ComputedBytes;
pub use error::GgufError;
pub use file::GgufFile;
pub use kind::FileKind;
pub use mapping::Mapping;
pub use metadata::Metadata;
pub use reader::{Gguf, TensorInfo};
pub use split::GgufSet;
pub use value::{Array, FromValue, StringArray, Value, ValueType};
pub use writer::GgufWriter;

/// Magic number: the first four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// Format version written by [`GgufWriter`]. Little-endian files of version 2 have an identical layout.
pub const VERSION: u32 = 3;
/// Default alignment of tensor data in bytes, overridden by `general.alignment`.
pub const DEFAULT_ALIGNMENT: usize = 32;
/// Metadata key (u32) that sets the alignment of tensor data.
pub const KEY_ALIGNMENT: &str = "general.alignment";
/// Maximum length of a metadata key in bytes.
pub const MAX_KEY_LEN: usize = 65535;
/// Maximum length of a tensor name in bytes.
pub const MAX_NAME_LEN: usize = 64;
/// Maximum number of dimensions of a tensor.
pub const MAX_DIMS: usize = 4;
/// Maximum nesting depth of array values. Real files do not nest arrays.
pub const MAX_ARRAY_DEPTH: usize = 8;

/// Rounds `n` up to a multiple of `alignment` (a power of two); `None` on overflow.
fn align_up(n: usize, alignment: usize) -> Option<usize> {
    Some(n.checked_add(alignment - 1)? & !(alignment - 1))
}
