//! Samplers that remove candidates: top-k, top-p, min-p, typical, top-n-sigma, and XTC.

use super::temperature::entropy;
use super::{Candidates, Rng, Sampler};

/// Keeps the `k` most likely candidates.
#[derive(Debug, Clone, Copy)]
pub struct TopK {
    k: usize,
}

impl TopK {
    /// Creates the sampler. A `k` of 0 keeps all candidates.
    pub fn new(k: usize) -> TopK {
        TopK { k }
    }
}

impl Sampler for TopK {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.top_k(self.k);
    }

    fn leading_top_k(&self) -> Option<usize> {
        Some(self.k)
    }
}

/// Nucleus sampling: keeps the smallest set of most likely candidates whose probabilities sum to at least
/// `p`.
#[derive(Debug, Clone, Copy)]
pub struct TopP {
    p: f32,
    min_keep: usize,
}

impl TopP {
    /// Creates the sampler. A `p` of 1 or more keeps all candidates; at least `min_keep` are kept.
    pub fn new(p: f32, min_keep: usize) -> TopP {
        TopP { p, min_keep }
    }
}

impl Sampler for TopP {
    fn name(&self) -> &'static str {
        "top_p"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        if self.p >= 1.0 {
            return;
        }
        candidates.softmax();
        let (mut sum, mut kept) = (0.0, 0);
        while let Some(c) = candidates.best(kept) {
            sum += f64::from(c.p);
            kept += 1;
            if sum >= f64::from(self.p) && kept >= self.min_keep {
                break;
            }
        }
        candidates.truncate(kept);
    }
}

/// Keeps the candidates that are at least `p` times as likely as the most likely one.
#[derive(Debug, Clone, Copy)]
pub struct MinP {
    p: f32,
    min_keep: usize,
}

impl MinP {
    /// Creates the sampler. A `p` of 0 or less keeps all candidates; at least `min_keep` and the most likely
    /// one are kept.
    pub fn new(p: f32, min_keep: usize) -> MinP {
        MinP { p, min_keep }
    }
}

impl Sampler for MinP {
    fn name(&self) -> &'static str {
        "min_p"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        if self.p <= 0.0 || candidates.is_empty() {
            return;
        }
        let min_logit = candidates.max_logit() + self.p.ln();
        let passing = candidates.as_slice().iter().filter(|c| c.logit >= min_logit).count();
        if passing >= self.min_keep.max(1) {
            candidates.retain_from(min_logit);
        } else {
            candidates.top_k(self.min_keep.max(1));
        }
    }
}

/// Locally typical sampling: keeps the candidates whose surprise is closest to the entropy, until their
/// probabilities sum to more than `p`.
#[derive(Debug, Clone)]
pub struct Typical {
    p: f32,
    min_keep: usize,
    /// Distance from the entropy and index of every candidate.
    scores: Vec<(f32, u32)>,
}

impl Typical {
    /// Creates the sampler. A `p` of 1 or more keeps all candidates; at least `min_keep` are kept.
    pub fn new(p: f32, min_keep: usize) -> Typical {
        Typical {
            p,
            min_keep,
            scores: Vec::new(),
        }
    }
}

impl Sampler for Typical {
    fn name(&self) -> &'static str {
        "typ_p"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        if self.p >= 1.0 {
            return;
        }
        candidates.softmax();
        let entropy = entropy(candidates) as f32;
        let data = candidates.as_slice();
        self.scores.clear();
        self.scores.extend(
            data.iter()
                .enumerate()
                .map(|(i, c)| ((-c.p.ln() - entropy).abs(), i as u32)),
        );

        // Sorts in blocks, because few candidates of the vocabulary are kept.
        let mut sum = 0.0;
        let (mut kept, mut sorted, mut block) = (0, 0, 256);
        while kept < self.scores.len() {
            if kept == sorted {
                let end = (sorted + block).min(self.scores.len());
                let rest = &mut self.scores[sorted..];
                let by_score = |a: &(f32, u32), b: &(f32, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
                if end - sorted < rest.len() {
                    rest.select_nth_unstable_by(end - sorted, by_score);
                }
                rest[..end - sorted].sort_unstable_by(by_score);
                (sorted, block) = (end, block * 8);
            }
            sum += f64::from(data[self.scores[kept].1 as usize].p);
            kept += 1;
            if sum > f64::from(self.p) && kept >= self.min_keep {
                break;
            }
        }
        candidates.pick(self.scores[..kept].iter().map(|&(_, i)| i as usize));
    }
}

/// Masks the candidates whose logits are more than `n` standard deviations below the maximum.
#[derive(Debug, Clone, Copy)]
pub struct TopNSigma {
    n: f32,
}

impl TopNSigma {
    /// Creates the sampler. An `n` of 0 or less has no effect.
    pub fn new(n: f32) -> TopNSigma {
        TopNSigma { n }
    }
}

impl Sampler for TopNSigma {
    fn name(&self) -> &'static str {
        "top_n_sigma"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        if self.n <= 0.0 || candidates.len() <= 1 {
            return;
        }
        // Masked candidates are excluded from the standard deviation.
        let live = || {
            candidates
                .as_slice()
                .iter()
                .map(|c| f64::from(c.logit))
                .filter(|&l| l > f64::NEG_INFINITY)
        };
        let n_live = live().count() as f64;
        let mean = live().sum::<f64>() / n_live;
        let variance = live().map(|l| (l - mean).powi(2)).sum::<f64>() / n_live;
        let min_logit = candidates.max_logit() - self.n * variance.sqrt() as f32;
        // Masking preserves the order, because only the tail is masked. A NaN limit, from infinite logits,
        // masks nothing.
        candidates.map_monotone(|logit| if logit < min_logit { f32::NEG_INFINITY } else { logit });
    }
}

/// Exclude top choices (XTC): with a given probability, removes all candidates above a threshold except the
/// least likely of them.
#[derive(Debug, Clone)]
pub struct Xtc {
    probability: f32,
    threshold: f32,
    min_keep: usize,
    rng: Rng,
}

impl Xtc {
    /// Creates the sampler. It is disabled if `probability` is 0 or less, or if `threshold` is above 0.5,
    /// because two candidates cannot both reach it. Nothing is removed if fewer than `min_keep` candidates
    /// would remain.
    pub fn new(probability: f32, threshold: f32, min_keep: usize, rng: Rng) -> Xtc {
        Xtc {
            probability,
            threshold,
            min_keep,
            rng,
        }
    }
}

impl Sampler for Xtc {
    fn name(&self) -> &'static str {
        "xtc"
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        if self.probability <= 0.0 || self.threshold > 0.5 || candidates.len() < 2 {
            return;
        }
        if self.rng.uniform() > f64::from(self.probability) {
            return;
        }
        candidates.softmax();
        let mut n_top = 0;
        while candidates.best(n_top).is_some_and(|c| c.p >= self.threshold) {
            n_top += 1;
        }
        let n_removed = n_top.saturating_sub(1);
        if candidates.len() - n_removed >= self.min_keep {
            candidates.drop_first(n_removed);
        }
    }

    fn reset(&mut self) {
        self.rng.reset();
    }
}
