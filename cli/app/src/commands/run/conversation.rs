//! Chat messages and the prompts rendered from them.

use std::path::Path;
use std::sync::Arc;

use engine::chat::{ChatError, Message, ReasoningTags};
use engine::context::MediaRows;
use engine::model::Model;
use engine::sample::Token;
use engine::vocab::Vocab;
use llama::parts::{IMAGE_MARK, MediaProjector, PromptTemplate, Rendered, load_messages, save_messages, without_marks};
use serde_json::{Map, Value as Json};
use tracing::warn;

use crate::args::TemplateArgs;
use crate::failure::{Failure, Outcome};

/// A conversation with a model. Without a chat template, the messages form one plain text.
pub struct Conversation {
    template: Option<PromptTemplate>,
    /// Template variables other than the messages.
    variables: Map<String, Json>,
    /// Messages. Each [`IMAGE_MARK`] is a placeholder for the next of `images`.
    messages: Vec<Message>,
    images: Vec<Arc<MediaRows>>,
    /// Images of the next user message.
    attached: Vec<Arc<MediaRows>>,
}

impl Conversation {
    /// Creates an empty conversation. With `raw`, the chat template is not applied.
    pub fn new(model: &Model, raw: bool, system: Option<&str>, args: &TemplateArgs) -> Outcome<Conversation> {
        let template = if raw { None } else { template(model, args)? };
        let mut conversation = Conversation {
            template,
            variables: args.variables(),
            messages: Vec::new(),
            images: Vec::new(),
            attached: Vec::new(),
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

    /// Adds an image or audio to the next user message.
    pub fn attach(&mut self, image: Arc<MediaRows>) {
        self.attached.push(image);
    }

    /// Returns the images of all messages.
    pub fn images(&self) -> &[Arc<MediaRows>] {
        &self.images
    }

    /// Appends a user message.
    pub fn ask(&mut self, text: &str) {
        let mut content = IMAGE_MARK.to_string().repeat(self.attached.len());
        content += &without_marks(text);
        self.images.append(&mut self.attached);
        self.messages.push(Message::user(content));
    }

    /// Appends an assistant message.
    pub fn answered(&mut self, text: &str) {
        self.messages.push(Message::assistant(text));
    }

    /// Removes the last message if it has the given role.
    pub fn take_back(&mut self, role: &str) -> bool {
        let Some(message) = self.messages.pop_if(|m| m.role == role) else {
            return false;
        };
        let n_images = message.content.matches(IMAGE_MARK).count();
        self.images.truncate(self.images.len().saturating_sub(n_images));
        true
    }

    /// Returns the last message with the given role.
    pub fn last(&self, role: &str) -> Option<&str> {
        self.messages
            .iter()
            .rfind(|m| m.role == role)
            .map(|m| m.content.trim_start_matches(IMAGE_MARK))
    }

    /// Counts the tokens of the conversation.
    pub fn n_tokens(&self, vocab: &Vocab, projector: Option<&MediaProjector>) -> Outcome<usize> {
        if self.messages.is_empty() {
            Ok(0)
        } else {
            self.prompt_until(vocab, projector, false)
                .map(|(_, tokens)| tokens.len())
        }
    }

    /// Copies the messages of a conversation with another model. Without a chat template, the system message
    /// is dropped.
    pub fn take_over(&mut self, other: &Conversation) {
        self.messages = other.without_images();
        if self.is_raw() {
            self.messages.retain(|m| m.role != "system");
        }
    }

    /// Replaces the messages by the messages of a file and returns their number.
    pub fn replace_by(&mut self, file: &Path) -> Outcome<usize> {
        self.messages = load_messages(file)?;
        self.images.clear();
        Ok(self.messages.len())
    }

    /// Writes the messages to a file.
    pub fn save(&self, file: &Path) -> Outcome {
        Ok(save_messages(&self.without_images(), file)?)
    }

    /// Returns the messages with a text in place of each image.
    fn without_images(&self) -> Vec<Message> {
        let mut messages = self.messages.clone();
        for message in &mut messages {
            message.content = without_marks(&message.content);
        }
        messages
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
        self.images.clear();
        self.attached.clear();
    }

    /// Returns the reasoning tags of the template, if it has any.
    pub fn tags(&self) -> Option<ReasoningTags> {
        self.template.as_ref().and_then(PromptTemplate::tags)
    }

    /// Renders the prompt for the next response, as a string and as tokens.
    pub fn prompt(&self, vocab: &Vocab, projector: Option<&MediaProjector>) -> Outcome<(String, Vec<Token>)> {
        self.prompt_until(vocab, projector, true)
    }

    /// Renders the prompt, with the header of an assistant message if `generation` is true.
    fn prompt_until(
        &self,
        vocab: &Vocab,
        projector: Option<&MediaProjector>,
        generation: bool,
    ) -> Outcome<(String, Vec<Token>)> {
        let rendered = match &self.template {
            Some(template) => template.rendered(vocab, &self.messages, generation, &self.variables)?,
            None => Rendered::plain(self.messages.iter().map(|m| m.content.as_str()).collect()),
        };
        let prompt = match (projector, &self.template) {
            (Some(projector), template) => projector.tokenized(vocab, template.as_ref(), rendered, &self.images),
            (None, Some(template)) => template.tokenized(vocab, rendered),
            (None, None) => rendered.tokenized(vocab),
        };
        Ok((prompt.text, prompt.tokens))
    }
}

/// Returns the template given on the command line, or the model's own; `None` if there is none. A model with the
/// tokens of ChatML uses that template.
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
