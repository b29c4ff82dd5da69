//! Files that a declaration can use: those next to it, and the built-in ones.

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

/// Library of the built-in encoders of media and their fragments. They also use the fragments of the architectures.
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
pub fn built_in(text: &str) -> &'static (dyn Library + Sync) {
    if is_encoder(text) { &BuiltInEncoders } else { &BuiltIn }
}

/// Library of the files next to a declaration, and of the built-in ones. A file next to the declaration takes
/// precedence, and the declaration itself takes precedence over a built-in one of the same name.
pub struct Near {
    directory: Directory,
    /// Name that the declaration declares.
    name: String,
    /// The declaration is an `encoder!`.
    is_encoder: bool,
    built_in: &'static (dyn Library + Sync),
}

impl Near {
    /// Creates the library of a declaration.
    pub fn of(path: &Path, text: &str) -> Near {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        Near {
            directory: Directory(parent.unwrap_or(Path::new(".")).to_owned()),
            name: declared_name(text).unwrap_or_default().to_owned(),
            is_encoder: is_encoder(text),
            built_in: built_in(text),
        }
    }

    fn read(&self, file: &str) -> Option<Source> {
        let text = limits::read(&self.directory.0.join(file)).ok()?;
        Some(source(file, &text))
    }

    /// Reads all declarations next to this one.
    fn declarations(&self) -> impl Iterator<Item = Source> {
        let files = limits::declaration_files(&self.directory.0).into_iter();
        files.filter_map(move |path| self.read(path.file_name()?.to_str()?))
    }

    /// Returns the names of the files in a subdirectory, without the extension.
    fn file_names(&self, subdirectory: &str) -> Vec<String> {
        let stem = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
        let files = limits::declaration_files(&self.directory.0.join(subdirectory));
        files.into_iter().filter_map(stem).collect()
    }
}

/// Returns true if a name can be that of a file in the directory.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) && !name.starts_with('.')
}

impl Library for Near {
    fn find(&self, name: &str) -> Option<Source> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let usual: String = name.chars().map(plain).collect();
        let declares = |s: &Source| declared_name(&s.text) == Some(name) && is_encoder(&s.text) == self.is_encoder;
        let near = self.read(&format!("{usual}.rs")).filter(declares);
        let parent = || {
            if is_plain(name) && !self.is_encoder {
                self.read(&format!("parents/{name}.rs"))
            } else {
                None
            }
        };
        // Other file names come last, because all files must be read.
        near.or_else(parent)
            .or_else(|| self.built_in.find(name))
            .or_else(|| self.declarations().find(declares))
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
        names.extend(self.built_in.names());
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
        near().or_else(|| self.built_in.fragment(name))
    }

    fn fragments(&self) -> Vec<String> {
        [self.file_names("fragments"), self.built_in.fragments()].concat()
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        Box::new(
            self.built_in
                .files()
                .filter(|s| declared_name(&s.text) != Some(&self.name)),
        )
    }

    fn inherits_checkpoints(&self) -> bool {
        true
    }
}
