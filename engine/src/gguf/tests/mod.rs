//! Module tests: hand-made invalid files, real headers, and random files.

mod bad_files;
mod changes;
mod properties;
mod real_files;
#[allow(clippy::duplicate_mod)]
#[path = "../../../../tests/src/root.rs"]
mod root;

use std::path::PathBuf;

use super::ValueType;
use kernels::GgmlType;

/// Returns the directory with the headers of small models and their reference logits.
fn data_dir() -> PathBuf {
    root::root().join("tests/data/archs")
}

/// Returns the sorted paths of all files in a directory whose names end in `suffix`.
fn files_in(dir: PathBuf, suffix: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .expect("test data directory is readable")
        .map(|entry| entry.expect("test data directory is readable").path())
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect();
    files.sort();
    files
}

/// Byte builder for headers that [`GgufWriter`] would reject.
#[derive(Clone, Default)]
struct Raw(Vec<u8>);

impl Raw {
    /// Starts with the magic, version 3 and both counts.
    fn file(n_tensors: u64, n_keys: u64) -> Raw {
        Raw::default().bytes(b"GGUF").u32(3).u64(n_tensors).u64(n_keys)
    }

    fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, n: u32) -> Raw {
        self.bytes(&n.to_le_bytes())
    }

    fn u64(self, n: u64) -> Raw {
        self.bytes(&n.to_le_bytes())
    }

    fn string(self, s: impl AsRef<[u8]>) -> Raw {
        self.u64(s.as_ref().len() as u64).bytes(s.as_ref())
    }

    fn ty(self, ty: ValueType) -> Raw {
        self.u32(ty.id())
    }

    /// Appends a key with a u32 value.
    fn key_u32(self, key: &str, value: u32) -> Raw {
        self.string(key).ty(ValueType::U32).u32(value)
    }

    /// Appends a tensor description.
    fn tensor(self, name: &str, dims: &[u64], ty: GgmlType, offset: u64) -> Raw {
        let raw = self.string(name).u32(dims.len() as u32);
        let raw = dims.iter().fold(raw, |raw, &n| raw.u64(n));
        raw.u32(ty.id()).u64(offset)
    }

    /// Pads with zeros to a multiple of 32 bytes.
    fn pad(mut self) -> Raw {
        self.0.resize(self.0.len().next_multiple_of(32), 0);
        self
    }

    fn zeros(mut self, n: usize) -> Raw {
        self.0.resize(self.0.len() + n, 0);
        self
    }
}
