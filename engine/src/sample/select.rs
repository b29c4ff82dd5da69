//! Samplers that select: greedy and the seeded draw.

use super::{Candidates, Rng, Sampler};

/// Selects the most likely candidate; of equals the lowest token.
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

/// Draws from the distribution of the candidates: the first one whose running sum of probabilities reaches a uniform
/// number. Leaves the softmax in their `p`. Draws one number per call, also where a single candidate is left, so that
/// a seed gives the same sequence whatever the samplers before it keep.
#[derive(Debug, Clone)]
pub struct Dist {
    rng: Rng,
}

impl Dist {
    /// Draws from `rng`.
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

/// Selects by the candidates' `p` (which need not sum to exactly 1) and returns the probability of the selected one.
pub(super) fn draw(candidates: &mut Candidates, rng: &mut Rng) -> Option<f32> {
    let u = rng.uniform();
    let total: f64 = candidates.as_slice().iter().map(|c| f64::from(c.p)).sum();
    let target = total * u;
    let mut sum = 0.0;
    let mut chosen = None;
    for (i, c) in candidates.as_slice().iter().enumerate() {
        // A masked candidate must not win although u = 0 asks for the very first one.
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
