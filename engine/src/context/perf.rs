//! What a context has done and how long it took.

use std::time::Duration;

/// Counters since the context was made or reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Perf {
    /// Tokens computed in ubatches of several.
    pub n_prompt: usize,
    /// Time of those ubatches.
    pub t_prompt: Duration,
    /// Tokens computed one at a time.
    pub n_decode: usize,
    /// Time of those.
    pub t_decode: Duration,
    /// Graphs built.
    pub n_built: usize,
    /// Graphs used again.
    pub n_reused: usize,
}

impl Perf {
    /// Prompt tokens per second; 0 before the first.
    pub fn prompt_speed(&self) -> f64 {
        rate(self.n_prompt, self.t_prompt)
    }

    /// Single tokens per second; 0 before the first.
    pub fn decode_speed(&self) -> f64 {
        rate(self.n_decode, self.t_decode)
    }

    pub(super) fn record(&mut self, n_tokens: usize, time: Duration) {
        let (n, t) = if n_tokens == 1 {
            (&mut self.n_decode, &mut self.t_decode)
        } else {
            (&mut self.n_prompt, &mut self.t_prompt)
        };
        *n += n_tokens;
        *t += time;
    }
}

fn rate(n: usize, time: Duration) -> f64 {
    if n == 0 {
        0.0
    } else {
        n as f64 / time.as_secs_f64().max(1e-9)
    }
}
