//! Which architectures there are: every `.rs` file in a folder, and what its first lines and its `name:` line say.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// One architecture file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The architecture's name: the string of the file's `name:` line.
    pub name: String,
    /// The file's leading `//!` lines in one line of text.
    pub about: String,
    /// Where the file is.
    pub path: PathBuf,
}

/// The `.rs` files directly in `folder`, sorted by architecture name. Two files with one name are an error naming both.
pub fn list(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let path = file?.path();
        if path.extension().is_some_and(|e| e == "rs") && path.is_file() {
            entries.push(read(path)?);
        }
    }
    entries.sort_by(|a, b| (&a.name, &a.path).cmp(&(&b.name, &b.path)));
    for pair in entries.windows(2) {
        if pair[0].name == pair[1].name {
            let (name, a, b) = (&pair[0].name, pair[0].path.display(), pair[1].path.display());
            return Err(io::Error::other(format!(
                "two files declare the architecture `{name}`: {a} and {b}"
            )));
        }
    }
    Ok(entries)
}

fn read(path: PathBuf) -> io::Result<Entry> {
    let text = std::fs::read_to_string(&path)?;
    let about: Vec<&str> = text
        .lines()
        .map_while(|l| l.strip_prefix("//!"))
        .map(str::trim)
        .collect();
    let about = about.join(" ").trim().to_owned();
    let name = text.lines().find_map(name_line);
    let Some(name) = name else {
        let message = format!("{}: no line `name: \"…\";` as `arch!` has it", path.display());
        return Err(io::Error::other(message));
    };
    Ok(Entry { name, about, path })
}

/// The string of a line `name: "…";`.
fn name_line(line: &str) -> Option<String> {
    let rest = line.trim_start().strip_prefix("name")?.trim_start().strip_prefix(':')?;
    let (name, _) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
    Some(name.to_owned())
}

/// The registry as Rust source: a module per file, and the table `ALL`.
pub fn source(entries: &[Entry]) -> String {
    let mut text = String::new();
    for (i, e) in entries.iter().enumerate() {
        // Module names carry the position, since two names may differ only in characters that a Rust name cannot have.
        let (ident, path) = (ident(i, e), e.path.display().to_string());
        let _ = writeln!(text, "#[path = {path:?}]\nmod {ident};");
    }
    text += "/// Every architecture, sorted by name.\npub static ALL: &[Registered] = &[\n";
    for (i, e) in entries.iter().enumerate() {
        let _ = writeln!(
            text,
            "    Registered {{ arch: &{}::ARCH, about: {:?} }},",
            ident(i, e),
            e.about
        );
    }
    text += "];\n";
    text
}

fn ident(i: usize, e: &Entry) -> String {
    let plain: String = e
        .name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    format!("arch_{i}_{plain}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn a_dropped_file_is_listed_and_registered() {
        let qwen = "//! Qwen3, dense.\n//! Second line.\n\narch_macros::arch! {\n    name: \"qwen3\";\n}\n";
        let dir = folder(&[("qwen3.rs", qwen), ("notes.txt", "name: \"no\";")]);
        std::fs::create_dir(dir.path().join("src")).unwrap();
        assert_eq!(list(dir.path()).unwrap().len(), 1);
        std::fs::write(dir.path().join("mine.rs"), "arch! { \n name : \"a-new.one\"; }").unwrap();
        let entries = list(dir.path()).unwrap();
        let names: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.about.as_str())).collect();
        assert_eq!(names, [("a-new.one", ""), ("qwen3", "Qwen3, dense. Second line.")]);
        let source = source(&entries);
        assert!(source.contains("mine.rs\"]\nmod arch_0_a_new_one;"), "{source}");
        assert!(
            source.contains("arch: &arch_1_qwen3::ARCH, about: \"Qwen3, dense. Second line.\""),
            "{source}"
        );
    }

    #[test]
    fn one_name_twice_or_none_is_an_error_naming_the_files() {
        let dir = folder(&[("a.rs", "name: \"x\";"), ("b.rs", "name: \"x\";")]);
        let error = list(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("`x`") && error.contains("a.rs") && error.contains("b.rs"),
            "{error}"
        );
        let dir = folder(&[("a.rs", "fn main() {}")]);
        assert!(list(dir.path()).unwrap_err().to_string().contains("a.rs"));
    }
}
