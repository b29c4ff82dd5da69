//! The documents: generated parts are up to date, links resolve, and sizes stay within their limits.
//!
//! The commands in the documents are tested in `cli/tests/documents.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum size of each document in bytes.
const LIMITS: [(&str, usize); 5] = [
    ("README.md", 6_000),
    ("SECURITY.md", 2_000),
    ("docs/accuracy.md", 5_000),
    ("docs/benchmarks.md", 10_000),
    ("docs/guide.md", 14_000),
];

fn root() -> PathBuf {
    tests::root()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()))
}

/// Returns every Markdown file of the project, except vendored and generated ones.
fn documents() -> Vec<PathBuf> {
    let (mut found, mut directories) = (Vec::new(), vec![root()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)
            .expect("the directory is readable")
            .flatten()
        {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let is_ours = !["target", "vendor", "node_modules"].contains(&&*name) && !name.starts_with('.');
            if path.is_dir() && is_ours {
                directories.push(path);
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns a document without its code blocks and code spans.
fn prose(text: &str) -> String {
    let blocks = text.split("\n```").step_by(2);
    blocks.flat_map(|block| block.split('`').step_by(2)).collect()
}

/// Returns the anchors that GitHub gives to the headings of a document.
fn anchors(text: &str) -> Vec<String> {
    let blocks = text.split("\n```").step_by(2);
    let headings = blocks
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix('#'))
        .map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn links_resolve() {
    let mut broken = Vec::new();
    for document in documents() {
        let text = read(&document);
        for link in prose(&text).split("](").skip(1) {
            let link = link.split(')').next().unwrap_or_default();
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => document.clone(),
                path => document.parent().expect("a directory").join(path),
            };
            let exists = target.exists() && (anchor.is_empty() || anchors(&read(&target)).iter().any(|a| a == anchor));
            if !exists {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links: {broken:#?}");
}

#[test]
fn generated_parts_are_up_to_date() {
    let script = root().join("tests/tools/documents.py");
    let output = Command::new("python3").arg(script).arg("--check").output();
    let output = output.expect("this test needs `python3` in PATH");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn documents_stay_within_their_limits() {
    for (document, limit) in LIMITS {
        let size = read(&root().join(document)).len();
        assert!(
            size <= limit,
            "{document} has {size} bytes, at most {limit} are allowed"
        );
    }
}
