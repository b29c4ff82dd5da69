//! Parses a Responses API request: fields, and input items to chat messages.

use engine::grammar::Grammar;
use serde_json::{Map, Value as Json, json};

use super::tools::{self, ToolKinds, grouped, text_arguments};
use crate::api::{ApiError, ApiResult, Field, Fields, GENERATION_FIELDS, between, generating, max_tokens, shown};
use crate::app::App;
use crate::chat::Conversation;
use crate::chat::messages::messages;
use crate::http::{Client, unique};
use crate::openai::MAX_TOP;
use crate::scheduler::Request;

/// Request fields.
pub const FIELDS: &[Field] = &[
    Field::any(
        "input",
        "User prompt, or a list of items: messages, tool calls (`function_call`, `custom_tool_call`) and their results (`function_call_output`, `custom_tool_call_output`). Messages and results may have `input_image` parts with `data:` URLs and `input_audio` parts with base64, if the model is served with a projector (`--mmproj`). An `item_reference` stands for an item of a stored response.",
    ),
    Field::text("model", "Model name; selects a model if the server has several."),
    Field::text("instructions", "System prompt for this response only."),
    Field::text(
        "previous_response_id",
        "Continue a stored response. The server keeps the last 512 responses in memory.",
    ),
    Field::flag("store", "Store the response (true)."),
    Field::integer("max_output_tokens", "Maximum completion tokens, including reasoning."),
    Field::flag("stream", "Stream the output (false; in Ollama's API true)."),
    Field::object(
        "text",
        "`format`: an object with `type` `text`, `json_object`, or `json_schema` with a `schema`. `verbosity` other than `medium` is ignored with a warning.",
    ),
    Field::object(
        "reasoning",
        "`effort`: reasoning effort, if the chat template supports it; `none` disables reasoning.",
    ),
    Field::list(
        "tools",
        "Tools: functions, functions grouped in a `namespace`, and `custom` tools with string input. Other types are ignored with a warning.",
    ),
    Field::any(
        "tool_choice",
        "`auto` (default), `none`, `required`, or `{\"type\": \"function\", \"name\": …}`.",
    ),
    Field::flag(
        "parallel_tool_calls",
        "Allow several tool calls in one completion (true).",
    ),
    Field::flag("background", "Must be false; background responses are not supported."),
    Field::ignored("truncation", "Ignored; a prompt that does not fit is rejected."),
    Field::list(
        "include",
        "`message.output_text.logprobs`: return log probabilities of the output tokens. Others are ignored.",
    ),
    Field::integer(
        "top_logprobs",
        "Number of alternative tokens with log probabilities, up to 20 (0).",
    ),
    Field::object("metadata", "Metadata, returned unchanged in the response."),
    Field::ignored("stream_options", "Ignored."),
    Field::ignored("max_tool_calls", "Ignored; the client runs the tools."),
    Field::ignored("user", "Ignored."),
    Field::ignored("safety_identifier", "Ignored."),
    Field::ignored("prompt_cache_key", "Ignored; prefix caching is automatic."),
    Field::ignored(
        "prompt_cache_retention",
        "Ignored; cache entries are evicted when memory is needed.",
    ),
    Field::ignored("service_tier", "Ignored."),
    Field::ignored("client_metadata", "Ignored."),
];

/// A parsed Responses request.
pub struct ParsedRequest {
    /// Whether to stream the response.
    pub is_stream: bool,
    /// Whether to store the response.
    pub is_stored: bool,
    /// Maximum number of completion tokens.
    pub max_tokens: Option<usize>,
    /// Whether each event of a stream has the times up to that event.
    pub timings_per_token: bool,
    /// Messages of the conversation, without instructions.
    pub history: Vec<Json>,
    /// Input items of the request, each with an id.
    pub input: Vec<Json>,
    /// Request fields repeated in the response.
    pub echo: Json,
    /// Names of ignored fields for the warning header.
    pub ignored_fields: Vec<String>,
    /// Tools whose calls are not plain function calls.
    pub kinds: ToolKinds,
}

/// Parses a Responses request.
pub fn read(
    app: &App,
    client: Client,
    body: Map<String, Json>,
) -> ApiResult<(ParsedRequest, Conversation, Request, Option<Grammar>)> {
    let echo = echo(&body);
    let mut fields = Fields::new(body, &[FIELDS, GENERATION_FIELDS], true)?;
    fields.text("model")?;
    fields.object("metadata")?;
    let mut request = generating(&mut fields, &app.service.params.defaults)?;
    request.max_tokens = max_tokens(&mut fields, &["max_output_tokens"], 1)?;
    check_background(&mut fields)?;
    let mut history = match fields.text("previous_response_id")? {
        None => Vec::new(),
        Some(id) => {
            let unknown = || ApiError {
                code: Some("previous_response_not_found"),
                ..ApiError::field(
                    "previous_response_id",
                    "no stored response with this id; it may have expired",
                )
            };
            app.responses.get(client, &id).ok_or_else(unknown)?.history
        }
    };
    let input = items(fields.take("input"), |id| app.responses.item(client, id))?;
    history.extend(messages_of(&input)?);
    let mut ignored_fields = logprobs(&mut fields, &mut request)?;
    let text = fields.object("text")?.unwrap_or_default();
    if text
        .get("verbosity")
        .is_some_and(|word| !word.is_null() && word != "medium")
    {
        ignored_fields.push("text.verbosity".to_owned());
    }
    let grammar = format(text)?;
    let variables = reasoning(fields.object("reasoning")?)?;
    let read = tools::read(&mut fields)?;
    ignored_fields.extend(read.ignored_fields);
    let instructions = fields.text("instructions")?.filter(|text| !text.is_empty());
    let mut request_fields = ParsedRequest {
        is_stream: fields.flag("stream")?.unwrap_or(false),
        is_stored: fields.flag("store")?.unwrap_or(true),
        max_tokens: None,
        timings_per_token: false,
        echo,
        ignored_fields,
        kinds: read.kinds,
        history,
        input,
    };
    request_fields.ignored_fields.extend(fields.finish()?);
    let system = instructions.map(|text| json!({ "role": "system", "content": text }));
    let mut reader = app.service.chat.content_reader();
    let history = system.into_iter().chain(request_fields.history.iter().cloned());
    let messages = messages(history.collect(), &mut reader)?;
    let (media, omitted) = reader.finish();
    request_fields.ignored_fields.extend(omitted);
    let conversation = Conversation {
        messages,
        media,
        variables,
        tools: read.tools,
        ..Conversation::default()
    };
    Ok((request_fields, conversation, request, grammar))
}

fn check_background(fields: &mut Fields) -> ApiResult<()> {
    match fields.flag("background")? {
        Some(true) => Err(ApiError::field(
            "background",
            "background responses are not supported; expected false",
        )),
        _ => Ok(()),
    }
}

/// Returns the request fields that the response repeats, with defaults for absent fields.
fn echo(body: &Map<String, Json>) -> Json {
    let defaults = json!({
        "instructions": null, "metadata": {}, "parallel_tool_calls": true, "previous_response_id": null,
        "reasoning": { "effort": null, "summary": null }, "store": true, "temperature": null, "text": { "format": { "type": "text" } },
        "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": null, "truncation": "disabled", "background": false, "user": null,
    });
    let mut echo = defaults;
    if let Json::Object(fields) = &mut echo {
        for (name, value) in fields {
            if let Some(given) = body.get(name).filter(|given| !given.is_null()) {
                *value = given.clone();
            }
        }
    }
    echo
}

/// Reads the fields of log probabilities into the request. Returns warnings.
fn logprobs(fields: &mut Fields, request: &mut Request) -> ApiResult<Vec<String>> {
    let n_top = between("top_logprobs", fields.integer("top_logprobs")?, 0, MAX_TOP)?;
    let include = fields.list("include")?.unwrap_or_default();
    if include.iter().any(|part| part == "message.output_text.logprobs") {
        request.logprobs = Some(n_top.unwrap_or(0));
    } else if n_top.is_some_and(|n| n > 0) {
        return Ok(vec!["top_logprobs without include".to_owned()]);
    }
    Ok(Vec::new())
}

/// Reads the input items. Each gets a type and an id, and references are replaced by the items that `stored`
/// returns.
fn items(input: Option<Json>, stored: impl Fn(&str) -> Option<Json>) -> ApiResult<Vec<Json>> {
    let list = match input {
        None => {
            let why = "missing; expected a string or a list of items";
            return Err(ApiError::field("input", why));
        }
        Some(Json::String(text)) => {
            let part = json!({ "type": "input_text", "text": text });
            vec![json!({ "type": "message", "role": "user", "content": [part] })]
        }
        Some(Json::Array(list)) => list,
        Some(other) => {
            let why = format_args!("expected a string or a list of items, found {}", shown(&other));
            return Err(ApiError::field("input", why));
        }
    };
    let mut items = Vec::with_capacity(list.len());
    for (i, mut item) in list.into_iter().enumerate() {
        let wrong = |what: &str| ApiError::field(&format!("input[{i}]"), what);
        if !item.is_object() {
            return Err(wrong("expected an object"));
        }
        if item["type"] == "item_reference" {
            let id = item["id"]
                .as_str()
                .ok_or_else(|| wrong("an item_reference has no id"))?;
            let unknown =
                "no stored response has an item with this id; it may have expired, or its request set `store` to false";
            item = stored(id).ok_or_else(|| wrong(unknown))?;
        }
        if item["type"].is_null() {
            item["type"] = "message".into();
        }
        if item["id"].is_null() {
            item["id"] = unique("item_").into();
        }
        items.push(item);
    }
    Ok(items)
}

/// Converts input items to chat messages.
fn messages_of(items: &[Json]) -> ApiResult<Vec<Json>> {
    let mut history = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        add(&mut history, item.clone()).map_err(|what| ApiError::field(&format!("input[{i}]"), what))?;
    }
    // Reasoning that is not followed by a message or a call is dropped.
    history.retain(|message| !is_thought(message));
    Ok(history)
}

fn add(history: &mut Vec<Json>, mut item: Json) -> Result<(), String> {
    let kind = item["type"].as_str().unwrap_or("message").to_owned();
    match kind.as_str() {
        "message" => {
            if !item.is_object() || item.get("role").is_none() {
                return Err("expected a message with role and content".to_owned());
            }
            let (role, content) = (item["role"].take(), item["content"].take());
            // Reasoning and calls before the text belong to the same message.
            let can_continue =
                |last: &&mut Json| role == "assistant" && last["role"] == "assistant" && last["content"] == "";
            match history.last_mut().filter(can_continue) {
                Some(begun) => begun["content"] = content,
                None => history.push(json!({ "role": role, "content": content })),
            }
        }
        "function_call" => {
            let (Some(name), Some(arguments)) = (item["name"].as_str(), item["arguments"].as_str()) else {
                return Err("a function_call has no name or no arguments".to_owned());
            };
            let name = match item["namespace"].as_str() {
                Some(namespace) => grouped(namespace, name),
                None => name.to_owned(),
            };
            add_call(history, &item["call_id"], &name, arguments);
        }
        "custom_tool_call" => {
            let (Some(name), Json::String(_)) = (item["name"].as_str(), &item["input"]) else {
                return Err("a custom_tool_call has no name or no input".to_owned());
            };
            add_call(history, &item["call_id"], name, &text_arguments(&item["input"]));
        }
        "function_call_output" | "custom_tool_call_output" => {
            history.push(json!({ "role": "tool", "tool_call_id": item["call_id"], "content": item["output"].take() }));
        }
        // Reasoning belongs to the message or call that follows.
        "reasoning" => {
            let parts = item["content"].as_array().map(Vec::as_slice).unwrap_or_default();
            let thought: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            if !thought.is_empty() {
                history.push(json!({ "role": "assistant", "content": "", "reasoning_content": thought }));
            }
        }
        _ => {
            let kind: String = kind.chars().take(32).collect();
            return Err(format!(
                "unsupported item type {kind:?}: expected message, function_call, custom_tool_call, their outputs, or reasoning"
            ));
        }
    }
    Ok(())
}

/// Adds a tool call to the preceding assistant message, or as a separate message.
fn add_call(history: &mut Vec<Json>, id: &Json, name: &str, arguments: &str) {
    let function = json!({ "name": name, "arguments": arguments });
    let call = json!({ "id": id, "type": "function", "function": function });
    match history.last_mut().filter(|last| last["role"] == "assistant") {
        Some(last) => match last["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(call),
            None => last["tool_calls"] = json!([call]),
        },
        None => history.push(json!({ "role": "assistant", "content": "", "tool_calls": [call] })),
    }
}

/// Returns true if a message has reasoning but neither content nor tool calls.
fn is_thought(message: &Json) -> bool {
    message.get("reasoning_content").is_some() && message["content"] == "" && message.get("tool_calls").is_none()
}

/// Returns the grammar of the `text.format` field.
fn format(mut text: Map<String, Json>) -> ApiResult<Option<Grammar>> {
    let Some(format) = text.remove("format").filter(|format| !format.is_null()) else {
        return Ok(None);
    };
    match (format["type"].as_str(), format.get("schema")) {
        (Some("text"), _) => Ok(None),
        (Some("json_object"), _) => Ok(Some(Grammar::JsonSchema("{\"type\":\"object\"}".to_owned()))),
        (Some("json_schema"), Some(schema)) => Ok(Some(Grammar::JsonSchema(schema.to_string()))),
        _ => Err(ApiError::field(
            "text",
            "format: expected type text, json_object, or json_schema with a schema",
        )),
    }
}

/// Converts the `reasoning` field to chat template variables.
fn reasoning(given: Option<Map<String, Json>>) -> ApiResult<Map<String, Json>> {
    let mut variables = Map::new();
    match given.and_then(|mut given| given.remove("effort")) {
        None | Some(Json::Null) => {}
        Some(Json::String(effort)) => {
            if effort == "none" {
                variables.insert("enable_thinking".to_owned(), false.into());
            }
            variables.insert("reasoning_effort".to_owned(), effort.into());
        }
        Some(other) => {
            return Err(ApiError::field(
                "reasoning",
                format_args!("effort: expected a string, found {}", shown(&other)),
            ));
        }
    }
    Ok(variables)
}
