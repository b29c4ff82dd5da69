//! Repetitions of a benchmark test and their statistics.

/// Measurements of one repetition.
#[derive(Clone, Copy, Debug)]
pub struct Repetition {
    /// Wall time of the repetition in seconds.
    pub seconds: f64,
    /// Energy in joules, if the kernel provides it.
    pub joules: Option<f64>,
}

/// Speeds of all repetitions in tokens per second.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Speeds of this engine in each repetition.
    pub speeds: Vec<f64>,
    /// Speeds of the baseline, each measured right after the speed with the same index.
    pub baseline: Vec<f64>,
    /// Joules per token, if the kernel provides them.
    joules: Vec<f64>,
}

impl Samples {
    /// Adds a repetition with `n_tokens` tokens.
    pub fn push(&mut self, n_tokens: usize, repetition: Repetition) {
        let n = n_tokens as f64;
        self.speeds.push(n / repetition.seconds.max(1e-9));
        self.joules.extend(repetition.joules.map(|joules| joules / n));
    }

    /// Adds a speed of the baseline.
    pub fn push_baseline(&mut self, speed: f64) {
        self.baseline.push(speed);
    }

    /// Returns the speed ratio of this engine to the baseline per round.
    pub fn ratios(&self) -> Vec<f64> {
        self.speeds
            .iter()
            .zip(&self.baseline)
            .map(|(ours, theirs)| ours / theirs)
            .collect()
    }

    /// Returns the median energy per token in joules.
    pub fn joules_per_token(&self) -> Option<f64> {
        median(&self.joules)
    }
}

/// Returns the median; `None` for an empty slice.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let (low, high) = (sorted.get(n.wrapping_sub(1) / 2)?, sorted.get(n / 2)?);
    Some((low + high) / 2.0)
}

/// Returns the mean and the sample standard deviation; the deviation of one value is 0.
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let square = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    (mean, square.sqrt())
}

/// Returns the minimum and maximum.
pub fn range(values: &[f64]) -> (f64, f64) {
    let fold = |f: fn(f64, f64) -> f64, start| values.iter().copied().fold(start, f);
    (fold(f64::min, f64::INFINITY), fold(f64::max, f64::NEG_INFINITY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_samples_are_correct() {
        assert_eq!((median(&[]), median(&[3.0])), (None, Some(3.0)));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 9.0, 2.0]), Some(3.0));
        assert_eq!(mean_and_deviation(&[1.0, 3.0]), (2.0, 2f64.sqrt()));
        assert_eq!(mean_and_deviation(&[5.0]), (5.0, 0.0));
        assert_eq!(range(&[2.0, 1.0, 3.0]), (1.0, 3.0));
    }

    #[test]
    fn ratios_pair_rounds() {
        let mut samples = Samples::default();
        for (seconds, theirs) in [(1.0, 5.0), (2.0, 2.0)] {
            samples.push(
                10,
                Repetition {
                    seconds,
                    joules: Some(20.0),
                },
            );
            samples.push_baseline(theirs);
        }
        assert_eq!(samples.ratios(), [2.0, 2.5]);
        assert_eq!(samples.joules_per_token(), Some(2.0));
    }
}
