//! Module layers of the compiler: no module uses a module of a later layer.

use std::path::Path;

/// Modules, lowest layer first. A directory with a module's name belongs to the module.
const LAYERS: [&str; 27] = [
    "braces", "words", "names", "spans", "source", "diag", "format", "ast", "parse", "library", "builtins", "sym",
    "ops", "paths", "model", "options", "limits", "forward", "merge", "fragment", "inherit", "check", "lint", "flow",
    "codegen", "report", "lib",
];

/// Returns the modules that a file refers to by `crate::`.
fn named(text: &str) -> Vec<String> {
    let code = text.lines().filter(|l| !l.trim_start().starts_with("//"));
    let names = code.flat_map(|l| {
        l.split("crate::")
            .skip(1)
            .map(|rest| rest.to_owned())
            .collect::<Vec<_>>()
    });
    let mut modules = Vec::new();
    for rest in names {
        let words = rest.trim_start_matches('{');
        let all = if rest.starts_with('{') {
            words.split(", ").collect()
        } else {
            vec![words]
        };
        for word in all {
            let end = word
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(word.len());
            modules.push(word[..end].to_owned());
        }
    }
    modules
}

#[test]
fn modules_do_not_use_later_layers() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    for (folder, module) in std::iter::once((src.clone(), None)).chain(LAYERS.map(|m| (src.join(m), Some(m)))) {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let own = module.map_or_else(|| path.file_stem().unwrap().to_str().unwrap().to_owned(), str::to_owned);
                files.push((own, path));
            }
        }
    }
    assert!(files.len() > 25, "{files:?}");
    let layer = |name: &str| LAYERS.iter().position(|l| *l == name);
    let mut seen = 0;
    for (own, path) in files {
        let at = layer(&own).unwrap_or_else(|| panic!("{own} has no layer"));
        for name in named(&std::fs::read_to_string(&path).unwrap()) {
            // Items defined in `lib` belong to the last layer.
            let other = layer(&name).unwrap_or(LAYERS.len() - 1);
            assert!(other <= at, "{} uses {name}, which is in a later layer", path.display());
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen} names");
}
