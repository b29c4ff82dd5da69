//! Adaptive-p: selects tokens near a target probability that adapts to the probabilities of previously
//! selected tokens.

use super::select::draw;
use super::{Candidates, Rng, Sampler, Token};

/// Distance from the target, in probability, at which the logit has dropped by half of [`SHARPNESS`].
const WIDTH: f32 = 0.3;
/// Maximum logit, assigned to candidates at the target probability.
const PEAK: f32 = 5.0;
/// Slope of the logits: quadratic in the distance near the target, linear far from it.
const SHARPNESS: f32 = 10.0;

/// Selects tokens such that the mean of their probabilities, as computed by the preceding samplers,
/// approaches a target.
#[derive(Debug, Clone)]
pub struct AdaptiveP {
    target: f32,
    decay: f32,
    /// Decayed sum of the probabilities of accepted tokens. Each older token is weighted by another factor of
    /// `decay`.
    sum: f32,
    /// Sum of the weights of the terms in `sum`.
    weight: f32,
    /// Most recently selected token and its probability, until the token is accepted.
    selected: Option<(Token, f32)>,
    /// Scratch buffer for the probabilities before the transformation.
    before: Vec<f32>,
    rng: Rng,
}

impl AdaptiveP {
    /// Creates the sampler. `target` is a probability in 0 to 1; `decay`, in 0 to 0.99, averages over about
    /// `1 / (1 - decay)` tokens.
    pub fn new(target: f32, decay: f32, rng: Rng) -> AdaptiveP {
        let mut sampler = AdaptiveP {
            target: target.clamp(0.0, 1.0),
            decay: decay.clamp(0.0, 0.99),
            sum: 0.0,
            weight: 0.0,
            selected: None,
            before: Vec::new(),
            rng,
        };
        sampler.forget();
        sampler
    }

    /// Resets the history, as if all previous tokens had met the target.
    fn forget(&mut self) {
        self.weight = 1.0 / (1.0 - self.decay);
        self.sum = self.target * self.weight;
        self.selected = None;
    }
}

impl Sampler for AdaptiveP {
    fn name(&self) -> &'static str {
        "adaptive_p"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.softmax();
        let wanted = (2.0 * self.target - self.sum / self.weight).clamp(0.0, 1.0);
        candidates.map(|c| {
            if c.logit == f32::NEG_INFINITY {
                return c.logit;
            }
            let distance = ((c.p - wanted) / WIDTH).abs();
            PEAK - SHARPNESS * distance * distance / (1.0 + distance)
        });
        self.before.clear();
        self.before.extend(candidates.as_slice().iter().map(|c| c.p));
        candidates.softmax();
        self.selected = draw(candidates, &mut self.rng)
            .and(candidates.selected_index())
            .map(|i| (candidates.as_slice()[i].token, self.before[i]));
    }

    fn accept(&mut self, token: Token) {
        if let Some((_, p)) = self.selected.take().filter(|(selected, _)| *selected == token) {
            self.sum = p + self.decay * self.sum;
            self.weight = 1.0 + self.decay * self.weight;
        }
    }

    fn accept_prompt(&mut self, _token: Token) {}

    fn reset(&mut self) {
        self.forget();
        self.rng.reset();
    }
}
