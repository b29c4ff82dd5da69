//! Detects how a model writes tool calls, by rendering its chat template with unique names and values.

use engine::chat::{ChatTemplate, Message};
use serde_json::{Map, Value as Json, json};

use super::markers::{common_end, common_start, common_tags_before, common_tags_behind, without_open_tag};
use super::messages::MessageMarks;

/// Format of tool calls: `open head CALL tail head CALL tail … close`. Whitespace in the markers follows the
/// template; models may omit it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFormat {
    /// Marker before the first call; may be empty.
    pub open: String,
    /// Marker before each call; may be empty.
    pub head: String,
    /// Marker between an id, which is in front of the name, and the name.
    pub id: Option<String>,
    /// Format of name and arguments.
    pub form: CallSyntax,
    /// Marker after each call.
    pub tail: String,
    /// Marker after the last call.
    pub close: String,
    /// Additional marker that some models write before a call.
    pub lead: Option<String>,
    /// Control tokens around messages, if the model writes content and calls as separate messages.
    pub messages: Option<&'static MessageMarks>,
    /// The template omits earlier calls.
    pub omits_calls: bool,
}

/// Format of a function name and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallSyntax {
    /// A JSON object with the name and the arguments.
    Object {
        /// Key of the name; `None` if the name itself is the key of the arguments.
        name: Option<String>,
        /// Key of the arguments.
        arguments: String,
        /// Further keys before the name, such as an id.
        ids: Vec<String>,
    },
    /// The name, a marker, and the arguments as a JSON object.
    Named {
        /// Marker between name and arguments.
        middle: Marker,
    },
    /// The name, followed by each argument as a key and a value between markers.
    Tagged {
        /// Marker after the name.
        begin: Marker,
        /// Marker before a key.
        key: String,
        /// Marker between key and value.
        value: Marker,
        /// Marker after a value.
        end: String,
    },
    /// The name, followed by an object with unquoted keys and specially quoted strings.
    Bare {
        /// Quotation marker of strings.
        quote: String,
    },
    /// The name, followed by each argument as an element, whose tags follow a control token. Nested values are
    /// nested elements.
    Elements {
        /// Marker after the name.
        begin: String,
        /// Control token in front of each tag.
        mark: String,
    },
    /// The name, followed by Python keyword arguments.
    Python,
    /// Messages in channels, with a function as recipient (GPT-OSS' Harmony format).
    Harmony,
}

/// A marker with a variable part, such as an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Fixed text before the variable part.
    pub before: String,
    /// Fixed text after the variable part; `None` if there is no variable part.
    pub after: Option<String>,
}

/// Control tokens of the Harmony format.
pub const HARMONY_MARKS: &[&str] = &[
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];

const F: &str = "mark_f_1f0c";
const G: &str = "mark_g_92e1";
const A: &str = "key_a_83d2";
const B: &str = "key_b_5a77";
const VALUE_F: &str = "~va-1c~";
const VALUE_G: &str = "~vg-8d~";
const NUMBER: &str = "40961";
const CONTENT: &str = "~C-77b1~";
/// Some templates require ids of nine letters and digits.
const IDS: [&str; 2] = ["aB3dE5gH7", "x9Y8z7W6v"];

/// Formats of templates that render tools but omit calls: a marker in the template source, followed by the
/// known format.
const UNRENDERED: &[(&str, &str, &str, bool)] = &[
    (
        "<|tool_list_start|>",
        "<|tool_call_start|>[",
        "]<|tool_call_end|>",
        true,
    ),
    ("List of tools: [", "<|tool_call_start|>[", "]<|tool_call_end|>", true),
    ("<|/tool|>", "<|tool_call|>[", "]<|/tool_call|>", false),
    ("<|tool_call|>", "<|tool_call|>[", "]", false),
];

impl ToolFormat {
    /// Detects the format of a template. Returns `None` if the template does not render tools or its format is not
    /// supported.
    pub fn of(template: &ChatTemplate, source: &str) -> Option<ToolFormat> {
        ToolFormat::detect(template, source).ok().flatten()
    }

    /// Detects the format of a template. Returns `None` if the template does not render tools.
    ///
    /// # Errors
    /// Returns a description of the problem if the template renders tools in an unsupported way.
    pub fn detect(template: &ChatTemplate, source: &str) -> Result<Option<ToolFormat>, String> {
        let schema = json!({"type": "object", "properties": {A: {"type": "string", "description": "-"}, B: {"type": "integer", "description": "-"}}, "required": [A]});
        let tool = |name: &str| json!({"type": "function", "function": {"name": name, "description": "-", "parameters": schema}});
        let with = Map::from_iter([("tools".to_owned(), json!([tool(F), tool(G)]))]);
        let user = || Message::user("~U-5a0e~");
        // A template that omits tools could still render calls, but its model was not trained to make them.
        let prompt = match template.render(&[user()], true, &with) {
            Ok(prompt) if prompt.contains(F) => prompt,
            Ok(_) => return Ok(None),
            // Without tools, the template fails as well, and requests report the error.
            Err(_) if template.render(&[user()], true, &Map::new()).is_err() => return Ok(None),
            Err(error) => return Err(format!("it fails with tools: {error}")),
        };
        let mut failure = None;
        let mut render = |messages: &[Message]| match template.render(messages, false, &with) {
            Ok(text) => Some(text),
            Err(error) => {
                failure.get_or_insert(error.to_string());
                None
            }
        };
        let format = ToolFormat::rendered(&mut render, &user(), &prompt, source);
        match (format, failure) {
            (Some(format), _) => Ok(Some(format)),
            (None, Some(error)) => Err(format!("it fails with tool calls: {error}")),
            (None, None) => Err("the format of its tool calls is unknown".to_owned()),
        }
    }

    /// Detects the format from renderings of tool calls after a prompt.
    fn rendered(
        render: &mut impl FnMut(&[Message]) -> Option<String>,
        user: &Message,
        prompt: &str,
        source: &str,
    ) -> Option<ToolFormat> {
        let events = render(&[user.clone(), Message::assistant(CONTENT)])?;
        let (before, behind) = events.split_once(CONTENT)?;
        if before.ends_with("<|channel|>final<|message|>") {
            return Some(ToolFormat::new(CallSyntax::Harmony));
        }
        let messages = MessageMarks::of(before);
        let mut called = |n: usize| {
            let text = render(&[user.clone(), calling(n)])?;
            let n_said = without_open_tag(common_start(&text, before)).len();
            let n_prompt = without_open_tag(common_start(&text, prompt)).len();
            let text = &text[n_said.max(n_prompt)..];
            let whole = text.strip_suffix(behind);
            let whole = whole.or_else(|| text.trim_end().strip_suffix(behind.trim_end()));
            let cut = || &text[..text.len() - common_tags_behind(text, behind).len()];
            let calls = whole.unwrap_or_else(cut).trim_start();
            Some(messages.map_or_else(|| calls.to_owned(), |messages| messages.contents(calls)))
        };
        let one = called(1)?;
        let mut format = if one.contains(F) {
            of_calls(&one, called(2).filter(|two| two.contains(G)).as_deref())?
        } else {
            unrendered(source)?
        };
        let lead = "<|python_tag|>";
        if source.contains(lead) {
            format.lead = Some(lead.to_owned());
        }
        format.messages = messages;
        Some(format)
    }

    /// Creates a format without markers.
    pub fn new(form: CallSyntax) -> ToolFormat {
        let (open, head, tail, close) = Default::default();
        ToolFormat {
            open,
            head,
            id: None,
            form,
            tail,
            close,
            lead: None,
            messages: None,
            omits_calls: false,
        }
    }

    /// Returns all markers, concatenated.
    pub fn marks(&self) -> String {
        let ToolFormat {
            open,
            head,
            id,
            form,
            tail,
            close,
            lead,
            messages,
            omits_calls: _,
        } = self;
        let gap = |gap: &Marker| format!("{}{}", gap.before, gap.after.as_deref().unwrap_or_default());
        let inner = match form {
            CallSyntax::Object { .. } | CallSyntax::Python => String::new(),
            CallSyntax::Named { middle } => gap(middle),
            CallSyntax::Tagged { begin, key, value, end } => format!("{}{key}{}{end}", gap(begin), gap(value)),
            CallSyntax::Bare { quote } => quote.clone(),
            CallSyntax::Elements { begin, mark } => format!("{begin}{mark}"),
            CallSyntax::Harmony => HARMONY_MARKS.concat(),
        };
        let [lead, id] = [lead, id].map(|mark| mark.as_deref().unwrap_or_default());
        let messages = messages.map(MessageMarks::marks).unwrap_or_default();
        format!("{messages}{lead}{open}{head}{id}{inner}{tail}{close}")
    }
}

/// Returns a message with one or two tool calls.
fn calling(n: usize) -> Message {
    let call = |(name, id, arguments): (&str, &str, Json)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let number: u64 = NUMBER.parse().unwrap_or_default();
    let all = [
        (F, IDS[0], json!({A: VALUE_F, B: number})),
        (G, IDS[1], json!({A: VALUE_G})),
    ];
    let mut message = Message::assistant("");
    let calls: Vec<Json> = all.into_iter().take(n).map(call).collect();
    message.fields.insert("tool_calls".to_owned(), calls.into());
    message
}

fn unrendered(source: &str) -> Option<ToolFormat> {
    let (_, open, close, is_python) = UNRENDERED.iter().find(|(mark, ..)| source.contains(mark))?;
    let object = CallSyntax::Object {
        name: Some("name".to_owned()),
        arguments: "arguments".to_owned(),
        ids: Vec::new(),
    };
    let form = if *is_python { CallSyntax::Python } else { object };
    Some(ToolFormat {
        open: (*open).to_owned(),
        close: (*close).to_owned(),
        omits_calls: true,
        ..ToolFormat::new(form)
    })
}

/// Detects the format from a rendering of one call, and of two calls if the template supports them.
fn of_calls(one: &str, two: Option<&str>) -> Option<ToolFormat> {
    object(one, two).or_else(|| named(one, two))
}

/// Assigns the text before, between and after calls to the markers of a format.
fn around(before: &str, between: Option<&str>, behind: &str, form: CallSyntax) -> ToolFormat {
    let Some(between) = between else {
        return ToolFormat {
            head: before.to_owned(),
            tail: behind.to_owned(),
            ..ToolFormat::new(form)
        };
    };
    let head = common_tags_behind(before, between);
    let tail = common_tags_before(behind, &between[..between.len() - head.len()]);
    ToolFormat {
        open: before[..before.len() - head.len()].to_owned(),
        head: head.to_owned(),
        tail: tail.to_owned(),
        close: behind[tail.len()..].to_owned(),
        ..ToolFormat::new(form)
    }
}

/// Returns the JSON object of a call and its byte range.
fn call_object(text: &str, name: &str) -> Option<(usize, usize, Map<String, Json>)> {
    let starts = text.char_indices().filter(|(_, c)| *c == '{').map(|(at, _)| at);
    let read = |at: usize| {
        let mut stream = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Map<String, Json>>();
        let object = stream.next()?.ok()?;
        let is_call = object.iter().any(|(key, value)| key == name || *value == name);
        if !is_call {
            return None;
        }
        Some((at, at + stream.byte_offset(), object))
    };
    starts.filter_map(read).next()
}

fn object(one: &str, two: Option<&str>) -> Option<ToolFormat> {
    let (start, end, call) = call_object(one, F)?;
    let arguments = call.iter().find(|(_, value)| value.get(A).is_some())?.0.clone();
    let name = call.iter().find(|(_, value)| *value == F).map(|(key, _)| key.clone());
    let is_id = |(key, value): &(&String, &Json)| value.is_string() && Some(*key) != name.as_ref();
    let ids = call.iter().take_while(|(key, _)| **key != arguments).filter(is_id);
    let ids = ids.map(|(key, _)| key.clone()).collect();
    let between = two.and_then(|two| {
        let (_, end, _) = call_object(two, F)?;
        let (start, _, _) = call_object(&two[end..], G)?;
        Some(&two[end..end + start])
    });
    Some(around(
        &one[..start],
        between,
        &one[end..],
        CallSyntax::Object { name, arguments, ids },
    ))
}

/// Detects formats with the name outside the arguments.
fn named(one: &str, two: Option<&str>) -> Option<ToolFormat> {
    let (before, rest) = one.split_once(F)?;
    let with_id = before.split_once(IDS[0]);
    let id = with_id.map(|(_, id)| id.to_owned());
    // A repeated name and an id next to the name are not supported.
    if rest.contains(F) || id.as_ref().is_some_and(|id| id.trim().is_empty()) {
        return None;
    }
    let second = two.and_then(|two| two.split_once(F)?.1.split_once(G));
    let (form, end) = json_arguments(rest, second.map(|(_, rest)| rest))
        .or_else(|| literal_arguments(rest))
        .or_else(|| tagged_arguments(rest, second.map(|(_, rest)| rest)))
        .or_else(|| element_arguments(rest))?;
    let between = second.and_then(|(text, _)| text.get(end..));
    let (before, between) = match with_id {
        Some((before, _)) => (before, between.and_then(|text| Some(text.split_once(IDS[1])?.0))),
        None => (before, between),
    };
    Some(ToolFormat {
        id,
        ..around(before, between, &rest[end..], form)
    })
}

/// Detects arguments as a JSON object after a marker; returns their end. `second` is the text after the
/// second name.
fn json_arguments(rest: &str, second: Option<&str>) -> Option<(CallSyntax, usize)> {
    let find = |text: &str| {
        let start = text.find('{')?;
        let mut stream = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Map<String, Json>>();
        if !stream.next()?.ok()?.contains_key(A) {
            return None;
        }
        Some((start, start + stream.byte_offset()))
    };
    let (start, end) = find(rest)?;
    let other = second.and_then(|text| Some(&text[..find(text)?.0]));
    let middle = Marker::of(&rest[..start], other.unwrap_or(&rest[..start]))?;
    Some((CallSyntax::Named { middle }, end))
}

/// Detects arguments in parentheses or as an object with unquoted keys; returns their end.
fn literal_arguments(rest: &str) -> Option<(CallSyntax, usize)> {
    let end = rest.find(NUMBER).max(rest.find(VALUE_F))?;
    match rest.chars().next()? {
        '(' => Some((CallSyntax::Python, end + rest[end..].find(')')? + 1)),
        '{' => {
            let (_, behind_key) = rest.split_once(A)?;
            let quote = behind_key.strip_prefix(':')?.split_once(VALUE_F)?.0.to_owned();
            Some((CallSyntax::Bare { quote }, end + rest[end..].find('}')? + 1))
        }
        _ => None,
    }
}

/// Detects arguments between markers; returns the end of the last marker.
fn tagged_arguments(rest: &str, second: Option<&str>) -> Option<(CallSyntax, usize)> {
    let (to_key, behind) = rest.split_once(A)?;
    let (to_text, behind) = behind.split_once(VALUE_F)?;
    let (to_next, behind) = behind.split_once(B)?;
    let (to_number, last) = behind.split_once(NUMBER)?;
    // Markers that repeat the key are not supported.
    if to_next.contains(A) || last.contains(B) {
        return None;
    }
    let key = common_tags_behind(to_key, to_next);
    let end = common_tags_before(&to_next[..to_next.len() - key.len()], last);
    let begin = &to_key[..to_key.len() - key.len()];
    let other = second.and_then(|text| text.split_once(A)?.0.strip_suffix(key));
    let form = CallSyntax::Tagged {
        begin: Marker::of(begin, other.unwrap_or(begin))?,
        key: key.to_owned(),
        value: Marker::of(to_text, to_number)?,
        end: end.to_owned(),
    };
    if key.trim().is_empty() || end.trim().is_empty() {
        return None;
    }
    Some((form, rest.len() - last.len() + end.len()))
}

/// Detects arguments as elements with the names of the keys; returns their end.
fn element_arguments(rest: &str) -> Option<(CallSyntax, usize)> {
    let (to_key, behind) = rest.split_once(&format!("<{A}>{VALUE_F}"))?;
    let (mark, behind) = behind.split_once(&format!("</{A}>"))?;
    let begin = to_key.strip_suffix(mark)?;
    let next = format!("{mark}<{B}>{NUMBER}{mark}</{B}>");
    let last = behind.strip_prefix(&next)?;
    // Without a control token, a text could contain tags.
    if mark.trim().is_empty() {
        return None;
    }
    let (begin, mark) = (begin.to_owned(), mark.to_owned());
    Some((CallSyntax::Elements { begin, mark }, rest.len() - last.len()))
}

impl Marker {
    /// Returns the common parts of two texts. `None` if the end of the variable part cannot be determined.
    fn of(a: &str, b: &str) -> Option<Marker> {
        let (before, after) = if a == b {
            match IDS.iter().find_map(|id| a.split_once(id)) {
                Some((before, after)) => (before, Some(after)),
                None => (a, None),
            }
        } else {
            let before = common_start(a, b);
            (before, Some(common_end(&a[before.len()..], &b[before.len()..])))
        };
        if after.is_some_and(str::is_empty) {
            return None;
        }
        Some(Marker {
            before: before.to_owned(),
            after: after.map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_tools_are_a_problem_instead_of_missing() {
        let detect = |tools: &str, calls: &str| {
            let source = format!(
                "{{% if tools %}}{tools}{{% endif %}}{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content }}}}\
                 {{% for c in m.tool_calls or [] %}}{calls}{{% endfor %}}<|end|>{{% endfor %}}"
            );
            ToolFormat::detect(&ChatTemplate::new(&source, "", "").unwrap(), &source)
        };
        let (shown, name) = ("{{ tools | tojson }}", "{{ c.function.name }}");
        assert_eq!(detect("", name), Ok(None));
        let fails = detect("{{ raise_exception('no tools') }}", name).unwrap_err();
        assert!(fails.contains("no tools"), "{fails}");
        let fails = detect(shown, "{{ raise_exception('no calls') }}").unwrap_err();
        assert!(fails.contains("no calls"), "{fails}");
        let twice = format!("{name} calls {name} with {{{{ c.function.arguments | tojson }}}}");
        assert!(detect(shown, &twice).unwrap_err().contains("form"));
    }
}
