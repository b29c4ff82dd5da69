//! Tool calling.
//!
//! - [`definition`]: tools and tool choice of a request
//! - [`format`]: how a model writes calls, detected from its chat template; [`generic`]: the format of models
//!   whose template does not render tools
//! - [`grammar`], [`lazy`]: grammars of required and of voluntary calls; [`combined`]: of whole outputs
//! - [`call_parser`]: splits calls from streamed text; [`header`], [`literal`], [`markers`], [`scan`], [`types`]: its
//!   parts
//! - [`elements`]: arguments as nested elements
//! - [`messages`], [`message_parser`], [`harmony`]: formats with separate messages for reasoning, content, and calls
//! - [`history`]: earlier calls of models whose template omits them

mod call_parser;
mod combined;
mod definition;
mod elements;
mod format;
mod generic;
mod grammar;
mod harmony;
mod header;
mod history;
mod lazy;
mod literal;
mod markers;
mod message_parser;
mod messages;
mod scan;
#[cfg(test)]
mod tests;
mod types;

pub use call_parser::ToolCallParser;
pub use combined::harmony_document;
pub use definition::{Function, ToolChoice, Tools, checked, tools};
pub use format::{CallSyntax, ToolFormat};
pub use generic::{as_text, generic_format};
pub use harmony::{FINAL as HARMONY_FINAL, Harmony};
pub use history::with_written_calls;
pub use message_parser::Messages;
