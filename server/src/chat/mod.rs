//! Chats: from the messages of a request to the parsed output of the model.
//!
//! ```text
//!  request fields ─[messages, tools]─► Conversation
//!                                           │
//!                                      ChatFormat            template, reasoning tags and call syntax of the model
//!                                           │
//!                  ┌────────────────────────┼───────────────────────┐
//!                  ▼                        ▼                       ▼
//!         Prompt (text, tokens)   call grammar, budget         OutputParser
//!                  │                        │                       │
//!                  └─────► scheduler ◄──────┘                       ▼
//!                              └─Event: text of each token─► OutputStream ─OutputDelta─► API
//! ```
//!
//! - [`messages`], [`tools`]: readers of the messages and tools of a request; [`MediaFile`]: an image or audio in
//!   a message
//! - [`Conversation`]: a request that is independent of its API
//! - [`ChatFormat`]: renders prompts, and chooses grammar, reasoning budget, and parser
//! - [`OutputParser`]: splits the text of one completion into [`OutputEvent`]s: reasoning, content, calls
//! - [`OutputStream`]: merges the scheduler events of all choices into [`OutputDelta`]s with usage counts. Completions
//!   without a chat use it with a parser that treats all output as content

mod content_error;
mod conversation;
mod event;
mod file_limit;
mod format;
mod media_files;
mod media_sources;
pub mod messages;
mod output;
mod parser;
mod parts;
pub mod tools;

pub use content_error::ContentError;
pub use conversation::Conversation;
pub use event::{Call, Ending, OutputEvent};
pub use file_limit::FileLimit;
pub use format::{ChatFormat, ChatParams, Prompt, is_control};
pub use media_files::{MediaFile, MediaFormat, medium_of};
pub use media_sources::MediaSources;
pub use output::{Choice, OutputDelta, OutputStream, StreamItem, Trace, Usage};
pub use parser::OutputParser;
pub use parts::ContentReader;
