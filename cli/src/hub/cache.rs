//! Folders of the cache that programs share: `models--USER--REPO` with `blobs`, `snapshots` and `refs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use super::blob::Blob;
use super::choose;
use super::name::Name;
use crate::dirs;
use crate::failure::{Failure, Outcome};

/// Folders in a snapshot that are looked into.
const MAX_DEPTH: usize = 6;

/// The cache.
pub struct Cache {
    root: PathBuf,
    /// Where is noted which blobs are right: in a folder of our own.
    stamps: Option<PathBuf>,
}

/// A model in the cache.
#[derive(Clone, Debug)]
pub struct Entry {
    /// By which it can be named.
    pub name: Name,
    /// Its first file.
    pub path: PathBuf,
    /// All its files.
    pub files: Vec<PathBuf>,
    /// What they are links to.
    pub blobs: Vec<Blob>,
    /// Bytes of all files.
    pub bytes: u64,
    /// When the first file was written.
    pub modified: Option<SystemTime>,
}

impl Cache {
    /// Where the environment says: `HF_HUB_CACHE`, `HF_HOME`, or the user's cache folder.
    pub fn of_user() -> Outcome<Cache> {
        let root = dirs::variable("HF_HUB_CACHE").or_else(|| Some(hub_home()?.join("hub")));
        let root = root.ok_or_else(|| {
            Failure::new("there is no folder for models: neither HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME nor HOME is set")
        })?;
        Ok(Cache::new(root, dirs::cache().map(|dir| dir.join("verified"))))
    }

    /// In this folder, with notes in that one.
    pub fn new(root: PathBuf, stamps: Option<PathBuf>) -> Cache {
        Cache { root, stamps }
    }

    fn folder(&self, name: &Name) -> PathBuf {
        self.root.join(folder_name(name))
    }

    /// The blob of a file.
    pub fn blob(&self, name: &Name, sha256: &str, len: u64) -> Blob {
        Blob {
            path: self.folder(name).join("blobs").join(sha256),
            lock: self
                .root
                .join(".locks")
                .join(folder_name(name))
                .join(format!("{sha256}.lock")),
            sha256: sha256.to_owned(),
            len,
            stamp: self.stamps.as_ref().map(|dir| dir.join(sha256)),
        }
    }

    /// Gives a blob the name that the file has in a commit; the path of that name.
    pub fn link(&self, name: &Name, commit: &str, file: &str, blob: &Blob) -> Outcome<PathBuf> {
        let path = self.folder(name).join("snapshots").join(commit).join(file);
        let up = "../".repeat(2 + file.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{}", blob.sha256));
        let is_there =
            fs::canonicalize(&path).is_ok_and(|to| fs::canonicalize(&blob.path).is_ok_and(|blob| blob == to));
        if !is_there {
            let write = |e| Failure::new(format_args!("cannot write {}: {e}", path.display()));
            path.parent().map_or(Ok(()), fs::create_dir_all).map_err(write)?;
            put_link(&target, &blob.path, &path).map_err(write)?;
        }
        Ok(path)
    }

    /// Takes note of the latest commit.
    pub fn set_main(&self, name: &Name, commit: &str) -> Outcome {
        let path = self.folder(name).join("refs").join("main");
        let write = |e| Failure::new(format_args!("cannot write {}: {e}", path.display()));
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(write)?;
        replace(&path, |new| fs::write(new, commit)).map_err(write)
    }

    /// The model of this name: of the latest commit if it is there, else of another.
    pub fn find(&self, name: &Name) -> Option<Entry> {
        let folder = self.folder(name);
        snapshots(&folder).iter().find_map(|snapshot| {
            let paths = models_in(snapshot);
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            let chosen = choose::files(name, &paths).ok()?;
            self.entry(name, snapshot, &chosen)
        })
    }

    /// All models, by name.
    pub fn list(&self) -> Vec<Entry> {
        let Ok(folders) = fs::read_dir(&self.root) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for folder in folders.flatten() {
            let Some(name) = folder.file_name().to_str().and_then(name_of) else {
                continue;
            };
            let mut seen = BTreeSet::new();
            for snapshot in snapshots(&folder.path()) {
                let paths = models_in(&snapshot);
                for (name, chosen) in models_of(&name, &paths) {
                    let entry = self.entry(&name, &snapshot, &chosen);
                    // Snapshots share what has not changed between them.
                    all.extend(entry.filter(|e| seen.insert(fs::canonicalize(&e.path).ok())));
                }
            }
        }
        all.sort_by_key(|e| e.name.to_string());
        all
    }

    /// `None` if a file is missing.
    fn entry(&self, name: &Name, snapshot: &Path, chosen: &[&str]) -> Option<Entry> {
        let files: Vec<PathBuf> = chosen.iter().map(|path| snapshot.join(path)).collect();
        let mut entry = Entry {
            name: name.clone(),
            path: files.first()?.clone(),
            files,
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

    /// Removes the models that a name means: one of its quantizations, or without one all. The bytes that are free then; `None` if there is nothing.
    pub fn remove(&self, name: &Name) -> Outcome<Option<u64>> {
        let is_meant = |entry: &Entry| match (&name.quant, &name.file) {
            (Some(quant), _) => entry.name.quant.as_ref().is_some_and(|q| q.eq_ignore_ascii_case(quant)),
            (None, Some(file)) => entry.path.ends_with(file),
            (None, None) => true,
        };
        let folder = self.folder(name);
        let mut found = None;
        for snapshot in snapshots(&folder) {
            let paths = models_in(&snapshot);
            for (of, chosen) in models_of(name, &paths) {
                if let Some(entry) = self.entry(&of, &snapshot, &chosen).filter(is_meant) {
                    found.get_or_insert(0);
                    for file in &entry.files {
                        fs::remove_file(file)
                            .map_err(|e| Failure::new(format_args!("cannot remove {}: {e}", file.display())))?;
                    }
                }
            }
        }
        let Some(freed) = &mut found else { return Ok(None) };
        *freed = self.remove_unused(&folder, name.quant.is_none() && name.file.is_none())?;
        Ok(found)
    }

    /// Removes blobs that no snapshot has, and what was begun if `all` goes. The bytes that they had.
    fn remove_unused(&self, folder: &Path, all: bool) -> Outcome<u64> {
        let mut used = BTreeSet::new();
        for snapshot in snapshots(folder) {
            each_file(&snapshot, MAX_DEPTH, &mut |path| used.extend(fs::canonicalize(path)));
        }
        let mut freed = 0;
        for blob in fs::read_dir(folder.join("blobs")).into_iter().flatten().flatten() {
            let (path, metadata) = (blob.path(), blob.metadata());
            let is_begun = path.extension().is_some_and(|e| e == "incomplete");
            let is_unused = if is_begun {
                all
            } else {
                fs::canonicalize(&path).is_ok_and(|p| !used.contains(&p))
            };
            if is_unused {
                fs::remove_file(&path)
                    .map_err(|e| Failure::new(format_args!("cannot remove {}: {e}", path.display())))?;
                freed += metadata.map_or(0, |m| m.len());
                if let (Some(dir), Some(name)) = (&self.stamps, path.file_name()) {
                    let _ = fs::remove_file(dir.join(name));
                }
            }
        }
        // Folders stay if anything is in them.
        for snapshot in snapshots(folder) {
            remove_empty(&snapshot, MAX_DEPTH);
        }
        if used.is_empty() && all {
            let _ = fs::remove_file(folder.join("refs").join("main"));
            remove_empty(folder, MAX_DEPTH);
        }
        Ok(freed)
    }
}

/// Where other programs keep what belongs to the hub.
fn hub_home() -> Option<PathBuf> {
    dirs::variable("HF_HOME").or_else(|| {
        let caches = dirs::variable("XDG_CACHE_HOME").or_else(|| Some(dirs::variable("HOME")?.join(".cache")));
        Some(caches?.join("huggingface"))
    })
}

/// The token in the environment, or in the file where other programs store it.
pub fn stored_token() -> Option<String> {
    let given = std::env::var("HF_TOKEN").ok();
    let stored = || {
        let path = dirs::variable("HF_TOKEN_PATH").or_else(|| Some(hub_home()?.join("token")))?;
        fs::read_to_string(path).ok()
    };
    let token = given.filter(|t| !t.trim().is_empty()).or_else(stored)?;
    Some(token.trim().to_owned()).filter(|t| !t.is_empty())
}

fn folder_name(name: &Name) -> String {
    format!("models--{}--{}", name.user, name.repo)
}

fn name_of(folder: &str) -> Option<Name> {
    let (user, repo) = folder.strip_prefix("models--")?.split_once("--")?;
    Name::parse(&format!("{user}/{repo}"))
}

/// Folders of commits, that of the latest one first.
fn snapshots(folder: &Path) -> Vec<PathBuf> {
    let main = fs::read_to_string(folder.join("refs").join("main")).unwrap_or_default();
    let entries = fs::read_dir(folder.join("snapshots")).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|e| e.path()).filter(|p| p.is_dir()).collect();
    all.sort_by_key(|path| (path.file_name().is_none_or(|n| n != main.trim()), path.clone()));
    all
}

/// Paths of the GGUF files below a snapshot, with slashes, in order.
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

/// The models that files are, each with its name and its files.
fn models_of<'a>(name: &Name, paths: &'a [String]) -> Vec<(Name, Vec<&'a str>)> {
    let all: Vec<&str> = paths.iter().map(String::as_str).collect();
    let (mut models, mut taken) = (Vec::new(), BTreeSet::new());
    for path in &all {
        let bare = Name {
            quant: None,
            file: None,
            ..name.clone()
        };
        // A name is the quantization where that is enough to find the file.
        let by_quant = choose::quant(path).map(|quant| Name {
            quant: Some(quant.to_owned()),
            ..bare.clone()
        });
        let by_quant = by_quant.and_then(|name| Some((choose::files(&name, &all).ok()?, name)));
        let (files, name) = match by_quant.filter(|(files, _)| files.contains(path)) {
            Some(found) => found,
            None => match choose::files(&bare.clone().with_file(path), &all) {
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

fn each_file(folder: &Path, depth: usize, visit: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // Links to folders are not followed.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => each_file(&path, depth - 1, visit),
            Ok(kind) if !kind.is_dir() => visit(&path),
            _ => {}
        }
    }
}

fn remove_empty(folder: &Path, depth: usize) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path(), depth - 1);
        }
    }
    // Fails if anything is in it.
    let _ = fs::remove_dir(folder);
}

/// Lets something new take the place of a file at once, for programs that look at the same time.
fn replace(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    // Threads of a program write at the same time, too.
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

/// Where links need rights that people do not have, a second name of the file.
#[cfg(not(unix))]
fn put_link(_target: &Path, blob: &Path, path: &Path) -> std::io::Result<()> {
    replace(path, |new| {
        fs::hard_link(blob, new).or_else(|_| fs::copy(blob, new).map(|_| ()))
    })
}
