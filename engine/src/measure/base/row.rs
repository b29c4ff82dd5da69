//! Log-probabilities of a base model for one position.

use super::compact::Top;
use crate::measure::position::{Compared, LogProbs};
use crate::vocab::Token;

/// Log-probabilities of the base model for one position.
#[derive(Clone, Debug)]
pub enum BaseRow<'a> {
    /// All log-probabilities.
    Exact(LogProbs<'a>),
    /// Log-probabilities as 16-bit codes.
    Codes {
        /// Difference between consecutive codes.
        scale: f32,
        /// Log-probability of code 0.
        min: f32,
        /// Code of each token.
        codes: Vec<u16>,
    },
    /// The likeliest tokens.
    Compact(Top),
}

/// Smallest log-probability that counts in rows of codes. Smaller ones share code 0 with this one.
const SMALLEST: f32 = -16.0;

impl BaseRow<'_> {
    /// Returns the log-probability of the next token of the text.
    pub(in crate::measure) fn of(&self, token: Token) -> f64 {
        let index = token as usize;
        match self {
            BaseRow::Exact(probs) => probs.get(index),
            BaseRow::Codes { scale, min, codes } => codes
                .get(index)
                .map_or(f64::NEG_INFINITY, |&code| f64::from(scale * f32::from(code) + min)),
            BaseRow::Compact(top) => f64::from(top.next),
        }
    }

    /// Returns the likeliest token.
    pub(in crate::measure) fn top(&self) -> usize {
        match self {
            BaseRow::Exact(probs) => probs.top(),
            BaseRow::Codes { codes, .. } => first_largest(codes.iter().copied()),
            BaseRow::Compact(top) => top.ids[first_largest(top.logs.iter().copied())] as usize,
        }
    }

    /// Returns the Kullback-Leibler divergence of `probs` from this base, and the largest possible excess over the
    /// returned divergence.
    pub(in crate::measure) fn divergence(&self, probs: &LogProbs<'_>) -> (f64, f64) {
        let term = |log: f64, token: usize| log.exp() * (log - probs.get(token));
        match self {
            BaseRow::Exact(base) => {
                let tokens = (0..base.len()).filter(|&token| base.get(token) > f64::NEG_INFINITY);
                (tokens.map(|token| term(base.get(token), token)).sum(), 0.0)
            }
            BaseRow::Codes { scale, min, codes } => {
                let logs = codes.iter().map(|&code| scale * f32::from(code) + min).enumerate();
                let counted = logs.filter(|&(_, log)| log > SMALLEST);
                (counted.map(|(token, log)| term(f64::from(log), token)).sum(), 0.0)
            }
            BaseRow::Compact(top) => top.divergence(probs),
        }
    }
}

impl LogProbs<'_> {
    /// Compares the distribution with the distribution of a base model. `token` is the next token of the text.
    pub fn compare(&self, base: &BaseRow<'_>, token: Token) -> Compared {
        let (kld, excess) = base.divergence(self);
        Compared {
            nll: -self.of(token),
            nll_base: -base.of(token),
            kld,
            excess,
            is_same_top: base.top() == self.top(),
        }
    }
}

fn first_largest<T: PartialOrd>(values: impl Iterator<Item = T>) -> usize {
    let mut best: Option<(usize, T)> = None;
    for (i, value) in values.enumerate() {
        if best.as_ref().is_none_or(|(_, best)| value > *best) {
            best = Some((i, value));
        }
    }
    best.map_or(0, |(i, _)| i)
}
