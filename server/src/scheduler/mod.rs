//! Many requests, one context: texts under way get a token each in every step, prompts are computed in parts beside them. Modules stand in the order in
//! which a request goes through them:
//!
//! - [`request`]: what is asked, and what is told
//! - [`work`]: what waits, and in which order it is begun
//! - [`sequences`]: what sequences hold, and which can be used again
//! - [`share`]: how much of which prompt is computed in a step
//! - [`batcher`]: the thread that computes
//! - [`commands`]: what it does besides
//! - [`drafts`]: tokens that are guessed, where that pays
//! - [`generation`], [`logprobs`]: logits to tokens, and how likely those are

mod batcher;
mod commands;
mod drafts;
mod generation;
mod logprobs;
mod request;
mod sequences;
mod share;
#[cfg(test)]
mod tests;
mod work;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::context::Context;
use engine::model::Model;
use engine::sample::{Chain, LogitBias, Token};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use crate::metrics::{Gauges, Metrics};
pub use batcher::Batcher;
pub use commands::{CommandError, Reply, Slot};
use drafts::Drafts;
pub use drafts::{Drafters, Speculation};
use generation::{Generation, Limits};
pub use request::{Event, Finish, PromptDone, Request, SubmitError, TokenLogprob};
use work::{Inbox, Work};

/// Settings of a scheduler.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sequences that are worked on at once. Further ones of the context keep what finished requests have computed.
    pub n_parallel: usize,
    /// Requests that may wait.
    pub max_waiting: usize,
    /// Time that a step with prompts is to take while texts under way wait for it.
    pub t_step: Duration,
    /// A step that takes longer than this is taken for one that never ends.
    pub t_stuck: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            n_parallel: 4,
            max_waiting: 256,
            t_step: batcher::STEP,
            t_stuck: Duration::from_secs(120),
        }
    }
}

/// A scheduler that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The context has too few sequences, or takes too few tokens at once.
    #[error(
        "{n_parallel} sequences at once need a context with as many (n_seq_max is {n_seq_max}) and as many tokens in a batch (n_batch is {n_batch})"
    )]
    Context {
        /// Sequences wanted.
        n_parallel: usize,
        /// Sequences of the context.
        n_seq_max: usize,
        /// Tokens of a batch.
        n_batch: usize,
    },
    /// There is no thread to be had.
    #[error("the thread of the scheduler cannot be started")]
    Thread(#[source] std::io::Error),
}

/// Takes requests and has them done by a thread of its own, which is not one of those that the caller's runtime has. Ends when it is dropped.
pub struct Scheduler {
    model: Arc<Model>,
    inbox: Arc<Inbox>,
    metrics: Arc<Metrics>,
    gauges: Arc<Mutex<Gauges>>,
    settings: Settings,
    /// Tokens that the context can hold.
    n_ctx: usize,
    thread: Option<JoinHandle<()>>,
}

impl Scheduler {
    /// Begins to work with a context that nobody else uses.
    pub fn start(context: Context, settings: Settings) -> Result<Scheduler, StartError> {
        Scheduler::speculating(context, settings, None)
    }

    /// The same with tokens that are guessed, where that pays.
    pub fn speculating(
        context: Context,
        settings: Settings,
        speculation: Option<Speculation>,
    ) -> Result<Scheduler, StartError> {
        let (mut scheduler, batcher) = Scheduler::with_batcher(context, settings, speculation)?;
        let over = Over(scheduler.inbox.clone());
        let work = move || {
            let _over = over;
            batcher.run();
        };
        let thread = std::thread::Builder::new().name("scheduler".to_owned()).spawn(work);
        scheduler.thread = Some(thread.map_err(StartError::Thread)?);
        Ok(scheduler)
    }

    /// True of models that encode texts and do not continue them: [`Scheduler::idle`] is for these.
    pub fn encodes(model: &Model) -> bool {
        model.arch().encoder || model.bidirectional()
    }

    /// A scheduler of a model that does not continue texts: all requests are refused.
    pub fn idle(model: Arc<Model>, settings: Settings) -> Scheduler {
        Scheduler {
            n_ctx: model.base().n_ctx_train(),
            model,
            inbox: Arc::default(),
            metrics: Arc::default(),
            gauges: Arc::default(),
            settings,
            thread: None,
        }
    }

    /// Has the thread do something between two steps.
    pub async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Batcher) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        self.ask_later(|batcher, done| {
            // Whoever asked may have gone.
            let _ = done.send(work(batcher));
        })
        .await
    }

    /// The same, for what is answered later.
    pub async fn ask_later<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Batcher, oneshot::Sender<Reply<T>>) + Send + 'static,
    ) -> Reply<T> {
        let (done, told) = oneshot::channel();
        if self.thread.is_none() || !self.inbox.command(Box::new(|batcher| work(batcher, done))) {
            return Err(CommandError::Over);
        }
        told.await.unwrap_or(Err(CommandError::Over))
    }

    /// A scheduler whose work is yet to be done by somebody.
    fn with_batcher(
        context: Context,
        settings: Settings,
        speculation: Option<Speculation>,
    ) -> Result<(Scheduler, Batcher), StartError> {
        let model = context.model().clone();
        let params = context.params();
        let (n_seq_max, n_batch, n_parallel) = (params.n_seq_max, params.n_batch, settings.n_parallel);
        if n_parallel == 0 || n_parallel > n_seq_max.min(n_batch) {
            return Err(StartError::Context {
                n_parallel,
                n_seq_max,
                n_batch,
            });
        }
        let (inbox, metrics, gauges): (Arc<Inbox>, Arc<Metrics>, Arc<Mutex<Gauges>>) = Default::default();
        let n_ctx = match context.is_limited() {
            true => context.n_ctx(),
            false => usize::MAX,
        };
        let batcher = Batcher::new(
            context,
            speculation.map(Drafts::new),
            settings.clone(),
            inbox.clone(),
            metrics.clone(),
            gauges.clone(),
        );
        let scheduler = Scheduler {
            model,
            inbox,
            metrics,
            gauges,
            settings,
            n_ctx,
            thread: None,
        };
        Ok((scheduler, batcher))
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Tokens that the context can hold; `usize::MAX` if there is no limit.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Leaves a request to be done. To drop what is returned ends its work, wherever it is.
    ///
    /// Takes as long as making the samplers does, which have to look at the whole prompt.
    pub fn submit(&self, request: Request) -> Result<UnboundedReceiver<Event>, SubmitError> {
        self.check(&request)?;
        // Before samplers are made for nothing.
        if self.inbox.n_waiting() >= self.settings.max_waiting {
            return Err(self.busy());
        }
        let (events, told) = unbounded_channel();
        let limits = Limits {
            max_tokens: self.max_tokens(request.max_tokens),
            t_max: request.t_max,
            logprobs: request.logprobs,
        };
        let first = self.chain(&request)?;
        let generation = |choice: usize| -> Result<Generation, SubmitError> {
            let chain = match choice {
                0 => first.clone(),
                _ => self.chain(&of_choice(&request, choice, first.seed()))?,
            };
            let (stop, events) = (request.stop.clone(), events.clone());
            Ok(Generation::new(
                choice,
                chain,
                stop,
                (limits, request.shown.clone(), request.budget.clone()),
                events,
                self.metrics.clone(),
            ))
        };
        let generations = (0..request.n).map(generation).collect::<Result<_, _>>()?;
        let n_top = request.logprobs.unwrap_or(0);
        let work = Work {
            n_prompt: request.prompt.len(),
            generations,
            // Logits of tokens that others have computed are gone.
            reuse: request.reuse && !request.prompt_logprobs,
            prompt_logprobs: request.prompt_logprobs.then(|| (n_top, Vec::new())),
            id: request.id,
            client: request.client,
            priority: request.priority,
            tokens: request.prompt,
            arrival: 0,
            arrived: Instant::now(),
            deadline: request.deadline,
            n_overtaken: 0,
            is_told: false,
        };
        self.inbox.push(work, self.settings.max_waiting, self.retry_after())?;
        Ok(told)
    }

    /// What was counted.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// How things stand.
    pub fn gauges(&self) -> Gauges {
        let gauges = *self.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        Gauges {
            n_waiting: self.inbox.n_waiting(),
            ..gauges
        }
    }

    /// True as long as requests are taken.
    pub fn is_open(&self) -> bool {
        self.inbox.is_open()
    }

    /// True as long as there is somebody who does the work.
    pub fn is_running(&self) -> bool {
        !self.inbox.is_over()
    }

    /// Takes no more requests; those that it has are done.
    pub fn close(&self) {
        self.inbox.close();
    }

    /// Where no context ends a text, the length that the model was trained for does.
    fn max_tokens(&self, asked: Option<usize>) -> Option<usize> {
        match self.n_ctx {
            usize::MAX => {
                let most = self.model.base().n_ctx_train().max(1);
                Some(asked.map_or(most, |n| n.min(most)))
            }
            _ => asked,
        }
    }

    fn check(&self, request: &Request) -> Result<(), SubmitError> {
        if Scheduler::encodes(&self.model) {
            let arch = self.model.arch().name;
            return Err(SubmitError::Encoder { arch });
        }
        let (n_prompt, n_vocab) = (request.prompt.len(), self.model.base().n_vocab());
        let max = self.settings.n_parallel;
        if n_prompt == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if let Some(&token) = request.prompt.iter().find(|&&token| token as usize >= n_vocab) {
            return Err(SubmitError::Token { token, n_vocab });
        }
        if n_prompt > self.n_ctx {
            let n_ctx = self.n_ctx;
            return Err(SubmitError::TooLong { n_prompt, n_ctx });
        }
        if request.n == 0 || request.n > max {
            return Err(SubmitError::Choices { n: request.n, max });
        }
        Ok(())
    }

    /// The samplers of a request, which have seen its prompt.
    fn chain(&self, request: &Request) -> Result<Chain, SubmitError> {
        let vocab = self.model.vocab();
        let mut params = request.sampler.clone();
        let ban = |&token: &Token| LogitBias {
            token,
            bias: f32::NEG_INFINITY,
        };
        params.logit_bias.extend(vocab.suppressed_tokens().iter().map(ban));
        // An answer that has to be something must be able to end.
        let is_bound = request
            .constraint
            .as_ref()
            .is_some_and(|constraint| !constraint.is_free());
        if request.ignore_eos && !is_bound {
            params.logit_bias.extend(vocab.eog_tokens().iter().map(ban));
        }
        let mut chain = Chain::new(&params, self.model.base().n_vocab(), Some(vocab))?;
        request.prompt.iter().for_each(|&token| chain.accept_prompt(token));
        Ok(match &request.constraint {
            Some(constraint) => chain.constrained(constraint.clone()),
            None => chain,
        })
    }

    fn busy(&self) -> SubmitError {
        SubmitError::Busy {
            n_waiting: self.inbox.n_waiting(),
            retry_after: self.retry_after(),
        }
    }

    /// A guess: a second for every turn of all sequences before it.
    fn retry_after(&self) -> Duration {
        let turns = self.settings.max_waiting / self.settings.n_parallel;
        Duration::from_secs(turns.clamp(1, 60) as u64)
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.inbox.end();
        if let Some(thread) = self.thread.take() {
            // What went wrong there was told where it was noticed: nobody gets an answer any more.
            let _ = thread.join();
        }
    }
}

/// The request with random numbers of its own for a continuation.
fn of_choice(request: &Request, choice: usize, seed: u64) -> Request {
    let mut request = request.clone();
    request.sampler.seed = Some(seed.wrapping_add(choice as u64));
    request
}

/// However the thread ends, nobody waits for it.
struct Over(Arc<Inbox>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.end();
    }
}
