//! Taking special tokens out of a text before the rest is tokenized.
//!
//! The longest token goes first, wherever it stands in the text, then the next shorter one in what is left, equally
//! long ones from left to right. One pass over the text finds for every place the longest token that begins there;
//! tokens are then placed by length, and a place whose token meets one that is placed already falls back to the next
//! shorter token that begins there.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Token, TokenAttr};

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fragment {
    /// A stretch to tokenize, in bytes; never empty.
    Text(Range<usize>),
    /// A special token that stood there.
    Token(Token),
}

/// The special tokens to look for.
#[derive(Debug, Default)]
pub(super) struct Partition {
    /// Sorted by text.
    specials: Vec<SpecialToken>,
    /// Where the texts that begin with each byte stand in `specials`.
    by_first: Vec<Range<usize>>,
}

#[derive(Debug)]
struct SpecialToken {
    text: Box<[u8]>,
    token: Token,
    attr: TokenAttr,
    /// The longest other special token that this one begins with.
    shorter: Option<usize>,
}

impl Partition {
    /// Of equal texts the first counts. Empty ones and those that are not UTF-8 are left out: the latter could match in
    /// the middle of a character.
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

    /// Cuts `text` into fragments.
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

    /// The tokens and what they take of the text, from left to right.
    fn place(&self, text: &[u8]) -> Vec<Placed> {
        if self.specials.is_empty() {
            return Vec::new();
        }
        // Places by the length of the token that begins there.
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
            // Those that fell back were appended behind the others.
            places.sort_unstable();
            for (at, special) in places {
                let special = &self.specials[special];
                let end = at + special.text.len();
                // What is taken is at least as long, so it cannot lie strictly inside.
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

    /// The longest special token that `text` begins with.
    fn longest(&self, text: &[u8]) -> Option<usize> {
        let mut range = self.by_first[usize::from(text[0])].clone();
        let mut found = None;
        let mut depth = 1;
        while !range.is_empty() {
            // A text that ends here sorts before those that go on.
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

/// One bit for every byte of the text.
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

/// Widens a token's place by the white space that its attributes ask for.
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
    fn the_longest_goes_first() {
        let none = TokenAttr::UNDEFINED;
        assert_eq!(split(&["<s>", "</s>"], none, "<s>a b</s>"), "[0]|a b|[1]");
        assert_eq!(split(&["ab", "abc", "bcd"], none, "xabcd ab"), "x|[1]|d |[0]");
        // The longer one wins although it begins later.
        assert_eq!(split(&["ab", "bcd"], none, "abcd"), "a|[1]");
        assert_eq!(split(&["\n", "\n\n", "\n\n\n"], none, "\n\n\n\n\nx\n"), "[2]|[1]|x|[0]");
        assert_eq!(split(&["a", "a"], none, "aba"), "[0]|b|[0]");
        assert_eq!(split(&["aa"], none, "aaaaa"), "[0]|[0]|a");
        assert_eq!(split(&[], none, "a"), "a");
        assert_eq!(split(&["a"], none, ""), "");
    }

    #[test]
    fn white_space_is_taken_along() {
        assert_eq!(split(&["<m>"], TokenAttr::LSTRIP, "a \n<m> b  <m>"), "a|[0]| b|[0]");
        assert_eq!(
            split(&["<m>"], TokenAttr::RSTRIP, "a <m> \tb <m>  <m> "),
            "a |[0]|b |[0]|[0]"
        );
        // U+3000 is no white space here.
        assert_eq!(split(&["<m>"], TokenAttr::RSTRIP, "<m>\u{3000}"), "[0]|\u{3000}");
        // A blank that was taken along is no token of its own.
        assert_eq!(
            split(&["<m>", " "], TokenAttr::RSTRIP | TokenAttr::LSTRIP, "a <m> b c"),
            "a|[0]|b|[1]|c"
        );
    }

    #[test]
    fn characters_are_never_cut() {
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

    /// One pass over the text for every token, as the rule is worded.
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
        fn agrees_with_the_rule(lens in prop::collection::btree_map(1..7_usize, "[ab]{6}", 1..5), text in "[ab]{0,40}") {
            // One token of each length: the rule does not order equally long ones that overlap.
            let texts: Vec<String> = lens.iter().map(|(&len, text)| text[..len].to_owned()).collect();
            let refs: Vec<&str> = texts.iter().map(String::as_str).collect();
            prop_assert_eq!(partition(&refs, TokenAttr::UNDEFINED).split(&text), naive(&texts, &text));
        }
    }
}
