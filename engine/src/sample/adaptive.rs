//! Adaptive-p: selects tokens near a target probability, which moves against what was selected before.

use super::select::draw;
use super::{Candidates, Rng, Sampler, Token};

/// The distance from the target, in probability, at which a logit has fallen by half of [`SHARPNESS`].
const WIDTH: f32 = 0.3;
/// The logit at the target.
const PEAK: f32 = 5.0;
/// How steeply logits fall with the distance: as its square near the target, and linearly far from it.
const SHARPNESS: f32 = 10.0;

/// Selects so that the probabilities of selected tokens, as the samplers before leave them, have a mean near a target.
#[derive(Debug, Clone)]
pub struct AdaptiveP {
    target: f32,
    decay: f32,
    /// Probabilities of accepted tokens, each counting `decay` times as much as the one after it.
    sum: f32,
    /// What those count in all.
    weight: f32,
    /// The token selected last, with its probability, until it is accepted.
    selected: Option<(Token, f32)>,
    /// Work space: the probabilities before they are bent to the target.
    before: Vec<f32>,
    rng: Rng,
}

impl AdaptiveP {
    /// `target`: probability, 0 to 1; `decay`: weight of the past, 0 to 0.99, which remembers `1 / (1 - decay)` tokens.
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

    /// As if all tokens before had been on target.
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
