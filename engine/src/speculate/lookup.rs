//! Drafts by n-gram lookup: proposes the tokens that followed the most recent occurrence of the last few
//! tokens.

use std::collections::HashMap;

use super::Drafter;
use crate::context::DecodeError;
use crate::random::splitmix64;
use crate::vocab::Token;

/// Lengths of the n-grams to look up, longest first.
const LENGTHS: [usize; 4] = [6, 4, 3, 2];

/// Drafter that looks up n-grams in the sequence and in an optional corpus.
///
/// Drafts need not be correct, so the table stores only hashes, and truncating the sequence does not remove
/// entries. A clone keeps its own copy of the table.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    tokens: Vec<Token>,
    /// Position after the last occurrence of each n-gram, by the hash of the n-gram.
    places: [HashMap<u64, u32>; LENGTHS.len()],
    /// Number of tokens of the current sequence that have been added.
    n_text: usize,
}

impl Lookup {
    /// Creates a drafter for `corpus` and reserves memory for sequences of up to `n_ctx` tokens.
    pub fn new(corpus: &[Token], n_ctx: usize) -> Lookup {
        let n = corpus.len() + n_ctx;
        let mut lookup = Lookup {
            tokens: Vec::with_capacity(n),
            places: std::array::from_fn(|_| HashMap::with_capacity(n)),
            n_text: 0,
        };
        corpus.iter().for_each(|&token| lookup.push(token));
        lookup
    }

    fn push(&mut self, token: Token) {
        let Ok(place) = u32::try_from(self.tokens.len()) else {
            return;
        };
        for (length, places) in LENGTHS.iter().zip(&mut self.places) {
            if let Some(run) = hash_of_last(&self.tokens, *length) {
                places.insert(run, place);
            }
        }
        self.tokens.push(token);
    }

    /// Returns the position after the last occurrence of the longest known n-gram at the end of the sequence.
    fn find(&self) -> Option<usize> {
        let mut tables = LENGTHS.iter().zip(&self.places);
        tables.find_map(|(&length, places)| Some(*places.get(&hash_of_last(&self.tokens, length)?)? as usize))
    }
}

fn hash_of_last(tokens: &[Token], length: usize) -> Option<u64> {
    let run = tokens.get(tokens.len().checked_sub(length)?..)?;
    Some(
        run.iter()
            .fold(length as u64, |hash, &token| splitmix64(hash ^ u64::from(token))),
    )
}

impl Drafter for Lookup {
    fn draft(&mut self, text: &[Token], token: Token, n: usize, drafts: &mut Vec<Token>) -> Result<(), DecodeError> {
        // A truncated sequence continues from its new end.
        let known = self.n_text.min(text.len());
        text[known..].iter().for_each(|&token| self.push(token));
        self.push(token);
        self.n_text = text.len() + 1;
        let Some(place) = self.find() else { return Ok(()) };
        for at in place..place + n {
            // In a repetition, continue with the tokens just drafted.
            let token = match self.tokens.get(at) {
                Some(&token) => token,
                None => drafts[at - self.tokens.len()],
            };
            drafts.push(token);
        }
        Ok(())
    }

    fn is_free(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafts(lookup: &mut Lookup, text: &[Token], n: usize) -> Vec<Token> {
        let (&last, before) = text.split_last().unwrap();
        let mut drafts = Vec::new();
        lookup.draft(before, last, n, &mut drafts).unwrap();
        drafts
    }

    #[test]
    fn lookup_drafts_most_recent_continuation() {
        let mut lookup = Lookup::new(&[], 64);
        let text = [1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 2, 3];
        assert_eq!(drafts(&mut lookup, &text, 3), [7, 8, 2]);
        assert_eq!(
            drafts(&mut lookup, &[&text[..], &[6]].concat(), 3),
            [0; 0],
            "3, 6 is new"
        );
        // The longest n-gram takes precedence over the most recent one.
        let mut lookup = Lookup::new(&[], 64);
        assert_eq!(drafts(&mut lookup, &[1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], 1), [4]);
    }

    #[test]
    fn lookup_continues_repetition_beyond_end() {
        let mut lookup = Lookup::new(&[], 64);
        assert_eq!(drafts(&mut lookup, &[1, 2, 3, 1, 2], 7), [3, 1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn lookup_searches_corpus() {
        let mut lookup = Lookup::new(&[5, 6, 7, 8], 64);
        assert_eq!(drafts(&mut lookup, &[1, 5, 6], 2), [7, 8]);
        assert_eq!(
            drafts(&mut lookup, &[1, 5], 2),
            [0; 0],
            "a single token is not an n-gram"
        );
    }
}
