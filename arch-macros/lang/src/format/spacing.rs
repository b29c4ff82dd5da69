//! Spacing between two tokens of a line.

use super::tokens::{TokenKind, Tree};

/// Keywords. Parentheses after a keyword are not an argument list.
const WORDS: [&str; 14] = [
    "let", "if", "else", "for", "in", "or", "check", "warn", "rows", "pairs", "tile", "plus", "times", "and",
];

/// Returns true if a space precedes `trees[i]`, for `i > 0`.
pub fn spaced(trees: &[Tree], i: usize) -> bool {
    let (last, next) = (&trees[i - 1], &trees[i]);
    if is_sign(trees, i - 1) || [",", ";", "?", ":", "."].iter().any(|t| next.is(t)) || last.is(".") {
        return false;
    }
    if next.is("..") || last.is("..") {
        return last.is(",");
    }
    if is_macro_mark(trees, i) || is_macro_mark(trees, i - 1) {
        return false;
    }
    match next.kind {
        TokenKind::Group('(', _) => !is_name(last) && !is_closed(last),
        // `gate: linear [n_embd -> n_ff]` has sizes; `x[a..b]` has a range.
        TokenKind::Group('[', _) => {
            if is_name(last) {
                i >= 2 && trees[i - 2].is(":")
            } else {
                !is_closed(last)
            }
        }
        _ => true,
    }
}

fn is_name(tree: &Tree) -> bool {
    tree.kind == TokenKind::Word && !WORDS.iter().any(|w| tree.is(w))
}

fn is_closed(tree: &Tree) -> bool {
    matches!(tree.kind, TokenKind::Group('(' | '[', _))
}

/// Returns true for a unary `-` or `!`.
fn is_sign(trees: &[Tree], i: usize) -> bool {
    let sign = (trees[i].is("-") || trees[i].is("!")) && !is_macro_mark(trees, i);
    let begins = i.checked_sub(1).is_none_or(|before| {
        let before = &trees[before];
        before.kind == TokenKind::Operator && !before.is("?") || WORDS.iter().any(|w| before.is(w))
    });
    sign && begins
}

/// Returns true for the `!` of `rust!(…)`.
fn is_macro_mark(trees: &[Tree], i: usize) -> bool {
    trees[i].is("!") && i > 0 && is_name(&trees[i - 1])
}
