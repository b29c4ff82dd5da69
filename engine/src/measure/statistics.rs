//! Statistics over all scored positions, as llama.cpp computes them.

use super::position::Compared;

/// Mean with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Mean, or a function of means.
    pub value: f64,
    /// Standard error.
    pub error: f64,
}

impl Estimate {
    /// Returns the mean of `n` numbers from their sum and the sum of their squares.
    fn mean(sum: f64, squares: f64, n: usize) -> Estimate {
        if n == 0 {
            return Estimate::default();
        }
        let value = sum / n as f64;
        let variance = squares / n as f64 - value * value;
        let error = if variance > 0.0 && n > 10 {
            (variance / (n - 1) as f64).sqrt()
        } else {
            0.0
        };
        Estimate { value, error }
    }

    fn of(values: impl Iterator<Item = f64> + Clone) -> Estimate {
        let squares = values.clone().map(|x| x * x).sum();
        Estimate::mean(values.clone().sum(), squares, values.count())
    }

    fn exp(self) -> Estimate {
        let value = self.value.exp();
        let error = value * self.error;
        Estimate { value, error }
    }
}

/// Perplexity of a text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Perplexity {
    sum: f64,
    squares: f64,
    n: usize,
}

impl Perplexity {
    /// Adds the negative log-probability of a token.
    pub fn add(&mut self, nll: f64) {
        self.sum += nll;
        self.squares += nll * nll;
        self.n += 1;
    }

    /// Returns the number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.n
    }

    /// Returns the perplexity.
    pub fn value(&self) -> Estimate {
        Estimate::mean(self.sum, self.squares, self.n).exp()
    }
}

/// Comparison of a model with a base model over a text.
#[derive(Clone, Debug, Default)]
pub struct ModelComparison(Vec<Compared>);

/// Quantiles of a distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution(Vec<f64>);

impl Distribution {
    fn new(values: impl Iterator<Item = f64>) -> Distribution {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_unstable_by(f64::total_cmp);
        Distribution(sorted)
    }

    /// Returns the quantile for this fraction, interpolated between neighbors.
    pub fn quantile(&self, fraction: f64) -> f64 {
        let Some(last) = self.0.len().checked_sub(1) else {
            return 0.0;
        };
        let position = fraction.clamp(0.0, 1.0) * last as f64;
        let below = position as usize;
        let part = position - below as f64;
        if part == 0.0 {
            return self.0[below];
        }
        (1.0 - part) * self.0[below] + part * self.0[(below + 1).min(last)]
    }
}

/// Statistics of a [`ModelComparison`].
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Number of scored positions.
    pub n_tokens: usize,
    /// Perplexity of the model.
    pub perplexity: Estimate,
    /// Perplexity of the base model.
    pub base_perplexity: Estimate,
    /// Correlation of the log-probabilities of both models.
    pub correlation: f64,
    /// Logarithm of the ratio of both perplexities.
    pub log_ratio: Estimate,
    /// Ratio of both perplexities.
    pub ratio: Estimate,
    /// Difference of both perplexities.
    pub difference: Estimate,
    /// Kullback-Leibler divergence from the base model.
    pub kld: Estimate,
    /// Largest possible excess of the mean divergence over `kld`.
    pub kld_excess: f64,
    /// Distribution of the divergence.
    pub klds: Distribution,
    /// Change of the probability of the next token.
    pub delta_p: Estimate,
    /// Distribution of the change.
    pub delta_ps: Distribution,
    /// Root of the mean squared change.
    pub delta_p_rms: Estimate,
    /// Fraction of positions with the same likeliest token.
    pub same_top: Estimate,
}

impl ModelComparison {
    /// Adds a position.
    pub fn add(&mut self, compared: Compared) {
        self.0.push(compared);
    }

    fn kld(&self) -> Estimate {
        Estimate::of(self.0.iter().map(|c| c.kld))
    }

    /// Returns the statistics.
    pub fn summary(&self) -> Summary {
        let (all, n) = (&self.0, self.0.len());
        let log = Estimate::of(all.iter().map(|c| c.nll));
        let log_base = Estimate::of(all.iter().map(|c| c.nll_base));
        let product: f64 = all.iter().map(|c| c.nll * c.nll_base).sum();
        let covariance = if n < 10 {
            0.0
        } else {
            (product / n as f64 - log.value * log_base.value) / (n - 1) as f64
        };
        let log_ratio = Estimate {
            value: log.value - log_base.value,
            error: root(log.error.powi(2) + log_base.error.powi(2) - 2.0 * covariance),
        };
        let (perplexity, base) = (log.exp(), log_base.exp());
        let product_covariance = perplexity.value * base.value * covariance;
        let difference = Estimate {
            value: perplexity.value - base.value,
            error: root(perplexity.error.powi(2) + base.error.powi(2) - 2.0 * product_covariance),
        };
        let excess: f64 = all.iter().map(|c| c.excess).sum();
        Summary {
            n_tokens: n,
            perplexity,
            base_perplexity: base,
            correlation: ratio(covariance, log.error * log_base.error),
            log_ratio,
            ratio: log_ratio.exp(),
            difference,
            kld: self.kld(),
            kld_excess: ratio(excess, n as f64),
            klds: Distribution::new(all.iter().map(|c| c.kld)),
            delta_p: Estimate::of(all.iter().map(Compared::delta_p)),
            delta_ps: Distribution::new(all.iter().map(Compared::delta_p)),
            delta_p_rms: self.delta_p_rms(),
            same_top: fraction(all.iter().filter(|c| c.is_same_top).count(), n),
        }
    }

    fn delta_p_rms(&self) -> Estimate {
        let mean = Estimate::of(self.0.iter().map(|c| c.delta_p().powi(2)));
        let value = mean.value.sqrt();
        let error = ratio(0.5 * mean.error, value);
        Estimate { value, error }
    }
}

/// Returns a fraction of `n` independent events.
pub(super) fn fraction(hits: usize, n: usize) -> Estimate {
    let value = ratio(hits as f64, n as f64);
    let error = root(ratio(value * (1.0 - value), n.saturating_sub(1) as f64));
    Estimate { value, error }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

/// Returns the square root; 0 for a negative number, which rounding may cause.
fn root(x: f64) -> f64 {
    x.max(0.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected numbers come from numpy, with the formulas of llama.cpp's `perplexity` example.
    #[test]
    fn summary_equals_recomputed_statistics() {
        let mut comparison = ModelComparison::default();
        for i in 0..40u32 {
            let x = f64::from(i * 37 % 40) / 10.0;
            comparison.add(Compared {
                nll: x + f64::from(i % 3) * 0.1,
                nll_base: x,
                kld: f64::from(i * 7 % 40) / 100.0,
                excess: 0.01,
                is_same_top: i % 4 != 0,
            });
        }
        let s = comparison.summary();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        for (found, value, error) in EXPECTED_ESTIMATES
            .iter()
            .zip([
                s.perplexity,
                s.base_perplexity,
                s.log_ratio,
                s.ratio,
                s.difference,
                s.kld,
                s.delta_p,
                s.delta_p_rms,
                s.same_top,
            ])
            .map(|(e, found)| (found, e[0], e[1]))
        {
            close(found.value, value);
            close(found.error, error);
        }
        close(s.correlation, EXPECTED_OTHERS[0]);
        close(s.kld_excess, 0.01);
        close(s.klds.quantile(0.999), EXPECTED_OTHERS[1]);
        close(s.klds.quantile(0.5), EXPECTED_OTHERS[2]);
        close(s.delta_ps.quantile(0.1), EXPECTED_OTHERS[3]);
        close(s.delta_ps.quantile(0.0), EXPECTED_OTHERS[4]);
    }

    const EXPECTED_ESTIMATES: [[f64; 2]; 9] = [
        [7.748505608016, 1.440821290080],
        [7.028687580589, 1.299198603411],
        [0.097500000000, 0.013149778198],
        [1.102411441563, 0.014496465940],
        [0.719818027426, 0.171486799469],
        [0.195000000000, 0.018484227511],
        [-0.021485572281, 0.005318630591],
        [0.039558251219, 0.008091004521],
        [0.750000000000, 0.069337524528],
    ];
    const EXPECTED_OTHERS: [f64; 5] = [
        0.997502358023,
        0.389610000000,
        0.195000000000,
        -0.062916028093,
        -0.148410707042,
    ];
}
