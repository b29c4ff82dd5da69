//! Architectures at run time: compiles a declaration file to a program of the engine, without a Rust toolchain.
//!
//! [`load`] reads a file such as `my_model.rs`. Its stages up to the checked model are the stages of `arch!`, so both
//! report the same errors at the same locations. `lower` then converts the model to an [`engine::declared::Program`]
//! instead of Rust code. `like:` and `use` find files next to the declaration and the built-in files ([`library`]).
//!
//! A declaration is untrusted input: [`limits`] bounds its size, and it can only name files of the library.

pub mod library;
pub mod limits;
mod lower;

use std::fmt;
use std::path::{Path, PathBuf};

use arch_lang::model::Arch;
use arch_lang::source::Place;
use arch_lang::{Errors, FlowNode, Library};
use engine::model::Registered;

use library::{BuiltIn, BuiltInEncoders, Near};
use limits::{Limited, TextError};

/// An error that can occur when a declaration is read.
#[derive(Debug, thiserror::Error)]
pub enum DeclarationError {
    /// The file cannot be read.
    #[error("cannot read the declaration {}: {source}", path.display())]
    Io {
        /// Path of the declaration.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A text exceeds a limit.
    #[error("{file}: {source}")]
    Text {
        /// Name of the file.
        file: String,
        /// Exceeded limit.
        source: TextError,
    },
    /// The file is a fragment or an abstract parent.
    #[error("{file} has no `arch! {{ … }}`: a fragment or parent is only part of a declaration")]
    NoArchitecture {
        /// Name of the file.
        file: String,
    },
    /// The declaration has errors.
    #[error("{}", listed(.0))]
    Invalid(Vec<Fault>),
}

/// Error in the text of a declaration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Description of the error.
    pub message: String,
    /// Location of the error.
    pub place: Place,
    /// Location in the declaration: of the error, or of the `use`, call, or `like:` that introduced its text.
    pub anchor: Place,
}

/// Adds the directory of the declaration `file` to the names of files next to it.
fn located(mut faults: Vec<Fault>, file: &str) -> Vec<Fault> {
    let directory = Path::new(file).parent().unwrap_or(Path::new(""));
    for place in faults
        .iter_mut()
        .flat_map(|fault| [&mut fault.place, &mut fault.anchor])
    {
        let near = directory.join(&place.file);
        if place.file != file && near.is_file() {
            place.file = near.display().to_string();
        }
    }
    faults
}

impl fmt::Display for Fault {
    /// Formats `file:line:column: message`, and the source line with carets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n{}", self.place, self.message, self.place.excerpt())
    }
}

/// Formats all errors, separated by empty lines.
fn listed(faults: &[Fault]) -> String {
    let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    texts.join("\n\n")
}

/// Reads and compiles a declaration. The architecture stays in memory until the process ends.
///
/// # Errors
/// Returns a [`DeclarationError`] if the file cannot be read or has errors.
pub fn load(path: &Path) -> Result<Registered, DeclarationError> {
    of_file(path, declare)
}

/// Returns the values of the graph of a declaration in a file, for drawings.
///
/// # Errors
/// Returns a [`DeclarationError`] if the file cannot be read or has errors.
pub fn graph(path: &Path) -> Result<Vec<FlowNode>, DeclarationError> {
    of_file(path, graph_of)
}

/// Returns the values of the graph of a built-in architecture or encoder, or `None` if the name is unknown.
///
/// # Errors
/// Returns a [`DeclarationError`] if the declaration has errors. Built-in declarations have none.
pub fn built_in_graph(name: &str, is_encoder: bool) -> Result<Option<Vec<FlowNode>>, DeclarationError> {
    let library: &(dyn Library + Sync) = if is_encoder { &BuiltInEncoders } else { &BuiltIn };
    let source = library.find(name);
    source.map(|s| graph_of(&s.file, &s.text, library)).transpose()
}

fn graph_of(file: &str, text: &str, library: &(dyn Library + Sync)) -> Result<Vec<FlowNode>, DeclarationError> {
    let compiled = compile(file, text, library, |arch, _, _| Some(arch_lang::flow(&arch)));
    compiled?.ok_or_else(|| DeclarationError::NoArchitecture { file: file.to_owned() })
}

/// Reads a declaration, and compiles its text with the files next to it.
fn of_file<T>(
    path: &Path,
    compile: impl FnOnce(&str, &str, &(dyn Library + Sync)) -> Result<T, DeclarationError>,
) -> Result<T, DeclarationError> {
    let file = path.display().to_string();
    let text = limits::read(path).map_err(|source| DeclarationError::Io {
        path: path.to_owned(),
        source,
    })?;
    compile(&file, &text, &Near::of(path, &text)).map_err(|error| match error {
        DeclarationError::Invalid(faults) => DeclarationError::Invalid(located(faults, &file)),
        other => other,
    })
}

/// Compiles the text of a declaration that a model file contains. It can use built-in files only. Locations in messages
/// refer to `file`.
///
/// # Errors
/// Returns a [`DeclarationError`] if the text has errors or exceeds a limit.
pub fn embedded(file: &str, text: &str) -> Result<Registered, DeclarationError> {
    declare(file, text, &*library::built_in(text))
}

/// Compiles the text of a declaration. Locations in messages refer to `file`.
///
/// # Errors
/// Returns a [`DeclarationError`] if the text has errors or exceeds a limit.
pub fn declare(file: &str, text: &str, library: &(dyn Library + Sync)) -> Result<Registered, DeclarationError> {
    let compiled = compile(file, text, library, |arch, digest, errors| {
        lower::architecture(&arch, text, digest, errors)
    });
    compiled?.ok_or_else(|| DeclarationError::NoArchitecture { file: file.to_owned() })
}

/// Returns all errors of a declaration, a fragment, or a parent, within the limits. It may contain `rust!`.
///
/// # Errors
/// Returns a [`DeclarationError`] if the text exceeds a limit.
pub fn check(file: &str, text: &str, library: &(dyn Library + Sync)) -> Result<Vec<Fault>, DeclarationError> {
    match compile(file, text, library, |_, _, _| Some(())) {
        Ok(_) => Ok(Vec::new()),
        Err(DeclarationError::Invalid(faults)) => Ok(located(faults, file)),
        Err(other) => Err(other),
    }
}

/// Compiles a text on a separate thread, and converts the checked model with `stage`, which receives a digest of all
/// texts. Returns `None` for a fragment or parent.
fn compile<T: Send>(
    file: &str,
    text: &str,
    library: &(dyn Library + Sync),
    stage: impl FnOnce(Arch, u64, &mut Errors) -> Option<T> + Send,
) -> Result<Option<T>, DeclarationError> {
    limits::check(text).map_err(|source| DeclarationError::Text {
        file: file.to_owned(),
        source,
    })?;
    let compiled = limits::with_stack(|| {
        let library = Limited::new(library, text);
        let stage = |arch, errors: &mut Errors| stage(arch, library.digest(), errors);
        let compiled = arch_lang::compile_file_to(file, text, &library, stage);
        // Diagnostics refer to tokens of this thread.
        let fault = |d: arch_lang::Diagnostic| {
            let (message, mut place, mut anchor) = (d.message, d.place, d.anchor_place);
            for place in [&mut place, &mut anchor] {
                if place.file.is_empty() {
                    file.clone_into(&mut place.file);
                }
            }
            Fault { message, place, anchor }
        };
        let compiled = compiled.map_err(|list| list.into_iter().map(fault).collect());
        (compiled, library.error())
    });
    let (compiled, error): (Result<_, Vec<Fault>>, _) = compiled.map_err(|source| DeclarationError::Io {
        path: file.into(),
        source,
    })?;
    match error {
        Some((file, source)) => Err(DeclarationError::Text { file, source }),
        None => compiled.map_err(DeclarationError::Invalid),
    }
}
