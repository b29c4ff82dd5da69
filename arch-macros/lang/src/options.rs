//! Binding and substitution of the options of fragments and functions.

use std::collections::HashMap;

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use syn::Expr;

use crate::ast::Opt;
use crate::diag::Errors;
use crate::names;

/// Maximum number of options that a message lists.
const MAX_LISTED: usize = 64;

/// Tokens of each option; `None` for an omitted option.
pub type Bindings = Vec<(String, Option<TokenStream>)>;

/// Binds named arguments to the options of `callee`.
pub fn bind(callee: &str, options: &[Opt], args: &[(Ident, TokenStream)], errors: &mut Errors) -> Option<Bindings> {
    let before = errors.len();
    let known = names::set(options.iter().map(|o| &o.name));
    let mut values: HashMap<&Ident, &TokenStream> = HashMap::new();
    for (key, value) in args {
        if values.contains_key(key) {
            errors.at(key, format!("`{key}` is given twice"));
        } else if !known.contains(key) {
            let names = || options.iter().map(|o| o.name.to_string()).collect::<Vec<String>>();
            let hint = errors.hint(&key.to_string(), names);
            let list = match options.len() {
                0 => "none".to_owned(),
                1..=MAX_LISTED => names().join(", "),
                n => format!("{n} others"),
            };
            errors.at(
                key,
                format!("`{callee}` has no option `{key}` (available: {list}){hint}"),
            );
        }
        values.entry(key).or_insert(value);
    }
    let value = |o: &Opt| {
        let given = values.get(&o.name).map(|&v| v.clone());
        (o.name.to_string(), given.or_else(|| o.default.clone()))
    };
    (errors.len() == before).then(|| options.iter().map(value).collect())
}

/// Returns the uses of some names in a body, except before `=`.
pub fn uses(body: &TokenStream, is_name: &dyn Fn(&Ident) -> bool) -> Vec<Ident> {
    let tokens: Vec<TokenTree> = body.clone().into_iter().collect();
    let is = |i: usize, c: char| matches!(tokens.get(i), Some(TokenTree::Punct(p)) if p.as_char() == c);
    let is_key = |i: usize| is(i + 1, '=') && !is(i + 2, '=');
    let of_token = |(i, token): (usize, &TokenTree)| match token {
        TokenTree::Group(g) => uses(&g.stream(), is_name),
        TokenTree::Ident(word) if is_name(word) && !is_key(i) => vec![word.clone()],
        _ => Vec::new(),
    };
    tokens.iter().enumerate().flat_map(of_token).collect()
}

/// Returns how often a body uses each name, except before `=`.
pub fn counts(body: &TokenStream) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for word in uses(body, &|_| true) {
        *counts.entry(word.to_string()).or_default() += 1;
    }
    counts
}

/// Substitutes options by their arguments.
pub fn substitute(tokens: TokenStream, given: &Bindings) -> TokenStream {
    let given: HashMap<&str, Option<&TokenStream>> = given.iter().map(|(n, v)| (n.as_str(), v.as_ref())).collect();
    if given.is_empty() {
        return tokens;
    }
    substituted(tokens, &given)
}

fn substituted(tokens: TokenStream, given: &HashMap<&str, Option<&TokenStream>>) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is = |i: usize, c: char| matches!(tokens.get(i), Some(TokenTree::Punct(p)) if p.as_char() == c);
    // In `name: type = …`, `type` is not the name of an argument.
    let is_key = |i: usize| is(i + 1, '=') && !is(i + 2, '=') && !(i > 0 && is(i - 1, ':'));
    let mut out: Vec<TokenTree> = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        match &tokens[i] {
            TokenTree::Group(g) => {
                let mut group = Group::new(g.delimiter(), substituted(g.stream(), given));
                group.set_span(g.span());
                out.push(TokenTree::Group(group));
            }
            TokenTree::Ident(name) if !is_key(i) => match given.get(name.to_string().as_str()) {
                Some(Some(value)) => out.extend(operand((*value).clone(), name.span())),
                // `or name` and `, key = name` are removed as a whole. Elsewhere the name remains, and the
                // checker reports it as unknown.
                Some(None) if matches!(out.last(), Some(TokenTree::Ident(word)) if word == "or") => {
                    out.pop();
                }
                Some(None) if matches!(&out[..], [.., TokenTree::Ident(_), TokenTree::Punct(p)] if p.as_char() == '=') =>
                {
                    out.truncate(out.len() - 2);
                    if matches!(out.last(), Some(TokenTree::Punct(p)) if p.as_char() == ',') {
                        out.pop();
                    } else if is(i + 1, ',') {
                        i += 1;
                    }
                }
                _ => out.push(tokens[i].clone()),
            },
            other => out.push(other.clone()),
        }
        i += 1;
    }
    out.into_iter().collect()
}

/// Wraps an argument in parentheses unless it is a single token, a call, or a bracketed type.
fn operand(value: TokenStream, span: Span) -> TokenStream {
    let plain = match syn::parse2::<Expr>(value.clone()) {
        Ok(e) => matches!(
            e,
            Expr::Path(_) | Expr::Lit(_) | Expr::Call(_) | Expr::Paren(_) | Expr::Array(_)
        ),
        Err(_) => true,
    };
    if plain {
        return value;
    }
    let mut group = Group::new(Delimiter::Parenthesis, value);
    group.set_span(span);
    TokenTree::Group(group).into()
}
