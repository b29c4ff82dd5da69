//! Anthropic's Messages API: `/v1/messages` and `/v1/messages/count_tokens`.

use axum::Extension;
use axum::extract::State;
use engine::chat::Message;
use engine::grammar::Grammar;
use serde_json::{Map, Value as Json, json};

use crate::api::{
    ApiError, ApiResult, Field, Fields, GENERATION_FIELDS, STRUCTURE_FIELDS, generating, integer_of, max_tokens,
    structure, text_of,
};
use crate::app::{App, Shared};
use crate::chat::messages::{self, can_continue};
use crate::chat::tools::{ToolChoice, Tools, checked};
use crate::chat::{Call, ContentReader, Conversation, OutputDelta, Usage};
use crate::encoding::begin;
use crate::http::{Body, Client, EventEncoder, blocking, json, stream, unique, warned};
use crate::scheduler::{Finish, Request};

/// Request fields of both Messages routes.
pub const FIELDS: &[Field] = &[
    Field::list(
        "messages",
        "Messages, oldest first: objects with `role` and `content` (a string or a list of text and image blocks). Images have a `base64` source; the model must be served with a projector (`--mmproj`). The output continues a final assistant message.",
    ),
    Field::any("system", "System prompt: a string or a list of text blocks."),
    Field::text("model", "Model name; selects a model if the server has several."),
    Field::integer(
        "max_tokens",
        "Maximum completion tokens, including reasoning. Required.",
    ),
    Field::list(
        "stop_sequences",
        "Strings that end the output; a matching string is not returned.",
    ),
    Field::flag("stream", "Stream the output (false; in Ollama's API true)."),
    Field::object(
        "thinking",
        "`type`: `enabled`, `adaptive`, or `disabled`, if the chat template supports it; `budget_tokens`: maximum reasoning tokens.",
    ),
    Field::list("tools", "Tool definitions."),
    Field::object(
        "tool_choice",
        "`type`: `auto` (default), `none`, `any`, or `tool` with a `name`. Forced calls match the tool's schema.",
    ),
    Field::object(
        "output_config",
        "`effort`: reasoning effort, if the chat template supports it; `format`: `{\"type\": \"json_schema\", \"schema\": …}`.",
    ),
    Field::object(
        "context_management",
        "Ignored with a warning; conversations are never truncated.",
    ),
    Field::object(
        "thread",
        "Ignored with a warning; send the whole conversation with each request.",
    ),
    Field::ignored("metadata", "Ignored."),
    Field::ignored("service_tier", "Ignored."),
    Field::ignored("cache_control", "Ignored; prefix caching is automatic."),
];

struct ResponseMeta {
    id: String,
}

/// Handles `POST /v1/messages`.
pub async fn messages(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    let meta = ResponseMeta { id: unique("msg_") };
    let id = meta.id.as_str().into();
    let read = move |app: &App| {
        let mut read = read(app, body)?;
        read.request.client = client.0;
        read.request.id = Some(id);
        if read.request.max_tokens.is_none() {
            return Err(ApiError::field("max_tokens", "missing; expected a token limit"));
        }
        Ok((std::mem::take(&mut read.conversation), read))
    };
    let start = |app: &App, conversation: Conversation, read: ParsedRequest| {
        let grammar = read.grammar.as_ref();
        let completion = app.service.start_chat(conversation, read.request, grammar, true)?;
        Ok((completion, read.is_stream, read.ignored_fields))
    };
    let (mut completion, is_stream, ignored_fields) = begin(&app, client, read, start).await?;
    if is_stream {
        let encoder = Stream {
            app,
            meta,
            block: None,
            n_blocks: 0,
            finish: None,
            n_calls: 0,
        };
        return Ok(warned(stream(completion, encoder), &ignored_fields));
    }
    let (mut choices, _) = completion.whole().await?;
    let choice = choices.pop().unwrap_or_default();
    let mut content = Vec::new();
    if !choice.reasoning.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": choice.reasoning, "signature": "" }));
    }
    if !choice.content.is_empty() || (content.is_empty() && choice.calls.is_empty()) {
        content.push(json!({ "type": "text", "text": choice.content }));
    }
    content.extend(choice.calls.iter().map(call_json));
    let (reason, sequence) = stopped(choice.finish.as_ref(), choice.calls.len());
    let mut message = head(&app, &meta, content, &completion.usage);
    message["stop_reason"] = reason;
    message["stop_sequence"] = sequence;
    Ok(warned(json(&message), &ignored_fields))
}

/// Handles `POST /v1/messages/count_tokens`.
pub async fn count_tokens(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    blocking(move || {
        let read = read(&app, body)?;
        let n = app.service.count(read.conversation, read.grammar.as_ref())?;
        Ok(json(&json!({ "input_tokens": n })))
    })
    .await
}

/// A parsed Messages request.
struct ParsedRequest {
    conversation: Conversation,
    request: Request,
    grammar: Option<Grammar>,
    is_stream: bool,
    ignored_fields: Vec<String>,
}

fn read(app: &App, body: Map<String, Json>) -> ApiResult<ParsedRequest> {
    let service = &app.service;
    let mut fields = Fields::new(body, &[FIELDS, GENERATION_FIELDS, STRUCTURE_FIELDS], true)?;
    let stops = fields.texts("stop_sequences")?;
    let mut request = generating(&mut fields, &service.params.defaults)?;
    request.stop.extend(stops);
    request.max_tokens = max_tokens(&mut fields, &["max_tokens"], 1)?;
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    let mut grammar = structure(&mut fields)?;
    let OutputConfig {
        effort,
        format,
        ignored,
    } = output(&mut fields)?;
    if format.is_some() && grammar.is_some() {
        return Err(ApiError::field(
            "output_config",
            "cannot be combined with another field that constrains the output",
        ));
    }
    grammar = grammar.or(format);
    let (mut conversation, mut ignored_fields) = conversation(&mut fields, service.chat.content_reader())?;
    let effort = effort.map(|effort| ("reasoning_effort".to_owned(), effort.into()));
    conversation.variables.extend(effort);
    ignored_fields.extend(ignored);
    if fields
        .object("context_management")?
        .is_some_and(|edits| !edits.is_empty())
    {
        ignored_fields.push("context_management".to_owned());
    }
    if fields.object("thread")?.is_some_and(|thread| !thread.is_empty()) {
        ignored_fields.push("thread".to_owned());
    }
    ignored_fields.extend(fields.finish()?);
    Ok(ParsedRequest {
        conversation,
        request,
        grammar,
        is_stream,
        ignored_fields,
    })
}

/// Parsed `output_config`.
struct OutputConfig {
    effort: Option<String>,
    format: Option<Grammar>,
    /// Warnings about unknown keys.
    ignored: Option<String>,
}

/// Parses `output_config`.
fn output(fields: &mut Fields) -> ApiResult<OutputConfig> {
    let mut config = fields.object("output_config")?.unwrap_or_default();
    let wrong = |what: &str| ApiError::field("output_config", what);
    let given = |value: &Json| !value.is_null();
    let effort = match config.remove("effort").filter(given) {
        None => None,
        Some(effort) => Some(text_of(effort).ok_or_else(|| wrong("effort: expected a string"))?),
    };
    let format = match config.remove("format").filter(given) {
        None => None,
        Some(format) => match (format["type"].as_str(), format.get("schema")) {
            (Some("json_schema"), Some(schema)) => Some(Grammar::JsonSchema(schema.to_string())),
            _ => return Err(wrong("format: expected type json_schema with a schema")),
        },
    };
    let is_set = config.values().any(|value| !value.is_null());
    Ok(OutputConfig {
        effort,
        format,
        ignored: if is_set {
            Some("further keys of output_config".to_owned())
        } else {
            None
        },
    })
}

/// Reads the messages, with the system prompt as the first message. Returns warnings about ignored content.
fn conversation(fields: &mut Fields, mut reader: ContentReader) -> ApiResult<(Conversation, Vec<String>)> {
    fields.text("model")?;
    let list = fields
        .list("messages")?
        .ok_or_else(|| ApiError::field("messages", "missing; expected a list of messages"))?;
    let list: Vec<Json> = list.into_iter().flat_map(plain).collect();
    let mut history = messages::messages(list, &mut reader)?;
    let (media, mut ignored_fields) = reader.finish();
    if let Some(system) = fields.take("system") {
        let text = messages::text(instructions(system)).map_err(|error| error.of_field("system"))?;
        if !text.is_empty() {
            history.insert(0, Message::system(text));
        }
    }
    let (mut variables, mut budget) = (Map::new(), None);
    if let Some(thinking) = fields.object("thinking")? {
        match thinking.get("type").and_then(Json::as_str) {
            Some("enabled" | "adaptive") => variables.insert("enable_thinking".to_owned(), true.into()),
            Some("disabled") => variables.insert("enable_thinking".to_owned(), false.into()),
            _ => {
                return Err(ApiError::field(
                    "thinking",
                    "expected type enabled, adaptive, or disabled",
                ));
            }
        };
        let wrong = || ApiError::field("thinking", "budget_tokens: expected a non-negative integer");
        budget = match thinking.get("budget_tokens") {
            None | Some(Json::Null) => None,
            Some(n) => Some(integer_of(n).filter(|&n| n >= 0).ok_or_else(wrong)?),
        };
    }
    let (tools, others) = functions(fields)?;
    ignored_fields.extend(others);
    let conversation = Conversation {
        tools,
        continues_last: history.last().is_some_and(can_continue),
        messages: history,
        media,
        variables,
        budget,
        ..Conversation::default()
    };
    Ok((conversation, ignored_fields))
}

/// Removes Claude Code's billing block from the system prompt. The block differs in every request and would
/// prevent prefix cache hits.
fn instructions(system: Json) -> Json {
    let is_count = |block: &Json| {
        let text = block.get("text").and_then(Json::as_str);
        text.is_some_and(|text| text.starts_with("x-anthropic-billing-header"))
    };
    match system {
        Json::Array(mut blocks) => {
            blocks.retain(|block| !is_count(block));
            Json::Array(blocks)
        }
        other => other,
    }
}

/// Converts a message to OpenAI's format. Tool calls and reasoning become fields of the message; tool results
/// become separate messages before it.
fn plain(mut message: Json) -> Vec<Json> {
    let blocks = match message.get_mut("content") {
        Some(Json::Array(blocks)) => std::mem::take(blocks),
        _ => return vec![message],
    };
    let (mut texts, mut calls, mut all) = (Vec::new(), Vec::new(), Vec::new());
    let mut thought = String::new();
    for block in blocks {
        match block["type"].as_str() {
            // Only Anthropic can decrypt this reasoning.
            Some("redacted_thinking") => {}
            Some("thinking") => thought += block["thinking"].as_str().unwrap_or_default(),
            Some("tool_use") => calls.push(json!({
                "id": block["id"],
                "type": "function",
                "function": { "name": block["name"], "arguments": block["input"] },
            })),
            Some("tool_result") => {
                let content = match &block["content"] {
                    Json::Null => "".into(),
                    content => content.clone(),
                };
                all.push(json!({ "role": "tool", "tool_call_id": block["tool_use_id"], "content": content }));
            }
            _ => texts.push(block),
        }
    }
    if !texts.is_empty() || !calls.is_empty() || all.is_empty() {
        message["content"] = texts.into();
        if !thought.is_empty() {
            message["reasoning_content"] = thought.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        all.push(message);
    }
    all
}

/// Reads the tools that the request declares. Returns a warning about tools that Anthropic's servers run.
fn functions(fields: &mut Fields) -> ApiResult<(Option<Tools>, Option<String>)> {
    let list = fields.list("tools")?.unwrap_or_default();
    let choice = fields.object("tool_choice")?.unwrap_or_default();
    let wrong = || ApiError::field("tool_choice", "expected type auto, none, any, or tool with a name");
    let is_single = choice
        .get("disable_parallel_tool_use")
        .and_then(Json::as_bool)
        .unwrap_or(false);
    let choice_of_tool = match (
        choice.get("type").and_then(Json::as_str),
        choice.get("name").and_then(Json::as_str),
    ) {
        (None, None) if choice.is_empty() => ToolChoice::Auto,
        (Some("auto"), _) => ToolChoice::Auto,
        (Some("any"), _) => ToolChoice::Required,
        (Some("tool"), Some(name)) => ToolChoice::Named(name.to_owned()),
        (Some("none"), _) => return Ok((None, None)),
        _ => return Err(wrong()),
    };
    let kind = |tool: &Json| tool.get("type").and_then(Json::as_str).map(str::to_owned);
    let (list, others): (Vec<Json>, Vec<Json>) = list
        .into_iter()
        .partition(|tool| kind(tool).is_none_or(|kind| kind == "custom" || kind == "function"));
    let function = |tool: Json| match tool.get("type").and_then(Json::as_str) {
        None | Some("custom") => {
            let fields = [
                ("name", "name"),
                ("description", "description"),
                ("input_schema", "parameters"),
            ];
            let given = fields
                .iter()
                .filter_map(|(from, to)| Some(((*to).to_owned(), tool.get(*from)?.clone())));
            json!({ "type": "function", "function": given.collect::<Map<String, Json>>() })
        }
        Some(_) => tool,
    };
    let word = |kind: String| -> String {
        let is_word = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        kind.chars().take(32).filter(is_word).collect()
    };
    let others: Vec<String> = others.iter().filter_map(kind).map(word).collect();
    let warning = if others.is_empty() {
        None
    } else {
        Some(format!("tools of types {}", others.join(" ")))
    };
    let tools = checked(list.into_iter().map(function).collect(), choice_of_tool, !is_single)?;
    Ok((tools, warning))
}

/// Formats a tool call as a content block.
fn call_json(call: &Call) -> Json {
    let input = serde_json::from_str::<Json>(&call.arguments).unwrap_or_else(|_| json!({}));
    json!({ "type": "tool_use", "id": unique("toolu_"), "name": call.name, "input": input })
}

/// Returns Anthropic's stop reason and the stop sequence that matched.
fn stopped(finish: Option<&Finish>, n_calls: usize) -> (Json, Json) {
    match finish {
        None => (Json::Null, Json::Null),
        Some(Finish::Model(_) | Finish::Stop(_)) if n_calls > 0 => ("tool_use".into(), Json::Null),
        Some(Finish::Model(_)) => ("end_turn".into(), Json::Null),
        Some(Finish::Stop(text)) => ("stop_sequence".into(), text.as_str().into()),
        Some(Finish::Limit) => ("max_tokens".into(), Json::Null),
        Some(Finish::ContextFull) => ("model_context_window_exceeded".into(), Json::Null),
    }
}

fn usage_json(usage: &Usage) -> Json {
    json!({
        "input_tokens": usage.n_prompt - usage.n_cached,
        "cache_read_input_tokens": usage.n_cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.n_generated,
    })
}

fn head(app: &App, meta: &ResponseMeta, content: Vec<Json>, usage: &Usage) -> Json {
    json!({
        "id": meta.id,
        "type": "message",
        "role": "assistant",
        "model": app.service.params.name,
        "content": content,
        "stop_reason": null,
        "stop_sequence": null,
        "usage": usage_json(usage),
    })
}

/// Formats an error for Anthropic's clients. Clients recognize this wording of a context overflow and shorten
/// the conversation.
pub fn error_json(error: &ApiError, request_id: &str) -> Json {
    let kind = match (error.status.as_u16(), error.kind) {
        (413, _) => "request_too_large",
        (500 | 501, _) => "api_error",
        (503, _) => "overloaded_error",
        _ if error.too_long.is_some() => "invalid_request_error",
        (_, kind) => kind,
    };
    let message = match error.too_long.as_deref() {
        Some((n_prompt, n_ctx)) => format!("prompt is too long: {n_prompt} tokens > {n_ctx} maximum"),
        None => error.message.clone(),
    };
    json!({ "type": "error", "error": { "type": kind, "message": message }, "request_id": request_id })
}

fn event(data: &Json) -> String {
    let name = data["type"].as_str().unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n")
}

struct Stream {
    app: Shared,
    meta: ResponseMeta,
    /// Type of the content block that is open in the stream.
    block: Option<&'static str>,
    n_blocks: usize,
    finish: Option<Finish>,
    n_calls: usize,
}

impl Stream {
    /// Opens a new content block for a tool call.
    fn call(&mut self, name: &str) -> String {
        let output = self.close();
        let block = call_json(&Call {
            name: name.to_owned(),
            arguments: String::new(),
        });
        self.block = Some("tool_use");
        output + &event(&json!({ "type": "content_block_start", "index": self.n_blocks, "content_block": block }))
    }

    fn arguments(&self, text: &str) -> String {
        let delta = json!({ "type": "input_json_delta", "partial_json": text });
        event(&json!({ "type": "content_block_delta", "index": self.n_blocks, "delta": delta }))
    }

    /// Appends to a content block. Opens a block if the last block has a different type.
    fn delta(&mut self, kind: &'static str, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let mut output = String::new();
        if self.block != Some(kind) {
            output += &self.close();
            let block = match kind {
                "thinking" => json!({ "type": kind, "thinking": "", "signature": "" }),
                _ => json!({ "type": kind, "text": "" }),
            };
            output += &event(&json!({ "type": "content_block_start", "index": self.n_blocks, "content_block": block }));
            self.block = Some(kind);
        }
        let delta = match kind {
            "thinking" => json!({ "type": "thinking_delta", "thinking": text }),
            _ => json!({ "type": "text_delta", "text": text }),
        };
        output + &event(&json!({ "type": "content_block_delta", "index": self.n_blocks, "delta": delta }))
    }

    fn close(&mut self) -> String {
        if self.block.take().is_none() {
            return String::new();
        }
        self.n_blocks += 1;
        event(&json!({ "type": "content_block_stop", "index": self.n_blocks - 1 }))
    }
}

impl EventEncoder for Stream {
    fn pause(&self) -> &'static str {
        "event: ping\ndata: {\"type\": \"ping\"}\n\n"
    }

    fn piece(&mut self, piece: OutputDelta, usage: &Usage) -> String {
        match piece {
            // The event is sent after prefill, because `usage` includes the cached tokens.
            OutputDelta::Prompt { .. } => {
                event(&json!({ "type": "message_start", "message": head(&self.app, &self.meta, Vec::new(), usage) }))
            }
            OutputDelta::Text { reasoning, content, .. } => {
                self.delta("thinking", &reasoning) + &self.delta("text", &content)
            }
            OutputDelta::Call { name, .. } => self.call(&name),
            OutputDelta::Arguments { text, .. } => self.arguments(&text),
            OutputDelta::End { finish, n_calls, .. } => {
                (self.finish, self.n_calls) = (Some(finish), n_calls);
                self.close()
            }
            OutputDelta::Failed(error) => event(&error_json(&error, "")),
        }
    }

    fn end(&mut self, usage: &Usage) -> String {
        if self.finish.is_none() {
            return String::new();
        }
        let (reason, sequence) = stopped(self.finish.as_ref(), self.n_calls);
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        event(&json!({ "type": "message_delta", "delta": delta, "usage": usage_json(usage) }))
            + &event(&json!({ "type": "message_stop" }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn billing_block_is_removed_from_system_prompt() {
        let counted = json!([
            {"type": "text", "text": "x-anthropic-billing-header: cch=1234;"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ]);
        assert_eq!(messages::text(instructions(counted)).unwrap(), "Be brief.");
        assert_eq!(messages::text(instructions(json!("Be brief."))).unwrap(), "Be brief.");
    }
}
