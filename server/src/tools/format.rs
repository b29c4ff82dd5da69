//! How a model writes calls of functions, found out by rendering its template with marks that no template contains.

use engine::chat::{ChatTemplate, Message};
use serde_json::{Map, Value as Json, json};

/// The form of a call: an object of JSON with the function's name and its arguments, between two texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFormat {
    /// Before the object; may be empty, if an answer that begins with an object is a call.
    pub open: String,
    /// Behind it; may be empty.
    pub close: String,
    /// The key of the name.
    pub name: String,
    /// The key of the arguments.
    pub arguments: String,
}

const NAME: &str = "mark_n_1f0c";
const ARGUMENT: &str = "mark_a_83d2";
const CONTENT: &str = "~C-77b1~";

impl ToolFormat {
    /// The form of a template's calls; `None` if it takes no tools, or writes calls in another form than an object of JSON.
    pub fn of(template: &ChatTemplate) -> Option<ToolFormat> {
        let tool = json!({"type": "function", "function": {"name": NAME, "description": "-", "parameters":
            {"type": "object", "properties": {ARGUMENT: {"type": "string"}}, "required": [ARGUMENT]}}});
        let with = Map::from_iter([("tools".to_owned(), json!([tool]))]);
        let user = || Message::user("~U-5a0e~");
        let render =
            |messages: &[Message], variables: &Map<String, Json>| template.render(messages, false, variables).ok();
        // A template that leaves out tools would write calls of what the model has never been told of.
        if !render(&[user()], &with)?.contains(NAME) {
            return None;
        }
        let mut calling = Message::assistant("");
        let call =
            json!({"id": "call00001", "type": "function", "function": {"name": NAME, "arguments": {ARGUMENT: "v"}}});
        calling.fields.insert("tool_calls".to_owned(), json!([call]));
        let called = render(&[user(), calling], &with)?;
        let said = render(&[user(), Message::assistant(CONTENT)], &with)?;
        let (before, behind) = said.split_once(CONTENT)?;
        let n_common = before.bytes().zip(called.bytes()).take_while(|(a, b)| a == b).count();
        let call = called.get(n_common..)?;
        ToolFormat::of_call(call, behind)
    }

    /// The form of a call that is followed by what follows every answer.
    fn of_call(call: &str, behind: &str) -> Option<ToolFormat> {
        let starts = call.char_indices().filter(|(_, c)| *c == '{').map(|(at, _)| at);
        let object = |at: usize| {
            let mut stream = serde_json::Deserializer::from_str(&call[at..]).into_iter::<Map<String, Json>>();
            let found = stream.next()?.ok()?;
            let name = found.iter().find(|(_, value)| *value == NAME)?.0.clone();
            let arguments = found.iter().find(|(_, value)| value.get(ARGUMENT).is_some())?.0.clone();
            Some((at, at + stream.byte_offset(), name, arguments))
        };
        let (start, end, name, arguments) = starts.filter_map(object).next()?;
        let rest = &call[end..];
        let close = rest
            .strip_suffix(behind)
            .or_else(|| rest.trim_end().strip_suffix(behind.trim_end()));
        Some(ToolFormat {
            open: call[..start].trim_start().to_owned(),
            close: close.unwrap_or_default().to_owned(),
            name,
            arguments,
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Calls between tags, as models of several families write them.
    pub const TAGGED: &str = "{% if tools %}<s>{% for t in tools %}{{ t | tojson }}\n{% endfor %}</s>{% endif %}\
        {% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n\
        {\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}</>\n{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}";
    /// A call is the whole answer.
    pub const BARE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>\
        {% if m.tool_calls %}{\"name\": \"{{ m.tool_calls[0].function.name }}\", \"parameters\": {{ m.tool_calls[0].function.arguments | tojson }}}\
        {% else %}{{ m.content }}{% endif %}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

    pub fn format(template: &str) -> Option<ToolFormat> {
        ToolFormat::of(&ChatTemplate::new(template, "", "</>").unwrap())
    }

    #[test]
    fn forms_are_found_by_rendering() {
        let tagged = format(TAGGED).unwrap();
        assert_eq!(
            (tagged.open.as_str(), tagged.close.as_str()),
            ("<tool_call>\n", "\n</tool_call>")
        );
        assert_eq!((tagged.name.as_str(), tagged.arguments.as_str()), ("name", "arguments"));
        let bare = format(BARE).unwrap();
        assert_eq!(
            (bare.open.as_str(), bare.close.as_str(), bare.arguments.as_str()),
            ("", "", "parameters")
        );
    }

    #[test]
    fn templates_without_tools_have_none() {
        for template in [
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
            "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}",
            "{{ raise_exception('no') }}",
        ] {
            assert_eq!(format(template), None, "{template}");
        }
    }
}
