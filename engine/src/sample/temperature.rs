//! Temperature: fixed, or chosen from the entropy of the distribution.

use super::{Candidates, Sampler};

/// Divides the logits by a temperature. At 0 or below only the most likely candidate keeps its logit, the others are
/// masked: greedy sampling.
#[derive(Debug, Clone, Copy)]
pub struct Temperature {
    temp: f32,
}

impl Temperature {
    /// `temp`: 1 leaves the distribution as it is.
    pub fn new(temp: f32) -> Temperature {
        Temperature { temp }
    }
}

impl Sampler for Temperature {
    fn name(&self) -> &'static str {
        "temperature"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        scale(candidates, self.temp);
    }
}

/// Dynamic temperature: between `temp - range` and `temp + range`, growing with the entropy of the candidates relative
/// to the greatest one possible.
#[derive(Debug, Clone, Copy)]
pub struct DynamicTemperature {
    temp: f32,
    range: f32,
    exponent: f32,
}

impl DynamicTemperature {
    /// `range` of 0 or below: the fixed `temp`. `exponent`: the power the relative entropy is raised to.
    pub fn new(temp: f32, range: f32, exponent: f32) -> DynamicTemperature {
        DynamicTemperature { temp, range, exponent }
    }
}

impl Sampler for DynamicTemperature {
    fn name(&self) -> &'static str {
        "temperature"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        if self.range <= 0.0 {
            return scale(candidates, self.temp);
        }
        if candidates.len() <= 1 {
            return;
        }
        candidates.softmax();
        let entropy = entropy(candidates);
        let relative = (entropy / (candidates.len() as f64).ln()) as f32;
        let min = (self.temp - self.range).max(0.0);
        let max = self.temp + self.range;
        scale(candidates, min + (max - min) * relative.powf(self.exponent));
        candidates.softmax();
    }
}

/// The entropy of the candidates' `p`, in nats.
pub(super) fn entropy(candidates: &Candidates) -> f64 {
    let terms = candidates.as_slice().iter().filter(|c| c.p > 0.0);
    terms.map(|c| -f64::from(c.p) * f64::from(c.p).ln()).sum()
}

fn scale(candidates: &mut Candidates, temp: f32) {
    // Near 0 the quotients leave the range of f32, where all candidates would be equal.
    let max = candidates.max_logit();
    let overflows = max.is_finite() && !(max / temp).is_finite();
    if temp > 0.0 && !overflows {
        candidates.map_monotone(|logit| logit / temp);
    } else if let Some(best) = candidates.argmax() {
        let token = candidates.as_slice()[best].token;
        candidates.map(|c| if c.token == token { c.logit } else { f32::NEG_INFINITY });
    }
}
