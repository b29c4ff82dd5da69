//! Notices a text that has begun to repeat itself for good.

use super::Token;

/// Longest piece that is noticed when it is repeated.
const LONGEST: usize = 128;

/// Copies in a row from which on a text counts as a loop.
const COPIES: usize = 6;

/// Tokens that these copies have at least: a line of dashes, a row of zeros or a refrain have fewer.
const LEAST_TOKENS: usize = 160;

/// Watches the tokens of a text.
#[derive(Clone, Debug, Default)]
pub struct RepetitionWatch {
    tokens: Vec<Token>,
    /// By length of a piece, less one: how many tokens in a row were those so many before.
    runs: Vec<usize>,
}

impl RepetitionWatch {
    /// A watch that has seen nothing.
    pub fn new() -> RepetitionWatch {
        RepetitionWatch {
            tokens: Vec::with_capacity(LONGEST + 1),
            runs: vec![0; LONGEST],
        }
    }

    /// Takes the next token. The length of the piece that the text does nothing but repeat, if it does.
    pub fn push(&mut self, token: Token) -> Option<usize> {
        if self.tokens.len() == LONGEST {
            self.tokens.remove(0);
        }
        for (i, run) in self.runs.iter_mut().enumerate() {
            let before = self.tokens.len().checked_sub(i + 1).map(|at| self.tokens[at]);
            *run = if before == Some(token) { *run + 1 } else { 0 };
        }
        self.tokens.push(token);
        let is_loop = |(i, run): (usize, &usize)| {
            let n = run + i + 1;
            (n >= COPIES * (i + 1) && n >= LEAST_TOKENS).then_some(i + 1)
        };
        self.runs.iter().enumerate().find_map(is_loop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many tokens a text that repeats `piece` is stopped.
    fn stopped_after(before: &[Token], piece: &[Token]) -> Option<usize> {
        let mut watch = RepetitionWatch::new();
        let text = before.iter().chain(piece.iter().cycle()).take(5000);
        text.enumerate()
            .find_map(|(i, &token)| watch.push(token).map(|_| i + 1))
    }

    #[test]
    fn loops_of_any_length_end() {
        assert_eq!(stopped_after(&[], &[7]), Some(LEAST_TOKENS));
        assert_eq!(stopped_after(&[1, 2, 3], &[7, 8]), Some(LEAST_TOKENS + 3));
        let long: Vec<Token> = (100..200).collect();
        assert_eq!(stopped_after(&[1, 2, 3], &long), Some(603));
    }

    #[test]
    fn what_goes_on_is_left_alone() {
        let counting: Vec<Token> = (0..5000).flat_map(|i| [1, 2, 3, i]).collect();
        assert_eq!(stopped_after(&counting, &[0]), None);
        let too_long: Vec<Token> = (0..129).collect();
        assert_eq!(stopped_after(&[], &too_long), None);
        let mut watch = RepetitionWatch::new();
        let ruler = [5; LEAST_TOKENS - 1].into_iter().chain([6]);
        assert!(ruler.cycle().take(3000).all(|token| watch.push(token).is_none()));
    }
}
