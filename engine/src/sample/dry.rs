//! DRY ("don't repeat yourself"): penalizes tokens that would extend a repetition. The penalty grows with the
//! length of the repetition.

use super::sampler::TokenPieces;
use super::{Candidates, Sampler, Token};
use std::collections::VecDeque;

/// Maximum bytes of a sequence breaker, and maximum tokens of its tail. Bounds the time to build the sampler.
const MAX_BREAKER_BYTES: usize = 40;
const MAX_TAIL: usize = 20;

/// DRY sampler: penalizes tokens that would extend a repetition. A token that followed an earlier occurrence of the
/// last `n` tokens loses `multiplier * base ^ (n - allowed_length)`. `n` is at least `allowed_length`, and only the
/// last `last_n` accepted tokens count. A repetition does not extend over a sequence breaker. Tokens that contain a
/// whole breaker are never penalized.
#[derive(Debug, Clone)]
pub struct Dry {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    last_n: usize,
    /// First token and the remaining tokens of each breaker, sorted by first token.
    breakers: Vec<(Token, Vec<Token>)>,
    /// Window of accepted tokens, oldest first.
    window: VecDeque<Token>,
    /// Scratch buffers: the reversed window, its Z-function, and the longest repeat that each token would
    /// extend.
    reversed: Vec<Token>,
    z: Vec<usize>,
    repeats: Vec<(Token, usize)>,
}

impl Dry {
    /// Creates the sampler. It is disabled if `multiplier` is 0, `base` is less than 1, or `last_n` is 0.
    /// `breakers` are token sequences that end a repetition (see [`Dry::breakers`]); empty ones are ignored.
    pub fn new(multiplier: f32, base: f32, allowed_length: usize, last_n: usize, breakers: Vec<Vec<Token>>) -> Dry {
        let mut breakers: Vec<_> = breakers
            .into_iter()
            .filter_map(|b| b.split_first().map(|(&head, tail)| (head, tail.to_vec())))
            .collect();
        breakers.sort();
        breakers.dedup();
        let last_n = if multiplier == 0.0 || base < 1.0 { 0 } else { last_n };
        Dry {
            multiplier,
            base,
            allowed_length,
            last_n,
            breakers,
            window: VecDeque::with_capacity(last_n),
            reversed: Vec::with_capacity(last_n),
            z: Vec::with_capacity(last_n),
            repeats: Vec::with_capacity(last_n),
        }
    }

    /// Returns the token sequences that can produce the strings in `breakers`. A sequence is a token that contains a
    /// breaker. Otherwise, its first token ends in a prefix of a breaker, and the tokens of the remainder follow.
    pub fn breakers(breakers: &[String], pieces: &dyn TokenPieces) -> Vec<Vec<Token>> {
        let mut sequences = Vec::new();
        for text in breakers
            .iter()
            .map(|b| cut(b, MAX_BREAKER_BYTES))
            .filter(|b| !b.is_empty())
        {
            for token in 0..pieces.n_tokens() as Token {
                let piece = pieces.piece(token);
                if piece.windows(text.len()).any(|w| w == text.as_bytes()) {
                    sequences.push(vec![token]);
                    continue;
                }
                for n in 1..text.len().min(piece.len() + 1) {
                    // A remainder that starts inside a character is not a string, and no tokenizer produces
                    // it.
                    if text.is_char_boundary(n) && piece.ends_with(&text.as_bytes()[..n]) {
                        let mut tail = pieces.tokenize(&text[n..]);
                        tail.truncate(MAX_TAIL);
                        sequences.push([vec![token], tail].concat());
                    }
                }
            }
        }
        sequences
    }

    fn breakers_from(&self, head: Token) -> &[(Token, Vec<Token>)] {
        let start = self.breakers.partition_point(|b| b.0 < head);
        let end = self.breakers.partition_point(|b| b.0 <= head);
        &self.breakers[start..end]
    }

    /// Returns the length of the longest repetition that does not extend over the latest breaker.
    /// `self.reversed` has the newest token first.
    fn max_repeat(&self) -> usize {
        for (i, &token) in self.reversed.iter().enumerate() {
            // The tail of a breaker that starts here consists of newer tokens, which precede this one in
            // `reversed`.
            let newer = &self.reversed[..i];
            let matches = |tail: &[Token]| tail.len() <= i && tail.iter().eq(newer.iter().rev().take(tail.len()));
            let longest = self
                .breakers_from(token)
                .iter()
                .filter(|b| matches(&b.1))
                .map(|b| b.1.len())
                .max();
            if let Some(n) = longest {
                return i - n;
            }
        }
        self.reversed.len()
    }

    /// Fills `self.repeats` with the length of the longest repetition that each token would extend.
    fn find_repeats(&mut self) {
        self.repeats.clear();
        self.reversed.clear();
        self.reversed.extend(self.window.iter().rev());
        if self.reversed.len() <= self.allowed_length {
            return;
        }
        let max_repeat = self.max_repeat();
        if max_repeat < self.allowed_length {
            return;
        }
        z_function(&self.reversed, &mut self.z);
        for k in 1..self.reversed.len() {
            // The last z[k] tokens also occurred k tokens earlier, followed by reversed[k - 1].
            let n = self.z[k].min(max_repeat);
            if n >= self.allowed_length {
                self.repeats.push((self.reversed[k - 1], n));
            }
        }
        // Sorts longer repetitions first, so that deduplication keeps the longest per token.
        self.repeats.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        self.repeats.dedup_by_key(|r| r.0);
        let breakers = &self.breakers;
        self.repeats.retain(|r| {
            breakers
                .binary_search_by(|b| b.0.cmp(&r.0).then(b.1.len().cmp(&0)))
                .is_err()
        });
    }
}

impl Sampler for Dry {
    fn name(&self) -> &'static str {
        "dry"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        self.find_repeats();
        candidates.edit(&self.repeats, |logit, &n| {
            // The penalty is clamped to the greatest finite number, so that long repetitions mask a token
            // instead of producing NaN.
            let growth = self.base.powf((n - self.allowed_length) as f32).min(f32::MAX);
            logit - self.multiplier * growth
        });
    }

    fn accept(&mut self, token: Token) {
        if self.last_n == 0 {
            return;
        }
        if self.window.len() == self.last_n {
            self.window.pop_front();
        }
        self.window.push_back(token);
    }

    fn reset(&mut self) {
        self.window.clear();
    }
}

/// Computes the Z-function in linear time: `z[k]` is the length of the longest common prefix of `s` and `s[k..]`.
/// `z[0]` is 0.
fn z_function(s: &[Token], z: &mut Vec<usize>) {
    z.clear();
    z.resize(s.len(), 0);
    // s[left..right] equals s[..right - left] and is the match that ends last.
    let (mut left, mut right) = (0, 0);
    for k in 1..s.len() {
        let mut n = if k < right { z[k - left].min(right - k) } else { 0 };
        while k + n < s.len() && s[n] == s[k + n] {
            n += 1;
        }
        z[k] = n;
        if k + n > right {
            (left, right) = (k, k + n);
        }
    }
}

/// Returns the longest prefix of `text` with at most `max` bytes.
fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn z_function_matches_definition() {
        let texts = ["", "a", "aaaaaa", "abcabcabc", "cbaycbccba", "abacabadabacaba"];
        for text in texts {
            let s: Vec<Token> = text.bytes().map(Token::from).collect();
            let mut z = Vec::new();
            z_function(&s, &mut z);
            for k in 1..s.len() {
                let expected = s.iter().zip(&s[k..]).take_while(|(a, b)| a == b).count();
                assert_eq!(z[k], expected, "{text} at {k}");
            }
        }
    }

    /// Vocabulary with one token per letter, and `"ab"` as token 26.
    struct Letters;

    impl TokenPieces for Letters {
        fn n_tokens(&self) -> usize {
            27
        }

        fn piece(&self, token: Token) -> std::borrow::Cow<'_, [u8]> {
            match token {
                26 => b"ab".as_slice().into(),
                _ => vec![b'a' + token as u8].into(),
            }
        }

        fn plain_piece(&self, token: Token) -> std::borrow::Cow<'_, [u8]> {
            self.piece(token)
        }

        fn tokenize(&self, text: &str) -> Vec<Token> {
            text.bytes().map(|b| Token::from(b - b'a')).collect()
        }

        fn eog_tokens(&self) -> &[Token] {
            &[]
        }

        fn eot(&self) -> Option<Token> {
            None
        }
    }

    #[test]
    fn dry_breakers_become_token_sequences() {
        let sequences = |text: &str| Dry::breakers(&[text.into()], &Letters);
        assert_eq!(sequences("b"), [vec![1], vec![26]]);
        assert_eq!(sequences("bc"), [vec![1, 2], vec![26, 2]]);
        assert_eq!(sequences("abc"), [vec![0, 1, 2], vec![26, 2]]);
        assert!(sequences("").is_empty());
    }

    #[test]
    fn dry_repetition_ends_at_latest_breaker() {
        let mut dry = Dry::new(1.0, 2.0, 1, 16, vec![vec![7, 8], vec![9]]);
        let mut max_repeat = |tokens: &[Token]| {
            dry.reset();
            tokens.iter().for_each(|&t| dry.accept(t));
            dry.find_repeats();
            dry.max_repeat()
        };
        assert_eq!(max_repeat(&[1, 2, 3, 4]), 4);
        assert_eq!(max_repeat(&[1, 9, 3, 4]), 2);
        assert_eq!(max_repeat(&[1, 7, 8, 4]), 1);
        assert_eq!(max_repeat(&[1, 7, 3, 4]), 4);
        assert_eq!(max_repeat(&[9, 1, 2, 9]), 0);
    }
}
