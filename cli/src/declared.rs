//! Architectures from declaration files: `--arch FILE.rs`, and the files in `LLAMA_ARCHS` and in the user's
//! configuration directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use arch_runtime::DeclarationError;
use engine::model::Registered;

use crate::dirs;
use crate::failure::{Failure, Outcome};

/// Environment variable with a directory of declarations.
const DIRECTORY: &str = "LLAMA_ARCHS";

/// Maximum number of files that are searched in a directory.
const MAX_FILES: usize = 1000;

/// Declarations that were read. A file that changes later has no effect on a running server.
static LOADED: Mutex<BTreeMap<PathBuf, &'static Registered>> = Mutex::new(BTreeMap::new());

/// Returns true if the value of `--arch` is a declaration file rather than the name of an architecture.
pub fn is_file(name: &str) -> bool {
    name.ends_with(".rs")
}

/// Returns the architecture of a declaration file, which is read once per process.
pub fn load(path: &Path) -> Outcome<&'static Registered> {
    read(path).map_err(|error| match error {
        DeclarationError::Invalid(faults) => {
            let n = crate::format::plural(faults.len(), "error");
            let texts: Vec<String> = faults.iter().map(|fault| format!("\n\n{fault}")).collect();
            Failure::new(format_args!(
                "{}: the declaration has {n}{}",
                path.display(),
                texts.concat()
            ))
        }
        other => Failure::new(other),
    })
}

fn read(path: &Path) -> Result<&'static Registered, DeclarationError> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&registered) = loaded.get(path) {
        return Ok(registered);
    }
    let registered = Box::leak(Box::new(arch_runtime::load(path)?));
    loaded.insert(path.to_owned(), registered);
    Ok(registered)
}

/// Returns the directories of declarations, in order of precedence.
fn directories() -> impl Iterator<Item = PathBuf> {
    let own = dirs::config().map(|config| config.join("archs"));
    [dirs::variable(DIRECTORY), own].into_iter().flatten()
}

/// Returns the declaration files of all directories with the names that they declare, in order of precedence.
fn files() -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for directory in directories() {
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.take(MAX_FILES).map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|e| e == "rs"));
        paths.sort();
        for path in paths {
            let text = arch_runtime::limits::read(&path).unwrap_or_default();
            if let Some(name) = arch_lang::declared_name(&text) {
                found.push((name.to_owned(), path));
            }
        }
    }
    found
}

/// Finds an architecture in the directories of declarations. Callers search the built-in architectures first.
///
/// # Errors
/// The errors of the declaration with this name.
pub fn find(name: &str) -> Result<Option<Registered>, String> {
    match files().into_iter().find(|(declared, _)| declared == name) {
        Some((_, path)) => match load(&path) {
            Ok(registered) => Ok(Some(*registered)),
            Err(Failure::Message(message)) => Err(message),
            Err(other) => Err(format!("{other:?}")),
        },
        None => Ok(None),
    }
}

/// Returns the names and files of the architectures in the directories, except for names of built-in architectures.
pub fn list() -> Vec<(String, PathBuf)> {
    let mut list = files();
    list.retain(|(name, _)| archs::find(name).is_none());
    list.sort();
    list.dedup_by(|a, b| a.0 == b.0);
    list
}

/// Returns the architecture of a model file: built-in, or from the directories. `chosen` is the value of `--arch`.
pub fn of_file(name: &str, chosen: &str) -> Outcome<Option<Registered>> {
    if is_file(chosen) {
        return Ok(Some(*load(Path::new(chosen))?));
    }
    match archs::find(name) {
        Some(registered) => Ok(Some(*registered)),
        None => find(name).map_err(Failure::new),
    }
}
