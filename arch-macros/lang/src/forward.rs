//! Forwarding of named arguments. `..` at the end of a call passes on the options of the enclosing function
//! that the callee accepts, unless the call names them.
//!
//! ```text
//! fn attend(x, ..) { wo(attend_heads(x, ..)) }
//! fn attend_heads(x, rope_scale?, ..) { attention(rope(q, scale = rope_scale, ..), rope(k, scale = rope_scale, ..), v, ..) }
//! ```
//!
//! `attend(h, base = 10000.0, window = w)` passes `base` to both calls of `rope` and `window` to `attention`.
//! `scale` is passed to `attention` only: the calls of `rope` name it, even if `rope_scale` is omitted.

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use quote::quote;

use crate::options::Bindings;

/// Returns the names that the calls with `..` in a body forward, without duplicates.
pub fn names(body: &TokenStream, taken_by: &mut dyn FnMut(&str) -> Vec<String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut callee: Option<String> = None;
    for token in body.clone() {
        if let TokenTree::Group(group) = &token {
            let mut found = names(&group.stream(), taken_by);
            if let (Some(callee), Some(args)) = (&callee, before_rest(group)) {
                found.extend(not_named(taken_by(callee), &args));
            }
            found.into_iter().for_each(|n| {
                if !all.contains(&n) {
                    all.push(n);
                }
            });
        }
        callee = word(&token);
    }
    all
}

/// Replaces each `..` in a body by `name = placeholder` for every given option that the callee accepts.
/// [`placeholders`] resolves them. The names keep the spans of the given options.
pub fn fill(body: TokenStream, given: &[(Ident, TokenStream)], taken_by: &dyn Fn(&str) -> Vec<String>) -> TokenStream {
    let mut callee: Option<String> = None;
    let mut out = TokenStream::new();
    for token in body {
        let name = word(&token);
        let token = match token {
            TokenTree::Group(group) => {
                let stream = match (&callee, before_rest(&group)) {
                    (Some(callee), Some(args)) => {
                        let taken = not_named(taken_by(callee), &args);
                        let passed = given.iter().filter(|(key, _)| taken.iter().any(|name| key == name));
                        let passed = passed.map(|(key, _)| {
                            let mark = Ident::new(&placeholder(key), group.span());
                            quote!(#key = #mark)
                        });
                        let args = fill(args, given, taken_by);
                        quote!(#args #(#passed),*)
                    }
                    _ => fill(group.stream(), given, taken_by),
                };
                let mut filled = Group::new(group.delimiter(), stream);
                filled.set_span(group.span());
                TokenTree::Group(filled)
            }
            other => other,
        };
        callee = name;
        out.extend([token]);
    }
    out
}

/// Returns the options under placeholder names, which cannot clash with a name in a body.
pub fn placeholders(given: &[(Ident, TokenStream)]) -> Bindings {
    let placeholders = |(name, value): &(Ident, TokenStream)| (placeholder(name), Some(value.clone()));
    given.iter().map(placeholders).collect()
}

fn placeholder(name: &Ident) -> String {
    format!("__{name}")
}

fn word(token: &TokenTree) -> Option<String> {
    match token {
        TokenTree::Ident(name) => Some(name.to_string()),
        _ => None,
    }
}

/// Returns the arguments before a final `..`.
fn before_rest(group: &Group) -> Option<TokenStream> {
    let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
    let is = |t: &TokenTree, c: char| matches!(t, TokenTree::Punct(p) if p.as_char() == c);
    let (args, rest) = tokens.split_at_checked(tokens.len().checked_sub(2)?)?;
    let ends = rest.iter().all(|t| is(t, '.')) && args.last().is_none_or(|t| is(t, ','));
    (group.delimiter() == Delimiter::Parenthesis && ends).then(|| args.iter().cloned().collect())
}

/// Returns the names in `taken` that no argument sets with `name =`.
fn not_named(taken: Vec<String>, args: &TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = args.clone().into_iter().collect();
    let is = |i: usize, c: char| matches!(tokens.get(i), Some(TokenTree::Punct(p)) if p.as_char() == c);
    let is_key = |i: usize| is(i + 1, '=') && !is(i + 2, '=');
    let named = |n: &String| (0..tokens.len()).any(|i| is_key(i) && word(&tokens[i]).as_ref() == Some(n));
    taken.into_iter().filter(|n| !named(n)).collect()
}
