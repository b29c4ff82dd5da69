//! PLaMo-2 tokenizer: maximizes the sum of token scores by dynamic programming from the end of the text.
//! Characters without a token become bytes.

use super::prefixes::Prefixes;
use super::tokens::Tokens;
use super::{Token, TokenAttr, VocabError, bytes};

/// Fixed-point scale of the costs.
const PER_ONE: f64 = 1e4;
/// Cost of a character that is encoded as bytes.
const UNKNOWN_COST: i64 = 10_000_000;
/// Tokens of this cost or more are never used.
const MAX_COST: i64 = 20_000_000;

#[derive(Debug)]
pub(super) struct Plamo2 {
    tokens: Prefixes,
    /// Cost of each token, valid for entries of `tokens`.
    costs: Vec<i64>,
    /// Byte token of each byte.
    bytes: [Token; 256],
}

/// Cheapest tokenization from a position to the end of the text.
#[derive(Clone, Copy)]
struct Best {
    cost: i64,
    /// Length of the first piece in bytes.
    len: usize,
    /// `None`: the piece is encoded as byte tokens.
    token: Option<Token>,
}

impl Plamo2 {
    /// Builds the tokenizer.
    ///
    /// # Errors
    /// Returns [`VocabError::MissingByte`] if a byte has no token.
    pub fn new(tokens: &Tokens) -> Result<Plamo2, VocabError> {
        let (mut of_byte, mut costs) = ([None; 256], vec![MAX_COST; tokens.n as usize]);
        let mut matched = Vec::new();
        for token in 0..tokens.n {
            let (text, attr) = (tokens.text(token), tokens.attr(token));
            if attr.intersects(TokenAttr::BYTE) {
                if let Some(byte) = bytes::hex_byte(text) {
                    of_byte[usize::from(byte)] = Some(token);
                }
                continue;
            }
            let score = tokens.scores.get(token as usize).copied().unwrap_or(0.0);
            let cost = (f64::from(-score) * PER_ONE).round();
            // Special tokens are split off before tokenization if parsing is enabled; otherwise they are
            // plain text.
            let is_text = attr.intersects(TokenAttr::NORMAL | TokenAttr::USER_DEFINED);
            if is_text && cost.is_finite() && cost < MAX_COST as f64 {
                costs[token as usize] = (cost as i64).max(i64::from(i32::MIN));
                matched.push((text, token));
            }
        }
        let mut bytes = [0; 256];
        for (byte, token) in of_byte.into_iter().enumerate() {
            bytes[byte] = token.ok_or(VocabError::MissingByte { byte: byte as u8 })?;
        }
        Ok(Plamo2 {
            tokens: Prefixes::new(matched.into_iter()),
            costs,
            bytes,
        })
    }

    pub fn tokenize(&self, text: &str, out: &mut Vec<Token>) {
        let mut best = vec![
            Best {
                cost: 0,
                len: 0,
                token: None,
            };
            text.len() + 1
        ];
        for (at, c) in text.char_indices().rev() {
            best[at] = self.step(text, at, c.len_utf8(), &best);
        }
        let mut at = 0;
        while at < text.len() {
            let Best { len, token, .. } = best[at];
            match token {
                Some(token) => out.push(token),
                None => out.extend(
                    text.as_bytes()[at..at + len]
                        .iter()
                        .map(|&b| self.bytes[usize::from(b)]),
                ),
            }
            at += len;
        }
    }

    /// Returns the cheapest first piece at a position; ties prefer the longest. `n_char` is the length of the
    /// character there in bytes.
    fn step(&self, text: &str, at: usize, n_char: usize, best: &[Best]) -> Best {
        let mut found = Best {
            cost: UNKNOWN_COST + best[at + n_char].cost,
            len: n_char,
            token: None,
        };
        let mut cursor = self.tokens.cursor();
        for (i, &byte) in text.as_bytes()[at..].iter().enumerate() {
            let Some(next) = cursor.step(byte) else { break };
            cursor = next;
            let to = at + i + 1;
            if !text.is_char_boundary(to) {
                continue;
            }
            let Some(token) = cursor.token() else { continue };
            let cost = self.costs[token as usize] + best[to].cost;
            if cost <= found.cost {
                found = Best {
                    cost,
                    len: i + 1,
                    token: Some(token),
                };
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::StringArray;
    use crate::vocab::{Special, Vocab, VocabSource};
    use std::borrow::Cow;

    const N_SPECIAL: usize = 4;

    /// Builds a vocabulary of four special tokens, the given tokens, and all byte tokens.
    fn vocab(tokens: &[(&str, f32)]) -> Vocab {
        let specials = ["unk", "bos", "eos", "pad"].map(|name| format!("<|plamo:{name}|>"));
        let bytes = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>"));
        let texts = specials
            .into_iter()
            .chain(tokens.iter().map(|(t, _)| (*t).to_owned()))
            .chain(bytes);
        let texts: Vec<String> = texts.collect();
        let n = texts.len();
        let mut scores = vec![0.0; n];
        let mut types = vec![6; n];
        types[..N_SPECIAL].copy_from_slice(&[2, 3, 3, 3]);
        for (i, (_, score)) in tokens.iter().enumerate() {
            (scores[N_SPECIAL + i], types[N_SPECIAL + i]) = (*score, 1);
        }
        let source = VocabSource {
            model: "plamo2",
            tokens: Some(Cow::Owned(texts.iter().map(String::as_str).collect::<StringArray>())),
            scores: Some(scores.into()),
            token_types: Some(types.into()),
            ..VocabSource::default()
        };
        Vocab::from_source(&source).expect("a vocabulary")
    }

    /// Brute-force reference: the cheapest tokenization, where ties prefer the longest first piece, then the
    /// longest second piece, and so on.
    fn brute_force(tokens: &[(&str, f32)], text: &str) -> (i64, Vec<usize>) {
        let Some(first) = text.chars().next() else {
            return (0, Vec::new());
        };
        let mut steps: Vec<(usize, i64)> = vec![(first.len_utf8(), UNKNOWN_COST)];
        let cost = |score: f32| (f64::from(score) * -1e4).round() as i64;
        let fitting = tokens
            .iter()
            .filter(|(t, score)| text.starts_with(t) && cost(*score) < MAX_COST);
        steps.extend(fitting.map(|(t, score)| (t.len(), cost(*score))));
        let ways = steps.into_iter().map(|(len, cost)| {
            let (rest, mut lens) = brute_force(tokens, &text[len..]);
            lens.insert(0, len);
            (cost + rest, lens)
        });
        ways.min_by(|(a, lens_a), (b, lens_b)| a.cmp(b).then(lens_b.cmp(lens_a)))
            .expect("a way")
    }

    /// Returns the lengths of the pieces in bytes; byte tokens of one character count as one piece.
    fn lens(vocab: &Vocab, text: &str) -> Vec<usize> {
        let mut ends: Vec<usize> = Vec::new();
        let mut at = 0;
        for token in vocab.tokenize(text, false, false) {
            at += vocab.token_to_piece(token, false).len();
            if text.is_char_boundary(at) {
                ends.push(at);
            }
        }
        assert_eq!(at, text.len(), "{text:?}");
        let starts = std::iter::once(0).chain(ends.iter().copied());
        starts.zip(&ends).map(|(start, end)| end - start).collect()
    }

    #[test]
    fn tokenize_agrees_with_brute_force() {
        let all: &[&[(&str, f32)]] = &[
            &[
                ("a", -1.0),
                ("b", -1.0),
                ("ab", -2.0),
                ("ba", -1.5),
                ("aba", -3.0),
                ("bb", -2.0),
            ],
            &[
                ("a", -1.0),
                ("aa", -2.0),
                ("aaa", -3.0),
                ("é", -2.0),
                ("aé", -2.5),
                ("éa", -2.0),
            ],
            &[
                ("ab", -0.1),
                ("bé", -0.1),
                ("aab", -1999.0),
                ("b", -1500.0),
                ("a", -2000.0),
                ("é", f32::NAN),
            ],
            &[
                ("a", 3.0),
                ("ab", 5.99996),
                ("b", 3.0),
                ("語", f32::NEG_INFINITY),
                ("語a", 1.0),
            ],
        ];
        for tokens in all {
            let vocab = vocab(tokens);
            let letters = ['a', 'b', 'é', '語'];
            for n in 0..4_usize.pow(6) {
                let text: String = (0..6).map(|i| letters[n / 4_usize.pow(i) % 4]).collect();
                let text: String = text.chars().take(1 + n % 6).collect();
                assert_eq!(
                    lens(&vocab, &text),
                    brute_force(tokens, &text).1,
                    "{text:?} by {tokens:?}"
                );
            }
        }
    }

    #[test]
    fn unknown_characters_become_bytes() {
        let vocab = vocab(&[("a", -1.0)]);
        let byte = |b: u8| (N_SPECIAL + 1 + usize::from(b)) as Token;
        let tokens = |text: &str| vocab.tokenize(text, false, false);
        assert_eq!(tokens("aé"), [4, byte(0xc3), byte(0xa9)]);
        assert_eq!(tokens("\0\u{10ffff}"), [0, 0xf4, 0x8f, 0xbf, 0xbf].map(byte));
        // A byte order mark is ordinary text, even at the start.
        let mark = [0xef, 0xbb, 0xbf].map(byte);
        assert_eq!(tokens("\u{feff}a\u{feff}"), [&mark[..], &[4], &mark].concat());
        assert!(tokens("").is_empty());
        for text in ["e\u{301}\u{200d}👩\u{200d}👧 a", "\r\n\t \u{85}", "aaa\u{fffd}"] {
            assert_eq!(vocab.detokenize(&tokens(text), false, false), text);
        }
        let long = "aé語".repeat(50_000);
        assert_eq!(tokens(&long).len(), 6 * 50_000);
    }

    #[test]
    fn special_tokens_are_plain_text_by_default() {
        let vocab = vocab(&[("<|plamo:", -1.0), ("eos|>", -1.0), ("<|plamo:eos|>", -9.0)]);
        assert_eq!((vocab.bos(), vocab.eos()), (Some(1), Some(2)));
        assert_eq!(vocab.special(Special::Pad), Some(3));
        assert_eq!(vocab.tokenize("<|plamo:eos|>", false, true), [2]);
        assert_eq!(vocab.tokenize("<|plamo:eos|>", false, false), [4, 5]);
        assert!(vocab.is_eog(2));
    }

    #[test]
    fn missing_byte_token_is_an_error() {
        let source = VocabSource {
            model: "plamo2",
            tokens: Some(Cow::Owned(["<0x00>", "a"].into_iter().collect::<StringArray>())),
            scores: Some(vec![0.0, 0.0].into()),
            token_types: Some(vec![6, 1].into()),
            ..VocabSource::default()
        };
        let error = Vocab::from_source(&source)
            .expect_err("byte tokens are missing")
            .to_string();
        assert!(error.contains("<0x01>"), "{error}");
    }
}
