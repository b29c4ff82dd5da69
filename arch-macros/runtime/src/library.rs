//! Files that a declaration can use: files next to it, and built-in files.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use arch_lang::{Directory, Library, Source, declared_name, is_encoder};

use crate::limits;

/// Built-in files: name relative to the directory of architectures, and text.
static SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sources.rs"));

/// Library of the built-in declarations, parents, and fragments.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuiltIn;

impl BuiltIn {
    /// Returns the text of a built-in file, such as `fragments/experts.rs`.
    pub fn file(self, name: &str) -> Option<Source> {
        let found = SOURCES.iter().find(|(file, _)| *file == name);
        found.map(|&(file, text)| source(file, text))
    }

    /// Iterates over all files as name and text.
    pub fn all(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        SOURCES.iter().copied()
    }
}

fn source(file: &str, text: &str) -> Source {
    Source {
        file: file.to_owned(),
        text: text.to_owned(),
    }
}

/// Returns the names of the files in a directory, without the extension.
fn names_in<'a>(directory: &'a str) -> impl Iterator<Item = String> + 'a {
    let name = move |(file, _): &(&str, &str)| {
        let file = file.strip_prefix(directory)?.strip_prefix('/')?;
        file.strip_suffix(".rs").map(str::to_owned)
    };
    SOURCES.iter().filter_map(name)
}

/// Directory of the encoders and their fragments.
const ENCODERS: &str = "encoders/";

impl Library for BuiltIn {
    fn find(&self, name: &str) -> Option<Source> {
        let declares = |(file, text): &&(&str, &str)| !file.contains('/') && declared_name(text) == Some(name);
        let declared = SOURCES.iter().find(declares).map(|&(file, text)| source(file, text));
        declared.or_else(|| self.file(&format!("parents/{name}.rs")))
    }

    fn names(&self) -> Vec<String> {
        let declared = SOURCES.iter().filter(|(file, _)| !file.contains('/'));
        let declared = declared.filter_map(|(_, text)| declared_name(text).map(str::to_owned));
        declared.chain(names_in("parents")).collect()
    }

    fn fragment(&self, name: &str) -> Option<Source> {
        self.file(&format!("fragments/{name}.rs"))
    }

    fn fragments(&self) -> Vec<String> {
        names_in("fragments").collect()
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        let is_inner = |file: &str| file.contains('/');
        let own = || SOURCES.iter().filter(|(file, _)| !file.starts_with(ENCODERS));
        let inner = own().filter(move |(file, _)| is_inner(file));
        let outer = own().filter(move |(file, _)| !is_inner(file));
        Box::new(inner.chain(outer).map(|&(file, text)| source(file, text)))
    }
}

/// Library of the built-in media encoders and their fragments. They also use the fragments of the architectures.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuiltInEncoders;

impl BuiltInEncoders {
    /// Iterates over the encoders as file name and text.
    pub fn encoders(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let is_encoder = |file: &str| file.strip_prefix(ENCODERS).is_some_and(|name| !name.contains('/'));
        SOURCES.iter().copied().filter(move |(file, _)| is_encoder(file))
    }
}

impl Library for BuiltInEncoders {
    fn find(&self, name: &str) -> Option<Source> {
        let found = self.encoders().find(|(_, text)| declared_name(text) == Some(name));
        found.map(|(file, text)| source(file, text))
    }

    fn names(&self) -> Vec<String> {
        let names = self.encoders().filter_map(|(_, text)| declared_name(text));
        names.map(str::to_owned).collect()
    }

    fn fragment(&self, name: &str) -> Option<Source> {
        let own = BuiltIn.file(&format!("{ENCODERS}fragments/{name}.rs"));
        own.or_else(|| BuiltIn.fragment(name))
    }

    fn fragments(&self) -> Vec<String> {
        names_in("encoders/fragments").chain(names_in("fragments")).collect()
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        let own = SOURCES.iter().filter(|(file, _)| file.starts_with(ENCODERS));
        Box::new(own.map(|&(file, text)| source(file, text)))
    }
}

/// Returns the built-in files that a declaration with this text can use.
pub fn built_in(text: &str) -> Box<dyn Library + Sync> {
    if is_encoder(text) {
        Box::new(BuiltInEncoders)
    } else {
        Box::new(BuiltIn)
    }
}

/// Library of the files next to a declaration, and of other files, such as built-in files. A file next to the
/// declaration takes precedence, and the declaration itself takes precedence over all files that declare its name.
pub struct Near {
    directory: Directory,
    /// Name of the declaration's file, which is not in the library.
    file: Option<OsString>,
    /// Name that the declaration declares.
    name: String,
    /// The declaration is an `encoder!`.
    is_encoder: bool,
    others: Box<dyn Library + Sync>,
}

impl Near {
    /// Creates the library of a declaration, with the built-in files.
    pub fn of(path: &Path, text: &str) -> Near {
        let directory = path.parent().unwrap_or(Path::new(""));
        Near::in_directory(directory, path, text, built_in(text))
    }

    /// Creates the library of a file in a directory or its subdirectories, with other files.
    pub fn in_directory(directory: &Path, path: &Path, text: &str, others: Box<dyn Library + Sync>) -> Near {
        let is_current = directory.as_os_str().is_empty();
        Near {
            directory: Directory(if is_current { Path::new(".") } else { directory }.to_owned()),
            file: if path.parent() == Some(directory) {
                path.file_name().map(OsStr::to_owned)
            } else {
                None
            },
            name: declared_name(text).unwrap_or_default().to_owned(),
            is_encoder: is_encoder(text),
            others,
        }
    }

    /// Returns the files next to the declaration that have its name and are ignored, although another declaration could
    /// find them by this name.
    pub fn ignored(&self) -> Vec<String> {
        if self.name.is_empty() || self.takes_other(&self.name) {
            return Vec::new();
        }
        self.declaring(&self.name).map(|s| s.file).collect()
    }

    fn read(&self, file: &str) -> Option<Source> {
        let text = limits::read(&self.directory.0.join(file)).ok()?;
        Some(source(file, &text))
    }

    /// Reads all declarations next to this one.
    fn declarations(&self) -> impl Iterator<Item = Source> {
        let files = limits::declaration_files(&self.directory.0).into_iter();
        files.filter_map(move |path| {
            let file = path.file_name()?;
            if self.file.as_deref() == Some(file) {
                None
            } else {
                self.read(file.to_str()?)
            }
        })
    }

    /// Reads the declarations next to this one that declare an architecture or encoder.
    fn declaring(&self, name: &str) -> impl Iterator<Item = Source> {
        self.declarations().filter(move |s| self.declares(s, name))
    }

    fn declares(&self, source: &Source, name: &str) -> bool {
        declared_name(&source.text) == Some(name) && is_encoder(&source.text) == self.is_encoder
    }

    /// Reads the file with the usual name of a declaration.
    fn usual(&self, name: &str) -> Option<Source> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let file = format!("{}.rs", name.chars().map(plain).collect::<String>());
        if self.file.as_deref() == Some(OsStr::new(&file)) {
            return None;
        }
        self.read(&file).filter(|s| self.declares(s, name))
    }

    fn parent(&self, name: &str) -> Option<Source> {
        if is_plain(name) && !self.is_encoder {
            self.read(&format!("parents/{name}.rs"))
        } else {
            None
        }
    }

    /// Returns true if a parent or one of the other files takes precedence over declarations of this name.
    fn takes_other(&self, name: &str) -> bool {
        self.usual(name).is_none() && (self.parent(name).is_some() || self.others.find(name).is_some())
    }

    /// Returns the names of the files in a subdirectory, without the extension.
    fn file_names(&self, subdirectory: &str) -> Vec<String> {
        let stem = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
        let files = limits::declaration_files(&self.directory.0.join(subdirectory));
        files.into_iter().filter_map(stem).collect()
    }

    /// Reads the files in a subdirectory.
    fn inner(&self, subdirectory: &'static str) -> impl Iterator<Item = Source> {
        let files = self.file_names(subdirectory).into_iter();
        files.filter_map(move |name| self.read(&format!("{subdirectory}/{name}.rs")))
    }
}

/// Returns true if a file in the directory can have this name.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) && !name.starts_with('.')
}

impl Library for Near {
    fn find(&self, name: &str) -> Option<Source> {
        // Other file names come last, because all files must be read.
        self.usual(name)
            .or_else(|| self.parent(name))
            .or_else(|| self.others.find(name))
            .or_else(|| self.declaring(name).next())
    }

    fn ambiguous(&self, name: &str) -> Vec<String> {
        if self.takes_other(name) {
            return self.others.ambiguous(name);
        }
        let files: Vec<String> = self.declaring(name).map(|s| s.file).collect();
        if files.len() > 1 { files } else { Vec::new() }
    }

    fn names(&self) -> Vec<String> {
        let near = self.declarations().filter_map(|source| {
            let is_own_kind = is_encoder(&source.text) == self.is_encoder;
            declared_name(&source.text)
                .filter(|name| is_own_kind && *name != self.name)
                .map(str::to_owned)
        });
        let mut names: Vec<String> = near.collect();
        if !self.is_encoder {
            names.extend(self.file_names("parents"));
        }
        names.extend(self.others.names());
        names
    }

    fn fragment(&self, name: &str) -> Option<Source> {
        let near = || {
            if is_plain(name) {
                self.read(&format!("fragments/{name}.rs"))
            } else {
                None
            }
        };
        near().or_else(|| self.others.fragment(name))
    }

    fn fragments(&self) -> Vec<String> {
        [self.file_names("fragments"), self.others.fragments()].concat()
    }

    /// Iterates over all files, except declarations of the same architecture or encoder.
    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        let near = self
            .inner("fragments")
            .chain(self.inner("parents"))
            .chain(self.declarations());
        let all = self.others.files().chain(near);
        Box::new(all.filter(|s| declared_name(&s.text) != Some(&self.name)))
    }

    fn inherits_checkpoints(&self) -> bool {
        true
    }
}
