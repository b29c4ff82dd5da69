//! One file of the cache: how it gets there, and how it is known to be the right one.

use std::fs::{self, File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use indicatif::ProgressBar;
use sha2::{Digest, Sha256};

use super::client::Client;
use super::transfer::{Share, Transfer};
use crate::failure::{Failure, Outcome};
use crate::{interrupt, say};

/// A file that is called by its SHA-256.
#[derive(Clone, Debug)]
pub struct Blob {
    pub(super) path: PathBuf,
    /// Held by whoever fetches it.
    pub(super) lock: PathBuf,
    pub(super) sha256: String,
    pub(super) len: u64,
    /// What is noted when it was found to be right.
    pub(super) stamp: Option<PathBuf>,
}

impl Blob {
    /// Bytes that it is to have.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if a file of its name and length is there.
    pub fn is_there(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|m| m.is_file() && m.len() == self.len)
    }

    /// True if it was found to be right, and has not changed since.
    pub fn is_known(&self) -> bool {
        let now = self.date();
        now.is_some() && now == self.stamp.as_ref().and_then(|path| fs::read_to_string(path).ok())
    }

    /// Reads it through.
    pub fn is_right(&self, bar: &ProgressBar, stop: &interrupt::Guard) -> Outcome<bool> {
        let is_right = self.is_there() && sha256_of(&self.path, bar, stop)? == self.sha256;
        bar.finish_and_clear();
        if is_right {
            self.note();
        }
        Ok(is_right)
    }

    /// Takes the name from a file that does not deserve it.
    pub fn discard(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Fetches it, unless another program has done so meanwhile.
    pub fn fetch(&self, client: &Client, url: &str, bar: &ProgressBar, stop: &interrupt::Guard) -> Outcome {
        for folder in [self.path.parent(), self.lock.parent()].into_iter().flatten() {
            fs::create_dir_all(folder)
                .map_err(|e| Failure::new(format_args!("cannot use the folder {}: {e}", folder.display())))?;
        }
        let _held = self.hold(stop)?;
        let mut share = Share::of(bar);
        if self.is_known() {
            bar.inc(self.len);
            return Ok(());
        }
        let part = self.path.with_extension("incomplete");
        let has_beginning = fs::metadata(&part).is_ok_and(|m| m.len() > 0);
        let transfer = Transfer {
            client,
            url,
            part: &part,
            len: self.len,
            validator: None,
        };
        transfer.run(&mut share, stop)?;
        let mut found = sha256_of(&part, &ProgressBar::hidden(), stop)?;
        if found != self.sha256 && has_beginning {
            // What an earlier attempt left may be what is wrong.
            let _ = fs::remove_file(&part);
            transfer.run(&mut share, stop)?;
            found = sha256_of(&part, &ProgressBar::hidden(), stop)?;
        }
        if found != self.sha256 {
            let _ = fs::remove_file(&part);
            return Err(Failure::new(format_args!(
                "{url}: what came has SHA-256 {found}, expected {}: it is not kept",
                self.sha256
            )));
        }
        admit(&part, &self.path)?;
        self.note();
        Ok(())
    }

    /// Waits until nobody else fetches it. The file is locked as other programs lock it that share the cache.
    fn hold(&self, stop: &interrupt::Guard) -> Outcome<File> {
        let cannot = |e| Failure::new(format_args!("cannot lock {}: {e}", self.lock.display()));
        let file = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&self.lock)
            .map_err(cannot)?;
        let mut was_told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(cannot(e)),
            }
            if stop.is_set() {
                return Err(Failure::Interrupted);
            }
            if !was_told {
                say::line("waiting for another program that fetches the same file");
                was_told = true;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Changes whenever somebody writes to the file.
    fn date(&self) -> Option<String> {
        let metadata = fs::metadata(&self.path)
            .ok()
            .filter(|m| m.is_file() && m.len() == self.len)?;
        let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(format!("{} {}\n", metadata.len(), modified.as_nanos()))
    }

    /// Without a note it is read through next time: not being able to write one is no error.
    fn note(&self) {
        if let (Some(path), Some(date)) = (&self.stamp, self.date()) {
            let _ = path.parent().map(fs::create_dir_all);
            let _ = fs::write(path, date);
        }
    }
}

/// Gives a complete file its name: on disk first, so that a name never stands for half a file, not even after a power cut.
pub fn admit(part: &Path, path: &Path) -> Outcome {
    let write = |e| Failure::new(format_args!("cannot write {}: {e}", path.display()));
    File::open(part).and_then(|f| f.sync_all()).map_err(write)?;
    fs::rename(part, path).map_err(write)
}

/// The SHA-256 of a file, in small hexadecimal digits.
pub fn sha256_of(path: &Path, bar: &ProgressBar, stop: &interrupt::Guard) -> Outcome<String> {
    let cannot = |e| Failure::new(format_args!("cannot read {}: {e}", path.display()));
    let mut file = File::open(path).map_err(cannot)?;
    bar.set_length(file.metadata().map_err(cannot)?.len());
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        if stop.is_set() {
            return Err(Failure::Interrupted);
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

/// Bytes in small hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
