//! Names of a declaration keep their spans in the expansion, so that editors find definitions and uses.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};

fn archs_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../archs")
}

/// Returns the tokens inside the file's `arch! { … }`, with spans.
fn declaration(name: &str) -> TokenStream {
    let text = std::fs::read_to_string(archs_dir().join(format!("{name}.rs"))).unwrap();
    let tokens = TokenStream::from_str(&text).unwrap();
    arch_lang::parse::macro_tokens(tokens, "arch").unwrap().unwrap()
}

/// Collects all identifiers of a token stream.
fn idents(tokens: TokenStream, out: &mut Vec<Ident>) {
    for token in tokens {
        match token {
            TokenTree::Group(g) => idents(g.stream(), out),
            TokenTree::Ident(name) => out.push(name),
            _ => {}
        }
    }
}

/// Removes the tokens that only shape rules read: the sizes in `rust!`, the shapes of parameters, and the
/// argument of `shared_selection`.
fn computing(tokens: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let word = |i: Option<usize>| {
        i.and_then(|i| tokens.get(i))
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    let kept = |(i, token): (usize, &TokenTree)| match token {
        TokenTree::Group(_) if [":", "shared_selection", "given"].contains(&word(i.checked_sub(1)).as_str()) => None,
        TokenTree::Group(g) => {
            let is_rust = word(i.checked_sub(2)) == "rust";
            let inside = g.stream().into_iter().skip(usize::from(is_rust)).collect();
            Some(Group::new(g.delimiter(), computing(inside)).into())
        }
        other => Some(other.clone()),
    };
    tokens.iter().enumerate().filter_map(kept).collect()
}

/// Returns the names that become code, without Rust keywords.
fn names(tokens: TokenStream) -> Vec<Ident> {
    let mut names = Vec::new();
    idents(computing(tokens), &mut names);
    let keywords = [
        "let", "for", "in", "if", "else", "true", "false", "rust", "has", "model_is", "given", "none", "_",
    ];
    names.retain(|n| !keywords.iter().any(|k| n == k));
    names
}

/// Returns the names in `graph { … }`.
fn names_of_graph(tokens: TokenStream) -> Vec<Ident> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let graph = tokens.windows(2).find_map(|pair| match pair {
        [TokenTree::Ident(word), TokenTree::Group(g)] if word == "graph" && g.delimiter() == Delimiter::Brace => {
            Some(g.stream())
        }
        _ => None,
    });
    names(graph.unwrap_or_default())
}

/// Returns the names of the declaration's functions, of their parameters, and in their bodies.
fn names_of_functions(tokens: TokenStream) -> Vec<Ident> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let functions = tokens.windows(4).filter_map(|part| match part {
        [TokenTree::Ident(word), rest @ ..] if word == "fn" => Some(rest.iter().cloned().collect()),
        _ => None,
    });
    functions.flat_map(names).collect()
}

fn place(name: &Ident) -> (String, usize, usize) {
    let span = name.span();
    (span.file(), span.start().line, span.start().column)
}

/// Returns the number of names in the graph and functions, and those missing from the expansion at their
/// spans.
fn lost(name: &str) -> (usize, Vec<Ident>) {
    let tokens = declaration(name);
    let mut names = names_of_graph(tokens.clone());
    names.extend(names_of_functions(tokens.clone()));
    let items = arch_lang::expand_with(tokens, &arch_lang::Directory(archs_dir()));
    let mut found = Vec::new();
    idents(items, &mut found);
    let places: BTreeSet<_> = found.iter().map(place).collect();
    let n = names.len();
    (n, names.into_iter().filter(|n| !places.contains(&place(n))).collect())
}

#[test]
fn graph_names_appear_in_expansion() {
    let (n, lost) = lost("qwen3");
    assert_eq!((n, lost), (51, Vec::new()));
}

/// Operations, functions, options, tensors, and values of every declaration keep their spans, even if a
/// fragment calls a function of the declaration.
#[test]
fn graph_and_function_names_keep_spans() {
    let mut n_names = 0;
    for entry in std::fs::read_dir(archs_dir()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "rs") {
            let (n, lost) = lost(path.file_stem().unwrap().to_str().unwrap());
            assert_eq!(lost, Vec::<Ident>::new(), "{}", path.display());
            n_names += n;
        }
    }
    assert!(n_names > 5000, "{n_names} names");
}

/// Options link calls and bodies to the parameter of the function. No function has an option of another
/// function.
#[test]
fn options_link_to_their_function() {
    let source = include_str!("../../../archs/deepseek4.rs");
    assert_eq!(source.matches("fn rotate(x, offset = ").count(), 1);
    let items = arch_lang::expand_with(declaration("deepseek4"), &arch_lang::Directory(archs_dir()));
    let text = items.to_string();
    let given = "let _ = __functions :: rotate :: inverse ;";
    let defined = "pub mod rotate { pub fn offset () { } pub fn stride () { } pub fn inverse () { } }";
    assert!(text.contains(given) && text.contains(defined), "{text}");
}

/// rustc has no spans for files of fragments and parents. Tokens of these files get the span of the call or
/// name in the declaration.
#[test]
fn expansion_spans_are_inside_declaration() {
    let nowhere = proc_macro2::Span::call_site().file();
    for name in ["qwen2moe", "deepseek2", "qwen3moe", "t5"] {
        let tokens = declaration(name);
        let file = tokens.clone().into_iter().next().unwrap().span().file();
        let mut all = Vec::new();
        let items = arch_lang::expand_with(tokens, &arch_lang::Directory(archs_dir()));
        idents(items, &mut all);
        let elsewhere = |n: &&Ident| n.span().file() != file && n.span().file() != nowhere;
        let others: Vec<_> = all.iter().filter(elsewhere).collect();
        assert!(others.is_empty(), "{name}: {others:?}");
    }
}

/// Operations in a fragment's function get the span of the call.
#[test]
fn inlined_operations_get_span_of_call() {
    let tokens = declaration("llama");
    let call = names_of_graph(tokens.clone())
        .into_iter()
        .find(|n| n == "attend")
        .unwrap();
    let mut found = Vec::new();
    idents(
        arch_lang::expand_with(tokens, &arch_lang::Directory(archs_dir())),
        &mut found,
    );
    let attention = found.iter().find(|n| *n == "attention").unwrap();
    assert_eq!(attention.span().start(), call.span().start());
}

/// Returns the hyperparameters that a declaration defines with `name: type` and `let name`.
fn hparams_of(tokens: &[TokenTree]) -> BTreeSet<String> {
    let group = tokens.windows(2).find_map(|pair| match pair {
        [TokenTree::Ident(word), TokenTree::Group(g)] if word == "hparams" => Some(g.stream()),
        _ => None,
    });
    let inside: Vec<TokenTree> = group.into_iter().flatten().collect();
    let declared = inside.windows(2).filter_map(|pair| match pair {
        [TokenTree::Ident(name), TokenTree::Punct(p)] if p.as_char() == ':' => Some(name.to_string()),
        [TokenTree::Ident(word), TokenTree::Ident(name)] if word == "let" => Some(name.to_string()),
        _ => None,
    });
    declared.collect()
}

/// Collects the uses of names as values, excluding option names as in `f(name = value)` and sizes in `test`.
fn uses(tokens: TokenStream, names: &BTreeSet<String>, out: &mut Vec<Ident>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is = |i: Option<usize>, text: &str| i.and_then(|i| tokens.get(i)).is_some_and(|t| t.to_string() == text);
    for (i, token) in tokens.iter().enumerate() {
        let before = i.checked_sub(1);
        match token {
            TokenTree::Group(_) if is(before, "test") => {}
            TokenTree::Group(g) => uses(g.stream(), names, out),
            TokenTree::Ident(name) if names.contains(&name.to_string()) => {
                let is_option = is(Some(i + 1), "=") && !is(Some(i + 2), "=") && !is(before, "let");
                out.extend((!is_option).then(|| name.clone()));
            }
            _ => {}
        }
    }
}

/// Covers formulas, checks, sizes, conditions of tensors, and arguments of `use`.
#[test]
fn hparam_uses_keep_spans() {
    let mut n_uses = 0;
    for entry in std::fs::read_dir(archs_dir()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        let tokens = declaration(path.file_stem().unwrap().to_str().unwrap());
        let names = hparams_of(&tokens.clone().into_iter().collect::<Vec<_>>());
        let (mut wanted, mut found) = (Vec::new(), Vec::new());
        uses(computing(tokens.clone()), &names, &mut wanted);
        idents(
            arch_lang::expand_with(tokens, &arch_lang::Directory(archs_dir())),
            &mut found,
        );
        let places: BTreeSet<_> = found.iter().map(place).collect();
        n_uses += wanted.len();
        wanted.retain(|n| !places.contains(&place(n)));
        assert_eq!(wanted, Vec::<Ident>::new(), "{}", path.display());
    }
    assert!(n_uses > 1000, "{n_uses} uses");
}
