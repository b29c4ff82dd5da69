//! Log probabilities under the model's unmodified logits.

use engine::sample::{Candidate, Candidates, Token};

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

/// Returns the log probability of a token, and of the `n_top` most likely tokens, under the candidates that the
/// samplers left. A token that is not a candidate was forced instead of sampled, so its probability is 1.
pub fn sampled_logprob(left: &[Candidate], token: Token, n_top: usize) -> TokenLogprob {
    let max = left.iter().fold(f32::NEG_INFINITY, |max, c| max.max(c.logit));
    let weight = |c: &Candidate| f64::from(c.logit - max).exp();
    let sum: f64 = left.iter().map(weight).filter(|weight| weight.is_finite()).sum();
    let of = |c: &Candidate| finite((f64::from(c.logit - max) - sum.ln()) as f32);
    let mut top: Vec<(Token, f32)> = (left.iter().filter(|c| c.logit > f32::NEG_INFINITY))
        .map(|c| (c.token, of(c)))
        .collect();
    top.sort_by(|a, b| b.1.total_cmp(&a.1));
    top.truncate(n_top);
    TokenLogprob {
        token,
        logprob: left.iter().find(|c| c.token == token).map_or(0.0, of),
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
    fn sampled_logprobs_are_those_of_the_remaining_candidates() {
        let candidate = |token: Token, logit: f32| Candidate { token, logit, p: 0.0 };
        let left = [candidate(4, 1.0), candidate(9, 1.0), candidate(2, f32::NEG_INFINITY)];
        let found = sampled_logprob(&left, 9, 10);
        assert!((found.logprob.exp() - 0.5).abs() < 1e-6);
        assert_eq!(found.top.iter().map(|t| t.0).collect::<Vec<_>>(), [4, 9]);
        assert_eq!(
            sampled_logprob(&left, 7, 0).logprob,
            0.0,
            "a token that was set is certain"
        );
    }

    #[test]
    fn logprobs_are_finite_for_nonfinite_logits() {
        for logits in [[f32::NAN; 2], [f32::INFINITY; 2], [f32::NEG_INFINITY; 2]] {
            let found = logprob(&logits, 0, 2, &mut Candidates::default());
            assert!(found.logprob.is_finite() && found.top.iter().all(|t| t.1.is_finite()));
        }
    }
}
