//! Interface of a sampler, and the view of the vocabulary that samplers have.

use std::borrow::Cow;

use super::{Candidates, SampleError, Token};
use crate::vocab::Vocab;

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

    /// Returns false while a thread prepares the next [`Sampler::apply`], which would wait for it.
    fn is_ready(&mut self) -> bool {
        true
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

    /// Returns `Some(k)` if this is the first sampler and it needs only the `k` most likely tokens. The chain then
    /// need not materialize the other tokens. 0 means all tokens.
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
