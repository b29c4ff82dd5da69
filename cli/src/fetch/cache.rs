//! The user's cache folder: which file counts as the right one, and how it gets there.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use super::{Remote, SourceError};
use crate::say;

/// A file that is not the one expected.
#[derive(Debug, thiserror::Error)]
pub enum WrongFile {
    /// It cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It has another length.
    #[error("the file has {found} bytes, expected {expected}")]
    Length {
        /// Bytes it should have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// It has other contents.
    #[error("the file has SHA-256 {found}, expected {expected}")]
    Hash {
        /// As it should be.
        expected: &'static str,
        /// As it is.
        found: String,
    },
}

/// True if the file is there and right. It is read through only if it has changed since that was last known.
pub fn holds(path: &Path, remote: &Remote) -> bool {
    let stamp = stamp(path, remote);
    if stamp.is_some() && stamp == fs::read_to_string(stamp_path(path)).ok() {
        return true;
    }
    match check(path, remote) {
        Ok(()) => {
            write_stamp(path, remote);
            true
        }
        Err(WrongFile::Read { error, .. }) if error.kind() == io::ErrorKind::NotFound => false,
        Err(e) => {
            say::line(format_args!("the cached copy at {} is not used: {e}", path.display()));
            false
        }
    }
}

/// Moves a fetched file to `path` if it is the right one.
pub fn admit(file: &Path, path: &Path, remote: &Remote) -> Result<(), SourceError> {
    check(file, remote)?;
    let write = |error| SourceError::Write {
        path: path.to_owned(),
        error,
    };
    // On disk before it has its name: a name must never stand for half a file, not even after a power cut.
    File::open(file).and_then(|f| f.sync_all()).map_err(write)?;
    fs::rename(file, path).map_err(write)?;
    write_stamp(path, remote);
    Ok(())
}

/// Length and SHA-256.
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

/// What is noted beside a file known to be right: changes whenever somebody writes to the file.
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

/// Without a stamp the file is read through next time: not being able to write one is no error.
fn write_stamp(path: &Path, remote: &Remote) {
    if let Some(stamp) = stamp(path, remote) {
        let _ = fs::write(stamp_path(path), stamp);
    }
}
