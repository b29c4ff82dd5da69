//! Names of a declaration stand in the expansion at their own places, by which editors find definitions and uses.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};

fn archs_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../archs")
}

/// The tokens of a file, with places in it, inside its `arch! { … }`.
fn declaration(name: &str) -> TokenStream {
    let text = std::fs::read_to_string(archs_folder().join(format!("{name}.rs"))).unwrap();
    let tokens = TokenStream::from_str(&text).unwrap();
    arch_lang::parse::macro_tokens(tokens, "arch").unwrap().unwrap()
}

fn idents(tokens: TokenStream, out: &mut Vec<Ident>) {
    for token in tokens {
        match token {
            TokenTree::Group(g) => idents(g.stream(), out),
            TokenTree::Ident(name) => out.push(name),
            _ => {}
        }
    }
}

/// The names in `graph { … }`, without Rust's keywords.
fn names_of_graph(tokens: TokenStream) -> Vec<Ident> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let graph = tokens.windows(2).find_map(|pair| match pair {
        [TokenTree::Ident(word), TokenTree::Group(g)] if word == "graph" && g.delimiter() == Delimiter::Brace => {
            Some(g.stream())
        }
        _ => None,
    });
    let mut names = Vec::new();
    idents(graph.unwrap_or_default(), &mut names);
    let keywords = ["let", "for", "in", "if", "else", "true", "false", "rust", "_"];
    names.retain(|n| !keywords.iter().any(|k| n == k));
    names
}

/// The names of the graph that do not stand in the expansion at their places.
fn lost(name: &str) -> (usize, Vec<Ident>) {
    let tokens = declaration(name);
    let names = names_of_graph(tokens.clone());
    let items = arch_lang::expand_with(tokens, &arch_lang::Folder(archs_folder()));
    let mut found = Vec::new();
    idents(items, &mut found);
    let place = |n: &Ident| {
        let span = n.span();
        (span.file(), span.start().line, span.start().column)
    };
    let places: BTreeSet<_> = found.iter().map(place).collect();
    let n = names.len();
    (n, names.into_iter().filter(|n| !places.contains(&place(n))).collect())
}

#[test]
fn every_name_of_a_graph_stands_in_the_expansion() {
    let (n, lost) = lost("qwen3");
    assert_eq!((n, lost), (55, Vec::new()));
}

/// Names of functions and of what they and operations take by name.
fn names_of_calls() -> BTreeSet<String> {
    let options = arch_lang::ops::OPS.iter().flat_map(|op| op.params);
    let mut names: BTreeSet<String> = options.map(|p| p.name.to_owned()).collect();
    for folder in [archs_folder(), archs_folder().join("fragments")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let Ok(text) = std::fs::read_to_string(entry.unwrap().path()) else {
                continue;
            };
            let heads = text
                .lines()
                .filter_map(|l| l.trim().strip_prefix("fn ")?.split_once(')'));
            for (head, _) in heads {
                let words = head.split(|c: char| !c.is_alphanumeric() && c != '_');
                names.extend(words.map(str::to_owned));
            }
        }
    }
    names
}

/// Functions are inlined: their names and those of their options become nothing, nor do the sizes that a `rust!` states, and `has`
/// itself. All else of every declaration stands at its place.
#[test]
fn little_else_is_lost_than_names_of_functions() {
    let (mut all, mut missing) = (0, BTreeSet::new());
    let mut n_missing = 0;
    let of_calls = names_of_calls();
    for entry in std::fs::read_dir(archs_folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "rs") {
            let (n, mut lost) = lost(path.file_stem().unwrap().to_str().unwrap());
            lost.retain(|name| !of_calls.contains(&name.to_string()));
            all += n;
            n_missing += lost.len();
            missing.extend(lost.iter().map(ToString::to_string));
        }
    }
    assert!(all > 4000 && n_missing * 50 < all, "{n_missing} of {all}: {missing:?}");
    for name in [
        "x",
        "h",
        "q",
        "k",
        "v",
        "token_embd",
        "output_norm",
        "rms_norm",
        "rope",
        "attention",
        "moe",
        "eps",
    ] {
        assert!(!missing.contains(name), "{name}");
    }
}
