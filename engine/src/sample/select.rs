//! Samplers that select a token: greedy and random.

use super::{Candidates, Rng, Sampler};

/// Selects the most likely candidate; on ties, the lowest token.
#[derive(Debug, Clone, Copy)]
pub struct Greedy;

impl Sampler for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        if let Some(i) = candidates.argmax() {
            candidates.select(i);
        }
    }
}

/// Draws a candidate at random from the softmax of the logits, by inversion of the cumulative distribution.
/// Sets `p` of all candidates. Consumes one random number per call, even for a single candidate, so that the
/// random sequence does not depend on the preceding samplers.
#[derive(Debug, Clone)]
pub struct Dist {
    rng: Rng,
}

impl Dist {
    /// Creates a sampler that draws from the distribution.
    pub fn new(rng: Rng) -> Dist {
        Dist { rng }
    }
}

impl Sampler for Dist {
    fn name(&self) -> &'static str {
        "dist"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.softmax();
        draw(candidates, &mut self.rng);
    }

    fn reset(&mut self) {
        self.rng.reset();
    }
}

/// Selects a candidate by `p`, whose sum need not be exactly 1, and returns the probability of the selected
/// one.
pub(super) fn draw(candidates: &mut Candidates, rng: &mut Rng) -> Option<f32> {
    let u = rng.uniform();
    let total: f64 = candidates.as_slice().iter().map(|c| f64::from(c.p)).sum();
    let target = total * u;
    let mut sum = 0.0;
    let mut chosen = None;
    for (i, c) in candidates.as_slice().iter().enumerate() {
        // A masked candidate must not be selected, even if u = 0.
        if c.p > 0.0 {
            sum += f64::from(c.p);
            chosen = Some((i, c.p));
            if sum >= target {
                break;
            }
        }
    }
    let (i, p) = chosen?;
    candidates.select(i);
    Some(p)
}
