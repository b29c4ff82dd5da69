//! The download cache of the fallback model, with checksum verification.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use super::{Remote, SourceError};

/// A file that does not match its expected checksum.
#[derive(Debug, thiserror::Error)]
pub enum WrongFile {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// Wrong length.
    #[error("expected {expected} bytes, found {found}")]
    Length { expected: u64, found: u64 },
    /// Wrong checksum.
    #[error("expected SHA-256 {expected}, found {found}")]
    Hash { expected: &'static str, found: String },
}

/// Returns true if the file exists. The checksum is only recomputed after the file has changed.
///
/// # Errors
/// Returns a [`WrongFile`] if the file cannot be read or its checksum does not match.
pub fn holds(path: &Path, remote: &Remote) -> Result<bool, WrongFile> {
    let stamp = stamp(path, remote);
    if stamp.is_some() && stamp == fs::read_to_string(stamp_path(path)).ok() {
        return Ok(true);
    }
    match check(path, remote) {
        Ok(()) => {
            write_stamp(path, remote);
            Ok(true)
        }
        Err(WrongFile::Read { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(wrong) => Err(wrong),
    }
}

/// Verifies a downloaded file and moves it to `path`.
pub fn admit(file: &Path, path: &Path, remote: &Remote) -> Result<(), SourceError> {
    check(file, remote)?;
    let write = |error| SourceError::Write {
        path: path.to_owned(),
        error,
    };
    // Sync before the rename, so that `path` is never a partial file, even after a power failure.
    File::open(file).and_then(|f| f.sync_all()).map_err(write)?;
    fs::rename(file, path).map_err(write)?;
    write_stamp(path, remote);
    Ok(())
}

/// Verifies the length and SHA-256 of a file.
fn check(path: &Path, remote: &Remote) -> Result<(), WrongFile> {
    let read = |error| WrongFile::Read {
        path: path.to_owned(),
        error,
    };
    let mut file = File::open(path).map_err(read)?;
    let found = file.metadata().map_err(read)?.len();
    if found != remote.len {
        return Err(WrongFile::Length {
            expected: remote.len,
            found,
        });
    }
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(read)? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    let found: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if found == remote.sha256 {
        Ok(())
    } else {
        Err(WrongFile::Hash {
            expected: remote.sha256,
            found,
        })
    }
}

/// Returns the fingerprint (size and modification time) stored next to a verified file.
fn stamp(path: &Path, remote: &Remote) -> Option<String> {
    let metadata = fs::metadata(path)
        .ok()
        .filter(|m| m.is_file() && m.len() == remote.len)?;
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!(
        "{} {} {}\n",
        remote.sha256,
        metadata.len(),
        modified.as_nanos()
    ))
}

fn stamp_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".verified");
    name.into()
}

/// Writes the fingerprint. Errors are ignored: the next run recomputes the checksum.
fn write_stamp(path: &Path, remote: &Remote) {
    if let Some(stamp) = stamp(path, remote) {
        let _ = fs::write(stamp_path(path), stamp);
    }
}
