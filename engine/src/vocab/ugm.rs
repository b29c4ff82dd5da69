//! Unigram vocabularies (T5, XLM-RoBERTa): text is normalized as SentencePiece does, and the tokens are those whose scores have the
//! greatest sum (Viterbi).

use super::charsmap::Charsmap;
use super::prefixes::Prefixes;
use super::tokens::Tokens;
use super::words::SPACE;
use super::{Token, TokenAttr, VocabError, VocabSource};

/// How much worse an unknown character is than the worst token.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The tokenizer.
#[derive(Debug)]
pub(super) struct Ugm {
    unknown: Option<Token>,
    unknown_score: f32,
    tokens: Prefixes,
    /// Never normalized.
    user_defined: Prefixes,
    charsmap: Charsmap,
    merge_spaces: bool,
}

/// The best tokens up to a place in the text.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    /// Where the last of them starts.
    from: usize,
    /// The last of them.
    token: Option<Token>,
}

impl Ugm {
    /// Prepares the tokens; the table of normalizations must be sound.
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

    /// Appends the tokens of `text`, with a space before it if `prefix` says so.
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

    /// Appends the tokens that lead to the end; neighbours that are unknown become one.
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

    /// The text with beginnings replaced and spaces written as `▁`.
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

    /// How much of the text's beginning becomes what: a token as it is, the longest beginning of the table, or a character.
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
            // The table can end in the middle of a character.
            Err(_) => (1, "\u{fffd}".as_bytes()),
        }
    }
}

/// Scores are logarithms of probabilities; what users define comes before all of them.
fn token_score(tokens: &Tokens, token: Token) -> f64 {
    if tokens.attr(token).intersects(TokenAttr::USER_DEFINED) {
        return 0.0;
    }
    tokens.scores.get(token as usize).copied().unwrap_or(0.0).into()
}

/// Bytes of a character by its first; 1 for what begins none.
fn char_len(first: u8) -> usize {
    match first {
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
        _ => 1,
    }
}
