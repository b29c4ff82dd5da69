//! Parser of the output of models that write separate messages.

use engine::vocab::partial_match_len;

use super::call_parser::ToolCallParser;
use super::messages::{MessageKind, MessageMarks};
use crate::chat::event::{Ending, OutputEvent, push_text};

/// Maximum length in bytes of output without a header that is held back.
const MAX_HEADER: usize = 512;

/// Incremental parser of messages.
#[derive(Clone, Debug)]
pub struct Messages {
    marks: &'static MessageMarks,
    calls: Option<ToolCallParser>,
    /// Kind of the current message; `None` inside a header.
    kind: Option<MessageKind>,
    /// A header was complete.
    has_header: bool,
    pending: String,
}

impl Messages {
    /// Creates a parser for the output of a prompt. `calls` parses the tool calls in the content.
    pub fn new(marks: &'static MessageMarks, calls: Option<ToolCallParser>, prompt: &str) -> Messages {
        let is_answer = prompt.ends_with(marks.answer);
        Messages {
            marks,
            calls,
            kind: is_answer.then_some(MessageKind::Content),
            has_header: is_answer,
            pending: String::new(),
        }
    }

    /// Parses the next piece of output and appends the events that are certain.
    pub fn push(&mut self, text: &str, events: &mut Vec<OutputEvent>) {
        self.pending.push_str(text);
        while self.advance(events) {}
    }

    /// Appends the events of the remaining text at the end of the output.
    pub fn finish(&mut self, ending: Ending, events: &mut Vec<OutputEvent>) {
        let rest = std::mem::take(&mut self.pending);
        match self.kind {
            Some(kind) => self.emit(kind, &rest, events),
            None if ending == Ending::CutOff && self.is_recipient(&rest) => {}
            // Output without any header is content.
            None if !self.has_header => self.emit(MessageKind::Content, &rest, events),
            None => {}
        }
        if let Some(calls) = &mut self.calls {
            calls.finish(ending, events);
        }
    }

    /// Returns true if a text starts with a recipient, or may continue to do so.
    fn is_recipient(&self, text: &str) -> bool {
        let (mark, text) = (
            self.marks.call.map_or("", |(mark, _)| mark.trim_start()),
            text.trim_start(),
        );
        !mark.is_empty() && !text.is_empty() && (text.starts_with(mark) || mark.starts_with(text))
    }

    /// Processes the pending text. Returns false if more text is needed.
    fn advance(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        let Some(kind) = self.kind else { return self.header() };
        let end = self.marks.end(&self.pending);
        let partial = |mark: &&str| partial_match_len(&self.pending, mark);
        let n = match end {
            Some((at, _)) => at,
            None => self.pending.len() - self.marks.ends.iter().map(partial).max().unwrap_or(0),
        };
        let text: String = self.pending.drain(..n).collect();
        self.emit(kind, &text, events);
        if let Some((_, len)) = end {
            self.pending.drain(..len);
            self.kind = None;
        }
        end.is_some()
    }

    fn header(&mut self) -> bool {
        let Some((n, kind)) = self.marks.header(&self.pending) else {
            let is_content = !self.has_header && self.pending.len() > MAX_HEADER;
            if is_content {
                (self.kind, self.has_header) = (Some(MessageKind::Content), true);
            }
            return is_content;
        };
        self.pending.drain(..n);
        (self.kind, self.has_header) = (Some(kind), true);
        true
    }

    fn emit(&mut self, kind: MessageKind, text: &str, events: &mut Vec<OutputEvent>) {
        match (&mut self.calls, kind) {
            _ if text.is_empty() => {}
            (_, MessageKind::Reasoning) => events.push(OutputEvent::Reasoning(text.to_owned())),
            (Some(calls), _) => calls.push(text, events),
            (None, _) => push_text(events, text.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::format::{CallSyntax, Marker, ToolFormat};
    use super::super::tests::{calls, functions, joined};
    use super::*;

    /// Parses output in pieces of each size.
    #[track_caller]
    fn parsed(marks: &'static MessageMarks, format: &ToolFormat, prompt: &str, text: &str) -> Vec<OutputEvent> {
        let run = |pieces: &[&str]| {
            let calls = ToolCallParser::new(Arc::new(format.clone()), functions(), true);
            let mut parser = Messages::new(marks, Some(calls), prompt);
            let mut events = Vec::new();
            pieces.iter().for_each(|piece| parser.push(piece, &mut events));
            parser.finish(Ending::Complete, &mut events);
            joined(events)
        };
        let whole = run(&[text]);
        assert_eq!(run(&text.split("").collect::<Vec<_>>()), whole, "{text}");
        whole
    }

    fn solar() -> ToolFormat {
        ToolFormat {
            open: "<|tool_calls|>".to_owned(),
            head: "<|tool_call:begin|>".to_owned(),
            id: Some("<|tool_call:name|>".to_owned()),
            tail: "<|tool_call:end|>".to_owned(),
            ..ToolFormat::new(CallSyntax::Named {
                middle: Marker {
                    before: "<|tool_call:args|>".to_owned(),
                    after: None,
                },
            })
        }
    }

    #[test]
    fn messages_become_reasoning_content_and_calls() {
        let format = solar();
        let marks = MessageMarks::of("<|begin|>assistant<|content|>").unwrap();
        let thought = "<|think|>Hm.<|end|><|begin|>assistant";
        for (prompt, text, wanted) in [
            ("assistant", format!("{thought}<|content|>Yes.<|end|>"), "Yes."),
            ("assistant<|content|>", "No.<|end|>".to_owned(), "No."),
            ("assistant", "Plain.".to_owned(), "Plain."),
        ] {
            let events = parsed(marks, &format, prompt, &text);
            assert_eq!(events.last(), Some(&OutputEvent::Text(wanted.to_owned())), "{text}");
            assert_eq!(events.len(), 1 + usize::from(text.starts_with("<|think|>")), "{text}");
        }
        let call = |id: &str, name: &str, arguments: &str| {
            format!("<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>")
        };
        let both = call("a1b2c3d4e5", "f", "{\"a\": 1}") + &call("x", "g", "{}");
        let events = parsed(marks, &format, "", &format!("{thought}<|tool_calls|>{both}<|calls|>"));
        assert_eq!(events[0], OutputEvent::Reasoning("Hm.".to_owned()));
        let wanted = [("f".to_owned(), json!({"a": 1})), ("g".to_owned(), json!({}))];
        assert_eq!(calls(&events), wanted);
    }
}
