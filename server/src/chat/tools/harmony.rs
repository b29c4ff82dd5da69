//! Parser for GPT-OSS' Harmony format:
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`. Reasoning, content, and tool
//! calls are separate messages.

use std::sync::Arc;

use engine::vocab::partial_match_len;

use super::definition::Function;
use super::format::HARMONY_MARKS;
use crate::chat::event::{Ending, OutputEvent, push_arguments, push_text};

/// Control tokens that end a message.
const ENDS: &[&str] = &["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];
const MESSAGE: &str = "<|message|>";
/// Text in front of the name of a function.
const RECIPIENT: &str = "to=functions.";
/// Prompt suffix that skips reasoning.
pub const FINAL: &str = "<|channel|>final<|message|>";

/// Incremental parser for Harmony output.
#[derive(Clone, Debug)]
pub struct Harmony {
    functions: Arc<[Function]>,
    parallel: bool,
    n_calls: usize,
    part: Part,
    pending: String,
    has_spoken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Message header: role, channel, and recipient.
    Head,
    Thought,
    Text,
    Arguments,
    /// A call that is dropped because only one is allowed.
    Nothing,
}

impl Harmony {
    /// Creates a parser for the output of a prompt.
    pub fn new(functions: Arc<[Function]>, parallel: bool, prompt: &str) -> Harmony {
        let is_final = prompt.ends_with(FINAL);
        Harmony {
            functions,
            parallel,
            n_calls: 0,
            part: if is_final { Part::Text } else { Part::Head },
            pending: String::new(),
            has_spoken: is_final,
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
        match self.part {
            Part::Head if ending == Ending::CutOff && is_recipient(&rest) => {}
            // Output without any channel is content.
            Part::Head if !self.has_spoken && !HARMONY_MARKS.iter().any(|mark| rest.contains(mark)) => {
                push_text(events, rest)
            }
            Part::Head => {}
            part => give(part, rest, events),
        }
    }

    fn advance(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        if self.part == Part::Head {
            let Some((head, rest)) = self.pending.split_once(MESSAGE) else {
                return false;
            };
            let (head, rest) = (head.to_owned(), rest.to_owned());
            self.pending = rest;
            self.part = self.part_of(&head, events);
            self.has_spoken = true;
            return true;
        }
        let end = ENDS
            .iter()
            .filter_map(|end| Some((self.pending.find(end)?, *end)))
            .min();
        let n = match end {
            Some((at, _)) => at,
            None => {
                self.pending.len()
                    - ENDS
                        .iter()
                        .map(|end| partial_match_len(&self.pending, end))
                        .max()
                        .unwrap_or(0)
            }
        };
        give(self.part, self.pending.drain(..n).collect(), events);
        if let Some((_, end)) = end {
            // These tokens belong to the next header.
            if end != "<|start|>" && end != "<|channel|>" {
                self.pending.drain(..end.len());
            }
            self.part = Part::Head;
        }
        end.is_some()
    }

    /// Determines the kind of a message from its header; emits the start of a call.
    fn part_of(&mut self, head: &str, events: &mut Vec<OutputEvent>) -> Part {
        let is_name = |c: char| !c.is_whitespace() && c != '<';
        let recipient = head.split_once(RECIPIENT).map(|(_, rest)| {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            &rest[..end]
        });
        let channel = head.split_once("<|channel|>").map_or("", |(_, rest)| rest.trim_start());
        if let Some(name) = recipient.filter(|name| self.functions.iter().any(|f| f.name == *name)) {
            if self.n_calls > 0 && !self.parallel {
                return Part::Nothing;
            }
            self.n_calls += 1;
            events.push(OutputEvent::Call(name.to_owned()));
            return Part::Arguments;
        }
        if channel.starts_with("analysis") {
            Part::Thought
        } else {
            Part::Text
        }
    }
}

/// Returns true if a text starts with a function as recipient, or may continue to do so.
fn is_recipient(text: &str) -> bool {
    let text = text.trim_start();
    !text.is_empty() && (text.starts_with(RECIPIENT) || RECIPIENT.starts_with(text))
}

fn give(part: Part, text: String, events: &mut Vec<OutputEvent>) {
    match part {
        _ if text.is_empty() => {}
        Part::Thought => events.push(OutputEvent::Reasoning(text)),
        Part::Text => push_text(events, text),
        Part::Arguments => push_arguments(events, &text),
        Part::Head | Part::Nothing => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::functions;
    use super::*;

    fn events(prompt: &str, text: &str, parallel: bool) -> Vec<OutputEvent> {
        let run = |pieces: &[&str]| {
            let mut split = Harmony::new(functions(), parallel, prompt);
            let mut all = Vec::new();
            pieces.iter().for_each(|piece| split.push(piece, &mut all));
            split.finish(Ending::Complete, &mut all);
            super::super::tests::joined(all)
        };
        let characters: Vec<&str> = text.split("").collect();
        let whole = run(&[text]);
        assert_eq!(run(&characters), whole, "{text:?}");
        whole
    }

    #[test]
    fn harmony_channels_are_separated() {
        let text = "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>";
        let thought = || OutputEvent::Reasoning("Hm <b>.".to_owned());
        let call = || {
            [
                OutputEvent::Call("f".to_owned()),
                OutputEvent::Arguments("{\"a\": 1}".to_owned()),
            ]
        };
        let [name, arguments] = call();
        assert_eq!(events("<|start|>assistant", text, true), [thought(), name, arguments]);
        let other = " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}<|call|>";
        assert_eq!(events("", other, true), call());
        let twice = format!("{text}<|start|>assistant{other}");
        assert_eq!(events("", &twice, false).len(), 3);
        assert_eq!(events("", &twice, true).len(), 5);
        let last =
            "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>";
        assert_eq!(
            events("", last, true),
            [thought(), OutputEvent::Text("Yes.".to_owned())]
        );
    }

    #[test]
    fn output_without_channel_is_content() {
        let yes = || [OutputEvent::Text("Yes <|x.".to_owned())];
        assert_eq!(events("", "Yes <|x.", true), yes());
        assert_eq!(
            events("<|start|>assistant<|channel|>final<|message|>", "Yes <|x.", true),
            yes()
        );
        let unknown = "<|channel|>commentary to=functions.unheard_of<|message|>{}";
        assert_eq!(events("", unknown, true), [OutputEvent::Text("{}".to_owned())]);
        assert_eq!(events("", "<|channel|>analysis", true), []);
    }

    #[test]
    fn truncated_recipient_is_not_content() {
        let call = " to=functions.f<|channel|>commentary json";
        for n in 1..call.len() {
            let mut split = Harmony::new(functions(), true, "");
            let mut all = Vec::new();
            split.push(&call[..n], &mut all);
            split.finish(Ending::CutOff, &mut all);
            assert!(
                all.iter().all(|event| *event == OutputEvent::Text(" ".to_owned())),
                "{n}: {all:?}"
            );
        }
    }
}
