//! Output files that are complete or absent.

use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use crate::failure::{Failure, Outcome};

/// File that gets its name once it is complete. An error or an interrupt leaves nothing under the name.
pub struct OutputFile {
    file: File,
    partial: Partial,
    path: PathBuf,
}

/// Path of an incomplete file.
enum Partial {
    /// Deleted on an error or an interrupt.
    Temporary(TempPath),
    /// Kept, so that another run can complete the file.
    Kept(PathBuf),
}

impl OutputFile {
    /// Creates a temporary file next to `path`.
    pub fn create(path: &Path) -> Outcome<OutputFile> {
        let file = tempfile::Builder::new()
            .prefix(&prefix(path))
            .suffix(SUFFIX)
            // The mode of a new file, less the bits of the umask. Without this, only the owner may read the file.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory(path))
            .map_err(|e| failed(path, &e))?;
        let (file, partial) = file.into_parts();
        Ok(OutputFile {
            file,
            partial: Partial::Temporary(partial),
            path: path.to_owned(),
        })
    }

    /// Opens the incomplete file of an earlier run with the same key, or creates one that is kept after an error or
    /// an interrupt.
    pub fn resume(path: &Path, key: &str) -> Outcome<OutputFile> {
        let partial = directory(path).join(format!("{}{key}{SUFFIX}", prefix(path)));
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&partial).map_err(|e| failed(&partial, &e))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::new(format_args!(
                    "another process writes {}; wait until it ends, or omit --resume",
                    path.display()
                )));
            }
            // Some file systems have no locks.
            Err(TryLockError::Error(error)) => tracing::debug!("cannot lock {}: {error}", partial.display()),
            Ok(()) => {}
        }
        Ok(OutputFile {
            file,
            partial: Partial::Kept(partial),
            path: path.to_owned(),
        })
    }

    /// Returns the file, for writing.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its name, in place of an existing file. The mode is copied from `like`, or the default.
    pub fn finish(self, like: Option<&Path>) -> Outcome {
        let file = &self.file;
        if let Some(metadata) = like.and_then(|path| path.metadata().ok()) {
            file.set_permissions(metadata.permissions())
                .map_err(|e| failed(&self.path, &e))?;
        }
        file.sync_all().map_err(|e| failed(&self.path, &e))?;
        match self.partial {
            Partial::Temporary(partial) => partial.persist(&self.path).map_err(|e| e.error),
            Partial::Kept(partial) => std::fs::rename(partial, &self.path),
        }
        .map_err(|e| failed(&self.path, &e))
    }
}

/// Suffix of the names of incomplete files.
const SUFFIX: &str = ".partial";

/// Returns the prefix of the names of incomplete files.
fn prefix(path: &Path) -> String {
    format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy())
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}

/// Returns the failure of writing `path`.
pub fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format_args!("cannot write {}: {error}", path.display()))
}

/// Refuses to write over an existing file unless `is_forced`.
pub fn check_absent(path: &Path, is_forced: bool) -> Outcome {
    if !is_forced && path.exists() {
        return Err(Failure::new(format_args!(
            "{} exists; --force replaces it",
            path.display()
        )));
    }
    Ok(())
}
