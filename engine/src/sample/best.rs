//! Logits that a sampler chain reads: all of them, or the best ones if the device has already searched for them.

use super::{SampleError, Token};
use crate::finite::{NotFinite, check_logits};

/// Output of the model for one token.
#[derive(Clone, Copy, Debug)]
pub enum TokenLogits<'a> {
    /// Logits of all tokens, of shape `[n_vocab]`.
    All(&'a [f32]),
    /// The most likely tokens.
    Best(BestLogits<'a>),
}

impl<'a> TokenLogits<'a> {
    /// Returns the logits `[n_vocab]` of all tokens; empty if only the best ones are known.
    pub fn all(self) -> &'a [f32] {
        match self {
            TokenLogits::All(logits) => logits,
            TokenLogits::Best(_) => &[],
        }
    }

    /// Checks that all logits of the model are numbers, including those that are not among the best ones.
    ///
    /// # Errors
    /// Returns a [`NotFinite`] for the first other value.
    pub fn check(self) -> Result<(), NotFinite> {
        match self {
            TokenLogits::All(logits) => check_logits(logits),
            TokenLogits::Best(best) => best.check(),
        }
    }
}

/// The most likely tokens and their logits, best first: by descending logit, then by ascending token.
#[derive(Clone, Copy, Debug)]
pub struct BestLogits<'a> {
    tokens: &'a [u32],
    logits: &'a [f32],
    invalid: Option<NotFinite>,
    n_vocab: usize,
}

/// Word in place of the index of an invalid logit if all logits are valid.
const NONE: u32 = u32::MAX;

impl<'a> BestLogits<'a> {
    /// Returns the number of words of a row with the `k` best of a token's logits.
    pub const fn n_words(k: usize) -> usize {
        2 * k + 2
    }

    /// Interprets a row as [`Backend::read_best_async`] returns it. Returns `None` if its length is invalid.
    ///
    /// [`Backend::read_best_async`]: crate::backend::Backend::read_best_async
    pub fn from_words(words: &'a [f32], n_vocab: usize) -> Option<BestLogits<'a>> {
        let (best, invalid) = words.split_at_checked(words.len().checked_sub(2)?)?;
        if !best.len().is_multiple_of(2) {
            return None;
        }
        let (tokens, logits) = best.split_at(best.len() / 2);
        let index = invalid[0].to_bits();
        let invalid = NotFinite {
            index: index as usize,
            value: invalid[1],
        };
        Some(BestLogits {
            tokens: bytemuck::cast_slice(tokens),
            logits,
            invalid: (index != NONE).then_some(invalid),
            n_vocab,
        })
    }

    /// Returns the size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns true if there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Iterates over the tokens and their logits, best first.
    pub fn iter(&self) -> impl Iterator<Item = (Token, f32)> + 'a {
        let tokens = self.tokens.iter().map(|&token| token as Token);
        tokens.zip(self.logits.iter().copied())
    }

    /// Checks that all logits of the model are numbers, as [`check_logits`] does.
    ///
    /// # Errors
    /// Returns a [`NotFinite`] for the first other value.
    pub fn check(&self) -> Result<(), NotFinite> {
        self.invalid.map_or(Ok(()), Err)
    }

    /// Returns the best `k` tokens.
    ///
    /// # Errors
    /// Returns [`SampleError::TooFewBest`] if fewer are known.
    pub(super) fn first(self, k: usize) -> Result<BestLogits<'a>, SampleError> {
        if k > self.len() {
            return Err(SampleError::TooFewBest {
                needed: k,
                found: self.len(),
            });
        }
        Ok(BestLogits {
            tokens: &self.tokens[..k],
            logits: &self.logits[..k],
            ..self
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Candidates, LogitBias, SamplerChain, SamplerParams};
    use super::*;

    /// Encodes the `k` best logits as a device does.
    fn words(logits: &[f32], k: usize) -> Vec<f32> {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|&a, &b| {
            let by_logit = logits[b as usize].total_cmp(&logits[a as usize]);
            by_logit.then(a.cmp(&b))
        });
        let best = &order[..k];
        let invalid = check_logits(logits).err();
        let tokens = best.iter().map(|&token| f32::from_bits(token));
        let values = best.iter().map(|&token| logits[token as usize]);
        let (index, value) = invalid.map_or((NONE, 0.0), |e| (e.index as u32, e.value));
        tokens.chain(values).chain([f32::from_bits(index), value]).collect()
    }

    fn logits(seed: u32) -> Vec<f32> {
        let next = |x: &mut u32| {
            *x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Few distinct values, so that ties occur.
            Some((*x >> 20) as f32 / 64.0 - 20.0)
        };
        std::iter::successors(Some((seed, 0.0)), |&(mut x, _)| {
            let value = next(&mut x)?;
            Some((x, value))
        })
        .skip(1)
        .map(|(_, value)| value)
        .take(1000)
        .collect()
    }

    #[test]
    fn best_logits_select_the_same_tokens_as_all_logits() {
        for params in [
            SamplerParams::default(),
            SamplerParams {
                temp: 0.0,
                ..SamplerParams::default()
            },
            SamplerParams {
                top_k: 7,
                top_p: 0.5,
                xtc_probability: 0.5,
                ..SamplerParams::default()
            },
        ] {
            let params = SamplerParams {
                seed: Some(7),
                ..params
            };
            let mut all = SamplerChain::new(&params, 1000, None).unwrap();
            let mut best = all.clone();
            let k = all.n_best().expect("the chain starts with top-k");
            for seed in 0..40 {
                let logits = logits(seed);
                // A row may have more tokens than the chain needs.
                let words = words(&logits, k + 3);
                let row = BestLogits::from_words(&words, 1000).unwrap();
                let expected = all.sample(&logits).unwrap();
                assert_eq!(best.sample_from(TokenLogits::Best(row)), Ok(expected));
                let same = all.candidates().as_slice() == best.candidates().as_slice();
                assert!(same, "seed {seed}: the candidates differ");
            }
        }
    }

    #[test]
    fn chain_without_leading_top_k_needs_all_logits() {
        let n_best = |params: SamplerParams| SamplerChain::new(&params, 1000, None).unwrap().n_best();
        let default = SamplerParams::default;
        assert_eq!(n_best(default()), Some(40));
        let bias = vec![LogitBias { token: 3, bias: 1.0 }];
        for params in [
            SamplerParams { top_k: 0, ..default() },
            SamplerParams {
                top_k: 500,
                ..default()
            },
            SamplerParams {
                penalty_repeat: 1.1,
                ..default()
            },
            SamplerParams {
                top_n_sigma: 1.0,
                ..default()
            },
            SamplerParams {
                mirostat: 2,
                ..default()
            },
            SamplerParams {
                logit_bias: bias,
                ..default()
            },
        ] {
            assert_eq!(n_best(params.clone()), None, "{params:?}");
        }
    }

    #[test]
    fn unusable_best_logits_are_errors() {
        let mut chain = SamplerChain::new(&SamplerParams::default(), 1000, None).unwrap();
        let mut values = logits(1);
        let few = words(&values, 39);
        let row = BestLogits::from_words(&few, 1000).unwrap();
        let error = chain.sample_from(TokenLogits::Best(row));
        assert_eq!(error, Err(SampleError::TooFewBest { needed: 40, found: 39 }));
        values[700] = f32::NAN;
        let invalid = words(&values, 40);
        let row = BestLogits::from_words(&invalid, 1000).unwrap();
        assert_eq!(row.check(), check_logits(&values));
        assert!(TokenLogits::Best(row).check().is_err() && TokenLogits::Best(row).all().is_empty());
        assert!(BestLogits::from_words(&[0.0], 1000).is_none());
        assert!(BestLogits::from_words(&few[1..], 1000).is_none());
        let mut candidates = Candidates::default();
        candidates.fill_best_logits(row);
        assert_eq!(candidates.len(), 40);
    }
}
