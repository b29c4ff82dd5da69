//! Sampler chain, which turns logits into a token.

use super::penalties::BIAS;
use super::rng::{Rng, random_seed};
use super::{AdaptiveP, Bias, Candidates, Constrained, Dist, Mirostat, MirostatV2, SampleError, SamplerParams, Token};
use crate::grammar::Constraint;
use crate::vocab::Vocab;
use std::borrow::Cow;

/// Object-safe cloning; implemented for every sampler that is `Clone`.
pub trait CopySampler {
    /// Clones the sampler with its state.
    fn copy(&self) -> Box<dyn Sampler>;
}

impl<S: Sampler + Clone + 'static> CopySampler for S {
    fn copy(&self) -> Box<dyn Sampler> {
        Box::new(self.clone())
    }
}

/// A step of a sampler chain.
pub trait Sampler: CopySampler + Send {
    /// Returns the name used in tables, parameters, and logs.
    fn name(&self) -> &'static str;

    /// Reweights, reorders, or removes candidates, or selects one.
    fn apply(&mut self, candidates: &mut Candidates);

    /// Updates the state with a token that was appended to the output.
    fn accept(&mut self, _token: Token) {}

    /// Updates the state with a token of the prompt. Some samplers treat prompt tokens differently.
    fn accept_prompt(&mut self, token: Token) {
        self.accept(token);
    }

    /// Returns the reason why no candidate is left, if this sampler failed.
    fn error(&self) -> Option<SampleError> {
        None
    }

    /// Clears the history of accepted tokens and restarts the random number generator.
    fn reset(&mut self) {}

    /// Restricts the sampler to existing candidates. Without the restriction, it may add tokens, which a
    /// grammar may forbid.
    fn keep_to_candidates(&mut self) {}

    /// Fills the candidates directly if this is the first sampler. With `top_k`, the next sampler needs only
    /// that number of the most likely tokens. Returns false if the chain must fill all tokens and apply the
    /// sampler.
    fn list(&mut self, _logits: &[f32], _top_k: Option<usize>, _candidates: &mut Candidates) -> bool {
        false
    }

    /// Returns `Some(k)` if this is the first sampler and it needs only the `k` most likely tokens, so that
    /// the chain need not materialize the others. 0 means all tokens.
    fn leading_top_k(&self) -> Option<usize> {
        None
    }
}

/// Vocabulary interface for samplers, used by DRY's sequence breakers and by infill.
pub trait TokenPieces {
    /// Returns the size of the vocabulary.
    fn n_tokens(&self) -> usize;

    /// Returns the bytes of a token; special tokens are spelled out.
    fn piece(&self, token: Token) -> Cow<'_, [u8]>;

    /// Returns the bytes of a token; empty for special tokens.
    fn plain_piece(&self, token: Token) -> Cow<'_, [u8]>;

    /// Tokenizes a string without adding BOS or EOS and without parsing special tokens.
    fn tokenize(&self, text: &str) -> Vec<Token>;

    /// Returns the end-of-generation tokens.
    fn eog_tokens(&self) -> &[Token];

    /// Returns the end-of-turn token, or the end-of-text token if there is none.
    fn eot(&self) -> Option<Token>;
}

impl TokenPieces for Vocab {
    fn n_tokens(&self) -> usize {
        Vocab::n_tokens(self) as usize
    }

    fn piece(&self, token: Token) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.token_to_piece(token, true))
    }

    fn plain_piece(&self, token: Token) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.token_to_piece(token, false))
    }

    fn tokenize(&self, text: &str) -> Vec<Token> {
        Vocab::tokenize(self, text, false, false)
    }

    fn eog_tokens(&self) -> &[Token] {
        Vocab::eog_tokens(self)
    }

    fn eot(&self) -> Option<Token> {
        Vocab::eot(self).or(self.eos())
    }
}

/// Samplers in order, with their candidates. A clone continues with the same random numbers as the original.
pub struct SamplerChain {
    samplers: Vec<Box<dyn Sampler>>,
    candidates: Candidates,
    n_vocab: usize,
    seed: u64,
}

/// Arguments for the builders in the sampler table.
pub(super) struct BuildContext<'a> {
    pub params: &'a SamplerParams,
    pub pieces: Option<&'a dyn TokenPieces>,
    pub seed: u64,
}

impl BuildContext<'_> {
    /// Creates a random number generator for one sampler.
    pub fn rng(&self, stream: RandomStream) -> Rng {
        Rng::new(self.seed, stream as u64)
    }
}

/// Samplers with a random number generator.
#[derive(Debug, Clone, Copy)]
pub(super) enum RandomStream {
    Select = 0,
    Xtc = 1,
}

impl SamplerChain {
    /// Builds the chain that `params` describes for `n_vocab` logits. Without `pieces`, DRY has no sequence
    /// breakers and infill is omitted.
    ///
    /// # Errors
    /// Fails if a parameter is out of range, or if a bias refers to a token outside the vocabulary.
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

    /// Selects the next token for `logits`, of shape `[n_vocab]`. Call [`SamplerChain::accept`] with the
    /// token afterwards.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Token, SampleError> {
        if logits.len() != self.n_vocab {
            return Err(SampleError::LogitCount {
                expected: self.n_vocab,
                found: logits.len(),
            });
        }
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

    /// Like [`SamplerChain::sample`], for candidates prepared by the caller with
    /// [`SamplerChain::candidates_mut`].
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
