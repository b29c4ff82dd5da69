//! Drafts from what the text has had before: what followed the last few tokens when they came last.

use std::collections::HashMap;

use super::Drafter;
use crate::context::DecodeError;
use crate::random::splitmix64;
use crate::vocab::Token;

/// Lengths of the runs of tokens that are looked for, longest first.
const LENGTHS: [usize; 4] = [6, 4, 3, 2];

/// Drafts by looking up runs of tokens (n-grams) in a text, and in one that was given before it.
///
/// Guesses need not be right, so the table holds hashes, and nothing is taken back when a text is cut.
/// A copy looks in what the original has at the time.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    tokens: Vec<Token>,
    /// Where the token after a run stands, by the hash of the run; the last place counts.
    places: [HashMap<u64, u32>; LENGTHS.len()],
    /// Tokens of the present text that were taken in.
    n_text: usize,
}

impl Lookup {
    /// Looks in `corpus` and in texts of up to `n_ctx` tokens, for which memory is reserved.
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

    /// Where the token after the longest known run stands that the tokens end in.
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
        // A text that was cut goes on from there.
        let known = self.n_text.min(text.len());
        text[known..].iter().for_each(|&token| self.push(token));
        self.push(token);
        self.n_text = text.len() + 1;
        let Some(place) = self.find() else { return Ok(()) };
        for at in place..place + n {
            // Text that repeats itself goes on with what was just drafted.
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
    fn what_followed_last_time_is_drafted() {
        let mut lookup = Lookup::new(&[], 64);
        let text = [1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 2, 3];
        assert_eq!(drafts(&mut lookup, &text, 3), [7, 8, 2]);
        assert_eq!(
            drafts(&mut lookup, &[&text[..], &[6]].concat(), 3),
            [0; 0],
            "3, 6 is new"
        );
        // The longest run counts, not the last one.
        let mut lookup = Lookup::new(&[], 64);
        assert_eq!(drafts(&mut lookup, &[1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], 1), [4]);
    }

    #[test]
    fn a_text_that_repeats_itself_is_continued_beyond_its_end() {
        let mut lookup = Lookup::new(&[], 64);
        assert_eq!(drafts(&mut lookup, &[1, 2, 3, 1, 2], 7), [3, 1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn a_corpus_is_looked_in_too() {
        let mut lookup = Lookup::new(&[5, 6, 7, 8], 64);
        assert_eq!(drafts(&mut lookup, &[1, 5, 6], 2), [7, 8]);
        assert_eq!(drafts(&mut lookup, &[1, 5], 2), [0; 0], "one token is no run");
    }
}
