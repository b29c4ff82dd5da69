//! Lists the architectures: the `.rs` files in a directory, with their descriptions and names.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// An architecture file found in the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Name of the architecture, from the file's `name:` line.
    pub name: String,
    /// Description: the file's leading `//!` lines, joined by spaces.
    pub about: String,
    /// Path of the architecture file.
    pub path: PathBuf,
}

/// Returns the `.rs` files directly in `dir`, sorted by architecture name. Fails if two files declare the
/// same name.
pub fn list(dir: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for file in std::fs::read_dir(dir)? {
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
        let message = format!("{}: missing line `name: \"…\";` in `arch!`", path.display());
        return Err(io::Error::other(message));
    };
    Ok(Entry { name, about, path })
}

/// Parses the string of a line `name: "…";`.
fn name_line(line: &str) -> Option<String> {
    let rest = line.trim_start().strip_prefix("name")?.trim_start().strip_prefix(':')?;
    let (name, _) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
    Some(name.to_owned())
}

/// Generates a registry as Rust source: a module per file, and a table with this name.
pub fn source(entries: &[Entry], table: &str) -> String {
    let mut text = String::new();
    for (i, e) in entries.iter().enumerate() {
        // Module names include the index, because two architecture names may differ only in characters that
        // are invalid in Rust identifiers.
        let (ident, path) = (ident(table, i, e), e.path.display().to_string());
        let _ = writeln!(text, "#[path = {path:?}]\nmod {ident};");
    }
    let _ = writeln!(
        text,
        "/// All entries, sorted by name.\npub static {table}: &[Registered] = &["
    );
    for (i, e) in entries.iter().enumerate() {
        let _ = writeln!(
            text,
            "    Registered {{ arch: &{}::ARCH, about: {:?} }},",
            ident(table, i, e),
            e.about
        );
    }
    text += "];\n";
    text
}

fn ident(table: &str, i: usize, e: &Entry) -> String {
    let plain: String = e
        .name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    format!("{}_{i}_{plain}", table.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn new_file_is_listed_and_registered() {
        let qwen = "//! Qwen3, dense.\n//! Second line.\n\narch_macros::arch! {\n    name: \"qwen3\";\n}\n";
        let dir = dir_with(&[("qwen3.rs", qwen), ("notes.txt", "name: \"no\";")]);
        std::fs::create_dir(dir.path().join("src")).unwrap();
        assert_eq!(list(dir.path()).unwrap().len(), 1);
        std::fs::write(dir.path().join("mine.rs"), "arch! { \n name : \"a-new.one\"; }").unwrap();
        let entries = list(dir.path()).unwrap();
        let names: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.about.as_str())).collect();
        assert_eq!(names, [("a-new.one", ""), ("qwen3", "Qwen3, dense. Second line.")]);
        let source = source(&entries, "ALL");
        assert!(source.contains("mine.rs\"]\nmod all_0_a_new_one;"), "{source}");
        assert!(
            source.contains("arch: &all_1_qwen3::ARCH, about: \"Qwen3, dense. Second line.\""),
            "{source}"
        );
    }

    #[test]
    fn duplicate_or_missing_name_is_rejected() {
        let dir = dir_with(&[("a.rs", "name: \"x\";"), ("b.rs", "name: \"x\";")]);
        let error = list(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("`x`") && error.contains("a.rs") && error.contains("b.rs"),
            "{error}"
        );
        let dir = dir_with(&[("a.rs", "fn main() {}")]);
        assert!(list(dir.path()).unwrap_err().to_string().contains("a.rs"));
    }
}
