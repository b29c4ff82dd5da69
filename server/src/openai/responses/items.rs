//! Output items of a response, and the events that stream them.

use serde_json::{Value as Json, json};

use super::tools::{ToolKind, ToolKinds, text_of_arguments};
use crate::http::unique;

/// An output item of a response.
#[derive(Clone, Debug)]
pub enum Item {
    /// Reasoning.
    Reasoning { id: String, text: String },
    /// Message item with text content.
    Message {
        id: String,
        text: String,
        /// Log probabilities of the tokens, if requested.
        logprobs: Vec<Json>,
    },
    /// Tool call.
    Call {
        id: String,
        /// Id of the call, which its tool result repeats.
        call_id: String,
        /// Name of the function in the prompt.
        name: String,
        /// JSON object.
        arguments: String,
        /// Item type of the call; `None` for a plain function call.
        kind: Option<ToolKind>,
    },
}

type Event = (&'static str, Json);

impl Item {
    /// Returns the completed item in the API's format.
    pub fn json(&self) -> Json {
        self.with("completed")
    }

    fn with(&self, status: &str) -> Json {
        match self {
            Item::Reasoning { id, text } => {
                let content = if text.is_empty() {
                    json!([])
                } else {
                    json!([{ "type": "reasoning_text", "text": text }])
                };
                json!({ "id": id, "type": "reasoning", "summary": [], "content": content, "status": status })
            }
            Item::Message { id, text, logprobs } => {
                let content = if status == "completed" {
                    json!([part(text, logprobs)])
                } else {
                    json!([])
                };
                json!({ "id": id, "type": "message", "role": "assistant", "status": status, "content": content })
            }
            Item::Call {
                id,
                call_id,
                name,
                arguments,
                kind,
            } => {
                let mut call = json!({ "id": id, "call_id": call_id, "name": name, "status": status });
                match kind {
                    Some(ToolKind::Text) => {
                        call["type"] = "custom_tool_call".into();
                        call["input"] = text_of_arguments(arguments).into();
                        return call;
                    }
                    Some(ToolKind::Grouped { namespace, name }) => {
                        call["namespace"] = namespace.as_str().into();
                        call["name"] = name.as_str().into();
                    }
                    None => {}
                }
                call["type"] = "function_call".into();
                call["arguments"] = arguments.as_str().into();
                call
            }
        }
    }

    fn id(&self) -> &str {
        match self {
            Item::Reasoning { id, .. } | Item::Message { id, .. } | Item::Call { id, .. } => id,
        }
    }
}

/// Returns a content part of a message.
fn part(text: &str, logprobs: &[Json]) -> Json {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
}

/// Output items of a response in progress.
#[derive(Debug, Default)]
pub struct Items {
    /// All items; the last item may be open.
    pub all: Vec<Item>,
    is_open: bool,
    /// Log probabilities of tokens whose text is still incomplete.
    pending: Vec<Json>,
    kinds: ToolKinds,
}

impl Items {
    /// Creates an empty list. `kinds` lists tools whose calls are not plain function calls.
    pub fn new(kinds: ToolKinds) -> Items {
        Items {
            kinds,
            ..Items::default()
        }
    }

    /// Appends reasoning; returns the events.
    pub fn reasoning(&mut self, delta: &str) -> Vec<Event> {
        if delta.is_empty() {
            return Vec::new();
        }
        let is_open = self.is_open && matches!(self.all.last(), Some(Item::Reasoning { .. }));
        let item = || Item::Reasoning {
            id: unique("rs_"),
            text: String::new(),
        };
        let mut events = if is_open { Vec::new() } else { self.open(item()) };
        if let Some(Item::Reasoning { text, .. }) = self.all.last_mut() {
            *text += delta;
        }
        events.push((
            "response.reasoning_text.delta",
            self.at(json!({ "content_index": 0, "delta": delta })),
        ));
        events
    }

    /// Appends content and the log probability of its token; returns the events.
    pub fn text(&mut self, delta: &str, logprob: Option<Json>) -> Vec<Event> {
        self.pending.extend(logprob);
        if delta.is_empty() {
            return Vec::new();
        }
        let mut events = Vec::new();
        if !(self.is_open && matches!(self.all.last(), Some(Item::Message { .. }))) {
            events = self.open_message();
        }
        let new = std::mem::take(&mut self.pending);
        if let Some(Item::Message { text, logprobs, .. }) = self.all.last_mut() {
            *text += delta;
            logprobs.extend_from_slice(&new);
        }
        let data = self.at(json!({ "content_index": 0, "delta": delta, "logprobs": new }));
        events.push(("response.output_text.delta", data));
        events
    }

    fn open_message(&mut self) -> Vec<Event> {
        let mut events = self.open(Item::Message {
            id: unique("msg_"),
            text: String::new(),
            logprobs: Vec::new(),
        });
        let data = self.at(json!({ "content_index": 0, "part": part("", &[]) }));
        events.push(("response.content_part.added", data));
        events
    }

    /// Opens a tool call; returns the events.
    pub fn call(&mut self, name: String) -> Vec<Event> {
        self.pending.clear();
        let kind = self.kinds.get(&name).cloned();
        let prefix = if kind == Some(ToolKind::Text) { "ctc_" } else { "fc_" };
        self.open(Item::Call {
            id: unique(prefix),
            call_id: unique("call_"),
            name,
            arguments: String::new(),
            kind,
        })
    }

    /// Appends to the arguments of the open tool call. The input of a custom tool is sent at the end, when
    /// its JSON string is complete.
    pub fn arguments(&mut self, delta: &str) -> Vec<Event> {
        if let Some(Item::Call { arguments, kind, .. }) = self.all.last_mut() {
            *arguments += delta;
            if *kind == Some(ToolKind::Text) {
                return Vec::new();
            }
        }
        vec![(
            "response.function_call_arguments.delta",
            self.at(json!({ "delta": delta })),
        )]
    }

    /// Closes the last item. Adds an empty message if the response has no items.
    pub fn end(&mut self) -> Vec<Event> {
        let mut events = if self.all.is_empty() {
            self.open_message()
        } else {
            Vec::new()
        };
        events.extend(self.close());
        events
    }

    /// Returns the output as a chat message.
    pub fn message(&self) -> Option<Json> {
        if self.all.is_empty() {
            return None;
        }
        let (mut content, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
        for item in &self.all {
            match item {
                Item::Reasoning { text, .. } => thought += text,
                Item::Message { text, .. } => content += text,
                Item::Call {
                    call_id,
                    name,
                    arguments,
                    ..
                } => {
                    let function = json!({ "name": name, "arguments": arguments });
                    calls.push(json!({ "id": call_id, "type": "function", "function": function }));
                }
            }
        }
        let mut message = json!({ "role": "assistant", "content": content });
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        if !thought.is_empty() {
            message["reasoning_content"] = thought.into();
        }
        Some(message)
    }

    fn open(&mut self, item: Item) -> Vec<Event> {
        let mut events = self.close();
        let data = json!({ "output_index": self.all.len(), "item": item.with("in_progress") });
        events.push(("response.output_item.added", data));
        self.all.push(item);
        self.is_open = true;
        events
    }

    fn close(&mut self) -> Vec<Event> {
        let item = match self.all.last() {
            Some(item) if self.is_open => item,
            _ => return Vec::new(),
        };
        let mut events = match item {
            Item::Reasoning { text, .. } => {
                vec![(
                    "response.reasoning_text.done",
                    self.at(json!({ "content_index": 0, "text": text })),
                )]
            }
            Item::Message { text, logprobs, .. } => vec![
                (
                    "response.output_text.done",
                    self.at(json!({ "content_index": 0, "text": text, "logprobs": logprobs })),
                ),
                (
                    "response.content_part.done",
                    self.at(json!({ "content_index": 0, "part": part(text, logprobs) })),
                ),
            ],
            Item::Call {
                arguments,
                kind: Some(ToolKind::Text),
                ..
            } => {
                let input = text_of_arguments(arguments);
                vec![
                    (
                        "response.custom_tool_call_input.delta",
                        self.at(json!({ "delta": input })),
                    ),
                    (
                        "response.custom_tool_call_input.done",
                        self.at(json!({ "input": input })),
                    ),
                ]
            }
            Item::Call { name, arguments, .. } => {
                let data = self.at(json!({ "name": name, "arguments": arguments }));
                vec![("response.function_call_arguments.done", data)]
            }
        };
        let data = json!({ "output_index": self.all.len() - 1, "item": item.json() });
        events.push(("response.output_item.done", data));
        self.is_open = false;
        events
    }

    /// Adds the index and id of the last item to the data of an event.
    fn at(&self, mut data: Json) -> Json {
        data["output_index"] = self.all.len().saturating_sub(1).into();
        data["item_id"] = self.all.last().map_or("", Item::id).into();
        data
    }
}
