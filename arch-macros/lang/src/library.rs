//! Where the declaration that another one is `like` comes from: an interface, and the folder of files behind it.

use std::path::PathBuf;

/// The text of a file with an `arch!` in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// Its path relative to the manifest of the crate that holds it, such as `qwen2.rs`.
    pub file: String,
    /// All of it.
    pub text: String,
}

/// Finds declarations by their `name:`.
pub trait Library {
    /// The file that declares an architecture.
    fn find(&self, name: &str) -> Option<Source>;

    /// Every name there is, for hints; asked only when a name was not found.
    fn names(&self) -> Vec<String>;

    /// The file of a fragment.
    fn fragment(&self, name: &str) -> Option<Source>;

    /// Every fragment's name, for hints.
    fn fragments(&self) -> Vec<String>;

    /// All files, fragments first, which most names of tensors stand in.
    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_>;
}

/// No declarations at all.
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

/// The folder of fragments, beside the declarations.
const FRAGMENTS: &str = "fragments";

/// The `.rs` files directly in a folder, and in its folder `fragments`.
#[derive(Clone, Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    fn read(&self, file: String) -> Option<Source> {
        let text = std::fs::read_to_string(self.0.join(&file)).ok()?;
        Some(Source { file, text })
    }

    /// All files, sorted by name, each read when its turn comes. What cannot be read declares nothing.
    fn sources(&self) -> impl Iterator<Item = Source> + use<> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut files: Vec<String> = entries
            .filter_map(|e| e.file_name().into_string().ok())
            .filter(|f| f.ends_with(".rs"))
            .collect();
        files.sort();
        let folder = self.clone();
        files.into_iter().filter_map(move |f| folder.read(f))
    }
}

impl Library for Folder {
    /// Reads the file that is called like the architecture; only if that declares another, all of them.
    fn find(&self, name: &str) -> Option<Source> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let usual: String = name.chars().map(plain).collect();
        let declares = |s: &Source| declared_name(&s.text) == Some(name);
        self.read(usual + ".rs")
            .filter(declares)
            .or_else(|| self.sources().find(declares))
    }

    fn names(&self) -> Vec<String> {
        let name = |s: Source| declared_name(&s.text).map(str::to_owned);
        self.sources().filter_map(name).collect()
    }

    /// A fragment is called like its file.
    fn fragment(&self, name: &str) -> Option<Source> {
        self.read(format!("{FRAGMENTS}/{name}.rs"))
    }

    fn fragments(&self) -> Vec<String> {
        let files = Folder(self.0.join(FRAGMENTS));
        let name = |s: Source| s.file.strip_suffix(".rs").map(str::to_owned);
        files.sources().filter_map(name).collect()
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        let fragments = Folder(self.0.join(FRAGMENTS));
        Box::new(fragments.sources().chain(self.sources()))
    }
}

/// The string of the first line `name: "…"`, by which files are registered too.
pub fn declared_name(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let rest = line.trim_start().strip_prefix("name")?.trim_start().strip_prefix(':')?;
        let (name, _) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
        Some(name)
    })
}
