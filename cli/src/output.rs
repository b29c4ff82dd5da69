//! Output files that are complete or absent.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::failure::{Failure, Outcome};

/// File that gets its name once it is complete. An error or an interrupt leaves nothing under the name.
pub struct OutputFile {
    file: NamedTempFile,
    path: PathBuf,
}

impl OutputFile {
    /// Creates a temporary file beside `path`.
    pub fn create(path: &Path) -> Outcome<OutputFile> {
        let directory = match path.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory,
            _ => Path::new("."),
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let file = tempfile::Builder::new()
            .prefix(&format!(".{name}."))
            .suffix(".partial")
            // The mode of a new file, less the bits of the umask. Without this, only the owner may read the file.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory)
            .map_err(|e| failed(path, &e))?;
        Ok(OutputFile {
            file,
            path: path.to_owned(),
        })
    }

    /// Returns the file, for writing.
    pub fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Gives the file its name, in place of an existing file. The mode is that of `like`, or of a new file.
    pub fn finish(self, like: Option<&Path>) -> Outcome {
        let file = self.file.as_file();
        if let Some(metadata) = like.and_then(|path| path.metadata().ok()) {
            file.set_permissions(metadata.permissions())
                .map_err(|e| failed(&self.path, &e))?;
        }
        file.sync_all().map_err(|e| failed(&self.path, &e))?;
        self.file
            .persist(&self.path)
            .map_err(|e| failed(&self.path, &e.error))?;
        Ok(())
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
