//! Limits of the compiler. A declaration that is read at run time comes from an untrusted file, so neither the recursion
//! nor the memory may depend on its content without a bound.

use proc_macro2::{TokenStream, TokenTree};

use crate::options::{Bindings, uses};

/// Maximum depth of functions, fragments, and parents that use each other.
pub const MAX_NESTING: usize = 64;

/// Maximum depth of nested expressions, conditions, and loops, including those of inlined functions.
pub const MAX_DEPTH: usize = 400;

/// Maximum number of tokens of all function bodies and fragments after the substitution of options.
pub const MAX_TOKENS: usize = 60_000;

/// Maximum number of named groups of layers.
pub const MAX_GROUPS: usize = 64;

/// Maximum number of tokens of an argument for an option.
const MAX_ARGUMENT: usize = 400;

/// Returns the number of tokens, with those in brackets.
fn n_tokens(tokens: &TokenStream) -> usize {
    let of_token = |token: TokenTree| match token {
        TokenTree::Group(g) => 1 + n_tokens(&g.stream()),
        _ => 1,
    };
    tokens.clone().into_iter().map(of_token).sum()
}

/// Returns the number of tokens of a body after the substitution of options, or `None` if an argument is too long.
pub fn n_substituted(body: &TokenStream, given: &Bindings) -> Option<usize> {
    let mut n = n_tokens(body);
    for (name, value) in given {
        let Some(value) = value else { continue };
        let length = n_tokens(value);
        if length > MAX_ARGUMENT {
            return None;
        }
        n = n.saturating_add(length * uses(body, &|word| word == name).len());
    }
    Some(n)
}
