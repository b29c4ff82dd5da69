//! End and statistics of a response.

use std::time::Duration;

/// Reason why a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// The model ended its response.
    Model,
    /// The maximum number of tokens was generated.
    Limit,
    /// A stop string was generated. The response ends before the string.
    Stop,
    /// The context has no space for another token.
    ContextFull,
    /// The response was cancelled.
    Cancelled,
    /// The response repeats itself without end.
    Loop {
        /// Length of the repeated part in tokens.
        period: usize,
    },
}

/// Statistics of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Number of prompt tokens that were computed.
    pub prompt_tokens: usize,
    /// Number of prompt tokens that were cached.
    pub cached_tokens: usize,
    /// Time that prefill of the prompt took.
    pub prompt_time: Duration,
    /// Generated tokens.
    pub generated_tokens: usize,
    /// Time from the first to the last generated token.
    pub generation_time: Duration,
    /// Tokens that a context shift removed from the context.
    pub dropped_tokens: usize,
    /// Drafts of speculative decoding that were verified, summed over all responses of the session.
    pub drafts: usize,
    /// Drafts that were accepted, summed over all responses of the session.
    pub accepted_drafts: usize,
}

impl Stats {
    /// Returns the speed of the prompt in tokens per second.
    pub fn prompt_speed(&self) -> f64 {
        speed(self.prompt_tokens, self.prompt_time)
    }

    /// Returns the speed of generation in tokens per second. The prompt produces the first token, which does
    /// not count.
    pub fn generation_speed(&self) -> f64 {
        speed(self.generated_tokens.saturating_sub(1), self.generation_time)
    }
}

fn speed(n_tokens: usize, time: Duration) -> f64 {
    match n_tokens {
        0 => 0.0,
        n => n as f64 / time.as_secs_f64().max(1e-9),
    }
}
