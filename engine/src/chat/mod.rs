//! From messages to a prompt, by the template that comes with the model.
//!
//! A chat template is a Jinja program from an untrusted file. It runs as the field runs it (the `transformers`
//! library: `trim_blocks`, `lstrip_blocks`, lenient undefined values, Python's string methods, `raise_exception`,
//! `strftime_now`, `tojson` with Python's separators), but metered: instructions, memory, nesting and output are all
//! limited, and a template that goes too far is an error ([`ChatError::Limit`]), never a hang or an abort.

mod budget;
mod json;
mod meter;
mod methods;
mod ops;
mod reasoning;
mod runtime;
mod template;
#[cfg(test)]
mod tests;
mod time;

pub use budget::{Budget, Marks};
pub use reasoning::{ReasoningSplit, ReasoningTags, Spoken, reasoning_tags};
pub use template::{ChatTemplate, Delta};

use serde_json::{Map, Value as Json};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// Its text.
    pub content: String,
    /// Further fields as templates read them: `tool_calls`, `name`, `reasoning_content`...
    pub fields: Map<String, Json>,
}

impl Message {
    /// A message of any role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message {
            role: role.into(),
            content: content.into(),
            fields: Map::new(),
        }
    }

    /// Instructions that hold for the whole conversation.
    pub fn system(content: impl Into<String>) -> Message {
        Message::new("system", content)
    }

    /// What the user says.
    pub fn user(content: impl Into<String>) -> Message {
        Message::new("user", content)
    }

    /// What the model has said.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message::new("assistant", content)
    }
}

/// What can be wrong with a chat template or its input.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ChatError {
    /// The model has no template: prompts can only be completed as they are.
    #[error("the model has no chat template (tokenizer.chat_template)")]
    NoTemplate,
    /// The model's metadata does not hold the template as text.
    #[error("{message}")]
    Key {
        /// The reader's words, which name key and type.
        message: String,
    },
    /// The template is not valid.
    #[error("the model's chat template is not valid: {message}{}", at_line(.line))]
    Syntax {
        /// Line in the template, from 1.
        line: Option<usize>,
        /// What is wrong there.
        message: String,
    },
    /// The template refused the messages (`raise_exception`).
    #[error("the model's chat template refuses these messages: {message}")]
    Rejected {
        /// In the template's words.
        message: String,
    },
    /// The template failed.
    #[error("the model's chat template failed: {message}{}", at_line(.line))]
    Render {
        /// Line in the template, from 1.
        line: Option<usize>,
        /// What went wrong there.
        message: String,
    },
    /// The template, or what it does, takes far more than the templates of real models do.
    #[error("the model's chat template goes beyond a limit: {what}, at most {limit}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much there may be.
        limit: u64,
    },
    /// The template engine itself failed.
    #[error("the chat template engine failed on the model's template")]
    Engine,
}

fn at_line(line: &Option<usize>) -> String {
    line.map(|line| format!(" (line {line})")).unwrap_or_default()
}
