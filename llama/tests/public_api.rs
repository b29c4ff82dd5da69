//! A snapshot of the public interface: every exported item in `public_api.txt`.
//!
//! `LLAMA_UPDATE=1 cargo test -p llama --test all public_api` records a deliberate change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::{Attribute, Fields, ImplItem, Item, ItemImpl, Signature, UseTree, Visibility};

fn directory() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Items of a module by path, such as `hub::cache`; the path of the crate root is empty.
type Modules = BTreeMap<String, Vec<Item>>;

/// Parses a file and the files of its modules.
fn parse(path: &str, directory: &Path, file: &Path, modules: &mut Modules) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display()));
    let items = syn::parse_file(&text).expect("the source is valid Rust").items;
    for item in &items {
        let Item::Mod(module) = item else { continue };
        if module.content.is_some() || is_test(&module.attrs) {
            continue;
        }
        let name = module.ident.to_string();
        let nested = directory.join(&name);
        let files = [directory.join(format!("{name}.rs")), nested.join("mod.rs")];
        let file: &PathBuf = files.iter().find(|file| file.exists()).expect("the module has a file");
        let path = if path.is_empty() {
            name
        } else {
            format!("{path}::{name}")
        };
        parse(&path, &nested, file, modules);
    }
    modules.insert(path.to_owned(), items);
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .any(|a| a.to_token_stream().to_string().contains("test"))
}

/// Names that a `pub use` exports, each with the module that defines the item.
fn exported(tree: &UseTree, module: &str, found: &mut Vec<(String, String)>) {
    match tree {
        UseTree::Path(path) => {
            let name = path.ident.to_string();
            let module = match (name.as_str(), module) {
                ("crate" | "self", _) => String::new(),
                (_, "") => name,
                (_, module) => format!("{module}::{name}"),
            };
            exported(&path.tree, &module, found);
        }
        UseTree::Name(name) => found.push((module.to_owned(), name.ident.to_string())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| exported(tree, module, found)),
        UseTree::Rename(_) | UseTree::Glob(_) => panic!("public exports have neither `as` nor `*`"),
    }
}

/// Formats tokens on one line.
fn line(tokens: impl ToTokens) -> String {
    let item = format!("{} {{}}", tokens.to_token_stream());
    let text = match syn::parse_str::<syn::File>(&item) {
        Ok(file) => prettyplease::unparse(&file),
        Err(_) => tokens.to_token_stream().to_string(),
    };
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.trim_end_matches("{}")
        .trim()
        .replace("( ", "(")
        .replace(", )", ")")
        .replace(" )", ")")
}

/// Formats a type without spaces, except after lifetimes.
fn compact(tokens: impl ToTokens) -> String {
    let text = tokens.to_token_stream().to_string();
    let mut words = text.split(' ').peekable();
    let mut joined = String::new();
    while let Some(word) = words.next() {
        joined += word;
        let is_followed = words.peek().is_some_and(|next| next.starts_with(char::is_alphanumeric));
        if word.starts_with('\'') && is_followed {
            joined.push(' ');
        }
    }
    joined
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

fn signature(signature: &Signature) -> String {
    let mut signature = signature.clone();
    for input in &mut signature.inputs {
        match input {
            syn::FnArg::Typed(typed) => {
                if let syn::Pat::Ident(ident) = &mut *typed.pat {
                    ident.mutability = None;
                }
            }
            syn::FnArg::Receiver(_) => {}
        }
    }
    line(signature).replace("(mut self", "(self")
}

/// Adds the public fields of a struct or variant. Returns whether there are private fields.
fn fields(fields: &Fields, owner: &str, is_variant: bool, lines: &mut Vec<String>) {
    for (i, field) in fields.iter().enumerate() {
        if is_variant || is_public(&field.vis) {
            let name = field.ident.as_ref().map_or_else(|| i.to_string(), ToString::to_string);
            lines.push(format!("{owner}.{name}: {}", compact(&field.ty)));
        }
    }
}

/// Adds the lines of an item and of its inherent methods and trait implementations, which may be in any module.
fn describe(path: &str, name: &str, items: &[Item], modules: &Modules, lines: &mut Vec<String>) {
    let start = lines.len();
    for item in items {
        match item {
            Item::Struct(s) if s.ident == name => {
                lines.push(format!("{path}: struct{}", compact(&s.generics)));
                fields(&s.fields, path, false, lines);
            }
            Item::Enum(e) if e.ident == name => {
                lines.push(format!("{path}: enum"));
                for variant in &e.variants {
                    let variant_path = format!("{path}::{}", variant.ident);
                    lines.push(variant_path.clone());
                    fields(&variant.fields, &variant_path, true, lines);
                }
            }
            Item::Type(t) if t.ident == name => lines.push(format!("{path}: type = {}", compact(&t.ty))),
            Item::Const(c) if c.ident == name => lines.push(format!("{path}: const {}", compact(&c.ty))),
            Item::Fn(f) if f.sig.ident == name => lines.push(format!("{path}: {}", signature(&f.sig))),
            _ => {}
        }
    }
    assert!(
        lines.len() > start || name == "SHORT_NAMES",
        "{path} is not defined where it is exported from"
    );
    let of_type = |i: &&ItemImpl| {
        let ty = i.self_ty.to_token_stream().to_string();
        ty.split([' ', '<']).next() == Some(name)
    };
    let impls = modules.values().flatten().filter_map(|item| match item {
        Item::Impl(i) => Some(i),
        _ => None,
    });
    for block in impls.filter(of_type) {
        let ty = compact(&block.self_ty);
        if let Some((of, _)) = &block.trait_ {
            lines.push(format!("{path}: impl {} for {ty}", compact(of)));
            continue;
        }
        for item in &block.items {
            if let ImplItem::Fn(f) = item
                && is_public(&f.vis)
            {
                let path = if ty == name || ty.ends_with("<T>") || ty.ends_with("'_>") || ty.ends_with("'a>") {
                    path.to_owned()
                } else {
                    path.replace(name, &ty)
                };
                lines.push(format!("{path}::{}: {}", f.sig.ident, signature(&f.sig)));
            }
        }
    }
}

/// Lists the items that a public module exports, and those of its public modules.
fn list(path: &str, name: &str, modules: &Modules, lines: &mut Vec<String>) {
    for item in &modules[path] {
        match item {
            Item::Use(u) if is_public(&u.vis) => {
                let mut found = Vec::new();
                exported(&u.tree, "", &mut found);
                for (module, item) in found {
                    let full = format!("{name}::{item}");
                    let relative = match path {
                        "" => module.clone(),
                        path => format!("{path}::{module}"),
                    };
                    match modules.get(&relative).or_else(|| modules.get(&module)) {
                        Some(items) if !module.is_empty() => describe(&full, &item, items, modules, lines),
                        _ => lines.push(format!("{full}: re-export of {module}::{item}")),
                    }
                }
            }
            Item::Mod(m) if is_public(&m.vis) => {
                let nested = if path.is_empty() {
                    m.ident.to_string()
                } else {
                    format!("{path}::{}", m.ident)
                };
                // The module `parts` is unstable.
                if nested != "parts" {
                    list(&nested, &format!("{name}::{}", m.ident), modules, lines);
                }
            }
            Item::Fn(f) if is_public(&f.vis) => {
                lines.push(format!("{name}::{}: {}", f.sig.ident, signature(&f.sig)));
            }
            Item::Struct(s) if is_public(&s.vis) => {
                describe(
                    &format!("{name}::{}", s.ident),
                    &s.ident.to_string(),
                    &modules[path],
                    modules,
                    lines,
                );
            }
            _ => {}
        }
    }
}

#[test]
fn public_interface_matches_the_snapshot() {
    let source = directory().join("src");
    let mut modules = Modules::new();
    parse("", &source, &source.join("lib.rs"), &mut modules);
    let mut lines = Vec::new();
    list("", "llama", &modules, &mut lines);
    lines.sort();
    let found = lines.join("\n") + "\n";
    let file = directory().join("tests/public_api.txt");
    if std::env::var_os("LLAMA_UPDATE").is_some() {
        std::fs::write(&file, &found).expect("the snapshot is writable");
    }
    let recorded = std::fs::read_to_string(&file).unwrap_or_default();
    let missing: Vec<_> = recorded
        .lines()
        .filter(|line| !lines.iter().any(|l| l == line))
        .collect();
    let new: Vec<_> = lines
        .iter()
        .filter(|line| !recorded.lines().any(|l| l == *line))
        .collect();
    assert!(
        missing.is_empty() && new.is_empty(),
        "the public interface has changed; if that is intended, run the test with LLAMA_UPDATE=1\nremoved: {missing:#?}\nadded: {new:#?}"
    );
}
