//! Files of the download cache: locking, downloading, and verification.

use std::fs::{self, File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use super::client::Client;
use super::links::without_links;
use super::progress::{Bar, Event, Observer};
use super::transfer::{Share, Transfer};
use super::{HubError, HubResult};
use crate::CancelHandle;

/// A cache file named by its SHA-256.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    pub(super) path: PathBuf,
    /// Lock file that is held during the download.
    pub(super) lock: PathBuf,
    pub(super) sha256: String,
    pub(super) len: u64,
    /// File that records a successful verification.
    pub(super) stamp: Option<PathBuf>,
}

impl Blob {
    /// Returns the expected length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the file exists with the expected length.
    pub fn is_there(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|m| m.is_file() && m.len() == self.len)
    }

    /// Returns true if the file was verified and has not changed since.
    pub fn is_known(&self) -> bool {
        let now = self.date();
        now.is_some() && now == self.stamp.as_ref().and_then(|path| fs::read_to_string(path).ok())
    }

    /// Verifies the file by computing its SHA-256.
    pub fn verify(&self, bar: &Bar, stop: &CancelHandle) -> HubResult<bool> {
        let verify = self.is_there() && sha256_of(&self.path, bar, stop)? == self.sha256;
        bar.finish_and_clear();
        if verify {
            self.note();
        }
        Ok(verify)
    }

    /// Removes a file whose checksum does not match.
    pub fn discard(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Downloads the file, unless another process has done so meanwhile.
    pub fn fetch(&self, client: &Client, url: &str, bar: &Bar, stop: &CancelHandle) -> HubResult {
        for directory in [self.path.parent(), self.lock.parent()].into_iter().flatten() {
            fs::create_dir_all(directory)
                .map_err(|e| HubError::new(format_args!("cannot use the directory {}: {e}", directory.display())))?;
        }
        let _held = hold(&self.lock, bar.observer(), stop)?;
        let mut share = Share::of(bar);
        if self.is_known() {
            bar.inc(self.len);
            return Ok(());
        }
        let part = self.path.with_extension("incomplete");
        let begun = fs::symlink_metadata(&part).ok();
        if begun.as_ref().is_some_and(|m| !m.is_file()) {
            // Writing to the target of a link would destroy another file.
            let _ = fs::remove_file(&part);
        }
        let n_begun = begun.filter(|m| m.is_file()).map_or(0, |m| m.len());
        let has_beginning = n_begun > 0;
        check_space(&self.path, self.len.saturating_sub(n_begun))?;
        let transfer = Transfer {
            client,
            url,
            part: &part,
            len: self.len,
            validator: None,
        };
        transfer.run(&mut share, stop)?;
        let mut found = sha256_of(&part, &Bar::hidden(), stop)?;
        if found != self.sha256 && has_beginning {
            // A partial download of an earlier run may be the corrupt part, so start over.
            let _ = fs::remove_file(&part);
            transfer.run(&mut share, stop)?;
            found = sha256_of(&part, &Bar::hidden(), stop)?;
        }
        if found != self.sha256 {
            let _ = fs::remove_file(&part);
            return Err(HubError::new(format_args!(
                "{url}: expected SHA-256 {}, found {found}; the download was discarded",
                self.sha256
            )));
        }
        admit(&part, &self.path)?;
        self.note();
        Ok(())
    }

    /// Returns the file's size and modification time, to detect changes.
    fn date(&self) -> Option<String> {
        let metadata = fs::metadata(&self.path)
            .ok()
            .filter(|m| m.is_file() && m.len() == self.len)?;
        let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(format!("{} {}\n", metadata.len(), modified.as_nanos()))
    }

    /// Records the verification. Errors are ignored: the next run verifies the file again.
    fn note(&self) {
        if let (Some(path), Some(date)) = (&self.stamp, self.date()) {
            let _ = path.parent().map(fs::create_dir_all);
            let _ = fs::write(path, date);
        }
    }
}

/// Waits for a lock. The locking protocol is the same as in other programs that share the cache.
pub fn hold(lock: &Path, observer: &Observer, stop: &CancelHandle) -> HubResult<File> {
    let cannot = |e| HubError::new(format_args!("cannot lock {}: {e}", lock.display()));
    let file = without_links(File::options().create(true).write(true).truncate(false))
        .open(lock)
        .map_err(cannot)?;
    let mut was_told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(e)) => return Err(cannot(e)),
        }
        if stop.is_cancelled() {
            return Err(HubError::Cancelled);
        }
        if !was_told {
            observer.send(Event::Waiting);
            was_told = true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Checks that the file system of a file has space for `n` more bytes.
fn check_space(path: &Path, n: u64) -> HubResult {
    #[cfg(unix)]
    {
        let directory = path.parent().unwrap_or(path);
        // A file system that does not report its free space returns errors when it is full.
        let Ok(space) = rustix::fs::statvfs(directory) else {
            return Ok(());
        };
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < n {
            return Err(HubError::new(format_args!(
                "{}: the download needs {n} bytes, but the file system has only {free} free bytes",
                directory.display()
            )));
        }
    }
    Ok(())
}

/// Renames a complete file. It is synced first, so that the final name never refers to a partial file, even
/// after a power failure.
pub fn admit(part: &Path, path: &Path) -> HubResult {
    let write = |e| HubError::new(format_args!("cannot write {}: {e}", path.display()));
    File::open(part).and_then(|f| f.sync_all()).map_err(write)?;
    fs::rename(part, path).map_err(write)
}

/// Returns the SHA-256 of a file in lowercase hexadecimal.
pub fn sha256_of(path: &Path, bar: &Bar, stop: &CancelHandle) -> HubResult<String> {
    let cannot = |e| HubError::new(format_args!("cannot read {}: {e}", path.display()));
    let mut file = File::open(path).map_err(cannot)?;
    bar.set_length(file.metadata().map_err(cannot)?.len());
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        if stop.is_cancelled() {
            return Err(HubError::Cancelled);
        }
        match file.read(&mut buffer).map_err(cannot)? {
            0 => break,
            n => {
                hasher.update(&buffer[..n]);
                bar.inc(n as u64);
            }
        }
    }
    Ok(hexadecimal(&hasher.finalize()))
}

/// Formats bytes in lowercase hexadecimal.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
