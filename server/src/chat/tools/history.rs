//! Earlier tool calls for templates that render tools but omit calls.

use engine::chat::Message;
use serde_json::{Map, Value as Json};

use super::format::{CallSyntax, ToolFormat};

/// Writes the calls of earlier messages into their content, in the format of the model. Returns `None` if the template
/// renders calls itself, or if there are no calls.
pub fn with_written_calls(messages: &[Message], format: &ToolFormat) -> Option<Vec<Message>> {
    if !format.omits_calls || !messages.iter().any(|message| message.fields.contains_key("tool_calls")) {
        return None;
    }
    let written = |message: &Message| {
        let mut message = message.clone();
        if let Some(Json::Array(calls)) = message.fields.remove("tool_calls")
            && !calls.is_empty()
        {
            let calls: Vec<String> = calls
                .iter()
                .map(|call| written(&call["function"], &format.form))
                .collect();
            message.content += &format!("{}{}{}", format.open, calls.join(", "), format.close);
        }
        message
    };
    Some(messages.iter().map(written).collect())
}

/// Returns the text of a call: Python with JSON values, or a JSON object.
fn written(function: &Json, form: &CallSyntax) -> String {
    let name = &function["name"];
    // Clients send the arguments as text or as an object.
    let arguments = match &function["arguments"] {
        Json::String(text) => serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()),
        arguments => arguments.clone(),
    };
    if *form == CallSyntax::Python {
        let items = arguments.as_object().into_iter().flatten();
        let items: Vec<String> = items.map(|(key, value)| format!("{key}={value}")).collect();
        return format!("{}({})", name.as_str().unwrap_or_default(), items.join(", "));
    }
    let members = [("name", name.clone()), ("arguments", arguments)];
    Json::Object(Map::from_iter(members.map(|(key, value)| (key.to_owned(), value)))).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::format;
    use super::*;

    #[test]
    fn omitted_calls_are_written_in_the_format_of_the_model() {
        let source = |list: &str| {
            format!("{list}{{{{ tools | tojson }}}}]{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}")
        };
        let mut called = Message::assistant("Hm.");
        let call = json!([{"type": "function", "function": {"name": "f", "arguments": {"a": 1, "t": "x\"y"}}},
                          {"type": "function", "function": {"name": "g", "arguments": "{}"}}]);
        called.fields.insert("tool_calls".to_owned(), call);
        let messages = [Message::user("U"), called];
        for (list, wanted) in [
            (
                "List of tools: [",
                "Hm.<|tool_call_start|>[f(a=1, t=\"x\\\"y\"), g()]<|tool_call_end|>",
            ),
            (
                "<|tool_call|>[",
                "Hm.<|tool_call|>[{\"name\":\"f\",\"arguments\":{\"a\":1,\"t\":\"x\\\"y\"}}, {\"name\":\"g\",\"arguments\":{}}]",
            ),
        ] {
            let format = format(&source(list)).unwrap();
            let written = with_written_calls(&messages, &format).unwrap();
            assert_eq!((written[1].content.as_str(), written[1].fields.len()), (wanted, 0));
            assert_eq!(written[0], messages[0]);
            assert_eq!(with_written_calls(&messages[..1], &format), None);
        }
    }
}
