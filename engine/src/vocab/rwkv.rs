//! RWKV tokenizer: greedy longest match over tokens of arbitrary bytes.

use super::Token;
use super::prefixes::Prefixes;
use super::tokens::Tokens;

#[derive(Debug)]
pub(super) struct Rwkv {
    unknown: Option<Token>,
    tokens: Prefixes,
}

impl Rwkv {
    pub fn new(tokens: &Tokens, unknown: Option<Token>) -> Rwkv {
        let bytes = (0..tokens.n).map(|token| {
            let mut bytes = Vec::new();
            unescape(tokens.text(token), &mut bytes);
            (bytes, token)
        });
        Rwkv {
            unknown,
            tokens: Prefixes::new(bytes),
        }
    }

    pub fn tokenize(&self, text: &str, out: &mut Vec<Token>) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let (token, len) = match self.tokens.longest(rest) {
                Some((token, len)) => (Some(token), len),
                None => (self.unknown, 1),
            };
            out.extend(token);
            rest = &rest[len..];
        }
    }
}

/// Appends the bytes of a token spelled with the escapes `\t`, `\n`, `\r`, and `\xHH`. Any other escaped
/// character represents the character.
pub(super) fn unescape(text: &[u8], out: &mut Vec<u8>) {
    let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let (byte, tail) = match (first, tail) {
            (b'\\', [b't', tail @ ..]) => (b'\t', tail),
            (b'\\', [b'n', tail @ ..]) => (b'\n', tail),
            (b'\\', [b'r', tail @ ..]) => (b'\r', tail),
            (b'\\', [b'x', a, b, tail @ ..]) if digit(*a).is_some() && digit(*b).is_some() => {
                let (a, b) = (digit(*a).unwrap_or(0), digit(*b).unwrap_or(0));
                (a << 4 | b, tail)
            }
            (b'\\', [other, tail @ ..]) => (*other, tail),
            _ => (*first, tail),
        };
        out.push(byte);
        rest = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_bytes() {
        let bytes = |text: &str| {
            let mut out = Vec::new();
            unescape(text.as_bytes(), &mut out);
            out
        };
        assert_eq!(bytes(r"a\n\t\x00\xffb\\\'"), b"a\n\t\x00\xffb\\'");
        assert_eq!(bytes(r"\"), b"\\");
        assert_eq!(bytes(r"\x1"), b"x1");
    }
}
