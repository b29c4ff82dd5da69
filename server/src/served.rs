//! A model as it is served: its name, how prompts are made for it, and who continues them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::builder::Pooling;
use engine::chat::{Budget, ChatError, ChatTemplate, Marks, Message, ReasoningSplit, ReasoningTags, reasoning_tags};
use engine::context::ContextParams;
use engine::gguf::Metadata;
use engine::grammar::{Constraint, Grammar};
use engine::model::Model;
use engine::sample::Token;
use engine::vocab::{TokenAttr, Vocab};
use serde_json::{Map, Value as Json};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::answer::Answer;
use crate::api::{ApiError, ApiResult, Constraints, Defaults};
use crate::embedder::Embedder;
use crate::openai::Kept;
use crate::parser::OutputParser;
use crate::scheduler::{Event, Request, Scheduler, SubmitError};
use crate::tools::{Form, HARMONY_FINAL, Harmony, ToolFormat, ToolSplit, Tools, as_text, generic_format};

/// How a model is served.
#[derive(Clone, Debug)]
pub struct ServedParams {
    /// The name that clients know it by.
    pub name: String,
    /// Further names of it.
    pub aliases: Vec<String>,
    /// A chat template in place of the model's.
    pub template: Option<String>,
    /// Variables of the template, unless a request has others.
    pub variables: Map<String, Json>,
    /// What holds for requests that say nothing else.
    pub defaults: Defaults,
    /// Answers have the texts of control tokens.
    pub shows_special: bool,
    /// All that is written is the answer: what is thought and called is not told apart.
    pub is_plain: bool,
    /// Prompts for gaps have what is behind them first.
    pub is_suffix_first: bool,
    /// Reasoning is told apart from answers.
    pub split_reasoning: bool,
    /// Most tokens that are thought before an answer, unless a request says how many.
    pub reasoning_budget: Option<usize>,
    /// What is thought last where thinking is cut off.
    pub reasoning_message: String,
    /// Where slots are saved, if that is allowed.
    pub slot_save_path: Option<PathBuf>,
    /// The files of the context's adapters.
    pub adapters: Vec<String>,
    /// What made the program, such as a version.
    pub build: String,
}

/// A model that is served.
pub struct Served {
    /// How.
    pub params: ServedParams,
    /// Continues prompts.
    pub scheduler: Scheduler,
    /// Turns texts into vectors.
    pub embedder: Embedder,
    /// Rates pairs of texts.
    pub ranker: Embedder,
    /// What answers have to be.
    pub constraints: Constraints,
    /// Responses of late.
    pub responses: Kept,
    template: Option<ChatTemplate>,
    tags: Option<ReasoningTags>,
    source: Option<String>,
    /// How calls of functions are written.
    calls: Option<Arc<ToolFormat>>,
    /// The template tells of functions; otherwise a text does.
    tells_of_functions: bool,
    /// Control tokens that calls are told by, and those that reasoning is.
    shown: Arc<[Token]>,
    /// Those that all answers have, as far as that was asked for.
    special: Arc<[Token]>,
    /// Seconds since 1970 at the start.
    pub created: u64,
}

/// A prompt for the model.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// As text.
    pub text: String,
    /// As tokens.
    pub tokens: Vec<Token>,
    /// What its answer has reasoning in, if it has some.
    pub tags: Option<ReasoningTags>,
}

/// What a conversation's prompt is made of.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// What was said.
    pub messages: Vec<Message>,
    /// Variables of the template.
    pub variables: Map<String, Json>,
    /// The last message is the beginning of the answer.
    pub goes_on: bool,
    /// The answer begins at once: what it has to be holds for reasoning, too.
    pub without_reasoning: bool,
    /// Most tokens that are thought; less than 0: as many as it likes.
    pub budget: Option<i64>,
    /// What is thought last where that is cut off, in place of what holds for all.
    pub budget_message: Option<String>,
    /// Functions that may be called.
    pub tools: Option<Tools>,
}

impl Served {
    /// Serves the model that a scheduler continues texts with. `embedding`: how contexts for vectors are made.
    pub fn new(scheduler: Scheduler, params: ServedParams, embedding: ContextParams) -> Result<Served, ChatError> {
        let model = scheduler.model().clone();
        let of_file = model.metadata().optional::<&str>("tokenizer.chat_template");
        let of_file = of_file.map_err(|e| ChatError::Key { message: e.to_string() })?;
        let source = params.template.clone().or(of_file.map(str::to_owned));
        let (vocab, empty) = (model.vocab(), String::new);
        let text = |token: Option<Token>| token.map_or_else(empty, |t| vocab.text(t).into_owned());
        let made = ChatTemplate::new(
            source.as_deref().unwrap_or_default(),
            &text(vocab.bos()),
            &text(vocab.eos()),
        );
        let template = match made {
            Ok(template) => Some(template),
            Err(ChatError::NoTemplate) => None,
            Err(error) => return Err(error),
        };
        let tags = template.as_ref().zip(source.as_deref());
        let tags = tags.and_then(|(template, source)| reasoning_tags(template, source));
        let calls = template.as_ref().zip(source.as_deref());
        let calls = calls.and_then(|(template, source)| ToolFormat::of(template, source));
        let tells_of_functions = calls.is_some();
        let calls = calls.or_else(|| template.as_ref().map(|_| generic_format()));
        let marks = calls.as_ref().map(ToolFormat::marks).unwrap_or_default();
        let marks = tags.map_or(marks.clone(), |(open, close)| format!("{marks}{open}{close}"));
        let is_control = |token: &Token| vocab.attr(*token).intersects(TokenAttr::CONTROL) && !vocab.is_eog(*token);
        let marks = vocab.tokenize(&marks, false, true).into_iter();
        let shown = marks.filter(is_control).collect();
        let special = match params.shows_special {
            true => (0..vocab.n_tokens()).filter(is_control).collect(),
            false => Arc::new([]) as Arc<[Token]>,
        };
        Ok(Served {
            params,
            ranker: Embedder::new(
                model.clone(),
                ContextParams {
                    pooling: Some(Pooling::Rank),
                    ..embedding.clone()
                },
            ),
            embedder: Embedder::new(model, embedding),
            constraints: Constraints::default(),
            responses: Kept::default(),
            scheduler,
            template,
            tags,
            source,
            calls: calls.map(Arc::new),
            tells_of_functions,
            shown,
            special,
            created: seconds(),
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        self.scheduler.model()
    }

    /// Text to tokens and back.
    pub fn vocab(&self) -> &Vocab {
        self.model().vocab()
    }

    /// The chat template in Jinja, empty if there is none.
    pub fn template(&self) -> &str {
        self.source
            .as_deref()
            .filter(|_| self.template.is_some())
            .unwrap_or_default()
    }

    /// Most tokens that prompt and answer can have together.
    pub fn n_ctx(&self) -> usize {
        match self.scheduler.n_ctx() {
            usize::MAX => self.model().base().n_ctx_train(),
            n => n,
        }
    }

    /// True if the template tells of functions, and calls are told from what the model writes.
    pub fn calls(&self) -> bool {
        self.tells_of_functions
    }

    /// True if the template names tags of reasoning.
    pub fn thinks(&self) -> bool {
        self.tags.is_some()
    }

    /// What it can be asked for, in Ollama's words.
    pub fn capabilities(&self) -> Vec<&'static str> {
        capabilities(Scheduler::encodes(self.model()), self.calls(), self.thinks())
    }

    /// Seconds since 1970.
    pub fn now(&self) -> u64 {
        seconds()
    }

    /// The prompt of a conversation.
    pub fn prompt(&self, conversation: &Conversation) -> ApiResult<Prompt> {
        let Some(template) = &self.template else {
            return Err(ApiError::invalid(
                "this model has no chat template, so it cannot take messages: /v1/completions continues texts",
            ));
        };
        let mut variables = self.params.variables.clone();
        variables.extend(conversation.variables.clone());
        let tools = conversation.tools.as_ref();
        if let Some(tools) = tools.filter(|_| self.tells_of_functions) {
            variables.insert("tools".to_owned(), tools.list.clone().into());
        }
        if conversation.without_reasoning && self.tags.is_some() && !variables.contains_key("enable_thinking") {
            variables.insert("enable_thinking".to_owned(), false.into());
        }
        let messages = &conversation.messages[..];
        let (messages, begun) = match messages {
            [before @ .., last] if conversation.goes_on => (before, last.content.as_str()),
            messages => (messages, ""),
        };
        let as_text = match self.tells_of_functions {
            true => None,
            false => as_text(messages, tools),
        };
        let rendered = template.render(as_text.as_deref().unwrap_or(messages), true, &variables);
        let mut text = rendered.map_err(|e| ApiError::invalid(e.to_string()))?;
        if conversation.without_reasoning && conversation.tools.is_none() && self.is_harmony() {
            text += HARMONY_FINAL;
        }
        if let Some((open, close)) = self.tags.filter(|_| conversation.without_reasoning)
            && text.trim_end().ends_with(open)
        {
            text += &format!("\n{close}\n\n");
        }
        text += begun;
        let tokens = self.vocab().tokenize(&text, !template.has_bos(&text), true);
        let split = self.params.split_reasoning && begun.is_empty();
        Ok(Prompt {
            text,
            tokens,
            tags: self.tags.filter(|_| split),
        })
    }

    /// Begins to answer a conversation: `request` says how, but for the prompt. `grammar`: what the answer has to be. `splits`: what is thought is told apart.
    pub fn answer(
        &self,
        mut conversation: Conversation,
        mut request: Request,
        grammar: Option<&Grammar>,
        splits: bool,
    ) -> ApiResult<Answer> {
        let called = self.called(conversation.tools.as_ref())?;
        let grammar = self.grammar(grammar, &conversation);
        if called.is_some() && grammar.is_some() {
            return Err(ApiError::field(
                "tool_choice",
                "the answer is told what to be by a grammar, too",
            ));
        }
        if called.is_none() && grammar.is_some() {
            // A grammar leaves no room for calls.
            conversation.tools = conversation.tools.filter(|_| !self.is_harmony());
        }
        if let Some(grammar) = called.as_ref().or(grammar) {
            conversation.without_reasoning = true;
            request.constraint = Some(self.constraints.constraint(grammar, self.model())?);
        }
        let prompt = self.prompt(&conversation)?;
        if request.constraint.is_none() {
            request.constraint = self.when_called(&prompt, conversation.tools.as_ref(), splits);
        }
        let parser = self.parser(&prompt, conversation.tools.as_ref(), splits);
        request.budget = self.budget(&prompt, &conversation, request.reasoning_control);
        // What opens a call may be a control token, which is no text otherwise.
        let is_told_apart = prompt.tags.is_some() || request.budget.is_some();
        if self.is_harmony() || conversation.tools.is_some() || is_told_apart {
            request.shown = self.shown.clone();
        }
        request.prompt = prompt.tokens;
        let (n, events) = (request.n, self.submit(request)?);
        Ok(Answer::new(vec![(events, n)], &parser))
    }

    /// What the answer has to be: what a request says, or what holds for all that have no functions to call.
    fn grammar<'a>(&'a self, asked: Option<&'a Grammar>, conversation: &Conversation) -> Option<&'a Grammar> {
        let of_all = self.params.defaults.grammar.as_ref();
        asked.or(of_all.filter(|_| conversation.tools.is_none()))
    }

    /// How many tokens the prompt of a conversation has; `asked`: what a request says that the answer has to be.
    pub fn count(&self, mut conversation: Conversation, asked: Option<&Grammar>) -> ApiResult<usize> {
        conversation.without_reasoning |= self.grammar(asked, &conversation).is_some();
        Ok(self.prompt(&conversation)?.tokens.len())
    }

    /// Begins to continue a prompt.
    pub fn submit(&self, mut request: Request) -> Result<UnboundedReceiver<Event>, SubmitError> {
        if !self.special.is_empty() {
            request.shown = self.special.clone();
        }
        request.max_tokens.get_or_insert(self.max_tokens());
        self.scheduler.submit(request)
    }

    /// What a continuation has to be: what a request says, or what holds for all.
    pub fn constraint(&self, asked: Option<&Grammar>) -> ApiResult<Option<Constraint>> {
        let grammar = asked.or(self.params.defaults.grammar.as_ref());
        let constraint = |grammar| self.constraints.constraint(grammar, self.model());
        grammar.map(constraint).transpose()
    }

    /// What may be thought in the answer to a prompt, where there is a limit, or there may be one later.
    fn budget(&self, prompt: &Prompt, conversation: &Conversation, is_controlled: bool) -> Option<Budget> {
        let n = match conversation.budget {
            Some(n) => usize::try_from(n).ok(),
            None => self.params.reasoning_budget,
        };
        let n = n.or(is_controlled.then_some(usize::MAX));
        if conversation.without_reasoning || conversation.goes_on {
            return None;
        }
        let marks = match self.is_harmony() {
            true => Marks::Channels {
                calls: conversation.tools.is_some(),
            },
            false => Marks::Tags(self.tags?),
        };
        let message = conversation.budget_message.as_ref();
        let message = message.unwrap_or(&self.params.reasoning_message);
        Some(Budget::new(marks, &prompt.text, n?, message))
    }

    /// What tells parts of the answer to a prompt from each other.
    fn parser(&self, prompt: &Prompt, tools: Option<&Tools>, splits: bool) -> OutputParser {
        if self.params.is_plain {
            return OutputParser::none();
        }
        if self.is_harmony() {
            let functions = tools.map_or_else(|| Arc::new([]) as Arc<[_]>, Tools::functions);
            let parallel = tools.is_none_or(|tools| tools.parallel);
            return OutputParser::Harmony(Harmony::new(functions, parallel, &prompt.text));
        }
        let calls = self.calls.as_ref().zip(tools);
        OutputParser::Tags {
            reasoning: ReasoningSplit::new(prompt.tags.filter(|_| splits), &prompt.text),
            calls: calls.map(|(format, tools)| ToolSplit::new(format.clone(), tools.functions(), tools.parallel)),
        }
    }

    /// True if answers come as messages in channels.
    fn is_harmony(&self) -> bool {
        self.calls.as_ref().is_some_and(|format| format.form == Form::Harmony)
    }

    /// What the answer has to be, if a function has to be called. Schemas of arguments that cannot be kept to are refused.
    fn called(&self, tools: Option<&Tools>) -> ApiResult<Option<Grammar>> {
        let Some((format, tools)) = self.calls.as_ref().zip(tools) else {
            return Ok(None);
        };
        let Some((grammar, schemas)) = tools.grammar(format, self.vocab())? else {
            return Ok(None);
        };
        for schema in schemas {
            self.constraints.constraint(&schema, self.model())?;
        }
        Ok(Some(grammar))
    }

    /// What a call has to be that the model may begin by itself; `None` if there are no functions, or schemas that no grammar can keep to.
    fn when_called(&self, prompt: &Prompt, tools: Option<&Tools>, splits: bool) -> Option<Constraint> {
        let (format, tools) = self.calls.as_ref().zip(tools)?;
        let constraint = |grammar: &Grammar| self.constraints.constraint(grammar, self.model()).ok();
        let can_be_kept = |schema: &Grammar| constraint(schema).is_some();
        let (grammar, mut trigger) = tools.lazy_grammar(format, self.vocab(), &can_be_kept)?;
        if let Some((open, close)) = prompt.tags.filter(|_| splits && !self.is_harmony()) {
            trigger.is_aside = prompt.text.trim_end().ends_with(open);
            trigger.aside = Some((open.to_owned(), close.to_owned()));
        }
        constraint(&grammar)?.lazily(trigger).ok()
    }

    /// The tokens of a text that is continued as it stands.
    pub fn tokens(&self, text: &str) -> Vec<Token> {
        self.vocab().tokenize(text, true, true)
    }

    /// Most tokens of an answer for which the request says none.
    pub fn max_tokens(&self) -> usize {
        self.params.defaults.limit(self.thinks() || self.is_harmony())
    }
}

/// What a model of the header of its file can be asked for, in Ollama's words.
pub fn capabilities_of(metadata: &Metadata) -> Vec<&'static str> {
    let text = |key: &str| metadata.optional::<&str>(key).ok().flatten();
    let arch = text("general.architecture").unwrap_or_default();
    let is_causal = metadata.optional::<bool>(&format!("{arch}.attention.causal"));
    let source = text("tokenizer.chat_template").unwrap_or_default();
    let template = ChatTemplate::new(source, "", "").ok();
    let tells = |template| ToolFormat::of(template, source).is_some();
    let thinks = |template| reasoning_tags(template, source).is_some();
    capabilities(
        is_causal.ok().flatten() == Some(false),
        template.as_ref().is_some_and(tells),
        template.as_ref().is_some_and(thinks),
    )
}

fn capabilities(encodes: bool, calls: bool, thinks: bool) -> Vec<&'static str> {
    let all = [
        ("completion", !encodes),
        ("embedding", true),
        ("tools", calls),
        ("thinking", thinks),
    ];
    all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}
