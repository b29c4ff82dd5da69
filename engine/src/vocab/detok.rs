//! Tokens to text.

use super::bytes;
use super::hash::Texts;
use super::rwkv;
use super::tokens::Tokens;
use super::words::SPACE;
use super::{Token, TokenAttr};

/// How the texts of a vocabulary are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// As they are.
    Plain,
    /// `▁` is a space.
    Spaced,
    /// Every character is a byte.
    Bytes,
    /// Bytes behind backslashes.
    Escaped,
}

/// What every token looks like, special ones included.
pub(super) fn pieces(tokens: &Tokens, spelling: Spelling) -> Texts {
    const AS_IT_IS: TokenAttr = TokenAttr::UNKNOWN
        .union(TokenAttr::CONTROL)
        .union(TokenAttr::USER_DEFINED);
    let mut pieces = Texts::default();
    for token in 0..tokens.n {
        let (text, attr) = (tokens.text(token), tokens.attr(token));
        pieces.push_with(|out| {
            if attr.intersects(AS_IT_IS) {
                out.extend_from_slice(text);
            } else if attr.intersects(TokenAttr::NORMAL) {
                match spelling {
                    Spelling::Plain => out.extend_from_slice(text),
                    Spelling::Spaced => unescape(text, out),
                    Spelling::Bytes => bytes::decode(text, out),
                    Spelling::Escaped => rwkv::unescape(text, out),
                }
            } else if attr.intersects(TokenAttr::BYTE) {
                match bytes::hex_byte(text) {
                    Some(byte) => out.push(byte),
                    None => out.extend_from_slice(text),
                }
            }
            // Unused and undefined tokens stand for nothing.
        });
    }
    pieces
}

/// Appends `text` with every `▁` as a space.
fn unescape(mut text: &[u8], out: &mut Vec<u8>) {
    while !text.is_empty() {
        if let Some(rest) = text.strip_prefix(SPACE.as_bytes()) {
            out.push(b' ');
            text = rest;
        } else {
            out.push(text[0]);
            text = &text[1..];
        }
    }
}

/// The tokens without those that only frame them.
pub(super) fn unframed(mut ids: &[Token], bos: Option<Token>, eos: Option<Token>) -> &[Token] {
    if let [first, rest @ ..] = ids
        && bos == Some(*first)
    {
        ids = rest;
    }
    if let [rest @ .., last] = ids
        && eos == Some(*last)
    {
        ids = rest;
    }
    ids
}

/// Takes out spaces that tokenizers of that kind put before punctuation and around apostrophes, in three passes.
pub(super) fn clean_spaces(text: Vec<u8>) -> Vec<u8> {
    // " ?", " !", " .", " ,"
    let text = drop_bytes(&text, |before, rest| {
        usize::from(before == b' ' && matches!(rest[0], b'?' | b'!' | b'.' | b',')) // the space before
    });
    // " ' ": an apostrophe between spaces
    let text = drop_bytes(&text, |before, rest| {
        if before == b' ' && rest.starts_with(b"' ") {
            2
        } else {
            0
        }
    });
    // " 's", " 'm", " 're", " 've"
    drop_bytes(&text, |before, rest| {
        let suffixes: [&[u8]; 4] = [b"'s", b"'m", b"'re", b"'ve"];
        usize::from(before == b' ' && suffixes.iter().any(|suffix| rest.starts_with(suffix)))
    })
}

/// Copies `text`, asking at every byte but the first whether the space before it goes (1), and also the one after it
/// (2).
fn drop_bytes(text: &[u8], drop: impl Fn(u8, &[u8]) -> usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut before = None;
    let mut at = 0;
    while at < text.len() {
        let n = before.map_or(0, |before| drop(before, &text[at..]));
        if n > 0 {
            out.pop();
        }
        out.push(text[at]);
        before = Some(text[at]);
        at += 1;
        if n > 1 {
            // Gone, and no longer there for what follows.
            before = None;
            at += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(text: &str) -> String {
        String::from_utf8(clean_spaces(text.into())).unwrap()
    }

    #[test]
    fn spaces_before_punctuation_go() {
        assert_eq!(clean("Hello , world ! ? no  ."), "Hello, world!? no .");
        assert_eq!(
            clean("a ' b 's I 'm we 're I 've I 'll do n't 't"),
            "a'b's I'm we're I've I 'll do n't 't"
        );
        assert_eq!(clean("? a"), "? a");
        assert_eq!(clean(" ."), ".");
        assert_eq!(clean("' ' a"), "''a");
        assert_eq!(clean("a ' ."), "a '.");
        assert_eq!(clean(""), "");
    }

    #[test]
    fn frames_are_taken_off_once() {
        assert_eq!(unframed(&[1, 1, 5, 2, 2], Some(1), Some(2)), [1, 5, 2]);
        assert_eq!(unframed(&[1], Some(1), Some(1)), [0; 0]);
        assert_eq!(unframed(&[5], None, None), [5]);
    }
}
