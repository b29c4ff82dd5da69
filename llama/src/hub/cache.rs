//! The shared Hugging Face cache: directories `models--USER--REPO` with `blobs`, `snapshots`, and `refs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use super::blob::Blob;
use super::dirs;
use super::name::Name;
use super::select;
use super::{HubError, HubResult};

/// Maximum directory depth searched in a snapshot.
const MAX_DEPTH: usize = 6;

/// The local cache of downloaded models.
pub struct Cache {
    root: PathBuf,
    /// Directory of verification records, outside of the shared cache.
    stamps: Option<PathBuf>,
}

/// A cached model.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Name that selects the model.
    pub name: Name,
    /// Path of the model's first file.
    pub path: PathBuf,
    /// Paths of all files of the model.
    pub files: Vec<PathBuf>,
    /// Path of the projector next to the model, which reads images or audio.
    pub projector: Option<PathBuf>,
    /// Blobs that the files link to.
    pub(crate) blobs: Vec<Blob>,
    /// Total size of the model in bytes.
    pub bytes: u64,
    /// Modification time of the first file.
    pub modified: Option<SystemTime>,
}

impl Cache {
    /// Opens the cache given by `HF_HUB_CACHE` or `HF_HOME`, or in the user's cache directory.
    ///
    /// # Errors
    /// Returns a [`HubError`] if no environment variable locates the cache.
    pub fn of_user() -> HubResult<Cache> {
        let root = dirs::variable("HF_HUB_CACHE").or_else(|| Some(hub_home()?.join("hub")));
        let root = root.ok_or_else(|| {
            HubError::new("cannot locate the model cache: set HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, or HOME")
        })?;
        Ok(Cache::new(root, dirs::cache().map(|dir| dir.join("verified"))))
    }

    /// Creates a cache in `root` with verification records in `stamps`.
    pub(crate) fn new(root: PathBuf, stamps: Option<PathBuf>) -> Cache {
        Cache { root, stamps }
    }

    fn directory(&self, name: &Name) -> PathBuf {
        self.root.join(directory_name(name))
    }

    /// Returns the blob of a file.
    pub(crate) fn blob(&self, name: &Name, sha256: &str, len: u64) -> Blob {
        Blob {
            path: self.directory(name).join("blobs").join(sha256),
            lock: self
                .root
                .join(".locks")
                .join(directory_name(name))
                .join(format!("{sha256}.lock")),
            sha256: sha256.to_owned(),
            len,
            stamp: self.stamps.as_ref().map(|dir| dir.join(sha256)),
        }
    }

    /// Links a blob into the snapshot of a commit and returns the link's path.
    pub(crate) fn link(&self, name: &Name, commit: &str, file: &str, blob: &Blob) -> HubResult<PathBuf> {
        let path = self.directory(name).join("snapshots").join(commit).join(file);
        let up = "../".repeat(2 + file.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{}", blob.sha256));
        let is_there =
            fs::canonicalize(&path).is_ok_and(|to| fs::canonicalize(&blob.path).is_ok_and(|blob| blob == to));
        if !is_there {
            let write = |e| HubError::new(format_args!("cannot write {}: {e}", path.display()));
            path.parent().map_or(Ok(()), fs::create_dir_all).map_err(write)?;
            put_link(&target, &blob.path, &path).map_err(write)?;
        }
        Ok(path)
    }

    /// Records the latest commit.
    pub(crate) fn set_main(&self, name: &Name, commit: &str) -> HubResult {
        let path = self.directory(name).join("refs").join("main");
        let write = |e| HubError::new(format_args!("cannot write {}: {e}", path.display()));
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(write)?;
        replace(&path, |new| fs::write(new, commit)).map_err(write)
    }

    /// Finds a model by name, preferring the latest commit.
    pub fn find(&self, name: &Name) -> Option<Entry> {
        let directory = self.directory(name);
        snapshots(&directory).iter().find_map(|snapshot| {
            let paths = models_in(snapshot);
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            let chosen = select::files(name, &paths).ok()?;
            let mut entry = self.entry(name, snapshot, &chosen)?;
            if name.file.is_none()
                && let Some(path) = select::projector(chosen[0], &paths)
                && let Some(projector) = self.entry(name, snapshot, &[path])
            {
                entry.blobs.extend(projector.blobs);
                entry.projector = Some(projector.path);
            }
            Some(entry)
        })
    }

    /// Lists all models by name.
    pub fn list(&self) -> Vec<Entry> {
        let Ok(directories) = fs::read_dir(&self.root) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for directory in directories.flatten() {
            let Some(name) = directory.file_name().to_str().and_then(name_of) else {
                continue;
            };
            let mut seen = BTreeSet::new();
            for snapshot in snapshots(&directory.path()) {
                let paths = models_in(&snapshot);
                for (name, chosen) in models_of(&name, &paths) {
                    let entry = self.entry(&name, &snapshot, &chosen);
                    // Snapshots share unchanged files, so duplicates are skipped.
                    all.extend(entry.filter(|e| seen.insert(fs::canonicalize(&e.path).ok())));
                }
            }
        }
        all.sort_by_key(|e| e.name.to_string());
        all
    }

    /// Returns `None` if a file is missing.
    fn entry(&self, name: &Name, snapshot: &Path, chosen: &[&str]) -> Option<Entry> {
        let files: Vec<PathBuf> = chosen.iter().map(|path| snapshot.join(path)).collect();
        let mut entry = Entry {
            name: name.clone(),
            path: files.first()?.clone(),
            files,
            projector: None,
            blobs: Vec::new(),
            bytes: 0,
            modified: None,
        };
        for file in &entry.files {
            let metadata = fs::metadata(file).ok().filter(|m| m.is_file())?;
            entry.bytes += metadata.len();
            entry.modified = entry.modified.or(metadata.modified().ok());
            let target = fs::read_link(file).ok();
            let sha256 = target.as_deref().and_then(Path::file_name).and_then(|n| n.to_str());
            if let Some(sha256) = sha256.filter(|s| s.len() == 64 && s.bytes().all(|b| b.is_ascii_hexdigit())) {
                entry.blobs.push(self.blob(name, sha256, metadata.len()));
            }
        }
        Some(entry)
    }

    /// Removes one quantization of a model, or all if the name has none. Removing the last quantization also removes
    /// the projectors. Returns the bytes freed, or `None` if no model matches.
    ///
    /// # Errors
    /// Returns a [`HubError`] if a file cannot be removed.
    pub fn remove(&self, name: &Name) -> HubResult<Option<u64>> {
        let is_meant = |entry: &Entry| match (&name.quant, &name.file) {
            (Some(quant), _) => entry.name.quant.as_ref().is_some_and(|q| q.eq_ignore_ascii_case(quant)),
            (None, Some(file)) => entry.path.ends_with(file),
            (None, None) => true,
        };
        let directory = self.directory(name);
        let mut found = None;
        for snapshot in snapshots(&directory) {
            let paths = models_in(&snapshot);
            for (of, chosen) in models_of(name, &paths) {
                if let Some(entry) = self.entry(&of, &snapshot, &chosen).filter(is_meant) {
                    found.get_or_insert(0);
                    for file in &entry.files {
                        fs::remove_file(file)
                            .map_err(|e| HubError::new(format_args!("cannot remove {}: {e}", file.display())))?;
                    }
                }
            }
        }
        let Some(freed) = &mut found else { return Ok(None) };
        if name.file.is_none() {
            remove_lone_projectors(&directory)?;
        }
        *freed = self.remove_unused(&directory, name.quant.is_none() && name.file.is_none())?;
        Ok(found)
    }

    /// Removes blobs without a snapshot, and with `all` also partial downloads. Returns the bytes freed.
    fn remove_unused(&self, directory: &Path, all: bool) -> HubResult<u64> {
        let mut used = BTreeSet::new();
        for snapshot in snapshots(directory) {
            each_file(&snapshot, MAX_DEPTH, &mut |path| used.extend(fs::canonicalize(path)));
        }
        let mut freed = 0;
        for blob in fs::read_dir(directory.join("blobs")).into_iter().flatten().flatten() {
            let (path, metadata) = (blob.path(), blob.metadata());
            let is_begun = path.extension().is_some_and(|e| e == "incomplete");
            let is_unused = if is_begun {
                all
            } else {
                fs::canonicalize(&path).is_ok_and(|p| !used.contains(&p))
            };
            if is_unused {
                fs::remove_file(&path)
                    .map_err(|e| HubError::new(format_args!("cannot remove {}: {e}", path.display())))?;
                freed += metadata.map_or(0, |m| m.len());
                if let (Some(dir), Some(name)) = (&self.stamps, path.file_name()) {
                    let _ = fs::remove_file(dir.join(name));
                }
            }
        }
        // Non-empty directories are not removed.
        for snapshot in snapshots(directory) {
            remove_empty(&snapshot, MAX_DEPTH);
        }
        if used.is_empty() && all {
            let _ = fs::remove_file(directory.join("refs").join("main"));
            remove_empty(directory, MAX_DEPTH);
        }
        Ok(freed)
    }
}

/// Removes the projectors of snapshots that have no models.
fn remove_lone_projectors(directory: &Path) -> HubResult {
    for snapshot in snapshots(directory) {
        let paths = models_in(&snapshot);
        if paths.iter().any(|path| select::is_model(path)) {
            continue;
        }
        for path in paths.iter().filter(|path| select::is_projector(path)) {
            let path = snapshot.join(path);
            fs::remove_file(&path).map_err(|e| HubError::new(format_args!("cannot remove {}: {e}", path.display())))?;
        }
    }
    Ok(())
}

/// Returns the base directory of the Hugging Face cache.
fn hub_home() -> Option<PathBuf> {
    dirs::variable("HF_HOME").or_else(|| {
        let caches = dirs::variable("XDG_CACHE_HOME").or_else(|| Some(dirs::variable("HOME")?.join(".cache")));
        Some(caches?.join("huggingface"))
    })
}

/// Returns the token from the environment or from the Hugging Face token file.
pub fn stored_token() -> Option<String> {
    let given = std::env::var("HF_TOKEN").ok();
    let stored = || {
        let path = dirs::variable("HF_TOKEN_PATH").or_else(|| Some(hub_home()?.join("token")))?;
        fs::read_to_string(path).ok()
    };
    let token = given.filter(|t| !t.trim().is_empty()).or_else(stored)?;
    Some(token.trim().to_owned()).filter(|t| !t.is_empty())
}

fn directory_name(name: &Name) -> String {
    format!("models--{}--{}", name.user, name.repo)
}

fn name_of(directory: &str) -> Option<Name> {
    let (user, repo) = directory.strip_prefix("models--")?.split_once("--")?;
    Name::parse(&format!("{user}/{repo}"))
}

/// Returns the snapshot directories, starting with the latest commit.
fn snapshots(directory: &Path) -> Vec<PathBuf> {
    let main = fs::read_to_string(directory.join("refs").join("main")).unwrap_or_default();
    let entries = fs::read_dir(directory.join("snapshots"))
        .into_iter()
        .flatten()
        .flatten();
    let mut all: Vec<PathBuf> = entries.map(|e| e.path()).filter(|p| p.is_dir()).collect();
    all.sort_by_key(|path| (path.file_name().is_none_or(|n| n != main.trim()), path.clone()));
    all
}

/// Returns the sorted relative paths of the GGUF files in a snapshot.
fn models_in(snapshot: &Path) -> Vec<String> {
    let mut found = Vec::new();
    each_file(snapshot, MAX_DEPTH, &mut |path| {
        let relative = path.strip_prefix(snapshot).ok().and_then(Path::to_str);
        let slashed = relative.map(|p| p.replace(std::path::MAIN_SEPARATOR, "/"));
        found.extend(slashed.filter(|p| p.to_ascii_lowercase().ends_with(".gguf")));
    });
    found.sort();
    found
}

/// Groups files into models. Returns each model's name and files.
fn models_of<'a>(name: &Name, paths: &'a [String]) -> Vec<(Name, Vec<&'a str>)> {
    let all: Vec<&str> = paths.iter().map(String::as_str).collect();
    let (mut models, mut taken) = (Vec::new(), BTreeSet::new());
    for path in &all {
        let bare = Name {
            quant: None,
            file: None,
            ..name.clone()
        };
        // Use the quantization as the name if it identifies the file.
        let by_quant = select::quant(path).map(|quant| Name {
            quant: Some(quant.to_owned()),
            ..bare.clone()
        });
        let by_quant = by_quant.and_then(|name| Some((select::files(&name, &all).ok()?, name)));
        let (files, name) = match by_quant.filter(|(files, _)| files.contains(path)) {
            Some(found) => found,
            None => match select::files(&bare.clone().with_file(path), &all) {
                Ok(files) => (files, bare.with_file(path)),
                Err(_) => continue,
            },
        };
        if taken.insert(files[0]) {
            models.push((name, files));
        }
    }
    models
}

fn each_file(directory: &Path, depth: usize, visit: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        // Symlinks to directories are not followed.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => each_file(&path, depth - 1, visit),
            Ok(kind) if !kind.is_dir() => visit(&path),
            _ => {}
        }
    }
}

fn remove_empty(directory: &Path, depth: usize) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path(), depth - 1);
        }
    }
    // Fails unless the directory is empty.
    let _ = fs::remove_dir(directory);
}

/// Replaces a file atomically, for concurrent readers.
fn replace(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    // Several threads may write at the same time.
    static N_REPLACED: AtomicUsize = AtomicUsize::new(0);
    let n = N_REPLACED.fetch_add(1, Ordering::Relaxed);
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}.{n}.new", std::process::id()));
    let new = PathBuf::from(new);
    let _ = fs::remove_file(&new);
    make(&new)?;
    fs::rename(&new, path)
}

#[cfg(unix)]
fn put_link(target: &Path, _blob: &Path, path: &Path) -> std::io::Result<()> {
    replace(path, |new| std::os::unix::fs::symlink(target, new))
}

/// Creates a hard link, because symlinks may require privileges.
#[cfg(not(unix))]
fn put_link(_target: &Path, blob: &Path, path: &Path) -> std::io::Result<()> {
    replace(path, |new| {
        fs::hard_link(blob, new).or_else(|_| fs::copy(blob, new).map(|_| ()))
    })
}
