//! The conversation of a request.

use engine::chat::Message;
use serde_json::{Map, Value as Json};

use super::media_files::MediaFile;
use super::tools::Tools;

/// A chat conversation from which a prompt is rendered.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Messages, oldest first.
    pub messages: Vec<Message>,
    /// Images and audio of the messages, in the order of their marks.
    pub media: Vec<MediaFile>,
    /// Variables of the chat template.
    pub variables: Map<String, Json>,
    /// The completion continues the last message.
    pub continues_last: bool,
    /// The prompt ends after the last message, without the start of a response.
    pub without_answer: bool,
    /// The completion starts without reasoning, so that its grammar applies from the first token.
    pub skip_reasoning: bool,
    /// Reasoning budget in tokens; negative: unlimited.
    pub budget: Option<i64>,
    /// Text appended to reasoning that is cut off; overrides
    /// [`ChatParams::reasoning_message`](super::ChatParams::reasoning_message).
    pub budget_message: Option<String>,
    /// Tools that the model may call.
    pub tools: Option<Tools>,
}
