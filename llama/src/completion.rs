//! Completion of plain text.

use std::fmt;

use engine::chat::ReasoningSplit;

use crate::builder::{Builder, Settings};
use crate::response::{Response, ResponseParts};
use crate::session::Session;
use crate::{CancelHandle, Model, Result};

/// Configures a [`Completion`]. Created by [`Model::completion`].
pub type CompletionBuilder = Builder<Completion>;

/// Completes plain text, without a chat template. Consecutive prompts reuse the prefix that they share.
pub struct Completion {
    session: Session,
    settings: Settings,
    cancel: CancelHandle,
}

impl Model {
    /// Starts to configure the completion of plain text, without a chat template.
    pub fn completion(&self) -> CompletionBuilder {
        Builder::new(self)
    }
}

impl Builder<Completion> {
    /// Allocates the context.
    ///
    /// # Errors
    /// Returns an [`Error`](crate::Error) if a setting is invalid or memory is insufficient.
    pub fn start(self) -> Result<Completion> {
        Completion::start(self)
    }
}

impl Completion {
    pub(crate) fn start(mut builder: CompletionBuilder) -> Result<Completion> {
        let (session, settings, cancel) = builder.build()?;
        Ok(Completion {
            session,
            settings,
            cancel,
        })
    }

    /// Starts the completion of a text. Control tokens in the text, such as `<|im_end|>`, have their effect.
    ///
    /// # Errors
    /// Returns an [`Error`](crate::Error) if the text does not fit in the context or the model cannot be computed.
    pub fn complete(&mut self, prompt: &str) -> Result<Response<'_>> {
        self.cancel.reset();
        let tokens = self.session.vocab().tokenize(prompt, true, true);
        let generation = self.session.start(&tokens, self.settings.generation())?;
        let parts = ResponseParts {
            messages: None,
            cancel: self.cancel.clone(),
            split: ReasoningSplit::new(None, prompt),
            yields_reasoning: false,
        };
        Ok(Response::new(&mut self.session, generation, parts))
    }

    /// Returns a handle that cancels completions from any thread.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// Returns the size of the context in tokens.
    pub fn context_size(&self) -> usize {
        self.session.context().n_ctx()
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("model", self.session.model())
            .finish_non_exhaustive()
    }
}
