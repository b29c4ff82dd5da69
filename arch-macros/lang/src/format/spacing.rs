//! Where a space stands between two tokens of a line.

use super::tokens::{Kind, Tree};

/// Words that are no names: what follows them in parentheses are not arguments.
const WORDS: [&str; 7] = ["let", "if", "else", "for", "in", "or", "check"];

/// True if a space stands before `trees[i]`, which is not the first.
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
        Kind::Group('(', _) => !is_name(last) && !is_closed(last),
        // `gate: linear [n_embd -> n_ff]` has sizes, `x[a..b]` a range.
        Kind::Group('[', _) => match is_name(last) {
            true => i >= 2 && trees[i - 2].is(":"),
            false => !is_closed(last),
        },
        _ => true,
    }
}

fn is_name(tree: &Tree) -> bool {
    tree.kind == Kind::Word && !WORDS.iter().any(|w| tree.is(w))
}

fn is_closed(tree: &Tree) -> bool {
    matches!(tree.kind, Kind::Group('(' | '[', _))
}

/// True for the `-` and `!` of one operand.
fn is_sign(trees: &[Tree], i: usize) -> bool {
    let sign = (trees[i].is("-") || trees[i].is("!")) && !is_macro_mark(trees, i);
    let begins = i.checked_sub(1).is_none_or(|before| {
        let before = &trees[before];
        before.kind == Kind::Operator && !before.is("?") || WORDS.iter().any(|w| before.is(w))
    });
    sign && begins
}

/// True for the `!` of `rust!(…)`.
fn is_macro_mark(trees: &[Tree], i: usize) -> bool {
    trees[i].is("!") && i > 0 && is_name(&trees[i - 1])
}
