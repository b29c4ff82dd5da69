//! Caching and splitting for faster word tokenization: a cache of the words of a text, and positions where a text can
//! be split safely.

use std::hash::BuildHasher;
use std::ops::Range;

use super::Token;
use super::hash::{Hasher, StringTable};

/// Texts shorter than this many bytes are tokenized without a cache.
const MIN_TEXT: usize = 1024;
/// Maximum length of a cached word in bytes; longer words rarely repeat.
const MAX_WORD: usize = 64;
const N_SLOTS: usize = 4096;

/// U+2581, which represents a space.
pub(super) const SPACE: &str = "▁";

/// Cache of word tokenizations within one text. Natural text is repetitive: its hundred most frequent words
/// make up half of it.
#[derive(Debug)]
pub(super) struct WordMemory {
    slots: Vec<Slot>,
    hasher: Hasher,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    word: usize,
    word_len: u32,
    n_tokens: u32,
    tokens: usize,
}

impl WordMemory {
    /// Creates a cache for a text of `len` bytes.
    pub fn new(len: usize) -> Self {
        let n = if len < MIN_TEXT { 0 } else { N_SLOTS };
        Self {
            slots: vec![Slot::default(); n],
            hasher: Hasher::default(),
        }
    }

    /// Appends the tokens of `text[word]` to `out`, from the cache or by calling `tokenize`. All calls must
    /// pass the same `text` and the same `out`.
    pub fn tokens(
        &mut self,
        text: &[u8],
        word: Range<usize>,
        out: &mut Vec<Token>,
        tokenize: impl FnOnce(&mut Vec<Token>),
    ) {
        let bytes = &text[word.clone()];
        if self.slots.is_empty() || bytes.len() > MAX_WORD {
            return tokenize(out);
        }
        let slot = &mut self.slots[self.hasher.hash_one(bytes) as usize % N_SLOTS];
        if &text[slot.word..slot.word + slot.word_len as usize] == bytes {
            out.extend_from_within(slot.tokens..slot.tokens + slot.n_tokens as usize);
            return;
        }
        let before = out.len();
        tokenize(out);
        *slot = Slot {
            word: word.start,
            word_len: bytes.len() as u32,
            n_tokens: (out.len() - before) as u32,
            tokens: before,
        };
    }
}

/// Safe split positions in text with escaped spaces: before a `▁` whose preceding character no token joins
/// with `▁`. Merges never cross these positions, so the pieces can be tokenized independently.
#[derive(Debug)]
pub(super) struct SafeCuts {
    /// Characters that precede `▁` inside some symbol, in ascending order.
    joined: Vec<char>,
}

impl SafeCuts {
    /// Scans all symbols of the vocabulary.
    pub fn new(table: &StringTable) -> Self {
        let mut joined = Vec::new();
        for id in 0..table.len() as u32 {
            let text = table.text(id);
            // Cheap filter: only a few texts contain the first byte of `▁` after their start.
            if text.iter().skip(1).any(|&b| b == SPACE.as_bytes()[0]) {
                joined.extend(joins(&String::from_utf8_lossy(text)));
            }
        }
        joined.sort_unstable();
        joined.dedup();
        Self { joined }
    }

    /// Calls `word` for every piece of `text`; pieces are non-empty.
    pub fn split(&self, text: &str, mut word: impl FnMut(Range<usize>)) {
        let mut start = 0;
        for (at, _) in text.match_indices(SPACE) {
            let before = text[start..at].chars().next_back();
            if before.is_some_and(|c| c != '▁' && self.joined.binary_search(&c).is_err()) {
                word(start..at);
                start = at;
            }
        }
        if start < text.len() {
            word(start..text.len());
        }
    }
}

/// Returns the characters that precede `▁` within a text.
fn joins(text: &str) -> impl Iterator<Item = char> {
    text.match_indices(SPACE)
        .filter_map(|(at, _)| text[..at].chars().next_back().filter(|&c| c != '▁'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_only_where_no_symbol_joins() {
        let mut table = StringTable::with_capacity(4);
        for text in ["▁a", "▁▁", ">▁</", "b"] {
            table.push(text.as_bytes());
        }
        let cuts = SafeCuts::new(&table);
        let mut found = Vec::new();
        let text = "▁▁a▁b>▁<▁▁c▁";
        cuts.split(text, |word| found.push(&text[word]));
        assert_eq!(found, ["▁▁a", "▁b>▁<", "▁▁c", "▁"]);
        cuts.split("", |_| panic!("no words"));
    }

    #[test]
    fn equal_words_are_tokenized_once() {
        let text = "ab cd ab ab ".repeat(500).into_bytes();
        let (mut memory, mut out, mut calls) = (WordMemory::new(text.len()), Vec::new(), 0);
        for start in (0..text.len()).step_by(3) {
            memory.tokens(&text, start..start + 3, &mut out, |out| {
                calls += 1;
                out.extend([u32::from(text[start]), 7]);
            });
        }
        assert!(calls <= 3, "{calls}");
        assert_eq!(out.len(), 4000);
        assert_eq!(out[..8], [97, 7, 99, 7, 97, 7, 97, 7]);
        // The words are too short to be cached.
        let mut memory = WordMemory::new(10);
        memory.tokens(b"ab", 0..2, &mut out, |out| out.clear());
        assert!(out.is_empty());
    }
}
