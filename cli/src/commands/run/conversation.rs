//! Chat messages and the prompts rendered from them.

use std::path::Path;

use engine::chat::{ChatError, Message, ReasoningTags};
use engine::model::Model;
use engine::sample::Token;
use engine::vocab::Vocab;
use llama::parts::{PromptTemplate, load_messages, save_messages};
use serde_json::{Map, Value as Json};
use tracing::warn;

use crate::args::TemplateArgs;
use crate::failure::{Failure, Outcome};

/// A conversation with a model. Without a chat template, the messages form one plain text.
pub struct Conversation {
    template: Option<PromptTemplate>,
    /// Template variables other than the messages.
    variables: Map<String, Json>,
    messages: Vec<Message>,
}

impl Conversation {
    /// Creates an empty conversation. With `raw`, the chat template is not applied.
    pub fn new(model: &Model, raw: bool, system: Option<&str>, args: &TemplateArgs) -> Outcome<Conversation> {
        let template = if raw { None } else { template(model, args)? };
        let mut conversation = Conversation {
            template,
            variables: args.variables(),
            messages: Vec::new(),
        };
        if let Some(system) = system {
            conversation.set_system(system)?;
        }
        Ok(conversation)
    }

    /// Returns true if no chat template is applied.
    pub fn is_raw(&self) -> bool {
        self.template.is_none()
    }

    /// Replaces the system message, or removes it if `text` is empty.
    pub fn set_system(&mut self, text: &str) -> Outcome {
        if self.is_raw() {
            return Err(Failure::new(
                "cannot set a system prompt: the model has no chat template",
            ));
        }
        if self.messages.first().is_some_and(|m| m.role == "system") {
            self.messages.remove(0);
        }
        if !text.is_empty() {
            self.messages.insert(0, Message::system(text));
        }
        Ok(())
    }

    /// Appends a user message.
    pub fn ask(&mut self, text: &str) {
        self.messages.push(Message::user(text));
    }

    /// Appends an assistant message.
    pub fn answered(&mut self, text: &str) {
        self.messages.push(Message::assistant(text));
    }

    /// Removes the last message if it has the given role.
    pub fn take_back(&mut self, role: &str) -> bool {
        self.messages.pop_if(|m| m.role == role).is_some()
    }

    /// Returns the last message with the given role.
    pub fn last(&self, role: &str) -> Option<&str> {
        self.messages
            .iter()
            .rfind(|m| m.role == role)
            .map(|m| m.content.as_str())
    }

    /// Counts the tokens of the conversation.
    pub fn n_tokens(&self, vocab: &Vocab) -> Outcome<usize> {
        if self.messages.is_empty() {
            Ok(0)
        } else {
            self.prompt_until(vocab, false).map(|(_, tokens)| tokens.len())
        }
    }

    /// Copies the messages of a conversation with another model. Without a chat template, the system message
    /// is dropped.
    pub fn take_over(&mut self, other: &Conversation) {
        self.messages = other.messages.clone();
        if self.is_raw() {
            self.messages.retain(|m| m.role != "system");
        }
    }

    /// Replaces the messages with those of a file and returns their number.
    pub fn replace_by(&mut self, file: &Path) -> Outcome<usize> {
        self.messages = load_messages(file)?;
        Ok(self.messages.len())
    }

    /// Writes the messages to a file.
    pub fn save(&self, file: &Path) -> Outcome {
        Ok(save_messages(&self.messages, file)?)
    }

    /// Appends the messages of a saved conversation and returns the number of messages; 0 if the file does not exist.
    /// A system prompt given on the command line takes precedence.
    pub fn restore(&mut self, file: &Path) -> Outcome<usize> {
        if !file.try_exists()? {
            return Ok(0);
        }
        let mut saved = load_messages(file)?;
        if !self.messages.is_empty() {
            saved.retain(|message| message.role != "system");
        }
        self.messages.append(&mut saved);
        Ok(self.messages.len())
    }

    /// Removes all messages except the system message.
    pub fn clear(&mut self) {
        self.messages.retain(|m| m.role == "system");
    }

    /// Returns the reasoning tags of the template, if it has any.
    pub fn tags(&self) -> Option<ReasoningTags> {
        self.template.as_ref().and_then(PromptTemplate::tags)
    }

    /// Renders the prompt for the next response, as a string and as tokens.
    pub fn prompt(&self, vocab: &Vocab) -> Outcome<(String, Vec<Token>)> {
        self.prompt_until(vocab, true)
    }

    /// Renders the prompt, with the header of an assistant message if `generation` is true.
    fn prompt_until(&self, vocab: &Vocab, generation: bool) -> Outcome<(String, Vec<Token>)> {
        let Some(template) = &self.template else {
            let text: String = self.messages.iter().map(|m| m.content.as_str()).collect();
            let tokens = vocab.tokenize(&text, true, true);
            return Ok((text, tokens));
        };
        let prompt = if generation {
            template.prompt(vocab, &self.messages, &self.variables)?
        } else {
            template.transcript(vocab, &self.messages, &self.variables)?
        };
        Ok((prompt.text, prompt.tokens))
    }
}

/// Returns the template given on the command line, or the model's own; `None` if there is none. A model that
/// knows the tokens of ChatML gets that template.
fn template(model: &Model, args: &TemplateArgs) -> Outcome<Option<PromptTemplate>> {
    let (metadata, vocab) = (model.metadata(), model.vocab());
    let template = match args.source()? {
        Some(given) => PromptTemplate::given(&given, metadata, vocab),
        None => PromptTemplate::of_model(metadata, vocab),
    };
    let template = match template {
        Err(ChatError::NoTemplate) if vocab.tokenize("<|im_start|>", false, true).len() == 1 => {
            warn!(
                "the model has no chat template; its vocabulary has the tokens of ChatML, which is used instead (--raw: none)"
            );
            PromptTemplate::chatml(vocab)
        }
        template => template,
    };
    match template {
        Ok(template) => Ok(Some(template.parsing_content(args.parse_special_content))),
        Err(ChatError::NoTemplate) => Ok(None),
        Err(e) => Err(Failure::new(format_args!(
            "{e}; use --raw to run without a chat template"
        ))),
    }
}
