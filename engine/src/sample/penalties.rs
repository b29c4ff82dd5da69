//! Samplers that change individual logits: user biases, and penalties for recent tokens.

use super::{Candidates, Sampler, Token};
use std::collections::VecDeque;

/// Bias for the logit of one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitBias {
    /// Token that the bias applies to.
    pub token: Token,
    /// Value added to the logit; negative infinity bans the token.
    pub bias: f32,
}

/// Name of the [`Bias`] sampler.
pub(super) const BIAS: &str = "logit_bias";

/// Adds a bias to the logits of given tokens. Negative infinity bans a token.
#[derive(Debug, Clone)]
pub struct Bias {
    /// Biases, sorted by token.
    biases: Vec<(Token, f32)>,
}

impl Bias {
    /// Creates the sampler. Biases of the same token are added.
    pub fn new(biases: &[LogitBias]) -> Bias {
        let mut sorted: Vec<(Token, f32)> = biases.iter().map(|b| (b.token, b.bias)).collect();
        sorted.sort_by_key(|b| b.0);
        sorted.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 += next.1;
            }
            same
        });
        Bias { biases: sorted }
    }
}

impl Sampler for Bias {
    fn name(&self) -> &'static str {
        BIAS
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.edit(&self.biases, |logit, bias| logit + bias);
    }
}

/// Penalizes tokens among the last `last_n` accepted ones. The logit is divided by `repeat` (multiplied if
/// negative), then lowered by `frequency` per occurrence and by `presence` once.
#[derive(Debug, Clone)]
pub struct Penalties {
    repeat: f32,
    frequency: f32,
    presence: f32,
    last_n: usize,
    window: VecDeque<Token>,
    /// Occurrences in the window, sorted by token.
    counts: Vec<(Token, u32)>,
}

impl Penalties {
    /// Creates the sampler. `repeat` of 1 and `frequency` and `presence` of 0 have no effect.
    pub fn new(last_n: usize, repeat: f32, frequency: f32, presence: f32) -> Penalties {
        let (window, counts) = (VecDeque::with_capacity(last_n), Vec::with_capacity(last_n));
        Penalties {
            repeat,
            frequency,
            presence,
            last_n,
            window,
            counts,
        }
    }

    fn forget_oldest(&mut self) {
        let Some(token) = self.window.pop_front() else { return };
        if let Ok(i) = self.counts.binary_search_by_key(&token, |c| c.0) {
            self.counts[i].1 -= 1;
            if self.counts[i].1 == 0 {
                self.counts.remove(i);
            }
        }
    }
}

impl Sampler for Penalties {
    fn name(&self) -> &'static str {
        "penalties"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.edit(&self.counts, |logit, &count| {
            let repeated = if logit <= 0.0 {
                logit * self.repeat
            } else {
                logit / self.repeat
            };
            repeated - (count as f32 * self.frequency + self.presence)
        });
    }

    fn accept(&mut self, token: Token) {
        if self.last_n == 0 {
            return;
        }
        if self.window.len() == self.last_n {
            self.forget_oldest();
        }
        self.window.push_back(token);
        match self.counts.binary_search_by_key(&token, |c| c.0) {
            Ok(i) => self.counts[i].1 += 1,
            Err(i) => self.counts.insert(i, (token, 1)),
        }
    }

    fn reset(&mut self) {
        self.window.clear();
        self.counts.clear();
    }
}
