//! Log probabilities under the model's unmodified logits.

use engine::sample::{Candidates, Token};

use super::request::TokenLogprob;

/// Returns the log probability of a token and of the `n_top` most likely tokens. `logits` is `[n_vocab]`.
pub fn logprob(logits: &[f32], token: Token, n_top: usize, candidates: &mut Candidates) -> TokenLogprob {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &l| max.max(l));
    let sum: f64 = logits
        .iter()
        .map(|&l| f64::from((l - max).exp()))
        .filter(|x| x.is_finite())
        .sum();
    let norm = max + sum.ln() as f32;
    let of = |logit: f32| finite(logit - norm);
    let mut top = Vec::new();
    if n_top > 0 {
        candidates.fill_top_k(logits, n_top);
        top.extend(candidates.as_slice().iter().map(|c| (c.token, of(c.logit))));
    }
    TokenLogprob {
        token,
        logprob: logits.get(token as usize).map_or(LOG_ZERO, |&logit| of(logit)),
        top,
    }
}

/// Value reported for the logarithm of 0, because JSON has no infinity.
const LOG_ZERO: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    if logprob.is_nan() {
        LOG_ZERO
    } else {
        logprob.clamp(LOG_ZERO, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_are_normalized_and_sorted() {
        let logits = [0.0, 2.0, 1.0, f32::NEG_INFINITY, 2.0];
        let mut candidates = Candidates::default();
        let found = logprob(&logits, 2, 3, &mut candidates);
        let sum: f32 = (0..5)
            .map(|t| logprob(&logits, t, 0, &mut candidates).logprob.exp())
            .sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert_eq!(found.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 4, 2]);
        assert_eq!(found.logprob, found.top[2].1);
        assert_eq!(logprob(&logits, 3, 0, &mut candidates).logprob, LOG_ZERO);
        assert_eq!(logprob(&logits, 99, 0, &mut candidates).logprob, LOG_ZERO);
    }

    #[test]
    fn logprobs_are_finite_for_nonfinite_logits() {
        for logits in [[f32::NAN; 2], [f32::INFINITY; 2], [f32::NEG_INFINITY; 2]] {
            let found = logprob(&logits, 0, 2, &mut Candidates::default());
            assert!(found.logprob.is_finite() && found.top.iter().all(|t| t.1.is_finite()));
        }
    }
}
