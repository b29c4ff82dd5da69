//! The interface of Anthropic: `/v1/messages` and `/v1/messages/count_tokens`.

use axum::Extension;
use axum::extract::State;
use engine::chat::Message;
use engine::grammar::Grammar;
use serde_json::{Map, Value as Json, json};

use crate::answer::{Piece, Usage};
use crate::api::{
    ApiError, ApiResult, Field, Fields, Form, GENERATING, STRUCTURE, generating, integer_of, max_tokens, structure,
    text_of,
};
use crate::http::{App, Body, Client, Shared, Teller, blocking, json, stream, unique, warned};
use crate::messages::{self, is_begun};
use crate::scheduler::{Finish, Request};
use crate::served::Conversation;
use crate::tools::{Call, ToolChoice, Tools, checked};

/// The fields of both.
pub const FIELDS: &[Field] = &[
    Field {
        name: "messages",
        form: Form::List,
        doc: "What was said, oldest first: objects with `role` and `content`, a text or a list of blocks that are text. A last one of the assistant's is the beginning of the answer.",
    },
    Field {
        name: "system",
        form: Form::Any,
        doc: "Instructions: a text, or a list of blocks that are text.",
    },
    Field {
        name: "model",
        form: Form::Text,
        doc: "The model; there is one, which answers whatever name is given.",
    },
    Field {
        name: "max_tokens",
        form: Form::Integer,
        doc: "Most tokens of the answer, what is thought included.",
    },
    Field {
        name: "stop_sequences",
        form: Form::List,
        doc: "Texts that end an answer before them.",
    },
    Field {
        name: "stream",
        form: Form::Flag,
        doc: "Tell the answer as it comes, as events.",
    },
    Field {
        name: "thinking",
        form: Form::Object,
        doc: "`{\"type\": …}` of `enabled`, `adaptive` or `disabled`, where the template lets one choose; `budget_tokens`: most tokens that are thought.",
    },
    Field {
        name: "tools",
        form: Form::List,
        doc: "Functions that may be called, in the form that the model's template writes calls in.",
    },
    Field {
        name: "tool_choice",
        form: Form::Object,
        doc: "`{\"type\": …}` of `auto` (default), `none`, `any`, or `tool` with a `name`; arguments keep to its schema.",
    },
    Field {
        name: "output_config",
        form: Form::Object,
        doc: "`effort`: how much to think, where the template knows of it; `format`: `{\"type\": \"json_schema\", \"schema\": …}`.",
    },
    Field {
        name: "context_management",
        form: Form::Object,
        doc: "Left out, which the header `warning` tells: nothing of a conversation is ever cut.",
    },
    Field {
        name: "metadata",
        form: Form::Ignored,
        doc: "Who asks.",
    },
    Field {
        name: "service_tier",
        form: Form::Ignored,
        doc: "There is one.",
    },
    Field {
        name: "cache_control",
        form: Form::Ignored,
        doc: "Whatever was computed is found.",
    },
];

struct Told {
    id: String,
}

/// Answers a conversation.
pub async fn messages(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    let of_app = app.clone();
    let told = Told { id: unique("msg_") };
    let id = told.id.as_str().into();
    let begin = move || {
        let Read {
            conversation,
            mut request,
            grammar,
            is_stream,
            left_out,
        } = read(&of_app, body)?;
        request.client = client.0;
        request.id = Some(id);
        if request.max_tokens.is_none() {
            return Err(ApiError::field("max_tokens", "there is none"));
        }
        let answer = of_app.served.answer(conversation, request, grammar.as_ref(), true)?;
        Ok((answer, is_stream, left_out))
    };
    let (mut answer, is_stream, left_out) = blocking(begin).await?;
    if is_stream {
        let telling = Stream {
            app,
            told,
            block: None,
            n_blocks: 0,
            finish: None,
            n_calls: 0,
        };
        return Ok(warned(stream(answer, telling), &left_out));
    }
    let (mut choices, _) = answer.whole().await?;
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
    let mut message = head(&app, &told, content, &answer.usage);
    message["stop_reason"] = reason;
    message["stop_sequence"] = sequence;
    Ok(warned(json(&message), &left_out))
}

/// Tells how many tokens a conversation's prompt has.
pub async fn count_tokens(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    blocking(move || {
        let read = read(&app, body)?;
        let n = app.served.count(read.conversation, read.grammar.as_ref())?;
        Ok(json(&json!({ "input_tokens": n })))
    })
    .await
}

/// A request as it was read.
struct Read {
    conversation: Conversation,
    request: Request,
    grammar: Option<Grammar>,
    is_stream: bool,
    left_out: Vec<String>,
}

fn read(app: &App, body: Map<String, Json>) -> ApiResult<Read> {
    let served = &app.served;
    let mut fields = Fields::new(body, &[FIELDS, GENERATING, STRUCTURE], true)?;
    let stops = fields.texts("stop_sequences")?;
    let mut request = generating(&mut fields, &served.params.defaults)?;
    request.stop.extend(stops);
    request.max_tokens = max_tokens(&mut fields, &["max_tokens"], 1)?;
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    let mut grammar = structure(&mut fields)?;
    let (effort, format) = output(&mut fields)?;
    if format.is_some() && grammar.is_some() {
        return Err(ApiError::field(
            "output_config",
            "the answer is told what to be by another field too",
        ));
    }
    grammar = grammar.or(format);
    let mut conversation = conversation(&mut fields)?;
    let effort = effort.map(|effort| ("reasoning_effort".to_owned(), effort.into()));
    conversation.variables.extend(effort);
    let managed = fields
        .object("context_management")?
        .is_some_and(|edits| !edits.is_empty());
    fields.finish()?;
    Ok(Read {
        conversation,
        request,
        grammar,
        is_stream,
        left_out: managed.then(|| "context_management".to_owned()).into_iter().collect(),
    })
}

/// How much to think, and what the answer has to be.
fn output(fields: &mut Fields) -> ApiResult<(Option<String>, Option<Grammar>)> {
    let mut config = fields.object("output_config")?.unwrap_or_default();
    let wrong = |what: &str| ApiError::field("output_config", what);
    let given = |value: &Json| !value.is_null();
    let effort = match config.remove("effort").filter(given) {
        None => None,
        Some(effort) => Some(text_of(effort).ok_or_else(|| wrong("effort is no text"))?),
    };
    let format = match config.remove("format").filter(given) {
        None => None,
        Some(format) => match (format["type"].as_str(), format.get("schema")) {
            (Some("json_schema"), Some(schema)) => Some(Grammar::JsonSchema(schema.to_string())),
            _ => return Err(wrong("expected a format of the type json_schema with a schema")),
        },
    };
    match config.keys().next() {
        None => Ok((effort, format)),
        Some(_) => Err(wrong("expected effort and format")),
    }
}

/// What was said, with the instructions as the first message.
fn conversation(fields: &mut Fields) -> ApiResult<Conversation> {
    fields.text("model")?;
    let list = fields
        .list("messages")?
        .ok_or_else(|| ApiError::field("messages", "there are none"))?;
    let mut said = messages::messages(list.into_iter().flat_map(plain).collect())?;
    if let Some(system) = fields.take("system") {
        let text = messages::text(instructions(system)).map_err(|what| ApiError::field("system", what))?;
        if !text.is_empty() {
            said.insert(0, Message::system(text));
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
                    "expected a type of enabled, adaptive or disabled",
                ));
            }
        };
        let wrong = || ApiError::field("thinking", "budget_tokens is no whole number");
        budget = match thinking.get("budget_tokens") {
            None | Some(Json::Null) => None,
            Some(n) => Some(integer_of(n).filter(|&n| n >= 0).ok_or_else(wrong)?),
        };
    }
    let tools = functions(fields)?;
    Ok(Conversation {
        tools,
        goes_on: said.last().is_some_and(is_begun),
        messages: said,
        variables,
        budget,
        ..Conversation::default()
    })
}

/// Instructions without the block that counts requests: it is different each time, and would let nothing be found that was computed before.
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

/// A message as OpenAI has it: calls and what was thought beside the text, and results as messages of their own before it.
fn plain(mut message: Json) -> Vec<Json> {
    let blocks = match message.get_mut("content") {
        Some(Json::Array(blocks)) => std::mem::take(blocks),
        _ => return vec![message],
    };
    let (mut texts, mut calls, mut all) = (Vec::new(), Vec::new(), Vec::new());
    let mut thought = String::new();
    for block in blocks {
        match block["type"].as_str() {
            // Nobody but who wrote them can read those.
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

/// Functions that may be called.
fn functions(fields: &mut Fields) -> ApiResult<Option<Tools>> {
    let list = fields.list("tools")?.unwrap_or_default();
    let choice = fields.object("tool_choice")?.unwrap_or_default();
    let wrong = || ApiError::field("tool_choice", "expected a type of auto, none, any, or tool with a name");
    let is_single = choice
        .get("disable_parallel_tool_use")
        .and_then(Json::as_bool)
        .unwrap_or(false);
    let wanted = match (
        choice.get("type").and_then(Json::as_str),
        choice.get("name").and_then(Json::as_str),
    ) {
        (None, None) if choice.is_empty() => ToolChoice::Auto,
        (Some("auto"), _) => ToolChoice::Auto,
        (Some("any"), _) => ToolChoice::Required,
        (Some("tool"), Some(name)) => ToolChoice::Named(name.to_owned()),
        (Some("none"), _) => return Ok(None),
        _ => return Err(wrong()),
    };
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
        // Those of Anthropic's own, which are refused.
        Some(_) => tool,
    };
    checked(list.into_iter().map(function).collect(), wanted, !is_single)
}

/// A call as a block.
fn call_json(call: &Call) -> Json {
    let input = serde_json::from_str::<Json>(&call.arguments).unwrap_or_else(|_| json!({}));
    json!({ "type": "tool_use", "id": unique("toolu_"), "name": call.name, "input": input })
}

/// Anthropic's words for why an answer ended, and the text that ended it.
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

fn head(app: &App, told: &Told, content: Vec<Json>, usage: &Usage) -> Json {
    json!({
        "id": told.id,
        "type": "message",
        "role": "assistant",
        "model": app.served.params.name,
        "content": content,
        "stop_reason": null,
        "stop_sequence": null,
        "usage": usage_json(usage),
    })
}

/// An error in Anthropic's form. Clients shorten a conversation of which they are told in its words that it is too long.
pub fn error_json(error: &ApiError, request_id: &str) -> Json {
    let kind = match (error.status.as_u16(), error.kind) {
        (413, _) => "request_too_large",
        (500 | 501, _) => "api_error",
        (503, _) => "overloaded_error",
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
    told: Told,
    /// The kind of the block that is open.
    block: Option<&'static str>,
    n_blocks: usize,
    finish: Option<Finish>,
    n_calls: usize,
}

impl Stream {
    /// A call is a block of its own.
    fn call(&mut self, name: &str) -> String {
        let said = self.close();
        let block = call_json(&Call {
            name: name.to_owned(),
            arguments: String::new(),
        });
        self.block = Some("tool_use");
        said + &event(&json!({ "type": "content_block_start", "index": self.n_blocks, "content_block": block }))
    }

    fn arguments(&self, text: &str) -> String {
        let delta = json!({ "type": "input_json_delta", "partial_json": text });
        event(&json!({ "type": "content_block_delta", "index": self.n_blocks, "delta": delta }))
    }

    /// A piece of a block, which is opened first where another is open, or none.
    fn delta(&mut self, kind: &'static str, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let mut said = String::new();
        if self.block != Some(kind) {
            said += &self.close();
            let block = match kind {
                "thinking" => json!({ "type": kind, "thinking": "", "signature": "" }),
                _ => json!({ "type": kind, "text": "" }),
            };
            said += &event(&json!({ "type": "content_block_start", "index": self.n_blocks, "content_block": block }));
            self.block = Some(kind);
        }
        let delta = match kind {
            "thinking" => json!({ "type": "thinking_delta", "thinking": text }),
            _ => json!({ "type": "text_delta", "text": text }),
        };
        said + &event(&json!({ "type": "content_block_delta", "index": self.n_blocks, "delta": delta }))
    }

    fn close(&mut self) -> String {
        if self.block.take().is_none() {
            return String::new();
        }
        self.n_blocks += 1;
        event(&json!({ "type": "content_block_stop", "index": self.n_blocks - 1 }))
    }
}

impl Teller for Stream {
    fn pause(&self) -> &'static str {
        "event: ping\ndata: {\"type\": \"ping\"}\n\n"
    }

    fn piece(&mut self, piece: Piece, usage: &Usage) -> String {
        match piece {
            // Before it is computed nobody knows how much of it was known.
            Piece::Prompt { .. } => {
                event(&json!({ "type": "message_start", "message": head(&self.app, &self.told, Vec::new(), usage) }))
            }
            Piece::Text { reasoning, content, .. } => {
                self.delta("thinking", &reasoning) + &self.delta("text", &content)
            }
            Piece::Call { name, .. } => self.call(&name),
            Piece::Arguments { text, .. } => self.arguments(&text),
            Piece::End { finish, n_calls, .. } => {
                (self.finish, self.n_calls) = (Some(finish), n_calls);
                self.close()
            }
            Piece::Failed(text) => event(&error_json(&ApiError::server(text), "")),
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
    fn a_count_of_requests_is_left_out_of_the_instructions() {
        let counted = json!([
            {"type": "text", "text": "x-anthropic-billing-header: cch=1234;"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ]);
        assert_eq!(messages::text(instructions(counted)).unwrap(), "Be brief.");
        assert_eq!(messages::text(instructions(json!("Be brief."))).unwrap(), "Be brief.");
    }
}
