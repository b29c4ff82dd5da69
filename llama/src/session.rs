//! A context for one conversation at a time, and generation in it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use engine::chat::Budget;
use engine::context::{
    Batch, Context, ContextError, ContextParams, DecodeError, MEDIA_TOKENS, MediaRows, MemoryError, SeqSet, StateError,
};
use engine::model::Model;
use engine::sample::{RepetitionWatch, SamplerParams, Token, TokenLogits};
use engine::speculate::{Decoded, Drafted, Speculator, Step};
use engine::vocab::Vocab;

use crate::constraint::PendingConstraint;
use crate::generator::{Generator, OutputEnd, ShownTokens};
use crate::images::{self, ImageSpan};
use crate::sampling::sampler_chain;
use crate::stats::{Finish, Stats};
use crate::{CancelHandle, Error, Result};

/// Creates a context of the size in `params`. If memory is insufficient, halves the size, and the size in
/// `params`, down to `n_ctx_min`.
///
/// # Errors
/// Returns the error of the first attempt.
pub fn fitting_context(
    model: &Arc<Model>,
    params: &mut ContextParams,
    n_ctx_min: usize,
) -> Result<Context, ContextError> {
    let mut first = None;
    loop {
        let error = match Context::new(model.clone(), params) {
            Ok(context) => return Ok(context),
            Err(error) => error,
        };
        let is_memory = matches!(
            error,
            ContextError::KvMemory { .. } | ContextError::Backend(_) | ContextError::Sched(_)
        );
        let first_error = first.take().unwrap_or(error);
        if !is_memory || params.n_ctx / 2 < n_ctx_min {
            return Err(first_error);
        }
        first = Some(first_error);
        params.n_ctx /= 2;
    }
}

/// A context with the tokens in its KV cache. Consecutive prompts reuse the prefix that they share.
pub struct Session {
    model: Arc<Model>,
    context: Context,
    /// Tokens in the KV cache, from position 0.
    cached: Vec<Token>,
    /// Context shift settings; `None`: stop when the context is full.
    shift: Option<Shift>,
    batch: Batch,
    /// Index of the last token in the last batch.
    last: usize,
    speculator: Option<Speculator>,
    cancel: CancelHandle,
    n_prompts: u64,
}

/// Context shift: drops the older half of the tokens after the kept prefix.
#[derive(Clone, Copy)]
struct Shift {
    /// Length of the prefix to keep from the first prompt, without BOS; `None` keeps the whole prompt.
    keep: Option<usize>,
    /// Length of the kept prefix in tokens, set by the first prompt.
    n_keep: usize,
    /// Number of dropped tokens, all after the kept prefix.
    n_dropped: usize,
}

/// Settings of one generation.
pub struct GenerationParams<'a> {
    /// Sampling parameters. Every generation of a session derives its own seed from the given seed.
    pub sampler: &'a SamplerParams,
    /// Whether to ban end-of-generation tokens.
    pub ignore_eos: bool,
    /// Maximum tokens to generate; `None`: until the context is full.
    pub max_tokens: Option<usize>,
    /// Strings that end the output.
    pub stops: Vec<String>,
    /// Control tokens that appear in the output.
    pub shown: ShownTokens,
    /// Reasoning budget.
    pub budget: Option<Budget>,
    /// Constraint on the output.
    pub constraint: Option<&'a mut PendingConstraint>,
    /// Stop when the output repeats itself without end.
    pub loop_detection: bool,
    /// Images whose rows are in the prompt, in any order.
    pub images: Vec<Arc<MediaRows>>,
    /// Called during long prompts with the numbers of processed and of all tokens.
    pub progress: Option<&'a mut dyn FnMut(usize, usize)>,
}

impl<'a> GenerationParams<'a> {
    /// Creates settings without limits and constraints.
    pub fn new(sampler: &'a SamplerParams) -> GenerationParams<'a> {
        GenerationParams {
            sampler,
            ignore_eos: false,
            max_tokens: None,
            stops: Vec::new(),
            shown: ShownTokens::default(),
            budget: None,
            constraint: None,
            loop_detection: true,
            images: Vec::new(),
            progress: None,
        }
    }
}

/// State of a generation, advanced by [`Session::advance`].
pub struct Generation {
    generator: Generator,
    max_tokens: Option<usize>,
    /// Loop detection; `None` if disabled.
    watch: Option<RepetitionWatch>,
    /// Sampled token that is not yet decoded.
    pending: Option<Token>,
    first: Option<Instant>,
    finish: Option<Finish>,
    stats: Stats,
}

impl Generation {
    /// Returns why the generation ended; `None` while it continues.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Returns the current statistics.
    pub fn stats(&self) -> Stats {
        self.stats
    }
}

impl Session {
    /// Creates a session. The context must be empty.
    pub fn new(context: Context) -> Session {
        Session {
            model: context.model().clone(),
            cached: Vec::with_capacity(if context.is_limited() { context.n_ctx() } else { 0 }),
            context,
            shift: None,
            batch: Batch::new(),
            last: 0,
            speculator: None,
            cancel: CancelHandle::new(),
            n_prompts: 0,
        }
    }

    /// Enables speculative decoding of sequence 0.
    pub fn set_speculator(&mut self, speculator: Option<Speculator>) {
        self.speculator = speculator;
    }

    /// Drops the older half of the tokens whenever the context is full. The first `keep` tokens of the first
    /// prompt are kept in addition to BOS; `None` keeps the whole first prompt.
    ///
    /// # Errors
    /// Returns a [`MemoryError`] if the model does not support context shifts.
    pub fn enable_shift(&mut self, keep: Option<usize>) -> Result<(), MemoryError> {
        self.context.check_shift()?;
        let bos = self.vocab().bos().filter(|bos| self.cached.first() == Some(bos));
        self.shift.get_or_insert(Shift {
            keep,
            n_keep: usize::from(bos.is_some()),
            n_dropped: 0,
        });
        Ok(())
    }

    /// Sets the handle that cancels generations.
    pub fn set_cancel(&mut self, cancel: CancelHandle) {
        self.cancel = cancel;
    }

    /// Returns the model of the session.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Returns the vocabulary of the model.
    pub fn vocab(&self) -> &Vocab {
        self.model.vocab()
    }

    /// Returns the context of the session.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the tokens in the KV cache.
    pub fn cached(&self) -> &[Token] {
        &self.cached
    }

    /// Writes the context and its tokens to a file.
    ///
    /// # Errors
    /// Returns a [`StateError`] if the state cannot be read or the file cannot be written.
    pub fn save(&mut self, file: &Path) -> Result<(), StateError> {
        self.context.save_session(file, &self.cached)
    }

    /// Restores a file written by [`Session::save`]. Returns the number of positions and of tokens in the
    /// file; the file is not a session unless both are equal.
    ///
    /// # Errors
    /// Returns a [`StateError`] if the file is invalid or belongs to another model.
    pub fn restore(&mut self, file: &Path) -> Result<(usize, usize), StateError> {
        self.cached = self.context.load_session(file)?;
        Ok((self.context.n_past(0), self.cached.len()))
    }

    /// Clears the context of the session.
    pub fn clear(&mut self) {
        self.context.clear();
        self.cached.clear();
    }

    /// Computes a prompt, reuses its cached prefix, and prepares the generation of the completion.
    /// If the prompt is cancelled, the generation has already ended.
    ///
    /// # Errors
    /// Returns an [`Error`] if a setting is invalid, the prompt does not fit, or the model cannot be computed.
    pub fn start(&mut self, prompt: &[Token], mut params: GenerationParams<'_>) -> Result<Generation> {
        if params.stops.iter().any(String::is_empty) {
            return Err(Error::EmptyStop);
        }
        let mut sampler = params.sampler.clone();
        sampler.seed = sampler.seed.map(|seed| seed.wrapping_add(self.n_prompts));
        self.n_prompts += 1;
        let mut chain = sampler_chain(&self.model, &sampler, params.ignore_eos)?;
        let tokens = prompt.iter().filter(|token| **token < MEDIA_TOKENS);
        tokens.for_each(|&token| chain.accept_prompt(token));
        if !params.images.is_empty() && self.speculator.is_some() {
            return Err(Error::DraftsWithImages);
        }
        let start = Instant::now();
        self.context.set_cancel(Some(self.cancel.flag()));
        self.settle()?;
        let n_encoded = if self.model.arch().encoder { prompt.len() } else { 0 };
        let mut prompt = match n_encoded {
            0 => prompt.to_vec(),
            _ => self.encode(prompt)?,
        };
        let mut stats = Stats {
            dropped_tokens: self.shorten(&mut prompt)?,
            cached_tokens: self.reuse(&prompt, &params.images)?,
            ..Stats::default()
        };
        // Report grammar errors before a long prefill.
        if prompt.len() - stats.cached_tokens > self.context.params().n_ubatch {
            params.constraint.as_mut().map(|c| c.get()).transpose()?;
        }
        let n_best = match &params.constraint {
            None => chain.n_best().unwrap_or(0),
            Some(_) => 0,
        };
        let is_done = self.prefill(&prompt, (&params.images, n_best), params.progress)?;
        stats.prompt_tokens = n_encoded + self.cached.len() - stats.cached_tokens;
        stats.prompt_time = start.elapsed();
        if is_done && let Some(constraint) = params.constraint {
            chain = chain.constrained(constraint.get()?);
        }
        Ok(Generation {
            generator: Generator::new(chain, params.stops, params.shown, params.budget),
            max_tokens: params.max_tokens,
            watch: params.loop_detection.then(RepetitionWatch::new),
            pending: None,
            first: None,
            finish: (!is_done).then_some(Finish::Cancelled),
            stats,
        })
    }

    /// Generates the next token and appends the text that is certain to `out`. Returns false once the
    /// generation has ended.
    ///
    /// # Errors
    /// Returns an [`Error`] if no token can be sampled or the model cannot be computed.
    pub fn advance(&mut self, generation: &mut Generation, out: &mut String) -> Result<bool> {
        if generation.finish.is_some() {
            return Ok(false);
        }
        let Some(finish) = self.next_token(generation, out)? else {
            return Ok(true);
        };
        generation.finish = Some(finish);
        self.context.set_cancel(None);
        if let Some(drafted) = self.settle()? {
            generation.stats.drafts = drafted.n_drafts;
            generation.stats.accepted_drafts = drafted.n_right;
        }
        if finish != Finish::Stop {
            generation.generator.finish(out);
        }
        Ok(false)
    }

    /// Decodes the pending token and samples the next one. Returns the reason if the generation ends.
    fn next_token(&mut self, generation: &mut Generation, out: &mut String) -> Result<Option<Finish>> {
        if let Some(token) = generation.pending.take() {
            let Some(n_dropped) = self.drop_oldest()? else {
                return Ok(Some(Finish::ContextFull));
            };
            generation.stats.dropped_tokens += n_dropped;
            if self.cancel.is_cancelled() || !self.append(token, generation.generator.n_best())? {
                return Ok(Some(Finish::Cancelled));
            }
        } else if generation.max_tokens == Some(0) {
            return Ok(Some(Finish::Limit));
        }
        let logits = self.context.output(self.last).unwrap_or(TokenLogits::All(&[]));
        let sampled = generation.generator.next(logits, self.model.vocab(), out)?;
        if sampled.end == Some(OutputEnd::EndOfGeneration) {
            return Ok(Some(Finish::Model));
        }
        let stats = &mut generation.stats;
        stats.generated_tokens += 1;
        stats.generation_time = generation.first.get_or_insert_with(Instant::now).elapsed();
        if sampled.end.is_some() {
            return Ok(Some(Finish::Stop));
        }
        if generation.max_tokens == Some(stats.generated_tokens) {
            return Ok(Some(Finish::Limit));
        }
        let repeated = generation.watch.as_mut().and_then(|watch| watch.push(sampled.token));
        if let Some(period) = repeated {
            return Ok(Some(Finish::Loop { period }));
        }
        generation.pending = Some(sampled.token);
        Ok(None)
    }

    /// Makes space for one token. Returns the number of dropped tokens, or `None` if the context is full.
    fn drop_oldest(&mut self) -> Result<Option<usize>> {
        if self.cached.len() < self.capacity() {
            return Ok(Some(0));
        }
        Ok(Some(self.drop_half()?).filter(|&n| n > 0))
    }

    /// Drops half of a full context. Returns the number of dropped tokens; 0 if shifting is disabled or
    /// nothing can be dropped.
    fn drop_half(&mut self) -> Result<usize> {
        if self.shift.is_some() {
            self.settle()?;
        }
        let Some(shift) = &mut self.shift else { return Ok(0) };
        let n_dropped = self.context.shift_context(0, shift.n_keep)?;
        if n_dropped == 0 {
            return Ok(0);
        }
        self.cached.drain(shift.n_keep..shift.n_keep + n_dropped);
        shift.n_dropped += n_dropped;
        Ok(n_dropped)
    }

    /// Removes previously dropped tokens from a prompt. If the prompt is still too long, drops further halves
    /// of the tokens after the kept prefix. Returns the number of newly dropped tokens.
    fn shorten(&mut self, prompt: &mut Vec<Token>) -> Result<usize> {
        let Some(mut shift) = self.shift else { return Ok(0) };
        if self.n_prompts == 1 {
            // The BOS token is always kept. The first prompt must fit.
            let bos = usize::from(self.vocab().bos().is_some_and(|bos| prompt.first() == Some(&bos)));
            shift.n_keep = shift.keep.map_or(prompt.len(), |n| n.saturating_add(bos));
            self.shift = Some(shift);
            return Ok(0);
        }
        let dropped = shift.n_keep..shift.n_keep.saturating_add(shift.n_dropped);
        let mut rest = prompt.clone();
        rest.drain(dropped.start.min(rest.len())..dropped.end.min(rest.len()));
        if self.common(&rest) > shift.n_keep {
            *prompt = rest;
        } else {
            // Start of a new conversation: no tokens are dropped yet.
            shift.n_dropped = 0;
        }
        let mut n_dropped = 0;
        // Leave space for at least one generated token.
        while prompt.len() >= self.capacity() && prompt.len() > shift.n_keep + 1 {
            let range = shift.n_keep..shift.n_keep + (prompt.len() - shift.n_keep) / 2;
            self.remove(prompt, range.clone())?;
            n_dropped += range.len();
            prompt.drain(range);
        }
        shift.n_dropped += n_dropped;
        self.shift = Some(shift);
        Ok(n_dropped)
    }

    /// Removes a range of the prompt from the KV cache and moves the tokens after the range.
    fn remove(&mut self, prompt: &[Token], range: Range<usize>) -> Result<()> {
        let common = self.common(prompt);
        let cached = range.start.min(common)..range.end.min(common);
        // Sliding windows may no longer contain the tokens before the cut.
        if self.context.seq_rm(0, common..).is_err() {
            self.clear();
            return Ok(());
        }
        self.cached.truncate(common);
        let n = i32::try_from(cached.len()).expect("positions fit into i32");
        self.context.seq_rm(0, cached.clone())?;
        self.context.seq_add(0, cached.end.., -n)?;
        self.cached.drain(cached);
        Ok(())
    }

    /// Returns the length of the common prefix of the prompt and the cached tokens.
    fn common(&self, prompt: &[Token]) -> usize {
        self.cached.iter().zip(prompt).take_while(|(a, b)| a == b).count()
    }

    /// Removes cached tokens that do not match the prompt and returns the number of tokens that remain.
    fn reuse(&mut self, prompt: &[Token], images: &[Arc<MediaRows>]) -> Result<usize> {
        let n_ctx = self.capacity();
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() > n_ctx {
            let n_prompt = prompt.len();
            return Err(Error::PromptTooLong { n_prompt, n_ctx });
        }
        let common = self.common(prompt);
        // The last token is always recomputed, because its logits are needed.
        let keep = common.min(prompt.len() - 1);
        // An image is computed as a whole.
        let cut = images::image_spans(prompt, images).into_iter();
        let cut = cut.filter(|span| span.start < keep && keep < span.end());
        let keep = cut.map(|span| span.start).min().unwrap_or(keep);
        if keep < self.cached.len() {
            return Ok(self.truncate(keep));
        }
        Ok(keep)
    }

    /// Encodes a prompt, replacing the current content, and returns the decoder start token.
    fn encode(&mut self, prompt: &[Token]) -> Result<Vec<Token>> {
        let Some(start) = self.model.decoder_start() else {
            return Err(Error::NoDecoderStart);
        };
        self.clear();
        self.batch.clear();
        self.batch.push_prompt(prompt, 0, 0);
        self.context.encode(&self.batch)?;
        Ok(vec![start])
    }

    /// Truncates the context to `keep` tokens, or to fewer if the memory cannot be cut there. Returns the
    /// number of remaining tokens.
    fn truncate(&mut self, keep: usize) -> usize {
        let left = match self.context.seq_rm(0, keep..) {
            Ok(()) => keep,
            // Recurrent states are only available at checkpoints.
            Err(MemoryError::StateForgotten { available, .. }) => {
                let before = available.into_iter().rev().find(|&at| at < keep);
                before.filter(|&at| self.context.seq_rm(0, at..).is_ok()).unwrap_or(0)
            }
            // Sliding windows may no longer contain the tokens before the cut.
            Err(_) => 0,
        };
        if left == 0 {
            self.clear();
        }
        self.cached.truncate(left);
        left
    }

    /// Returns the capacity of the context in tokens.
    fn capacity(&self) -> usize {
        if self.context.is_limited() {
            self.context.n_ctx()
        } else {
            usize::MAX
        }
    }

    /// Appends a token: decodes it, together with drafts of the next tokens, unless an accepted draft already
    /// contains it. `n_best` limits the output as [`Batch::limit_last`] does. Returns false if cancelled.
    fn append(&mut self, token: Token, n_best: usize) -> Result<bool> {
        let decoded = match &mut self.speculator {
            Some(speculator) => {
                let step = Step::new(0, &self.cached, token).limited(n_best);
                speculator.advance(&mut self.context, step)
            }
            None => {
                self.batch.clear();
                self.batch.push(token, self.cached.len(), SeqSet::one(0), true);
                self.batch.limit_last(n_best);
                self.context.decode(&self.batch).map(|()| 0)
            }
        };
        match decoded {
            Ok(row) => self.last = row,
            Err(DecodeError::Cancelled) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
        self.cached.push(token);
        Ok(true)
    }

    /// Removes unaccepted drafts from the KV cache and returns the drafting statistics.
    fn settle(&mut self) -> Result<Option<Drafted>> {
        let Some(speculator) = &mut self.speculator else {
            return Ok(None);
        };
        speculator.forget_drafts(&mut self.context, 0, self.cached.len())?;
        Ok(Some(speculator.drafted()))
    }

    /// Decodes the tokens of a prompt that are not cached. `n_best` limits the output as [`Batch::limit_last`] does.
    /// Returns false if cancelled; the decoded tokens remain.
    fn prefill(
        &mut self,
        prompt: &[Token],
        (images, n_best): (&[Arc<MediaRows>], usize),
        mut progress: Option<&mut dyn FnMut(usize, usize)>,
    ) -> Result<bool> {
        let (params, n_cached) = (self.context.params(), self.cached.len());
        let n_new = prompt.len() - n_cached;
        let is_long = n_new > params.n_ubatch;
        // Smaller batches report progress more often.
        let n_batch = if is_long && progress.is_some() {
            params.n_ubatch
        } else {
            params.n_batch
        };
        let (n_max, spans) = (params.n_batch, images::image_spans(prompt, images));
        while self.cached.len() < prompt.len() {
            let from = self.cached.len();
            let chunk = from..images::image_batch_end(&spans, from, prompt.len(), n_batch, n_max);
            self.fill_batch(prompt, chunk.clone(), &spans);
            self.batch.limit_last(n_best);
            match self.context.decode(&self.batch) {
                Ok(()) => self.cached.extend_from_slice(&prompt[chunk.clone()]),
                Err(DecodeError::Cancelled) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
            if is_long && let Some(progress) = &mut progress {
                progress(chunk.end - n_cached, n_new);
            }
            self.last = chunk.len() - 1;
            if let Some(speculator) = &mut self.speculator {
                let decoded = Decoded {
                    context: &self.context,
                    first: 0,
                    n_before: from,
                    tokens: &prompt[chunk],
                };
                speculator.follow(0, decoded)?;
            }
        }
        Ok(true)
    }

    /// Fills the batch with a part of a prompt, with output for its last token.
    fn fill_batch(&mut self, prompt: &[Token], part: Range<usize>, spans: &[ImageSpan]) {
        self.batch.clear();
        images::push_with_images(&mut self.batch, prompt, part, spans, 0);
        self.batch.request_only_last();
    }
}
