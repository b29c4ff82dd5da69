//! Documents for developers: sizes, paths, the glossary, design records, and the declarations of the
//! tutorial.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Maximum size of each document in bytes.
const LIMITS: [(&str, usize); 4] = [
    ("ARCHITECTURE.md", 15_000),
    ("CONTRIBUTING.md", 8_000),
    ("docs/architecture-language.md", 13_000),
    ("docs/architecture-language-reference.md", 18_000),
];

/// Maximum size of one design record, and of all of them, in bytes.
const DESIGN_LIMITS: (usize, usize) = (2_000, 17_000);

fn root() -> PathBuf {
    tests::root()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()))
}

fn document(name: &str) -> String {
    read(&root().join(name))
}

/// Returns the names of the files in a directory, sorted.
fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory)
        .expect("the directory is readable")
        .flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn documents_stay_within_their_limits() {
    for (name, limit) in LIMITS {
        let size = document(name).len();
        assert!(size <= limit, "{name} has {size} bytes, at most {limit} are allowed");
    }
}

#[test]
fn design_records_have_four_sections_and_an_index_entry() {
    let directory = root().join("docs/design");
    let (index, mut total) = (read(&directory.join("README.md")), 0);
    let records: Vec<String> = names_in(&directory)
        .into_iter()
        .filter(|name| name != "README.md")
        .collect();
    assert!(!records.is_empty());
    for (i, name) in records.iter().enumerate() {
        let text = read(&directory.join(name));
        assert!(
            name.starts_with(&format!("{:03}-", i + 1)),
            "{name} is not number {}",
            i + 1
        );
        let title = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("# "))
            .unwrap_or_default();
        let entry = format!("| [{}]({name}) | {title} |", &name[..3]);
        assert!(index.contains(&entry), "docs/design/README.md has no line {entry}");
        let sections: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(
            sections,
            ["Context", "Alternatives", "Measurement", "Consequence"],
            "{name}"
        );
        assert!(text.len() <= DESIGN_LIMITS.0, "{name} has {} bytes", text.len());
        total += text.len();
    }
    assert!(total <= DESIGN_LIMITS.1, "the design records have {total} bytes");
}

/// Adds the names of the items, fields, variants, and methods in a source file.
fn add_names(items: &[syn::Item], names: &mut BTreeSet<String>) {
    for item in items {
        match item {
            syn::Item::Struct(s) => {
                names.insert(s.ident.to_string());
                names.extend(s.fields.iter().filter_map(|f| Some(f.ident.as_ref()?.to_string())));
            }
            syn::Item::Enum(e) => {
                names.insert(e.ident.to_string());
                names.extend(e.variants.iter().map(|v| v.ident.to_string()));
            }
            syn::Item::Trait(t) => drop(names.insert(t.ident.to_string())),
            syn::Item::Impl(i) => names.extend(i.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(f) => Some(f.sig.ident.to_string()),
                _ => None,
            })),
            syn::Item::Fn(f) => drop(names.insert(f.sig.ident.to_string())),
            syn::Item::Const(c) => drop(names.insert(c.ident.to_string())),
            syn::Item::Type(t) => drop(names.insert(t.ident.to_string())),
            syn::Item::Mod(m) => {
                names.insert(m.ident.to_string());
                m.content.iter().for_each(|(_, items)| add_names(items, names));
            }
            _ => {}
        }
    }
}

/// Returns every name that the sources of the product crates define.
fn defined_names() -> BTreeSet<String> {
    let crates = [
        "kernels/src",
        "engine/src",
        "arch-macros/lang/src",
        "llama/src",
        "server/src",
        "cli/app/src",
    ];
    let mut directories: Vec<PathBuf> = crates.map(|name| root().join(name)).into();
    let mut names = BTreeSet::new();
    while let Some(directory) = directories.pop() {
        for name in names_in(&directory) {
            let path = directory.join(&name);
            if path.is_dir() {
                directories.push(path);
            } else if name.ends_with(".rs") {
                let file = syn::parse_file(&read(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                add_names(&file.items, &mut names);
            }
        }
    }
    names
}

/// Returns the inline code spans of a Markdown text.
fn in_code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn glossary_lists_each_term_once_with_defined_identifiers() {
    let text = document("ARCHITECTURE.md");
    let glossary = text
        .split("\n## Glossary\n")
        .nth(1)
        .expect("the document has a glossary");
    let rows = glossary.lines().filter(|line| line.starts_with("| ")).skip(1);
    let (names, mut terms, mut identifiers) = (defined_names(), BTreeSet::new(), BTreeSet::new());
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [term, code, ..] = cells[..] else {
            panic!("a row without columns: {row}");
        };
        for term in term.split(", ") {
            assert!(terms.insert(term.to_owned()), "the glossary lists `{term}` twice");
        }
        assert!(code.contains('`'), "`{term}` has no identifier");
        for identifier in in_code(code) {
            assert!(
                identifiers.insert(identifier.to_owned()),
                "`{identifier}` has two terms"
            );
            for name in identifier.split("::") {
                assert!(names.contains(name), "`{term}`: the sources define no `{name}`");
            }
        }
    }
    assert!(terms.len() >= 30, "{} terms", terms.len());
}

#[test]
fn paths_in_documents_exist() {
    let top: BTreeSet<String> = names_in(&root()).into_iter().filter(|name| name != "target").collect();
    let records = names_in(&root().join("docs/design"));
    let records = records.into_iter().map(|name| format!("docs/design/{name}"));
    let mut n_paths = 0;
    for name in LIMITS.map(|(name, _)| name.to_owned()).into_iter().chain(records) {
        let text = document(&name);
        let paths = in_code(&text).map(|code| code.split("::").next().unwrap_or(code));
        let is_path = |path: &&str| path.split_once('/').is_some_and(|(first, _)| top.contains(first));
        let is_literal = |path: &&str| !path.contains([' ', '*']) && !path.contains("NAME");
        for path in paths.filter(is_path).filter(is_literal) {
            assert!(root().join(path).exists(), "{name}: {path} does not exist");
            n_paths += 1;
        }
    }
    assert!(n_paths > 60, "{n_paths} paths");
}

#[test]
fn tutorial_declarations_compile_and_are_formatted() {
    let text = document("docs/architecture-language.md");
    let archs = arch_lang::Directory(root().join("archs"));
    let blocks = text
        .split("```rust\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let declarations: Vec<_> = blocks.filter(|block| block.contains("arch!")).collect();
    assert_eq!(declarations.len(), 2);
    for declaration in declarations {
        let diagnostics = arch_lang::check_file("tutorial.rs", declaration, &archs);
        let messages: Vec<_> = diagnostics
            .iter()
            .map(|d| format!("line {}: {}", d.line_column().0, d.message))
            .collect();
        assert!(messages.is_empty(), "{messages:#?}\n{declaration}");
        let formatted = arch_lang::format::format("tutorial.rs", declaration).expect("the declaration parses");
        assert_eq!(formatted, declaration, "`llama arch fmt` changes the declaration");
    }
}
