//! WordPiece tokenizer (BERT): normalizes text, splits it into words, and covers each word greedily with the
//! longest tokens.

use std::borrow::Cow;

use regex_syntax::hir::{Class, HirKind};
use unicode_normalization::UnicodeNormalization;

use super::Token;
use super::tokens::Tokens;
use super::words::SPACE;

/// Maximum length of a matched token in bytes.
const MAX_TOKEN: usize = 256;

#[derive(Debug)]
pub(super) struct Wpm {
    unknown: Option<Token>,
    lowercase: bool,
    strip_accents: bool,
    /// Length of the longest token in bytes.
    len_max: usize,
    punctuation: CharSet,
    marks: CharSet,
    control: CharSet,
}

impl Wpm {
    /// Creates the tokenizer. `lowercase` defaults to true, `strip_accents` to the value of `lowercase`.
    pub fn new(tokens: &Tokens, unknown: Option<Token>, lowercase: Option<bool>, strip_accents: Option<bool>) -> Wpm {
        let lowercase = lowercase.unwrap_or(true);
        let len_max = (0..tokens.n).map(|token| tokens.text(token).len()).max();
        Wpm {
            unknown,
            lowercase,
            strip_accents: strip_accents.unwrap_or(lowercase),
            len_max: len_max.unwrap_or(0).min(MAX_TOKEN),
            punctuation: CharSet::new(r"[\p{P}[:punct:]]"),
            marks: CharSet::new(r"\p{M}"),
            control: CharSet::new(r"[\p{Cc}\p{Cf}\p{Co}]"),
        }
    }

    pub fn tokenize(&self, tokens: &Tokens, text: &str, out: &mut Vec<Token>) {
        let text: Cow<'_, str> = if self.strip_accents {
            Cow::Owned(text.nfd().collect())
        } else {
            Cow::Borrowed(text)
        };
        let mut word = String::new();
        for c in text.chars() {
            if c.is_whitespace() {
                self.word(tokens, &mut word, out);
            } else if c == '\0'
                || c == char::REPLACEMENT_CHARACTER
                || self.control.contains(c)
                || (self.strip_accents && self.marks.contains(c))
            {
                // Normalization drops these characters.
            } else if self.punctuation.contains(c) || is_ideograph(c) {
                self.word(tokens, &mut word, out);
                self.push(&mut word, c);
                self.word(tokens, &mut word, out);
            } else {
                self.push(&mut word, c);
            }
        }
        self.word(tokens, &mut word, out);
    }

    fn push(&self, word: &mut String, c: char) {
        if word.is_empty() {
            word.push_str(SPACE);
        }
        if self.lowercase {
            word.extend(c.to_lowercase());
        } else {
            word.push(c);
        }
    }

    /// Appends the tokens of a word with a leading `▁` and clears the buffer. A word that tokens cannot cover
    /// completely becomes a single unknown token.
    fn word(&self, tokens: &Tokens, word: &mut String, out: &mut Vec<Token>) {
        let (bytes, start) = (word.as_bytes(), out.len());
        let mut at = 0;
        while at < bytes.len() {
            let longest = bytes.len().min(at + self.len_max);
            let found = (at + 1..=longest)
                .rev()
                .find_map(|to| Some((tokens.find(&bytes[at..to])?, to)));
            let Some((token, to)) = found else {
                out.truncate(start);
                out.extend(self.unknown);
                break;
            };
            out.push(token);
            at = to;
        }
        word.clear();
    }
}

/// Returns true for CJK ideographs. Each ideograph is a word.
fn is_ideograph(c: char) -> bool {
    matches!(c,
        '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{20000}'..='\u{2a6df}' | '\u{2a700}'..='\u{2b73f}'
        | '\u{2b740}'..='\u{2b81f}' | '\u{2b920}'..='\u{2ceaf}' | '\u{f900}'..='\u{faff}' | '\u{2f800}'..='\u{2fa1f}')
}

/// Set of characters, as ascending ranges.
#[derive(Debug)]
struct CharSet(Vec<(char, char)>);

impl CharSet {
    /// Builds the set from a `regex-syntax` character class. The classes are constants; an invalid one yields
    /// an empty set, which the tests detect.
    fn new(class: &str) -> CharSet {
        let hir = regex_syntax::parse(class).ok();
        let ranges = hir.and_then(|hir| match hir.into_kind() {
            HirKind::Class(Class::Unicode(set)) => Some(set.iter().map(|r| (r.start(), r.end())).collect()),
            _ => None,
        });
        CharSet(ranges.unwrap_or_default())
    }

    fn contains(&self, c: char) -> bool {
        let after = self.0.partition_point(|&(_, end)| end < c);
        self.0.get(after).is_some_and(|&(start, _)| start <= c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn char_sets_match_their_classes() {
        let punctuation = CharSet::new(r"[\p{P}[:punct:]]");
        assert!("!$+<=>^`|~.,\u{2014}\u{3002}".chars().all(|c| punctuation.contains(c)));
        assert!("a1 \u{20ac}\u{e9}".chars().all(|c| !punctuation.contains(c)));
        assert!(CharSet::new(r"\p{M}").contains('\u{301}'));
        assert!(CharSet::new(r"[\p{Cc}\p{Cf}\p{Co}]").contains('\u{200d}'));
    }
}
