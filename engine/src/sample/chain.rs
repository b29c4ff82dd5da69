//! Sampler chain, which turns logits into a token.

use super::params::{BuildContext, RandomStream};
use super::penalties::BIAS;
use super::rng::random_seed;
use super::{
    AdaptiveP, Bias, Candidates, Constrained, Dist, Mirostat, MirostatV2, SampleError, Sampler, SamplerParams, Token,
    TokenLogits, TokenPieces,
};
use crate::finite::check_logits;
use crate::grammar::Constraint;

/// Samplers in order, with their candidates. A clone continues with the same random numbers as the original.
pub struct SamplerChain {
    samplers: Vec<Box<dyn Sampler>>,
    candidates: Candidates,
    n_vocab: usize,
    seed: u64,
}

impl SamplerChain {
    /// Builds the chain that `params` describes for `n_vocab` logits. Without `pieces`, DRY has no sequence
    /// breakers and infill is omitted.
    ///
    /// # Errors
    /// Returns an error if a parameter is out of range, or if a bias refers to a token outside the vocabulary.
    pub fn new(
        params: &SamplerParams,
        n_vocab: usize,
        pieces: Option<&dyn TokenPieces>,
    ) -> Result<SamplerChain, SampleError> {
        params.check()?;
        if let Some(bias) = params.logit_bias.iter().find(|b| b.token as usize >= n_vocab) {
            return Err(SampleError::TokenOutOfVocab {
                name: "logit_bias",
                token: bias.token,
                n_vocab,
            });
        }
        let seed = params.seed.unwrap_or_else(random_seed);
        let build = BuildContext { params, pieces, seed };
        let mut samplers: Vec<Box<dyn Sampler>> = Vec::new();
        if !params.logit_bias.is_empty() {
            samplers.push(Box::new(Bias::new(&params.logit_bias)));
        }
        let (tau, eta, rng) = (
            params.mirostat_tau,
            params.mirostat_eta,
            build.rng(RandomStream::Select),
        );
        match params.mirostat {
            0 => {
                samplers.extend(params.samplers.iter().filter_map(|kind| kind.def().build(&build)));
                samplers.push(match params.adaptive_target {
                    target if target < 0.0 => Box::new(Dist::new(rng)),
                    target => Box::new(AdaptiveP::new(target, params.adaptive_decay, rng)),
                });
            }
            version => {
                samplers.extend(super::SamplerKind::Temperature.def().build(&build));
                samplers.push(match version {
                    1 => Box::new(Mirostat::new(n_vocab, tau, eta, rng)),
                    _ => Box::new(MirostatV2::new(tau, eta, rng)),
                });
            }
        }
        Ok(SamplerChain {
            samplers,
            candidates: Candidates::default(),
            n_vocab,
            seed,
        })
    }

    /// Restricts the chain to tokens that `constraint` allows. Tokens banned by a bias remain banned.
    #[must_use]
    pub fn constrained(mut self, constraint: Constraint) -> SamplerChain {
        let at = usize::from(self.names().next() == Some(BIAS));
        self.samplers.iter_mut().for_each(|s| s.keep_to_candidates());
        self.samplers.insert(at, Box::new(Constrained::new(constraint)));
        self
    }

    /// Builds a chain from samplers. If no sampler selects a token, the chain selects the most likely one.
    pub fn from_samplers(samplers: Vec<Box<dyn Sampler>>, n_vocab: usize) -> SamplerChain {
        SamplerChain {
            samplers,
            candidates: Candidates::default(),
            n_vocab,
            seed: 0,
        }
    }

    /// Returns false while a thread computes the tokens that a slow grammar allows. [`SamplerChain::sample`]
    /// would wait for the thread.
    pub fn is_ready(&mut self) -> bool {
        self.samplers.iter_mut().all(|s| s.is_ready())
    }

    /// Selects the next token for `logits`, of shape `[n_vocab]`. Call [`SamplerChain::accept`] with the
    /// token afterwards.
    ///
    /// # Errors
    /// Returns a [`SampleError`] if `logits` has a different length or contains NaN or infinity, or if no token can be
    /// selected. The same applies if the output cannot continue within the grammar.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Token, SampleError> {
        if logits.len() != self.n_vocab {
            return Err(SampleError::LogitCount {
                expected: self.n_vocab,
                found: logits.len(),
            });
        }
        check_logits(logits)?;
        let leading = |samplers: &[Box<dyn Sampler>]| samplers.first().and_then(|s| s.leading_top_k());
        let top_k = leading(&self.samplers);
        if let [first, rest @ ..] = &mut self.samplers[..]
            && first.list(logits, leading(rest), &mut self.candidates)
        {
            return self.apply_from(1);
        }
        match top_k {
            Some(k) => self.candidates.fill_top_k(logits, k),
            None => self.candidates.fill(logits),
        }
        self.apply()
    }

    /// Like [`SamplerChain::sample`], for all logits or the best ones. The best ones suffice if there are at least
    /// [`SamplerChain::n_best`].
    ///
    /// # Errors
    /// Returns a [`SampleError`] under the conditions of [`SamplerChain::sample`], or if the known logits are too few.
    pub fn sample_from(&mut self, logits: TokenLogits<'_>) -> Result<Token, SampleError> {
        let best = match logits {
            TokenLogits::All(logits) => return self.sample(logits),
            TokenLogits::Best(best) => best,
        };
        best.check()?;
        if best.n_vocab() != self.n_vocab {
            return Err(SampleError::LogitCount {
                expected: self.n_vocab,
                found: best.n_vocab(),
            });
        }
        let k = self.n_best().unwrap_or(self.n_vocab);
        self.candidates.fill_best_logits(best.first(k)?);
        self.apply()
    }

    /// Returns the number of most likely tokens that determine the next token. Returns `None` if the chain needs all
    /// logits: a grammar, a bias, or a penalty may change the order of tokens.
    pub fn n_best(&self) -> Option<usize> {
        let k = self.samplers.first()?.leading_top_k()?;
        Candidates::omits_others(k, self.n_vocab).then_some(k)
    }

    /// Like [`SamplerChain::sample`], for candidates prepared by the caller with
    /// [`SamplerChain::candidates_mut`].
    ///
    /// # Errors
    /// Returns a [`SampleError`] if no token can be selected, or the output cannot continue within the grammar.
    pub fn apply(&mut self) -> Result<Token, SampleError> {
        self.apply_from(0)
    }

    /// Like [`SamplerChain::apply`], but skips the first `n_done` samplers.
    fn apply_from(&mut self, n_done: usize) -> Result<Token, SampleError> {
        let candidates = &mut self.candidates;
        for sampler in &mut self.samplers[n_done..] {
            sampler.apply(candidates);
        }
        if candidates.selected().is_none()
            && let Some(best) = candidates.argmax()
        {
            candidates.select(best);
        }
        match candidates.selected() {
            Some(c) if c.logit > f32::NEG_INFINITY => Ok(c.token),
            _ => {
                let error = self.samplers.iter().find_map(|s| s.error());
                Err(error.unwrap_or(SampleError::NoCandidate { n_vocab: self.n_vocab }))
            }
        }
    }

    /// Updates all samplers with a token of the prompt.
    pub fn accept_prompt(&mut self, token: Token) {
        self.samplers.iter_mut().for_each(|s| s.accept_prompt(token));
    }

    /// Updates all samplers with a token that was appended to the output. Must be called for each sampled
    /// token.
    pub fn accept(&mut self, token: Token) {
        self.samplers.iter_mut().for_each(|s| s.accept(token));
    }

    /// Resets the chain to its initial state: no accepted tokens, and the random number generators restarted.
    pub fn reset(&mut self) {
        self.samplers.iter_mut().for_each(|s| s.reset());
    }

    /// Returns the candidates left by the last [`SamplerChain::sample`], with probabilities.
    pub fn candidates(&self) -> &Candidates {
        &self.candidates
    }

    /// Returns the candidates for the caller to fill before [`SamplerChain::apply`].
    pub fn candidates_mut(&mut self) -> &mut Candidates {
        &mut self.candidates
    }

    /// Returns the seed in use, including a randomly chosen one, so that a run can be reproduced.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the names of the samplers, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.samplers.iter().map(|s| s.name())
    }
}

impl Clone for SamplerChain {
    fn clone(&self) -> SamplerChain {
        SamplerChain {
            samplers: self.samplers.iter().map(|s| s.copy()).collect(),
            candidates: self.candidates.clone(),
            n_vocab: self.n_vocab,
            seed: self.seed,
        }
    }
}

impl std::fmt::Debug for SamplerChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SamplerChain")
            .field("samplers", &self.names().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
