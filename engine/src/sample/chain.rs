//! The chain of samplers that turns logits into a token.

use super::penalties::BIAS;
use super::rng::{Rng, random_seed};
use super::{
    AdaptiveP, Bias, Candidates, Constrained, Dist, LogitBias, Mirostat, MirostatV2, SampleError, SamplerParams, Token,
};
use crate::grammar::Constraint;
use crate::vocab::Vocab;
use std::borrow::Cow;

/// What can be copied without knowing what it is: every sampler that is `Clone`.
pub trait CopySampler {
    /// Another one in the same state.
    fn copy(&self) -> Box<dyn Sampler>;
}

impl<S: Sampler + Clone + 'static> CopySampler for S {
    fn copy(&self) -> Box<dyn Sampler> {
        Box::new(self.clone())
    }
}

/// One step of a chain.
pub trait Sampler: CopySampler + Send {
    /// Its name in the tables, parameters and logs.
    fn name(&self) -> &'static str;

    /// Reweights, reorders or removes candidates, or selects one.
    fn apply(&mut self, candidates: &mut Candidates);

    /// Takes note of a token that has become part of the text.
    fn accept(&mut self, _token: Token) {}

    /// Takes note of a token of the prompt, which is not for every sampler like one of the text that follows.
    fn accept_prompt(&mut self, token: Token) {
        self.accept(token);
    }

    /// Why no candidate is left, if this sampler cannot go on.
    fn fault(&self) -> Option<SampleError> {
        None
    }

    /// Forgets all accepted tokens and restarts the random numbers.
    fn reset(&mut self) {}

    /// From now on, no token is brought in that was not among the candidates: a grammar may have ruled it out.
    fn keep_to_candidates(&mut self) {}

    /// Where this sampler, being the first one, lists the candidates itself: those that it would leave, of which the next sampler only looks at the
    /// `top_k` most likely. False if the chain has to list all of them and apply it.
    fn list(&mut self, _logits: &[f32], _top_k: Option<usize>, _candidates: &mut Candidates) -> bool {
        false
    }

    /// `Some(k)` where this sampler, being the first one, only looks at the `k` most likely tokens (0: at all): the
    /// chain then need not list the others.
    fn leading_top_k(&self) -> Option<usize> {
        None
    }
}

/// What samplers need to know of a vocabulary: those of DRY's sequence breakers and of infill do.
pub trait Pieces {
    /// Tokens in the vocabulary.
    fn n_tokens(&self) -> usize;

    /// The text of a token, with special tokens spelled out.
    fn piece(&self, token: Token) -> Cow<'_, [u8]>;

    /// The text of a token, empty for special tokens.
    fn plain_piece(&self, token: Token) -> Cow<'_, [u8]>;

    /// The tokens of a text, without BOS or EOS and without parsing special tokens.
    fn tokenize(&self, text: &str) -> Vec<Token>;

    /// The tokens that end a text.
    fn eog_tokens(&self) -> &[Token];

    /// The one of them that ends a turn, or else a text.
    fn eot(&self) -> Option<Token>;
}

impl Pieces for Vocab {
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

/// Samplers in order, and the candidates they work on. A copy goes on as the original would, with the same random numbers.
pub struct Chain {
    samplers: Vec<Box<dyn Sampler>>,
    candidates: Candidates,
    n_vocab: usize,
    seed: u64,
}

/// What the builders in the sampler table get besides the parameters.
pub(super) struct Build<'a> {
    pub params: &'a SamplerParams,
    pub pieces: Option<&'a dyn Pieces>,
    pub seed: u64,
}

impl Build<'_> {
    /// Random numbers of a sampler's own.
    pub fn rng(&self, stream: Stream) -> Rng {
        Rng::new(self.seed, stream as u64)
    }
}

/// Samplers that draw random numbers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stream {
    Select = 0,
    Xtc = 1,
}

impl Chain {
    /// The chain that `params` describe, for logits of `n_vocab` tokens. `pieces`: the vocabulary, for the sequence
    /// breakers of DRY and for infill; without one there are neither.
    pub fn new(params: &SamplerParams, n_vocab: usize, pieces: Option<&dyn Pieces>) -> Result<Chain, SampleError> {
        params.check()?;
        if let Some(bias) = params.logit_bias.iter().find(|b| b.token as usize >= n_vocab) {
            return Err(SampleError::TokenOutOfVocab {
                name: "logit_bias",
                token: bias.token,
                n_vocab,
            });
        }
        let seed = params.seed.unwrap_or_else(random_seed);
        let build = Build { params, pieces, seed };
        let mut samplers: Vec<Box<dyn Sampler>> = Vec::new();
        if !params.logit_bias.is_empty() {
            samplers.push(Box::new(Bias::new(&params.logit_bias)));
        }
        let (tau, eta, rng) = (params.mirostat_tau, params.mirostat_eta, build.rng(Stream::Select));
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
        Ok(Chain {
            samplers,
            candidates: Candidates::default(),
            n_vocab,
            seed,
        })
    }

    /// The chain that `params` describe, for a model's vocabulary: with the tokens banned that the model must not
    /// produce, and with DRY's sequence breakers.
    pub fn for_vocab(params: &SamplerParams, vocab: &Vocab) -> Result<Chain, SampleError> {
        let n_vocab = Pieces::n_tokens(vocab);
        let bans = vocab
            .suppressed_tokens()
            .iter()
            .filter(|&&token| (token as usize) < n_vocab);
        let bans: Vec<_> = bans
            .map(|&token| LogitBias {
                token,
                bias: f32::NEG_INFINITY,
            })
            .collect();
        if bans.is_empty() {
            return Chain::new(params, n_vocab, Some(vocab));
        }
        let mut params = params.clone();
        params.logit_bias.extend(bans);
        Chain::new(&params, n_vocab, Some(vocab))
    }

    /// The chain with only those tokens that a constraint allows. What is banned by a bias stays banned.
    #[must_use]
    pub fn constrained(mut self, constraint: Constraint) -> Chain {
        let at = usize::from(self.names().next() == Some(BIAS));
        self.samplers.iter_mut().for_each(|s| s.keep_to_candidates());
        self.samplers.insert(at, Box::new(Constrained::new(constraint)));
        self
    }

    /// A chain of given samplers. Where none of them selects, the most likely candidate is taken.
    pub fn from_samplers(samplers: Vec<Box<dyn Sampler>>, n_vocab: usize) -> Chain {
        Chain {
            samplers,
            candidates: Candidates::default(),
            n_vocab,
            seed: 0,
        }
    }

    /// The next token for `logits: [n_vocab]`. The token still has to be given to [`Chain::accept`].
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

    /// The same for candidates the caller has set up with [`Chain::candidates_mut`].
    pub fn apply(&mut self) -> Result<Token, SampleError> {
        self.apply_from(0)
    }

    /// The same with all samplers but the first `n_done`.
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
                let fault = self.samplers.iter().find_map(|s| s.fault());
                Err(fault.unwrap_or(SampleError::NoCandidate { n_vocab: self.n_vocab }))
            }
        }
    }

    /// Tells every sampler of a token of the prompt.
    pub fn accept_prompt(&mut self, token: Token) {
        self.samplers.iter_mut().for_each(|s| s.accept_prompt(token));
    }

    /// Tells every sampler that a token has become part of the text: each one sampled.
    pub fn accept(&mut self, token: Token) {
        self.samplers.iter_mut().for_each(|s| s.accept(token));
    }

    /// Back to the state after building: no accepted tokens, random numbers from the start of the seed.
    pub fn reset(&mut self) {
        self.samplers.iter_mut().for_each(|s| s.reset());
    }

    /// What the samplers left after the last [`Chain::sample`], with probabilities.
    pub fn candidates(&self) -> &Candidates {
        &self.candidates
    }

    /// The candidates, to be set up for [`Chain::apply`].
    pub fn candidates_mut(&mut self) -> &mut Candidates {
        &mut self.candidates
    }

    /// The seed in use, also where the parameters left it to chance: with it a run can be repeated.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The names of the samplers, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.samplers.iter().map(|s| s.name())
    }
}

impl Clone for Chain {
    fn clone(&self) -> Chain {
        Chain {
            samplers: self.samplers.iter().map(|s| s.copy()).collect(),
            candidates: self.candidates.clone(),
            n_vocab: self.n_vocab,
            seed: self.seed,
        }
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain")
            .field("samplers", &self.names().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
