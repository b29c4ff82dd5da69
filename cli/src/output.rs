//! OutputFile files that are complete or absent.

use std::fs::File;
use std::io;
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
        let mode = like.and_then(|path| path.metadata().ok()).map(|m| m.permissions());
        match mode {
            Some(mode) => file.set_permissions(mode),
            None => set_default_mode(file),
        }
        .and_then(|()| file.sync_all())
        .map_err(|e| failed(&self.path, &e))?;
        self.file
            .persist(&self.path)
            .map_err(|e| failed(&self.path, &e.error))?;
        Ok(())
    }
}

/// Temporary files are private; a new file of a user is not.
fn set_default_mode(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
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
