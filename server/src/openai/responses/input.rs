//! What a request for a response says: fields, and items to messages.

use engine::grammar::Grammar;
use serde_json::{Map, Value as Json, json};

use super::tools::{self, Kinds, grouped, text_arguments};
use crate::api::{ApiError, ApiResult, Field, Fields, Form, GENERATING, generating, max_tokens, shown};
use crate::http::Client;
use crate::messages::messages;
use crate::scheduler::Request;
use crate::served::{Conversation, Served};

/// The fields.
pub const FIELDS: &[Field] = &[
    Field {
        name: "input",
        form: Form::Any,
        doc: "A text of the user's, or a list of items: messages, calls of functions (`function_call`, `custom_tool_call`) and their results (`function_call_output`, `custom_tool_call_output`).",
    },
    Field {
        name: "model",
        form: Form::Text,
        doc: "The model; there is one, which answers whatever name is given.",
    },
    Field {
        name: "instructions",
        form: Form::Text,
        doc: "Instructions for this answer alone.",
    },
    Field {
        name: "previous_response_id",
        form: Form::Text,
        doc: "Go on from a response that is kept: the last 512 are, as long as the server runs.",
    },
    Field {
        name: "store",
        form: Form::Flag,
        doc: "Keep the response (true).",
    },
    Field {
        name: "max_output_tokens",
        form: Form::Integer,
        doc: "Most tokens of the answer, what is thought included.",
    },
    Field {
        name: "stream",
        form: Form::Flag,
        doc: "Tell the answer as it comes, as events.",
    },
    Field {
        name: "text",
        form: Form::Object,
        doc: "`format`: `{\"type\": …}` of `text`, `json_object`, or `json_schema` with a `schema`.",
    },
    Field {
        name: "reasoning",
        form: Form::Object,
        doc: "`effort`: how much to think, where the template knows of it; `none`: not at all.",
    },
    Field {
        name: "tools",
        form: Form::List,
        doc: "Functions that may be called, by themselves or in a `namespace`, and `custom` tools, which take a text. Tools of other types are left out, which the header `warning` tells.",
    },
    Field {
        name: "tool_choice",
        form: Form::Any,
        doc: "`auto` (default), `none`, `required`, or `{\"type\": \"function\", \"name\": …}`.",
    },
    Field {
        name: "parallel_tool_calls",
        form: Form::Flag,
        doc: "Several functions may be called in an answer (true).",
    },
    Field {
        name: "background",
        form: Form::Flag,
        doc: "Must be false: answers are told to who waits for them.",
    },
    Field {
        name: "truncation",
        form: Form::Ignored,
        doc: "What does not fit is refused and never cut.",
    },
    Field {
        name: "include",
        form: Form::Ignored,
        doc: "There is nothing more to be told.",
    },
    Field {
        name: "metadata",
        form: Form::Object,
        doc: "Notes of the client, which come back.",
    },
    Field {
        name: "stream_options",
        form: Form::Ignored,
        doc: "How events are padded.",
    },
    Field {
        name: "max_tool_calls",
        form: Form::Ignored,
        doc: "Functions are the client's to call.",
    },
    Field {
        name: "user",
        form: Form::Ignored,
        doc: "Who asks.",
    },
    Field {
        name: "safety_identifier",
        form: Form::Ignored,
        doc: "Who asks.",
    },
    Field {
        name: "prompt_cache_key",
        form: Form::Ignored,
        doc: "What was computed is found by its tokens.",
    },
    Field {
        name: "prompt_cache_retention",
        form: Form::Ignored,
        doc: "What was computed stays until its place is needed.",
    },
    Field {
        name: "service_tier",
        form: Form::Ignored,
        doc: "There is one.",
    },
    Field {
        name: "client_metadata",
        form: Form::Ignored,
        doc: "Notes of the client.",
    },
];

/// A request as it was read.
pub struct Asked {
    /// Tell the answer as it comes.
    pub is_stream: bool,
    /// Keep the response.
    pub is_stored: bool,
    /// Most tokens of the answer.
    pub max_tokens: Option<usize>,
    /// The messages of the conversation so far, without instructions.
    pub said: Vec<Json>,
    /// What comes back as it was.
    pub echo: Json,
    /// What is left out of the request.
    pub left_out: Vec<String>,
    /// How calls of some tools are told.
    pub kinds: Kinds,
}

/// Reads a request.
pub fn read(
    served: &Served,
    client: Client,
    body: Map<String, Json>,
) -> ApiResult<(Asked, Conversation, Request, Option<Grammar>)> {
    let echo = echo(&body);
    let mut fields = Fields::new(body, &[FIELDS, GENERATING], true)?;
    fields.text("model")?;
    fields.object("metadata")?;
    let mut request = generating(&mut fields, &served.params.defaults)?;
    request.max_tokens = max_tokens(&mut fields, &["max_output_tokens"], 1)?;
    if fields.flag("background")?.unwrap_or(false) {
        return Err(ApiError::field(
            "background",
            "answers are told to who waits for them: expected false",
        ));
    }
    let mut said = match fields.text("previous_response_id")? {
        None => Vec::new(),
        Some(id) => {
            let unknown = || ApiError {
                code: Some("previous_response_not_found"),
                ..ApiError::field(
                    "previous_response_id",
                    "there is no such response, or it is not kept any more",
                )
            };
            served.responses.get(client, &id).ok_or_else(unknown)?.said
        }
    };
    said.extend(items(fields.take("input"))?);
    let grammar = format(fields.object("text")?)?;
    let variables = reasoning(fields.object("reasoning")?)?;
    let read = tools::read(&mut fields)?;
    let instructions = fields.text("instructions")?.filter(|text| !text.is_empty());
    let asked = Asked {
        is_stream: fields.flag("stream")?.unwrap_or(false),
        is_stored: fields.flag("store")?.unwrap_or(true),
        max_tokens: None,
        echo,
        left_out: read.left_out,
        kinds: read.kinds,
        said,
    };
    fields.finish()?;
    let system = instructions.map(|text| json!({ "role": "system", "content": text }));
    let conversation = Conversation {
        messages: messages(system.into_iter().chain(asked.said.iter().cloned()).collect())?,
        variables,
        tools: read.tools,
        ..Conversation::default()
    };
    Ok((asked, conversation, request, grammar))
}

/// Fields that come back, with what stands for those that were not given.
fn echo(body: &Map<String, Json>) -> Json {
    let defaults = json!({
        "instructions": null, "metadata": {}, "parallel_tool_calls": true, "previous_response_id": null,
        "reasoning": { "effort": null, "summary": null }, "store": true, "temperature": null, "text": { "format": { "type": "text" } },
        "tool_choice": "auto", "tools": [], "top_p": null, "truncation": "disabled", "background": false, "user": null,
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

/// Messages of the items of an input.
fn items(input: Option<Json>) -> ApiResult<Vec<Json>> {
    match input {
        None => Err(ApiError::field("input", "there is none")),
        Some(Json::String(text)) => Ok(vec![json!({ "role": "user", "content": text })]),
        Some(Json::Array(list)) => {
            let mut said = Vec::with_capacity(list.len());
            for (i, item) in list.into_iter().enumerate() {
                add(&mut said, item).map_err(|what| ApiError::field(&format!("input[{i}]"), what))?;
            }
            // What was thought before nothing is no message.
            said.retain(|message| !is_thought(message));
            Ok(said)
        }
        Some(other) => Err(ApiError::field(
            "input",
            format_args!("expected a text or a list of items, found {}", shown(&other)),
        )),
    }
}

fn add(said: &mut Vec<Json>, mut item: Json) -> Result<(), String> {
    let kind = item["type"].as_str().unwrap_or("message").to_owned();
    match kind.as_str() {
        "message" => {
            if !item.is_object() || item.get("role").is_none() {
                return Err("expected a message with role and content".to_owned());
            }
            let (role, content) = (item["role"].take(), item["content"].take());
            // What was thought or called before it is a part of the same message.
            let is_begun =
                |last: &&mut Json| role == "assistant" && last["role"] == "assistant" && last["content"] == "";
            match said.last_mut().filter(is_begun) {
                Some(begun) => begun["content"] = content,
                None => said.push(json!({ "role": role, "content": content })),
            }
        }
        "function_call" => {
            let (Some(name), Some(arguments)) = (item["name"].as_str(), item["arguments"].as_str()) else {
                return Err("a call has no name or no arguments".to_owned());
            };
            let name = match item["namespace"].as_str() {
                Some(namespace) => grouped(namespace, name),
                None => name.to_owned(),
            };
            add_call(said, &item["call_id"], &name, arguments);
        }
        "custom_tool_call" => {
            let Some(name) = item["name"].as_str().filter(|_| item["input"].is_string()) else {
                return Err("a call has no name or no input".to_owned());
            };
            add_call(said, &item["call_id"], name, &text_arguments(&item["input"]));
        }
        "function_call_output" | "custom_tool_call_output" => {
            said.push(json!({ "role": "tool", "tool_call_id": item["call_id"], "content": item["output"].take() }));
        }
        // It is a part of the message or the call behind it.
        "reasoning" => {
            let parts = item["content"].as_array().map(Vec::as_slice).unwrap_or_default();
            let thought: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            if !thought.is_empty() {
                said.push(json!({ "role": "assistant", "content": "", "reasoning_content": thought }));
            }
        }
        _ => {
            let kind: String = kind.chars().take(32).collect();
            return Err(format!(
                "an item of the type {kind:?} cannot be taken: expected message, function_call, custom_tool_call, their outputs or reasoning"
            ));
        }
    }
    Ok(())
}

/// A call is a part of the assistant's message before it, or one by itself.
fn add_call(said: &mut Vec<Json>, id: &Json, name: &str, arguments: &str) {
    let function = json!({ "name": name, "arguments": arguments });
    let call = json!({ "id": id, "type": "function", "function": function });
    match said.last_mut().filter(|last| last["role"] == "assistant") {
        Some(last) => match last["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(call),
            None => last["tool_calls"] = json!([call]),
        },
        None => said.push(json!({ "role": "assistant", "content": "", "tool_calls": [call] })),
    }
}

/// True of a message of which nothing is known yet but what was thought.
fn is_thought(message: &Json) -> bool {
    message.get("reasoning_content").is_some() && message["content"] == "" && message.get("tool_calls").is_none()
}

/// What the answer has to be.
fn format(text: Option<Map<String, Json>>) -> ApiResult<Option<Grammar>> {
    let Some(format) = text.and_then(|mut text| text.remove("format")) else {
        return Ok(None);
    };
    match (format["type"].as_str(), format.get("schema")) {
        (Some("text"), _) => Ok(None),
        (Some("json_object"), _) => Ok(Some(Grammar::JsonSchema("{\"type\":\"object\"}".to_owned()))),
        (Some("json_schema"), Some(schema)) => Ok(Some(Grammar::JsonSchema(schema.to_string()))),
        _ => Err(ApiError::field(
            "text",
            "expected a format of the type text, json_object, or json_schema with a schema",
        )),
    }
}

/// Variables of the template that say how much to think.
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
                format_args!("effort is {}, expected a text", shown(&other)),
            ));
        }
    }
    Ok(variables)
}
