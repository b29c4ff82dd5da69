//! Which texts a text begins with: the texts in order, and a cursor that narrows them byte by byte.

use super::Token;

/// Longer texts are left out: a search from every place of a text would take too long.
const MAX_LEN: usize = 1024;

/// Texts by their beginnings.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    /// Of the tokens in ascending order of texts.
    tokens: Vec<Token>,
    bytes: Vec<u8>,
    /// Where each text ends in `bytes`.
    ends: Vec<usize>,
    /// Where texts with each first byte begin.
    firsts: Vec<u32>,
}

/// The texts that begin with what has been read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    prefixes: &'a Prefixes,
    from: usize,
    to: usize,
    depth: usize,
}

impl Prefixes {
    /// Of texts and their tokens; of equal texts the last one counts, empty ones do not.
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

    /// Before the first byte.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor {
            prefixes: self,
            from: 0,
            to: self.tokens.len(),
            depth: 0,
        }
    }

    /// The longest text that `text` begins with: its token and length.
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
    /// Reads a byte; `None` if no text begins so.
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
            // A text that ends here comes first, and has no next byte.
            let next = |index: usize| p.text(index).get(self.depth).copied();
            self.from = partition_point(self.from, self.to, |i| next(i) < Some(byte));
            self.to = partition_point(self.from, self.to, |i| next(i) == Some(byte));
        }
        self.depth += 1;
        (self.from < self.to).then_some(self)
    }

    /// The token of exactly what has been read.
    #[inline]
    pub fn token(&self) -> Option<Token> {
        let p = self.prefixes;
        (self.from < self.to && p.text(self.from).len() == self.depth).then(|| p.tokens[self.from])
    }
}

/// The first index of `from..to` at which `before` no longer holds.
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
    fn the_longest_beginning_is_found() {
        let texts = ["a", "ab", "abcd", "b", "", "ab", "\u{e9}"];
        let prefixes = Prefixes::new(texts.iter().zip(0..));
        assert_eq!(prefixes.longest(b"abc"), Some((5, 2)), "the last of equal texts");
        assert_eq!(prefixes.longest(b"abcde"), Some((2, 4)));
        assert_eq!(prefixes.longest("\u{e9}b".as_bytes()), Some((6, 2)));
        assert_eq!(prefixes.longest(b"c"), None);
        assert_eq!(prefixes.longest(b""), None);
        assert_eq!(Prefixes::default().longest(b"a"), None);
    }
}
