//! GGUF files: metadata and tensors, read and written. Modules stand in the order data flows:
//!
//! - [`value`]: the metadata types, compact arrays, typed access
//! - [`metadata`]: keys to values, in file order
//! - [`reader`]: bytes to a checked header (metadata and tensor table)
//! - [`mod@file`]: a header over a mapped file, with its tensors' data
//! - [`split`]: models in several files
//! - [`writer`]: metadata and tensors to a file
//! - [`seeded`]: tiny models whose weights are a function of their names, and [`logits`]: what such models should compute
//! - [`error`]: everything that can be wrong with a file
//!
//! A file is not trusted: every count, length, shape and offset is checked against the bytes present before it is
//! used, nothing panics, and no more memory is asked for than a small multiple of the bytes parsed.

pub mod error;
pub mod file;
pub mod logits;
pub mod metadata;
pub mod reader;
pub mod seeded;
pub mod split;
pub mod value;
pub mod writer;

#[cfg(test)]
mod tests;

pub use error::GgufError;
pub use file::{GgufFile, Mapping};
pub use metadata::Metadata;
pub use reader::{Gguf, TensorInfo};
pub use split::GgufSet;
pub use value::{Array, FromValue, StringArray, Value, ValueType};
pub use writer::GgufWriter;

/// The first four bytes of every file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// The version that is written; version 2 differs from it in nothing that little-endian readers can see.
pub const VERSION: u32 = 3;
/// Alignment of tensor data, in bytes, unless `general.alignment` says otherwise.
pub const DEFAULT_ALIGNMENT: usize = 32;
/// The metadata key (of type u32) that sets the alignment.
pub const KEY_ALIGNMENT: &str = "general.alignment";
/// Longest metadata key in bytes.
pub const MAX_KEY_LEN: usize = 65535;
/// Longest tensor name in bytes.
pub const MAX_NAME_LEN: usize = 64;
/// Most dimensions a tensor can have.
pub const MAX_DIMS: usize = 4;
/// How deep arrays of arrays may be nested; real files do not nest at all.
pub const MAX_ARRAY_DEPTH: usize = 8;

/// `n` rounded up to a multiple of `alignment` (a power of two); `None` on overflow.
fn align_up(n: usize, alignment: usize) -> Option<usize> {
    Some(n.checked_add(alignment - 1)? & !(alignment - 1))
}
