//! Detokenization: converts token texts to output bytes.

use super::bytes;
use super::hash::StringList;
use super::rwkv;
use super::tokens::Tokens;
use super::words::SPACE;
use super::{Token, TokenAttr};

/// Encoding of token texts in a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// UTF-8 text without escapes.
    Plain,
    /// UTF-8 text in which `▁` represents a space.
    Spaced,
    /// Byte-level: every character represents a byte.
    Bytes,
    /// Bytes with backslash escapes (RWKV).
    Escaped,
}

/// Decodes the text of every token, including special tokens.
pub(super) fn pieces(tokens: &Tokens, spelling: Spelling) -> StringList {
    const AS_IT_IS: TokenAttr = TokenAttr::UNKNOWN
        .union(TokenAttr::CONTROL)
        .union(TokenAttr::USER_DEFINED);
    let mut pieces = StringList::default();
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
            // Unused and undefined tokens have no output.
        });
    }
    pieces
}

/// Appends `text` with every `▁` replaced by a space.
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

/// Strips a leading BOS token and a trailing EOS token.
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

/// Removes spaces before punctuation and around apostrophes, in three passes (as in Hugging Face's
/// `clean_up_tokenization_spaces`).
pub(super) fn clean_spaces(text: Vec<u8>) -> Vec<u8> {
    // " ?", " !", " .", " ,"
    let text = drop_bytes(&text, |before, rest| {
        usize::from(before == b' ' && matches!(rest[0], b'?' | b'!' | b'.' | b',')) // drop the space before this punctuation mark
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

/// Copies `text` without the bytes selected by `drop`. `drop` is called for every byte except the first. It returns 0
/// to keep all, 1 to remove the preceding space, or 2 to also remove the following space.
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
            // The removed space is not context for the next byte.
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
    fn clean_spaces_removes_spaces_before_punctuation() {
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
    fn unframed_strips_one_bos_and_eos() {
        assert_eq!(unframed(&[1, 1, 5, 2, 2], Some(1), Some(2)), [1, 5, 2]);
        assert_eq!(unframed(&[1], Some(1), Some(1)), [0; 0]);
        assert_eq!(unframed(&[5], None, None), [5]);
    }
}
