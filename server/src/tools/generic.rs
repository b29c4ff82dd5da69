//! Functions for models whose templates know of none, or write calls in a form that is not understood: instructions say what there is and how to call it,
//! as objects of JSON, and what was called and answered before stands in the conversation as text.

use engine::chat::Message;
use serde_json::{Map, Value as Json, json};

use super::{Form, ToolChoice, ToolFormat, Tools};

/// The key of a function's name in a call, and that of its arguments.
const KEYS: [&str; 2] = ["name", "arguments"];

/// How calls are written: one after the other, without marks.
pub fn generic_format() -> ToolFormat {
    let [name, arguments] = KEYS.map(str::to_owned);
    let ids = Vec::new();
    ToolFormat::new(Form::Object {
        name: Some(name),
        arguments,
        ids,
    })
}

/// The conversation as any template can render it; `None` if it has nothing to do with functions.
pub fn as_text(messages: &[Message], tools: Option<&Tools>) -> Option<Vec<Message>> {
    let has_calls = |message: &Message| message.role == "tool" || message.fields.contains_key("tool_calls");
    if tools.is_none() && !messages.iter().any(has_calls) {
        return None;
    }
    let mut all: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    for message in messages.iter().map(plain) {
        // What functions answered and what the user says then are one turn: some templates take turns only.
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
            // Templates without such a role have it before what the user says first.
            None => all.insert(0, Message::system(text)),
        }
    }
    Some(all)
}

/// A message without what templates that know of no functions leave out or refuse.
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

/// What a model is told of functions.
fn instructions(tools: &Tools) -> String {
    let [name, arguments] = KEYS;
    let list: Vec<String> = tools.list.iter().map(|tool| tool["function"].to_string()).collect();
    let form = format!("{{\"{name}\": NAME, \"{arguments}\": {{…}}}}");
    let when = match &tools.choice {
        ToolChoice::Auto => "If a function is needed, answer with nothing but",
        ToolChoice::Required | ToolChoice::Named(_) => "Call a function: answer with nothing but",
    };
    let each = match tools.parallel {
        true => "one line of JSON for each call",
        false => "one line of JSON for one call",
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

    /// Turns of user and model, and no instructions.
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
    fn what_was_called_and_answered_is_text() {
        let said = "<assistant>Let me see.\n{\"name\":\"f\",\"arguments\":{\"a\":1}}<user>{\"result\":\"7 \\\"or\\\" 8\"}\n\n{\"result\":\"9\"}\n\nWell?";
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
            assert!(text.contains(said), "{text}");
        }
    }

    #[test]
    fn instructions_are_added_to_those_that_there_are() {
        let text = rendered(PLAIN, &[Message::system("Be kind."), Message::user("Hello.")]);
        assert!(text.ends_with("as usual.\n\nBe kind.<user>Hello.<assistant>"), "{text}");
        let text = rendered(TURNS, &[Message::system("Be kind."), Message::user("Hello.")]);
        assert!(text.ends_with("as usual.\n\nBe kind.\n\nHello.<model>"), "{text}");
        let text = rendered(TURNS, &[Message::user("Hello.")]);
        assert!(text.ends_with("as usual.\n\nHello.<model>"), "{text}");
        assert_eq!(as_text(&[Message::user("Hello.")], None), None);
    }
}
