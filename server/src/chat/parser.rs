//! Splits model output into reasoning, content, and tool calls while it streams.

use std::convert::Infallible;

use engine::chat::{ReasoningSplit, Segment};

use super::event::{Ending, OutputEvent};
use super::tools::{Harmony, Messages, ToolCallParser};

/// Incremental parser of one completion.
#[derive(Clone, Debug)]
pub enum OutputParser {
    /// Reasoning between tags, followed by content with tool calls.
    Tags {
        /// Splits reasoning from the content.
        reasoning: ReasoningSplit,
        /// Splits off tool calls; `None` if the request has no tools.
        calls: Option<ToolCallParser>,
    },
    /// Parser of the Harmony format, with messages in channels.
    Harmony(Harmony),
    /// Parser of other formats with separate messages.
    Messages(Messages),
}

impl OutputParser {
    /// Returns a parser that treats all output as content.
    pub fn none() -> OutputParser {
        OutputParser::Tags {
            reasoning: ReasoningSplit::new(None, ""),
            calls: None,
        }
    }

    /// Parses the next piece of output and returns the events that are certain. With an `ending`, flushes the
    /// remaining output.
    pub fn push(&mut self, text: &str, ending: Option<Ending>) -> Vec<OutputEvent> {
        let mut events = Vec::new();
        match self {
            OutputParser::Harmony(harmony) => {
                harmony.push(text, &mut events);
                if let Some(ending) = ending {
                    harmony.finish(ending, &mut events);
                }
            }
            OutputParser::Messages(messages) => {
                messages.push(text, &mut events);
                if let Some(ending) = ending {
                    messages.finish(ending, &mut events);
                }
            }
            OutputParser::Tags { reasoning, calls } => {
                let (mut thought, mut content) = (String::new(), String::new());
                let mut take = |segment: Segment, text: &str| -> Result<(), Infallible> {
                    match segment {
                        Segment::Reasoning => thought.push_str(text),
                        Segment::Answer => content.push_str(text),
                        Segment::Tag | Segment::Gap => {}
                    }
                    Ok(())
                };
                let Ok(()) = reasoning.push(text, &mut take);
                if ending.is_some() {
                    let Ok(()) = reasoning.finish(&mut take);
                }
                if !thought.is_empty() {
                    events.push(OutputEvent::Reasoning(thought));
                }
                match calls {
                    Some(calls) => {
                        calls.push(&content, &mut events);
                        if let Some(ending) = ending {
                            calls.finish(ending, &mut events);
                        }
                    }
                    None if content.is_empty() => {}
                    None => events.push(OutputEvent::Text(content)),
                }
            }
        }
        events
    }
}
