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

/// Every name, but for those that arguments are given by.
fn idents(tokens: TokenStream, in_call: bool, out: &mut Vec<Ident>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is = |i: usize, c: char| matches!(tokens.get(i), Some(TokenTree::Punct(p)) if p.as_char() == c);
    for (i, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(g) => idents(g.stream(), g.delimiter() == Delimiter::Parenthesis, out),
            TokenTree::Ident(_) if in_call && is(i + 1, '=') && !is(i + 2, '=') => {}
            TokenTree::Ident(name) => out.push(name.clone()),
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
    idents(graph.unwrap_or_default(), false, &mut names);
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
    idents(items, false, &mut found);
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

/// The names of all functions of declarations and fragments.
fn functions() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for folder in [archs_folder(), archs_folder().join("fragments")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
            let defined = text
                .lines()
                .filter_map(|l| l.trim().strip_prefix("fn ")?.split('(').next());
            names.extend(defined.map(str::to_owned));
        }
    }
    names
}

/// The sizes that a `rust!` states become nothing, nor does `has` itself. Operations, functions and what graphs are made of stand at
/// their places.
#[test]
fn no_operation_or_function_of_any_graph_is_lost() {
    let (mut all, mut missing) = (0, BTreeSet::new());
    for entry in std::fs::read_dir(archs_folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "rs") {
            let (n, lost) = lost(path.file_stem().unwrap().to_str().unwrap());
            all += n;
            missing.extend(lost.iter().map(ToString::to_string));
        }
    }
    assert!(all > 4000, "{all} names");
    let values = [
        "x",
        "h",
        "q",
        "k",
        "v",
        "token_embd",
        "output_norm",
        "attn_norm",
        "eps",
        "tokens",
    ];
    let operations = arch_lang::ops::OPS.iter().map(|o| o.name);
    for name in operations.chain(values) {
        assert!(!missing.contains(name), "{name} is among {missing:?}");
    }
    let functions = functions();
    assert!(functions.len() > 60 && missing.is_disjoint(&functions), "{missing:?}");
}

/// rustc knows no places in files of fragments and parents: what comes from there stands where the declaration calls or names it.
#[test]
fn expansions_have_places_in_the_declaration_only() {
    let nowhere = proc_macro2::Span::call_site().file();
    for name in ["qwen2moe", "deepseek2", "qwen3moe", "t5"] {
        let tokens = declaration(name);
        let file = tokens.clone().into_iter().next().unwrap().span().file();
        let mut all = Vec::new();
        let items = arch_lang::expand_with(tokens, &arch_lang::Folder(archs_folder()));
        idents(items, false, &mut all);
        let elsewhere = |n: &&Ident| n.span().file() != file && n.span().file() != nowhere;
        let others: Vec<_> = all.iter().filter(elsewhere).collect();
        assert!(others.is_empty(), "{name}: {others:?}");
    }
}

/// What a fragment's function does stands at the call.
#[test]
fn inlined_operations_stand_at_the_call() {
    let tokens = declaration("llama");
    let call = names_of_graph(tokens.clone())
        .into_iter()
        .find(|n| n == "attend")
        .unwrap();
    let mut found = Vec::new();
    idents(
        arch_lang::expand_with(tokens, &arch_lang::Folder(archs_folder())),
        false,
        &mut found,
    );
    let attention = found.iter().find(|n| *n == "attention").unwrap();
    assert_eq!(attention.span().start(), call.span().start());
}
