//! Repetitions of a test, and what they come to.

/// One repetition.
#[derive(Clone, Copy, Debug)]
pub struct Repetition {
    /// How long it took.
    pub seconds: f64,
    /// Energy that the processor took meanwhile, where the kernel tells.
    pub joules: Option<f64>,
}

/// Speeds of all repetitions, in tokens per second.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// This engine's.
    pub speeds: Vec<f64>,
    /// Another engine's, each measured right after the one of the same index.
    pub rival: Vec<f64>,
    /// Energy for each token, where the kernel tells.
    joules: Vec<f64>,
}

impl Samples {
    /// Adds a repetition of so many tokens.
    pub fn push(&mut self, n_tokens: usize, repetition: Repetition) {
        let n = n_tokens as f64;
        self.speeds.push(n / repetition.seconds.max(1e-9));
        self.joules.extend(repetition.joules.map(|joules| joules / n));
    }

    /// Adds another engine's speed.
    pub fn push_rival(&mut self, speed: f64) {
        self.rival.push(speed);
    }

    /// This engine's speed over the other's, round by round.
    pub fn ratios(&self) -> Vec<f64> {
        self.speeds
            .iter()
            .zip(&self.rival)
            .map(|(ours, theirs)| ours / theirs)
            .collect()
    }

    /// Median of the energy for a token.
    pub fn joules_per_token(&self) -> Option<f64> {
        median(&self.joules)
    }
}

/// The middle value, or the mean of the two in the middle; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let (low, high) = (sorted.get(n.wrapping_sub(1) / 2)?, sorted.get(n / 2)?);
    Some((low + high) / 2.0)
}

/// The mean, and the standard deviation of a sample; 0 of one value.
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let square = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    (mean, square.sqrt())
}

/// The smallest and the largest value.
pub fn range(values: &[f64]) -> (f64, f64) {
    let fold = |f: fn(f64, f64) -> f64, start| values.iter().copied().fold(start, f);
    (fold(f64::min, f64::INFINITY), fold(f64::max, f64::NEG_INFINITY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_means_and_ranges() {
        assert_eq!((median(&[]), median(&[3.0])), (None, Some(3.0)));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 9.0, 2.0]), Some(3.0));
        assert_eq!(mean_and_deviation(&[1.0, 3.0]), (2.0, 2f64.sqrt()));
        assert_eq!(mean_and_deviation(&[5.0]), (5.0, 0.0));
        assert_eq!(range(&[2.0, 1.0, 3.0]), (1.0, 3.0));
    }

    #[test]
    fn ratios_are_paired() {
        let mut samples = Samples::default();
        for (seconds, theirs) in [(1.0, 5.0), (2.0, 2.0)] {
            samples.push(
                10,
                Repetition {
                    seconds,
                    joules: Some(20.0),
                },
            );
            samples.push_rival(theirs);
        }
        assert_eq!(samples.ratios(), [2.0, 2.5]);
        assert_eq!(samples.joules_per_token(), Some(2.0));
    }
}
