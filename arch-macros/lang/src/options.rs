//! Options of fragments and functions: what is given for them, and put in their place.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use syn::Expr;

use crate::ast::Opt;
use crate::diag::{Errors, did_you_mean};

/// What stands for each option; `None` for one that is left out.
pub type Given = Vec<(String, Option<TokenStream>)>;

/// Arguments by name, put in for the options of `callee`.
pub fn bind(callee: &str, options: &[Opt], args: &[(Ident, TokenStream)], errors: &mut Errors) -> Option<Given> {
    let before = errors.len();
    for (i, (key, _)) in args.iter().enumerate() {
        if args[..i].iter().any(|(k, _)| k == key) {
            errors.at(key, format!("`{key}` is given twice"));
        } else if !options.iter().any(|o| o.name == *key) {
            let names: Vec<String> = options.iter().map(|o| o.name.to_string()).collect();
            let hint = did_you_mean(&key.to_string(), names.iter().map(String::as_str));
            let list = if names.is_empty() {
                "none".to_string()
            } else {
                names.join(", ")
            };
            errors.at(key, format!("`{callee}` has no option `{key}` (it has: {list}){hint}"));
        }
    }
    let value = |o: &Opt| {
        let given = args.iter().find(|(key, _)| *key == o.name).map(|(_, v)| v.clone());
        (o.name.to_string(), given.or_else(|| o.default.clone()))
    };
    (errors.len() == before).then(|| options.iter().map(value).collect())
}

/// Where a body speaks of some names, except before a `=`.
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

/// The tokens with arguments in the place of options.
pub fn substitute(tokens: TokenStream, given: &Given) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is = |i: usize, c: char| matches!(tokens.get(i), Some(TokenTree::Punct(p)) if p.as_char() == c);
    // `name: type = …` has no key.
    let is_key = |i: usize| is(i + 1, '=') && !is(i + 2, '=') && !(i > 0 && is(i - 1, ':'));
    let mut out: Vec<TokenTree> = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        match &tokens[i] {
            TokenTree::Group(g) => {
                let mut group = Group::new(g.delimiter(), substitute(g.stream(), given));
                group.set_span(g.span());
                out.push(TokenTree::Group(group));
            }
            TokenTree::Ident(name) if !is_key(i) => match given.iter().find(|(n, _)| name == n) {
                Some((_, Some(value))) => out.extend(operand(value.clone(), name.span())),
                // `or name` and `, key = name` go as a whole; a name that stands elsewhere stays, and is unknown to the checker.
                Some((_, None)) if matches!(out.last(), Some(TokenTree::Ident(word)) if word == "or") => {
                    out.pop();
                }
                Some((_, None)) if matches!(&out[..], [.., TokenTree::Ident(_), TokenTree::Punct(p)] if p.as_char() == '=') =>
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

/// An argument as one operand: in parentheses unless it is a single token, a call, or a type in brackets.
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
