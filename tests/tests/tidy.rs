//! Tidiness: documents in step with the registries, sizes of files, nothing left open.
//!
//! `LLAMA_UPDATE=1 cargo test -p llama-tests --test all tidy` rewrites the generated parts of the documents.

use std::collections::BTreeMap;
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

/// The fragments as a table: name, functions, the first lines of the file.
fn fragments() -> String {
    let mut table = String::from("| fragment | gives | needs | what it is |\n|---|---|---|---|\n");
    for (file, text) in declarations("archs/fragments") {
        let about: Vec<&str> = text.lines().map_while(|l| l.strip_prefix("//! ")).collect();
        let functions = text
            .lines()
            .filter_map(|l| l.trim().strip_prefix("fn ")?.strip_suffix(" {"));
        let gives: Vec<String> = functions.map(|f| format!("`{f}`")).collect();
        let needs: Vec<&str> = text
            .lines()
            .filter_map(|l| l.trim().strip_prefix("needs(")?.strip_suffix(");"))
            .collect();
        let needs = needs.iter().map(|n| format!("`{n}`")).collect::<String>();
        let name = file.trim_end_matches(".rs");
        assert!(!about.is_empty(), "{file} says what it is");
        table += &format!("| `{name}` | {} | {needs} | {} |\n", gives.join(", "), about.join(" "));
    }
    table
}

#[test]
fn documents_are_in_step_with_the_registries() {
    check_part("CONTRIBUTING.md", "operations", &arch_lang::ops::reference());
    check_part("CONTRIBUTING.md", "fragments", &fragments());
    // The table of models is checked beside the command that prints it, in cli/tests.
    let readme = std::fs::read_to_string(root().join("README.md")).expect("the document is readable");
    let count = format!("[{} architectures](docs/architectures.md)", archs::ALL.len());
    assert!(readme.contains(&count), "README.md: there are `{count}`");
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

/// Most lines of a function, its signature included.
const FUNCTION_LINES: usize = 70;

/// Functions that may be longer, and why.
const LONG_FUNCTIONS: &[(&str, &str)] = &[
    // Each op of a layer in its order.
    ("engine/tests/layer/mod.rs", "layer"),
    // Tables of cases.
    ("lang/tests/fragments.rs", "faults_name_the_fragment"),
    ("lang/tests/like.rs", "children_are_their_parents_with_the_differences"),
    ("lang/tests/like.rs", "faults_stand_under_the_childs_tokens"),
];

/// Name and length of each function. Those within another one count as part of it.
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
fn functions_fit_a_screen() {
    let mut long = Vec::new();
    for path in sources() {
        let text = std::fs::read_to_string(&path).expect("the source is readable");
        // The compiler's tests hold files that are no Rust.
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
        "one of LONG_FUNCTIONS is long no more"
    );
}

/// Test files are not found by cargo where they share a binary: each needs a line in `main.rs` or a `[[test]]` of its own.
#[test]
fn every_test_file_belongs_to_a_binary() {
    for package in ["tests", "engine", "server", "cli"] {
        let folder = root().join(package);
        let read = |path: &str| std::fs::read_to_string(folder.join(path)).expect("the file is readable");
        let (main, manifest) = (read("tests/main.rs"), read("Cargo.toml"));
        for entry in std::fs::read_dir(folder.join("tests"))
            .expect("the folder is readable")
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

/// The files of `archs/` by name, with their text.
fn architectures() -> BTreeMap<String, String> {
    declarations("archs")
}

/// The declarations in a folder by the name of their file, with their text.
fn declarations(folder: &str) -> BTreeMap<String, String> {
    let folder = std::fs::read_dir(root().join(folder)).expect("the folder is readable");
    let files = folder
        .flatten()
        .filter(|f| f.path().extension().is_some_and(|e| e == "rs"));
    let read = |path: PathBuf| std::fs::read_to_string(path).expect("the source is readable");
    files
        .map(|f| (f.file_name().into_string().expect("UTF-8"), read(f.path())))
        .collect()
}

/// Code lines that a file may have beyond [`BUDGET`], and why.
const LARGER: &[(&str, usize)] = &[
    ("qwen4exp.rs", 126),  // hyper-connections, embeddings of hashed runs, an indexer
    ("hy_v4.rs", 90),      // hyper-connections and an indexer
    ("glm5_next.rs", 100), // delta attention, latent attention with an indexer over pools, and hyper-connections
    ("kimi_k3.rs", 82),    // delta attention, latent attention and hyper-connections
    ("deepseek4.rs", 125), // compressed keys and their indexer, low-rank outputs, routing by token, hyper-connections
];

/// Most code lines of any other architecture.
const BUDGET: usize = 65;

/// Code lines of each architecture: neither blank nor comment.
#[test]
fn architecture_files_are_short() {
    let is_code = |l: &&str| !l.trim().is_empty() && !l.trim_start().starts_with("//");
    let mut lines: Vec<(usize, String)> = architectures()
        .into_iter()
        .map(|(file, text)| (text.lines().filter(is_code).count(), file))
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

/// Lines of code as they are compared: without comments, columns and lone punctuation, and without the words that open a block in
/// every declaration.
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

/// What a declaration is `like` in the end, or itself.
fn family<'a>(name: &'a str, parents: &BTreeMap<&'a str, &'a str>) -> &'a str {
    parents.get(name).map_or(name, |parent| family(parent, parents))
}

/// The string of the first line that begins with `word`.
fn said<'a>(source: &'a str, word: &str) -> Option<&'a str> {
    source
        .lines()
        .find_map(|l| l.trim().strip_prefix(word)?.split('"').nth(1))
}

/// Six lines in a row that stand in two files belong into a fragment, unless the one is `like` the other.
#[test]
fn unrelated_architectures_share_no_six_lines() {
    const RUN: usize = 6;
    let files = architectures();
    let name = |text| said(text, "name:").expect("a declaration has a name");
    let parents: BTreeMap<&str, &str> = files
        .values()
        .filter_map(|text| Some((name(text), said(text, "like:")?)))
        .collect();
    let mut runs: BTreeMap<Vec<String>, Vec<(&str, &str, usize)>> = BTreeMap::new();
    for (file, text) in &files {
        let lines = compared_lines(text);
        for run in lines.windows(RUN) {
            let texts = run.iter().map(|(_, line)| line.clone()).collect();
            let places = runs.entry(texts).or_default();
            places.push((family(name(text), &parents), file, run[0].0));
        }
    }
    let shared: Vec<String> = runs
        .values()
        .filter(|places| places.iter().any(|p| p.0 != places[0].0))
        .map(|places| places.iter().map(|(_, file, line)| format!("{file}:{line} ")).collect())
        .collect();
    println!("{} files, {} shared runs", files.len(), shared.len());
    assert!(shared.is_empty(), "{shared:#?}");
}
