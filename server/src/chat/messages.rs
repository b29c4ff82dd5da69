//! Parses chat messages in OpenAI's format into the messages of a chat template.

use engine::chat::Message;
use llama::parts::IMAGE_MARK;
use serde_json::{Map, Value as Json, json};

use super::content_error::ContentError;
use super::parts::ContentReader;
use crate::api::{ApiError, ApiResult, text_of};

/// Parses a list of messages. Their media are collected by `reader`.
pub fn messages(list: Vec<Json>, reader: &mut ContentReader) -> ApiResult<Vec<Message>> {
    if list.is_empty() {
        return Err(ApiError::field("messages", "must not be empty"));
    }
    list.into_iter()
        .enumerate()
        .map(|(i, value)| message(i, value, reader))
        .collect()
}

/// Returns true if a completion can continue this message: role `assistant` and no tool calls.
pub fn can_continue(message: &Message) -> bool {
    message.role == "assistant" && !message.fields.contains_key("tool_calls")
}

/// Returns true if clients of other servers mark this message as one to continue.
pub fn continues(message: &Json) -> bool {
    message["role"] == "assistant" && (message["prefix"] == true || message["partial"] == true)
}

fn message(i: usize, value: Json, reader: &mut ContentReader) -> ApiResult<Message> {
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
        _ => return Err(wrong(".role", "expected system, developer, user, assistant, or tool")),
    };
    let mut message = Message::new(role, content(i, role, &mut fields, reader)?);
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
            "function_call" => {
                let call = call(json!({ "type": "function", "function": value }));
                let call = call.ok_or_else(|| wrong(".function_call", "expected an object with name and arguments"))?;
                message.fields.entry("tool_calls").or_insert_with(|| vec![call].into());
            }
            // OpenAI models, proxies, and conversation stores add these fields, and clients send them back. They do not
            // affect the prompt.
            "annotations"
            | "audio"
            | "cache_control"
            | "created_at"
            | "id"
            | "metadata"
            | "partial"
            | "prefix"
            | "provider_specific_fields"
            | "refusal"
            | "timestamp" => {}
            // A chat template can read any field.
            _ => {
                message.fields.insert(name, value);
            }
        }
    }
    Ok(message)
}

/// Reads the content of a message, and a separate list of images, as in Ollama's API.
fn content(i: usize, role: &str, fields: &mut Map<String, Json>, reader: &mut ContentReader) -> ApiResult<String> {
    let path = |field: &str| format!("messages[{i}]{field}");
    reader.enter(&path(".images"), role);
    let images = reader.list(fields.remove("images").unwrap_or_default());
    let images = images.map_err(|error| error.of_field(&path(".images")))?;
    let field = path(".content");
    let mut content = match fields.remove("content") {
        None | Some(Json::Null) if role == "assistant" => String::new(),
        None | Some(Json::Null) => {
            let missing = "missing; expected a string or a list of parts";
            return Err(ApiError::field(&field, missing));
        }
        Some(content) => {
            reader.enter(&field, role);
            let text = reader.text(content);
            text.map_err(|error| error.of_field(&field))?
        }
    };
    // Marks precede the text, and a note follows it.
    let is_before = images.starts_with(IMAGE_MARK);
    content.insert_str(if is_before { 0 } else { content.len() }, &images);
    Ok(content)
}

/// Returns the text of a `content` value without images.
pub fn text(content: Json) -> Result<String, ContentError> {
    let mut reader = ContentReader::new(None);
    reader.enter("content", "system");
    reader.text(content)
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
    use super::*;

    fn messages(list: Vec<Json>) -> ApiResult<Vec<Message>> {
        super::messages(list, &mut ContentReader::new(None))
    }

    #[test]
    fn content_accepts_strings_and_parts() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let all = messages(vec![
            json!({"role": "developer", "content": "x"}),
            json!({"role": "user", "content": parts, "name": "me"}),
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"n\": 1}"}}],
                "provider_specific_fields": {"refusal": null}, "id": "m", "weight": 1}),
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
        assert_eq!(all[2].fields["weight"], 1, "a template can read the field");
        assert!(!all[2].fields.contains_key("id"));
        let older = json!({"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}});
        let older = messages(vec![older]).unwrap();
        assert_eq!(older[0].fields["tool_calls"][0]["function"]["name"], "f");
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
                json!({"role": "user", "content": [{"type": "text"}]}),
                "messages[0].content",
            ),
            (
                json!({"role": "assistant", "function_call": 1}),
                "messages[0].function_call",
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
