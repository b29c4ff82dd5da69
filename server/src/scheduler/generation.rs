//! Completion of a prompt: samples tokens from logits and converts them to text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::chat::Budget;
use engine::sample::{Candidates, SampleError, SamplerChain, Token, TokenLogits};
use engine::speculate::Drafted;
use engine::vocab::Vocab;
use llama::parts::{Generator, OutputEnd, ShownTokens};
use tokio::sync::mpsc::UnboundedSender;

use super::logprobs::{logprob, sampled_logprob};
use super::request::{Event, Finish, LogprobSource, TokenLogprob};
use crate::metrics::Metrics;

/// State of one completion.
pub struct Generation {
    /// Index of the choice within the request.
    pub choice: usize,
    generator: Generator,
    events: UnboundedSender<Event>,
    limits: Limits,
    n_generated: usize,
    /// Numbers of drafted and accepted tokens.
    pub drafted: Drafted,
    first: Option<Instant>,
    last: Option<Instant>,
    metrics: Arc<Metrics>,
}

/// Limits and options of each choice of a request.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Number of tokens before the model may end the completion.
    pub min_tokens: usize,
    /// Maximum tokens.
    pub max_tokens: Option<usize>,
    /// Time limit, measured from the first token.
    pub t_max: Option<Duration>,
    /// Report log probabilities, with this number of most likely tokens.
    pub logprobs: Option<usize>,
    /// Source of the log probabilities.
    pub source: LogprobSource,
}

/// Result of sampling a token.
pub enum Step {
    /// The completion continues with this token.
    On(Token),
    /// The completion has ended; the client was notified.
    Over,
}

impl Generation {
    /// Creates a completion. `chain` has already processed the prompt.
    pub fn new(
        choice: usize,
        chain: SamplerChain,
        (stop, stop_tokens): (Vec<String>, Arc<[Token]>),
        (limits, shown, budget): (Limits, Arc<[Token]>, Option<Budget>),
        events: UnboundedSender<Event>,
        metrics: Arc<Metrics>,
    ) -> Generation {
        let generator = Generator::new(chain, stop, ShownTokens::Only(shown), budget);
        Generation {
            choice,
            generator: generator.ending_at(stop_tokens, limits.min_tokens),
            events,
            limits,
            n_generated: 0,
            drafted: Drafted::default(),
            first: None,
            last: None,
            metrics,
        }
    }

    /// Returns true once the client has dropped the event stream.
    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Ends the reasoning section at the next token. Returns false if the completion is not in its reasoning section,
    /// or if its request did not enable this operation.
    pub fn end_reasoning(&mut self) -> bool {
        self.generator.end_reasoning()
    }

    /// Returns true if the request has a limit of 0 tokens.
    pub fn is_prompt_only(&self) -> bool {
        self.limits.max_tokens == Some(0)
    }

    /// Sends an event to the client. A closed channel is detected before the next step.
    pub fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Returns false while a thread computes the tokens that a slow grammar allows. [`Generation::next`] would
    /// wait for the thread.
    pub fn is_ready(&mut self) -> bool {
        self.generator.is_ready()
    }

    /// Returns the number of most likely tokens that suffice as the logits of [`Generation::next`]; 0 for all logits.
    pub fn n_best(&self) -> usize {
        match (self.limits.logprobs, self.limits.source) {
            // The softmax of the model needs all logits.
            (Some(_), LogprobSource::Model) => 0,
            _ => self.generator.n_best(),
        }
    }

    /// Samples the next token from `logits` and sends it to the client.
    pub fn next(&mut self, logits: TokenLogits<'_>, vocab: &Vocab, candidates: &mut Candidates) -> Step {
        let mut text = String::new();
        let sampled = match self.generator.next(logits, vocab, &mut text) {
            Ok(sampled) => sampled,
            Err(e) => return self.cannot(&e),
        };
        self.count();
        let (token, end) = (sampled.token, sampled.end);
        let is_end = end == Some(OutputEnd::EndOfGeneration);
        let logprob = match self.limits.logprobs {
            Some(n_top) if !is_end => Some(self.logprob(logits.all(), token, n_top, candidates)),
            _ => None,
        };
        if !text.is_empty() || logprob.is_some() {
            self.send(Event::Token {
                choice: self.choice,
                token,
                text,
                logprob,
            });
        }
        let is_expired = || {
            let since = self.first.map(|first| first.elapsed());
            self.limits.t_max.zip(since).is_some_and(|(max, since)| since >= max)
        };
        match end {
            Some(OutputEnd::EndOfGeneration) => self.end(Finish::Model(token)),
            Some(OutputEnd::Stop(stop)) => self.end(Finish::Stop(stop)),
            None if self.limits.max_tokens.is_some_and(|max| self.n_generated >= max) || is_expired() => {
                self.end(Finish::Limit)
            }
            None => return Step::On(token),
        }
        Step::Over
    }

    /// Returns the log probability of the sampled token from the requested source.
    fn logprob(&self, logits: &[f32], token: Token, n_top: usize, candidates: &mut Candidates) -> TokenLogprob {
        match self.limits.source {
            LogprobSource::Model => logprob(logits, token, n_top, candidates),
            LogprobSource::Samplers => sampled_logprob(self.generator.candidates().as_slice(), token, n_top),
            LogprobSource::Ids => TokenLogprob {
                token,
                logprob: 0.0,
                top: Vec::new(),
            },
        }
    }

    /// Ends the completion and sends the reason to the client.
    pub fn end(&mut self, finish: Finish) {
        let mut text = String::new();
        if !matches!(finish, Finish::Stop(_)) {
            self.generator.finish(&mut text);
        }
        let span = self.first.zip(self.last).map(|(first, last)| last - first);
        match finish {
            Finish::Model(_) | Finish::Stop(_) => self.metrics.n_stopped.add(1),
            Finish::Limit | Finish::ContextFull => self.metrics.n_limited.add(1),
        }
        self.send(Event::End {
            choice: self.choice,
            finish,
            text,
            n_generated: self.n_generated,
            drafted: self.drafted,
            t_generated: span.unwrap_or_default(),
        });
    }

    fn cannot(&mut self, error: &SampleError) -> Step {
        self.send(match error {
            SampleError::Grammar(error) => Event::Refused(format!("cannot constrain the output: {error}")),
            error => Event::Failed(error.to_string()),
        });
        Step::Over
    }

    fn count(&mut self) {
        let now = Instant::now();
        if let Some(last) = self.last {
            self.metrics.between_tokens.observe(now - last);
        }
        self.n_generated += 1;
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.metrics.n_generated.add(1);
    }
}
