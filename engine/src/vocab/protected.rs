//! Keeps control tokens from being parsed in the untrusted parts of a prompt.

use std::borrow::Cow;

use super::{Token, TokenAttr, Vocab};

/// Removes a mark from a text.
pub(super) fn without_mark(text: &str, mark: Option<char>) -> Cow<'_, str> {
    match mark {
        Some(mark) if text.contains(mark) => Cow::Owned(text.replace(mark, "")),
        _ => Cow::Borrowed(text),
    }
}

impl Vocab {
    /// Inserts the character `mark` between the characters of each control token in a text, except those in `kept`.
    /// [`tokenize_marked`](Self::tokenize_marked) then tokenizes these tokens as plain text. A control token of a
    /// single character cannot be marked.
    pub fn marked<'a>(&self, text: &'a str, mark: char, kept: &[&str]) -> Cow<'a, str> {
        let mut found = self.all_specials.matches(text);
        found.retain(|(_, token)| {
            let is_control = !self.attr(*token).intersects(TokenAttr::USER_DEFINED);
            is_control && !kept.contains(&&*self.text(*token))
        });
        if found.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len() + 64);
        let mut done = 0;
        for (range, _) in found {
            out.push_str(&text[done..range.start]);
            for (i, c) in text[range.clone()].chars().enumerate() {
                if i > 0 {
                    out.push(mark);
                }
                out.push(c);
            }
            done = range.end;
        }
        out.push_str(&text[done..]);
        Cow::Owned(out)
    }

    /// Tokenizes a prompt and parses its special tokens, except in text from [`marked`](Self::marked). The
    /// marks are not tokenized.
    pub fn tokenize_marked(&self, text: &str, add_special: bool, mark: char) -> Vec<Token> {
        self.tokenize_parts(text, add_special, &self.all_specials, Some(mark))
    }
}
