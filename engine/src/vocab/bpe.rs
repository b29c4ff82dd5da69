//! Byte-pair encoding: text is split into words by expressions, and the symbols of each word are merged by
//! priority.

use std::ops::Range;

use super::bytes;
use super::hash::{PairMap, pair_key, pair_map};
use super::merge::{MAX_WORD, Merge, Merger, NONE, Pairs, Symbol};
use super::pre::{Alphabet, PreTokenizer, Splitter};
use super::source::{VocabSource, key};
use super::tokens::{Tokens, checked_count};
use super::words::{SPACE, SafeCuts, WordMemory};
use super::{Token, VocabError};
use crate::gguf::{GgufError, StringArray};

/// BPE tokenizer. Symbols are the tokens, followed by parts of merges that are not tokens.
#[derive(Debug)]
pub(super) struct Bpe {
    pre: &'static PreTokenizer,
    splitter: Splitter,
    /// Symbols of single bytes (byte alphabet) or of ASCII characters (other alphabets).
    singles: [u32; 256],
    /// Fallback tokens for bytes without a symbol.
    byte_tokens: [u32; 256],
    merges: PairMap<Merge>,
    /// Safe positions to split long words; `None` unless spaces are escaped.
    cuts: Option<SafeCuts>,
}

/// Buffers reused between words.
#[derive(Default)]
struct Scratch {
    merger: Merger,
    encoded: Vec<u8>,
}

impl Bpe {
    /// Reads the merges. `name` is the name under which `pre` was looked up.
    pub fn new(
        source: &VocabSource,
        name: &str,
        pre: &'static PreTokenizer,
        tokens: &mut Tokens,
    ) -> Result<Self, VocabError> {
        let splitter = Splitter::new(pre.rules).map_err(|reason| VocabError::PreTokenizer {
            name: name.to_owned(),
            reason,
        })?;
        let merges = match source.merges.as_deref() {
            Some(merges) => read_merges(merges, tokens)?,
            // Kimi K2 is published without merges: a word is either a token or a sequence of bytes.
            None if name == "kimi-k2" => pair_map(0),
            None => {
                let expected = <&StringArray as crate::gguf::FromValue>::EXPECTED;
                return Err(GgufError::MissingKey {
                    key: key::MERGES.to_owned(),
                    expected,
                }
                .into());
            }
        };
        let mut singles = [NONE; 256];
        let mut byte_tokens = [NONE; 256];
        let table = &tokens.table;
        for byte in 0..=255_u8 {
            let at = usize::from(byte);
            if pre.alphabet == Alphabet::Bytes {
                let mut text = Vec::new();
                bytes::encode(&[byte], &mut text);
                singles[at] = table.get(&text).unwrap_or(NONE);
                byte_tokens[at] = tokens.find(&text).unwrap_or(NONE);
            } else {
                if byte.is_ascii() {
                    singles[at] = table.get(&[byte]).unwrap_or(NONE);
                }
                byte_tokens[at] = tokens.find(&bytes::hex_token(byte)).unwrap_or(NONE);
            }
        }
        let cuts = if pre.alphabet == Alphabet::Spaced {
            Some(SafeCuts::new(table))
        } else {
            None
        };
        Ok(Self {
            pre,
            splitter,
            singles,
            byte_tokens,
            merges,
            cuts,
        })
    }

    pub fn n_merges(&self) -> usize {
        self.merges.len()
    }

    pub fn tokenize(&self, tokens: &Tokens, text: &str, out: &mut Vec<Token>) {
        let escaped = match self.pre.alphabet {
            Alphabet::Bytes | Alphabet::Chars => None,
            Alphabet::Spaced | Alphabet::Metaspace => Some(text.replace(' ', SPACE)),
        };
        let text = escaped.as_deref().unwrap_or(text);
        let mut scratch = Scratch::default();
        let mut memory = WordMemory::new(text.len());
        let mut at = 0;
        self.splitter.split(text, &mut |piece| {
            let mut word = |word: Range<usize>| {
                memory.tokens(text.as_bytes(), word.clone(), out, |out| {
                    self.word(tokens, &text[word], &mut scratch, out);
                });
            };
            match (&self.cuts, self.pre.alphabet) {
                (_, Alphabet::Metaspace) => self.metaspace(tokens, piece, &mut scratch, out),
                (Some(cuts), _) => cuts.split(piece, |range| word(at + range.start..at + range.end)),
                (None, _) => word(at..at + piece.len()),
            }
            at += piece.len();
        });
    }

    /// Tokenizes words that each start with `▁`, inserting one before the first word if needed.
    fn metaspace(&self, tokens: &Tokens, line: &str, scratch: &mut Scratch, out: &mut Vec<Token>) {
        if line.starts_with('\n') {
            return self.word(tokens, line, scratch, out);
        }
        let prefixed = if line.starts_with(SPACE) {
            line.to_owned()
        } else {
            [SPACE, line].concat()
        };
        let mut start = 0;
        for (at, _) in prefixed.match_indices(SPACE).skip(1) {
            self.word(tokens, &prefixed[start..at], scratch, out);
            start = at;
        }
        self.word(tokens, &prefixed[start..], scratch, out);
    }

    /// Appends the tokens of a word.
    fn word(&self, tokens: &Tokens, mut word: &str, scratch: &mut Scratch, out: &mut Vec<Token>) {
        while word.len() > MAX_WORD {
            let (head, tail) = word.split_at(word.floor_char_boundary(MAX_WORD));
            self.word(tokens, head, scratch, out);
            word = tail;
        }
        if let Some(token) = self.whole_word(tokens, word, &mut scratch.encoded) {
            return out.push(token);
        }
        let merger = &mut scratch.merger;
        merger.symbols.clear();
        if self.pre.alphabet == Alphabet::Bytes {
            let symbols = word.bytes().zip(0..).map(|(b, start)| Symbol {
                id: self.singles[usize::from(b)],
                start,
                len: 1,
            });
            merger.symbols.extend(symbols);
        } else {
            merger.symbols.extend(word.char_indices().map(|(start, c)| {
                let len = c.len_utf8();
                let id = match u8::try_from(c) {
                    Ok(b) if b.is_ascii() => self.singles[usize::from(b)],
                    _ => tokens.table.get(&word.as_bytes()[start..start + len]).unwrap_or(NONE),
                };
                Symbol {
                    id,
                    start: start as u32,
                    len: len as u32,
                }
            }));
        }
        merger.run(word.as_bytes(), self);
        for symbol in &merger.symbols {
            if symbol.id < tokens.n {
                out.push(symbol.id);
            } else {
                // The vocabulary cannot express this text: no token and no byte tokens exist, so the text is
                // dropped.
                let text = &word.as_bytes()[symbol.start as usize..][..symbol.len as usize];
                out.extend(
                    text.iter()
                        .map(|&b| self.byte_tokens[usize::from(b)])
                        .filter(|&token| token != NONE),
                );
            }
        }
    }

    /// Returns the token equal to the whole word if the pre-tokenizer bypasses merges for this word.
    fn whole_word(&self, tokens: &Tokens, word: &str, encoded: &mut Vec<u8>) -> Option<Token> {
        if !(self.pre.ignore_merges || self.pre.keep_newlines && word.starts_with('\n')) {
            return None;
        }
        if self.pre.alphabet != Alphabet::Bytes {
            return tokens.find(word.as_bytes());
        }
        encoded.clear();
        bytes::encode(word.as_bytes(), encoded);
        tokens.find(encoded)
    }
}

impl Pairs for Bpe {
    #[inline]
    fn merge(&self, _: &[u8], left: &Symbol, right: &Symbol) -> Option<Merge> {
        // Unknown symbols occur in no pair of the map.
        self.merges.get(&pair_key(left.id, right.id)).copied()
    }
}

/// Builds the map from symbol pairs to merges. Parts and results that are not tokens become extra symbols,
/// because the merges of published vocabularies pass through such texts.
fn read_merges(merges: &StringArray, tokens: &mut Tokens) -> Result<PairMap<Merge>, VocabError> {
    // Every merge adds at most three symbols, whose ids must fit.
    checked_count(key::MERGES, merges.len() as u64 * 3)?;
    let mut map = pair_map(merges.len());
    let mut joined = Vec::new();
    for (text, rank) in merges.iter().zip(0..) {
        // A part may start with a space, but must not be empty.
        let space = text.iter().skip(1).position(|&b| b == b' ').map(|at| at + 1);
        let Some((left, right)) = space
            .map(|at| (&text[..at], &text[at + 1..]))
            .filter(|(_, right)| !right.is_empty())
        else {
            return Err(VocabError::MalformedMerge {
                index: rank as usize,
                found: String::from_utf8_lossy(&text[..text.len().min(64)]).into_owned(),
            });
        };
        joined.clear();
        joined.extend_from_slice(left);
        joined.extend_from_slice(right);
        let table = &mut tokens.table;
        let pair = pair_key(table.intern(left), table.intern(right));
        let id = table.intern(&joined);
        // The first of equal merges wins.
        map.entry(pair).or_insert(Merge { rank, id });
    }
    Ok(map)
}
