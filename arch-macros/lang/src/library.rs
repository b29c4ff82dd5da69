//! Lookup of parents and fragments: an interface and its implementation for a directory.

mod encoders;

use std::path::PathBuf;

pub use encoders::EncoderDirectory;

/// A source file with an `arch!` or `fragment!`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// Path relative to the crate's manifest, such as `qwen2.rs`.
    pub file: String,
    /// Full contents.
    pub text: String,
}

/// Lookup of declarations by their `name:`, and of abstract parents by their file name.
pub trait Library {
    /// Returns the file that declares the architecture or abstract parent `name`.
    fn find(&self, name: &str) -> Option<Source>;

    /// Returns the files that declare `name` if there are several, and none of them takes precedence.
    fn ambiguous(&self, _name: &str) -> Vec<String> {
        Vec::new()
    }

    /// Returns all names, for suggestions. Called only after a failed lookup.
    fn names(&self) -> Vec<String>;

    /// Returns the file of a fragment.
    fn fragment(&self, name: &str) -> Option<Source>;

    /// Returns the names of all fragments, for suggestions.
    fn fragments(&self) -> Vec<String>;

    /// Iterates over all files, fragments first because they declare most tensor names.
    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_>;

    /// Returns true if declarations inherit the `checkpoint` sections of their parents. Built-in declarations do not: a
    /// class belongs to one of them.
    fn inherits_checkpoints(&self) -> bool {
        false
    }
}

/// An empty library, without parents and fragments.
impl Library for () {
    fn find(&self, _: &str) -> Option<Source> {
        None
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn fragment(&self, _: &str) -> Option<Source> {
        None
    }

    fn fragments(&self) -> Vec<String> {
        Vec::new()
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        Box::new(std::iter::empty())
    }
}

/// Subdirectory that contains the fragments.
const FRAGMENTS: &str = "fragments";

/// Subdirectory that contains the abstract parents.
const PARENTS: &str = "parents";

/// Library of the `.rs` files in a directory and its subdirectories `fragments` and `parents`.
#[derive(Clone, Debug)]
pub struct Directory(pub PathBuf);

impl Directory {
    fn read(&self, file: String) -> Option<Source> {
        let text = std::fs::read_to_string(self.0.join(&file)).ok()?;
        Some(Source { file, text })
    }

    /// Iterates over all files, sorted by name. Files are read lazily; unreadable files are skipped.
    fn sources(&self) -> impl Iterator<Item = Source> + use<> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut files: Vec<String> = entries
            .filter_map(|e| e.file_name().into_string().ok())
            .filter(|f| f.ends_with(".rs"))
            .collect();
        files.sort();
        let dir = self.clone();
        files.into_iter().filter_map(move |f| dir.read(f))
    }
}

impl Directory {
    /// Returns the names of the files in a subdirectory, without the extension.
    fn file_names(&self, subdirectory: &str) -> Vec<String> {
        let files = Directory(self.0.join(subdirectory)).sources();
        let name = |s: Source| s.file.strip_suffix(".rs").map(str::to_owned);
        files.filter_map(name).collect()
    }
}

impl Library for Directory {
    /// Tries the architecture and the abstract parent with a file of this name first, and searches all files only
    /// if that fails.
    fn find(&self, name: &str) -> Option<Source> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let usual: String = name.chars().map(plain).collect();
        let declares = |s: &Source| declared_name(&s.text) == Some(name);
        let parent = || {
            if usual == name {
                self.read(format!("{PARENTS}/{name}.rs"))
            } else {
                None
            }
        };
        self.read(format!("{usual}.rs"))
            .filter(declares)
            .or_else(parent)
            .or_else(|| self.sources().find(declares))
    }

    fn names(&self) -> Vec<String> {
        let name = |s: Source| declared_name(&s.text).map(str::to_owned);
        self.sources()
            .filter_map(name)
            .chain(self.file_names(PARENTS))
            .collect()
    }

    /// Fragments are named after their files.
    fn fragment(&self, name: &str) -> Option<Source> {
        self.read(format!("{FRAGMENTS}/{name}.rs"))
    }

    fn fragments(&self) -> Vec<String> {
        self.file_names(FRAGMENTS)
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        let [fragments, parents] = [FRAGMENTS, PARENTS].map(|of| Directory(self.0.join(of)).sources());
        Box::new(fragments.chain(parents).chain(self.sources()))
    }
}

/// Returns true for the text of an `encoder! { … }`.
pub fn is_encoder(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim_start();
        line.strip_prefix("arch_macros::")
            .unwrap_or(line)
            .starts_with("encoder!")
    })
}

/// Returns the string of the first line `name: "…"`, which is also the name under which the build registers a
/// file.
pub fn declared_name(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let rest = line.trim_start().strip_prefix("name")?.trim_start().strip_prefix(':')?;
        let (name, _) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
        Some(name)
    })
}
