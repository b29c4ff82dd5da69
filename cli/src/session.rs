//! A model at work for one conversation: prompts in, text out as it comes.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::chat::{Budget, ReasoningTags};
use engine::context::{Batch, Context, ContextError, ContextParams, DecodeError, MemoryError};
use engine::grammar::Constraint;
use engine::model::Model;
use engine::sample::{Chain, LogitBias, Recommended, RepetitionWatch, SamplerParams, Token};
use engine::speculate::{Decoded, Drafted, Pace, Speculator};
use engine::vocab::Vocab;

use crate::args::{RunArgs, SpeculationArgs};
use crate::commands::input;
use crate::drafting::{self, Source};
use crate::failure::{Failure, Outcome};
use crate::grammar::{Pending, Prepared};
use crate::loading::LoadArgs;
use crate::output::Output;
use crate::{human, interrupt, progress, say};

/// A loaded model, its context, and what the context holds.
pub struct Session {
    model: Arc<Model>,
    context: Context,
    /// The tokens in the context's memory, from position 0.
    held: Vec<Token>,
    /// What to do when the context is full; `None`: stop.
    shift: Option<Shift>,
    /// Where in the last batch the last token stands.
    last: usize,
    /// Guesses tokens, if that was asked for.
    speculator: Option<Speculator>,
    /// How tokens are chosen; may be changed between turns.
    pub sampler: SamplerParams,
    /// What every answer has to keep to.
    constraint: Option<Prepared>,
    /// Texts that end an answer.
    stops: Vec<String>,
    /// Whether an answer ends by itself.
    ignore_eos: bool,
    /// Whether special tokens become text, as their names.
    names_special: bool,
    /// Whether an answer may go on that repeats itself.
    allow_loops: bool,
    n_turns: u64,
    /// From opening the file to being ready.
    pub t_load: Duration,
}

/// How a full context goes on: it forgets the older half of what follows the tokens it keeps.
#[derive(Clone, Copy)]
struct Shift {
    /// As asked for; -1 is the whole first prompt.
    keep: i64,
    /// The leading tokens that stay, known from the first prompt on.
    n_keep: usize,
    /// Tokens of the conversation that were forgotten, all of them after those kept.
    n_gone: usize,
}

/// What became of a prompt.
#[derive(Debug, Default)]
pub struct Generation {
    /// Why there is no more text.
    pub end: End,
    /// The text.
    pub text: String,
    /// Tokens of the prompt that were computed.
    pub n_prompt: usize,
    /// Tokens of the prompt that the memory held already.
    pub n_reused: usize,
    /// Time of the prompt.
    pub t_prompt: Duration,
    /// Tokens generated.
    pub n_generated: usize,
    /// Time from the first of them to the last.
    pub t_generated: Duration,
    /// Tokens that were forgotten to make room.
    pub n_forgotten: usize,
    /// What became of drafts; `None` if none were asked for.
    pub drafted: Option<Drafted>,
}

/// As the most tokens to generate: until the context is full, and no further.
const UNTIL_FULL: i64 = -2;

/// How far a generation goes.
pub struct Bounds {
    /// Most tokens.
    pub limit: Option<usize>,
    /// Tags of reasoning, which are text though their tokens may be special.
    pub tags: Option<ReasoningTags>,
    /// Most tokens of reasoning.
    pub budget: Option<Budget>,
}

/// Why generating ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// The model was done.
    Model,
    /// As many tokens as asked for.
    #[default]
    Limit,
    /// A text came that ends answers.
    Stop,
    /// No room for another token.
    ContextFull,
    /// The user pressed Ctrl-C.
    Interrupted,
    /// It did nothing but repeat so many tokens.
    Loop(usize),
}

/// What guesses tokens, if that was asked for.
fn speculator(args: &RunArgs, speculation: &SpeculationArgs, context: &Context) -> Outcome<Option<Speculator>> {
    let source = Source {
        speculation,
        hub: &args.hub,
        load: &args.load,
        context: &args.context,
    };
    let drafter = source.drafters(context, 1)?.and_then(|mut drafters| drafters.take());
    let speculator = |drafter| Speculator::new(Pace::new(speculation.draft_max.into())).with(0, drafter);
    Ok(drafter.map(speculator))
}

/// An answer that cannot be kept should not be waited for.
fn check_place(file: &Path) -> Outcome {
    match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() && !dir.is_dir() => Err(Failure::new(format_args!(
            "the session cannot be kept in {}: there is no folder {}",
            file.display(),
            dir.display()
        ))),
        _ => Ok(()),
    }
}

/// The tokens of a session file, whose state the context has then; none if there is no file.
fn restored(context: &mut Context, file: &Path) -> Outcome<Vec<Token>> {
    if !file.try_exists()? {
        return Ok(Vec::new());
    }
    let tokens = context.load_session(file)?;
    let n = context.n_past(0);
    if n != tokens.len() {
        return Err(Failure::new(format_args!(
            "{}: the state is not one of `llama run`: it has {} for {n} positions",
            file.display(),
            human::plural(tokens.len(), "token")
        )));
    }
    Ok(tokens)
}

/// Says what would not fit, and what to do.
pub fn no_context(model: &Model, error: ContextError) -> Failure {
    let ContextError::KvMemory { n_ctx, bytes, .. } = error else {
        return error.into();
    };
    let free = match model.device().memory() {
        (_, 0) => String::new(),
        (free, _) => format!("; {} are free", human::bytes(free)),
    };
    Failure::new(format_args!(
        "the KV cache of {n_ctx} tokens takes {}, which cannot be had{free}. -c makes the context smaller, and -ctk q8_0 -ctv q8_0 halves the cache",
        human::bytes(bytes)
    ))
}

/// A context of the size in `params`, or of half of it and so on where there is no memory for it, down to `n_ctx_min`.
fn fitting_context(model: &Arc<Model>, params: &mut ContextParams, n_ctx_min: usize) -> Outcome<Context> {
    let (wanted, mut first) = (params.n_ctx, None);
    loop {
        match Context::new(model.clone(), params) {
            Ok(context) => {
                if params.n_ctx < wanted {
                    say::aside(format_args!(
                        "the context has {} tokens, since there is no memory for {wanted}; -c says otherwise",
                        params.n_ctx
                    ));
                }
                return Ok(context);
            }
            Err(e) => {
                let is_memory = matches!(
                    e,
                    ContextError::KvMemory { .. } | ContextError::Backend(_) | ContextError::Sched(_)
                );
                let first = first.get_or_insert_with(|| no_context(model, e));
                if !is_memory || params.n_ctx / 2 < n_ctx_min {
                    return Err(std::mem::replace(first, Failure::Reported));
                }
                params.n_ctx /= 2;
            }
        }
    }
}

/// How tokens are chosen: as the model's authors recommend, but for what was asked for.
fn sampler(args: &RunArgs, model: &Model) -> Outcome<SamplerParams> {
    let recommended = Recommended::of(model.metadata(), args.sampler.is_greedy());
    for key in &recommended.refused {
        say::line(format_args!(
            "warning: the file's {key} is left out: no setting has that value"
        ));
    }
    let mut params = recommended.params;
    args.sampler.apply(&mut params)?;
    let read = |text: &str| match args.escape {
        true => input::unescaped(text),
        false => text.to_owned(),
    };
    params.logit_bias.extend(args.text_bias.biases(model.vocab(), read)?);
    Ok(params)
}

/// Texts that end an answer. One that is empty would end all.
fn stops(args: &RunArgs) -> Outcome<Vec<String>> {
    let stops = args.reverse_prompt.iter().map(|text| match args.escape {
        true => input::unescaped(text),
        false => text.clone(),
    });
    let stops: Vec<String> = stops.collect();
    match stops.iter().any(String::is_empty) {
        true => Err(Failure::new("-r is empty: it would end every answer before it begins")),
        false => Ok(stops),
    }
}

/// An error unless the context can forget its older half.
fn check_shift(context: &Context) -> Result<(), String> {
    let name = context.model().arch().name;
    context
        .check_shift()
        .map_err(|e| format!("cannot be used with {name}: {e}"))
}

/// Models say little of sense beyond what they were trained for.
fn warn_of_length(context: &Context) {
    let (n_ctx, trained) = (context.n_ctx(), context.model().base().n_ctx_train());
    let params = context.params();
    let is_stretched = params.rope_freq_base.is_some() || params.rope_freq_scale.is_some();
    if context.is_limited() && trained > 0 && n_ctx > trained && !is_stretched {
        say::line(format_args!(
            "warning: the context has {n_ctx} tokens, but the model was trained for {trained}: beyond those answers may mean nothing"
        ));
    }
}

impl Session {
    /// Loads a model, makes a context for it, and restores what the session file holds.
    pub fn open(path: &Path, args: &RunArgs) -> Outcome<Session> {
        let start = Instant::now();
        if let Some(file) = &args.session {
            check_place(file)?;
        }
        let speculation = args.speculation.resolved()?;
        let mut params = ContextParams {
            n_rollback: args.rollback.into(),
            ..args.context.params()
        };
        if speculation.is_wanted() {
            drafting::prepare(&mut params, &speculation, 1);
        }
        let memory = params.memory(params.n_ctx);
        let load = LoadArgs {
            mtp: speculation.mtp,
            ..args.load.clone()
        };
        // Compiled while weights are loaded and the prompt is read.
        let pending = args.grammar.pending()?;
        let hook = pending.as_ref().map(Pending::hook);
        let model = load.load_and(path, args.context.precision, Some(memory), hook)?;
        let constraint = pending.map(Pending::begun).transpose()?;
        let can_shrink = args.context.ctx_size.is_none() && args.load.placement.fit == "on";
        let n_ctx_min = if can_shrink { args.context.fit_ctx } else { usize::MAX };
        let mut context = fitting_context(&model, &mut params, n_ctx_min)?;
        if matches!(args.context.flash_attn.as_str(), "off" | "0") {
            say::line("warning: -fa off changes nothing: attention never stores scores here");
        }
        if args.context.ctx_size.is_some() {
            warn_of_length(&context);
        }
        args.adapters.apply(&mut context)?;
        let shift = (args.context_shift && args.predict != Some(UNTIL_FULL)).then_some(Shift {
            keep: args.keep,
            n_keep: 0,
            n_gone: 0,
        });
        if shift.is_some() {
            let cannot = |e| Failure::new(format_args!("--context-shift {e}"));
            check_shift(&context).map_err(cannot)?;
        }
        let held = match &args.session {
            Some(file) => restored(&mut context, file)?,
            None => Vec::new(),
        };
        let speculator = speculator(args, &speculation, &context)?;
        let sampler = sampler(args, &model)?;
        let t_load = start.elapsed();
        Ok(Session {
            model,
            context,
            held,
            shift,
            last: 0,
            speculator,
            sampler,
            constraint,
            stops: stops(args)?,
            ignore_eos: args.ignore_eos,
            names_special: args.display.special,
            allow_loops: args.allow_loops,
            n_turns: 0,
            t_load,
        })
    }

    /// From now on a full context forgets the older half of what follows the token that marks a beginning.
    pub fn allow_shift(&mut self) -> Outcome {
        check_shift(&self.context).map_err(|e| Failure::new(format_args!("/shift {e}")))?;
        let bos = self.vocab().bos().filter(|bos| self.held.first() == Some(bos));
        self.shift.get_or_insert(Shift {
            keep: 0,
            n_keep: usize::from(bos.is_some()),
            n_gone: 0,
        });
        Ok(())
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Text to tokens and back.
    pub fn vocab(&self) -> &Vocab {
        self.model.vocab()
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The tokens that the memory holds.
    pub fn held(&self) -> &[Token] {
        &self.held
    }

    /// Writes what the memory holds to a file.
    pub fn save(&mut self, file: &Path) -> Outcome {
        Ok(self.context.save_session(file, &self.held)?)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.context.clear();
        self.held.clear();
    }

    /// Generates tokens after `prompt`, giving their text to `emit` in pieces of whole characters. What the memory holds of the prompt
    /// already is not computed again.
    pub fn complete(
        &mut self,
        prompt: &[Token],
        bounds: Bounds,
        emit: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> Outcome<Generation> {
        let stop = interrupt::listen();
        self.context.set_cancel(Some(stop.flag()));
        let result = self.complete_until(prompt, bounds, emit, &stop);
        self.context.set_cancel(None);
        result
    }

    fn complete_until(
        &mut self,
        prompt: &[Token],
        bounds: Bounds,
        emit: &mut dyn FnMut(&str) -> io::Result<()>,
        stop: &interrupt::Guard,
    ) -> Outcome<Generation> {
        let mut chain = self.chain()?;
        prompt.iter().for_each(|&token| chain.accept_prompt(token));
        let start = Instant::now();
        let encoded = if self.model.arch().encoder { prompt.len() } else { 0 };
        let mut prompt = match encoded {
            0 => prompt.to_vec(),
            _ => self.encode(prompt)?,
        };
        let n_forgotten = self.forget_for(&mut prompt)?;
        let n_reused = self.reuse(&prompt)?;
        let mut generation = Generation {
            n_reused,
            n_forgotten,
            ..Generation::default()
        };
        // Where the prompt takes long, what is wrong with a grammar is said before.
        if prompt.len() - n_reused > self.context.params().n_ubatch {
            self.constraint()?;
        }
        let is_done = self.decode(&prompt[n_reused..])?;
        generation.n_prompt = encoded + self.held.len() - n_reused;
        generation.t_prompt = start.elapsed();
        if !is_done {
            generation.end = End::Interrupted;
            return Ok(generation);
        }
        if let Some(constraint) = self.constraint()? {
            chain = chain.constrained(constraint);
        }
        let mut text = Output::new(self.stops.clone());
        generation.end = self.generate(&mut chain, bounds, &mut generation, &mut text, emit, stop)?;
        generation.drafted = self.settle()?;
        if generation.end != End::Stop {
            text.finish(emit)?;
        }
        generation.text = text.text;
        Ok(generation)
    }

    /// Token after token behind what is held. Why there is no other.
    fn generate(
        &mut self,
        chain: &mut Chain,
        mut bounds: Bounds,
        generation: &mut Generation,
        text: &mut Output,
        emit: &mut dyn FnMut(&str) -> io::Result<()>,
        stop: &interrupt::Guard,
    ) -> Outcome<End> {
        let (mut watch, mut first) = (RepetitionWatch::new(), None);
        let tags = self.tokens_of(bounds.tags);
        // What the model is made to say.
        let mut forced = VecDeque::new();
        while bounds.limit.is_none_or(|limit| generation.n_generated < limit) {
            if let Some(end) = bounds.budget.as_mut().and_then(Budget::end) {
                forced.extend(self.vocab().tokenize(&end, false, true));
            }
            let token = match forced.pop_front() {
                Some(token) => token,
                None => chain.sample(self.context.logits(self.last).unwrap_or_default())?,
            };
            chain.accept(token);
            if self.vocab().is_eog(token) {
                return Ok(End::Model);
            }
            generation.n_generated += 1;
            generation.t_generated = first.get_or_insert_with(Instant::now).elapsed();
            let is_named = self.names_special || tags.contains(&token);
            let piece = self.vocab().token_to_piece(token, is_named);
            if let Some(budget) = &mut bounds.budget {
                budget.push(piece);
            }
            if text.push(piece, emit)? {
                return Ok(End::Stop);
            }
            if bounds.limit == Some(generation.n_generated) {
                return Ok(End::Limit);
            }
            if let Some(n) = watch.push(token).filter(|_| !self.allow_loops) {
                return Ok(End::Loop(n));
            }
            let Some(n_gone) = self.make_room()? else {
                return Ok(End::ContextFull);
            };
            generation.n_forgotten += n_gone;
            if stop.is_set() || !self.advance(token)? {
                return Ok(End::Interrupted);
            }
        }
        Ok(End::Limit)
    }

    /// The tokens that are tags of reasoning.
    fn tokens_of(&self, tags: Option<ReasoningTags>) -> Vec<Token> {
        let texts = tags.into_iter().flat_map(|(open, close)| [open, close]);
        let tokens = texts.map(|text| self.vocab().tokenize(text, false, true));
        tokens
            .filter_map(|tokens| <[Token; 1]>::try_from(tokens).ok())
            .flatten()
            .collect()
    }

    /// Waits for what is still being prepared; an error if it cannot be used.
    pub fn ready(&mut self) -> Outcome {
        self.constraint().map(drop)
    }

    /// What the answer has to keep to.
    fn constraint(&mut self) -> Outcome<Option<Constraint>> {
        self.constraint.as_mut().map(Prepared::get).transpose()
    }

    /// A new chain for each generation: with a seed given, a conversation can be repeated, and yet no generation repeats another's
    /// random numbers.
    fn chain(&mut self) -> Outcome<Chain> {
        let mut params = self.sampler.clone();
        params.seed = params.seed.map(|seed| seed.wrapping_add(self.n_turns));
        let ban = |&token| LogitBias {
            token,
            bias: f32::NEG_INFINITY,
        };
        params
            .logit_bias
            .extend(self.vocab().suppressed_tokens().iter().map(ban));
        if self.ignore_eos {
            params.logit_bias.extend(self.vocab().eog_tokens().iter().map(ban));
        }
        self.n_turns += 1;
        Ok(Chain::new(&params, self.model.base().n_vocab(), Some(self.vocab()))?)
    }

    /// Makes room for a token. The number of tokens forgotten for it; `None` if there is none to be had.
    fn make_room(&mut self) -> Outcome<Option<usize>> {
        if self.held.len() < self.room() {
            return Ok(Some(0));
        }
        Ok(Some(self.forget_half()?).filter(|&n_gone| n_gone > 0))
    }

    /// Makes room in a full context. The number of tokens forgotten; 0 if it may not, or if there is nothing to forget.
    fn forget_half(&mut self) -> Outcome<usize> {
        if self.shift.is_some() {
            self.settle()?;
        }
        let Some(shift) = &mut self.shift else { return Ok(0) };
        let n_gone = self.context.shift_context(0, shift.n_keep)?;
        if n_gone == 0 {
            return Ok(0);
        }
        self.held.drain(shift.n_keep..shift.n_keep + n_gone);
        shift.n_gone += n_gone;
        Ok(n_gone)
    }

    /// Takes out of a conversation what was forgotten before, and, if it is still too long, more: halves of what follows the kept tokens.
    /// The number of tokens forgotten anew.
    fn forget_for(&mut self, prompt: &mut Vec<Token>) -> Outcome<usize> {
        let Some(mut shift) = self.shift else { return Ok(0) };
        if self.n_turns == 1 {
            // The token that marks a beginning is always kept. A first prompt has to fit.
            let bos = usize::from(self.vocab().bos().is_some_and(|bos| prompt.first() == Some(&bos)));
            shift.n_keep = usize::try_from(shift.keep).map_or(prompt.len(), |n| n.saturating_add(bos));
            self.shift = Some(shift);
            return Ok(0);
        }
        let forgotten = shift.n_keep..shift.n_keep.saturating_add(shift.n_gone);
        let mut rest = prompt.clone();
        rest.drain(forgotten.start.min(rest.len())..forgotten.end.min(rest.len()));
        if self.common(&rest) > shift.n_keep {
            *prompt = rest;
        } else {
            // It is another conversation.
            shift.n_gone = 0;
        }
        let mut n_forgotten = 0;
        // A token at least has to be generated.
        while prompt.len() >= self.room() && prompt.len() > shift.n_keep + 1 {
            let gone = shift.n_keep..shift.n_keep + (prompt.len() - shift.n_keep) / 2;
            self.forget(prompt, gone.clone())?;
            n_forgotten += gone.len();
            prompt.drain(gone);
        }
        shift.n_gone += n_forgotten;
        self.shift = Some(shift);
        Ok(n_forgotten)
    }

    /// Removes from the memory what it holds of a range of the prompt, and moves what follows there.
    fn forget(&mut self, prompt: &[Token], gone: Range<usize>) -> Outcome {
        let common = self.common(prompt);
        let held = gone.start.min(common)..gone.end.min(common);
        // Windows may have forgotten what comes before the cut.
        if self.context.seq_rm(0, common..).is_err() {
            self.clear();
            return Ok(());
        }
        self.held.truncate(common);
        self.context.seq_rm(0, held.clone())?;
        self.context.seq_add(0, held.end.., -i32::try_from(held.len())?)?;
        self.held.drain(held);
        Ok(())
    }

    /// Tokens that the prompt begins with and the memory holds.
    fn common(&self, prompt: &[Token]) -> usize {
        self.held.iter().zip(prompt).take_while(|(a, b)| a == b).count()
    }

    /// Removes from the memory what `prompt` does not begin with, and returns how much is left.
    fn reuse(&mut self, prompt: &[Token]) -> Outcome<usize> {
        let n_ctx = self.room();
        if prompt.is_empty() {
            return Err(Failure::new("the prompt is empty: it has no tokens"));
        }
        if prompt.len() > n_ctx {
            return Err(Failure::new(format_args!(
                "the prompt has {} tokens, but the context has room for {n_ctx}; -c sets its size, --context-shift (/shift in a chat) forgets the older half",
                prompt.len()
            )));
        }
        let common = self.common(prompt);
        // The last token is computed in any case: its logits are needed.
        let keep = common.min(prompt.len() - 1);
        if keep < self.held.len() {
            return Ok(self.cut(keep));
        }
        Ok(keep)
    }

    /// Encodes a prompt, in place of what was held, and returns the token that decoding starts with.
    fn encode(&mut self, prompt: &[Token]) -> Outcome<Vec<Token>> {
        let Some(start) = self.model.decoder_start() else {
            return Err(Failure::new(
                "the file names no token that decoding starts with (decoder_start_token_id, or a token that begins texts)",
            ));
        };
        self.clear();
        let mut batch = Batch::new();
        batch.push_prompt(prompt, 0, 0);
        self.context.encode(&batch)?;
        Ok(vec![start])
    }

    /// Cuts what is held to `keep` tokens, or to fewer if the memory cannot go back to just there; returns how many are left.
    fn cut(&mut self, keep: usize) -> usize {
        let left = match self.context.seq_rm(0, keep..) {
            Ok(()) => keep,
            // Recurrent states are kept of some positions.
            Err(MemoryError::StateForgotten { available, .. }) => {
                let before = available.into_iter().rev().find(|&at| at < keep);
                before.filter(|&at| self.context.seq_rm(0, at..).is_ok()).unwrap_or(0)
            }
            // Windows may have forgotten what comes before the cut.
            Err(_) => 0,
        };
        if left == 0 {
            self.clear();
        }
        self.held.truncate(left);
        left
    }

    /// Tokens that the context can hold.
    fn room(&self) -> usize {
        if self.context.is_limited() {
            self.context.n_ctx()
        } else {
            usize::MAX
        }
    }

    /// Lets a token follow those held: by computing it, with what may come next, or because it was computed already. False if the user
    /// interrupted.
    fn advance(&mut self, token: Token) -> Outcome<bool> {
        let Some(speculator) = &mut self.speculator else {
            return self.decode(&[token]);
        };
        match speculator.advance(&mut self.context, 0, &self.held, token) {
            Ok(row) => self.last = row,
            Err(DecodeError::Cancelled) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
        self.held.push(token);
        Ok(true)
    }

    /// Takes out of the memory what was computed and did not become text. What became of drafts in all.
    fn settle(&mut self) -> Outcome<Option<Drafted>> {
        let Some(speculator) = &mut self.speculator else {
            return Ok(None);
        };
        speculator.forget_drafts(&mut self.context, 0, self.held.len())?;
        Ok(Some(speculator.drafted()))
    }

    /// Computes tokens that follow those held. False if the user interrupted; what was done before stays.
    fn decode(&mut self, tokens: &[Token]) -> Outcome<bool> {
        let params = self.context.params();
        // Where it takes long, somebody may be watching.
        let is_long = tokens.len() > params.n_ubatch;
        let bar = is_long.then(|| progress::bar("reading", tokens.len()));
        let n_batch = match is_long && !progress::is_hidden() {
            true => params.n_ubatch,
            false => params.n_batch,
        };
        let mut batch = Batch::new();
        for chunk in tokens.chunks(n_batch) {
            batch.clear();
            batch.push_prompt(chunk, self.held.len(), 0);
            match self.context.decode(&batch) {
                Ok(()) => self.held.extend_from_slice(chunk),
                Err(DecodeError::Cancelled) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
            if let Some(bar) = &bar {
                bar.advance(chunk.len());
            }
            self.last = chunk.len() - 1;
            if let Some(speculator) = &mut self.speculator {
                speculator.follow(
                    0,
                    Decoded {
                        context: &self.context,
                        first: 0,
                        n_before: self.held.len() - chunk.len(),
                        tokens: chunk,
                    },
                )?;
            }
        }
        Ok(true)
    }
}
