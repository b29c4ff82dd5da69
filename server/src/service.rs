//! Serving state of one model: its name, prompt construction, and the scheduler and embedder that run it.

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
use llama::parts::PromptTemplate;
use serde_json::{Map, Value as Json};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::api::{ApiError, ApiResult, Defaults};
use crate::constraints::Constraints;
use crate::embedder::Embedder;
use crate::openai::ResponseStore;
use crate::output::OutputStream;
use crate::parser::OutputParser;
use crate::scheduler::{Event, Request, Scheduler, SubmitError};
use crate::tools::{CallSyntax, HARMONY_FINAL, Harmony, ToolCallParser, ToolFormat, Tools, as_text, generic_format};

/// Settings of a served model.
#[derive(Clone, Debug)]
pub struct ServiceParams {
    /// Name reported to clients.
    pub name: String,
    /// Further names that clients may use.
    pub aliases: Vec<String>,
    /// Chat template that overrides the template of the model file.
    pub template: Option<String>,
    /// Default variables of the chat template.
    pub variables: Map<String, Json>,
    /// Defaults for fields that a request does not set.
    pub defaults: Defaults,
    /// Output includes the text of control tokens.
    pub show_special_tokens: bool,
    /// Output is not split into reasoning, content and tool calls.
    pub raw_output: bool,
    /// Fill-in-the-middle prompts put the suffix before the prefix.
    pub suffix_first: bool,
    /// Reasoning is split off from content.
    pub split_reasoning: bool,
    /// Default reasoning budget in tokens; `None`: unlimited.
    pub reasoning_budget: Option<usize>,
    /// Text appended to reasoning that is cut off at the budget.
    pub reasoning_message: String,
    /// Directory for saved slots; `None` disables saving.
    pub slot_save_path: Option<PathBuf>,
    /// Paths of the LoRA adapters.
    pub adapters: Vec<String>,
    /// Build identification, such as the version.
    pub build: String,
}

/// A served model.
pub struct ModelService {
    pub params: ServiceParams,
    /// Runs completions.
    pub scheduler: Scheduler,
    /// Computes embeddings.
    pub embedder: Embedder,
    /// Computes reranking scores.
    pub ranker: Embedder,
    /// Cache of compiled grammars.
    pub constraints: Constraints,
    /// Stored responses of `/v1/responses`.
    pub responses: ResponseStore,
    template: Option<PromptTemplate>,
    tags: Option<ReasoningTags>,
    /// Format of tool calls.
    calls: Option<Arc<ToolFormat>>,
    /// True if the chat template renders tools; otherwise a system instruction describes them.
    template_has_tools: bool,
    /// Control tokens that delimit tool calls and reasoning.
    shown: Arc<[Token]>,
    /// Control tokens that appear in every output, if enabled.
    special: Arc<[Token]>,
    /// Start time in seconds since the Unix epoch.
    pub created: u64,
}

/// Rendered and tokenized prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub text: String,
    pub tokens: Vec<Token>,
    /// Reasoning tags that the completion may contain.
    pub tags: Option<ReasoningTags>,
}

/// A chat conversation from which a prompt is rendered.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Messages, oldest first.
    pub messages: Vec<Message>,
    /// Variables of the chat template.
    pub variables: Map<String, Json>,
    /// The completion continues the last message.
    pub continues_last: bool,
    /// The completion starts without reasoning, so that its grammar applies from the first token.
    pub skip_reasoning: bool,
    /// Reasoning budget in tokens; negative: unlimited.
    pub budget: Option<i64>,
    /// Text appended to reasoning that is cut off; overrides [`ServiceParams::reasoning_message`].
    pub budget_message: Option<String>,
    /// Tools that the model may call.
    pub tools: Option<Tools>,
}

impl ModelService {
    /// Creates the serving state of the scheduler's model. `embedding` configures the context for embeddings.
    pub fn new(
        scheduler: Scheduler,
        params: ServiceParams,
        embedding: ContextParams,
    ) -> Result<ModelService, ChatError> {
        let model = scheduler.model().clone();
        let vocab = model.vocab();
        let template = match &params.template {
            Some(source) => PromptTemplate::new(source, vocab),
            None => PromptTemplate::of_model(model.metadata(), vocab),
        };
        let template = match template {
            Ok(template) => Some(template),
            Err(ChatError::NoTemplate) => None,
            Err(error) => return Err(error),
        };
        let tags = template.as_ref().and_then(PromptTemplate::tags);
        let calls = template.as_ref().and_then(|t| ToolFormat::of(t.template(), t.source()));
        let template_has_tools = calls.is_some();
        let calls = calls.or_else(|| template.as_ref().map(|_| generic_format()));
        let marks = calls.as_ref().map(ToolFormat::marks).unwrap_or_default();
        let marks = tags.map_or(marks.clone(), |(open, close)| format!("{marks}{open}{close}"));
        let is_control = |token: &Token| vocab.attr(*token).intersects(TokenAttr::CONTROL) && !vocab.is_eog(*token);
        let marks = vocab.tokenize(&marks, false, true).into_iter();
        let shown = marks.filter(is_control).collect();
        let special = match params.show_special_tokens {
            true => (0..vocab.n_tokens()).filter(is_control).collect(),
            false => Arc::new([]) as Arc<[Token]>,
        };
        Ok(ModelService {
            params,
            ranker: Embedder::new(
                model.clone(),
                ContextParams {
                    pooling: Some(Pooling::Rank),
                    ..embedding.clone()
                },
            ),
            constraints: Constraints::new(model.clone()),
            embedder: Embedder::new(model, embedding),
            responses: ResponseStore::default(),
            scheduler,
            template,
            tags,
            calls: calls.map(Arc::new),
            template_has_tools,
            shown,
            special,
            created: seconds(),
        })
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model> {
        self.scheduler.model()
    }

    /// Returns the vocabulary.
    pub fn vocab(&self) -> &Vocab {
        self.model().vocab()
    }

    /// Returns the Jinja source of the chat template, or an empty string.
    pub fn template(&self) -> &str {
        self.template.as_ref().map_or("", PromptTemplate::source)
    }

    /// Returns the maximum length of prompt and completion together, in tokens.
    pub fn n_ctx(&self) -> usize {
        match self.scheduler.n_ctx() {
            usize::MAX => self.model().base().n_ctx_train(),
            n => n,
        }
    }

    /// Returns true if the chat template renders tools and the format of its tool calls is known.
    pub fn supports_tools(&self) -> bool {
        self.template_has_tools
    }

    /// Returns true if the chat template has reasoning tags.
    pub fn has_reasoning(&self) -> bool {
        self.tags.is_some()
    }

    /// Returns the capabilities of the model, named as in Ollama's API.
    pub fn capabilities(&self) -> Vec<&'static str> {
        capabilities(
            Scheduler::encodes(self.model()),
            self.supports_tools(),
            self.has_reasoning(),
        )
    }

    /// Returns the time in seconds since the Unix epoch.
    pub fn now(&self) -> u64 {
        seconds()
    }

    /// Renders and tokenizes the prompt of a conversation.
    pub fn prompt(&self, conversation: &Conversation) -> ApiResult<Prompt> {
        let Some(template) = &self.template else {
            return Err(ApiError::invalid(
                "this model has no chat template and cannot process messages; use /v1/completions",
            ));
        };
        let mut variables = self.params.variables.clone();
        variables.extend(conversation.variables.clone());
        let tools = conversation.tools.as_ref();
        if let Some(tools) = tools.filter(|_| self.template_has_tools) {
            variables.insert("tools".to_owned(), tools.list.clone().into());
        }
        if conversation.skip_reasoning {
            template.disable_reasoning(&mut variables);
        }
        let messages = &conversation.messages[..];
        let (messages, prefix) = match messages {
            [before @ .., last] if conversation.continues_last => (before, last.content.as_str()),
            messages => (messages, ""),
        };
        let as_text = match self.template_has_tools {
            true => None,
            false => as_text(messages, tools),
        };
        let messages = as_text.as_deref().unwrap_or(messages);
        let rendered = template.template().render(messages, true, &variables);
        let mut text = rendered.map_err(|e| ApiError::invalid(e.to_string()))?;
        if conversation.skip_reasoning && conversation.tools.is_none() && self.is_harmony() {
            text += HARMONY_FINAL;
        }
        if conversation.skip_reasoning {
            template.close_reasoning(&mut text);
        }
        text += prefix;
        let prompt = template.tokenized(self.vocab(), text);
        let split = self.params.split_reasoning && prefix.is_empty();
        Ok(Prompt {
            text: prompt.text,
            tokens: prompt.tokens,
            tags: self.tags.filter(|_| split),
        })
    }

    /// Starts a chat completion. `request` holds all settings except the prompt, `grammar` constrains the
    /// output, and `splits` enables splitting off reasoning.
    pub fn start_chat(
        &self,
        mut conversation: Conversation,
        mut request: Request,
        grammar: Option<&Grammar>,
        splits: bool,
    ) -> ApiResult<OutputStream> {
        let required_call_grammar = self.required_call_grammar(conversation.tools.as_ref())?;
        let grammar = self.grammar(grammar, &conversation);
        if required_call_grammar.is_some() && grammar.is_some() {
            return Err(ApiError::field("tool_choice", "cannot be combined with a grammar"));
        }
        if required_call_grammar.is_none() && grammar.is_some() {
            // A constrained completion cannot contain tool calls.
            conversation.tools = conversation.tools.filter(|_| !self.is_harmony());
        }
        if let Some(grammar) = required_call_grammar.as_ref().or(grammar) {
            conversation.skip_reasoning = true;
            request.constraint = Some(self.constraints.constraint(grammar)?);
        }
        let prompt = self.prompt(&conversation)?;
        if request.constraint.is_none() {
            request.constraint = self.auto_tool_constraint(&prompt, conversation.tools.as_ref(), splits);
        }
        let parser = self.parser(&prompt, conversation.tools.as_ref(), splits);
        request.budget = self.budget(&prompt, &conversation, request.reasoning_control);
        // Delimiters of tool calls and reasoning may be control tokens, which are omitted from the output by
        // default.
        let is_told_apart = prompt.tags.is_some() || request.budget.is_some();
        if self.is_harmony() || conversation.tools.is_some() || is_told_apart {
            request.shown = self.shown.clone();
        }
        request.prompt = prompt.tokens;
        let (n, events) = (request.n, self.submit(request)?);
        Ok(OutputStream::new(vec![(events, n)], &parser))
    }

    /// Returns the grammar of the request, or the default grammar if the request has no tools.
    fn grammar<'a>(&'a self, requested: Option<&'a Grammar>, conversation: &Conversation) -> Option<&'a Grammar> {
        let of_all = self.params.defaults.grammar.as_ref();
        requested.or(of_all.filter(|_| conversation.tools.is_none()))
    }

    /// Counts the prompt tokens of a conversation. `requested` is the grammar of the request.
    pub fn count(&self, mut conversation: Conversation, requested: Option<&Grammar>) -> ApiResult<usize> {
        conversation.skip_reasoning |= self.grammar(requested, &conversation).is_some();
        Ok(self.prompt(&conversation)?.tokens.len())
    }

    /// Starts a completion of a prompt.
    pub fn submit(&self, mut request: Request) -> Result<UnboundedReceiver<Event>, SubmitError> {
        if !self.special.is_empty() {
            request.shown = self.special.clone();
        }
        request.max_tokens.get_or_insert(self.max_tokens());
        self.scheduler.submit(request)
    }

    /// Compiles the grammar of the request, or the default grammar.
    pub fn constraint(&self, requested: Option<&Grammar>) -> ApiResult<Option<Constraint>> {
        let grammar = requested.or(self.params.defaults.grammar.as_ref());
        let constraint = |grammar| self.constraints.constraint(grammar);
        grammar.map(constraint).transpose()
    }

    /// Returns the reasoning budget of a completion, if it has one or `is_controlled` allows ending the
    /// reasoning later.
    fn budget(&self, prompt: &Prompt, conversation: &Conversation, is_controlled: bool) -> Option<Budget> {
        let n = match conversation.budget {
            Some(n) => usize::try_from(n).ok(),
            None => self.params.reasoning_budget,
        };
        let n = n.or(is_controlled.then_some(usize::MAX));
        if conversation.skip_reasoning || conversation.continues_last {
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

    /// Returns the parser for the output of a prompt.
    fn parser(&self, prompt: &Prompt, tools: Option<&Tools>, splits: bool) -> OutputParser {
        if self.params.raw_output {
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
            calls: calls.map(|(format, tools)| ToolCallParser::new(format.clone(), tools.functions(), tools.parallel)),
        }
    }

    /// Returns true if the model writes messages in Harmony channels.
    fn is_harmony(&self) -> bool {
        self.calls
            .as_ref()
            .is_some_and(|format| format.form == CallSyntax::Harmony)
    }

    /// Returns the grammar of a required tool call. Fails if an argument schema cannot be compiled.
    fn required_call_grammar(&self, tools: Option<&Tools>) -> ApiResult<Option<Grammar>> {
        let Some((format, tools)) = self.calls.as_ref().zip(tools) else {
            return Ok(None);
        };
        let Some((grammar, schemas)) = tools.grammar(format, self.vocab())? else {
            return Ok(None);
        };
        for schema in schemas {
            self.constraints.constraint(&schema)?;
        }
        Ok(Some(grammar))
    }

    /// Returns a constraint that activates when the model starts a tool call. `None` if there are no tools or
    /// a schema cannot be compiled.
    fn auto_tool_constraint(&self, prompt: &Prompt, tools: Option<&Tools>, splits: bool) -> Option<Constraint> {
        let (format, tools) = self.calls.as_ref().zip(tools)?;
        let constraint = |grammar: &Grammar| self.constraints.constraint(grammar).ok();
        let can_be_kept = |schema: &Grammar| constraint(schema).is_some();
        let (grammar, mut trigger) = tools.lazy_grammar(format, self.vocab(), &can_be_kept)?;
        if let Some((open, close)) = prompt.tags.filter(|_| splits && !self.is_harmony()) {
            trigger.starts_in_prefix = prompt.text.trim_end().ends_with(open);
            trigger.prefix = Some((open.to_owned(), close.to_owned()));
        }
        constraint(&grammar)?.lazily(trigger).ok()
    }

    /// Tokenizes a raw prompt, with special tokens.
    pub fn tokens(&self, text: &str) -> Vec<Token> {
        self.vocab().tokenize(text, true, true)
    }

    /// Returns the default token limit of a completion.
    pub fn max_tokens(&self) -> usize {
        self.params.defaults.limit(self.has_reasoning() || self.is_harmony())
    }
}

/// Returns the capabilities of an unloaded model from its file header, named as in Ollama's API.
pub fn capabilities_of(metadata: &Metadata) -> Vec<&'static str> {
    let text = |key: &str| metadata.optional::<&str>(key).ok().flatten();
    let arch = text("general.architecture").unwrap_or_default();
    let is_causal = metadata.optional::<bool>(&format!("{arch}.attention.causal"));
    let source = text("tokenizer.chat_template").unwrap_or_default();
    let template = ChatTemplate::new(source, "", "").ok();
    let tells = |template| ToolFormat::of(template, source).is_some();
    let has_reasoning = |template| reasoning_tags(template, source).is_some();
    capabilities(
        is_causal.ok().flatten() == Some(false),
        template.as_ref().is_some_and(tells),
        template.as_ref().is_some_and(has_reasoning),
    )
}

fn capabilities(encodes: bool, calls: bool, has_reasoning: bool) -> Vec<&'static str> {
    let all = [
        ("completion", !encodes),
        ("embedding", true),
        ("tools", calls),
        ("thinking", has_reasoning),
    ];
    all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}
