//! Configuration of chats and completions.

use std::marker::PhantomData;

use engine::grammar::Grammar;
use engine::sample::{Recommended, SampleError, SamplerParams};
use serde_json::{Map, Value as Json};

use crate::constraint::PendingConstraint;
use crate::sampling::sampler_chain;
use crate::session::{GenerationParams, Session};
use crate::{CancelHandle, Drafts, Model, Result};

/// Default maximum number of tokens of a response.
const MAX_TOKENS: usize = 2048;

/// Configures a [`Chat`](crate::Chat) or a [`Completion`](crate::Completion).
///
/// The sampling defaults are the recommendations in the model file, or the recommendations of the authors of the model
/// family. Invalid values are errors when the chat or completion starts.
#[must_use]
pub struct Builder<T> {
    pub(crate) model: Model,
    /// Names and values of sampling parameters.
    sampling: Vec<(String, String)>,
    max_tokens: usize,
    stops: Vec<String>,
    grammar: Option<Grammar>,
    ignore_eos: bool,
    loop_detection: bool,
    context_shift: bool,
    drafts: Option<Drafts>,
    pub(crate) chat: ChatOptions,
    result: PhantomData<fn() -> T>,
}

/// Options that apply only to chats.
pub(crate) struct ChatOptions {
    pub system: Option<String>,
    pub template: Option<String>,
    pub variables: Map<String, Json>,
    pub yields_reasoning: bool,
    pub reasoning_budget: Option<usize>,
}

/// Settings of every response of a session.
pub(crate) struct Settings {
    sampler: SamplerParams,
    max_tokens: usize,
    stops: Vec<String>,
    constraint: Option<PendingConstraint>,
    ignore_eos: bool,
    loop_detection: bool,
}

impl Settings {
    /// Returns true if a grammar constrains the output.
    pub fn is_constrained(&self) -> bool {
        self.constraint.is_some()
    }

    /// Returns the parameters of the next response.
    pub fn generation(&mut self) -> GenerationParams<'_> {
        GenerationParams {
            max_tokens: Some(self.max_tokens),
            stops: self.stops.clone(),
            constraint: self.constraint.as_mut(),
            ignore_eos: self.ignore_eos,
            loop_detection: self.loop_detection,
            ..GenerationParams::new(&self.sampler)
        }
    }
}

impl<T> Builder<T> {
    pub(crate) fn new(model: &Model) -> Builder<T> {
        Builder {
            model: model.clone(),
            sampling: Vec::new(),
            max_tokens: MAX_TOKENS,
            stops: Vec::new(),
            grammar: None,
            ignore_eos: false,
            loop_detection: true,
            context_shift: false,
            drafts: None,
            chat: ChatOptions {
                system: None,
                template: None,
                variables: Map::new(),
                yields_reasoning: false,
                reasoning_budget: None,
            },
            result: PhantomData,
        }
    }

    /// Sets the temperature; 0 always selects the most likely token.
    pub fn temperature(self, temperature: f32) -> Builder<T> {
        self.sampling("temp", temperature)
    }

    /// Keeps only the `k` most likely tokens; 0 keeps all.
    pub fn top_k(self, k: u32) -> Builder<T> {
        self.sampling("top_k", k)
    }

    /// Keeps the most likely tokens up to the total probability `p`; 1 keeps all.
    pub fn top_p(self, p: f32) -> Builder<T> {
        self.sampling("top_p", p)
    }

    /// Keeps the tokens with at least the fraction `p` of the probability of the most likely token; 0 keeps
    /// all.
    pub fn min_p(self, p: f32) -> Builder<T> {
        self.sampling("min_p", p)
    }

    /// Divides the logits of recent tokens by `penalty`; 1 has no effect.
    pub fn repeat_penalty(self, penalty: f32) -> Builder<T> {
        self.sampling("penalty_repeat", penalty)
    }

    /// Sets the seed of the random numbers. Every response of a session derives its own seed.
    pub fn seed(self, seed: u64) -> Builder<T> {
        self.sampling("seed", seed)
    }

    /// Sets a sampling parameter by its name or flag. `llama run --help` lists them.
    pub fn sampling(mut self, name: impl Into<String>, value: impl ToString) -> Builder<T> {
        self.sampling.push((name.into(), value.to_string()));
        self
    }

    /// Sets the maximum number of tokens of a response. The default is 2048; `usize::MAX` generates until the
    /// context is full.
    pub fn max_tokens(mut self, n: usize) -> Builder<T> {
        self.max_tokens = n;
        self
    }

    /// Adds a string before which responses end.
    pub fn stop(mut self, text: impl Into<String>) -> Builder<T> {
        self.stops.push(text.into());
        self
    }

    /// Restricts responses to JSON documents that are valid under a JSON schema. The schema `{}` allows any
    /// document.
    pub fn json_schema(mut self, schema: impl Into<String>) -> Builder<T> {
        self.grammar = Some(Grammar::JsonSchema(schema.into()));
        self
    }

    /// Restricts responses to the rule `root` of a grammar in GBNF, the notation of llama.cpp.
    pub fn grammar(mut self, gbnf: impl Into<String>) -> Builder<T> {
        self.grammar = Some(Grammar::Gbnf(gbnf.into()));
        self
    }

    /// Restricts responses to strings that match a regular expression completely.
    pub fn regex(mut self, regex: impl Into<String>) -> Builder<T> {
        self.grammar = Some(Grammar::Regex(regex.into()));
        self
    }

    /// Restricts responses to one of these strings.
    pub fn choices<S: Into<String>>(mut self, choices: impl IntoIterator<Item = S>) -> Builder<T> {
        self.grammar = Some(Grammar::Choice(choices.into_iter().map(Into::into).collect()));
        self
    }

    /// Bans end-of-generation tokens, so that responses end only at a limit or a stop string.
    pub fn ignore_eos(mut self, ignore: bool) -> Builder<T> {
        self.ignore_eos = ignore;
        self
    }

    /// Sets whether a response ends when its output loops. The default is true.
    pub fn loop_detection(mut self, detect: bool) -> Builder<T> {
        self.loop_detection = detect;
        self
    }

    /// Sets whether the older half of the context is dropped when the context is full. By default, the
    /// response ends.
    pub fn context_shift(mut self, shift: bool) -> Builder<T> {
        self.context_shift = shift;
        self
    }

    /// Enables speculative decoding with drafts from this source. The output does not change.
    pub fn drafts(mut self, drafts: Drafts) -> Builder<T> {
        self.drafts = Some(drafts);
        self
    }

    /// Returns the recommended sampling parameters with the changes of the caller.
    fn sampler(&self) -> Result<SamplerParams, SampleError> {
        let apply = |params: &mut SamplerParams| {
            self.sampling
                .iter()
                .try_for_each(|(name, value)| params.set(name, &[value]))
        };
        // Recommendations for random sampling do not apply to greedy decoding.
        let mut params = SamplerParams::default();
        apply(&mut params)?;
        let mut params = Recommended::of(self.model.engine().metadata(), params.temp <= 0.0).params;
        apply(&mut params)?;
        Ok(params)
    }

    /// Creates the session, its settings, and its cancellation handle.
    pub(crate) fn build(&mut self) -> Result<(Session, Settings, CancelHandle)> {
        let sampler = self.sampler()?;
        if self.stops.iter().any(String::is_empty) {
            return Err(crate::Error::EmptyStop);
        }
        let n_logits = self.model.engine().base().n_vocab();
        let compile = |grammar| PendingConstraint::compile(grammar, self.model.shared_vocab(), n_logits);
        let constraint = self.grammar.as_ref().map(compile).transpose()?;
        // Report tokens outside of the vocabulary before the first response.
        sampler_chain(self.model.engine(), &sampler, self.ignore_eos)?;
        let context = self.model.context(|params| {
            if let Some(drafts) = &self.drafts {
                drafts.reserve(params);
            }
        })?;
        let speculator = self
            .drafts
            .as_ref()
            .map(|drafts| drafts.speculator(&context))
            .transpose()?;
        let mut session = Session::new(context);
        session.set_speculator(speculator);
        if self.context_shift {
            session.enable_shift(Some(0))?;
        }
        let cancel = CancelHandle::new();
        session.set_cancel(cancel.clone());
        let settings = Settings {
            sampler,
            max_tokens: self.max_tokens,
            stops: std::mem::take(&mut self.stops),
            constraint,
            ignore_eos: self.ignore_eos,
            loop_detection: self.loop_detection,
        };
        Ok((session, settings, cancel))
    }
}
