//! Mirostat: keeps the surprise of the output near a target by feedback from each selected token.

use super::select::draw;
use super::{Candidates, Rng, Sampler};

/// Number of candidates used to estimate the Zipf exponent.
const N_ESTIMATE: usize = 100;

/// State of both versions: the running bound on surprise, in bits, and its feedback loop.
#[derive(Debug, Clone)]
struct Feedback {
    tau: f32,
    eta: f32,
    mu: f32,
    rng: Rng,
}

impl Feedback {
    fn new(tau: f32, eta: f32, rng: Rng) -> Feedback {
        Feedback {
            tau,
            eta,
            mu: 2.0 * tau,
            rng,
        }
    }

    /// Selects among the remaining candidates and adjusts `mu` by the error.
    fn draw(&mut self, candidates: &mut Candidates) {
        candidates.softmax();
        if let Some(p) = draw(candidates, &mut self.rng) {
            self.mu -= self.eta * (-p.log2() - self.tau);
        }
    }

    fn reset(&mut self) {
        self.mu = 2.0 * self.tau;
        self.rng.reset();
    }
}

/// Mirostat 1: estimates the Zipf exponent of the distribution and derives a top-k from the surprise bound.
#[derive(Debug, Clone)]
pub struct Mirostat {
    n_vocab: usize,
    feedback: Feedback,
}

impl Mirostat {
    /// Creates the sampler. `tau` is the target surprise in bits; `eta` is the learning rate.
    pub fn new(n_vocab: usize, tau: f32, eta: f32, rng: Rng) -> Mirostat {
        Mirostat {
            n_vocab,
            feedback: Feedback::new(tau, eta, rng),
        }
    }

    /// Returns the number of candidates to keep.
    fn k(&self, candidates: &Candidates) -> usize {
        let top = &candidates.as_slice()[..candidates.len().min(N_ESTIMATE)];
        let (mut ti_bi, mut ti_sq) = (0.0, 0.0);
        for (i, pair) in top.windows(2).enumerate().filter(|(_, pair)| pair[1].p > 0.0) {
            let t = ((i + 2) as f32 / (i + 1) as f32).ln();
            ti_bi += t * (pair[0].p / pair[1].p).ln();
            ti_sq += t * t;
        }
        let s = ti_bi / ti_sq;
        let epsilon = s - 1.0;
        let bound = epsilon * self.feedback.mu.exp2() / (1.0 - (self.n_vocab as f32).powf(-epsilon));
        // The conversion saturates. NaN, from a single candidate or a flat distribution, becomes 0.
        (bound.powf(1.0 / s) as usize).max(1)
    }
}

impl Sampler for Mirostat {
    fn name(&self) -> &'static str {
        "mirostat"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.softmax();
        candidates.sort_top(N_ESTIMATE);
        candidates.top_k(self.k(candidates));
        self.feedback.draw(candidates);
    }

    fn reset(&mut self) {
        self.feedback.reset();
    }
}

/// Mirostat 2: removes the candidates whose surprise exceeds the bound.
#[derive(Debug, Clone)]
pub struct MirostatV2 {
    feedback: Feedback,
}

impl MirostatV2 {
    /// Creates the sampler. `tau` is the target surprise in bits; `eta` is the learning rate.
    pub fn new(tau: f32, eta: f32, rng: Rng) -> MirostatV2 {
        MirostatV2 {
            feedback: Feedback::new(tau, eta, rng),
        }
    }
}

impl Sampler for MirostatV2 {
    fn name(&self) -> &'static str {
        "mirostat_v2"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        // Solves -log2 p <= mu for the logit, with p = exp(logit - max) / sum.
        let sum = candidates.exponentials();
        let min_logit =
            candidates.max_logit() + (sum.ln() - f64::from(self.feedback.mu) * std::f64::consts::LN_2) as f32;
        if candidates.max_logit() >= min_logit {
            candidates.retain_from(min_logit);
        } else {
            candidates.top_k(1);
        }
        self.feedback.draw(candidates);
    }

    fn reset(&mut self) {
        self.feedback.reset();
    }
}
