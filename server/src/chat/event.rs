//! Parsed pieces of a model's output.

/// A piece of parsed output.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputEvent {
    /// Reasoning text.
    Reasoning(String),
    /// Content text.
    Text(String),
    /// Start of a call of this function; its arguments follow.
    Call(String),
    /// Part of the arguments of the last call. The parts form a JSON object.
    Arguments(String),
}

/// End of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The model or a stop string ended the output.
    Complete,
    /// A limit cut off the output, possibly inside a tool call.
    CutOff,
}

/// A function call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// Function name.
    pub name: String,
    /// JSON object; may be incomplete if the completion was cut off.
    pub arguments: String,
}

/// Appends content text.
pub fn push_text(events: &mut Vec<OutputEvent>, text: String) {
    match events.last_mut() {
        _ if text.is_empty() => {}
        Some(OutputEvent::Text(before)) => before.push_str(&text),
        _ => events.push(OutputEvent::Text(text)),
    }
}

/// Appends part of the arguments.
pub fn push_arguments(events: &mut Vec<OutputEvent>, text: &str) {
    match events.last_mut() {
        _ if text.is_empty() => {}
        Some(OutputEvent::Arguments(before)) => before.push_str(text),
        _ => events.push(OutputEvent::Arguments(text.to_owned())),
    }
}
