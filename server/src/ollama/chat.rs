//! Ollama's `/api/chat` and `/api/generate`, which stream one JSON object per line.

use std::time::Instant;

use axum::Extension;
use axum::extract::State;
use engine::chat::Message;
use engine::grammar::Grammar;
use serde_json::{Map, Value as Json, json};

use super::{KeepAlive, UnloadsModel, error_json, now};
use crate::api::{
    ApiError, ApiResult, Field, FieldType, Fields, GENERATION_FIELDS, KnownFields, between, generating, limit,
};
use crate::app::{App, Shared};
use crate::chat::messages::messages;
use crate::chat::tools::{ToolChoice, Tools, checked};
use crate::chat::{Call, Choice, ContentReader, Conversation, OutputDelta, OutputParser, OutputStream, Usage};
use crate::encoding::begin;
use crate::http::{Body, Client, EventEncoder, json, stream, warned};
use crate::infill::InfillPrompt;
use crate::openai::{chat_logprob_json, finish_reason};
use crate::scheduler::{Finish, Request, TokenLogprob};
use crate::service::ModelService;

/// Fields of `/api/chat`.
pub const CHAT_FIELDS: &[Field] = &[
    Field::list(
        "messages",
        "Messages, oldest first: objects with `role`, `content`, and `images` (a list of images or audio files as base64). If empty, the server only confirms that the model is loaded.",
    ),
    Field::list("tools", "Tool definitions."),
    MODEL,
    STREAM,
    FORMAT,
    OPTIONS,
    THINK,
    LOGPROBS,
    TOP_LOGPROBS,
    KEEP_ALIVE,
];

/// Fields of `/api/generate`.
pub const GENERATE_FIELDS: &[Field] = &[
    Field::text(
        "prompt",
        "User prompt. If empty, the server only confirms that the model is loaded.",
    ),
    Field::text("system", "System prompt."),
    Field::text(
        "suffix",
        "Text after the completion; requires a fill-in-the-middle model.",
    ),
    Field::list(
        "images",
        "Images or audio before the prompt, as base64; the model must be served with a projector (`--mmproj`).",
    ),
    Field::flag("raw", "Continue the prompt without applying the chat template (false)."),
    MODEL,
    STREAM,
    FORMAT,
    OPTIONS,
    THINK,
    LOGPROBS,
    TOP_LOGPROBS,
    KEEP_ALIVE,
];

const LOGPROBS: Field = Field::flag("logprobs", "Return log probabilities of the output tokens (false).");
const TOP_LOGPROBS: Field = Field::integer(
    "top_logprobs",
    "Number of alternative tokens with log probabilities, up to 20 (0).",
);
const MODEL: Field = Field::text("model", "Model name; selects a model if the server has several.");
const STREAM: Field = Field::flag("stream", "Stream the output (false; in Ollama's API true).");
const FORMAT: Field = Field::any("format", "`json`, or a JSON schema that the output must match.");
const OPTIONS: Field = Field::object(
    "options",
    "`num_predict` and the shared generation fields. Loading options (`num_ctx`, …) are ignored, unknown ones with a warning.",
);
const THINK: Field = Field::any(
    "think",
    "Enable reasoning (boolean) or set its effort (string), if the chat template supports it.",
);
const KEEP_ALIVE: Field = Field::any(
    "keep_alive",
    "Time until the idle model is unloaded, such as `5m` or seconds; 0 unloads it now. Only with several models or `--sleep-idle-seconds`.",
);

/// Options in addition to the shared generation fields.
const OPTION_FIELDS: &[Field] = &[
    Field::integer("num_predict", "Maximum completion tokens; negative: unlimited."),
    ignored("num_ctx"),
    ignored("num_keep"),
    ignored("num_batch"),
    ignored("num_gpu"),
    ignored("main_gpu"),
    ignored("num_thread"),
    ignored("num_gqa"),
    ignored("use_mmap"),
    ignored("use_mlock"),
    ignored("low_vram"),
    ignored("numa"),
];

/// Maximum value of `repeat_last_n`.
const MAX_LAST_N: usize = 1 << 20;

const fn ignored(name: &'static str) -> Field {
    Field::ignored(name, "Ignored; the model is already loaded.")
}

/// Route whose response format is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interface {
    Chat,
    Generate,
}

struct ResponseMeta {
    interface: Interface,
    /// The model is unloaded after this request.
    unloads: bool,
    start: Instant,
}

/// A request that the scheduler has accepted.
struct StartedRequest {
    /// Running completion; `None` if the request only checks that the model is loaded.
    completion: Option<OutputStream>,
    is_stream: bool,
    /// Names of ignored options for the warning header.
    ignored_fields: Vec<String>,
}

/// Work that a request requires.
enum Step {
    /// No work; the response confirms that the model is loaded.
    Load,
    /// Continue the prompt of the request.
    Continue,
    /// Answer a conversation.
    Chat,
}

/// Parsed fields that both routes share, before the completion is started.
struct CommonFields {
    started: StartedRequest,
    step: Step,
    request: Request,
    grammar: Option<Grammar>,
    /// Chat template variables that control reasoning.
    variables: Map<String, Json>,
}

/// Handles `POST /api/chat`.
pub async fn chat(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    unloads: Option<Extension<UnloadsModel>>,
    Body(body): Body,
) -> ApiResult {
    let read = move |app: &App| read_chat(app, client, body);
    let started = begin(&app, client, read, CommonFields::start).await?;
    run(app, Interface::Chat, started, unloads.is_some()).await
}

/// Handles `POST /api/generate`.
pub async fn generate(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    unloads: Option<Extension<UnloadsModel>>,
    Body(body): Body,
) -> ApiResult {
    let read = move |app: &App| read_generate(app, client, body);
    let started = begin(&app, client, read, CommonFields::start).await?;
    run(app, Interface::Generate, started, unloads.is_some()).await
}

async fn run(app: Shared, interface: Interface, started: StartedRequest, unloads: bool) -> ApiResult {
    let ignored_fields = started.ignored_fields.clone();
    let meta = ResponseMeta {
        interface,
        unloads,
        start: Instant::now(),
    };
    Ok(warned(respond(app, meta, started).await?, &ignored_fields))
}

async fn respond(app: Shared, meta: ResponseMeta, started: StartedRequest) -> ApiResult {
    let Some(mut completion) = started.completion else {
        let mut loaded = piece(&app, &meta, "", "");
        loaded["done"] = true.into();
        loaded["done_reason"] = if meta.unloads { "unload" } else { "load" }.into();
        return Ok(json(&loaded));
    };
    if started.is_stream {
        return Ok(stream(
            completion,
            Stream {
                app,
                meta,
                call: None,
                finish: None,
            },
        ));
    }
    let (mut choices, _) = completion.whole().await?;
    let Choice {
        content,
        reasoning,
        calls,
        finish,
        logprobs,
    } = choices.pop().unwrap_or_default();
    let mut whole = piece(&app, &meta, &content, &reasoning);
    if !calls.is_empty() {
        whole["message"]["tool_calls"] = calls.iter().map(call_json).collect::<Vec<_>>().into();
    }
    if !logprobs.is_empty() {
        let one = |(logprob, _): &(TokenLogprob, usize)| chat_logprob_json(app.service.vocab(), logprob);
        whole["logprobs"] = logprobs.iter().map(one).collect::<Vec<_>>().into();
    }
    finished(&mut whole, &meta, finish.as_ref(), &completion.usage);
    Ok(json(&whole))
}

fn read_chat(app: &App, client: Client, body: Map<String, Json>) -> ApiResult<(Conversation, CommonFields)> {
    let service = &app.service;
    let mut fields = Fields::new(body, &[CHAT_FIELDS], false)?;
    let mut common = common(&mut fields, service, client)?;
    let tools = checked(fields.list("tools")?.unwrap_or_default(), ToolChoice::Auto, true)?;
    let mut list = fields.list("messages")?.unwrap_or_default();
    common.started.ignored_fields.extend(fields.finish()?);
    if list.is_empty() {
        return Ok((Conversation::default(), common));
    }
    for message in list.iter_mut().filter_map(Json::as_object_mut) {
        if let Some(thought) = message.remove("thinking") {
            message.insert("reasoning_content".to_owned(), thought);
        }
    }
    let mut reader = service.chat.content_reader();
    let messages = messages(list, &mut reader)?;
    Ok(common.into_chat(messages, reader, tools))
}

fn read_generate(app: &App, client: Client, body: Map<String, Json>) -> ApiResult<(Conversation, CommonFields)> {
    let service = &app.service;
    let mut fields = Fields::new(body, &[GENERATE_FIELDS], false)?;
    let mut common = common(&mut fields, service, client)?;
    let (prompt, system) = (fields.text("prompt")?.unwrap_or_default(), fields.text("system")?);
    let suffix = fields.text("suffix")?.filter(|text| !text.is_empty());
    let mut reader = service.chat.content_reader();
    reader.enter("images", "user");
    let marks = reader.list(fields.take("images").unwrap_or_default());
    let marks = marks.map_err(|error| error.of_field("images"))?;
    let is_raw = fields.flag("raw")?.unwrap_or(false);
    common.started.ignored_fields.extend(fields.finish()?);
    if prompt.is_empty() && suffix.is_none() && marks.is_empty() {
        return Ok((Conversation::default(), common));
    }
    if is_raw || suffix.is_some() || service.chat.template().is_empty() {
        if !marks.is_empty() {
            let text = if is_raw || suffix.is_some() {
                "cannot be combined with `raw` or `suffix`"
            } else {
                "the model has no chat template; send the images to /api/chat"
            };
            return Err(ApiError::field("images", text));
        }
        common.request.constraint = service.constraint(common.grammar.as_ref())?;
        common.request.prompt = match suffix {
            None => service.tokens(&prompt),
            Some(behind) => InfillPrompt {
                before: prompt,
                behind,
                ..InfillPrompt::default()
            }
            .prompt(service)?,
        };
        common.step = Step::Continue;
        return Ok((Conversation::default(), common));
    }
    let mut conversation: Vec<Message> = system
        .filter(|text| !text.is_empty())
        .map(Message::system)
        .into_iter()
        .collect();
    let prompt = reader.text(prompt.into()).map_err(|error| error.of_field("prompt"))?;
    conversation.push(Message::user(marks + &prompt));
    Ok(common.into_chat(conversation, reader, None))
}

impl CommonFields {
    /// Returns the conversation of a chat completion, and the other fields.
    fn into_chat(
        mut self,
        messages: Vec<Message>,
        reader: ContentReader,
        tools: Option<Tools>,
    ) -> (Conversation, CommonFields) {
        let (media, omitted) = reader.finish();
        self.started.ignored_fields.extend(omitted);
        self.step = Step::Chat;
        let conversation = Conversation {
            messages,
            media,
            variables: std::mem::take(&mut self.variables),
            tools,
            ..Conversation::default()
        };
        (conversation, self)
    }

    /// Starts the completion.
    fn start(app: &App, conversation: Conversation, mut fields: CommonFields) -> ApiResult<StartedRequest> {
        let service = &app.service;
        fields.started.completion = match fields.step {
            Step::Load => None,
            Step::Continue => {
                let events = service.submit(fields.request)?;
                Some(OutputStream::new(vec![(events, 1)], &OutputParser::none()))
            }
            Step::Chat => Some(service.start_chat(conversation, fields.request, fields.grammar.as_ref(), true)?),
        };
        Ok(fields.started)
    }
}

/// Reads the fields that both routes share.
fn common(fields: &mut Fields, service: &ModelService, client: Client) -> ApiResult<CommonFields> {
    fields.text("model")?;
    KeepAlive::check(fields)?;
    let is_stream = fields.flag("stream")?.unwrap_or(true);
    let grammar = match fields.take("format") {
        None => None,
        Some(Json::String(format)) if format.is_empty() => None,
        Some(Json::String(format)) if format == "json" => Some(Grammar::JsonSchema("{\"type\":\"object\"}".to_owned())),
        Some(Json::Object(schema)) => Some(Grammar::JsonSchema(Json::Object(schema).to_string())),
        Some(_) => return Err(ApiError::field("format", "expected \"json\" or a JSON schema")),
    };
    let mut options = fields.object("options")?.unwrap_or_default();
    // In Ollama's API, -1 is the size of the context.
    if let Some(n) = options.get_mut("repeat_last_n").filter(|n| **n == -1) {
        *n = service.n_ctx().min(MAX_LAST_N).into();
    }
    let (mut options, ignored_fields) = of_options(options)?;
    let mut request = generating(&mut options, &service.params.defaults)?;
    request.max_tokens = options.integer("num_predict")?.map(limit);
    let n_top = between("top_logprobs", fields.integer("top_logprobs")?, 0, 20)?;
    if fields.flag("logprobs")?.unwrap_or(false) {
        request.logprobs = Some(n_top.unwrap_or(0));
    }
    options.finish()?;
    request.client = client.0;
    let started = StartedRequest {
        completion: None,
        is_stream,
        ignored_fields,
    };
    Ok(CommonFields {
        started,
        step: Step::Load,
        request,
        grammar,
        variables: thinking(fields)?,
    })
}

/// Splits the options into known fields and ignored names. Clients send options of other versions and
/// servers, which Ollama ignores.
fn of_options(mut options: Map<String, Json>) -> ApiResult<(Fields, Vec<String>)> {
    // Ignored fields of llama-server are unknown to Ollama.
    let is_ignored = |name: &str| {
        GENERATION_FIELDS
            .iter()
            .any(|field| field.name == name && field.form == FieldType::Ignored)
    };
    let mut ignored_fields = Vec::new();
    options.retain(|name, _| {
        if is_ignored(name) {
            ignored_fields.push(format!("option {name}"));
            return false;
        }
        true
    });
    let known = KnownFields {
        tables: &[OPTION_FIELDS, GENERATION_FIELDS],
        sampling: true,
    };
    let (fields, others) = Fields::lenient(options, known, "option")?;
    ignored_fields.extend(others);
    Ok((fields, ignored_fields))
}

/// Reads the chat template variables that control reasoning.
fn thinking(fields: &mut Fields) -> ApiResult<Map<String, Json>> {
    let mut variables = Map::new();
    match fields.take("think") {
        None => {}
        Some(Json::Bool(has_reasoning)) => _ = variables.insert("enable_thinking".to_owned(), has_reasoning.into()),
        Some(Json::String(effort)) => {
            variables.insert("enable_thinking".to_owned(), true.into());
            variables.insert("reasoning_effort".to_owned(), effort.into());
        }
        Some(_) => {
            return Err(ApiError::field(
                "think",
                "expected true, false, or an effort such as \"high\"",
            ));
        }
    }
    Ok(variables)
}

/// Returns one object of the stream.
fn piece(app: &App, meta: &ResponseMeta, content: &str, reasoning: &str) -> Json {
    let mut piece = json!({ "model": app.service.params.name, "created_at": now() });
    match meta.interface {
        Interface::Chat => {
            piece["message"] = json!({ "role": "assistant", "content": content });
            if !reasoning.is_empty() {
                piece["message"]["thinking"] = reasoning.into();
            }
        }
        Interface::Generate => {
            piece["response"] = content.into();
            if !reasoning.is_empty() {
                piece["thinking"] = reasoning.into();
            }
        }
    }
    piece["done"] = false.into();
    piece
}

/// Formats a tool call; its arguments are an object.
fn call_json(call: &Call) -> Json {
    let arguments = serde_json::from_str::<Json>(&call.arguments).unwrap_or_else(|_| json!({}));
    json!({ "function": { "name": call.name, "arguments": arguments } })
}

/// Adds finish reason, token counts, and times in nanoseconds to the last object.
fn finished(piece: &mut Json, meta: &ResponseMeta, finish: Option<&Finish>, usage: &Usage) {
    let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    piece["done"] = true.into();
    piece["done_reason"] = finish.map(finish_reason).into();
    piece["total_duration"] = nanos(meta.start.elapsed()).into();
    piece["load_duration"] = 0.into();
    piece["prompt_eval_count"] = usage.n_prompt.into();
    piece["prompt_eval_duration"] = nanos(usage.t_prompt).into();
    piece["eval_count"] = usage.n_generated.into();
    piece["eval_duration"] = nanos(usage.t_generated).into();
}

fn line(value: &Json) -> String {
    format!("{value}\n")
}

struct Stream {
    app: Shared,
    meta: ResponseMeta,
    /// Open tool call, sent when it is complete.
    call: Option<Call>,
    finish: Option<Finish>,
}

impl Stream {
    fn called(&mut self) -> String {
        let Some(call) = self.call.take() else {
            return String::new();
        };
        let mut meta = piece(&self.app, &self.meta, "", "");
        meta["message"]["tool_calls"] = vec![call_json(&call)].into();
        line(&meta)
    }
}

impl EventEncoder for Stream {
    fn content_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn pause(&self) -> &'static str {
        ""
    }

    fn piece(&mut self, meta: OutputDelta, _: &Usage) -> String {
        match meta {
            OutputDelta::Prompt { .. } => String::new(),
            OutputDelta::Text {
                content,
                reasoning,
                logprob,
                ..
            } => {
                let mut part = piece(&self.app, &self.meta, &content, &reasoning);
                if let Some(logprob) = logprob {
                    part["logprobs"] = vec![chat_logprob_json(self.app.service.vocab(), &logprob)].into();
                }
                self.called() + &line(&part)
            }
            OutputDelta::Call { name, .. } => {
                let before = self.called();
                self.call = Some(Call {
                    name,
                    arguments: String::new(),
                });
                before
            }
            OutputDelta::Arguments { text, .. } => {
                self.call.iter_mut().for_each(|call| call.arguments += &text);
                String::new()
            }
            OutputDelta::End { finish, .. } => {
                self.finish = Some(finish);
                self.called()
            }
            OutputDelta::Failed(error) => line(&error_json(&error)),
        }
    }

    fn end(&mut self, usage: &Usage) -> String {
        if self.finish.is_none() {
            return String::new();
        }
        let mut last = piece(&self.app, &self.meta, "", "");
        finished(&mut last, &self.meta, self.finish.as_ref(), usage);
        line(&last)
    }
}
