//! OpenAI's Chat Completions API: `/v1/chat/completions`.

use axum::Extension;
use axum::extract::State;
use engine::grammar::Grammar;
use serde_json::{Map, Value as Json, json};

use super::completions::MAX_TOP;
use super::logprobs::chat_logprob_json;
use super::reasoning::{FIELDS as REASONING_FIELDS, reasoning};
use super::{
    DONE, StreamUsage, counted, event, failed, finish_reason, progress_json, stream_usage, timings_json, usage_json,
};
use crate::api::{
    ApiError, ApiResult, Field, Fields, GENERATION_FIELDS, STRUCTURE_FIELDS, between, generating, limit, max_tokens,
    structure,
};
use crate::app::{App, Shared};
use crate::chat::messages::{can_continue, continues, messages};
use crate::chat::tools::tools;
use crate::chat::{Choice, ContentReader, Conversation, OutputDelta, Trace, Usage};
use crate::encoding::begin;
use crate::http::{Body, Client, EventEncoder, blocking, json, stream, unique, warned};
use crate::native::{settings_json, verbose_json};
use crate::scheduler::{Finish, MAX_CHOICES, PromptProgress, Request, TokenLogprob};

/// Request fields.
pub const FIELDS: &[Field] = &[
    Field::list(
        "messages",
        "Messages, oldest first: objects with `role` and `content`: a string, or a list of `text`, `image_url`, and `input_audio` parts. Images are `data:` URLs, and audio is base64; the model must be served with a projector (`--mmproj`).",
    ),
    Field::text("model", "Model name; selects a model if the server has several."),
    Field::integer(
        "max_completion_tokens",
        "Maximum completion tokens, including reasoning.",
    ),
    Field::integer("max_tokens", "Older name of `max_completion_tokens`."),
    Field::integer(
        "n_predict",
        "llama-server's name of `max_completion_tokens`; negative: unlimited.",
    ),
    Field::ignored("id_slot", "Ignored; the slot is chosen by its cached prefix."),
    Field::ignored("n_keep", "Ignored; conversations are never truncated."),
    Field::ignored("n_discard", "Ignored; conversations are never truncated."),
    Field::ignored("n_cache_reuse", "Ignored; cached prefixes of any length are reused."),
    Field::integer(
        "n",
        "Number of choices, up to 128 (1). Choices above `--n-parallel` wait for the others.",
    ),
    Field::flag("stream", "Stream the output (false; in Ollama's API true)."),
    Field::object(
        "stream_options",
        "`include_usage`: send a final event with token counts.",
    ),
    Field::flag("logprobs", "Return log probabilities of the output tokens (false)."),
    Field::integer(
        "top_logprobs",
        "Number of alternative tokens with log probabilities, up to 20 (0).",
    ),
    Field::object(
        "chat_template_kwargs",
        "Variables of the chat template, such as `enable_thinking`.",
    ),
    Field::text(
        "reasoning_budget_message",
        "Text appended to reasoning that is cut off (`--reasoning-budget-message`).",
    ),
    Field::text(
        "reasoning_format",
        "`none`: leave reasoning in `content`; `auto` or `deepseek`: return it in `reasoning_content` (auto).",
    ),
    Field::flag(
        "continue_final_message",
        "Continue the last message, which must have role `assistant` (false).",
    ),
    Field::flag(
        "add_generation_prompt",
        "Start a new assistant message; the opposite of `continue_final_message`.",
    ),
    Field::list("tools", "Tool definitions."),
    Field::list(
        "functions",
        "Older form of `tools`; calls are returned in `tool_calls`.",
    ),
    Field::any("function_call", "Older form of `tool_choice`."),
    Field::any(
        "tool_choice",
        "`auto` (default), `none`, `required`, or the function to call. Forced calls match the function's schema.",
    ),
    Field::flag(
        "parallel_tool_calls",
        "Allow several tool calls in one completion (true).",
    ),
    Field::list("modalities", "Must be `[\"text\"]`, the only output modality."),
    Field::text(
        "verbosity",
        "Ignored with a warning unless `medium`; specify the length in the prompt.",
    ),
    Field::ignored(
        "prompt_cache_retention",
        "Ignored; cache entries are evicted when memory is needed.",
    ),
    Field::object(
        "extra_body",
        "Additional fields of this table, which some clients send here.",
    ),
    Field::ignored("user", "Ignored."),
    Field::ignored("metadata", "Ignored."),
    Field::ignored("store", "Ignored; completions are not stored."),
    Field::ignored("service_tier", "Ignored."),
    Field::ignored("safety_identifier", "Ignored."),
    Field::ignored("prompt_cache_key", "Ignored; prefix caching is automatic."),
    Field::ignored(
        "prediction",
        "Ignored; the predicted output does not change the result.",
    ),
];

/// Tables of all request fields.
const TABLES: &[&[Field]] = &[FIELDS, REASONING_FIELDS, GENERATION_FIELDS, STRUCTURE_FIELDS];

/// A parsed Chat Completions request.
struct ParsedRequest {
    request: Request,
    conversation: Conversation,
    grammar: Option<Grammar>,
    /// Whether to separate reasoning from content.
    splits: bool,
    is_stream: bool,
    meta: ResponseMeta,
    /// Names of ignored fields for the warning header.
    ignored_fields: Vec<String>,
}

/// Request settings that affect only the format of the response.
struct ResponseMeta {
    id: String,
    created: u64,
    usage: StreamUsage,
    logprobs: bool,
    n: usize,
    /// Each event of a stream has the times up to that event.
    timings_per_token: bool,
    /// Settings of the request, if the response has them.
    settings: Option<Json>,
}

/// Handles `POST /v1/chat/completions`.
pub async fn chat(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    let read = move |app: &App| {
        let mut read = read(app, client, body)?;
        Ok((std::mem::take(&mut read.conversation), read))
    };
    let start = |app: &App, conversation: Conversation, read: ParsedRequest| {
        let (request, grammar) = (read.request.clone(), read.grammar.as_ref());
        let completion = app.service.start_chat(conversation, request, grammar, read.splits)?;
        Ok((completion, read))
    };
    let (mut completion, read) = begin(&app, client, read, start).await?;
    let meta = read.meta;
    if read.is_stream {
        let trace = completion.trace.as_deref().map(|trace| Trace {
            // Streamed events have already sent the output.
            outputs: Vec::new(),
            prompt: trace.prompt.clone(),
        });
        let encoder = Stream {
            app,
            meta,
            trace,
            usage: Json::Null,
        };
        return Ok(warned(stream(completion, encoder), &read.ignored_fields));
    }
    let (choices, _) = completion.whole().await?;
    let choice = |(index, choice): (usize, Choice)| {
        let mut message = json!({ "role": "assistant", "content": choice.content });
        let n_calls = choice.calls.len();
        if n_calls > 0 {
            let calls = choice.calls.iter().map(|call| call_json(&call.name, &call.arguments));
            message["tool_calls"] = calls.collect::<Vec<_>>().into();
            if choice.content.is_empty() {
                message["content"] = Json::Null;
            }
        }
        if !choice.reasoning.is_empty() {
            message["reasoning_content"] = choice.reasoning.into();
        }
        let logprobs = choice.logprobs.iter().map(|(logprob, _)| logprob);
        json!({
            "index": index,
            "message": message,
            "logprobs": logprobs_json(&app, &meta, logprobs),
            "finish_reason": choice.finish.as_ref().map(|finish| reason(finish, n_calls)),
        })
    };
    let verbose = completion.trace.as_deref().zip(meta.settings.as_ref());
    let verbose = verbose.map(|(trace, settings)| {
        let finish = choices.first().and_then(|choice| choice.finish.as_ref());
        verbose_json(&app.service, trace, settings, finish, &completion.usage)
    });
    let choices: Vec<Json> = choices.into_iter().enumerate().map(choice).collect();
    let mut body = head(&app, &meta, "chat.completion", choices);
    if let Some(verbose) = verbose {
        body["__verbose"] = verbose;
    }
    body["usage"] = usage_json(&completion.usage);
    body["timings"] = timings_json(&completion.usage);
    Ok(warned(json(&body), &read.ignored_fields))
}

/// Handles `POST /v1/chat/completions/input_tokens`.
pub async fn count(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    blocking(move || {
        let read = read(&app, client, body)?;
        counted(&app.service, read.conversation, read.grammar.as_ref())
    })
    .await
}

/// Returns a completion object with the given choices.
fn head(app: &App, meta: &ResponseMeta, object: &str, choices: Vec<Json>) -> Json {
    json!({
        "id": meta.id,
        "object": object,
        "created": meta.created,
        "model": app.service.params.name,
        "system_fingerprint": app.service.params.build,
        "choices": choices,
    })
}

/// Formats a tool call with a unique id.
fn call_json(name: &str, arguments: &str) -> Json {
    json!({
        "id": unique("call_"),
        "type": "function",
        "function": { "name": name, "arguments": arguments },
    })
}

/// Returns the finish reason; a choice with tool calls that was not cut off ends with `tool_calls`.
pub fn reason(finish: &Finish, n_calls: usize) -> &'static str {
    match finish_reason(finish) {
        "stop" if n_calls > 0 => "tool_calls",
        reason => reason,
    }
}

fn logprobs_json<'a>(app: &App, meta: &ResponseMeta, logprobs: impl Iterator<Item = &'a TokenLogprob>) -> Json {
    if !meta.logprobs {
        return Json::Null;
    }
    let content: Vec<Json> = logprobs
        .map(|logprob| chat_logprob_json(app.service.vocab(), logprob))
        .collect();
    json!({ "content": content, "refusal": null })
}

/// Reads the conversation, whether reasoning is split off, and warnings about omitted parts of messages.
pub fn conversation(fields: &mut Fields, mut reader: ContentReader) -> ApiResult<(Conversation, bool, Vec<String>)> {
    let list = fields
        .list("messages")?
        .ok_or_else(|| ApiError::field("messages", "missing; expected a list of messages"))?;
    let mut variables = fields.object("chat_template_kwargs")?.unwrap_or_default();
    let budget = reasoning(fields, &mut variables)?;
    let splits = match fields.text("reasoning_format")?.as_deref() {
        None | Some("auto" | "deepseek") => true,
        Some("none") => false,
        Some(_) => return Err(ApiError::field("reasoning_format", "expected auto, deepseek, or none")),
    };
    let tools = tools(fields)?;
    let is_prefix = list.last().is_some_and(continues);
    let mut conversation = Conversation {
        tools,
        messages: messages(list, &mut reader)?,
        variables,
        continues_last: fields.flag("continue_final_message")?.unwrap_or(is_prefix),
        budget,
        ..Conversation::default()
    };
    conversation.budget_message = fields.text("reasoning_budget_message")?;
    if fields.flag("add_generation_prompt")? == Some(conversation.continues_last) {
        return Err(ApiError::field(
            "add_generation_prompt",
            "must be the opposite of continue_final_message",
        ));
    }
    if conversation.continues_last && !conversation.messages.last().is_some_and(can_continue) {
        return Err(ApiError::field(
            "continue_final_message",
            "the last message must have role assistant",
        ));
    }
    let (media, omitted) = reader.finish();
    conversation.media = media;
    Ok((conversation, splits, omitted))
}

fn read(app: &App, Client(client): Client, body: Map<String, Json>) -> ApiResult<ParsedRequest> {
    let service = &app.service;
    let mut fields = Fields::new(body, TABLES, true)?;
    if let Some(more) = fields.object("extra_body")? {
        fields.merge(Fields::new(more, TABLES, true)?);
    }
    let mut ignored_fields = warnings(&mut fields)?;
    fields.text("model")?;
    let mut request = generating(&mut fields, &service.params.defaults)?;
    request.client = client;
    let asked = max_tokens(&mut fields, &["max_completion_tokens", "max_tokens"], 1)?;
    let id = unique("chatcmpl-");
    request.id = Some(id.as_str().into());
    request.max_tokens = asked.or(fields.integer("n_predict")?.map(limit));
    request.n = between("n", fields.integer("n")?, 1, MAX_CHOICES as i64)?.unwrap_or(1);
    let n_top = between("top_logprobs", fields.integer("top_logprobs")?, 0, MAX_TOP)?;
    match (fields.flag("logprobs")?.unwrap_or(false), n_top) {
        (true, n_top) => request.logprobs = Some(n_top.unwrap_or(0)),
        (false, None | Some(0)) => {}
        (false, Some(_)) => return Err(ApiError::field("top_logprobs", "requires logprobs: true")),
    }
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    let usage = stream_usage(fields.object("stream_options")?)?;
    let grammar = structure(&mut fields)?;
    let (conversation, splits, omitted) = conversation(&mut fields, service.chat.content_reader())?;
    ignored_fields.extend(omitted);
    ignored_fields.extend(fields.finish()?);
    let meta = ResponseMeta {
        id,
        created: service.now(),
        usage,
        logprobs: request.logprobs.is_some(),
        n: request.n,
        timings_per_token: request.diagnostics.timings_per_token,
        settings: request
            .diagnostics
            .verbose
            .then(|| settings_json(service, &request, is_stream)),
    };
    Ok(ParsedRequest {
        request,
        conversation,
        grammar,
        splits,
        is_stream,
        meta,
        ignored_fields,
    })
}

/// Checks fields of OpenAI models that have no equivalent; returns the warnings about ignored ones.
fn warnings(fields: &mut Fields) -> ApiResult<Vec<String>> {
    if fields
        .list("modalities")?
        .is_some_and(|list| list.iter().any(|one| one != "text"))
    {
        return Err(ApiError::field(
            "modalities",
            "unsupported modality: this model outputs text only",
        ));
    }
    let verbosity = fields.text("verbosity")?.filter(|word| word != "medium");
    Ok(verbosity.map(|_| "verbosity".to_owned()).into_iter().collect())
}

struct Stream {
    app: Shared,
    meta: ResponseMeta,
    /// Prompt of a verbose response.
    trace: Option<Trace>,
    /// Value of `usage` in the next event.
    usage: Json,
}

impl Stream {
    fn chunk(&self, choice: usize, delta: Json, logprobs: Json, finish: Option<&str>) -> Json {
        let choice = json!({ "index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        let mut chunk = head(&self.app, &self.meta, "chat.completion.chunk", vec![choice]);
        if self.meta.usage.is_included {
            chunk["usage"] = self.usage.clone();
        }
        chunk
    }

    /// Returns the chunk of a piece of the output; `None` if it has none.
    fn chunk_of(&self, piece: OutputDelta, usage: &Usage) -> Option<Json> {
        Some(match piece {
            OutputDelta::Prompt { .. } | OutputDelta::Failed(_) => return None,
            OutputDelta::Text {
                choice,
                reasoning,
                content,
                logprob,
            } => {
                let mut delta = json!({});
                if !reasoning.is_empty() {
                    delta["reasoning_content"] = reasoning.into();
                }
                if !content.is_empty() || delta.as_object().is_some_and(Map::is_empty) {
                    delta["content"] = content.into();
                }
                let logprobs = match &logprob {
                    Some(logprob) => logprobs_json(&self.app, &self.meta, std::iter::once(logprob)),
                    None => Json::Null,
                };
                self.chunk(choice, delta, logprobs, None)
            }
            OutputDelta::Call { choice, index, name } => {
                let mut meta = call_json(&name, "");
                meta["index"] = index.into();
                self.chunk(choice, json!({ "tool_calls": [meta] }), Json::Null, None)
            }
            OutputDelta::Arguments { choice, index, text } => {
                let meta = json!({ "index": index, "function": { "arguments": text } });
                self.chunk(choice, json!({ "tool_calls": [meta] }), Json::Null, None)
            }
            OutputDelta::End {
                choice,
                finish,
                n_calls,
            } => {
                let mut chunk = self.chunk(choice, json!({}), Json::Null, Some(reason(&finish, n_calls)));
                if let Some((trace, settings)) = self.trace.as_ref().zip(self.meta.settings.as_ref()) {
                    chunk["__verbose"] = verbose_json(&self.app.service, trace, settings, Some(&finish), usage);
                }
                chunk
            }
        })
    }
}

impl EventEncoder for Stream {
    fn progress(&mut self, choice: usize, progress: &PromptProgress) -> String {
        let choice = json!({ "index": choice, "delta": {}, "logprobs": null, "finish_reason": null });
        let mut chunk = head(&self.app, &self.meta, "chat.completion.chunk", vec![choice]);
        chunk["prompt_progress"] = progress_json(progress);
        chunk["timings"] = timings_json(&Usage::of_progress(progress));
        event(&chunk)
    }

    fn begin(&mut self) -> String {
        let role = || json!({ "role": "assistant", "content": null });
        let chunks = (0..self.meta.n).map(|choice| event(&self.chunk(choice, role(), Json::Null, None)));
        chunks.collect()
    }

    fn piece(&mut self, piece: OutputDelta, usage: &Usage) -> String {
        if self.meta.usage.is_continuous {
            self.usage = usage_json(usage);
        }
        if let OutputDelta::Failed(error) = piece {
            return failed(&error);
        }
        let Some(mut chunk) = self.chunk_of(piece, usage) else {
            return String::new();
        };
        if self.meta.timings_per_token {
            chunk["timings"] = timings_json(usage);
        }
        event(&chunk)
    }

    fn end(&mut self, usage: &Usage) -> String {
        if !self.meta.usage.is_included {
            return DONE.to_owned();
        }
        let mut chunk = head(&self.app, &self.meta, "chat.completion.chunk", Vec::new());
        chunk["usage"] = usage_json(usage);
        chunk["timings"] = timings_json(usage);
        event(&chunk) + DONE
    }
}
