//! Splits text at special tokens before tokenization.
//!
//! Longer tokens take precedence over shorter ones, wherever they occur; matches of equal length are placed
//! left to right. One pass finds the longest token starting at every position. Tokens are then placed in
//! order of decreasing length. A position whose token overlaps a placed token falls back to the next shorter
//! token that starts there.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Token, TokenAttr};

/// Fragment of the input text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fragment {
    /// Non-empty byte range to be tokenized.
    Text(Range<usize>),
    /// Special token found in the text.
    Token(Token),
}

/// Matcher for a set of special tokens.
#[derive(Debug, Default)]
pub(super) struct Partition {
    /// Special tokens, sorted by text.
    specials: Vec<SpecialToken>,
    /// Range of `specials` for each first byte.
    by_first: Vec<Range<usize>>,
}

#[derive(Debug)]
struct SpecialToken {
    text: Box<[u8]>,
    token: Token,
    attr: TokenAttr,
    /// Index of the longest special token that is a proper prefix of this token.
    shorter: Option<usize>,
}

impl Partition {
    /// Creates a matcher. The first of equal texts wins. Empty texts are ignored, and so are invalid UTF-8
    /// texts, which could match inside a character.
    pub fn new<'a>(specials: impl Iterator<Item = (Token, &'a [u8], TokenAttr)>) -> Self {
        let mut specials: Vec<SpecialToken> = specials
            .filter(|(_, text, _)| !text.is_empty() && std::str::from_utf8(text).is_ok())
            .map(|(token, text, attr)| SpecialToken {
                text: text.into(),
                token,
                attr,
                shorter: None,
            })
            .collect();
        specials.sort_by(|a, b| a.text.cmp(&b.text).then(a.token.cmp(&b.token)));
        specials.dedup_by(|b, a| a.text == b.text);
        let mut prefixes: Vec<usize> = Vec::new();
        for i in 0..specials.len() {
            while prefixes
                .last()
                .is_some_and(|&p| !specials[i].text.starts_with(&specials[p].text))
            {
                prefixes.pop();
            }
            specials[i].shorter = prefixes.last().copied();
            prefixes.push(i);
        }
        let by_first = (0..=255_u8).map(|first| {
            let start = specials.partition_point(|special| special.text[0] < first);
            start..start + specials[start..].partition_point(|special| special.text[0] == first)
        });
        Self {
            by_first: by_first.collect(),
            specials,
        }
    }

    /// Splits `text` into fragments.
    pub fn split(&self, text: &str) -> Vec<Fragment> {
        let found = self.place(text.as_bytes());
        let mut fragments = Vec::with_capacity(found.len() * 2 + 1);
        let mut done = 0;
        for Placed { taken, token } in found {
            if done < taken.start {
                fragments.push(Fragment::Text(done..taken.start));
            }
            fragments.push(Fragment::Token(token));
            done = taken.end;
        }
        if done < text.len() {
            fragments.push(Fragment::Text(done..text.len()));
        }
        fragments
    }

    /// Returns the special tokens in a text with the ranges that they cover, left to right.
    pub fn matches(&self, text: &str) -> Vec<(Range<usize>, Token)> {
        let placed = self.place(text.as_bytes()).into_iter();
        placed.map(|placed| (placed.taken, placed.token)).collect()
    }

    /// Returns the matched tokens with the ranges they cover, left to right.
    fn place(&self, text: &[u8]) -> Vec<Placed> {
        if self.specials.is_empty() {
            return Vec::new();
        }
        // Candidate matches (position, token) by token length.
        let mut by_len: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        let add = |by_len: &mut BTreeMap<usize, Vec<_>>, at: usize, special: usize| {
            by_len
                .entry(self.specials[special].text.len())
                .or_default()
                .push((at, special));
        };
        for at in 0..text.len() {
            if let Some(special) = self.longest(&text[at..]) {
                add(&mut by_len, at, special);
            }
        }
        let mut taken = Taken(vec![0; if by_len.is_empty() { 0 } else { text.len().div_ceil(64) }]);
        let mut placed = Vec::new();
        while let Some((_, mut places)) = by_len.pop_last() {
            // Restores the left-to-right order after fallbacks were appended.
            places.sort_unstable();
            for (at, special) in places {
                let special = &self.specials[special];
                let end = at + special.text.len();
                // Placed tokens are at least as long as this token, so checking both ends detects every
                // overlap.
                if taken.get(at) {
                    continue;
                }
                if taken.get(end - 1) {
                    if let Some(shorter) = special.shorter {
                        add(&mut by_len, at, shorter);
                    }
                    continue;
                }
                let range = strip(text, at..end, special.attr, &taken);
                taken.set(range.clone());
                placed.push(Placed {
                    taken: range,
                    token: special.token,
                });
            }
        }
        placed.sort_unstable_by_key(|placed| placed.taken.start);
        placed
    }

    /// Returns the longest special token that is a prefix of `text`.
    fn longest(&self, text: &[u8]) -> Option<usize> {
        let mut range = self.by_first[usize::from(text[0])].clone();
        let mut found = None;
        let mut depth = 1;
        while !range.is_empty() {
            // A text that ends at this depth sorts first.
            if self.specials[range.start].text.len() == depth {
                found = Some(range.start);
                range.start += 1;
            }
            let Some(&next) = text.get(depth) else { break };
            let rest = &self.specials[range.clone()];
            let start = rest.partition_point(|special| special.text[depth] < next);
            let n = rest[start..].partition_point(|special| special.text[depth] == next);
            range = range.start + start..range.start + start + n;
            depth += 1;
        }
        found
    }
}

#[derive(Debug)]
struct Placed {
    taken: Range<usize>,
    token: Token,
}

/// Bitmap of the text bytes that matches cover.
struct Taken(Vec<u64>);

impl Taken {
    fn get(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 != 0
    }

    fn set(&mut self, range: Range<usize>) {
        for at in range {
            self.0[at / 64] |= 1 << (at % 64);
        }
    }
}

/// Extends a match over the whitespace that its attributes strip.
fn strip(text: &[u8], mut range: Range<usize>, attr: TokenAttr, taken: &Taken) -> Range<usize> {
    let is_space = |at: usize| matches!(text[at], b' ' | b'\t'..=b'\r') && !taken.get(at);
    if attr.intersects(TokenAttr::LSTRIP) {
        while range.start > 0 && is_space(range.start - 1) {
            range.start -= 1;
        }
    }
    if attr.intersects(TokenAttr::RSTRIP) {
        while range.end < text.len() && is_space(range.end) {
            range.end += 1;
        }
    }
    range
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;

    fn partition(texts: &[&str], attr: TokenAttr) -> Partition {
        Partition::new(
            texts
                .iter()
                .zip(0..)
                .map(|(text, token)| (token, text.as_bytes(), attr)),
        )
    }

    fn split(texts: &[&str], attr: TokenAttr, text: &str) -> String {
        let shown = partition(texts, attr)
            .split(text)
            .into_iter()
            .map(|fragment| match fragment {
                Fragment::Text(range) => text[range].to_owned(),
                Fragment::Token(token) => format!("[{token}]"),
            });
        shown.collect::<Vec<_>>().join("|")
    }

    #[test]
    fn longest_token_takes_precedence() {
        let none = TokenAttr::UNDEFINED;
        assert_eq!(split(&["<s>", "</s>"], none, "<s>a b</s>"), "[0]|a b|[1]");
        assert_eq!(split(&["ab", "abc", "bcd"], none, "xabcd ab"), "x|[1]|d |[0]");
        // The longer token wins although it starts later.
        assert_eq!(split(&["ab", "bcd"], none, "abcd"), "a|[1]");
        assert_eq!(split(&["\n", "\n\n", "\n\n\n"], none, "\n\n\n\n\nx\n"), "[2]|[1]|x|[0]");
        assert_eq!(split(&["a", "a"], none, "aba"), "[0]|b|[0]");
        assert_eq!(split(&["aa"], none, "aaaaa"), "[0]|[0]|a");
        assert_eq!(split(&[], none, "a"), "a");
        assert_eq!(split(&["a"], none, ""), "");
    }

    #[test]
    fn strip_attributes_absorb_whitespace() {
        assert_eq!(split(&["<m>"], TokenAttr::LSTRIP, "a \n<m> b  <m>"), "a|[0]| b|[0]");
        assert_eq!(
            split(&["<m>"], TokenAttr::RSTRIP, "a <m> \tb <m>  <m> "),
            "a |[0]|b |[0]|[0]"
        );
        // U+3000 does not count as whitespace.
        assert_eq!(split(&["<m>"], TokenAttr::RSTRIP, "<m>\u{3000}"), "[0]|\u{3000}");
        // A stripped space does not match as a token.
        assert_eq!(
            split(&["<m>", " "], TokenAttr::RSTRIP | TokenAttr::LSTRIP, "a <m> b c"),
            "a|[0]|b|[1]|c"
        );
    }

    #[test]
    fn split_never_cuts_characters() {
        let texts: [&[u8]; 3] = [b"\xe6", b"", "字".as_bytes()];
        let partition = Partition::new(
            texts
                .iter()
                .zip(0..)
                .map(|(text, token)| (token, *text, TokenAttr::UNDEFINED)),
        );
        assert_eq!(partition.split("漢字"), [Fragment::Text(0..3), Fragment::Token(2)]);
    }

    #[test]
    fn many_overlapping_tokens_take_linear_time() {
        let texts: Vec<String> = (1..=31).map(|n| "\n".repeat(n)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let partition = partition(&texts, TokenAttr::UNDEFINED);
        let text = "\n".repeat(1 << 20);
        let started = Instant::now();
        assert_eq!(partition.split(&text).len(), (1_usize << 20).div_ceil(31));
        assert!(started.elapsed().as_secs() < 20);
    }

    /// Reference implementation: one pass over the text per token.
    fn naive(texts: &[String], text: &str) -> Vec<Fragment> {
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(texts[i].len()));
        let mut fragments = vec![Fragment::Text(0..text.len())];
        for i in order {
            fragments = fragments
                .into_iter()
                .flat_map(|fragment| match fragment {
                    Fragment::Text(range) => {
                        let mut parts = Vec::new();
                        let mut at = range.start;
                        while let Some(hit) = text[at..range.end].find(&texts[i]).map(|hit| at + hit) {
                            parts.push(Fragment::Text(at..hit));
                            parts.push(Fragment::Token(i as Token));
                            at = hit + texts[i].len();
                        }
                        parts.push(Fragment::Text(at..range.end));
                        parts
                    }
                    token => vec![token],
                })
                .filter(|fragment| !matches!(fragment, Fragment::Text(range) if range.is_empty()))
                .collect();
        }
        fragments
    }

    proptest! {
        #[test]
        fn split_agrees_with_reference(lens in prop::collection::btree_map(1..7_usize, "[ab]{6}", 1..5), text in "[ab]{0,40}") {
            // The vocabulary has one token of each length, because the reference does not order overlapping
            // tokens of equal length.
            let texts: Vec<String> = lens.iter().map(|(&len, text)| text[..len].to_owned()).collect();
            let refs: Vec<&str> = texts.iter().map(String::as_str).collect();
            prop_assert_eq!(partition(&refs, TokenAttr::UNDEFINED).split(&text), naive(&texts, &text));
        }
    }
}
