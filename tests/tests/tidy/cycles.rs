//! Import cycles between the files of a crate.
//!
//! A file depends on the files that define the items it names: paths are resolved through re-exports. A declaration
//! `mod` and a re-export `pub use` are not dependencies. The use of a module's own children is not a dependency
//! either: children may use the types of the parent that assembles them.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree, token_stream};

use super::{root, sources};

/// Cycles that are left, each as the list of its files. Entries may be removed, not added.
const ALLOWED: [&[&str]; 0] = [];

/// Keywords before the name of an item.
const ITEMS: [&str; 9] = [
    "struct",
    "enum",
    "union",
    "trait",
    "fn",
    "type",
    "const",
    "static",
    "macro_rules",
];

type Segments = Vec<String>;
type Tokens = Peekable<token_stream::IntoIter>;

/// A module of a crate.
#[derive(Default)]
struct Module {
    /// Source file, from the top of the repository.
    file: String,
    /// Names of the items that the module defines.
    items: BTreeSet<String>,
    /// Paths of the names that the module imports, private imports included: a child sees them by `super::`.
    imports: BTreeMap<String, Segments>,
    /// Paths of the modules from which the module imports everything.
    globs: Vec<Segments>,
    /// Paths that the module names, re-exports excluded.
    uses: BTreeSet<Segments>,
}

/// The modules of a crate by path; the empty path is the root.
#[derive(Default)]
pub(super) struct Crate {
    modules: BTreeMap<Segments, Module>,
}

/// Returns the path of a source's module within its crate, or `None` for tests.
fn module_path(in_src: &Path) -> Option<Segments> {
    let mut path: Segments = in_src
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if path.iter().any(|part| part == "tests" || part == "bin") {
        return None;
    }
    let last = path.pop()?;
    let is_root = path.is_empty() && (last == "lib" || last == "main");
    if !is_root && last != "mod" {
        path.push(last);
    }
    Some(path)
}

fn ident(token: Option<&TokenTree>) -> Option<String> {
    match token {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

fn is_punct(token: Option<&TokenTree>, mark: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
}

/// Consumes `::`, if the next tokens are these.
fn path_separator(tokens: &mut Tokens) -> bool {
    let mut ahead = tokens.clone();
    if is_punct(ahead.next().as_ref(), ':') && is_punct(ahead.next().as_ref(), ':') {
        tokens.nth(1);
        return true;
    }
    false
}

/// Reads the rest of a path after its first segment.
fn path_rest(mut path: Segments, tokens: &mut Tokens) -> Segments {
    while path_separator(tokens) {
        let Some(segment) = ident(tokens.peek()) else { break };
        path.push(segment);
        tokens.next();
    }
    path
}

/// Skips an item: everything up to its braces or semicolon.
fn skip_item(tokens: &mut Tokens) {
    for token in tokens {
        match &token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => return,
            TokenTree::Punct(punct) if punct.as_char() == ';' => return,
            _ => {}
        }
    }
}

/// Flattens a tree of `use` into pairs of name and path; a glob has the name `*`.
fn use_tree(prefix: &Segments, tokens: &mut Tokens, found: &mut Vec<(String, Segments)>) {
    let mut path = prefix.clone();
    loop {
        match tokens.peek() {
            Some(TokenTree::Ident(_)) => path.push(ident(tokens.next().as_ref()).expect("peeked")),
            Some(TokenTree::Punct(mark)) if mark.as_char() == '*' => {
                tokens.next();
                found.push(("*".to_owned(), path));
                return;
            }
            Some(TokenTree::Group(group)) => {
                let mut inner = group.stream().into_iter().peekable();
                while inner.peek().is_some() {
                    use_tree(&path, &mut inner, found);
                    if is_punct(inner.peek(), ',') {
                        inner.next();
                    }
                }
                tokens.next();
                return;
            }
            _ => return,
        }
        if !path_separator(tokens) {
            break;
        }
    }
    if path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let mut name = path.last().cloned().unwrap_or_default();
    if ident(tokens.peek()).is_some_and(|word| word == "as") {
        tokens.next();
        name = ident(tokens.next().as_ref()).unwrap_or(name);
    }
    found.push((name, path));
}

impl Crate {
    /// Returns a path from the root of the crate, or `None` for paths of other crates.
    fn absolute(&self, module: &Segments, path: &[String]) -> Option<Segments> {
        let mut base = module.clone();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|segment| segment == "super") {
                    base.pop()?;
                    rest = &rest[1..];
                }
            }
            child => {
                base.push(child.to_owned());
                let is_child = self.modules.contains_key(&base);
                base.pop();
                if !is_child {
                    return None;
                }
            }
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    /// Records the items, imports, and paths of a stream of tokens of a module.
    fn scan(&mut self, module: &Segments, stream: TokenStream) {
        let mut tokens = stream.into_iter().peekable();
        let mut is_public = false;
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == '#' => {
                    let attribute = tokens.peek().map(ToString::to_string).unwrap_or_default();
                    tokens.next();
                    if attribute.replace(' ', "") == "[cfg(test)]" {
                        skip_item(&mut tokens);
                    }
                }
                TokenTree::Ident(word) => {
                    let word = word.to_string();
                    if word == "pub" {
                        is_public = true;
                        if matches!(tokens.peek(), Some(TokenTree::Group(_))) {
                            tokens.next();
                        }
                        continue;
                    }
                    self.word(module, word, is_public, &mut tokens);
                    is_public = false;
                }
                TokenTree::Group(group) => self.scan(module, group.stream()),
                _ => {}
            }
        }
    }

    /// Records the meaning of an identifier and of the tokens that belong to the identifier.
    fn word(&mut self, module: &Segments, word: String, is_public: bool, tokens: &mut Tokens) {
        match word.as_str() {
            "use" => {
                let mut found = Vec::new();
                use_tree(&Segments::new(), tokens, &mut found);
                for (name, path) in found {
                    self.import(module, name, &path, is_public);
                }
            }
            "mod" => {
                let Some(name) = ident(tokens.next().as_ref()) else {
                    return;
                };
                if let Some(TokenTree::Group(body)) = tokens.peek() {
                    let mut inner = module.clone();
                    inner.push(name);
                    let file = self.modules[module].file.clone();
                    self.modules.entry(inner.clone()).or_default().file = file;
                    let body = body.stream();
                    tokens.next();
                    self.scan(&inner, body);
                }
            }
            item if ITEMS.contains(&item) => {
                if item == "macro_rules" {
                    tokens.next();
                }
                if let Some(name) = ident(tokens.peek()) {
                    self.modules
                        .get_mut(module)
                        .expect("a module of the crate")
                        .items
                        .insert(name);
                }
            }
            _ => {
                let path = path_rest(vec![word], tokens);
                if path.len() > 1
                    && let Some(path) = self.absolute(module, &path)
                {
                    self.modules
                        .get_mut(module)
                        .expect("a module of the crate")
                        .uses
                        .insert(path);
                }
            }
        }
    }

    fn import(&mut self, module: &Segments, name: String, path: &[String], is_public: bool) {
        let Some(path) = self.absolute(module, path) else {
            return;
        };
        let module = self.modules.get_mut(module).expect("a module of the crate");
        if !is_public {
            module.uses.insert(path.clone());
        }
        if name == "*" {
            module.globs.push(path);
        } else {
            module.imports.insert(name, path);
        }
    }

    /// Returns the file that defines the first item on a path, or `None` for a path that only names a module.
    fn file_of(&self, path: &[String], depth: usize) -> Option<&str> {
        let mut at = Segments::new();
        for (i, segment) in path.iter().enumerate() {
            let module = &self.modules[&at];
            at.push(segment.clone());
            if self.modules.contains_key(&at) {
                continue;
            }
            if module.items.contains(segment) {
                return Some(&module.file);
            }
            // Imports can be circular, which is allowed.
            if depth == 0 {
                return None;
            }
            let through = |target: &Segments| {
                let mut whole = target.clone();
                whole.extend_from_slice(&path[i + 1..]);
                self.file_of(&whole, depth - 1)
            };
            if let Some(target) = module.imports.get(segment) {
                return through(target);
            }
            return module.globs.iter().find_map(|glob| {
                let mut target = glob.clone();
                target.push(segment.clone());
                through(&target)
            });
        }
        None
    }

    /// Returns, for every file, the other files that define items named in the file.
    pub(super) fn dependencies(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (path, module) in &self.modules {
            let entry = files.entry(&module.file).or_default();
            for used in module
                .uses
                .iter()
                .filter(|used| !used.starts_with(path) || path.is_empty())
            {
                entry.extend(self.file_of(used, 8).filter(|file| *file != module.file));
            }
        }
        files
    }
}

/// Returns the files that a file depends on, directly or through others.
fn reachable<'a>(from: &'a str, files: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut next = vec![from];
    while let Some(file) = next.pop() {
        for &other in &files[file] {
            if seen.insert(other) {
                next.push(other);
            }
        }
    }
    seen
}

/// Returns the sets of files that depend on each other.
fn cycles<'a>(files: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<Vec<&'a str>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = files.keys().map(|&file| (file, reachable(file, files))).collect();
    let mut cycles = BTreeSet::new();
    for (file, others) in &reach {
        if others.contains(file) {
            cycles.insert(others.iter().copied().filter(|o| reach[o].contains(file)).collect());
        }
    }
    cycles
}

/// Reads the modules of every crate of the workspace.
pub(super) fn crates() -> BTreeMap<String, Crate> {
    let mut crates: BTreeMap<String, Crate> = BTreeMap::new();
    let mut texts = Vec::new();
    for path in sources() {
        let file = path
            .strip_prefix(root())
            .expect("the source is in the workspace")
            .to_string_lossy()
            .into_owned();
        let Some((package, in_src)) = file.split_once("/src/") else {
            continue;
        };
        let Some(module) = module_path(Path::new(in_src)) else {
            continue;
        };
        let package = package.to_owned();
        let modules = &mut crates.entry(package.clone()).or_default().modules;
        modules.entry(module.clone()).or_default().file.clone_from(&file);
        texts.push((
            package,
            module,
            std::fs::read_to_string(&path).expect("the source is readable"),
        ));
    }
    for (package, module, text) in texts {
        let of_crate = crates.get_mut(&package).expect("entered above");
        // A directory without a module file has no imports.
        for end in 0..module.len() {
            of_crate.modules.entry(module[..end].to_vec()).or_default();
        }
        of_crate.scan(&module, text.parse().expect("the source is Rust"));
    }
    crates
}

#[test]
fn files_of_a_crate_do_not_import_each_other_in_cycles() {
    let crates = crates();
    let graphs: Vec<_> = crates.values().map(Crate::dependencies).collect();
    let edges: usize = graphs.iter().flat_map(BTreeMap::values).map(BTreeSet::len).sum();
    assert!(edges > 1000, "the walk found only {edges} imports");
    let found: BTreeSet<Vec<&str>> = graphs.iter().flat_map(cycles).collect();
    let allowed: BTreeSet<Vec<&str>> = ALLOWED.iter().map(|cycle| cycle.to_vec()).collect();
    let mut message = String::new();
    for cycle in found.difference(&allowed) {
        message += &format!("cycle of {} files:\n", cycle.len());
        for graph in &graphs {
            for (file, others) in graph.iter().filter(|(file, _)| cycle.contains(file)) {
                let within: Vec<_> = others.iter().filter(|other| cycle.contains(other)).collect();
                message += &format!("  {file} -> {within:?}\n");
            }
        }
    }
    for cycle in allowed.difference(&found) {
        message += &format!("remove from ALLOWED: {cycle:?}\n");
    }
    assert!(message.is_empty(), "{message}");
}

#[test]
fn cycles_through_reexports_and_nested_imports_are_found() {
    let mut made = Crate::default();
    for (module, file) in [
        (vec![], "lib.rs"),
        (vec!["a"], "a.rs"),
        (vec!["b"], "b/mod.rs"),
        (vec!["b", "c"], "b/c.rs"),
    ] {
        let module = module.into_iter().map(str::to_owned).collect();
        made.modules.entry(module).or_default().file = file.to_owned();
    }
    let path = |text: &str| text.split_terminator("::").map(str::to_owned).collect::<Segments>();
    let scan = |made: &mut Crate, module: &str, text: &str| made.scan(&path(module), text.parse().unwrap());
    scan(&mut made, "", "mod a; mod b;");
    scan(
        &mut made,
        "a",
        "use crate::{b::{C, self}, other}; pub struct A(C); #[cfg(test)] mod tests { use crate::b::B; }",
    );
    scan(&mut made, "b", "mod c; pub use c::C; pub struct B;");
    scan(
        &mut made,
        "b::c",
        "pub struct C; fn f() -> super::super::a::A { loop {} }",
    );
    let files = made.dependencies();
    assert_eq!(files["a.rs"], BTreeSet::from(["b/c.rs"]));
    assert_eq!(files["b/c.rs"], BTreeSet::from(["a.rs"]));
    assert_eq!(files["b/mod.rs"], BTreeSet::new());
    assert_eq!(cycles(&files), BTreeSet::from([vec!["a.rs", "b/c.rs"]]));
}
