//! Chat template of a model: detection of its features, and rendering of prompts.

use super::meter::{BASE_BUDGET, BUDGET, BUDGET_PER_BYTE};
use super::time::strftime;
use super::{ChatError, Message, runtime, values};
use crate::gguf::Metadata;
use crate::vocab::{Token, Vocab};
use minijinja::{Environment, Value};
use serde::Serialize;
use serde_json::ser::Formatter;
use serde_json::{Map, Value as Json, json};
use std::borrow::Cow;
use std::io::{self, Write};
use std::time::SystemTime;

/// GGUF key of the chat template.
const KEY: &str = "tokenizer.chat_template";
/// Maximum size of a template. The largest known templates have some tens of KiB.
const MAX_SOURCE: usize = 256 << 10;
/// Maximum nesting depth of JSON passed to a template.
const MAX_JSON_DEPTH: usize = 128;
/// Unique messages that probe which roles a template renders.
const SYSTEM_MARK: &str = "~S-1f0c~";
const USER_MARK: &str = "~U-83d2~";

/// A compiled chat template with its detected features.
pub struct ChatTemplate {
    source: String,
    env: Environment<'static>,
    now: fn() -> SystemTime,
    bos: String,
    eos: String,
    has_system: bool,
    /// Whether the template supports system messages after other messages.
    has_later_system: bool,
    content_is_list: bool,
    /// The template needs the arguments of tool calls as JSON text instead of an object.
    arguments_are_text: bool,
}

/// Difference between a context's text and a new prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// The context contains a prefix of the prompt; this text follows it.
    Suffix(String),
    /// The prompt does not start with the context's text; this is the whole prompt.
    Full(String),
}

/// Result of a rendering that should contain a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Yes,
    No,
    Failed,
}

impl ChatTemplate {
    /// Compiles the template source from `tokenizer.chat_template`. `bos` and `eos` are the strings of the
    /// BOS and EOS tokens, or empty. An empty source is an error, [`ChatError::NoTemplate`].
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, ChatError> {
        ChatTemplate::with_clock(source, bos, eos, SystemTime::now)
    }

    /// Compiles the template of a model. Fails with [`ChatError::NoTemplate`] if the model has none.
    pub fn of_model(metadata: &Metadata, vocab: &Vocab) -> Result<ChatTemplate, ChatError> {
        let source = metadata
            .optional::<&str>(KEY)
            .map_err(|e| ChatError::Key { message: e.to_string() })?;
        let text = |token: Option<Token>| token.map_or(Cow::Borrowed(""), |token| vocab.text(token));
        ChatTemplate::new(
            source.ok_or(ChatError::NoTemplate)?,
            &text(vocab.bos()),
            &text(vocab.eos()),
        )
    }

    /// Like [`ChatTemplate::new`], with a custom clock.
    ///
    /// # Errors
    /// Returns a [`ChatError`] if the source is empty, too long, or invalid, or if the template ignores the user's
    /// messages.
    pub fn with_clock(source: &str, bos: &str, eos: &str, now: fn() -> SystemTime) -> Result<ChatTemplate, ChatError> {
        if source.trim().is_empty() {
            return Err(ChatError::NoTemplate);
        }
        if source.len() > MAX_SOURCE {
            return Err(ChatError::Limit {
                what: "bytes of template",
                limit: MAX_SOURCE as u64,
            });
        }
        let source = normalized(&without_generation_tags(source));
        runtime::compile(&source)?;
        let (env, bos, eos) = (runtime::environment(now), bos.to_string(), eos.to_string());
        let mut template = ChatTemplate {
            source,
            env,
            now,
            bos,
            eos,
            has_system: true,
            has_later_system: true,
            content_is_list: false,
            arguments_are_text: false,
        };
        template.probe()?;
        Ok(template)
    }

    /// Detects the template's features by rendering simple messages. Errors other than limits count as
    /// missing features, because a real call may pass variables that the template needs. A template that
    /// renders all of them without the user's text is an error.
    fn probe(&mut self) -> Result<(), ChatError> {
        let user = Message::user(USER_MARK);
        let system = Message::system(SYSTEM_MARK);
        let (alone, both) = ([user.clone()], [system.clone(), user.clone()]);
        if self.shows(&alone, USER_MARK)? != Shown::Yes {
            self.content_is_list = true;
            self.content_is_list = self.shows(&alone, USER_MARK)? == Shown::Yes;
        }
        let is_lost = |shown| shown == Shown::No;
        if is_lost(self.shows(&alone, USER_MARK)?) && is_lost(self.shows(&both, USER_MARK)?) {
            return Err(ChatError::NoUser);
        }
        self.has_system = self.shows(&both, SYSTEM_MARK)? == Shown::Yes;
        let second = [Message::system("a"), system.clone(), user.clone()];
        let last = [user.clone(), Message::assistant("a"), user, system];
        self.has_later_system = self.has_system
            && self.shows(&second, SYSTEM_MARK)? == Shown::Yes
            && self.shows(&last, SYSTEM_MARK)? == Shown::Yes;
        self.probe_arguments()
    }

    /// Detects templates that fail if the arguments of a tool call are an object, but not if they are text.
    fn probe_arguments(&mut self) -> Result<(), ChatError> {
        if !self.source.contains("tool_calls") {
            return Ok(());
        }
        let mut called = Message::assistant("");
        let function = json!({"name": "f", "arguments": {"a": "b"}});
        let calls = json!([{"id": "aB3dE5gH7", "type": "function", "function": function}]);
        called.fields.insert("tool_calls".to_owned(), calls);
        let messages = [Message::user(USER_MARK), called];
        if self.shows(&messages, USER_MARK)? == Shown::Failed {
            self.arguments_are_text = true;
            self.arguments_are_text = self.shows(&messages, USER_MARK)? != Shown::Failed;
        }
        Ok(())
    }

    /// Renders messages and looks for a text. The representation of a list of parts does not count.
    fn shows(&self, messages: &[Message], mark: &str) -> Result<Shown, ChatError> {
        let rendered = match self.render_as_is(messages, true, &Map::new()) {
            // Some templates need tools.
            Err(error) if !matches!(error, ChatError::Limit { .. }) => {
                let function =
                    json!({"name": "f", "description": "-", "parameters": {"type": "object", "properties": {}}});
                let tools = json!([{"type": "function", "function": function}]);
                self.render_as_is(messages, true, &Map::from_iter([("tools".to_owned(), tools)]))
            }
            rendered => rendered,
        };
        match rendered {
            Ok(text) if text.contains(mark) && !text.contains("'type': 'text'") => Ok(Shown::Yes),
            Ok(_) => Ok(Shown::No),
            Err(limit @ ChatError::Limit { .. }) => Err(limit),
            Err(_) => Ok(Shown::Failed),
        }
    }

    /// Returns true if the template supports the system role. Otherwise [`ChatTemplate::render`] prepends
    /// system messages to the first user message.
    pub fn has_system_role(&self) -> bool {
        self.has_system
    }

    /// Renders the prompt for a conversation. With `add_generation_prompt`, the prompt ends where the model's
    /// response starts. `extras` are additional variables, such as `tools` or `enable_thinking`.
    ///
    /// If the template supports only leading system messages, later ones become user messages. If it requires
    /// alternating roles, consecutive user messages are merged. Clients send both, regardless of the model.
    ///
    /// # Errors
    /// Returns a [`ChatError`] if the template rejects the messages, fails, or exceeds a limit.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        extras: &Map<String, Json>,
    ) -> Result<String, ChatError> {
        let messages = if self.has_later_system {
            Cow::Borrowed(messages)
        } else {
            fold_system(messages, self.has_system)
        };
        match self.render_as_is(&messages, add_generation_prompt, extras) {
            Err(rejected @ ChatError::Rejected { .. }) => {
                let in_turn = in_turn(&messages).ok_or_else(|| rejected.clone())?;
                let rendered = self.render_as_is(&in_turn, add_generation_prompt, extras);
                rendered.map_err(|_| rejected)
            }
            rendered => rendered,
        }
    }

    /// Returns the text to append to a context that contains `context`, an earlier prompt and its completion,
    /// to obtain the prompt for `messages`. Returns the whole prompt if the template changes earlier text.
    ///
    /// # Errors
    /// Returns a [`ChatError`] under the conditions of [`ChatTemplate::render`].
    pub fn render_delta(
        &self,
        context: &str,
        messages: &[Message],
        add_generation_prompt: bool,
        extras: &Map<String, Json>,
    ) -> Result<Delta, ChatError> {
        let prompt = self.render(messages, add_generation_prompt, extras)?;
        Ok(match prompt.strip_prefix(context) {
            Some(suffix) => Delta::Suffix(suffix.to_string()),
            None => Delta::Full(prompt),
        })
    }

    /// Returns true if a prompt starts with the BOS token, so that the tokenizer must not add another.
    pub fn has_bos(&self, prompt: &str) -> bool {
        !self.bos.is_empty() && prompt.starts_with(&self.bos)
    }

    fn render_as_is(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        extras: &Map<String, Json>,
    ) -> Result<String, ChatError> {
        let mut size = 0;
        let messages = messages
            .iter()
            .map(|m| self.message(m, &mut size))
            .collect::<Result<Vec<Value>, ChatError>>()?;
        let mut root = Vec::with_capacity(extras.len() + 7);
        for (name, value) in extras {
            root.push((Value::from(name), value_of(value, &mut size, 0)?));
        }
        let budget = BASE_BUDGET
            .saturating_add(BUDGET_PER_BYTE.saturating_mul(size as u64))
            .min(i64::MAX as u64);
        let defaults = self.defaults(extras).into_iter();
        root.extend(
            defaults
                .filter(|(name, _)| !extras.contains_key(*name))
                .map(|(name, value)| (Value::from(name), value)),
        );
        let own = [
            ("messages", values::list(messages)),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("bos_token", Value::from(&self.bos)),
            ("eos_token", Value::from(&self.eos)),
            (BUDGET, Value::from(budget)),
        ];
        root.extend(own.map(|(name, value)| (Value::from(name), value)));
        runtime::render(&self.env, &self.source, &Value::from_pairs(root))
    }

    /// Returns the variables that templates get from other programs unless the caller sets them.
    fn defaults(&self, extras: &Map<String, Json>) -> [(&'static str, Value); 6] {
        let now = (self.now)();
        // A time that cannot be formatted is left undefined.
        let time = |format| strftime(format, now).map_or(Value::UNDEFINED, Value::from);
        [
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            ("enable_thinking", Value::from(true)),
            ("date_string", time("%d %b %Y")),
            ("datetime", time("%b %d %Y %H:%M:%S GMT")),
            ("functions", self.functions(extras)),
        ]
    }

    /// Returns the tools as text, which Firefunction's template reads.
    fn functions(&self, extras: &Map<String, Json>) -> Value {
        match extras.get("tools") {
            _ if !self.source.contains("functions") => Value::UNDEFINED,
            Some(tools) if tools != &Json::Null => Value::from(format!("{tools:#}")),
            _ => Value::from(""),
        }
    }

    fn message(&self, message: &Message, size: &mut usize) -> Result<Value, ChatError> {
        *size += message.role.len() + message.content.len() + 64;
        let content = if self.content_is_list {
            let part = [("type", "text"), ("text", message.content.as_str())];
            let part = part.map(|(name, value)| (Value::from(name), Value::from(value)));
            values::list(vec![values::dict(part)])
        } else {
            Value::from(&message.content)
        };
        let mut fields = vec![
            (Value::from("role"), Value::from(&message.role)),
            (Value::from("content"), content),
        ];
        for (name, value) in &message.fields {
            let value = match name.as_str() {
                "tool_calls" if self.arguments_are_text => value_of(&with_text_arguments(value)?, size, 0)?,
                _ => value_of(value, size, 0)?,
            };
            fields.push((Value::from(name), value));
        }
        Ok(values::dict(fields))
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("source", &self.source)
            .field("has_system", &self.has_system)
            .finish_non_exhaustive()
    }
}

/// Merges the leading system messages and converts later ones to user messages. Without a system role,
/// prepends the merged message to the first user message.
fn fold_system(messages: &[Message], has_system: bool) -> Cow<'_, [Message]> {
    let n_system = messages.iter().take_while(|m| m.role == "system").count();
    let is_later = |m: &Message| m.role == "system";
    if n_system <= usize::from(has_system) && !messages[n_system..].iter().any(is_later) {
        return Cow::Borrowed(messages);
    }
    let texts: Vec<&str> = messages[..n_system].iter().map(|m| m.content.as_str()).collect();
    let instructions = texts.join("\n\n");
    let said = |m: &Message| match m.role.as_str() {
        "system" => Message::user(m.content.clone()),
        _ => m.clone(),
    };
    let mut folded: Vec<Message> = messages[n_system..].iter().map(said).collect();
    match folded.first_mut().filter(|m| m.role == "user") {
        _ if n_system == 0 => {}
        _ if has_system => folded.insert(0, Message::system(instructions)),
        Some(user) => user.content = format!("{instructions}\n\n{}", user.content),
        None => folded.insert(0, Message::user(instructions)),
    }
    Cow::Owned(folded)
}

/// Merges user messages that follow another user message or a tool result. Returns `None` if there are none.
fn in_turn(messages: &[Message]) -> Option<Vec<Message>> {
    let mut joined: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match joined.last_mut() {
            Some(before) if message.role == "user" && matches!(before.role.as_str(), "user" | "tool") => {
                before.content = format!("{}\n\n{}", before.content, message.content);
            }
            _ => joined.push(message.clone()),
        }
    }
    if joined.len() < messages.len() {
        Some(joined)
    } else {
        None
    }
}

/// Returns tool calls whose arguments are JSON text.
fn with_text_arguments(calls: &Json) -> Result<Json, ChatError> {
    let mut calls = calls.clone();
    for call in calls.as_array_mut().into_iter().flatten() {
        let arguments = call
            .get_mut("function")
            .and_then(|function| function.get_mut("arguments"));
        if let Some(arguments) = arguments.filter(|arguments| arguments.is_object()) {
            *arguments = python_text(arguments)?.into();
        }
    }
    Ok(calls)
}

/// Returns JSON with the separators of Python's `json.dumps`.
fn python_text(value: &Json) -> Result<String, ChatError> {
    let mut out = Vec::new();
    let written = value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, PythonFormatter));
    let text = written.ok().and_then(|()| String::from_utf8(out).ok());
    text.ok_or(ChatError::Engine)
}

struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// Converts JSON to a template value and adds its size to `size`.
fn value_of(json: &Json, size: &mut usize, depth: usize) -> Result<Value, ChatError> {
    if depth > MAX_JSON_DEPTH {
        return Err(ChatError::Limit {
            what: "levels of nesting in the input",
            limit: MAX_JSON_DEPTH as u64,
        });
    }
    *size += 16;
    Ok(match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::from(n),
            (_, Some(n)) => Value::from(n),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => {
            *size += text.len();
            Value::from(text)
        }
        Json::Array(items) => {
            let items = items.iter().map(|item| value_of(item, size, depth + 1));
            values::list(items.collect::<Result<_, _>>()?)
        }
        Json::Object(fields) => {
            let mut pairs = Vec::with_capacity(fields.len());
            for (name, value) in fields {
                *size += name.len();
                pairs.push((Value::from(name), value_of(value, size, depth + 1)?));
            }
            values::dict(pairs)
        }
    })
}

/// Converts all line ends to newlines, as Jinja does.
fn normalized(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// Replaces `{% generation %}` tags, which mark the model's output for training, by a condition that is
/// always true. This preserves their handling of white space; `transformers` also prints the contents.
fn without_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let word = tag[..end]
            .trim_start_matches(['-', '+'])
            .trim_end_matches(['-', '+'])
            .trim();
        let replacement = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        out.push_str(&tag[..end].replacen(word, replacement, 1));
        rest = &tag[end..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}
