//! A loaded model with a context for one conversation.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::chat::{Budget, ReasoningTags};
use engine::context::{Context, ContextParams, MediaRows};
use engine::model::{Medium, Model};
use engine::sample::{SamplerParams, Token};
use engine::speculate::{DraftController, Drafted, Speculator};
use engine::vocab::Vocab;
use llama::parts::{self, GenerationParams, MediaProjector, ShownTokens};
use llama::{CancelHandle, Error, Finish, Stats};
use tracing::warn;

use super::args::RunArgs;
use crate::args::values::Toggle;
use crate::args::{LoadArgs, SpeculationArgs};
use crate::drafting::Source;
use crate::failure::{Failure, Outcome};
use crate::grammar::{Pending, Prepared, named_error};
use crate::loading::{no_context, warn_of_threads};
use crate::log::hint;
use crate::{format, images, interrupt, progress};

/// A loaded model, its context, and the settings of responses.
pub struct Session {
    inner: parts::Session,
    /// Image or audio encoder.
    projector: Option<MediaProjector>,
    /// Speculative decoding is enabled.
    has_drafts: bool,
    /// Sampling parameters; may change between turns.
    pub sampler: SamplerParams,
    /// Constraint on every response.
    constraint: Option<Prepared>,
    /// Stop strings.
    stops: Vec<String>,
    /// Ignore end-of-sequence tokens.
    ignore_eos: bool,
    /// Emit special tokens as their names.
    names_special: bool,
    /// Continue even if the output loops.
    no_loop_detection: bool,
    /// Time from opening the file until the model was ready.
    pub t_load: Duration,
}

/// Result of a generation.
pub struct Generation {
    /// Reason why generation stopped.
    pub finish: Finish,
    pub text: String,
    pub stats: Stats,
    /// Statistics of speculative decoding, if enabled.
    pub drafted: Option<Drafted>,
}

/// Limit that means "until the context is full".
const UNTIL_FULL: i64 = -2;

/// Limits of a generation.
pub struct Bounds {
    /// Maximum tokens to generate.
    pub limit: Option<usize>,
    /// Reasoning tags, which are printed even if they are special tokens.
    pub tags: Option<ReasoningTags>,
    /// Reasoning budget.
    pub budget: Option<Budget>,
}

/// Creates the speculative decoder, if drafting is enabled.
fn speculator(args: &RunArgs, speculation: &SpeculationArgs, context: &Context) -> Outcome<Option<Speculator>> {
    let source = Source {
        speculation,
        hub: &args.hub,
        load: &args.load,
        context: &args.context,
    };
    let drafter = source.drafters(context, 1)?.and_then(|mut drafters| drafters.take());
    let speculator = |drafter| Speculator::new(DraftController::new(speculation.draft_max.into())).with(0, drafter);
    Ok(drafter.map(speculator))
}

/// Checks that the directory of the prompt cache exists, before anything is computed.
fn check_directory(file: &Path) -> Outcome {
    match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() && !dir.is_dir() => Err(Failure::new(format_args!(
            "cannot write the prompt cache {}: directory {} does not exist",
            file.display(),
            dir.display()
        ))),
        _ => Ok(()),
    }
}

/// Restores the context from a prompt cache, if the file exists.
fn restore(session: &mut parts::Session, file: &Path) -> Outcome {
    let exists = file.try_exists();
    if !exists.map_err(|e| Failure::new(format_args!("cannot read the prompt cache {}: {e}", file.display())))? {
        return Ok(());
    }
    let (n, n_tokens) = session.restore(file)?;
    if n != n_tokens {
        return Err(Failure::new(format_args!(
            "{}: not a prompt cache of `llama run`: it has {} for {n} positions",
            file.display(),
            format::plural(n_tokens, "token")
        )));
    }
    Ok(())
}

/// Creates a context of the size in `params`. If memory is insufficient, halves the size down to `n_ctx_min`.
fn fitting_context(model: &Arc<Model>, params: &mut ContextParams, n_ctx_min: usize) -> Outcome<Context> {
    let wanted = params.n_ctx;
    let context = parts::fitting_context(model, params, n_ctx_min).map_err(|e| no_context(model, e))?;
    if params.n_ctx < wanted {
        hint!(
            "context reduced to {} tokens: not enough memory for {wanted}; use -c to set the size",
            params.n_ctx
        );
    }
    Ok(context)
}

/// Returns the sampling parameters of the options, with the biases of token texts.
fn sampler(args: &RunArgs, model: &Model) -> Outcome<SamplerParams> {
    let mut params = args.sampler.params(model)?;
    let biases = args.text_bias.biases(model.vocab(), |text| args.text(text))?;
    params.logit_bias.extend(biases);
    Ok(params)
}

/// Returns the stop strings. An empty one would match immediately and is rejected.
fn stops(args: &RunArgs) -> Outcome<Vec<String>> {
    let stops: Vec<String> = args.reverse_prompt.iter().map(|text| args.text(text)).collect();
    if stops.iter().any(String::is_empty) {
        return Err(Failure::new("-r must not be empty: generation would stop immediately"));
    }
    Ok(stops)
}

/// Loads the projector, if one is given, and reserves space for the rows of a medium in the context.
fn projector(args: &RunArgs, params: &mut ContextParams, model: &Model) -> Outcome<Option<MediaProjector>> {
    let media = &args.media;
    // Without media, a projector next to the model would only take memory.
    let is_asked_for = media.projector.mmproj.is_some() || media.projector.limits_rows();
    if !is_asked_for && media.image.is_empty() && media.audio.is_empty() {
        return Ok(None);
    }
    let precision = args.context.precision.mode;
    let projector = images::projector(&media.projector, &args.hub, &args.load, precision, params, model)?;
    let Some(projector) = projector else {
        return Err(Failure::new(
            "--image and --audio need a projector: pass it with --mmproj, or put it next to the model as mmproj*.gguf",
        ));
    };
    params.media_rows = projector.n_rows();
    Ok(Some(projector))
}

/// Enables context shifts. The error is a phrase about the option that enables them.
fn enable_shift(session: &mut parts::Session, keep: Option<usize>) -> Result<(), String> {
    let name = session.model().arch().name;
    session
        .enable_shift(keep)
        .map_err(|e| format!("is not supported by {name} models: {e}"))
}

/// Warns if the context exceeds the training context.
fn warn_of_length(context: &Context) {
    let (n_ctx, trained) = (context.n_ctx(), context.model().base().n_ctx_train());
    let params = context.params();
    let is_stretched = params.rope_freq_base.is_some() || params.rope_freq_scale.is_some();
    if context.is_limited() && trained > 0 && n_ctx > trained && !is_stretched {
        warn!(
            "the context ({n_ctx} tokens) exceeds the model's training context ({trained}); output beyond it may be meaningless"
        );
    }
}

impl Session {
    /// Loads a model, creates its context, and restores the prompt cache.
    pub fn open(path: &Path, args: &RunArgs) -> Outcome<Session> {
        let start = Instant::now();
        if let Some(file) = &args.prompt_cache {
            check_directory(file)?;
        }
        let speculation = args.speculation.resolved()?;
        let mut params = ContextParams {
            n_rollback: args.state_checkpoints.into(),
            ..args.context.params()
        };
        if speculation.is_wanted() {
            parts::reserve_drafts(&mut params, 1, speculation.mtp);
        }
        warn_of_threads(params.n_threads.max(params.n_threads_batch));
        let memory = params.memory(params.n_ctx);
        let load = LoadArgs {
            mtp: speculation.mtp,
            ..args.load.clone()
        };
        // The grammar compiles while weights load and the prompt is processed.
        let pending = args.grammar.pending()?;
        let hook = pending.as_ref().map(Pending::hook);
        let model = load.load_and(path, args.context.precision.mode, Some(memory), hook)?;
        if model.bidirectional() {
            return Err(Failure::new(format_args!(
                "{}: this model reads whole texts and cannot generate; use `llama embed`",
                path.display()
            )));
        }
        let projector = projector(args, &mut params, &model)?;
        let constraint = pending.map(Pending::started).transpose()?;
        let can_shrink = args.context.ctx_size.is_none() && args.load.placement.fit;
        let n_ctx_min = if can_shrink { args.context.fit_ctx } else { usize::MAX };
        let mut context = fitting_context(&model, &mut params, n_ctx_min)?;
        if args.context.flash_attn == Toggle::Off {
            warn!("-fa off has no effect: attention never materializes the score matrix");
        }
        if args.context.ctx_size.is_some() {
            warn_of_length(&context);
        }
        args.adapters.apply(&mut context)?;
        let mut inner = parts::Session::new(context);
        if args.context_shift && args.predict != Some(UNTIL_FULL) {
            let cannot = |e| Failure::new(format_args!("--context-shift {e}"));
            // A value of -1 keeps the whole first prompt.
            enable_shift(&mut inner, usize::try_from(args.keep).ok()).map_err(cannot)?;
        }
        if let Some(file) = &args.prompt_cache {
            restore(&mut inner, file)?;
        }
        let speculator = speculator(args, &speculation, inner.context())?;
        let has_drafts = speculator.is_some();
        inner.set_speculator(speculator);
        let sampler = sampler(args, &model)?;
        let t_load = start.elapsed();
        Ok(Session {
            inner,
            projector,
            has_drafts,
            sampler,
            constraint,
            stops: stops(args)?,
            ignore_eos: args.ignore_eos,
            names_special: args.display.special,
            no_loop_detection: args.no_loop_detection,
            t_load,
        })
    }

    /// Enables context shifts. The BOS token is kept.
    pub fn allow_shift(&mut self) -> Outcome {
        enable_shift(&mut self.inner, Some(0)).map_err(|e| Failure::new(format_args!("/shift {e}")))
    }

    pub fn model(&self) -> &Model {
        self.inner.model()
    }

    pub fn vocab(&self) -> &Vocab {
        self.inner.vocab()
    }

    pub fn context(&self) -> &Context {
        self.inner.context()
    }

    /// Returns the image or audio encoder, if one is loaded.
    pub fn projector(&self) -> Option<&MediaProjector> {
        self.projector.as_ref()
    }

    /// Reads and encodes an image or audio file.
    pub fn medium(&mut self, medium: Medium, file: &Path) -> Outcome<Arc<MediaRows>> {
        match &mut self.projector {
            Some(projector) => images::rows(projector, medium, file),
            None => Err(Failure::new(format_args!(
                "cannot read {}: no projector is loaded; use --mmproj",
                file.display()
            ))),
        }
    }

    /// Returns the tokens in the KV cache.
    pub fn cached(&self) -> &[Token] {
        self.inner.cached()
    }

    /// Writes the context to a prompt cache file.
    pub fn save(&mut self, file: &Path) -> Outcome {
        Ok(self.inner.save(file)?)
    }

    /// Waits until the constraint is compiled; returns its error, if any.
    pub fn ready(&mut self) -> Outcome {
        self.constraint.as_mut().map_or(Ok(()), Prepared::wait)
    }

    /// Generates a completion of `prompt`, which contains rows of `images`, and passes its text to `emit`, in whole
    /// characters. A cached prefix of the prompt is reused.
    pub fn complete(
        &mut self,
        prompt: &[Token],
        images: &[Arc<MediaRows>],
        bounds: Bounds,
        emit: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> Outcome<Generation> {
        let stop = interrupt::listen();
        self.inner.set_cancel(CancelHandle::from(stop.flag()));
        let mut bar = None;
        let mut show = |n_done: usize, n_all: usize| {
            bar.get_or_insert_with(|| progress::bar("reading", n_all)).set(n_done);
        };
        let shown = if self.names_special {
            ShownTokens::All
        } else {
            ShownTokens::tags(self.inner.vocab(), bounds.tags)
        };
        let name = self.constraint.as_ref().map(Prepared::name);
        let name = name.unwrap_or_default().to_owned();
        // Hidden progress would only make the batches smaller.
        let progress: Option<&mut dyn FnMut(usize, usize)> = if progress::is_hidden() { None } else { Some(&mut show) };
        let params = GenerationParams {
            ignore_eos: self.ignore_eos,
            max_tokens: bounds.limit,
            stops: self.stops.clone(),
            shown,
            budget: bounds.budget,
            constraint: self.constraint.as_mut().map(Prepared::constraint),
            loop_detection: !self.no_loop_detection,
            images: images.to_vec(),
            progress,
            ..GenerationParams::new(&self.sampler)
        };
        let mut generation = self.inner.start(prompt, params).map_err(|e| failure(e, &name))?;
        drop(bar);
        let (mut text, mut new) = (String::new(), String::new());
        loop {
            new.clear();
            let continues = self.inner.advance(&mut generation, &mut new)?;
            if !new.is_empty() {
                text += &new;
                emit(&new)?;
            }
            if !continues {
                break;
            }
        }
        let stats = generation.stats();
        let drafted = Drafted {
            n_drafts: stats.drafts,
            n_right: stats.accepted_drafts,
        };
        Ok(Generation {
            finish: generation.finish().unwrap_or(Finish::Limit),
            text,
            stats,
            drafted: if self.has_drafts { Some(drafted) } else { None },
        })
    }
}

/// Converts the error of a prompt. `grammar` names the grammar, if there is one.
fn failure(error: Error, grammar: &str) -> Failure {
    match error {
        Error::PromptTooLong { n_prompt, n_ctx } => Failure::new(format_args!(
            "the prompt has {n_prompt} tokens, but the context only {n_ctx}; use a larger context (-c), or /shift in a chat"
        )),
        error => named_error(grammar, error),
    }
}
