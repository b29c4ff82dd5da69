//! Changes of metadata and tensor names that leave the tensor data as stored.
//!
//! The tensor data of a file starts at the first multiple of the alignment after the header. If a new header ends in
//! the same unit, or if the key [`KEY_RESERVE`] can take up the difference, the header is replaced in place. Otherwise
//! a copy of the file is written.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::writer::{TableEntry, encode_header};
use super::{Array, Gguf, GgufError, KEY_ALIGNMENT, MAX_NAME_LEN, Metadata, TensorInfo, Value, align_up};

/// Metadata key (u8 array) whose length fills the space between header and tensor data. Readers ignore the key.
pub const KEY_RESERVE: &str = "gguf.reserve";

/// Change of a header.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Change {
    /// Sets the value of a new or existing key.
    Set { key: String, value: Value },
    /// Removes a key.
    Remove { key: String },
    /// Renames a key.
    RenameKey { from: String, to: String },
    /// Renames a tensor.
    RenameTensor { from: String, to: String },
}

/// Reason why a file cannot be edited.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum EditError {
    /// A key to remove or rename is not in the file.
    #[error("key \"{}\" is not in the file", key.escape_debug())]
    NoKey { key: String },
    /// A tensor to rename is not in the file.
    #[error("tensor \"{}\" is not in the file", name.escape_debug())]
    NoTensor { name: String },
    /// The new name of a key or tensor is in use.
    #[error("\"{}\" already exists in the file", name.escape_debug())]
    Exists { name: String },
    /// The new name of a tensor is empty or too long.
    #[error("\"{}\" is not a tensor name: expected 1 to {MAX_NAME_LEN} bytes", name.escape_debug())]
    TensorName { name: String },
    /// The key belongs to the layout of the file.
    #[error("key \"{key}\" describes the layout of the file and cannot be changed")]
    Layout { key: &'static str },
    /// The file cannot be read, or the new header is invalid.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The header backup next to the file belongs to another file.
    #[error("{} is the header backup of another file; remove the backup", path.display())]
    Backup { path: PathBuf },
    /// The file cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    /// The caller interrupted the copy.
    #[error("interrupted")]
    Interrupted,
}

/// Space that a new header leaves for later edits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserve {
    /// The file keeps its layout if the header fits, or a copy gets the reserve of the file.
    Keep,
    /// A copy with this number of reserved bytes is written.
    Bytes(usize),
}

/// An edited header, ready to be written.
#[derive(Debug)]
pub struct Edit {
    path: PathBuf,
    old: Gguf,
    new: Gguf,
    /// Encoded header with its padding.
    bytes: Vec<u8>,
}

impl Edit {
    /// Applies `changes`, in order, to the header of a file. Nothing is written.
    ///
    /// # Errors
    /// Returns an [`EditError`] if the file cannot be read or a change cannot be made.
    pub fn new(path: impl AsRef<Path>, changes: &[Change], reserve: Reserve) -> Result<Edit, EditError> {
        let path = path.as_ref();
        restore(path)?;
        let old = Gguf::open_header(path)?;
        let mut metadata = old.metadata.clone();
        let mut tensors = old.tensors().to_vec();
        let mut names: HashSet<String> = tensors.iter().map(|t| t.name.clone()).collect();
        for change in changes {
            apply(change, &mut metadata, &mut tensors, &mut names)?;
        }
        let reserved = metadata.remove(KEY_RESERVE);
        let bytes = match reserve {
            Reserve::Bytes(n) => with_reserve(metadata, &tensors, old.alignment(), n)?,
            Reserve::Keep => match fitted(&metadata, &tensors, old.data_offset(), old.alignment())? {
                Some(bytes) => bytes,
                None => with_reserve(metadata, &tensors, old.alignment(), reserved_bytes(reserved.as_ref()))?,
            },
        };
        let new = Gguf::parse_header(&bytes)?;
        Ok(Edit {
            path: path.to_owned(),
            old,
            new,
            bytes,
        })
    }

    /// Returns the header before the edit.
    pub fn old(&self) -> &Gguf {
        &self.old
    }

    /// Returns the header after the edit.
    pub fn header(&self) -> &Gguf {
        &self.new
    }

    /// Returns true if the file can keep its tensor data in place.
    pub fn fits(&self) -> bool {
        self.new.data_offset() == self.old.data_offset()
    }

    /// Replaces the header of the file. Both headers are kept in a backup file (`NAME.header-backup`) until the new
    /// header is on disk. If that is interrupted, the next edit restores the old header. Errors name the file.
    ///
    /// # Panics
    /// Panics if the header does not fit, see [`Edit::fits`].
    pub fn write_in_place(&self) -> Result<(), EditError> {
        assert!(self.fits(), "the new header has another length");
        let failed = |error| EditError::Write {
            path: self.path.clone(),
            error,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.path)
            .map_err(failed)?;
        let mut both = vec![0; self.bytes.len()];
        file.read_exact_at(&mut both, 0).map_err(failed)?;
        let pairs = both.iter().zip(&self.bytes);
        let start = pairs.take_while(|(old, new)| old == new).count();
        both.extend_from_slice(&self.bytes);
        let backup = backup_of(&self.path);
        write_synced(&backup, &both).map_err(|error| EditError::Write {
            path: backup.clone(),
            error,
        })?;
        file.write_all_at(&self.bytes[start..], start as u64).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        fs::remove_file(&backup).map_err(|error| EditError::Write { path: backup, error })
    }

    /// Writes the new header and the tensor data of the file to `out`. The data is copied by the kernel where the
    /// file system allows.
    ///
    /// # Errors
    /// Returns [`EditError::Interrupted`] if `interrupt` is set meanwhile, and [`EditError::Write`] if reading or
    /// writing fails.
    pub fn copy_to(&self, out: &mut File, interrupt: &AtomicBool) -> Result<u64, EditError> {
        let failed = |error| EditError::Write {
            path: self.path.clone(),
            error,
        };
        out.write_all(&self.bytes).map_err(failed)?;
        let mut data = File::open(&self.path).map_err(failed)?;
        data.seek(SeekFrom::Start(self.old.data_offset() as u64))
            .map_err(failed)?;
        let mut n_bytes = self.bytes.len() as u64;
        loop {
            if interrupt.load(Ordering::Relaxed) {
                return Err(EditError::Interrupted);
            }
            let n = io::copy(&mut (&data).take(COPY_STEP), out).map_err(failed)?;
            n_bytes += n;
            if n < COPY_STEP {
                return Ok(n_bytes);
            }
        }
    }
}

/// Bytes that are copied between two checks for an interrupt.
const COPY_STEP: u64 = 64 << 20;

fn apply(
    change: &Change,
    metadata: &mut Metadata,
    tensors: &mut [TensorInfo],
    names: &mut HashSet<String>,
) -> Result<(), EditError> {
    match change {
        Change::Set { key, value } => {
            check_key(key)?;
            metadata.insert(key.as_str(), value.clone());
        }
        Change::Remove { key } => {
            check_key(key)?;
            metadata
                .remove(key)
                .ok_or_else(|| EditError::NoKey { key: key.clone() })?;
        }
        Change::RenameKey { from, to } => {
            check_key(from)?;
            check_key(to)?;
            if !metadata.contains(from) {
                return Err(EditError::NoKey { key: from.clone() });
            }
            if !metadata.rename(from, to) {
                return Err(EditError::Exists { name: to.clone() });
            }
        }
        Change::RenameTensor { from, to } => {
            if to.is_empty() || to.len() > MAX_NAME_LEN {
                return Err(EditError::TensorName { name: to.clone() });
            }
            let tensor = tensors.iter_mut().find(|t| t.name == *from);
            let tensor = tensor.ok_or_else(|| EditError::NoTensor { name: from.clone() })?;
            if !names.insert(to.clone()) {
                return Err(EditError::Exists { name: to.clone() });
            }
            names.remove(from);
            tensor.name.clone_from(to);
        }
    }
    Ok(())
}

fn check_key(key: &str) -> Result<(), EditError> {
    match [KEY_ALIGNMENT, KEY_RESERVE].into_iter().find(|&fixed| fixed == key) {
        Some(key) => Err(EditError::Layout { key }),
        None => Ok(()),
    }
}

fn reserved_bytes(value: Option<&Value>) -> usize {
    value.and_then(Value::as_array).map_or(0, Array::len)
}

fn encoded(metadata: &Metadata, tensors: &[TensorInfo]) -> Result<Vec<u8>, GgufError> {
    let entries: Vec<_> = tensors
        .iter()
        .map(|t| TableEntry {
            name: &t.name,
            dims: t.shape().iter().map(|&n| n as u64).collect(),
            ty: t.ty,
            offset: t.offset as u64,
        })
        .collect();
    encode_header(metadata, &entries)
}

/// Encodes a header whose tensor data starts at `data_offset`; `None` if no size of the reserve leads there.
fn fitted(
    metadata: &Metadata,
    tensors: &[TensorInfo],
    data_offset: usize,
    alignment: usize,
) -> Result<Option<Vec<u8>>, GgufError> {
    let mut bytes = encoded(metadata, tensors)?;
    if align_up(bytes.len(), alignment) != Some(data_offset) {
        let mut metadata = metadata.clone();
        metadata.insert(KEY_RESERVE, Value::Array(Array::U8(Vec::new())));
        let n_least = encoded(&metadata, tensors)?.len();
        let Some(n) = data_offset.checked_sub(n_least) else {
            return Ok(None);
        };
        metadata.insert(KEY_RESERVE, Value::Array(Array::U8(vec![0; n])));
        bytes = encoded(&metadata, tensors)?;
    }
    bytes.resize(data_offset, 0);
    Ok(Some(bytes))
}

/// Encodes a header with at least `n` reserved bytes, which end at the alignment, or without any.
fn with_reserve(
    mut metadata: Metadata,
    tensors: &[TensorInfo],
    alignment: usize,
    n: usize,
) -> Result<Vec<u8>, GgufError> {
    let mut put = |n: usize| {
        metadata.insert(KEY_RESERVE, Value::Array(Array::U8(vec![0; n])));
        encoded(&metadata, tensors)
    };
    if n > 0 {
        let len = put(n)?.len();
        return put(n + len.next_multiple_of(alignment) - len);
    }
    let mut bytes = encoded(&metadata, tensors)?;
    bytes.resize(bytes.len().next_multiple_of(alignment), 0);
    Ok(bytes)
}

fn backup_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".header-backup");
    name.into()
}

/// Writes a file under a temporary name, so that the file is complete if it exists.
fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&partial, path)
}

/// Finishes or undoes an edit that was interrupted, such as by a loss of power.
fn restore(path: &Path) -> Result<(), EditError> {
    let backup = backup_of(path);
    let failed = |path: &Path, error| EditError::Write {
        path: path.to_owned(),
        error,
    };
    let bytes = match fs::read(&backup) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(&backup, error)),
    };
    let (old, new) = bytes.split_at(bytes.len() / 2);
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.map_err(|error| failed(path, error))?;
    let mut found = vec![0; old.len()];
    file.read_exact_at(&mut found, 0).map_err(|error| failed(path, error))?;
    let is_mixed = found.iter().zip(old).zip(new).all(|((f, o), n)| f == o || f == n);
    if !is_mixed || bytes.len() % 2 != 0 {
        return Err(EditError::Backup { path: backup });
    }
    if found != new {
        file.write_all_at(old, 0).map_err(|error| failed(path, error))?;
        file.sync_data().map_err(|error| failed(path, error))?;
    }
    fs::remove_file(&backup).map_err(|error| failed(&backup, error))
}
