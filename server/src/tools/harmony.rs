//! Answers in channels (Harmony, as GPT-OSS writes them): `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`. What is
//! thought, what is said and calls are messages of their own.

use std::sync::Arc;

use engine::vocab::n_begun;

use super::Function;
use super::split::{Said, say, tell};

/// Its control tokens.
pub const MARKS: &[&str] = &[
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];
/// What ends the text of a message.
const ENDS: &[&str] = &["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];
const MESSAGE: &str = "<|message|>";
/// The end of a prompt whose answer is told at once.
pub const FINAL: &str = "<|channel|>final<|message|>";

/// Tells messages of the channels from each other as text comes.
#[derive(Clone, Debug)]
pub struct Harmony {
    functions: Arc<[Function]>,
    parallel: bool,
    n_calls: usize,
    part: Part,
    held: String,
    has_spoken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Role, channel and recipient of a message.
    Head,
    Thought,
    Text,
    Arguments,
    /// A call of more than are wanted.
    Nothing,
}

impl Harmony {
    /// An answer to this prompt. `functions`: those that may be called.
    pub fn new(functions: Arc<[Function]>, parallel: bool, prompt: &str) -> Harmony {
        let is_final = prompt.ends_with(FINAL);
        Harmony {
            functions,
            parallel,
            n_calls: 0,
            part: if is_final { Part::Text } else { Part::Head },
            held: String::new(),
            has_spoken: is_final,
        }
    }

    /// Takes text, and gives what is sure.
    pub fn push(&mut self, text: &str, said: &mut Vec<Said>) {
        self.held.push_str(text);
        while self.advance(said) {}
    }

    /// Gives what is left when no text follows.
    pub fn finish(&mut self, said: &mut Vec<Said>) {
        let rest = std::mem::take(&mut self.held);
        match self.part {
            // An answer without any channel is text.
            Part::Head if !self.has_spoken && !MARKS.iter().any(|mark| rest.contains(mark)) => say(said, rest),
            Part::Head => {}
            part => give(part, rest, said),
        }
    }

    fn advance(&mut self, said: &mut Vec<Said>) -> bool {
        if self.part == Part::Head {
            let Some((head, rest)) = self.held.split_once(MESSAGE) else {
                return false;
            };
            let (head, rest) = (head.to_owned(), rest.to_owned());
            self.held = rest;
            self.part = self.part_of(&head, said);
            self.has_spoken = true;
            return true;
        }
        let end = ENDS.iter().filter_map(|end| Some((self.held.find(end)?, *end))).min();
        let n = match end {
            Some((at, _)) => at,
            None => self.held.len() - ENDS.iter().map(|end| n_begun(&self.held, end)).max().unwrap_or(0),
        };
        give(self.part, self.held.drain(..n).collect(), said);
        if let Some((_, end)) = end {
            // What begins the next head stays a part of it.
            if end != "<|start|>" && end != "<|channel|>" {
                self.held.drain(..end.len());
            }
            self.part = Part::Head;
        }
        end.is_some()
    }

    /// What a message is by its head; a call begins.
    fn part_of(&mut self, head: &str, said: &mut Vec<Said>) -> Part {
        let is_name = |c: char| !c.is_whitespace() && c != '<';
        let recipient = head.split_once("to=functions.").map(|(_, rest)| {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            &rest[..end]
        });
        let channel = head.split_once("<|channel|>").map_or("", |(_, rest)| rest.trim_start());
        if let Some(name) = recipient.filter(|name| self.functions.iter().any(|f| f.name == *name)) {
            if self.n_calls > 0 && !self.parallel {
                return Part::Nothing;
            }
            self.n_calls += 1;
            said.push(Said::Call(name.to_owned()));
            return Part::Arguments;
        }
        if channel.starts_with("analysis") {
            Part::Thought
        } else {
            Part::Text
        }
    }
}

fn give(part: Part, text: String, said: &mut Vec<Said>) {
    match part {
        _ if text.is_empty() => {}
        Part::Thought => said.push(Said::Reasoning(text)),
        Part::Text => say(said, text),
        Part::Arguments => tell(said, &text),
        Part::Head | Part::Nothing => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::functions;
    use super::*;

    fn said(prompt: &str, text: &str, parallel: bool) -> Vec<Said> {
        let run = |pieces: &[&str]| {
            let mut split = Harmony::new(functions(), parallel, prompt);
            let mut all = Vec::new();
            pieces.iter().for_each(|piece| split.push(piece, &mut all));
            split.finish(&mut all);
            super::super::tests::joined(all)
        };
        let characters: Vec<&str> = text.split("").collect();
        let whole = run(&[text]);
        assert_eq!(run(&characters), whole, "{text:?}");
        whole
    }

    #[test]
    fn channels_are_told_apart() {
        let text = "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>";
        let thought = || Said::Reasoning("Hm <b>.".to_owned());
        let call = || [Said::Call("f".to_owned()), Said::Arguments("{\"a\": 1}".to_owned())];
        let [name, arguments] = call();
        assert_eq!(said("<|start|>assistant", text, true), [thought(), name, arguments]);
        let other = " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}<|call|>";
        assert_eq!(said("", other, true), call());
        let twice = format!("{text}<|start|>assistant{other}");
        assert_eq!(said("", &twice, false).len(), 3);
        assert_eq!(said("", &twice, true).len(), 5);
        let last =
            "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>";
        assert_eq!(said("", last, true), [thought(), Said::Text("Yes.".to_owned())]);
    }

    #[test]
    fn what_has_no_channel_is_text() {
        let yes = || [Said::Text("Yes <|x.".to_owned())];
        assert_eq!(said("", "Yes <|x.", true), yes());
        assert_eq!(
            said("<|start|>assistant<|channel|>final<|message|>", "Yes <|x.", true),
            yes()
        );
        let unknown = "<|channel|>commentary to=functions.unheard_of<|message|>{}";
        assert_eq!(said("", unknown, true), [Said::Text("{}".to_owned())]);
        assert_eq!(said("", "<|channel|>analysis", true), []);
    }
}
