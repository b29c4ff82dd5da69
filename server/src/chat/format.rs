//! Format of the prompts and of the output of one model.

use std::borrow::Cow;
use std::sync::Arc;

use engine::chat::{Budget, ChatError, Marks, Message, ReasoningSplit, ReasoningTags};
use engine::context::MediaRows;
use engine::grammar::{Constraint, Grammar, Trigger};
use engine::model::{Medium, Model};
use engine::sample::Token;
use engine::vocab::{TokenAttr, Vocab};
use llama::parts::{IMAGE_MARK, PromptTemplate};
use serde_json::{Map, Value as Json, json};
use tracing::warn;

use super::conversation::Conversation;
use super::media_files::{MediaFile, MediaFormat};
use super::parser::OutputParser;
use super::parts::ContentReader;
use super::tools::{
    CallSyntax, HARMONY_FINAL, Harmony, Messages, ToolCallParser, ToolFormat, Tools, as_text, generic_format,
    harmony_document, with_written_calls,
};
use crate::api::{ApiError, ApiResult};
use crate::constraints::Constraints;

/// Target of warnings; the command line prints events of targets with this prefix.
const LOG: &str = "llama::chat";

/// Settings of chats with a model.
#[derive(Clone, Debug, Default)]
pub struct ChatParams {
    /// Chat template that overrides the template of the model file. It is Jinja source, or the name of a template of
    /// the file or of a built-in template.
    pub template: Option<String>,
    /// Special tokens in the content of messages are parsed; by default they are text.
    pub parses_content: bool,
    /// Default variables of the chat template.
    pub variables: Map<String, Json>,
    /// Output is not split into reasoning, content, and tool calls.
    pub raw_output: bool,
    /// Reasoning is split off from content.
    pub split_reasoning: bool,
    /// Default reasoning budget in tokens; `None`: unlimited.
    pub reasoning_budget: Option<usize>,
    /// Text appended to reasoning that is cut off at the budget.
    pub reasoning_message: String,
    /// Sizes and limits of media; `None` if the model reads text only.
    pub media: Option<MediaFormat>,
}

/// Rendered and tokenized prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub text: String,
    pub tokens: Vec<Token>,
    /// Media whose rows are in the prompt.
    pub media: Vec<Arc<MediaRows>>,
    /// Reasoning tags that the completion may contain.
    pub tags: Option<ReasoningTags>,
}

/// Chat template, reasoning tags, and tool-call syntax of a model.
pub struct ChatFormat {
    params: ChatParams,
    model: Arc<Model>,
    template: Option<PromptTemplate>,
    /// The template is ChatML, because the file has none.
    is_fallback: bool,
    /// Format of requests with tools, if the file has a separate template for them.
    with_tools: Option<Box<ChatFormat>>,
    /// Problem of the template with tools.
    tool_problem: Option<String>,
    tags: Option<ReasoningTags>,
    /// Syntax of tool calls.
    calls: Option<Arc<ToolFormat>>,
    /// True if the chat template renders tools; otherwise a system instruction describes them.
    template_has_tools: bool,
    /// Control tokens that delimit tool calls and reasoning.
    delimiters: Arc<[Token]>,
}

impl ChatFormat {
    /// Detects the format of a model from its chat template. A model that generates text, but has no template,
    /// gets ChatML.
    ///
    /// # Errors
    /// Returns an error if the template is invalid.
    pub fn new(model: Arc<Model>, params: ChatParams) -> Result<ChatFormat, ChatError> {
        let (vocab, metadata) = (model.vocab(), model.metadata());
        let template = match &params.template {
            Some(given) => PromptTemplate::given(given, metadata, vocab),
            None => PromptTemplate::of_model(metadata, vocab),
        };
        let encodes = model.arch().encoder || model.bidirectional();
        let is_fallback = matches!(template, Err(ChatError::NoTemplate)) && !encodes;
        let template = match template {
            Err(ChatError::NoTemplate) if is_fallback => Some(PromptTemplate::chatml(vocab)?),
            Err(ChatError::NoTemplate) => None,
            template => Some(template?),
        };
        if is_fallback {
            warn!(
                target: LOG,
                "the model has no chat template (tokenizer.chat_template); chats use ChatML; set another with --chat-template"
            );
        }
        let mut template = template.map(|template| template.parsing_content(params.parses_content));
        let for_tools = template.as_mut().and_then(PromptTemplate::take_for_tools);
        let with_tools = for_tools.map(|template| ChatFormat::of(model.clone(), params.clone(), Some(template)));
        let mut format = ChatFormat::of(model, params, template);
        format.is_fallback = is_fallback;
        format.with_tools = with_tools.map(Box::new);
        if let Some(problem) = format.tool_problem() {
            warn!(
                target: LOG,
                "the chat template supports tools, but {problem}; tools are described by general instructions instead"
            );
        }
        Ok(format)
    }

    fn of(model: Arc<Model>, params: ChatParams, template: Option<PromptTemplate>) -> ChatFormat {
        let vocab = model.vocab();
        let tags = template.as_ref().and_then(PromptTemplate::tags);
        let detected = template.as_ref().map(|t| ToolFormat::detect(t.template(), t.source()));
        let (calls, tool_problem) = match detected {
            None => (None, None),
            Some(Ok(calls)) => (calls, None),
            Some(Err(problem)) => (None, Some(problem)),
        };
        let template_has_tools = calls.is_some();
        let calls = calls.or_else(|| template.as_ref().map(|_| generic_format()));
        // Their parser separates reasoning.
        let has_messages = calls.as_ref().is_some_and(|calls| calls.messages.is_some());
        let tags = if has_messages { None } else { tags };
        let mut marks = calls.as_ref().map(ToolFormat::marks).unwrap_or_default();
        if let Some((open, close)) = tags {
            marks += open;
            marks += close;
        }
        let delimiters = vocab.tokenize(&marks, false, true);
        let delimiters = delimiters.into_iter().filter(|&token| is_control(vocab, token));
        ChatFormat {
            delimiters: delimiters.collect(),
            params,
            template,
            is_fallback: false,
            with_tools: None,
            tool_problem,
            tags,
            calls: calls.map(Arc::new),
            template_has_tools,
            model,
        }
    }

    /// Returns the format of requests with or without tools.
    fn of_request(&self, tools: Option<&Tools>) -> &ChatFormat {
        match (&self.with_tools, tools) {
            (Some(format), Some(_)) => format,
            _ => self,
        }
    }

    /// Returns a reader of messages for the model.
    pub fn content_reader(&self) -> ContentReader {
        ContentReader::new(self.params.media.clone())
    }

    /// Returns sizes and limits of the media that the model reads; `None` if the model reads text only.
    pub fn media(&self) -> Option<&MediaFormat> {
        self.params.media.as_ref()
    }

    /// Returns true if the model reads this medium in prompts.
    pub fn reads(&self, medium: Medium) -> bool {
        self.media().is_some_and(|format| format.layout.reads(medium))
    }

    /// Returns the problem of the template with tools, if general instructions replace its own format.
    pub fn tool_problem(&self) -> Option<&str> {
        let format = self.with_tools.as_deref().unwrap_or(self);
        format.tool_problem.as_deref()
    }

    /// Returns the Jinja source of the chat template, or an empty string if the model has none.
    pub fn template(&self) -> &str {
        match &self.template {
            Some(template) if !self.is_fallback => template.source(),
            _ => "",
        }
    }

    /// Returns true if the chat template renders tools and the format of its tool calls is known.
    pub fn supports_tools(&self) -> bool {
        self.with_tools.as_deref().unwrap_or(self).template_has_tools
    }

    /// Returns true if the chat template has reasoning tags.
    pub fn has_reasoning_tags(&self) -> bool {
        self.tags.is_some()
    }

    /// Returns true if the model writes messages in Harmony channels.
    pub fn is_harmony(&self) -> bool {
        self.calls
            .as_ref()
            .is_some_and(|format| format.form == CallSyntax::Harmony)
    }

    /// Returns the header of an answer if the model writes reasoning, content, and calls as separate messages.
    fn answer_header(&self) -> Option<&'static str> {
        let format = self.calls.as_ref()?;
        match format.messages {
            Some(messages) => Some(messages.answer),
            None => self.is_harmony().then_some(HARMONY_FINAL),
        }
    }

    /// Returns true if the model writes reasoning, content, and calls as separate messages.
    pub fn has_messages(&self) -> bool {
        self.answer_header().is_some()
    }

    /// Renders and tokenizes the prompt of a conversation.
    pub fn prompt(&self, conversation: &Conversation) -> ApiResult<Prompt> {
        self.of_request(conversation.tools.as_ref()).own_prompt(conversation)
    }

    /// Returns the error of a request whose messages the template cannot render. A template that cannot render any
    /// message is an error of the server.
    fn render_error(&self, template: &PromptTemplate, error: &ChatError) -> ApiError {
        let is_broken = |rendered: Result<String, ChatError>| matches!(rendered, Err(ChatError::Render { .. }));
        let message = [Message::user("a")];
        let fails = |variables: &Map<String, Json>| is_broken(template.template().render(&message, true, variables));
        // Some templates need tools.
        let mut with_tools = self.params.variables.clone();
        let tool = json!({"type": "function", "function": {"name": "f", "description": "-", "parameters": {"type": "object"}}});
        with_tools.insert("tools".to_owned(), json!([tool]));
        if matches!(error, ChatError::Render { .. }) && fails(&self.params.variables) && fails(&with_tools) {
            return ApiError::server(error.to_string());
        }
        ApiError::invalid(error.to_string())
    }

    fn own_prompt(&self, conversation: &Conversation) -> ApiResult<Prompt> {
        let Some(template) = &self.template else {
            return Err(ApiError::invalid(
                "this model has no chat template and cannot process messages; use /v1/completions",
            ));
        };
        let mut variables = self.params.variables.clone();
        variables.extend(conversation.variables.clone());
        let tools = conversation.tools.as_ref();
        if let Some(tools) = tools
            && self.template_has_tools
        {
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
        let as_text = match &self.calls {
            Some(format) if self.template_has_tools => with_written_calls(messages, format),
            _ => as_text(messages, tools),
        };
        let messages = as_text.as_deref().unwrap_or(messages);
        let vocab = self.model.vocab();
        let rendered = template.rendered(vocab, messages, !conversation.without_answer, &variables);
        let mut rendered = rendered.map_err(|e| self.render_error(template, &e))?;
        if conversation.skip_reasoning {
            if tools.is_none()
                && let Some(header) = self.answer_header()
            {
                rendered.push(header);
            }
            template.close_reasoning(&mut rendered);
        }
        rendered.push_content(prefix, template, vocab);
        let files = conversation.media.iter();
        let media: Vec<_> = files.map(MediaFile::encoded).collect::<ApiResult<_>>()?;
        let prompt = match &self.params.media {
            Some(format) if !media.is_empty() => {
                check_marks(rendered.text(), media.len(), format)?;
                format.layout.tokenized(vocab, Some(template), rendered, &media)
            }
            _ => template.tokenized(vocab, rendered),
        };
        let splits = self.params.split_reasoning && prefix.is_empty();
        Ok(Prompt {
            text: prompt.text,
            tokens: prompt.tokens,
            media,
            tags: if splits { self.tags } else { None },
        })
    }

    /// Returns the parser for the output of a prompt. `splits` enables splitting off reasoning.
    pub fn parser(&self, prompt: &Prompt, tools: Option<&Tools>, splits: bool) -> OutputParser {
        self.of_request(tools).own_parser(prompt, tools, splits)
    }

    fn own_parser(&self, prompt: &Prompt, tools: Option<&Tools>, splits: bool) -> OutputParser {
        if self.params.raw_output {
            return OutputParser::none();
        }
        if self.is_harmony() {
            let functions = tools.map_or_else(|| Arc::new([]) as Arc<[_]>, Tools::functions);
            let parallel = tools.is_none_or(|tools| tools.parallel);
            return OutputParser::Harmony(Harmony::new(functions, parallel, &prompt.text));
        }
        let calls = self.calls.as_ref().zip(tools);
        let calls = calls.map(|(format, tools)| ToolCallParser::new(format.clone(), tools.functions(), tools.parallel));
        if let Some(marks) = self.calls.as_ref().and_then(|format| format.messages) {
            return OutputParser::Messages(Messages::new(marks, calls, &prompt.text));
        }
        OutputParser::Tags {
            reasoning: ReasoningSplit::new(if splits { prompt.tags } else { None }, &prompt.text),
            calls,
        }
    }

    /// Returns the reasoning budget of a completion, if it has one or `is_controlled` allows ending the
    /// reasoning later.
    pub fn budget(&self, prompt: &Prompt, conversation: &Conversation, is_controlled: bool) -> Option<Budget> {
        let format = self.of_request(conversation.tools.as_ref());
        if conversation.skip_reasoning || conversation.continues_last {
            return None;
        }
        let n = match conversation.budget {
            Some(n) => usize::try_from(n).ok(),
            None => self.params.reasoning_budget,
        };
        let n = match n {
            None if is_controlled => usize::MAX,
            n => n?,
        };
        let marks = if format.is_harmony() {
            Marks::Channels {
                calls: conversation.tools.is_some(),
            }
        } else {
            Marks::Tags(format.tags?)
        };
        let message = conversation.budget_message.as_ref();
        let message = message.unwrap_or(&self.params.reasoning_message);
        Some(Budget::new(marks, &prompt.text, n, message))
    }

    /// Returns the control tokens whose text the parser of a completion needs; `None` if the completion has
    /// neither tool calls nor reasoning. The output omits other control tokens.
    pub fn delimiters(&self, prompt: &Prompt, tools: Option<&Tools>, budget: Option<&Budget>) -> Option<Arc<[Token]>> {
        self.of_request(tools).own_delimiters(prompt, tools, budget)
    }

    fn own_delimiters(&self, prompt: &Prompt, tools: Option<&Tools>, budget: Option<&Budget>) -> Option<Arc<[Token]>> {
        if self.has_messages() || tools.is_some() || prompt.tags.is_some() || budget.is_some() {
            Some(self.delimiters.clone())
        } else {
            None
        }
    }

    /// Returns the grammar of a required tool call; `None` if the request does not require a call. With `thinks`,
    /// the model may reason before the call.
    ///
    /// # Errors
    /// Returns an error if an argument schema cannot be compiled.
    pub fn required_call_grammar(
        &self,
        tools: Option<&Tools>,
        thinks: bool,
        constraints: &Constraints,
    ) -> ApiResult<Option<Grammar>> {
        let Some((format, tools)) = self.of_request(tools).calls.as_ref().zip(tools) else {
            return Ok(None);
        };
        let Some((grammar, schemas)) = tools.grammar(format, self.model.vocab(), thinks)? else {
            return Ok(None);
        };
        for (name, schema) in schemas {
            constraints.constraint(&schema).map_err(|error| ApiError {
                message: format!("tools: the parameters of {name:?}: {}", error.message),
                param: Some("tools".to_owned()),
                ..error
            })?;
        }
        Ok(Some(grammar))
    }

    /// Returns the grammar of output that is a document, or calls if the request has tools. With `thinks`, the model
    /// may reason before. Reasoning between tags is not part of the grammar; see [`ChatFormat::behind_reasoning`].
    ///
    /// # Errors
    /// Returns an error if the document cannot be compiled, or the calls cannot be part of a grammar.
    pub fn document_grammar<'a>(
        &self,
        tools: Option<&Tools>,
        document: &'a Grammar,
        thinks: bool,
        constraints: &Constraints,
    ) -> ApiResult<Cow<'a, Grammar>> {
        let format = self.of_request(tools);
        let vocab = self.model.vocab();
        let Some((calls, tools)) = format.calls.as_ref().zip(tools) else {
            return Ok(if thinks && format.is_harmony() {
                Cow::Owned(harmony_document(vocab, document))
            } else {
                Cow::Borrowed(document)
            });
        };
        let can_be_compiled = |schema: &Grammar| constraints.constraint(schema).is_ok();
        let both = tools.calls_or_document(calls, vocab, &can_be_compiled, document, thinks);
        let both = both.ok_or_else(|| {
            ApiError::field(
                "tools",
                "cannot be combined with a response format: this model's calls of these tools cannot be described by a grammar",
            )
        })?;
        match constraints.constraint(&both) {
            Ok(_) => Ok(Cow::Owned(both)),
            // The error of the document alone contains the position in the document.
            Err(error) => Err(constraints.constraint(document).err().unwrap_or(error)),
        }
    }

    /// Returns true if the model may reason before it answers a conversation.
    pub fn can_reason(&self, conversation: &Conversation) -> bool {
        let variable = |name: &str| {
            let own = conversation.variables.get(name);
            own.or_else(|| self.params.variables.get(name))
        };
        let is_disabled = variable("enable_thinking") == Some(&Json::Bool(false))
            || variable("reasoning_effort").is_some_and(|effort| effort == "none")
            || conversation.budget.or(self.params.reasoning_budget.map(|n| n as i64)) == Some(0);
        let is_split = self.params.split_reasoning && !self.params.raw_output && !conversation.continues_last;
        let format = self.of_request(conversation.tools.as_ref());
        is_split && !is_disabled && (format.tags.is_some() || format.is_harmony())
    }

    /// Restricts a constraint to the output after the reasoning, if the prompt allows reasoning.
    pub fn behind_reasoning(&self, prompt: &Prompt, constraint: Constraint) -> ApiResult<Constraint> {
        let Some((open, close)) = prompt.tags else {
            return Ok(constraint);
        };
        let text = prompt.text.trim_end();
        if text.ends_with(close) {
            return Ok(constraint);
        }
        let trigger = Trigger {
            prefix: Some((open.to_owned(), close.to_owned())),
            starts_in_prefix: text.ends_with(open),
            covers_rest: true,
            ..Trigger::default()
        };
        constraint.lazily(trigger).map_err(|e| ApiError::server(e.to_string()))
    }

    /// Returns a constraint that activates when the model starts a tool call. `None` if there are no tools or
    /// a schema cannot be compiled.
    pub fn voluntary_call_constraint(
        &self,
        prompt: &Prompt,
        tools: Option<&Tools>,
        splits: bool,
        constraints: &Constraints,
    ) -> Option<Constraint> {
        let chat = self.of_request(tools);
        let (format, tools) = chat.calls.as_ref().zip(tools)?;
        let can_be_compiled = |schema: &Grammar| constraints.constraint(schema).is_ok();
        let (grammar, mut trigger) = tools.lazy_grammar(format, self.model.vocab(), &can_be_compiled)?;
        if let Some((open, close)) = prompt.tags
            && splits
            && !chat.has_messages()
        {
            trigger.starts_in_prefix = prompt.text.trim_end().ends_with(open);
            trigger.prefix = Some((open.to_owned(), close.to_owned()));
        }
        constraints.constraint(&grammar).ok()?.lazily(trigger).ok()
    }
}

/// Checks that the chat template has kept all media.
fn check_marks(text: &str, n_media: usize, format: &MediaFormat) -> ApiResult<()> {
    let media = format.layout.media();
    match text.matches(IMAGE_MARK).count() {
        n if n == n_media => Ok(()),
        n => Err(ApiError::field(
            "messages",
            format_args!("the messages have {n_media} {media}, but the chat template puts {n} into the prompt"),
        )),
    }
}

/// Returns true for control tokens that do not end the output.
pub fn is_control(vocab: &Vocab, token: Token) -> bool {
    vocab.attr(token).intersects(TokenAttr::CONTROL) && !vocab.is_eog(token)
}
