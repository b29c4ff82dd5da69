//! Conversations.

use std::fmt;

use engine::chat::{Budget, Marks, Message, ReasoningSplit};
use serde_json::{Map, Value as Json};

use crate::builder::{ChatBuilder, Settings};
use crate::generator::ShownTokens;
use crate::response::{Response, ResponseParts};
use crate::session::{Generation, Session};
use crate::template::{Prompt, PromptTemplate};
use crate::{CancelHandle, Result};

/// A conversation with a model. Every question computes only the new part of the conversation.
pub struct Chat {
    session: Session,
    settings: Settings,
    cancel: CancelHandle,
    template: PromptTemplate,
    variables: Map<String, Json>,
    messages: Vec<Message>,
    yields_reasoning: bool,
    reasoning_budget: Option<usize>,
}

impl Chat {
    pub(crate) fn start(mut builder: ChatBuilder) -> Result<Chat> {
        let model = builder.model.engine().clone();
        let template = match &builder.chat.template {
            Some(source) => PromptTemplate::new(source, model.vocab())?,
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
    /// [`Error`](crate::Error) if the conversation does not fit in the context or the model cannot be
    /// computed. The question is then removed.
    pub fn ask(&mut self, question: impl Into<String>) -> Result<Response<'_>> {
        self.messages.push(Message::user(question));
        match self.prompt().and_then(|prompt| Ok((self.begin(&prompt)?, prompt))) {
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
    /// [`Error`](crate::Error) if the conversation does not fit in the context or the model cannot be
    /// computed.
    pub fn respond(&mut self) -> Result<Response<'_>> {
        let prompt = self.prompt()?;
        let generation = self.begin(&prompt)?;
        Ok(self.response(generation, &prompt))
    }

    /// Returns the messages, oldest first.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Returns the messages for changes, for example to restore a saved conversation.
    pub fn messages_mut(&mut self) -> &mut Vec<Message> {
        &mut self.messages
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

    fn prompt(&self) -> Result<Prompt> {
        let vocab = self.session.vocab();
        let prompt = self.template.prompt(vocab, &self.messages, &self.variables)?;
        if !self.settings.is_constrained() {
            return Ok(prompt);
        }
        // A constrained response contains no reasoning.
        let mut text = prompt.text.clone();
        self.template.close_reasoning(&mut text);
        Ok(match text == prompt.text {
            true => prompt,
            false => self.template.tokenized(vocab, text),
        })
    }

    fn begin(&mut self, prompt: &Prompt) -> Result<Generation> {
        self.cancel.reset();
        let tags = self.template.tags();
        let mut params = self.settings.generation();
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
        let tags = self.template.tags().filter(|_| !self.settings.is_constrained());
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
