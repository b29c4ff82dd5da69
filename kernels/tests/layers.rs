//! Layers of the crate, as listed in `src/lib.rs`: no module uses a later layer, and no two files use each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Path of a module below the crate, for example `["simd", "x86_64", "avx2"]`. The crate itself is empty.
type Module = Vec<String>;

/// A use of `name` in a module.
struct Use {
    module: Module,
    name: Option<String>,
    /// True for `pub use`, which hands a name on.
    is_reexport: bool,
}

/// Returns all modules that have a file of their own, except tests.
fn modules() -> BTreeMap<Module, PathBuf> {
    fn visit(directory: &Path, parent: &Module, found: &mut BTreeMap<Module, PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
            if stem == "tests" {
                continue;
            }
            let mut module = parent.clone();
            if path.is_dir() {
                module.push(stem);
                visit(&path, &module, found);
            } else {
                if stem != "mod" && stem != "lib" {
                    module.push(stem);
                }
                found.insert(module, path);
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &Vec::new(),
        &mut found,
    );
    found
}

/// Splits code into identifiers, `::`, and single characters, without comments, literals, and whitespace.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or_default();
        // Literals on a single line; a lifetime has no closing quote.
        let code: String = code.split('"').step_by(2).collect::<Vec<_>>().join(" ");
        let mut rest = code.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = if first.is_alphanumeric() || first == '_' {
                rest.find(|c: char| !c.is_alphanumeric() && c != '_')
                    .unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            tokens.push(rest[..length].to_owned());
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

/// Expands the use tree at `tokens[at..]`, for example `a::{b, c::{self, d}}`, to paths. Returns the end.
fn expand(tokens: &[String], mut at: usize, prefix: &[String], paths: &mut Vec<Vec<String>>) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match tokens[at].as_str() {
            "{" => {
                at += 1;
                while tokens[at] != "}" {
                    at = expand(tokens, at, &path, paths);
                    if tokens[at] == "," {
                        at += 1;
                    }
                }
                return at + 1;
            }
            "::" => at += 1,
            "as" => at += 2,
            "," | ";" | "}" => {
                if path.last().is_some_and(|name| name == "self") && path.len() > 1 {
                    path.pop();
                }
                paths.push(path);
                return at;
            }
            name => {
                path.push(name.to_owned());
                at += 1;
            }
        }
    }
}

/// Returns the module that `path` leads to and the name in that module, or `None` for a path of another crate
/// or a local name. `scope` is the module with the inline modules around the path.
fn resolve(path: &[String], scope: &[String], modules: &BTreeMap<Module, PathBuf>) -> Option<(Module, Option<String>)> {
    let mut module = scope.to_vec();
    let mut rest = path;
    match path[0].as_str() {
        "crate" => (module, rest) = (Vec::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                module.pop();
                rest = &rest[1..];
            }
        }
        child => {
            let child = [scope, &[child.to_owned()]].concat();
            if !modules.contains_key(&child) {
                return None;
            }
        }
    }
    while let Some(name) = rest.first() {
        let child = [module.as_slice(), &[name.clone()]].concat();
        if !modules.contains_key(&child) {
            break;
        }
        (module, rest) = (child, &rest[1..]);
    }
    // An inline module is a part of its file.
    while !modules.contains_key(&module) {
        module.pop();
    }
    Some((module, rest.first().cloned()))
}

/// Returns true if the brace at `at` follows `mod name`, or `mod $name` in a macro.
fn is_inline_module(tokens: &[String], at: usize) -> bool {
    match &tokens[at.saturating_sub(3)..at] {
        [.., keyword, _] if keyword == "mod" => true,
        [keyword, variable, _] => keyword == "mod" && variable == "$",
        _ => false,
    }
}

/// Returns the uses of other modules in the code of `module`.
fn uses(module: &Module, code: &str, modules: &BTreeMap<Module, PathBuf>) -> Vec<Use> {
    let tokens = tokens(code);
    let is = |at: usize, token: &str| tokens.get(at).is_some_and(|t| t == token);
    let mut found = Vec::new();
    let mut scope = module.clone();
    // Whether each open brace belongs to an inline module.
    let mut braces = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let mut paths = Vec::new();
        let mut is_reexport = false;
        let before = at;
        match tokens[at].as_str() {
            "{" => {
                let is_module = is_inline_module(&tokens, at);
                if is_module {
                    scope.push(tokens[at - 1].clone());
                }
                braces.push(is_module);
            }
            "}" => {
                if braces.pop() == Some(true) {
                    scope.pop();
                }
            }
            // Not the `use<..>` of a type.
            "use" if !is(at + 1, "<") => {
                is_reexport = at > 0 && (is(at - 1, "pub") || is(at - 1, ")"));
                at = expand(&tokens, at + 1, &[], &mut paths);
            }
            name if is(at + 1, "::") && name != "::" && name != ">" => {
                let mut path = vec![name.to_owned()];
                while is(at + 1, "::") && tokens.get(at + 2).is_some_and(|t| t.starts_with(char::is_alphabetic)) {
                    path.push(tokens[at + 2].clone());
                    at += 2;
                }
                // `pub(in path)` grants access and uses nothing; a macro variable is not a module.
                let is_variable = before > 0 && is(before - 1, "$") && name != "crate";
                if !is_variable && !(before > 0 && is(before - 1, "in")) {
                    paths.push(path);
                }
            }
            _ => {}
        }
        at = at.max(before) + 1;
        for path in paths {
            if let Some((module, name)) = resolve(&path, &scope, modules) {
                found.push(Use {
                    module,
                    name,
                    is_reexport,
                });
            }
        }
    }
    found
}

/// Returns the modules that each module uses, by way of re-exports to the module that defines a name.
fn graph(modules: &BTreeMap<Module, PathBuf>) -> BTreeMap<Module, BTreeSet<Module>> {
    let uses: BTreeMap<_, _> = modules
        .iter()
        .map(|(module, path)| {
            let code = std::fs::read_to_string(path).unwrap();
            (module.clone(), uses(module, &code, modules))
        })
        .collect();
    let definition = |used: &Use| {
        let mut module = used.module.clone();
        // A chain of re-exports is shorter than this.
        for _ in 0..8 {
            let reexport = uses[&module]
                .iter()
                .find(|other| other.is_reexport && other.name.is_some() && other.name == used.name);
            match reexport {
                Some(reexport) if reexport.module != module => module = reexport.module.clone(),
                _ => break,
            }
        }
        module
    };
    uses.iter()
        .map(|(module, used)| {
            let used = used.iter().filter(|used| !used.is_reexport).map(definition);
            (module.clone(), used.filter(|other| other != module).collect())
        })
        .collect()
}

/// Reads the numbered list in the documentation of the crate: the layer of each module, the lowest first.
fn layers(lib: &str) -> BTreeMap<String, usize> {
    let mut layers = BTreeMap::new();
    for line in lib.lines().filter_map(|line| line.strip_prefix("//! ")) {
        let Some((number, item)) = line.split_once(". ") else {
            continue;
        };
        if let Ok(number) = number.parse() {
            let names = item.split(':').next().unwrap_or_default();
            for name in names.split('`').skip(1).step_by(2) {
                let earlier = layers.insert(name.to_owned(), number);
                assert_eq!(earlier, None, "{name} is in two layers");
            }
        }
    }
    layers
}

#[test]
fn modules_do_not_use_later_layers() {
    let modules = modules();
    let layers = layers(&std::fs::read_to_string(&modules[&Vec::new()]).unwrap());
    let layer = |module: &Module| {
        let name = &module[0];
        layers
            .get(name)
            .unwrap_or_else(|| panic!("{name} has no layer in lib.rs"))
    };
    for name in layers.keys() {
        assert!(modules.contains_key(&vec![name.clone()]), "there is no module {name}");
    }
    let mut n_uses = 0;
    for (module, used) in graph(&modules) {
        for other in used {
            let (from, to) = (module.join("::"), other.join("::"));
            assert!(!other.is_empty(), "{from} uses an item defined in lib.rs");
            if !module.is_empty() && module[0] != other[0] {
                assert!(
                    layer(&other) < layer(&module),
                    "{from} uses {to}, which is not in an earlier layer"
                );
            }
            n_uses += 1;
        }
    }
    assert!(n_uses > 300, "{n_uses} uses");
}

#[test]
fn files_do_not_use_each_other() {
    let mut rest = graph(&modules());
    // Remove modules that use none of the rest or are used by none of the rest, until nothing changes.
    loop {
        let used: BTreeSet<_> = rest.values().flatten().cloned().collect();
        let names: BTreeSet<_> = rest.keys().cloned().collect();
        rest.retain(|module, uses| {
            uses.retain(|other| names.contains(other));
            !uses.is_empty() && used.contains(module)
        });
        if rest.len() == names.len() {
            break;
        }
    }
    let left: Vec<_> = rest.keys().map(|module| module.join("::")).collect();
    assert!(left.is_empty(), "modules that use each other: {left:?}");
}

#[test]
fn paths_are_resolved() {
    let modules: BTreeMap<Module, PathBuf> = ["", "a", "a::b", "a::c", "d"]
        .map(|name| {
            let module = name.split("::").filter(|n| !n.is_empty()).map(str::to_owned).collect();
            (module, PathBuf::new())
        })
        .into_iter()
        .collect();
    let module = vec!["a".to_owned(), "b".to_owned()];
    let of = |code: &str| -> Vec<String> {
        let used = uses(&module, code, &modules);
        used.iter()
            .map(|used| format!("{} {}", used.module.join("::"), used.name.as_deref().unwrap_or("-")))
            .collect()
    };
    assert_eq!(of("use crate::{d::{self, X as Y}, a::c::Z};"), ["d -", "d X", "a::c Z"]);
    assert_eq!(of("use super::c; use self::W; use std::fmt;"), ["a::c -", "a::b W"]);
    assert_eq!(
        of("mod inner { use super::*; } mod $x { use super::d; } pub(in crate::a) fn f() {}"),
        ["a::b *", "a::b d"]
    );
    assert_eq!(of("$crate::d::f(); super::super::d::g::<T>(); $x::y()"), ["d f", "d g"]);
    assert_eq!(of("// crate::d::X\n\"crate::d::X\""), Vec::<String>::new());
}
