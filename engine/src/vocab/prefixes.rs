//! Longest-prefix search over sorted texts, with a cursor that narrows the candidates byte by byte.

use super::Token;

/// Maximum text length in bytes; bounds the search time per position.
const MAX_LEN: usize = 1024;

/// Sorted texts for prefix search.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    /// Tokens in ascending order of their texts.
    tokens: Vec<Token>,
    bytes: Vec<u8>,
    /// End offset of each text in `bytes`.
    ends: Vec<usize>,
    /// Index of the first text for each first byte.
    firsts: Vec<u32>,
}

/// Range of texts that start with the consumed bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    prefixes: &'a Prefixes,
    from: usize,
    to: usize,
    depth: usize,
}

impl Prefixes {
    /// Builds the index. The last of equal texts wins; empty texts are ignored.
    pub fn new<T: AsRef<[u8]>>(texts: impl Iterator<Item = (T, Token)>) -> Prefixes {
        let mut all: Vec<_> = texts
            .filter(|(text, _)| (1..=MAX_LEN).contains(&text.as_ref().len()))
            .collect();
        all.sort_by(|(a, i), (b, j)| a.as_ref().cmp(b.as_ref()).then(j.cmp(i)));
        all.dedup_by(|(a, _), (b, _)| (*a).as_ref() == (*b).as_ref());
        let mut prefixes = Prefixes::default();
        for (text, token) in &all {
            prefixes.tokens.push(*token);
            prefixes.bytes.extend_from_slice(text.as_ref());
            prefixes.ends.push(prefixes.bytes.len());
        }
        let first = |(text, _): &(T, Token)| usize::from(text.as_ref()[0]);
        prefixes.firsts = (0..=256)
            .map(|b| all.partition_point(|t| first(t) < b) as u32)
            .collect();
        prefixes
    }

    /// Returns a cursor before the first byte.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor {
            prefixes: self,
            from: 0,
            to: self.tokens.len(),
            depth: 0,
        }
    }

    /// Returns the token and length of the longest text that is a prefix of `text`.
    pub fn longest(&self, text: &[u8]) -> Option<(Token, usize)> {
        let (mut cursor, mut longest) = (self.cursor(), None);
        for (i, &byte) in text.iter().enumerate() {
            let Some(next) = cursor.step(byte) else { break };
            cursor = next;
            longest = cursor.token().map(|token| (token, i + 1)).or(longest);
        }
        longest
    }

    fn text(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }
}

impl Cursor<'_> {
    /// Consumes a byte; returns `None` if no text matches.
    #[inline]
    pub fn step(mut self, byte: u8) -> Option<Self> {
        let p = self.prefixes;
        if self.depth == 0 {
            let byte = usize::from(byte);
            (self.from, self.to) = match p.firsts[..] {
                [] => (0, 0),
                _ => (p.firsts[byte] as usize, p.firsts[byte + 1] as usize),
            };
        } else {
            // A text that ends at this depth sorts first and has no next byte.
            let next = |index: usize| p.text(index).get(self.depth).copied();
            self.from = partition_point(self.from, self.to, |i| next(i) < Some(byte));
            self.to = partition_point(self.from, self.to, |i| next(i) == Some(byte));
        }
        self.depth += 1;
        if self.from < self.to { Some(self) } else { None }
    }

    /// Returns the token whose text equals the consumed bytes.
    #[inline]
    pub fn token(&self) -> Option<Token> {
        let p = self.prefixes;
        if self.from < self.to && p.text(self.from).len() == self.depth {
            Some(p.tokens[self.from])
        } else {
            None
        }
    }
}

/// Binary search: returns the first index in `from..to` where `before` is false.
fn partition_point(mut from: usize, mut to: usize, before: impl Fn(usize) -> bool) -> usize {
    while from < to {
        let middle = from + (to - from) / 2;
        if before(middle) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_prefix_is_found() {
        let texts = ["a", "ab", "abcd", "b", "", "ab", "\u{e9}"];
        let prefixes = Prefixes::new(texts.iter().zip(0..));
        assert_eq!(prefixes.longest(b"abc"), Some((5, 2)), "last of equal texts");
        assert_eq!(prefixes.longest(b"abcde"), Some((2, 4)));
        assert_eq!(prefixes.longest("\u{e9}b".as_bytes()), Some((6, 2)));
        assert_eq!(prefixes.longest(b"c"), None);
        assert_eq!(prefixes.longest(b""), None);
        assert_eq!(Prefixes::default().longest(b"a"), None);
    }
}
