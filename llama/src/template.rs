//! Prompts rendered from messages.

use engine::chat::{ChatError, ChatTemplate, Message, ReasoningTags, reasoning_tags};
use engine::gguf::Metadata;
use engine::sample::Token;
use engine::vocab::Vocab;
use serde_json::{Map, Value as Json};

/// Metadata key of the chat template.
const KEY: &str = "tokenizer.chat_template";

/// Template variable that enables reasoning.
const THINKING: &str = "enable_thinking";

/// Chat template of a model, with its reasoning tags.
#[derive(Debug)]
pub struct PromptTemplate {
    template: ChatTemplate,
    source: String,
    tags: Option<ReasoningTags>,
}

/// A prompt as a string and as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Rendered text.
    pub text: String,
    /// Tokens of the text, including BOS if the model needs it.
    pub tokens: Vec<Token>,
}

impl PromptTemplate {
    /// Compiles a template from its Jinja source.
    ///
    /// # Errors
    /// [`ChatError::NoTemplate`] if the source is empty, another [`ChatError`] if it is invalid.
    pub fn new(source: &str, vocab: &Vocab) -> Result<PromptTemplate, ChatError> {
        let text = |token: Option<Token>| token.map_or_else(String::new, |t| vocab.text(t).into_owned());
        let template = ChatTemplate::new(source, &text(vocab.bos()), &text(vocab.eos()))?;
        Ok(PromptTemplate {
            tags: reasoning_tags(&template, source),
            template,
            source: source.to_owned(),
        })
    }

    /// Compiles the template of a model file.
    ///
    /// # Errors
    /// [`ChatError::NoTemplate`] if the file has no template, another [`ChatError`] if it is invalid.
    pub fn of_model(metadata: &Metadata, vocab: &Vocab) -> Result<PromptTemplate, ChatError> {
        let source = metadata.optional::<&str>(KEY);
        let source = source.map_err(|e| ChatError::Key { message: e.to_string() })?;
        PromptTemplate::new(source.unwrap_or_default(), vocab)
    }

    /// Returns the compiled template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// Returns the Jinja source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the tags around reasoning, if the template has any.
    pub fn tags(&self) -> Option<ReasoningTags> {
        self.tags
    }

    /// Renders the prompt for the next response.
    ///
    /// # Errors
    /// [`ChatError`] if the template rejects the messages or fails.
    pub fn prompt(
        &self,
        vocab: &Vocab,
        messages: &[Message],
        variables: &Map<String, Json>,
    ) -> Result<Prompt, ChatError> {
        let text = self.template.render(messages, true, variables)?;
        Ok(self.tokenized(vocab, text))
    }

    /// Renders the messages without the header of a response.
    ///
    /// # Errors
    /// [`ChatError`] if the template rejects the messages or fails.
    pub fn transcript(
        &self,
        vocab: &Vocab,
        messages: &[Message],
        variables: &Map<String, Json>,
    ) -> Result<Prompt, ChatError> {
        let text = self.template.render(messages, false, variables)?;
        Ok(self.tokenized(vocab, text))
    }

    /// Tokenizes a rendered prompt.
    pub fn tokenized(&self, vocab: &Vocab, text: String) -> Prompt {
        let tokens = vocab.tokenize(&text, !self.template.has_bos(&text), true);
        Prompt { text, tokens }
    }

    /// Disables reasoning in the variables of the template, unless they already set it.
    pub fn disable_reasoning(&self, variables: &mut Map<String, Json>) {
        if self.tags.is_some() && !variables.contains_key(THINKING) {
            variables.insert(THINKING.to_owned(), false.into());
        }
    }

    /// Appends the end of the reasoning to a rendered prompt that ends with an open reasoning tag.
    pub fn close_reasoning(&self, text: &mut String) {
        if let Some((open, close)) = self.tags
            && text.trim_end().ends_with(open)
        {
            *text += &format!("\n{close}\n\n");
        }
    }
}
