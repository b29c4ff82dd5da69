//! SentencePiece BPE tokenizer: merges adjacent symbols into tokens, highest score first.

use super::Token;
use super::bytes;
use super::merge::{MAX_WORD, Merge, Merger, NONE, Pairs, Symbol};
use super::tokens::Tokens;
use super::words::{SPACE, SafeCuts, WordMemory};

#[derive(Debug)]
pub(super) struct Spm {
    /// Token of each ASCII character.
    ascii: [u32; 128],
    /// Byte tokens for characters without a token.
    byte_tokens: [u32; 256],
    unknown: Option<Token>,
    /// Rank of each token by score; smaller ranks merge first.
    ranks: Vec<u32>,
    /// Length of the longest token in bytes.
    len_max: u32,
    cuts: SafeCuts,
}

/// Merge rules: looks up the concatenation of two symbols.
struct Lookup<'a> {
    spm: &'a Spm,
    tokens: &'a Tokens,
}

impl Spm {
    pub fn new(tokens: &Tokens, unknown: Option<Token>) -> Self {
        let find = |text: &[u8]| tokens.find(text).unwrap_or(NONE);
        let byte_token = |byte: u8| tokens.find(&bytes::hex_token(byte)).unwrap_or_else(|| find(&[byte]));
        Self {
            ascii: std::array::from_fn(|b| find(&[b as u8])),
            byte_tokens: std::array::from_fn(|b| byte_token(b as u8)),
            unknown,
            ranks: (0..tokens.n)
                .map(|token| rank(tokens.scores.get(token as usize).copied().unwrap_or(0.0)))
                .collect(),
            len_max: (0..tokens.n)
                .map(|token| tokens.text(token).len())
                .max()
                .unwrap_or(0)
                .min(MAX_WORD) as u32,
            cuts: SafeCuts::new(&tokens.table),
        }
    }

    /// Returns the token of a byte, `<0xXX>` or the byte itself.
    pub fn byte_token(&self, byte: u8) -> Option<Token> {
        Some(self.byte_tokens[usize::from(byte)]).filter(|&token| token != NONE)
    }

    /// Appends the tokens of `text`, with a leading space if `prefix` is set.
    pub fn tokenize(&self, tokens: &Tokens, text: &str, prefix: bool, out: &mut Vec<Token>) {
        let mut escaped = text.replace(' ', SPACE);
        if prefix {
            escaped.insert_str(0, SPACE);
        }
        let mut memory = WordMemory::new(escaped.len());
        let mut merger = Merger::default();
        self.cuts.split(&escaped, |word| {
            memory.tokens(escaped.as_bytes(), word.clone(), out, |out| {
                self.word(tokens, &escaped[word], &mut merger, out);
            });
        });
    }

    fn word(&self, tokens: &Tokens, mut word: &str, merger: &mut Merger, out: &mut Vec<Token>) {
        while word.len() > MAX_WORD {
            let (head, tail) = word.split_at(word.floor_char_boundary(MAX_WORD));
            self.word(tokens, head, merger, out);
            word = tail;
        }
        merger.symbols.clear();
        merger.symbols.extend(word.char_indices().map(|(start, c)| {
            let len = c.len_utf8();
            let id = match self.ascii.get(c as usize) {
                Some(&id) => id,
                None => tokens.find(&word.as_bytes()[start..start + len]).unwrap_or(NONE),
            };
            Symbol {
                id,
                start: start as u32,
                len: len as u32,
            }
        }));
        merger.run(word.as_bytes(), &Lookup { spm: self, tokens });
        for symbol in &merger.symbols {
            if symbol.id == NONE {
                self.unknown_char(&word.as_bytes()[symbol.start as usize..][..symbol.len as usize], out);
            } else {
                out.push(symbol.id);
            }
        }
    }

    /// Appends the byte tokens of a character without a token, or the unknown token if the vocabulary lacks
    /// byte tokens.
    fn unknown_char(&self, text: &[u8], out: &mut Vec<Token>) {
        if text.iter().all(|&b| self.byte_tokens[usize::from(b)] != NONE) {
            out.extend(text.iter().map(|&b| self.byte_tokens[usize::from(b)]));
        } else {
            out.extend(self.unknown);
        }
    }
}

impl Pairs for Lookup<'_> {
    #[inline]
    fn merge(&self, word: &[u8], left: &Symbol, right: &Symbol) -> Option<Merge> {
        let len = left.len + right.len;
        if len > self.spm.len_max {
            return None;
        }
        let id = self.tokens.find(&word[left.start as usize..][..len as usize])?;
        Some(Merge {
            rank: self.spm.ranks[id as usize],
            id,
        })
    }
}

/// Maps scores to ranks in descending order; NaN ranks last.
fn rank(score: f32) -> u32 {
    if score.is_nan() {
        return u32::MAX;
    }
    // Adding zero normalizes -0.0. Then the bits of positive numbers ascend and those of negative numbers
    // descend.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_score_has_lower_rank() {
        let scores = [
            f32::INFINITY,
            3.5,
            1.0,
            0.0,
            -0.5,
            -1000.0,
            f32::MIN,
            f32::NEG_INFINITY,
            f32::NAN,
        ];
        assert!(scores.is_sorted_by(|&a, &b| rank(a) < rank(b)));
        assert_eq!(rank(0.0), rank(-0.0));
    }
}
