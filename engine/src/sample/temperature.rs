//! Temperature, fixed or derived from the entropy of the distribution.

use super::{Candidates, Sampler};

/// Divides the logits by a temperature. At 0 or below, masks all candidates except the most likely one
/// (greedy sampling).
#[derive(Debug, Clone, Copy)]
pub struct Temperature {
    temp: f32,
}

impl Temperature {
    /// Creates the sampler. A `temp` of 1 has no effect.
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

/// Dynamic temperature between `temp - range` and `temp + range`, which grows with the entropy of the
/// candidates relative to the maximum entropy.
#[derive(Debug, Clone, Copy)]
pub struct DynamicTemperature {
    temp: f32,
    range: f32,
    exponent: f32,
}

impl DynamicTemperature {
    /// Creates the sampler. A `range` of 0 or less fixes the temperature at `temp`. The relative entropy is
    /// raised to the power `exponent`.
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

/// Returns the entropy of the candidates' `p` in nats.
pub(super) fn entropy(candidates: &Candidates) -> f64 {
    let terms = candidates.as_slice().iter().filter(|c| c.p > 0.0);
    terms.map(|c| -f64::from(c.p) * f64::from(c.p).ln()).sum()
}

fn scale(candidates: &mut Candidates, temp: f32) {
    // For temperatures near 0, the quotients overflow f32, which would make all candidates equal.
    let max = candidates.max_logit();
    let overflows = max.is_finite() && !(max / temp).is_finite();
    if temp > 0.0 && !overflows {
        candidates.map_monotone(|logit| logit / temp);
    } else if let Some(best) = candidates.argmax() {
        let token = candidates.as_slice()[best].token;
        candidates.map(|c| if c.token == token { c.logit } else { f32::NEG_INFINITY });
    }
}
