//! Sampling of tokens and their conversion to text.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::chat::{Budget, ReasoningTags};
use engine::finite::check_logits;
use engine::sample::{Candidates, SampleError, SamplerChain, Token, TokenLogits};
use engine::vocab::{TextStream, Vocab};

/// Control tokens that appear in the output as their names.
#[derive(Clone, Debug)]
pub enum ShownTokens {
    /// These tokens.
    Only(Arc<[Token]>),
    /// All tokens.
    All,
}

impl ShownTokens {
    /// Returns the reasoning tags that are single tokens. Other tags consist of text tokens, which are always
    /// shown.
    pub fn tags(vocab: &Vocab, tags: Option<ReasoningTags>) -> ShownTokens {
        let texts = tags.into_iter().flat_map(|(open, close)| [open, close]);
        let tokens = texts.map(|text| vocab.tokenize(text, false, true));
        let single = tokens.filter_map(|tokens| <[Token; 1]>::try_from(tokens).ok());
        ShownTokens::Only(single.flatten().collect())
    }

    fn contains(&self, token: Token) -> bool {
        match self {
            ShownTokens::Only(tokens) => tokens.contains(&token),
            ShownTokens::All => true,
        }
    }
}

/// No tokens.
impl Default for ShownTokens {
    fn default() -> ShownTokens {
        ShownTokens::Only(Arc::new([]))
    }
}

/// A token that the sampler selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Token id.
    pub token: Token,
    /// Set if the output ends with this token.
    pub end: Option<OutputEnd>,
}

/// Reason why the output ends with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputEnd {
    /// The token is an end-of-generation token, or another token that ends the output.
    EndOfGeneration,
    /// The token completes this stop string.
    Stop(String),
}

/// Turns logits into output text: samples tokens, enforces the reasoning budget, joins the bytes of tokens to
/// characters, and stops before stop strings.
pub struct Generator {
    chain: SamplerChain,
    text: TextStream,
    shown: ShownTokens,
    budget: Option<Budget>,
    /// Tokens to emit next instead of sampling.
    forced: VecDeque<Token>,
    /// Tokens that end the output, in addition to end-of-generation tokens.
    stop_tokens: Arc<[Token]>,
    /// Minimum number of further tokens before the output ends.
    n_required: usize,
}

impl Generator {
    /// Creates a generator. `chain` has already accepted the prompt. The output ends before the first
    /// occurrence of a string in `stops`.
    pub fn new(chain: SamplerChain, stops: Vec<String>, shown: ShownTokens, budget: Option<Budget>) -> Generator {
        Generator {
            chain,
            text: TextStream::new(stops),
            shown,
            budget,
            forced: VecDeque::new(),
            stop_tokens: Arc::new([]),
            n_required: 0,
        }
    }

    /// Adds tokens that end the output. The first `n_min` tokens are neither these tokens nor end-of-generation tokens, and
    /// complete no stop string.
    #[must_use]
    pub fn ending_at(self, stop_tokens: Arc<[Token]>, n_min: usize) -> Generator {
        Generator {
            stop_tokens,
            n_required: n_min,
            ..self
        }
    }

    /// Returns false while a thread computes the tokens that a slow grammar allows. [`Generator::next`] would
    /// wait for the thread.
    pub fn is_ready(&mut self) -> bool {
        !self.forced.is_empty() || self.chain.is_ready()
    }

    /// Returns the number of most likely tokens that suffice as the logits of [`Generator::next`]; 0 for all logits.
    pub fn n_best(&self) -> usize {
        match self.n_required {
            0 => self.chain.n_best().unwrap_or(0),
            _ => 0,
        }
    }

    /// Samples the next token from `logits` and appends the text that is certain to
    /// `out`. Incomplete characters and possible stop strings are withheld until a later token.
    ///
    /// # Errors
    /// Returns a [`SampleError`] if no token can be sampled.
    pub fn next(&mut self, logits: TokenLogits<'_>, vocab: &Vocab, out: &mut String) -> Result<Sampled, SampleError> {
        if let Some(end) = self.budget.as_mut().and_then(Budget::end) {
            self.forced.extend(vocab.tokenize(&end, false, true));
        }
        let token = match self.forced.pop_front() {
            Some(token) => token,
            None if self.n_required > 0 => self.sample_without_end(logits, vocab)?,
            None => self.chain.sample_from(logits)?,
        };
        let is_required = self.n_required > 0;
        self.n_required = self.n_required.saturating_sub(1);
        self.chain.accept(token);
        if vocab.is_eog(token) || self.stop_tokens.contains(&token) {
            let end = Some(OutputEnd::EndOfGeneration);
            return Ok(Sampled { token, end });
        }
        let bytes = vocab.token_to_piece(token, self.shown.contains(token));
        if let Some(budget) = &mut self.budget {
            budget.push(bytes);
        }
        if is_required {
            self.text.push_exempt(bytes, out);
            return Ok(Sampled { token, end: None });
        }
        let stop = self.text.push(bytes, out);
        let end = stop.map(|stop| OutputEnd::Stop(stop.to_owned()));
        Ok(Sampled { token, end })
    }

    /// Samples a token that does not end the output.
    fn sample_without_end(&mut self, logits: TokenLogits<'_>, vocab: &Vocab) -> Result<Token, SampleError> {
        let logits = logits.all();
        check_logits(logits)?;
        let candidates = self.chain.candidates_mut();
        candidates.fill(logits);
        candidates.retain_tokens(|token| !vocab.is_eog(token) && !self.stop_tokens.contains(&token));
        self.chain.apply()
    }

    /// Returns the candidates that the samplers left for the last sampled token.
    pub fn candidates(&self) -> &Candidates {
        self.chain.candidates()
    }

    /// Appends the withheld text to `out` at the end of the output, unless a stop string ended the output.
    pub fn finish(&mut self, out: &mut String) {
        self.text.finish(out);
    }

    /// Ends the reasoning at the next token. Returns false if the output is not in reasoning, or if there is
    /// no budget.
    pub fn end_reasoning(&mut self) -> bool {
        self.budget.as_mut().is_some_and(Budget::spend)
    }
}
