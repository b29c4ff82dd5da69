//! Tool calling for models whose template does not support it. Instructions describe the tools and a JSON
//! call format; earlier calls and results become text.

use engine::chat::Message;
use serde_json::{Map, Value as Json, json};

use super::definition::{ToolChoice, Tools};
use super::format::{CallSyntax, ToolFormat};

/// Keys of the function name and the arguments in a call.
const KEYS: [&str; 2] = ["name", "arguments"];

/// Returns the format of calls: JSON objects without markers.
pub fn generic_format() -> ToolFormat {
    let [name, arguments] = KEYS.map(str::to_owned);
    let ids = Vec::new();
    ToolFormat::new(CallSyntax::Object {
        name: Some(name),
        arguments,
        ids,
    })
}

/// Rewrites a conversation without tool messages, so that any template can render it. `None` if the
/// conversation does not involve tools.
pub fn as_text(messages: &[Message], tools: Option<&Tools>) -> Option<Vec<Message>> {
    let has_calls = |message: &Message| message.role == "tool" || message.fields.contains_key("tool_calls");
    if tools.is_none() && !messages.iter().any(has_calls) {
        return None;
    }
    let mut all: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    for message in messages.iter().map(plain) {
        // Merge tool results with the following user message, because some templates require alternating
        // roles.
        match all.last_mut() {
            Some(last) if last.role == "user" && message.role == "user" => {
                last.content += "\n\n";
                last.content += &message.content;
            }
            _ => all.push(message),
        }
    }
    if let Some(tools) = tools {
        let text = instructions(tools);
        match all.first_mut().filter(|first| first.role == "system") {
            Some(first) => first.content = format!("{text}\n\n{}", first.content),
            // For templates without a system role, the renderer adds the text to the first user message.
            None => all.insert(0, Message::system(text)),
        }
    }
    Some(all)
}

/// Replaces tool calls and results by text, because templates without tools omit or reject them.
fn plain(message: &Message) -> Message {
    let mut message = message.clone();
    if let Some(Json::Array(calls)) = message.fields.remove("tool_calls") {
        let [name, arguments] = KEYS;
        let call = |call: &Json| {
            let function = &call["function"];
            json!({ name: function["name"], arguments: function["arguments"] }).to_string()
        };
        let calls: Vec<String> = calls.iter().map(call).collect();
        let content = std::mem::take(&mut message.content);
        let parts = std::iter::once(content).filter(|text| !text.is_empty()).chain(calls);
        message.content = parts.collect::<Vec<_>>().join("\n");
    }
    if message.role == "tool" {
        let mut answer = Map::new();
        if let Some(name) = message.fields.remove("name") {
            answer.insert("name".to_owned(), name);
        }
        answer.insert("result".to_owned(), message.content.into());
        return Message::user(Json::from(answer).to_string());
    }
    message
}

/// Returns the instructions that describe the tools.
fn instructions(tools: &Tools) -> String {
    let [name, arguments] = KEYS;
    let list: Vec<String> = tools.list.iter().map(|tool| tool["function"].to_string()).collect();
    let form = format!("{{\"{name}\": NAME, \"{arguments}\": {{…}}}}");
    let when = match &tools.choice {
        ToolChoice::Auto => "If a function is needed, answer with nothing but",
        ToolChoice::Required | ToolChoice::Named(_) => "Call a function: answer with nothing but",
    };
    let each = if tools.parallel {
        "one line of JSON for each call"
    } else {
        "one line of JSON for one call"
    };
    format!(
        "You can call these functions, each described by an object of JSON:\n{}\n{when} {each}: {form}, where the arguments fit the function's parameters. \
         The result comes with the next message, as an object of JSON with the key \"result\". Otherwise answer as usual.",
        list.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use engine::chat::ChatTemplate;

    use super::*;

    /// Alternating turns, without a system role.
    const TURNS: &str = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}\
        <{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<model>{% endif %}";
    const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

    fn tools() -> Tools {
        Tools {
            list: vec![json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})],
            choice: ToolChoice::Auto,
            parallel: true,
        }
    }

    fn conversation() -> Vec<Message> {
        let mut called = Message::assistant("Let me see.");
        let call = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]);
        called.fields.insert("tool_calls".to_owned(), call);
        vec![
            Message::user("Hello."),
            called,
            Message::new("tool", "7 \"or\" 8"),
            Message::new("tool", "9"),
            Message::user("Well?"),
        ]
    }

    #[track_caller]
    fn rendered(source: &str, messages: &[Message]) -> String {
        let template = ChatTemplate::new(source, "", "").unwrap();
        let messages = as_text(messages, Some(&tools())).unwrap();
        template.render(&messages, true, &Map::new()).unwrap()
    }

    #[test]
    fn calls_and_results_become_text() {
        let events = "<assistant>Let me see.\n{\"name\":\"f\",\"arguments\":{\"a\":1}}<user>{\"result\":\"7 \\\"or\\\" 8\"}\n\n{\"result\":\"9\"}\n\nWell?";
        for (source, role) in [(PLAIN, "<system>"), (TURNS, "<user>")] {
            let text = rendered(source, &conversation());
            assert!(
                text.starts_with(&format!("{role}You can call these functions")),
                "{text}"
            );
            assert!(
                text.contains("{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}"),
                "{text}"
            );
            assert!(text.contains(events), "{text}");
        }
    }

    #[test]
    fn instructions_precede_system_message() {
        let text = rendered(PLAIN, &[Message::system("Be kind."), Message::user("Hello.")]);
        assert!(text.ends_with("as usual.\n\nBe kind.<user>Hello.<assistant>"), "{text}");
        let text = rendered(TURNS, &[Message::system("Be kind."), Message::user("Hello.")]);
        assert!(text.ends_with("as usual.\n\nBe kind.\n\nHello.<model>"), "{text}");
        let text = rendered(TURNS, &[Message::user("Hello.")]);
        assert!(text.ends_with("as usual.\n\nHello.<model>"), "{text}");
        assert_eq!(as_text(&[Message::user("Hello.")], None), None);
    }
}
