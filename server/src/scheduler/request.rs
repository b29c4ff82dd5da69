//! What is asked of a scheduler, and what it says while it works on it.

use std::sync::Arc;
use std::time::Duration;

use engine::chat::Budget;
use engine::grammar::Constraint;
use engine::sample::{SampleError, SamplerParams, Token};
use engine::speculate::Drafted;

/// A prompt to be continued.
#[derive(Clone)]
pub struct Request {
    /// The prompt's tokens, at least one.
    pub prompt: Vec<Token>,
    /// Continuations wanted; each has random numbers of its own.
    pub n: usize,
    /// Most tokens of each; `None`: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampler: SamplerParams,
    /// What each text has to keep to.
    pub constraint: Option<Constraint>,
    /// Texts that end a continuation before them.
    pub stop: Vec<String>,
    /// Tokens that would end a continuation are never chosen.
    pub ignore_eos: bool,
    /// Control tokens that are shown in the text.
    pub shown: Arc<[Token]>,
    /// Tell each token's log probability, and those of so many most likely ones.
    pub logprobs: Option<usize>,
    /// Tell them for the tokens of the prompt, too.
    pub prompt_logprobs: bool,
    /// Use what other sequences have computed of the same beginning.
    pub reuse: bool,
    /// Whom this is for: requests of the same client wait for each other before they make others wait.
    pub client: u64,
    /// Greater ones come first.
    pub priority: i32,
    /// Most time for generating, from the first token on.
    pub t_max: Option<Duration>,
    /// Most time from now on, waiting included: each continuation then ends with what it has.
    pub deadline: Option<Duration>,
    /// What may be thought.
    pub budget: Option<Budget>,
    /// What it is called while it is under way, such as the id of its response.
    pub id: Option<Arc<str>>,
    /// What is thought can be ended by that name.
    pub reasoning_control: bool,
}

impl Request {
    /// A prompt to be continued once, with defaults for the rest.
    pub fn new(prompt: Vec<Token>) -> Request {
        Request {
            prompt,
            n: 1,
            max_tokens: None,
            sampler: SamplerParams::default(),
            constraint: None,
            stop: Vec::new(),
            ignore_eos: false,
            shown: Arc::new([]),
            logprobs: None,
            prompt_logprobs: false,
            reuse: true,
            client: 0,
            priority: 0,
            t_max: None,
            deadline: None,
            budget: None,
            id: None,
            reasoning_control: false,
        }
    }
}

/// What becomes of a request, in order; the last one of a choice is its [`Event::End`].
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The prompt is computed.
    Prompt(PromptDone),
    /// A token was generated.
    Token {
        /// Which of the continuations.
        choice: usize,
        /// The token.
        token: Token,
        /// Text that is sure now: none where a character or a stop text may have begun.
        text: String,
        /// How likely it was, if that was asked for.
        logprob: Option<TokenLogprob>,
    },
    /// A continuation is over.
    End {
        /// Which one.
        choice: usize,
        /// Why.
        finish: Finish,
        /// Text that had waited for a possible stop text.
        text: String,
        /// Tokens generated; one that ended it counts.
        n_generated: usize,
        /// Tokens that were guessed for it, and those of them that were right.
        drafted: Drafted,
        /// From its first token to its last.
        t_generated: Duration,
    },
    /// It could not be done: one sentence.
    Failed(String),
}

/// What computing a prompt took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptDone {
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// How many of them were computed before, for another request.
    pub n_cached: usize,
    /// From the beginning of the request to its end.
    pub t_waited: Duration,
    /// From the first step of it to the last.
    pub t_prompt: Duration,
    /// Log probabilities of its tokens from the second on, if they were asked for.
    pub logprobs: Vec<TokenLogprob>,
}

/// Why a continuation is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model was done: the token that said so.
    Model(Token),
    /// This text came that ends it.
    Stop(String),
    /// It has as many tokens as asked for, or took as long.
    Limit,
    /// There is no room in the context.
    ContextFull,
}

/// How likely a token was, by the model's own logits.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: Token,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The most likely tokens, best first.
    pub top: Vec<(Token, f32)>,
}

/// Why a request is not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Nothing to go on from.
    #[error("the prompt is empty: it has no tokens")]
    EmptyPrompt,
    /// A token that the vocabulary does not have.
    #[error("the prompt has the token {token}; the vocabulary has {n_vocab}")]
    Token {
        /// The token.
        token: Token,
        /// Tokens in the vocabulary.
        n_vocab: usize,
    },
    /// It cannot fit, whatever else leaves.
    #[error("the prompt has {n_prompt} tokens, but the context has {n_ctx} for prompt and answer together")]
    TooLong {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Tokens that the context can hold.
        n_ctx: usize,
    },
    /// More continuations than there are places for sequences.
    #[error("{n} continuations are wanted of one prompt, expected 1 to {max}")]
    Choices {
        /// Wanted.
        n: usize,
        /// Sequences that are worked on at once.
        max: usize,
    },
    /// Settings of the sampler that cannot be.
    #[error(transparent)]
    Sampler(#[from] SampleError),
    /// Too many wait already.
    #[error("{n_waiting} requests wait already; come back in {} s", .retry_after.as_secs())]
    Busy {
        /// How many wait.
        n_waiting: usize,
        /// When it may be worth another attempt.
        retry_after: Duration,
    },
    /// The model does not continue texts.
    #[error("the architecture {arch} does not continue texts: it encodes them, for /v1/embeddings and /v1/rerank")]
    Encoder {
        /// The architecture.
        arch: &'static str,
    },
    /// No more requests are taken: the scheduler is ending, or has failed.
    #[error("no requests are taken any more: the server is going down")]
    Closed,
}
