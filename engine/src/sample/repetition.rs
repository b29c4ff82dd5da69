//! Detection of output that repeats indefinitely.

use super::Token;

/// Maximum period of a repetition, in tokens.
const LONGEST: usize = 128;

/// Minimum number of consecutive copies of a loop.
const COPIES: usize = 6;

/// Minimum total length of the copies in tokens. Lines of dashes, rows of zeros, and refrains are shorter.
const LEAST_TOKENS: usize = 160;

/// Detects loops in a stream of tokens.
#[derive(Clone, Debug, Default)]
pub struct RepetitionWatch {
    tokens: Vec<Token>,
    /// Indexed by period minus 1: length of the current run of tokens that equal the token one period
    /// earlier.
    runs: Vec<usize>,
}

impl RepetitionWatch {
    /// Creates a detector without history.
    pub fn new() -> RepetitionWatch {
        RepetitionWatch {
            tokens: Vec::with_capacity(LONGEST + 1),
            runs: vec![0; LONGEST],
        }
    }

    /// Adds the next token. Returns the period if the output is in a loop.
    pub fn push(&mut self, token: Token) -> Option<usize> {
        if self.tokens.len() == LONGEST {
            self.tokens.remove(0);
        }
        for (i, run) in self.runs.iter_mut().enumerate() {
            let before = self.tokens.len().checked_sub(i + 1).map(|at| self.tokens[at]);
            *run = if before == Some(token) { *run + 1 } else { 0 };
        }
        self.tokens.push(token);
        let is_loop = |&(period, run): &(usize, &usize)| {
            let n = run + period;
            n >= COPIES * period && n >= LEAST_TOKENS
        };
        (1..).zip(&self.runs).find(is_loop).map(|(period, _)| period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of tokens after which a loop over `piece` is detected.
    fn stopped_after(before: &[Token], piece: &[Token]) -> Option<usize> {
        let mut watch = RepetitionWatch::new();
        let text = before.iter().chain(piece.iter().cycle()).take(5000);
        text.enumerate()
            .find_map(|(i, &token)| watch.push(token).map(|_| i + 1))
    }

    #[test]
    fn loop_of_any_period_is_detected() {
        assert_eq!(stopped_after(&[], &[7]), Some(LEAST_TOKENS));
        assert_eq!(stopped_after(&[1, 2, 3], &[7, 8]), Some(LEAST_TOKENS + 3));
        let long: Vec<Token> = (100..200).collect();
        assert_eq!(stopped_after(&[1, 2, 3], &long), Some(603));
    }

    #[test]
    fn nonrepeating_output_is_not_detected() {
        let counting: Vec<Token> = (0..5000).flat_map(|i| [1, 2, 3, i]).collect();
        assert_eq!(stopped_after(&counting, &[0]), None);
        let too_long: Vec<Token> = (0..129).collect();
        assert_eq!(stopped_after(&[], &too_long), None);
        let mut watch = RepetitionWatch::new();
        let ruler = [5; LEAST_TOKENS - 1].into_iter().chain([6]);
        assert!(ruler.cycle().take(3000).all(|token| watch.push(token).is_none()));
    }
}
