//! A model's chat template: what it supports, and prompts from messages.

use super::meter::{BASE_BUDGET, BUDGET, BUDGET_PER_BYTE};
use super::{ChatError, Message, runtime};
use crate::gguf::Metadata;
use crate::vocab::{Token, Vocab};
use minijinja::{Environment, Value};
use serde_json::{Map, Value as Json};
use std::borrow::Cow;
use std::time::SystemTime;

/// Where a model file holds its template.
const KEY: &str = "tokenizer.chat_template";
/// Size of a template that is looked at. The largest known ones have some tens of KiB.
const MAX_SOURCE: usize = 256 << 10;
/// Levels of nesting in JSON that is handed to a template.
const MAX_JSON_DEPTH: usize = 128;
/// Messages with marks that no template contains, to see what comes through.
const SYSTEM_MARK: &str = "~S-1f0c~";
const USER_MARK: &str = "~U-83d2~";

/// A chat template, checked, with what it supports.
pub struct ChatTemplate {
    source: String,
    env: Environment<'static>,
    bos: String,
    eos: String,
    has_system: bool,
    /// System messages may follow others.
    has_later_system: bool,
    content_is_list: bool,
}

/// How to bring a context up to date with a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// The context holds the beginning of the prompt; this comes after it.
    Suffix(String),
    /// It does not: this is the whole prompt.
    Full(String),
}

impl ChatTemplate {
    /// A template from the text in `tokenizer.chat_template`, with the texts of the BOS and EOS tokens (empty where
    /// there are none). Text without content is [`ChatError::NoTemplate`].
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, ChatError> {
        ChatTemplate::with_clock(source, bos, eos, SystemTime::now)
    }

    /// The template that came with a model; [`ChatError::NoTemplate`] where none did.
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

    /// As [`ChatTemplate::new`], with another clock than the system's.
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
        let source = without_generation_tags(source).into_owned();
        runtime::compile(&source)?;
        let (env, bos, eos) = (runtime::environment(now), bos.to_string(), eos.to_string());
        let mut template = ChatTemplate {
            source,
            env,
            bos,
            eos,
            has_system: true,
            has_later_system: true,
            content_is_list: false,
        };
        template.probe()?;
        Ok(template)
    }

    /// Finds out what the template makes of simple messages. Any error but a limit is an answer too: what such a
    /// template refuses here it may accept with the variables of a real call.
    fn probe(&mut self) -> Result<(), ChatError> {
        let shows = |template: &ChatTemplate, messages: &[Message], mark: &str| match template.render_as_is(
            messages,
            true,
            &Map::new(),
        ) {
            Ok(text) => Ok(text.contains(mark)),
            Err(limit @ ChatError::Limit { .. }) => Err(limit),
            Err(_) => Ok(false),
        };
        let user = Message::user(USER_MARK);
        if !shows(self, std::slice::from_ref(&user), USER_MARK)? {
            self.content_is_list = true;
            self.content_is_list = shows(self, std::slice::from_ref(&user), USER_MARK)?;
        }
        let system = Message::system(SYSTEM_MARK);
        self.has_system = shows(self, &[system.clone(), user.clone()], SYSTEM_MARK)?;
        let second = [Message::system("a"), system.clone(), user.clone()];
        let last = [user.clone(), Message::assistant("a"), user, system];
        self.has_later_system =
            self.has_system && shows(self, &second, SYSTEM_MARK)? && shows(self, &last, SYSTEM_MARK)?;
        Ok(())
    }

    /// Does the template know the system role? Where not, [`ChatTemplate::render`] puts a system message in front of
    /// the first message of the user.
    pub fn has_system_role(&self) -> bool {
        self.has_system
    }

    /// The prompt for a conversation. `add_generation_prompt`: ends where the model's answer begins. `extras`: further
    /// variables (`tools`, `enable_thinking`...). Where the template takes instructions at the beginning alone, later
    /// ones are the user's words, and where it wants user and assistant in turn, messages of the user's that follow each
    /// other are one: programs send both, whatever the model.
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

    /// What to append to a context that holds the text `context` (an earlier prompt and the answer to it) so that it
    /// holds the prompt for `messages`; the whole prompt where the template has changed what came before.
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

    /// Does a prompt begin with the BOS token's text, so that the tokenizer must not add another?
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
        for name in ["tools", "documents"]
            .into_iter()
            .filter(|name| !extras.contains_key(*name))
        {
            root.push((Value::from(name), Value::from(())));
        }
        let own = [
            ("messages", Value::from(messages)),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("bos_token", Value::from(&self.bos)),
            ("eos_token", Value::from(&self.eos)),
            (BUDGET, Value::from(budget)),
        ];
        root.extend(own.map(|(name, value)| (Value::from(name), value)));
        runtime::render(&self.env, &self.source, &Value::from_pairs(root))
    }

    fn message(&self, message: &Message, size: &mut usize) -> Result<Value, ChatError> {
        *size += message.role.len() + message.content.len() + 64;
        let content = match self.content_is_list {
            true => Value::from(vec![Value::from_pairs([
                ("type", "text"),
                ("text", message.content.as_str()),
            ])]),
            false => Value::from(&message.content),
        };
        let mut fields = vec![
            (Value::from("role"), Value::from(&message.role)),
            (Value::from("content"), content),
        ];
        for (name, value) in &message.fields {
            fields.push((Value::from(name), value_of(value, size, 0)?));
        }
        Ok(Value::from_pairs(fields))
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

/// Makes one of the leading system messages, which is put in front of the first user message where there is no such
/// role, and has the user say those that come later.
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

/// With what the user says after words of the user's own or a function's result joined to them; `None` if there is no such.
fn in_turn(messages: &[Message]) -> Option<Vec<Message>> {
    let mut joined: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        let before = joined.last_mut().filter(|m| matches!(m.role.as_str(), "user" | "tool"));
        match before.filter(|_| message.role == "user") {
            Some(before) => before.content = format!("{}\n\n{}", before.content, message.content),
            None => joined.push(message.clone()),
        }
    }
    (joined.len() < messages.len()).then_some(joined)
}

/// JSON as a template value; adds up its size.
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
        Json::Array(items) => Value::from(
            items
                .iter()
                .map(|item| value_of(item, size, depth + 1))
                .collect::<Result<Vec<_>, _>>()?,
        ),
        Json::Object(fields) => {
            let mut pairs = Vec::with_capacity(fields.len());
            for (name, value) in fields {
                *size += name.len();
                pairs.push((Value::from(name), value_of(value, size, depth + 1)?));
            }
            Value::from_pairs(pairs)
        }
    })
}

/// `{% generation %}` marks the model's own words for training; `transformers` prints what is inside. The tags become
/// a condition that always holds, which keeps their handling of white space.
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
