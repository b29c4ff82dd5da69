//! Tidiness: documents in step with the registries, sizes of files, nothing left open.
//!
//! `LLAMA_UPDATE=1 cargo test -p llama-tests --test tidy` rewrites the generated parts of the documents.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace holds this package")
        .to_owned()
}

/// Every Rust source of the project, generated and vendored folders left out.
fn sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder is readable").flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Compares the text between two marker lines of a document with what it should be, or rewrites it.
fn check_part(document: &str, part: &str, expected: &str) {
    let path = root().join(document);
    let text = std::fs::read_to_string(&path).expect("the document is readable");
    let begin = text
        .find(&format!("<!-- {part}: generated"))
        .unwrap_or_else(|| panic!("{document} marks {part}"));
    let begin = begin + text[begin..].find('\n').expect("a line ends") + 1;
    let end = text
        .find(&format!("<!-- end of {part} -->"))
        .unwrap_or_else(|| panic!("{document} ends {part}"));
    if text[begin..end].trim() == expected.trim() {
        return;
    }
    if std::env::var_os("LLAMA_UPDATE").is_some() {
        let new = format!("{}{}\n{}", &text[..begin], expected.trim(), &text[end..]);
        std::fs::write(&path, new).expect("the document is writable");
        return;
    }
    panic!("{document}: the part `{part}` is not what the registry says; LLAMA_UPDATE=1 rewrites it");
}

#[test]
fn documents_are_in_step_with_the_registries() {
    check_part("CONTRIBUTING.md", "operations", &arch_lang::ops::reference());
    // The README's table of models is checked beside the command that prints it, in cli/tests.
}

#[test]
fn files_stay_readable() {
    let long: Vec<_> = sources()
        .into_iter()
        .map(|f| {
            (
                std::fs::read_to_string(&f)
                    .expect("the source is readable")
                    .lines()
                    .count(),
                f,
            )
        })
        // Tables of test cases may be longer than code.
        .filter(|(n, f)| {
            *n > if f.components().any(|c| c.as_os_str() == "tests") {
                1200
            } else {
                800
            }
        })
        .collect();
    assert!(long.is_empty(), "files too long: {long:?}");
}

#[test]
fn nothing_is_left_open() {
    // Spelled in two parts, so that this file does not find itself.
    let marks = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
    ];
    for file in sources() {
        let text = std::fs::read_to_string(&file).expect("the source is readable");
        for mark in marks {
            assert!(!text.contains(mark), "{}: {mark}", file.display());
        }
    }
}

/// Code lines of each architecture: neither blank nor comment.
#[test]
fn architecture_files_are_short() {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(root().join("archs"))
        .expect("the folder is readable")
        .flatten()
    {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).expect("the source is readable");
            let is_code = |l: &&str| !l.trim().is_empty() && !l.trim_start().starts_with("//");
            lines.push((
                text.lines().filter(is_code).count(),
                entry.file_name().into_string().expect("UTF-8"),
            ));
        }
    }
    lines.sort();
    let median = lines[lines.len() / 2].0;
    println!("code lines, median {median}: {lines:?}");
    assert!(median <= 60);
    for (name, budget) in [("qwen3.rs", 45), ("llama.rs", 60), ("gemma3.rs", 70)] {
        let n = lines
            .iter()
            .find(|(_, f)| f == name)
            .expect("the architecture is there")
            .0;
        assert!(n <= budget, "{name} has {n} code lines, budget {budget}");
    }
}
