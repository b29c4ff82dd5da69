//! Requests to the scheduler, and the events that it sends.

use std::sync::Arc;
use std::time::Duration;

use engine::chat::Budget;
use engine::context::{DecodeError, MediaRows};
use engine::grammar::Constraint;
use engine::sample::{SampleError, SamplerParams, Token};
use engine::speculate::Drafted;

/// A completion request.
#[derive(Clone)]
pub struct Request {
    /// Prompt tokens; not empty.
    pub prompt: Vec<Token>,
    /// Images whose rows are in the prompt, in any order.
    pub images: Vec<Arc<MediaRows>>,
    /// Number of choices; each has its own random seed.
    pub n: usize,
    /// Maximum tokens per choice; `None`: until the model stops or the context is full.
    pub max_tokens: Option<usize>,
    /// Sampling parameters.
    pub sampler: SamplerParams,
    /// Constraint on the output.
    pub constraint: Option<Constraint>,
    /// Stop strings. The output ends before the first match.
    pub stop: Vec<String>,
    /// Tokens that end the output, in addition to end-of-sequence tokens.
    pub stop_tokens: Arc<[Token]>,
    /// Number of tokens before one may end the output, unless a constraint covers the end.
    pub min_tokens: usize,
    /// Ban end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Control tokens whose text appears in the output.
    pub shown: Arc<[Token]>,
    /// Report the log probability of each token and of this number of most likely tokens.
    pub logprobs: Option<usize>,
    /// Source of the reported probabilities.
    pub logprob_source: LogprobSource,
    /// Also report log probabilities of prompt tokens.
    pub prompt_logprobs: bool,
    /// Report the progress of the prompt.
    pub progress: bool,
    /// Additional data of the response.
    pub diagnostics: Diagnostics,
    /// Biases of the tokens of texts; the service adds them to the sampling parameters.
    pub text_biases: Vec<(String, f32)>,
    /// Reuse cached prefixes.
    pub reuse: bool,
    /// LoRA adapters and their scales. Omitted adapters have scale 0. `None` for the scales of the server.
    pub lora: Option<Vec<(usize, f32)>>,
    /// Client id for fair scheduling: among equal priorities, clients with fewer running requests are served
    /// first.
    pub client: u64,
    /// Priority; higher values start first.
    pub priority: i32,
    /// Time limit from the first token.
    pub t_max: Option<Duration>,
    /// Time limit from submission, including queueing. Choices end with the output so far.
    pub deadline: Option<Duration>,
    /// Reasoning budget.
    pub budget: Option<Budget>,
    /// Id of the request in commands.
    pub id: Option<Arc<str>>,
    /// Reasoning can be ended by a command with the request's id.
    pub reasoning_control: bool,
}

impl Request {
    /// Creates a request for one completion with default settings.
    pub fn new(prompt: Vec<Token>) -> Request {
        Request {
            prompt,
            images: Vec::new(),
            n: 1,
            max_tokens: None,
            sampler: SamplerParams::default(),
            constraint: None,
            stop: Vec::new(),
            stop_tokens: Arc::new([]),
            min_tokens: 0,
            ignore_eos: false,
            shown: Arc::new([]),
            logprobs: None,
            logprob_source: LogprobSource::Model,
            prompt_logprobs: false,
            progress: false,
            diagnostics: Diagnostics::default(),
            text_biases: Vec::new(),
            reuse: true,
            lora: None,
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

impl Request {
    /// Returns true if a constraint decides where the output ends. The output then needs an end-of-sequence token when
    /// the constraint is satisfied.
    pub fn covers_end(&self) -> bool {
        self.constraint.as_ref().is_some_and(Constraint::covers_end)
    }
}

/// Additional data of a response. The scheduler ignores them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    /// Each event of a stream has the times up to that event.
    pub timings_per_token: bool,
    /// The response has the prompt, the settings, and the output before it was parsed.
    pub verbose: bool,
}

/// Source of the reported probabilities of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobSource {
    /// The model's unmodified logits.
    #[default]
    Model,
    /// The candidates that the samplers left.
    Samplers,
    /// None: only the token ids are reported.
    Ids,
}

/// Event of a request. The last event of each choice is [`Event::End`].
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Part of the prompt has been processed. The first of these events precedes the first step.
    Progress(PromptProgress),
    /// The prompt has been processed.
    Prompt(PromptDone),
    /// A token was generated.
    Token {
        /// Index of the choice.
        choice: usize,
        /// Token id.
        token: Token,
        /// Output text that is now final. Empty while a UTF-8 character or a possible stop string is
        /// incomplete.
        text: String,
        /// Log probability, if requested.
        logprob: Option<TokenLogprob>,
    },
    /// A choice has ended.
    End {
        /// Index of the choice.
        choice: usize,
        /// Reason for the end.
        finish: Finish,
        /// Remaining text that was withheld as a possible stop string.
        text: String,
        /// Number of generated tokens, including the end-of-sequence token.
        n_generated: usize,
        /// Drafted and accepted tokens.
        drafted: Drafted,
        /// Time from the first to the last token.
        t_generated: Duration,
    },
    /// The request failed with this message.
    Failed(String),
    /// The request turned out to be unsuitable; the message gives the reason.
    Refused(String),
}

impl Event {
    /// Returns the event of a failed decode.
    pub fn decode_failed(error: &DecodeError) -> Event {
        Event::Failed(format!("cannot run the model: {error}"))
    }
}

/// Progress of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PromptProgress {
    /// Prompt tokens.
    pub n_prompt: usize,
    /// Prompt tokens found in the cache.
    pub n_cached: usize,
    /// Processed prompt tokens, including those found in the cache.
    pub n_done: usize,
    /// Time since the first prefill step.
    pub t_prompt: Duration,
}

/// Statistics of a processed prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptDone {
    /// Prompt tokens.
    pub n_prompt: usize,
    /// Prompt tokens found in the cache.
    pub n_cached: usize,
    /// Time from submission to the end of prefill.
    pub t_waited: Duration,
    /// Time from the first to the last prefill step.
    pub t_prompt: Duration,
    /// Log probabilities of all tokens except the first, if requested.
    pub logprobs: Vec<TokenLogprob>,
}

/// Reason why a choice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model emitted this end-of-sequence token.
    Model(Token),
    /// The completion ended at this stop string.
    Stop(String),
    /// A token limit or time limit was reached.
    Limit,
    /// The context is full.
    ContextFull,
}

/// Log probability of a token under the model's unmodified logits.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Token id.
    pub token: Token,
    /// Natural logarithm of the probability.
    pub logprob: f32,
    /// Most likely tokens, best first.
    pub top: Vec<(Token, f32)>,
}

/// Reason why a request was rejected.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The prompt has no tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A token id is out of range.
    #[error("invalid token {token} in the prompt: the vocabulary has {n_vocab} tokens")]
    Token {
        /// Token id.
        token: Token,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// The prompt exceeds the context.
    #[error(
        "the prompt has {n_prompt} tokens, which exceeds the available context size of {n_ctx} tokens for prompt and completion together"
    )]
    TooLong {
        /// Prompt tokens.
        n_prompt: usize,
        /// Capacity of the context in tokens.
        n_ctx: usize,
    },
    /// No choices, or too many.
    #[error("{n} choices requested, expected 1 to {max}")]
    Choices {
        /// Requested choices.
        n: usize,
        /// Maximum number of choices.
        max: usize,
    },
    /// The id of a LoRA adapter is out of range.
    #[error("invalid adapter {id}: the number of loaded adapters is {n}")]
    Adapter {
        /// Requested adapter.
        id: usize,
        /// Number of loaded adapters.
        n: usize,
    },
    /// Invalid sampling parameters.
    #[error(transparent)]
    Sampler(#[from] SampleError),
    /// The queue is full.
    #[error("the queue is full ({n_waiting} requests); retry in {} s", .retry_after.as_secs())]
    Busy {
        /// Queued requests.
        n_waiting: usize,
        /// Suggested delay before a retry.
        retry_after: Duration,
    },
    /// The model is an encoder.
    #[error("architecture {arch} is an encoder and cannot generate text; use /v1/embeddings or /v1/rerank")]
    Encoder {
        /// Architecture name.
        arch: &'static str,
    },
    /// The scheduler is shutting down or has failed.
    #[error("the server is shutting down")]
    Closed,
}
