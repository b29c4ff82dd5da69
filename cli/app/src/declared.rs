//! Architectures from declaration files: `--arch FILE.rs`, the files in `LLAMA_ARCHS` and in the user's configuration
//! directory, and declarations in model files (`--arch file:`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arch_lang::FlowNode;
use arch_runtime::{DeclarationError, limits};
use engine::gguf::{Metadata, Value};
use engine::model::{DECLARATION_KEY, ENCODER_ARCH, FindArch, Registered, WantedArch, projector_type};

use crate::dirs;
use crate::failure::{Failure, Outcome};
use crate::format;

/// Environment variable with a directory of declarations.
const DIRECTORY: &str = "LLAMA_ARCHS";

/// Value of `--arch` that selects the declaration in the model file.
pub const IN_FILE: &str = "file:";

/// Origin of a declaration.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    File(PathBuf),
    /// Text in a model file.
    Text(String),
}

/// Declarations that were read. A file that changes later has no effect on a running server.
static LOADED: Mutex<BTreeMap<Origin, &'static Registered>> = Mutex::new(BTreeMap::new());

/// Declaration file of a directory.
struct Found {
    name: String,
    path: PathBuf,
    is_encoder: bool,
}

/// Returns true if the value of `--arch` is a declaration file rather than the name of an architecture.
pub fn is_file(name: &str) -> bool {
    name.ends_with(".rs")
}

/// Returns the architecture of a declaration file, which is read once per process.
pub fn load(path: &Path) -> Outcome<&'static Registered> {
    let read = once(Origin::File(path.to_owned()), || arch_runtime::load(path));
    read.map_err(|error| failure(&path.display().to_string(), error))
}

/// Returns the values of the graph of a declaration file, for drawings.
pub fn graph(path: &Path) -> Outcome<Vec<FlowNode>> {
    arch_runtime::graph(path).map_err(|error| failure(&path.display().to_string(), error))
}

/// Returns the file of an architecture or an encoder in the directories of declarations.
pub fn path(name: &str, is_encoder: bool) -> Option<PathBuf> {
    let files = files().into_iter();
    let mut found = files.filter(|f| f.name == name && f.is_encoder == is_encoder);
    found.next().map(|f| f.path)
}

/// Returns the declaration of an encoder in a file.
pub fn load_encoder(path: &Path) -> Outcome<Registered> {
    let found = *load(path)?;
    if found.arch.media.is_none() {
        let file = path.display();
        return Err(Failure::new(format_args!(
            "{file} declares a language model; pass it with --arch"
        )));
    }
    Ok(found)
}

fn failure(file: &str, error: DeclarationError) -> Failure {
    match error {
        DeclarationError::Invalid(faults) => {
            let n = format::plural(faults.len(), "error");
            let texts: Vec<String> = faults.iter().map(|fault| format!("\n\n{fault}")).collect();
            Failure::new(format_args!("{file}: the declaration has {n}{}", texts.concat()))
        }
        other => Failure::new(other),
    }
}

fn once(
    origin: Origin,
    read: impl FnOnce() -> Result<Registered, DeclarationError>,
) -> Result<&'static Registered, DeclarationError> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&registered) = loaded.get(&origin) {
        return Ok(registered);
    }
    let registered = Box::leak(Box::new(read()?));
    loaded.insert(origin, registered);
    Ok(registered)
}

/// Returns the directories of declarations, in order of precedence.
fn directories() -> impl Iterator<Item = PathBuf> {
    let own = dirs::config().map(|config| config.join("archs"));
    [dirs::variable(DIRECTORY), own].into_iter().flatten()
}

/// Returns the declaration files of all directories, in order of precedence.
fn files() -> Vec<Found> {
    let mut found = Vec::new();
    for path in directories().flat_map(|directory| limits::declaration_files(&directory)) {
        let text = limits::read(&path).unwrap_or_default();
        if let Some(name) = arch_lang::declared_name(&text) {
            found.push(Found {
                name: name.to_owned(),
                is_encoder: arch_lang::is_encoder(&text),
                path,
            });
        }
    }
    found
}

/// Finds an architecture or an encoder in the directories of declarations. Callers search the built-in ones first.
///
/// # Errors
/// Returns the errors of the declaration with this name. Returns a message if several files of a directory have this
/// name, or if `LLAMA_ARCHS` is not a directory.
pub fn find(name: &str, is_encoder: bool) -> Result<Option<Registered>, String> {
    if let Some(directory) = dirs::variable(DIRECTORY).filter(|directory| !directory.is_dir()) {
        return Err(format!("{DIRECTORY}={}: not a directory", directory.display()));
    }
    let files = files();
    match files.iter().find(|f| f.name == name && f.is_encoder == is_encoder) {
        Some(found) => load_unique(found, &files).map(|r| Some(*r)).map_err(message),
        None => Ok(None),
    }
}

/// Loads a declaration, unless another file of its directory declares the same name.
fn load_unique(found: &Found, files: &[Found]) -> Outcome<&'static Registered> {
    let is_same =
        |f: &&Found| f.name == found.name && f.is_encoder == found.is_encoder && f.path.parent() == found.path.parent();
    let same: Vec<String> = files
        .iter()
        .filter(is_same)
        .map(|f| f.path.display().to_string())
        .collect();
    if same.len() > 1 {
        return Err(Failure::new(format_args!(
            "the name {:?} is declared in {}; rename all but one of them, or pass one with --arch",
            found.name,
            same.join(" and ")
        )));
    }
    load(&found.path)
}

/// Returns true if an architecture has a `checkpoint` section for one of these classes.
pub fn maps(registered: &Registered, classes: &[String]) -> bool {
    let sections = registered.arch.checkpoints.iter();
    sections
        .flat_map(|section| section.classes)
        .any(|class| classes.iter().any(|found| found == class))
}

/// Finds an architecture in the directories of declarations that maps checkpoints of one of these classes.
///
/// # Errors
/// Returns the errors of a declaration that names the class, or a message if its name is not unique in its directory.
pub fn find_by_class(classes: &[String]) -> Outcome<Option<Registered>> {
    let files = files();
    for found in files.iter().filter(|found| !found.is_encoder) {
        let text = limits::read(&found.path).unwrap_or_default();
        if !classes.iter().any(|class| text.contains(&format!("\"{class}\""))) {
            continue;
        }
        let registered = load_unique(found, &files)?;
        if maps(registered, classes) {
            return Ok(Some(*registered));
        }
    }
    Ok(None)
}

/// Returns a function that finds declarations in the directories.
pub fn finder() -> FindArch {
    Arc::new(|wanted| find(wanted.name, wanted.is_encoder))
}

/// Returns the declaration in a model file.
///
/// # Errors
/// Returns a message if the file has no declaration, or the declaration has errors.
pub fn read(wanted: &WantedArch<'_>) -> Result<Option<Registered>, String> {
    in_file(wanted.metadata, wanted.path).map(Some).map_err(message)
}

fn in_file(metadata: &Metadata, path: &Path) -> Outcome<Registered> {
    let Some(text) = text(metadata) else {
        return Err(Failure::new(format_args!(
            "{}: the file has no declaration (`{DECLARATION_KEY}`)",
            path.display()
        )));
    };
    let name = format!("{}:{DECLARATION_KEY}", path.display());
    let read = once(Origin::Text(text.to_owned()), || arch_runtime::embedded(&name, text));
    read.copied().map_err(|error| failure(&name, error))
}

/// Returns the text of the declaration in a model file.
pub fn text(metadata: &Metadata) -> Option<&str> {
    metadata.get(DECLARATION_KEY).and_then(Value::as_str)
}

fn message(failure: Failure) -> String {
    match failure {
        Failure::Message(message) => message,
        other => format!("{other:?}"),
    }
}

/// Returns the shown names and files of the declarations in the directories, except for built-in names.
pub fn list() -> Vec<(String, PathBuf)> {
    let mut list = Vec::new();
    for found in files() {
        let is_built_in = if found.is_encoder {
            archs::find_encoder(&found.name).is_some()
        } else {
            archs::find(&found.name).is_some()
        };
        if !is_built_in {
            let prefix = if found.is_encoder { "encoders/" } else { "" };
            list.push((format!("{prefix}{}", found.name), found.path));
        }
    }
    list.sort();
    // Within a directory, all files of a name are listed, because none takes precedence.
    list.dedup_by(|a, b| a.0 == b.0 && a.1.parent() != b.1.parent());
    list
}

/// Returns the architecture of a model file: built-in, or from the directories. `chosen` is the value of `--arch`.
pub fn of_file(name: &str, chosen: &str, metadata: &Metadata, path: &Path) -> Outcome<Option<Registered>> {
    if is_file(chosen) {
        return Ok(Some(*load(Path::new(chosen))?));
    }
    if chosen == IN_FILE {
        return in_file(metadata, path).map(Some);
    }
    let encoder = if name == ENCODER_ARCH {
        projector_type(metadata)
    } else {
        None
    };
    let found = match encoder {
        Some(encoder) => archs::find_encoder(encoder),
        None => archs::find(name),
    };
    match found {
        Some(registered) => Ok(Some(*registered)),
        None => find(encoder.unwrap_or(name), encoder.is_some()).map_err(Failure::new),
    }
}
