//! One continuation of a prompt: logits in, a token and its text out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::chat::Budget;
use engine::sample::{Candidates, Chain, SampleError, Token};
use engine::speculate::Drafted;
use engine::vocab::{TextStream, Vocab};
use tokio::sync::mpsc::UnboundedSender;

use super::logprobs::logprob;
use super::request::{Event, Finish};
use crate::metrics::Metrics;

/// What is being said after a prompt.
pub struct Generation {
    /// Which of the request's continuations this is.
    pub choice: usize,
    chain: Chain,
    text: TextStream,
    events: UnboundedSender<Event>,
    limits: Limits,
    /// Control tokens that have a text.
    shown: Arc<[Token]>,
    /// What may be thought.
    budget: Option<Budget>,
    /// What it is made to say next.
    forced: VecDeque<Token>,
    n_generated: usize,
    /// What became of drafts of it.
    pub drafted: Drafted,
    first: Option<Instant>,
    last: Option<Instant>,
    metrics: Arc<Metrics>,
}

/// What a request says of each of its continuations.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Most tokens.
    pub max_tokens: Option<usize>,
    /// Most time from the first token on.
    pub t_max: Option<Duration>,
    /// Log probabilities wanted, and of how many most likely tokens.
    pub logprobs: Option<usize>,
}

/// Whether a continuation goes on.
pub enum Step {
    /// With this token.
    On(Token),
    /// It does not: it has told its client why.
    Over,
}

impl Generation {
    /// Nothing is said yet. `chain` has seen the prompt.
    pub fn new(
        choice: usize,
        chain: Chain,
        stop: Vec<String>,
        (limits, shown, budget): (Limits, Arc<[Token]>, Option<Budget>),
        events: UnboundedSender<Event>,
        metrics: Arc<Metrics>,
    ) -> Generation {
        Generation {
            choice,
            chain,
            text: TextStream::new(stop),
            events,
            limits,
            shown,
            budget,
            forced: VecDeque::new(),
            n_generated: 0,
            drafted: Drafted::default(),
            first: None,
            last: None,
            metrics,
        }
    }

    /// Nobody listens any more.
    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Has the thinking under way end with the next token. False where nothing is being thought, or the request did not ask for this.
    pub fn end_reasoning(&mut self) -> bool {
        self.budget.as_mut().is_some_and(Budget::spend)
    }

    /// Nothing is to be generated.
    pub fn wants_nothing(&self) -> bool {
        self.limits.max_tokens == Some(0)
    }

    /// Tells the client. Whether it still listens is asked before each step.
    pub fn say(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Chooses the next token by its logits `[n_vocab]`, and tells the client.
    pub fn next(&mut self, logits: &[f32], vocab: &Vocab, work: &mut Candidates) -> Step {
        if let Some(end) = self.budget.as_mut().and_then(Budget::end) {
            self.forced.extend(vocab.tokenize(&end, false, true));
        }
        let sampled = match self.forced.pop_front() {
            Some(token) => Ok(token),
            None => self.chain.sample(logits),
        };
        let token = match sampled {
            Ok(token) => token,
            Err(e) => return self.cannot(&e),
        };
        self.chain.accept(token);
        self.count();
        let is_end = vocab.is_eog(token);
        let bytes: &[u8] = match is_end {
            true => &[],
            false => vocab.token_to_piece(token, self.shown.contains(&token)),
        };
        if let Some(budget) = &mut self.budget {
            budget.push(bytes);
        }
        let mut text = String::new();
        let stop = self.text.push(bytes, &mut text).map(str::to_owned);
        let wanted = self.limits.logprobs.filter(|_| !is_end);
        let logprob = wanted.map(|n_top| logprob(logits, token, n_top, work));
        if !text.is_empty() || logprob.is_some() {
            self.say(Event::Token {
                choice: self.choice,
                token,
                text,
                logprob,
            });
        }
        let is_late = || {
            let since = self.first.map(|first| first.elapsed());
            self.limits.t_max.zip(since).is_some_and(|(max, since)| since >= max)
        };
        match stop {
            _ if is_end => self.end(Finish::Model(token)),
            Some(stop) => self.end(Finish::Stop(stop)),
            None if self.limits.max_tokens.is_some_and(|max| self.n_generated >= max) || is_late() => {
                self.end(Finish::Limit)
            }
            None => return Step::On(token),
        }
        Step::Over
    }

    /// Ends it, and tells the client why.
    pub fn end(&mut self, finish: Finish) {
        let mut text = String::new();
        if !matches!(finish, Finish::Stop(_)) {
            self.text.finish(&mut text);
        }
        let span = self.first.zip(self.last).map(|(first, last)| last - first);
        self.metrics.completed(&finish);
        self.say(Event::End {
            choice: self.choice,
            finish,
            text,
            n_generated: self.n_generated,
            drafted: self.drafted,
            t_generated: span.unwrap_or_default(),
        });
    }

    fn cannot(&mut self, error: &SampleError) -> Step {
        self.say(Event::Failed(error.to_string()));
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
        self.metrics.generated(1);
    }
}
