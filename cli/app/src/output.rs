//! Output files that are complete or absent.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use crate::failure::{Failure, Outcome};
use crate::interrupt;

/// File that gets its name once it is complete. An error or an interrupt leaves nothing under the name.
///
/// A symbolic link stays a link to the new file. A character device, such as `/dev/null`, is written directly.
pub struct OutputFile {
    file: File,
    partial: Partial,
    /// Path in messages.
    path: PathBuf,
    /// Path of the file to replace, without symbolic links.
    target: PathBuf,
}

/// Path of an incomplete file.
enum Partial {
    /// Deleted on an error, an interrupt, or a signal that ends the process.
    Temporary(TempPath, interrupt::Incomplete),
    /// Kept, so that another run can complete the file.
    Kept(PathBuf),
    /// Absent, because a device is written directly.
    Device,
}

impl OutputFile {
    /// Creates a temporary file next to `path`.
    pub fn create(path: &Path) -> Outcome<OutputFile> {
        let target = resolve(path);
        if check(path)? == Destination::Device {
            let file = File::options()
                .write(true)
                .open(&target)
                .map_err(|e| failed(path, &e))?;
            return Ok(OutputFile {
                file,
                partial: Partial::Device,
                path: path.to_owned(),
                target,
            });
        }
        let file = tempfile::Builder::new()
            .prefix(&prefix(&target))
            .suffix(SUFFIX)
            .make_in(directory(&target), |path| {
                let on_signal = interrupt::delete_on_signal(path);
                let mut options = File::options();
                // The mode of a new file, less the bits of the umask.
                let file = options.read(true).write(true).create_new(true).mode(0o666).open(path)?;
                Ok((file, on_signal))
            })
            // Without the name of the temporary file.
            .map_err(|e| failed(path, &e.kind().into()))?;
        let ((file, on_signal), partial) = file.into_parts();
        Ok(OutputFile {
            file,
            partial: Partial::Temporary(partial, on_signal),
            path: path.to_owned(),
            target,
        })
    }

    /// Opens the incomplete file of an earlier run with the same key, or creates one that is kept after an error or
    /// an interrupt.
    pub fn resume(path: &Path, key: &str) -> Outcome<OutputFile> {
        if check(path)? == Destination::Device {
            return Err(Failure::new(format_args!(
                "cannot resume {}: it is a device; omit --resume",
                path.display()
            )));
        }
        let target = resolve(path);
        let partial = directory(&target).join(format!("{}{key}{SUFFIX}", prefix(&target)));
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
            target,
        })
    }

    /// Returns the file, for writing.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Renames the file to its final name, replacing an existing file. Copies the mode from `like`, if given.
    pub fn finish(self, like: Option<&Path>) -> Outcome {
        let file = &self.file;
        if matches!(self.partial, Partial::Device) {
            return Ok(());
        }
        if let Some(metadata) = like.and_then(|path| path.metadata().ok()) {
            file.set_permissions(metadata.permissions())
                .map_err(|e| failed(&self.path, &e))?;
        }
        file.sync_all().map_err(|e| failed(&self.path, &e))?;
        match self.partial {
            Partial::Temporary(partial, _on_signal) => partial.persist(&self.target).map_err(|e| e.error),
            Partial::Kept(partial) => std::fs::rename(partial, &self.target),
            Partial::Device => Ok(()),
        }
        .map_err(|e| failed(&self.path, &e))
    }
}

/// Kind of an output path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A new or existing file.
    File,
    /// A character device.
    Device,
}

/// Checks that a file can be written at `path`, before anything is computed.
pub fn check(path: &Path) -> Outcome<Destination> {
    let refused = |reason: &str| Failure::new(format_args!("cannot write {}: {reason}", path.display()));
    match path.metadata().map(|metadata| metadata.file_type()) {
        Ok(ty) if ty.is_file() => Ok(Destination::File),
        Ok(ty) if ty.is_char_device() => Ok(Destination::Device),
        Ok(ty) if ty.is_dir() => Err(refused("it is a directory; add a file name")),
        Ok(_) => Err(refused("not a regular file")),
        Err(_) => {
            let target = resolve(path);
            let directory = directory(&target);
            if !directory.is_dir() {
                return Err(refused(&format!("directory {} does not exist", directory.display())));
            }
            Ok(Destination::File)
        }
    }
}

/// Follows symbolic links, also a link to a file that does not exist yet.
fn resolve(path: &Path) -> PathBuf {
    let Ok(link) = path.read_link() else {
        return path.to_owned();
    };
    path.canonicalize().unwrap_or_else(|_| directory(path).join(link))
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

/// Checks the path, and refuses to write over an existing file unless `is_forced`.
pub fn check_absent(path: &Path, is_forced: bool) -> Outcome {
    if check(path)? == Destination::File && !is_forced && path.exists() {
        return Err(Failure::new(format_args!(
            "{} exists; --force replaces it",
            path.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    fn write(path: &Path, text: &str) -> Outcome {
        let mut output = OutputFile::create(path)?;
        output.file().write_all(text.as_bytes())?;
        output.finish(None)
    }

    #[test]
    fn symbolic_links_keep_pointing_at_the_written_file() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        std::fs::create_dir(at("disk")).unwrap();
        for (link, target) in [("new", "disk/new.gguf"), ("old", "disk/old.gguf")] {
            symlink(target, at(link)).unwrap();
        }
        std::fs::write(at("disk/old.gguf"), "before").unwrap();
        for link in ["new", "old"] {
            write(&at(link), "after").unwrap();
            assert!(at(link).is_symlink(), "{link}");
            assert_eq!(std::fs::read_to_string(at(link)).unwrap(), "after");
        }
        assert_eq!(std::fs::read_dir(at("disk")).unwrap().count(), 2);
    }

    #[test]
    fn devices_are_written_directly() {
        let home = tempfile::tempdir().unwrap();
        let link = home.path().join("null");
        symlink("/dev/null", &link).unwrap();
        write(&link, "text").unwrap();
        assert!(link.metadata().unwrap().file_type().is_char_device());
        assert!(write(Path::new("/dev/full"), "text").is_err());
        assert!(OutputFile::resume(&link, "key").is_err());
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
    }

    /// The test runs itself in another process, which a signal ends while no operation polls the interrupt flag.
    #[test]
    fn signals_outside_of_guards_delete_incomplete_files() {
        const VARIABLE: &str = "LLAMA_TEST_OUTPUT";
        if let Some(path) = std::env::var_os(VARIABLE) {
            let _output = OutputFile::create(Path::new(&path)).unwrap();
            let _other = OutputFile::create(Path::new(&path)).unwrap();
            assert_eq!(std::fs::read_dir(directory(Path::new(&path))).unwrap().count(), 2);
            // SAFETY: `raise` has no preconditions.
            unsafe { libc::raise(libc::SIGTERM) };
        }
        let home = tempfile::tempdir().unwrap();
        let test = "output::tests::signals_outside_of_guards_delete_incomplete_files";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test]).env(VARIABLE, home.path().join("out"));
        let output = command.output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{output:?}");
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }

    #[test]
    fn unusable_paths_are_rejected_before_writing() {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        for (path, reason) in [
            (home.path().to_owned(), "it is a directory"),
            (home.path().join("none/a.gguf"), "none does not exist"),
            (socket, "not a regular file"),
        ] {
            let error = check(&path).unwrap_err();
            assert!(
                matches!(&error, Failure::Message(text) if text.contains(reason)),
                "{error:?}"
            );
        }
    }
}
