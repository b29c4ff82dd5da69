//! Continuous batching of many requests in one context. Each step decodes one token of every running sequence
//! and prefills further prompts in chunks.
//!
//! The modules follow the path of a request:
//!
//! - [`request`]: requests and their events; [`command`]: commands to the scheduler thread
//! - [`queue`]: the queue and its order
//! - [`memory`], [`sequences`]: the context, and the tokens cached in each sequence
//! - [`prefill_budget`]: prefill budget of a step
//! - [`drafts`]: state of speculative decoding
//! - [`generation`], [`logprobs`]: sampling and log probabilities
//! - [`batcher`]: the scheduler thread

mod batcher;
mod command;
mod drafts;
mod generation;
mod logprobs;
mod memory;
mod prefill_budget;
mod queue;
mod request;
mod sequences;
mod settings;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::context::{Context, MEDIA_TOKENS};
use engine::model::Model;
use engine::sample::SamplerChain;
use llama::parts::{ImageSpan, image_spans, sampler_chain};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use crate::metrics::{Gauges, Metrics};
pub use batcher::Batcher;
use command::{Command, Reply};
pub use command::{CommandError, CommandResult, Slot};
use drafts::Drafts;
pub use drafts::{Drafters, Speculation};
use generation::{Generation, Limits};
use queue::{Inbox, Job};
pub use request::{
    Diagnostics, Event, Finish, LogprobSource, PromptDone, PromptProgress, Request, SubmitError, TokenLogprob,
};
pub use settings::Settings;

/// Maximum number of choices of a request.
pub const MAX_CHOICES: usize = 128;

/// Error when a scheduler is started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The context is too small for `n_parallel`.
    #[error(
        "{n_parallel} parallel sequences need n_seq_max and n_batch of at least {n_parallel}; the context has n_seq_max {n_seq_max} and n_batch {n_batch}"
    )]
    Context {
        /// Requested number of parallel sequences.
        n_parallel: usize,
        /// Number of sequences that the context supports.
        n_seq_max: usize,
        /// Batch size of the context in tokens.
        n_batch: usize,
    },
    /// The operating system could not start a thread.
    #[error("cannot start the scheduler thread")]
    Thread(#[source] std::io::Error),
}

/// Runs requests on a dedicated thread, which ends when the scheduler is dropped.
pub struct Scheduler {
    model: Arc<Model>,
    inbox: Arc<Inbox>,
    metrics: Arc<Metrics>,
    gauges: Arc<Mutex<Gauges>>,
    settings: Settings,
    /// Capacity of the context in tokens.
    n_ctx: usize,
    /// Number of LoRA adapters.
    n_adapters: usize,
    thread: Option<JoinHandle<()>>,
}

impl Scheduler {
    /// Starts a scheduler with exclusive use of a context.
    pub fn start(context: Context, settings: Settings) -> Result<Scheduler, StartError> {
        Scheduler::speculating(context, settings, None)
    }

    /// Starts a scheduler with optional speculative decoding.
    pub fn speculating(
        context: Context,
        settings: Settings,
        speculation: Option<Speculation>,
    ) -> Result<Scheduler, StartError> {
        let (mut scheduler, batcher) = Scheduler::with_batcher(context, settings, speculation)?;
        let over = Over(scheduler.inbox.clone());
        let run = move || {
            let _over = over;
            batcher.run();
        };
        let thread = std::thread::Builder::new().name("scheduler".to_owned()).spawn(run);
        scheduler.thread = Some(thread.map_err(StartError::Thread)?);
        Ok(scheduler)
    }

    /// Returns true for encoder models, which cannot generate text; see [`Scheduler::idle`].
    pub fn encodes(model: &Model) -> bool {
        model.arch().encoder || model.bidirectional()
    }

    /// Creates a scheduler without a thread for an encoder model; it rejects all requests.
    pub fn idle(model: Arc<Model>, settings: Settings) -> Scheduler {
        Scheduler {
            n_ctx: model.base().n_ctx_train(),
            n_adapters: 0,
            model,
            inbox: Arc::default(),
            metrics: Arc::default(),
            gauges: Arc::default(),
            settings,
            thread: None,
        }
    }

    /// Creates a scheduler and the batcher that its thread will run.
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
        let n_ctx = if context.is_limited() {
            context.n_ctx()
        } else {
            usize::MAX
        };
        let n_adapters = context.adapters().len();
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
            n_adapters,
            thread: None,
        };
        Ok((scheduler, batcher))
    }

    /// Returns the model that the scheduler runs.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Returns the capacity of the context in tokens; `usize::MAX` if unlimited.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Queues a request and returns its events. Dropping the receiver cancels the request in any state.
    ///
    /// Blocks while the samplers process the prompt.
    pub fn submit(&self, request: Request) -> Result<UnboundedReceiver<Event>, SubmitError> {
        let images = self.check(&request)?;
        // Check first, because creating the samplers is expensive.
        if self.inbox.n_waiting() >= self.settings.max_waiting {
            return Err(self.busy());
        }
        let (events, receiver) = unbounded_channel();
        let limits = Limits {
            min_tokens: if request.covers_end() { 0 } else { request.min_tokens },
            max_tokens: self.max_tokens(request.max_tokens),
            t_max: request.t_max,
            logprobs: request.logprobs,
            source: request.logprob_source,
        };
        let first = self.chain(&request)?;
        let generation = |choice: usize| -> Result<Generation, SubmitError> {
            let chain = match choice {
                0 => first.clone(),
                _ => self.chain(&request_for_choice(&request, choice, first.seed()))?,
            };
            let stop = (request.stop.clone(), request.stop_tokens.clone());
            let events = events.clone();
            Ok(Generation::new(
                choice,
                chain,
                stop,
                (limits, request.shown.clone(), request.budget.clone()),
                events,
                self.metrics.clone(),
            ))
        };
        let mut generations = (0..request.n).map(generation).collect::<Result<Vec<_>, _>>()?;
        let prompt_logprobs = if request.prompt_logprobs {
            Some((request.logprobs.unwrap_or(0), Vec::new()))
        } else {
            None
        };
        let others = generations.split_off(request.n.min(self.settings.n_parallel));
        let job = Job {
            n_prompt: request.prompt.len(),
            generations,
            // The logits of cached tokens are not available.
            reuse: request.reuse && !request.prompt_logprobs,
            prompt_logprobs,
            wants_progress: request.progress,
            images: images.into(),
            id: request.id,
            client: request.client,
            owner: self.settings.cache_owner(request.client),
            scales: self.scales(request.lora.as_deref())?,
            priority: request.priority,
            tokens: request.prompt,
            arrival: 0,
            arrived: Instant::now(),
            deadline: request.deadline,
            n_overtaken: 0,
            prompt_done_sent: false,
        };
        let mut jobs = vec![job];
        jobs.extend(self.later_jobs(&jobs[0], others));
        self.inbox.push(jobs, self.settings.max_waiting, self.retry_after())?;
        Ok(receiver)
    }

    /// Returns the jobs of the choices that exceed the parallel sequences. They usually find their prompt in the
    /// cache.
    fn later_jobs(&self, first: &Job, choices: Vec<Generation>) -> Vec<Job> {
        let mut choices = choices.into_iter();
        let mut jobs = Vec::new();
        loop {
            let generations: Vec<Generation> = choices.by_ref().take(self.settings.n_parallel).collect();
            if generations.is_empty() {
                return jobs;
            }
            jobs.push(Job {
                generations,
                prompt_logprobs: None,
                id: first.id.clone(),
                tokens: first.tokens.clone(),
                images: first.images.clone(),
                scales: first.scales.clone(),
                // The first job reports the prompt.
                prompt_done_sent: true,
                ..*first
            });
        }
    }

    /// Returns the counters.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns the current state.
    pub fn gauges(&self) -> Gauges {
        let gauges = *self.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        Gauges {
            n_waiting: self.inbox.n_waiting(),
            ..gauges
        }
    }

    /// Returns true while requests are accepted.
    pub fn is_open(&self) -> bool {
        self.inbox.is_open()
    }

    /// Returns true while the scheduler thread is running.
    pub fn is_running(&self) -> bool {
        !self.inbox.is_over()
    }

    /// Stops accepting requests. Accepted requests are completed.
    pub fn close(&self) {
        self.inbox.close();
    }

    /// Returns the state of all sequences, as `client` sees it.
    pub async fn slots(&self, client: u64) -> CommandResult<Vec<Slot>> {
        let owner = self.settings.cache_owner(client);
        self.run(|reply| Command::Slots { owner, reply }).await
    }

    /// Saves a sequence of `client` to a file; returns its number of tokens.
    pub async fn save_slot(&self, id: usize, client: u64, path: PathBuf) -> CommandResult<usize> {
        let owner = self.settings.cache_owner(client);
        self.run(|reply| Command::SaveSlot { id, owner, path, reply }).await
    }

    /// Restores a sequence of `client` from a file; returns its number of tokens.
    pub async fn restore_slot(&self, id: usize, client: u64, path: PathBuf) -> CommandResult<usize> {
        let owner = self.settings.cache_owner(client);
        self.run(|reply| Command::RestoreSlot { id, owner, path, reply }).await
    }

    /// Erases a sequence of `client`; returns the number of removed tokens.
    pub async fn erase_slot(&self, id: usize, client: u64) -> CommandResult<usize> {
        let owner = self.settings.cache_owner(client);
        self.run(|reply| Command::EraseSlot { id, owner, reply }).await
    }

    /// Ends the reasoning of a client's request. Returns whether the request was reasoning; `None` if no such
    /// request is queued or running.
    pub async fn end_reasoning(&self, client: u64, id: String) -> CommandResult<Option<bool>> {
        self.run(|reply| Command::EndReasoning { client, id, reply }).await
    }

    /// Returns the scales of the adapters, in order.
    pub async fn adapter_scales(&self) -> CommandResult<Vec<f32>> {
        self.run(|reply| Command::AdapterScales { reply }).await
    }

    /// Sets adapter scales once running sequences have finished. Omitted adapters get scale 0.
    pub async fn set_adapter_scales(&self, scales: Vec<(usize, f32)>) -> CommandResult<()> {
        self.run(|reply| Command::SetAdapterScales { scales, reply }).await
    }

    /// Runs a command on the scheduler thread between two steps and returns its result.
    async fn run<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> CommandResult<T> {
        let (reply, result) = oneshot::channel();
        if self.thread.is_none() || !self.inbox.command(command(reply)) {
            return Err(CommandError::Over);
        }
        result.await.unwrap_or(Err(CommandError::Over))
    }

    /// Without a context limit, the training context length limits completions.
    fn max_tokens(&self, requested: Option<usize>) -> Option<usize> {
        match self.n_ctx {
            usize::MAX => {
                let most = self.model.base().n_ctx_train().max(1);
                Some(requested.map_or(most, |n| n.min(most)))
            }
            _ => requested,
        }
    }

    /// Returns the scale of each adapter for a request; `None` for the scales of the server.
    fn scales(&self, lora: Option<&[(usize, f32)]>) -> Result<Option<Arc<[f32]>>, SubmitError> {
        let (Some(lora), n) = (lora, self.n_adapters) else {
            return Ok(None);
        };
        let mut scales = vec![0.0; n];
        for &(id, scale) in lora {
            *scales.get_mut(id).ok_or(SubmitError::Adapter { id, n })? = scale;
        }
        Ok(Some(scales.into()))
    }

    /// Checks a request and returns the rows of images in its prompt.
    fn check(&self, request: &Request) -> Result<Vec<ImageSpan>, SubmitError> {
        if Scheduler::encodes(&self.model) {
            let arch = self.model.arch().name;
            return Err(SubmitError::Encoder { arch });
        }
        let (n_prompt, n_vocab) = (request.prompt.len(), self.model.base().n_vocab());
        let max = MAX_CHOICES;
        if n_prompt == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        let images = image_spans(&request.prompt, &request.images);
        let is_row = |at: usize| images.iter().any(|image| image.start <= at && at < image.end());
        let mut ids = request.prompt.iter().enumerate();
        let unknown = ids.find(|&(at, &token)| token as usize >= n_vocab && !is_row(at));
        if let Some((_, &token)) = unknown {
            return Err(SubmitError::Token { token, n_vocab });
        }
        if n_prompt > self.n_ctx {
            let n_ctx = self.n_ctx;
            return Err(SubmitError::TooLong { n_prompt, n_ctx });
        }
        if request.n == 0 || request.n > max {
            return Err(SubmitError::Choices { n: request.n, max });
        }
        Ok(images)
    }

    /// Creates the samplers of a request and feeds them the prompt.
    fn chain(&self, request: &Request) -> Result<SamplerChain, SubmitError> {
        let ignore_eos = request.ignore_eos && !request.covers_end();
        let mut chain = sampler_chain(&self.model, &request.sampler, ignore_eos)?;
        let texts = request.prompt.iter().filter(|token| **token < MEDIA_TOKENS);
        texts.for_each(|&token| chain.accept_prompt(token));
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

    /// Estimates one second for each queued batch of `n_parallel` requests.
    fn retry_after(&self) -> Duration {
        let turns = self.settings.max_waiting / self.settings.n_parallel;
        Duration::from_secs(turns.clamp(1, 60) as u64)
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.inbox.end();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported to its clients.
            let _ = thread.join();
        }
    }
}

/// Returns the request with a separate seed for each choice.
fn request_for_choice(request: &Request, choice: usize, seed: u64) -> Request {
    let mut request = request.clone();
    request.sampler.seed = Some(seed.wrapping_add(choice as u64));
    request
}

/// Marks the inbox as ended when the thread exits, also on a panic.
struct Over(Arc<Inbox>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.end();
    }
}
