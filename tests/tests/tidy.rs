//! Checks the repository itself: generated documents, file and function sizes, prose, names, and leftover
//! markers.
//!
//! `LLAMA_UPDATE=1 cargo test -p llama-tests --test all tidy` rewrites the generated parts of the documents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

mod cycles;
mod layers;
mod prose;
mod types;

fn root() -> PathBuf {
    tests::root()
}

/// Returns the files of the project with one of these extensions, except in build and hidden directories.
fn files(extensions: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut directories = vec![root()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)
            .expect("the directory is readable")
            .flatten()
        {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                directories.push(path);
            } else if path
                .extension()
                .and_then(|e| e.to_str())
                .is_some_and(|e| extensions.contains(&e))
            {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Returns every Rust source of the project.
fn sources() -> Vec<PathBuf> {
    files(&["rs"])
}

/// Compares the text between two marker lines of a document with the expected text, or rewrites the document.
fn check_part(document: &str, part: &str, expected: &str) {
    let path = root().join(document);
    let text = std::fs::read_to_string(&path).expect("the document is readable");
    let begin = text
        .find(&format!("<!-- {part}: generated"))
        .unwrap_or_else(|| panic!("{document} has no marker `{part}: generated`"));
    let begin = begin + text[begin..].find('\n').expect("a line ends") + 1;
    let end = text
        .find(&format!("<!-- end of {part} -->"))
        .unwrap_or_else(|| panic!("{document} has no marker `end of {part}`"));
    if text[begin..end].trim() == expected.trim() {
        return;
    }
    if std::env::var_os("LLAMA_UPDATE").is_some() {
        let new = format!("{}{}\n{}", &text[..begin], expected.trim(), &text[end..]);
        std::fs::write(&path, new).expect("the document is writable");
        return;
    }
    panic!("{document}: the generated part `{part}` is out of date; run the test with LLAMA_UPDATE=1");
}

/// Returns a Markdown table of the fragments: name, and the first clause of the file's description.
fn fragments() -> String {
    let mut table = String::from("| fragment | description |\n|---|---|\n");
    for (file, text) in declarations("archs/fragments") {
        let description: Vec<&str> = text.lines().map_while(|l| l.strip_prefix("//! ")).collect();
        let description = description.join(" ");
        let ends = [". ", ": ", "; "].iter().filter_map(|mark| description.find(mark));
        let title = description[..ends.min().unwrap_or(description.len())].trim_end_matches('.');
        let name = file.trim_end_matches(".rs");
        assert!(!title.is_empty(), "{file} has no description");
        table += &format!("| `{name}` | {title} |\n");
    }
    table
}

#[test]
fn generated_documents_match_the_registries() {
    check_part(
        "docs/architecture-language-reference.md",
        "operations",
        &arch_lang::ops::reference(),
    );
    check_part("docs/architecture-language-reference.md", "fragments", &fragments());
    // The table of models is checked next to the command that prints it, in cli/tests.
    let readme = std::fs::read_to_string(root().join("README.md")).expect("the document is readable");
    let count = format!("[{} architectures](docs/architectures.md)", archs::ALL.len());
    assert!(readme.contains(&count), "README.md does not contain `{count}`");
}

#[test]
fn files_have_at_most_800_lines() {
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
        // Test files may be longer because they contain tables of cases.
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

/// Maximum number of lines of a function, including its signature.
const FUNCTION_LINES: usize = 70;

/// Functions that may exceed [`FUNCTION_LINES`], each with its reason.
const LONG_FUNCTIONS: &[(&str, &str)] = &[
    // This function contains every op of a layer in order.
    ("engine/tests/layer/mod.rs", "layer"),
    // Files that contain tables of cases.
    ("lang/tests/fragments.rs", "errors_name_the_fragment_file"),
    ("lang/tests/like.rs", "child_expands_like_merged_declaration"),
    ("lang/tests/like.rs", "errors_in_parent_are_reported_at_like"),
];

/// Collects the name and length of each function. A nested function counts as part of the outer function.
fn functions(items: &[syn::Item], found: &mut Vec<(String, usize)>) {
    let mut add = |sig: &syn::Signature, block: &syn::Block| {
        let (first, last) = (
            sig.fn_token.span.start().line,
            block.brace_token.span.close().end().line,
        );
        found.push((sig.ident.to_string(), last - first + 1));
    };
    for item in items {
        match item {
            syn::Item::Fn(f) => add(&f.sig, &f.block),
            syn::Item::Impl(i) => i.items.iter().for_each(|item| {
                if let syn::ImplItem::Fn(f) = item {
                    add(&f.sig, &f.block);
                }
            }),
            syn::Item::Trait(t) => t.items.iter().for_each(|item| {
                if let syn::TraitItem::Fn(f) = item
                    && let Some(block) = &f.default
                {
                    add(&f.sig, block);
                }
            }),
            _ => {}
        }
    }
    for item in items {
        if let syn::Item::Mod(m) = item
            && let Some((_, items)) = &m.content
        {
            functions(items, found);
        }
    }
}

#[test]
fn functions_have_at_most_70_lines() {
    let mut long = Vec::new();
    for path in sources() {
        let text = std::fs::read_to_string(&path).expect("the source is readable");
        // The compiler's tests include files that are not valid Rust.
        let Ok(file) = syn::parse_file(&text) else { continue };
        let mut found = Vec::new();
        functions(&file.items, &mut found);
        long.extend((found.into_iter().filter(|(_, n)| *n > FUNCTION_LINES)).map(|(name, n)| (path.clone(), name, n)));
    }
    let is_known = |path: &Path, name: &str| {
        let known = |(file, function): &&(&str, &str)| path.ends_with(file) && name == *function;
        LONG_FUNCTIONS.iter().any(|row| known(&row))
    };
    let (known, unknown): (Vec<_>, Vec<_>) = long.iter().partition(|(path, name, _)| is_known(path, name));
    assert!(
        unknown.is_empty(),
        "functions of more than {FUNCTION_LINES} lines: {unknown:#?}"
    );
    assert_eq!(
        known.len(),
        LONG_FUNCTIONS.len(),
        "LONG_FUNCTIONS lists a function that is short enough by now"
    );
}

/// Checks that every test file is compiled: cargo ignores files without a `mod` line in `main.rs` or a
/// `[[test]]` entry.
#[test]
fn test_files_are_compiled() {
    for package in ["tests", "engine", "llama", "server", "cli"] {
        let directory = root().join(package);
        let read = |path: &str| std::fs::read_to_string(directory.join(path)).expect("the file is readable");
        let (main, manifest) = (read("tests/main.rs"), read("Cargo.toml"));
        for entry in std::fs::read_dir(directory.join("tests"))
            .expect("the directory is readable")
            .flatten()
        {
            let (path, file) = (entry.path(), entry.file_name().into_string().expect("UTF-8"));
            let name = file.trim_end_matches(".rs");
            let is_test = name != "main" && (file.ends_with(".rs") || path.join("main.rs").is_file());
            let lines = [format!("mod {name};"), format!("#[path = \"{name}/main.rs\"]")];
            let is_module = lines.iter().any(|line| main.lines().any(|l| l == line));
            let is_binary = manifest.lines().any(|l| l == format!("name = \"{name}\""));
            assert!(
                !is_test || is_module || is_binary,
                "{package}/tests/{file} is never run"
            );
        }
    }
}

/// Test binaries of these packages also run on machines with a GPU, where the repository has another path.
#[test]
fn tests_find_their_data_at_run_time() {
    let is_baked_in = |path: &Path| {
        let text = std::fs::read_to_string(path).expect("the source is readable");
        text.contains(concat!("env!(\"CARGO_", "MANIFEST_DIR\")"))
    };
    let moves = |path: &&PathBuf| {
        ["tests", "engine", "kernels"]
            .iter()
            .any(|package| path.starts_with(root().join(package)))
    };
    let all = sources();
    let found: Vec<&PathBuf> = all.iter().filter(moves).filter(|path| is_baked_in(path)).collect();
    assert_eq!(found, [&root().join("tests/src/root.rs")]);
}

#[test]
fn sources_have_no_leftover_markers() {
    // Split in two, so that this file does not match.
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

#[test]
fn conditions_are_not_filters_of_options() {
    // Split in two, so that this file does not match.
    let filter = concat!(".filter(|", "_|");
    for file in sources() {
        let text = std::fs::read_to_string(&file).expect("the source is readable");
        assert!(!text.contains(filter), "{}: {filter}; use `if`", file.display());
    }
}

/// Returns the declarations in `archs/` by file name.
fn architectures() -> BTreeMap<String, String> {
    declarations("archs")
}

/// Returns the text of each declaration in a directory by file name.
fn declarations(directory: &str) -> BTreeMap<String, String> {
    let directory = std::fs::read_dir(root().join(directory)).expect("the directory is readable");
    let files = directory
        .flatten()
        .filter(|f| f.path().extension().is_some_and(|e| e == "rs"));
    let read = |path: PathBuf| std::fs::read_to_string(path).expect("the source is readable");
    files
        .map(|f| (f.file_name().into_string().expect("UTF-8"), read(f.path())))
        .collect()
}

/// Files that may exceed [`BUDGET`], with their maximum number of code lines.
const LARGER: &[(&str, usize)] = &[
    ("qwen4exp.rs", 126),  // hyper-connections, hashed n-gram embeddings, an indexer
    ("hy_v4.rs", 90),      // hyper-connections and an indexer
    ("whisper.rs", 68),    // an encoder with convolutions, and a decoder with cross attention
    ("glm5_next.rs", 100), // delta attention, latent attention with an indexer over pools, hyper-connections
    ("kimi_k3.rs", 82),    // delta attention, latent attention, hyper-connections
    ("deepseek4.rs", 125), // compressed keys with an indexer, low-rank outputs, routing by token, hyper-connections
];

/// Maximum number of code lines of an architecture that [`LARGER`] does not list.
const BUDGET: usize = 65;

/// Returns the number of lines that are neither blank nor comment. `checkpoint` sections are omitted: their length
/// depends on the published names.
fn n_code_lines(text: &str) -> usize {
    let (mut n, mut is_checkpoint) = (0, false);
    for line in text.lines() {
        is_checkpoint |= line.starts_with("    checkpoint ");
        let is_code = !line.trim().is_empty() && !line.trim_start().starts_with("//");
        n += usize::from(is_code && !is_checkpoint);
        is_checkpoint &= !line.starts_with("    }");
    }
    n
}

/// Checks the number of code lines of each architecture.
#[test]
fn architectures_fit_their_line_budget() {
    let mut lines: Vec<(usize, String)> = architectures()
        .into_iter()
        .map(|(file, text)| (n_code_lines(&text), file))
        .collect();
    lines.sort();
    let median = lines[lines.len() / 2].0;
    println!("{} files, code lines: median {median}; {lines:?}", lines.len());
    assert!(median <= 33, "the median is {median}");
    let tight = [("qwen3.rs", 45), ("qwen3moe.rs", 60), ("llama.rs", 60)];
    for (n, file) in &lines {
        let known = tight.iter().chain(LARGER).find(|(name, _)| name == file);
        let budget = known.map_or(BUDGET, |(_, budget)| *budget);
        assert!(*n <= budget, "{file} has {n} code lines, its budget is {budget}");
    }
}

/// Returns the lines of code to compare, without comments, column alignment, and lone punctuation. Words that
/// open a block in every declaration are omitted.
fn compared_lines(text: &str) -> Vec<(usize, String)> {
    const OPENING: [&str; 8] = [
        "arch_macros::arch! {",
        "hparams {",
        "tensors {",
        "layer {",
        "graph {",
        "for layer {",
        "test {",
        "} else {",
    ];
    let code = |(i, line): (usize, &str)| {
        let line = line.split("//").next().unwrap_or_default();
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        (i + 1, line)
    };
    let counts =
        |(_, line): &(usize, String)| line.contains(char::is_alphanumeric) && !OPENING.contains(&line.as_str());
    text.lines().enumerate().map(code).filter(counts).collect()
}

/// Returns the root of the chain of `like:` parents of a declaration, or the declaration's own name.
fn family<'a>(name: &'a str, parents: &BTreeMap<&'a str, &'a str>) -> &'a str {
    parents.get(name).map_or(name, |parent| family(parent, parents))
}

/// Returns the first string literal of the first line that starts with `word`.
fn string_after<'a>(source: &'a str, word: &str) -> Option<&'a str> {
    source
        .lines()
        .find_map(|l| l.trim().strip_prefix(word)?.split('"').nth(1))
}

/// Checks that no six consecutive lines occur in two files, unless one file is `like` the other. Shared lines
/// belong in a fragment.
#[test]
fn unrelated_architectures_share_no_run_of_six_lines() {
    const RUN: usize = 6;
    let files = architectures();
    let name = |text| string_after(text, "name:").expect("a declaration has a name");
    let parents: BTreeMap<&str, &str> = files
        .values()
        .filter_map(|text| Some((name(text), string_after(text, "like:")?)))
        .collect();
    let mut runs: BTreeMap<Vec<String>, Vec<(&str, &str, usize)>> = BTreeMap::new();
    for (file, text) in &files {
        let lines = compared_lines(text);
        for run in lines.windows(RUN) {
            let key = run.iter().map(|(_, line)| line.clone()).collect();
            let locations = runs.entry(key).or_default();
            locations.push((family(name(text), &parents), file, run[0].0));
        }
    }
    let shared: Vec<String> = runs
        .values()
        .filter(|locations| locations.iter().any(|p| p.0 != locations[0].0))
        .map(|locations| {
            locations
                .iter()
                .map(|(_, file, line)| format!("{file}:{line} "))
                .collect()
        })
        .collect();
    println!("{} files, {} shared runs", files.len(), shared.len());
    assert!(shared.is_empty(), "{shared:#?}");
}
