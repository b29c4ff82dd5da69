//! Performance counters of a context.

use std::time::Duration;

/// Counters since the context was created or reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Perf {
    /// Tokens computed in ubatches of several tokens.
    pub n_prompt: usize,
    /// Total time of ubatches with several tokens.
    pub t_prompt: Duration,
    /// Number of tokens computed one at a time.
    pub n_decode: usize,
    /// Total time of single-token ubatches.
    pub t_decode: Duration,
    /// Number of graphs built.
    pub n_built: usize,
    /// Number of graphs reused.
    pub n_reused: usize,
}

impl Perf {
    /// Returns prompt tokens per second; 0 if there were none.
    pub fn prompt_speed(&self) -> f64 {
        rate(self.n_prompt, self.t_prompt)
    }

    /// Returns decoded tokens per second; 0 if there were none.
    pub fn decode_speed(&self) -> f64 {
        rate(self.n_decode, self.t_decode)
    }

    pub(super) fn count_graph(&mut self, was_built: bool) {
        if was_built {
            self.n_built += 1;
        } else {
            self.n_reused += 1;
        }
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
