//! Conversations.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use engine::chat::{Budget, Marks, Message, ReasoningSplit};
use engine::context::MediaRows;
use serde_json::{Map, Value as Json};

use crate::builder::{Builder, Settings};
use crate::chat_media::ChatMedia;
use crate::generator::ShownTokens;
use crate::response::{Response, ResponseParts};
use crate::saved::{load_messages, save_messages};
use crate::session::{Generation, Session};
use crate::template::{Prompt, PromptTemplate};
use crate::{CancelHandle, Model, Result};

/// Configures a [`Chat`]. Created by [`Model::chat`].
pub type ChatBuilder = Builder<Chat>;

/// A conversation with a model. Every question computes only the new part of the conversation.
pub struct Chat {
    session: Session,
    settings: Settings,
    cancel: CancelHandle,
    model: Model,
    media: ChatMedia,
    template: PromptTemplate,
    variables: Map<String, Json>,
    messages: Vec<Message>,
    yields_reasoning: bool,
    reasoning_budget: Option<usize>,
}

impl Model {
    /// Starts to configure a conversation.
    pub fn chat(&self) -> ChatBuilder {
        Builder::new(self)
    }
}

impl Builder<Chat> {
    /// Sets the system prompt, the instructions for the whole conversation.
    pub fn system(mut self, text: impl Into<String>) -> ChatBuilder {
        self.chat.system = Some(text.into());
        self
    }

    /// Replaces the chat template of the model by a Jinja template.
    pub fn template(mut self, source: impl Into<String>) -> ChatBuilder {
        self.chat.template = Some(source.into());
        self
    }

    /// Sets a variable of the chat template.
    pub fn template_variable(mut self, name: impl Into<String>, value: impl Into<Json>) -> ChatBuilder {
        self.chat.variables.insert(name.into(), value.into());
        self
    }

    /// Sets whether the model reasons before it answers, for models whose template has a switch. The default
    /// is the default of the template, or false with a grammar.
    pub fn thinking(self, thinking: bool) -> ChatBuilder {
        self.template_variable("enable_thinking", thinking)
    }

    /// Sets whether responses also yield pieces of the reasoning. By default, they yield only the answer.
    pub fn yield_reasoning(mut self, yields: bool) -> ChatBuilder {
        self.chat.yields_reasoning = yields;
        self
    }

    /// Ends the reasoning of a response after this number of tokens.
    pub fn reasoning_budget(mut self, n_tokens: usize) -> ChatBuilder {
        self.chat.reasoning_budget = Some(n_tokens);
        self
    }

    /// Starts the conversation and allocates its context.
    ///
    /// # Errors
    /// Returns an [`Error`](crate::Error) if a setting is invalid, the model has no chat template, or memory is
    /// insufficient.
    pub fn start(self) -> Result<Chat> {
        Chat::start(self)
    }
}

impl Chat {
    pub(crate) fn start(mut builder: ChatBuilder) -> Result<Chat> {
        let model = builder.model.engine().clone();
        let template = match &builder.chat.template {
            Some(source) => PromptTemplate::given(source, model.metadata(), model.vocab())?,
            None => PromptTemplate::of_model(model.metadata(), model.vocab())?,
        };
        let (session, settings, cancel) = builder.build()?;
        let options = builder.chat;
        let mut variables = options.variables;
        if settings.is_constrained() {
            template.disable_reasoning(&mut variables);
        }
        Ok(Chat {
            session,
            settings,
            cancel,
            model: builder.model,
            media: ChatMedia::default(),
            template,
            variables,
            messages: options.system.map(Message::system).into_iter().collect(),
            yields_reasoning: options.yields_reasoning,
            reasoning_budget: options.reasoning_budget,
        })
    }

    /// Adds a question to the conversation and starts its response.
    ///
    /// # Errors
    /// Returns an [`Error`](crate::Error) if the conversation does not fit in the context or the model cannot be
    /// computed. The question is then removed.
    pub fn ask(&mut self, question: impl Into<String>) -> Result<Response<'_>> {
        self.send(Message::user(question))
    }

    /// Adds a question about images or audio: the contents of files, which precede the question. The model must have a
    /// [projector](crate::ModelOptions::projector).
    ///
    /// Files are decoded by their content: PNG, JPEG, WebP, GIF, and BMP; WAV, MP3, FLAC, and OGG Vorbis.
    ///
    /// ```standalone_crate
    /// # let directory = tempfile::tempdir()?;
    /// # std::env::set_current_dir(&directory)?;
    /// # let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    /// # std::fs::write("model.gguf", tests::images::vision_model(Some(template), &tests::images::AROUND_IMAGE))?;
    /// # std::fs::write("mmproj.gguf", tests::images::projector(tests::images::N_EMBD))?;
    /// # std::fs::write("photo.bmp", tests::images::bitmap(80, 0))?;
    /// let model = llama::Model::options().projector("mmproj.gguf").open("model.gguf")?;
    /// let mut chat = model.chat().max_tokens(20).start()?;
    /// let photo = std::fs::read("photo.bmp")?;
    /// println!("{}", chat.ask_with("Describe this picture.", &[photo])?.text()?);
    /// # assert_eq!(chat.messages().len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an [`Error`](crate::Error) as for [`Chat::ask`], or if there is no projector or a file cannot be
    /// decoded. The question is then removed.
    pub fn ask_with(&mut self, question: impl Into<String>, files: &[impl AsRef<[u8]>]) -> Result<Response<'_>> {
        let mut rows = Vec::with_capacity(files.len());
        if !files.is_empty() {
            let mut projector = self.model.projector()?;
            for file in files {
                let file = file.as_ref();
                let medium = projector.medium_of(file);
                rows.push(projector.rows(medium, file)?);
            }
        }
        self.media.retain(&self.messages);
        let message = self.media.message(&question.into(), rows);
        self.send(message)
    }

    fn send(&mut self, message: Message) -> Result<Response<'_>> {
        self.messages.push(message);
        match self
            .prompt()
            .and_then(|(prompt, media)| Ok((self.begin(&prompt, media)?, prompt)))
        {
            Ok((generation, prompt)) => Ok(self.response(generation, &prompt)),
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    /// Starts a response to the messages as they are.
    ///
    /// # Errors
    /// Returns an [`Error`](crate::Error) if the conversation does not fit in the context or the model cannot be
    /// computed.
    pub fn respond(&mut self) -> Result<Response<'_>> {
        let (prompt, media) = self.prompt()?;
        let generation = self.begin(&prompt, media)?;
        Ok(self.response(generation, &prompt))
    }

    /// Returns the messages, oldest first.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Returns the messages for changes. Images and audio belong to the messages of their questions.
    pub fn messages_mut(&mut self) -> &mut Vec<Message> {
        &mut self.messages
    }

    /// Writes the messages to a JSON file, with a text in place of each image and audio file.
    ///
    /// # Errors
    /// Returns [`Error::Conversation`](crate::Error::Conversation) if the file cannot be written.
    pub fn save(&self, file: impl AsRef<Path>) -> Result<()> {
        save_messages(&ChatMedia::described(&self.messages), file.as_ref())
    }

    /// Replaces the messages by the messages of a file that [`Chat::save`] has written.
    ///
    /// # Errors
    /// Returns [`Error::Conversation`](crate::Error::Conversation) if the file is not a saved conversation. The
    /// messages are then unchanged.
    pub fn load(&mut self, file: impl AsRef<Path>) -> Result<()> {
        self.messages = load_messages(file.as_ref())?;
        Ok(())
    }

    /// Removes all messages except the system prompt.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == "system");
    }

    /// Returns a handle that cancels responses from any thread.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// Returns the size of the context in tokens.
    pub fn context_size(&self) -> usize {
        self.session.context().n_ctx()
    }

    /// Returns the number of tokens in the context.
    pub fn context_used(&self) -> usize {
        self.session.cached().len()
    }

    /// Returns the prompt, and the media whose rows are in the prompt.
    fn prompt(&self) -> Result<(Prompt, Vec<Arc<MediaRows>>)> {
        let vocab = self.session.vocab();
        let (messages, media) = self.media.of(&self.messages)?;
        let mut rendered = self.template.rendered(vocab, &messages, true, &self.variables)?;
        // A constrained response contains no reasoning.
        if self.settings.is_constrained() {
            self.template.close_reasoning(&mut rendered);
        }
        if media.is_empty() {
            return Ok((self.template.tokenized(vocab, rendered), media));
        }
        let layout = self.model.projector()?.layout();
        Ok((layout.tokenized(vocab, Some(&self.template), rendered, &media), media))
    }

    fn begin(&mut self, prompt: &Prompt, media: Vec<Arc<MediaRows>>) -> Result<Generation> {
        self.cancel.reset();
        let tags = self.template.tags();
        let mut params = self.settings.generation();
        params.images = media;
        params.shown = ShownTokens::tags(self.session.vocab(), tags);
        params.budget = match (tags, self.reasoning_budget) {
            (Some(tags), Some(n)) if params.constraint.is_none() => {
                Some(Budget::new(Marks::Tags(tags), &prompt.text, n, ""))
            }
            _ => None,
        };
        self.session.start(&prompt.tokens, params)
    }

    fn response(&mut self, generation: Generation, prompt: &Prompt) -> Response<'_> {
        let tags = if self.settings.is_constrained() {
            None
        } else {
            self.template.tags()
        };
        let parts = ResponseParts {
            messages: Some(&mut self.messages),
            cancel: self.cancel.clone(),
            split: ReasoningSplit::new(tags, &prompt.text),
            yields_reasoning: self.yields_reasoning,
        };
        Response::new(&mut self.session, generation, parts)
    }
}

impl fmt::Debug for Chat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chat")
            .field("model", self.session.model())
            .field("messages", &self.messages)
            .finish_non_exhaustive()
    }
}
