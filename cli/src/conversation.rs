//! Messages so far, and the prompt they make.

use std::borrow::Cow;
use std::fmt::Display;
use std::io;
use std::path::Path;

use engine::chat::{ChatError, ChatTemplate, Message, ReasoningTags, reasoning_tags};
use engine::gguf::Value;
use engine::model::Model;
use engine::sample::Token;
use engine::vocab::Vocab;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::args::TemplateArgs;
use crate::commands::input;
use crate::failure::{Failure, Outcome};

/// A conversation with a model, or, with a model that has no chat template, a text that both continue.
pub struct Conversation {
    template: Option<ChatTemplate>,
    /// What reasoning stands between.
    tags: Option<ReasoningTags>,
    /// What the template is told besides the messages.
    variables: Map<String, Json>,
    messages: Vec<Message>,
}

impl Conversation {
    /// An empty conversation. `raw`: do without a template.
    pub fn new(model: &Model, raw: bool, system: Option<&str>, args: &TemplateArgs) -> Outcome<Conversation> {
        let source = if raw { None } else { template_source(model, args)? };
        let template = template(model, source.as_deref().unwrap_or_default())?;
        let mut conversation = Conversation {
            tags: (template.as_ref().zip(source.as_deref()))
                .and_then(|(template, source)| reasoning_tags(template, source)),
            template,
            variables: args.variables(),
            messages: Vec::new(),
        };
        if let Some(system) = system {
            conversation.set_system(system)?;
        }
        Ok(conversation)
    }

    /// True if there is no template: text is continued as it stands.
    pub fn is_raw(&self) -> bool {
        self.template.is_none()
    }

    /// Replaces the instructions at the beginning; empty ones are removed.
    pub fn set_system(&mut self, text: &str) -> Outcome {
        if self.is_raw() {
            return Err(Failure::new("instructions need a chat template, and there is none"));
        }
        if self.messages.first().is_some_and(|m| m.role == "system") {
            self.messages.remove(0);
        }
        if !text.is_empty() {
            self.messages.insert(0, Message::system(text));
        }
        Ok(())
    }

    /// Adds what the user says.
    pub fn ask(&mut self, text: &str) {
        self.messages.push(Message::user(text));
    }

    /// Adds what the model has said.
    pub fn answered(&mut self, text: &str) {
        self.messages.push(Message::assistant(text));
    }

    /// Removes the last message if it is of this role.
    pub fn take_back(&mut self, role: &str) -> bool {
        self.messages.pop_if(|m| m.role == role).is_some()
    }

    /// What somebody of this role said last.
    pub fn last(&self, role: &str) -> Option<&str> {
        self.messages
            .iter()
            .rfind(|m| m.role == role)
            .map(|m| m.content.as_str())
    }

    /// The tokens of what was said so far.
    pub fn n_tokens(&self, vocab: &Vocab) -> Outcome<usize> {
        match self.messages.is_empty() {
            true => Ok(0),
            false => self.prompt_until(vocab, false).map(|(_, tokens)| tokens.len()),
        }
    }

    /// Goes on from what was said to another model. Without a template there are no instructions.
    pub fn take_over(&mut self, other: &Conversation) {
        self.messages = other.messages.clone();
        if self.is_raw() {
            self.messages.retain(|m| m.role != "system");
        }
    }

    /// The messages of a file in place of these. The number of messages.
    pub fn replace_by(&mut self, file: &Path) -> Outcome<usize> {
        let before = std::mem::take(&mut self.messages);
        let restored = self.restore(file);
        if restored.is_err() {
            self.messages = before;
        }
        restored
    }

    /// Writes what was said to a file.
    pub fn save(&self, file: &Path) -> Outcome {
        let said: Vec<Said<'_>> = self.messages.iter().map(Said::of).collect();
        let json = serde_json::to_vec_pretty(&said)?;
        std::fs::write(file, json).map_err(|e| Failure::new(format_args!("{}: {e}", file.display())))
    }

    /// Goes on from what [`Conversation::save`] wrote. The number of messages; 0 if there is no file. Instructions that were given anew stay.
    pub fn restore(&mut self, file: &Path) -> Outcome<usize> {
        let cannot = |e: &dyn Display| Failure::new(format_args!("{}: {e}", file.display()));
        let json = match std::fs::read(file) {
            Ok(json) => json,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(e) => return Err(cannot(&e)),
        };
        let said: Vec<Said<'_>> = serde_json::from_slice(&json).map_err(|e| cannot(&e))?;
        let has_system = !self.messages.is_empty();
        for said in said.into_iter().filter(|said| !(has_system && said.role == "system")) {
            self.messages.push(said.message());
        }
        Ok(self.messages.len())
    }

    /// Forgets all but the instructions.
    pub fn clear(&mut self) {
        self.messages.retain(|m| m.role == "system");
    }

    /// The tags that reasoning stands between, if the template names some.
    pub fn tags(&self) -> Option<ReasoningTags> {
        self.tags
    }

    /// What the model's next words follow, as text and as tokens.
    pub fn prompt(&self, vocab: &Vocab) -> Outcome<(String, Vec<Token>)> {
        self.prompt_until(vocab, true)
    }

    /// The same, up to where the model's words begin, or to what was said last.
    fn prompt_until(&self, vocab: &Vocab, generation: bool) -> Outcome<(String, Vec<Token>)> {
        let Some(template) = &self.template else {
            let text: String = self.messages.iter().map(|m| m.content.as_str()).collect();
            let tokens = vocab.tokenize(&text, true, true);
            return Ok((text, tokens));
        };
        let text = template.render(&self.messages, generation, &self.variables)?;
        let tokens = vocab.tokenize(&text, !template.has_bos(&text), true);
        Ok((text, tokens))
    }
}

/// A message in a file.
#[derive(Serialize, Deserialize)]
struct Said<'a> {
    role: Cow<'a, str>,
    content: Cow<'a, str>,
}

impl Said<'_> {
    fn of(message: &Message) -> Said<'_> {
        Said {
            role: Cow::Borrowed(&message.role),
            content: Cow::Borrowed(&message.content),
        }
    }

    fn message(self) -> Message {
        Message::new(self.role, self.content)
    }
}

/// The template that is given, else that in the model's file, in Jinja.
fn template_source(model: &Model, args: &TemplateArgs) -> Outcome<Option<String>> {
    let given = match &args.chat_template_file {
        Some(path) => Some(input::read(path).map_err(|e| e.of_option("--chat-template-file"))?),
        None => args.chat_template.clone(),
    };
    let of_file = model.metadata().get("tokenizer.chat_template").and_then(Value::as_str);
    Ok(given.or(of_file.map(str::to_owned)))
}

/// The template; `None` if there is none.
fn template(model: &Model, source: &str) -> Outcome<Option<ChatTemplate>> {
    let vocab = model.vocab();
    let text = |token: Option<Token>| token.map_or_else(String::new, |t| vocab.text(t).into_owned());
    match ChatTemplate::new(source, &text(vocab.bos()), &text(vocab.eos())) {
        Ok(template) => Ok(Some(template)),
        Err(ChatError::NoTemplate) => Ok(None),
        Err(e) => Err(Failure::new(format_args!("{e}; --raw does without it"))),
    }
}
