//! How a model writes calls of functions, found out by rendering its template with names and values that no template contains.

use engine::chat::{ChatTemplate, Message};
use serde_json::{Map, Value as Json, json};

use super::marks::{common_end, common_start, common_tags_before, common_tags_behind, without_open_tag};

/// The form of calls: `open head CALL tail head CALL tail … close`. White space in the marks is what the template has; models leave some out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFormat {
    /// Before the first call; may be empty.
    pub open: String,
    /// Before each call; may be empty.
    pub head: String,
    /// Name and arguments.
    pub form: Form,
    /// Behind each call.
    pub tail: String,
    /// Behind the last one.
    pub close: String,
    /// What some models write before a call besides.
    pub lead: Option<String>,
}

/// How a name and arguments are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// An object of JSON with both.
    Object {
        /// The key of the name; `None`: the name is the key of the arguments.
        name: Option<String>,
        /// The key of the arguments.
        arguments: String,
        /// Further keys before the name, such as of an id.
        ids: Vec<String>,
    },
    /// The name, a mark, and the arguments as an object of JSON.
    Named {
        /// Between them.
        middle: Gap,
    },
    /// The name, and each argument by its key and value between marks.
    Tagged {
        /// Behind the name.
        begin: Gap,
        /// Before a key.
        key: String,
        /// Between key and value.
        value: Gap,
        /// Behind a value.
        end: String,
    },
    /// The name, and an object with bare keys and texts between marks.
    Bare {
        /// What stands around texts.
        quote: String,
    },
    /// The name, and arguments as Python has them.
    Python,
    /// Messages in channels, one of which has a function for its recipient (GPT-OSS' Harmony).
    Harmony,
}

/// A mark with something in it that differs from call to call, such as an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Up to there.
    pub before: String,
    /// And behind, if there is such a thing.
    pub after: Option<String>,
}

const F: &str = "mark_f_1f0c";
const G: &str = "mark_g_92e1";
const A: &str = "key_a_83d2";
const B: &str = "key_b_5a77";
const VALUE_F: &str = "~va-1c~";
const VALUE_G: &str = "~vg-8d~";
const NUMBER: &str = "40961";
const CONTENT: &str = "~C-77b1~";
/// Some templates want ids of nine letters and digits.
const IDS: [&str; 2] = ["aB3dE5gH7", "x9Y8z7W6v"];

/// Forms of templates that tell of functions and leave out calls: a mark in their source, and what the models are known to write.
const UNRENDERED: &[(&str, &str, &str, bool)] = &[
    (
        "<|tool_list_start|>",
        "<|tool_call_start|>[",
        "]<|tool_call_end|>",
        true,
    ),
    ("<|/tool|>", "<|tool_call|>[", "]<|/tool_call|>", false),
    ("<|tool_call|>", "<|tool_call|>[", "]", false),
];

impl ToolFormat {
    /// The form of a template's calls; `None` if it takes no tools, or writes calls in a form that is not understood.
    pub fn of(template: &ChatTemplate, source: &str) -> Option<ToolFormat> {
        let schema = json!({"type": "object", "properties": {A: {"type": "string", "description": "-"}, B: {"type": "integer", "description": "-"}}, "required": [A]});
        let tool = |name: &str| json!({"type": "function", "function": {"name": name, "description": "-", "parameters": schema}});
        let with = Map::from_iter([("tools".to_owned(), json!([tool(F), tool(G)]))]);
        let user = || Message::user("~U-5a0e~");
        let render = |messages: &[Message], ask: bool| template.render(messages, ask, &with).ok();
        // A template that leaves out tools would write calls of what the model has never been told of.
        let prompt = render(&[user()], true)?;
        if !prompt.contains(F) {
            return None;
        }
        let said = render(&[user(), Message::assistant(CONTENT)], false)?;
        let (before, behind) = said.split_once(CONTENT)?;
        if before.ends_with("<|channel|>final<|message|>") {
            return Some(ToolFormat::new(Form::Harmony));
        }
        let called = |n: usize| {
            let text = render(&[user(), calling(n)], false)?;
            let n_said = without_open_tag(common_start(&text, before)).len();
            let n_prompt = without_open_tag(common_start(&text, &prompt)).len();
            let text = &text[n_said.max(n_prompt)..];
            let whole = text.strip_suffix(behind);
            let whole = whole.or_else(|| text.trim_end().strip_suffix(behind.trim_end()));
            let cut = || &text[..text.len() - common_tags_behind(text, behind).len()];
            Some(whole.unwrap_or_else(cut).trim_start().to_owned())
        };
        let one = called(1)?;
        let mut format = match one.contains(F) {
            true => of_calls(&one, called(2).filter(|two| two.contains(G)).as_deref())?,
            false => unrendered(source)?,
        };
        let lead = "<|python_tag|>";
        format.lead = source.contains(lead).then(|| lead.to_owned());
        Some(format)
    }

    /// A form without marks.
    pub fn new(form: Form) -> ToolFormat {
        let (open, head, tail, close) = Default::default();
        ToolFormat {
            open,
            head,
            form,
            tail,
            close,
            lead: None,
        }
    }

    /// All its marks, one after the other.
    pub fn marks(&self) -> String {
        let ToolFormat {
            open,
            head,
            form,
            tail,
            close,
            lead,
        } = self;
        let gap = |gap: &Gap| format!("{}{}", gap.before, gap.after.as_deref().unwrap_or_default());
        let inner = match form {
            Form::Object { .. } | Form::Python => String::new(),
            Form::Named { middle } => gap(middle),
            Form::Tagged { begin, key, value, end } => format!("{}{key}{}{end}", gap(begin), gap(value)),
            Form::Bare { quote } => quote.clone(),
            Form::Harmony => super::harmony::MARKS.concat(),
        };
        let lead = lead.as_deref().unwrap_or_default();
        format!("{lead}{open}{head}{inner}{tail}{close}")
    }
}

/// A message that calls one function, or two.
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
    let object = Form::Object {
        name: Some("name".to_owned()),
        arguments: "arguments".to_owned(),
        ids: Vec::new(),
    };
    let form = if *is_python { Form::Python } else { object };
    Some(ToolFormat {
        open: (*open).to_owned(),
        close: (*close).to_owned(),
        ..ToolFormat::new(form)
    })
}

/// The form of one call, and of two if the template takes as many.
fn of_calls(one: &str, two: Option<&str>) -> Option<ToolFormat> {
    object(one, two).or_else(|| named(one, two))
}

/// Divides what stands before a first call, between two, and behind the last one into marks of each and of all.
fn around(before: &str, between: Option<&str>, behind: &str, form: Form) -> ToolFormat {
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

/// The object of a call in a text, and where it begins and ends.
fn call_object(text: &str, name: &str) -> Option<(usize, usize, Map<String, Json>)> {
    let starts = text.char_indices().filter(|(_, c)| *c == '{').map(|(at, _)| at);
    let read = |at: usize| {
        let mut stream = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Map<String, Json>>();
        let object = stream.next()?.ok()?;
        let is_call = object.iter().any(|(key, value)| key == name || *value == name);
        is_call.then(|| (at, at + stream.byte_offset(), object))
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
        Form::Object { name, arguments, ids },
    ))
}

/// Forms whose name stands outside of the arguments.
fn named(one: &str, two: Option<&str>) -> Option<ToolFormat> {
    let (before, rest) = one.split_once(F)?;
    // An id before the name, or a name that comes again, is not understood.
    if rest.contains(F) || IDS.iter().any(|id| before.contains(id)) {
        return None;
    }
    let second = two.and_then(|two| two.split_once(F)?.1.split_once(G));
    let (form, end) = json_arguments(rest, second.map(|(_, rest)| rest))
        .or_else(|| literal_arguments(rest))
        .or_else(|| tagged_arguments(rest, second.map(|(_, rest)| rest)))?;
    let between = second.and_then(|(text, _)| text.get(end..));
    Some(around(before, between, &rest[end..], form))
}

/// Arguments as an object of JSON behind a mark, and where they end. `second`: what follows the other name.
fn json_arguments(rest: &str, second: Option<&str>) -> Option<(Form, usize)> {
    let find = |text: &str| {
        let start = text.find('{')?;
        let mut stream = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Map<String, Json>>();
        let is_one = stream.next()?.ok()?.contains_key(A);
        is_one.then(|| (start, start + stream.byte_offset()))
    };
    let (start, end) = find(rest)?;
    let other = second.and_then(|text| Some(&text[..find(text)?.0]));
    let middle = Gap::of(&rest[..start], other.unwrap_or(&rest[..start]))?;
    Some((Form::Named { middle }, end))
}

/// Arguments in parentheses, or as an object with bare keys, and where they end.
fn literal_arguments(rest: &str) -> Option<(Form, usize)> {
    let end = rest.find(NUMBER).max(rest.find(VALUE_F))?;
    match rest.chars().next()? {
        '(' => Some((Form::Python, end + rest[end..].find(')')? + 1)),
        '{' => {
            let (_, behind_key) = rest.split_once(A)?;
            let quote = behind_key.strip_prefix(':')?.split_once(VALUE_F)?.0.to_owned();
            Some((Form::Bare { quote }, end + rest[end..].find('}')? + 1))
        }
        _ => None,
    }
}

/// Arguments one by one between marks, and where the mark behind the last one ends.
fn tagged_arguments(rest: &str, second: Option<&str>) -> Option<(Form, usize)> {
    let (to_key, behind) = rest.split_once(A)?;
    let (to_text, behind) = behind.split_once(VALUE_F)?;
    let (to_next, behind) = behind.split_once(B)?;
    let (to_number, last) = behind.split_once(NUMBER)?;
    // Marks that have the key in them again.
    if to_next.contains(A) || last.contains(B) {
        return None;
    }
    let key = common_tags_behind(to_key, to_next);
    let end = common_tags_before(&to_next[..to_next.len() - key.len()], last);
    let begin = &to_key[..to_key.len() - key.len()];
    let other = second.and_then(|text| text.split_once(A)?.0.strip_suffix(key));
    let form = Form::Tagged {
        begin: Gap::of(begin, other.unwrap_or(begin))?,
        key: key.to_owned(),
        value: Gap::of(to_text, to_number)?,
        end: end.to_owned(),
    };
    let is_whole = !key.trim().is_empty() && !end.trim().is_empty();
    is_whole.then_some((form, rest.len() - last.len() + end.len()))
}

impl Gap {
    /// What two texts have in common. `None` if nothing tells where a difference ends.
    fn of(a: &str, b: &str) -> Option<Gap> {
        let split_at_id = IDS.iter().find_map(|id| a.split_once(id)).filter(|_| a == b);
        let (before, after) = match split_at_id {
            Some((before, after)) => (before, Some(after)),
            None if a == b => (a, None),
            None => {
                let before = common_start(a, b);
                (before, Some(common_end(&a[before.len()..], &b[before.len()..])))
            }
        };
        if after.is_some_and(str::is_empty) {
            return None;
        }
        Some(Gap {
            before: before.to_owned(),
            after: after.map(str::to_owned),
        })
    }
}
