//! Log-probabilities of one position.

use crate::vocab::Token;

/// Log-probabilities of the next token.
#[derive(Clone, Copy, Debug)]
pub struct LogProbs<'a> {
    logits: &'a [f32],
    /// Likeliest token; the first of equal ones.
    top: usize,
    /// Logarithm of the sum of exponentials.
    log_sum: f64,
}

impl<'a> LogProbs<'a> {
    /// Normalizes the logits `[n_vocab]` of a position. Logits are finite, or negative infinity.
    pub fn new(logits: &'a [f32]) -> LogProbs<'a> {
        let mut top = 0;
        for (i, &logit) in logits.iter().enumerate() {
            if logit > logits[top] {
                top = i;
            }
        }
        let max = logits.get(top).copied().unwrap_or(0.0);
        let sum: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
        LogProbs {
            logits,
            top,
            log_sum: f64::from(max) + sum.ln(),
        }
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.logits.len()
    }

    /// Returns true if there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.logits.is_empty()
    }

    /// Returns the likeliest token.
    pub fn top(&self) -> usize {
        self.top
    }

    /// Returns the log-probability of a token; negative infinity for an unknown token.
    pub fn get(&self, token: usize) -> f64 {
        let logit = self.logits.get(token).copied().unwrap_or(f32::NEG_INFINITY);
        f64::from(logit) - self.log_sum
    }

    /// Returns the log-probability of a token of the vocabulary.
    pub fn of(&self, token: Token) -> f64 {
        self.get(token as usize)
    }
}

/// Comparison of a position with a base model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// Negative log-probability of the next token.
    pub nll: f64,
    /// Negative log-probability of the next token in the base model.
    pub nll_base: f64,
    /// Kullback-Leibler divergence from the base model.
    pub kld: f64,
    /// Largest possible excess of the divergence over `kld`, if the base has only the likeliest tokens.
    pub excess: f64,
    /// Whether both models have the same likeliest token.
    pub is_same_top: bool,
}

impl Compared {
    /// Returns the change of the probability of the next token.
    pub fn delta_p(&self) -> f64 {
        (-self.nll).exp() - (-self.nll_base).exp()
    }
}
