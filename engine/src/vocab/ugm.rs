//! Unigram tokenizer (T5, XLM-RoBERTa): SentencePiece normalization, then the token sequence with the highest
//! score sum (Viterbi).

use super::charsmap::Charsmap;
use super::prefixes::Prefixes;
use super::tokens::Tokens;
use super::words::SPACE;
use super::{Token, TokenAttr, VocabError, VocabSource};

/// Score of an unknown character, relative to the lowest token score.
const UNKNOWN_PENALTY: f32 = 10.0;

#[derive(Debug)]
pub(super) struct Ugm {
    unknown: Option<Token>,
    unknown_score: f32,
    tokens: Prefixes,
    /// Tokens that are exempt from normalization.
    user_defined: Prefixes,
    charsmap: Charsmap,
    merge_spaces: bool,
}

#[derive(Clone, Copy)]
struct Best {
    score: f64,
    /// Byte offset at which the last token starts.
    from: usize,
    /// Last token of the best segmentation.
    token: Option<Token>,
}

impl Ugm {
    /// Builds the tokenizer.
    ///
    /// # Errors
    /// Returns [`VocabError::MalformedCharsmap`] if the normalization table is invalid.
    pub fn new(source: &VocabSource, tokens: &Tokens, unknown: Option<Token>) -> Result<Ugm, VocabError> {
        const MATCHED: TokenAttr = TokenAttr::NORMAL
            .union(TokenAttr::USER_DEFINED)
            .union(TokenAttr::UNUSED);
        let with = |wanted: TokenAttr| {
            let all = (0..tokens.n).filter(move |&token| tokens.attr(token).intersects(wanted));
            all.map(|token| (tokens.text(token), token))
        };
        let scores = with(TokenAttr::NORMAL).filter_map(|(_, token)| tokens.scores.get(token as usize));
        let worst = scores.fold(f32::MAX, |worst, &score| worst.min(score));
        Ok(Ugm {
            unknown,
            unknown_score: worst - UNKNOWN_PENALTY,
            tokens: Prefixes::new(with(MATCHED)),
            user_defined: Prefixes::new(with(TokenAttr::USER_DEFINED)),
            charsmap: match &source.charsmap {
                Some(table) => Charsmap::new(table)?,
                None => Charsmap::default(),
            },
            merge_spaces: source.remove_extra_whitespaces.unwrap_or(false),
        })
    }

    /// Appends the tokens of `text`, with a leading space if `prefix` is set.
    pub fn tokenize(&self, tokens: &Tokens, text: &str, prefix: bool, out: &mut Vec<Token>) {
        let text = self.normalize(text.as_bytes(), prefix);
        let start = Best {
            score: 0.0,
            from: 0,
            token: self.unknown,
        };
        let unreached = Best {
            score: f64::MIN,
            ..start
        };
        let mut best = vec![unreached; text.len() + 1];
        best[0] = start;
        let mut at = 0;
        while at < text.len() {
            let score = best[at].score;
            let n_char = char_len(text[at]).min(text.len() - at);
            let mut improve = |to: usize, token: Option<Token>, score: f64| {
                if score > best[to].score {
                    best[to] = Best { score, from: at, token };
                }
            };
            let (mut cursor, mut is_char_known) = (self.tokens.cursor(), false);
            for (i, &byte) in text[at..].iter().enumerate() {
                let Some(next) = cursor.step(byte) else { break };
                cursor = next;
                if let Some(token) = cursor.token() {
                    is_char_known |= i + 1 == n_char;
                    improve(at + i + 1, Some(token), score + token_score(tokens, token));
                }
            }
            if !is_char_known {
                improve(at + n_char, self.unknown, score + f64::from(self.unknown_score));
            }
            at += n_char;
        }
        self.backtrack(&best, out);
    }

    /// Appends the best token sequence; adjacent unknown tokens are collapsed into one.
    fn backtrack(&self, best: &[Best], out: &mut Vec<Token>) {
        let (first, mut at) = (out.len(), best.len() - 1);
        let mut after_unknown = false;
        while at > 0 {
            let Best { from, token, .. } = best[at];
            let is_unknown = token == self.unknown;
            if !(is_unknown && after_unknown) {
                out.extend(token);
            }
            after_unknown = is_unknown;
            at = from;
        }
        out[first..].reverse();
    }

    /// Applies the normalization table and writes spaces as `▁`.
    fn normalize(&self, text: &[u8], prefix: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len() + SPACE.len());
        let (mut in_word, mut has_prefix) = (false, false);
        let mut at = 0;
        while at < text.len() {
            let (consumed, replacement) = self.replace(&text[at..]);
            for &byte in replacement {
                if byte != b' ' {
                    if !in_word && ((prefix && !has_prefix) || self.merge_spaces) {
                        out.extend_from_slice(SPACE.as_bytes());
                        has_prefix = true;
                    }
                    in_word = true;
                    out.push(byte);
                } else {
                    in_word = false;
                    if !self.merge_spaces {
                        out.extend_from_slice(SPACE.as_bytes());
                    }
                }
            }
            at += consumed;
        }
        out
    }

    /// Normalizes the start of `text`. Returns the number of bytes consumed and their replacement: a
    /// user-defined token, the longest match in the table, or a single character.
    fn replace<'a>(&'a self, text: &'a [u8]) -> (usize, &'a [u8]) {
        if let Some((_, len)) = self.user_defined.longest(text) {
            return (len, &text[..len]);
        }
        if let Some(found) = self.charsmap.longest(text) {
            return found;
        }
        let len = char_len(text[0]).min(text.len());
        match std::str::from_utf8(&text[..len]) {
            Ok(c) => (len, c.as_bytes()),
            // A match in the table may end inside a character.
            Err(_) => (1, "\u{fffd}".as_bytes()),
        }
    }
}

/// Returns the log-probability of a token. User-defined tokens score 0, above all others.
fn token_score(tokens: &Tokens, token: Token) -> f64 {
    if tokens.attr(token).intersects(TokenAttr::USER_DEFINED) {
        return 0.0;
    }
    tokens.scores.get(token as usize).copied().unwrap_or(0.0).into()
}

/// Returns the length of a UTF-8 character by its first byte; 1 for invalid bytes.
fn char_len(first: u8) -> usize {
    match first {
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
        _ => 1,
    }
}
