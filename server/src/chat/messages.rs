//! Parses chat messages in OpenAI's format into the messages of a chat template.

use engine::chat::Message;
use serde_json::{Map, Value as Json};

use crate::api::{ApiError, ApiResult, shown, text_of};

/// Parses a list of messages.
pub fn messages(list: Vec<Json>) -> ApiResult<Vec<Message>> {
    if list.is_empty() {
        return Err(ApiError::field("messages", "must not be empty"));
    }
    list.into_iter()
        .enumerate()
        .map(|(i, value)| message(i, value))
        .collect()
}

/// True if a completion can continue this message: role `assistant` and no tool calls.
pub fn can_continue(message: &Message) -> bool {
    message.role == "assistant" && !message.fields.contains_key("tool_calls")
}

fn message(i: usize, value: Json) -> ApiResult<Message> {
    let path = |field: &str| format!("messages[{i}]{field}");
    let wrong = |field: &str, what: &str| ApiError::field(&path(field), what);
    let Json::Object(mut fields) = value else {
        return Err(wrong("", "expected an object with role and content"));
    };
    let role = fields.remove("role").and_then(text_of);
    let role = role.ok_or_else(|| wrong(".role", "expected a string"))?;
    let role = match role.as_str() {
        // Chat templates use the older role names.
        "developer" => "system",
        "function" => "tool",
        "system" | "user" | "assistant" | "tool" => &role,
        _ => return Err(wrong(".role", "expected system, developer, user, assistant or tool")),
    };
    let content = match fields.remove("content") {
        None | Some(Json::Null) if role == "assistant" => String::new(),
        None | Some(Json::Null) => return Err(wrong(".content", "missing; expected a string or a list of parts")),
        Some(content) => text(content).map_err(|what| wrong(".content", &what))?,
    };
    let mut message = Message::new(role, content);
    for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_null()) {
        match name.as_str() {
            "tool_calls" => {
                let calls = calls(value).ok_or_else(|| wrong(".tool_calls", "expected a list of function calls"))?;
                if !calls.is_empty() {
                    message.fields.insert(name, calls.into());
                }
            }
            "reasoning" | "reasoning_content" => {
                message.fields.insert("reasoning_content".to_owned(), value);
            }
            // Ollama calls this field `tool_name`.
            "tool_name" => {
                message.fields.insert("name".to_owned(), value);
            }
            "name" | "tool_call_id" => {
                message.fields.insert(name, value);
            }
            // OpenAI models and proxies add these fields to messages, and clients send them back. They do not
            // affect the prompt.
            "refusal" | "annotations" | "audio" | "function_call" | "prefix" | "provider_specific_fields" => {}
            _ => {
                let name: String = name.chars().take(64).collect();
                return Err(wrong(&format!(".{name}"), "unknown field"));
            }
        }
    }
    Ok(message)
}

/// Returns the text of a `content` value: a string, or the concatenated text of its parts.
pub fn text(content: Json) -> Result<String, String> {
    match content {
        Json::String(text) => Ok(text),
        Json::Array(parts) => parts.into_iter().map(part).collect(),
        other => Err(format!("expected a string or a list of parts, found {}", shown(&other))),
    }
}

fn part(part: Json) -> Result<String, String> {
    let Json::Object(mut fields) = part else {
        return text_of(part).ok_or_else(|| "expected a list of objects".to_owned());
    };
    let kind = fields.remove("type").and_then(text_of).unwrap_or_default();
    match (kind.as_str(), fields.remove("text")) {
        ("text" | "input_text" | "output_text", Some(Json::String(text))) => Ok(text),
        ("text" | "input_text" | "output_text", _) => Err("a text part has no `text`".to_owned()),
        _ => {
            let kind: String = kind.chars().take(32).collect();
            Err(format!("unsupported part type {kind:?}; this model accepts text only"))
        }
    }
}

/// Converts tool calls: parses their arguments into objects, which chat templates expect.
fn calls(list: Json) -> Option<Vec<Json>> {
    let Json::Array(list) = list else { return None };
    list.into_iter().map(call).collect()
}

fn call(call: Json) -> Option<Json> {
    let Json::Object(mut call) = call else { return None };
    let Some(Json::Object(function)) = call.get_mut("function") else {
        return None;
    };
    if let Some(Json::String(text)) = function.get("arguments")
        && let Ok(arguments) = serde_json::from_str::<Map<String, Json>>(text)
    {
        function.insert("arguments".to_owned(), arguments.into());
    }
    Some(Json::Object(call))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn content_accepts_strings_and_parts() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let all = messages(vec![
            json!({"role": "developer", "content": "x"}),
            json!({"role": "user", "content": parts, "name": "me"}),
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"n\": 1}"}}],
                "provider_specific_fields": {"refusal": null}}),
            json!({"role": "tool", "content": "7", "tool_call_id": "1"}),
        ]);
        let all = all.unwrap();
        let pairs: Vec<_> = all.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect();
        assert_eq!(
            pairs,
            [("system", "x"), ("user", "ab"), ("assistant", ""), ("tool", "7")]
        );
        assert!(!can_continue(&all[2]) && can_continue(&Message::assistant("a")) && !can_continue(&all[1]));
        assert_eq!(all[1].fields["name"], "me");
        assert_eq!(all[2].fields["tool_calls"][0]["function"]["arguments"]["n"], 1);
    }

    #[test]
    fn invalid_message_is_rejected_with_path() {
        for (message, path) in [
            (json!(3), "messages[0]"),
            (json!({"content": "a"}), "messages[0].role"),
            (json!({"role": "robot", "content": "a"}), "messages[0].role"),
            (json!({"role": "user"}), "messages[0].content"),
            (json!({"role": "user", "content": 7}), "messages[0].content"),
            (
                json!({"role": "user", "content": [{"type": "image_url"}]}),
                "messages[0].content",
            ),
            (
                json!({"role": "user", "content": "a", "shout": true}),
                "messages[0].shout",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{}]}),
                "messages[0].tool_calls",
            ),
        ] {
            let error = messages(vec![message]).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(path), "{}", error.message);
        }
        assert!(messages(vec![]).is_err());
    }
}
