//! Limits of the compiler. A declaration that is read at run time is untrusted, so its content must not cause
//! unbounded recursion or memory use.

use proc_macro2::{TokenStream, TokenTree};

use crate::options::{Bindings, counts};

/// Maximum depth of functions, fragments, and parents that use each other.
pub const MAX_NESTING: usize = 64;

/// Maximum depth of nested expressions, conditions, and loops, including those of inlined functions.
pub const MAX_DEPTH: usize = 400;

/// Maximum number of tokens of all function bodies and fragments after the substitution of options.
pub const MAX_TOKENS: usize = 60_000;

/// Maximum number of named groups of layers.
pub const MAX_GROUPS: usize = 64;

/// Maximum depth of nested branches, whose code is parsed again at each level, and of nested conditions of tensors.
pub const MAX_BLOCKS: usize = 16;

/// Maximum number of checks that make a size a multiple of another.
pub const MAX_MULTIPLES: usize = 256;

/// Maximum number of tensors with one GGUF name. A file contains one of these tensors.
pub const MAX_FORMS: usize = 64;

/// Maximum number of sections for checkpoints, including the sections of ancestors. A section may inherit the items of
/// all other sections.
pub const MAX_SECTIONS: usize = 64;

/// Maximum number of tokens of an argument for an option.
const MAX_ARGUMENT: usize = 400;

/// Returns the number of tokens, including tokens in brackets.
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
    if given.is_empty() {
        return Some(n);
    }
    let counts = counts(body);
    for (name, value) in given {
        let Some(value) = value else { continue };
        let length = n_tokens(value);
        if length > MAX_ARGUMENT {
            return None;
        }
        n = n.saturating_add(length * counts.get(name).copied().unwrap_or(0));
    }
    Some(n)
}
