//! State files: written atomically and read as a whole.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::StateError;
use super::format::{PREFIX, check_prefix};

/// Writes a temporary file next to `path` and renames it when complete. Readers of `path` see either the old
/// or the new content, even after a crash.
pub(super) fn replace(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), StateError>,
) -> Result<(), StateError> {
    // Renaming onto a device would replace the device.
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        let io = StateError::io("cannot write the file");
        return Err(in_file(io(std::io::Error::other("not a regular file")), path));
    }
    remove_left_over(path);
    let temporary = TempFile(temp_path(path));
    let written = temporary.create().and_then(|file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        write(&mut out)?;
        out.flush()
            .and_then(|()| out.get_ref().sync_all())
            .map_err(StateError::io("cannot write the file"))?;
        fs::rename(&temporary.0, path).map_err(StateError::io("cannot rename the temporary file"))
    });
    written.map_err(|e| in_file(e, path))
}

/// Reads a file with the header and the length of a state. Errors name the file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, StateError> {
    read_checked(path).map_err(|e| in_file(e, path))
}

/// Adds the path to an error.
pub(super) fn in_file(error: StateError, path: &Path) -> StateError {
    StateError::InFile {
        path: path.to_owned(),
        error: Box::new(error),
    }
}

fn read_checked(path: &Path) -> Result<Vec<u8>, StateError> {
    let io = StateError::io("cannot read the file");
    // Opening a pipe would block until a writer appears.
    if !fs::metadata(path).map_err(&io)?.is_file() {
        return Err(io(std::io::Error::other("not a regular file")));
    }
    let mut file = File::open(path).map_err(&io)?;
    let found = file.metadata().map_err(&io)?.len();
    let mut bytes = Vec::new();
    (&mut file).take(PREFIX as u64).read_to_end(&mut bytes).map_err(&io)?;
    // Allocate only after the declared length matches the file size.
    let expected = check_prefix(&bytes)?;
    if expected != found {
        return Err(StateError::Length { expected, found });
    }
    let rest = usize::try_from(expected)
        .unwrap_or(usize::MAX)
        .saturating_sub(bytes.len());
    let out_of_memory = |_| StateError::OutOfMemory { bytes: expected };
    bytes.try_reserve_exact(rest).map_err(out_of_memory)?;
    file.take(rest as u64).read_to_end(&mut bytes).map_err(&io)?;
    Ok(bytes)
}

/// Temporary file, removed on drop unless it was renamed.
struct TempFile(PathBuf);

impl TempFile {
    fn create(&self) -> Result<File, StateError> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        // States contain the text of conversations.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options
            .open(&self.0)
            .map_err(StateError::io("cannot create the temporary file"))?;
        // Marks the file as in use. If the file system does not support locks, `remove_left_over` skips it,
        // too.
        let _ = file.try_lock();
        Ok(file)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // After the rename there is nothing to remove; failure is harmless.
        let _ = fs::remove_file(&self.0);
    }
}

/// Removes temporary files left by killed writers, which are no longer locked.
fn remove_left_over(path: &Path) {
    let (Some(name), Some(dir)) = (path.file_name().and_then(OsStr::to_str), path.parent()) else {
        return;
    };
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_temporary = |found: &str| {
        let rest = found.strip_prefix('.').and_then(|rest| rest.strip_prefix(name));
        let middle = rest.and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".tmp")?.split_once('-'));
        middle.is_some_and(|(id, n)| is_number(id) && is_number(n))
    };
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(is_temporary) {
            continue;
        }
        let is_free = OpenOptions::new()
            .write(true)
            .open(entry.path())
            .is_ok_and(|file| file.try_lock().is_ok());
        if is_free {
            // Removal is best effort: a leftover file is harmless.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns a unique name in the same directory, so that the rename stays within one file system.
fn temp_path(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}-{n}.tmp", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn devices_are_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("device");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let error = replace(&link, |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
        assert!(link.is_symlink());
    }

    #[test]
    fn leftover_temporary_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let others = [
            "a.bin",
            ".a.bin.1.tmp",
            ".a.bin.x-1.tmp",
            ".b.bin.1-0.tmp",
            "a.bin.1-0.tmp",
        ];
        let left = [".a.bin.1-0.tmp", ".a.bin.99999-12.tmp"];
        for name in others.iter().chain(&left) {
            fs::write(at(name), b"x").unwrap();
        }
        let written = TempFile(at(".a.bin.7-7.tmp"));
        let _file = written.create().unwrap();
        replace(&at("a.bin"), |out| {
            out.write_all(b"new").map_err(StateError::io("write"))
        })
        .unwrap();
        assert_eq!(fs::read(at("a.bin")).unwrap(), b"new");
        #[cfg(unix)]
        {
            let permissions = fs::metadata(at("a.bin")).unwrap().permissions();
            let mode = std::os::unix::fs::PermissionsExt::mode(&permissions);
            assert_eq!(mode & 0o777, 0o600);
        }
        assert!(left.iter().all(|name| !at(name).exists()));
        assert!(others.iter().all(|name| at(name).exists()));
        assert!(at(".a.bin.7-7.tmp").exists(), "still locked by its writer");
    }
}
