//! How a model's reasoning is shown beside its answer.

use std::io;

use engine::chat::{ReasoningSplit, ReasoningTags, Spoken};

use crate::markdown::Markdown;
use crate::output::Emit;
use crate::say;

/// How reasoning is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// As the answer is.
    Plain,
    /// Dimmed, as on a terminal.
    Dimmed,
    /// Not at all, neither are its tags.
    Hidden,
}

impl Show {
    /// Dimmed where standard output is a terminal on which colours are welcome.
    pub fn on_stdout(hide: bool) -> Show {
        match hide {
            true => Show::Hidden,
            false if say::is_plain(say::Stream::Out) => Show::Plain,
            false => Show::Dimmed,
        }
    }
}

/// Text of an answer on its way out.
pub struct Shown<'a> {
    out: Out<'a>,
    split: ReasoningSplit,
}

/// Where it goes.
struct Out<'a> {
    emit: &'a mut Emit<'a>,
    show: Show,
    is_dimmed: bool,
    /// How the answer is shown on a terminal.
    markdown: Option<Markdown>,
    ends_line: Option<bool>,
}

impl<'a> Shown<'a> {
    /// An answer to this prompt, whose end may have opened reasoning already.
    pub fn new(show: Show, tags: Option<ReasoningTags>, prompt: &str, emit: &'a mut Emit<'a>) -> Shown<'a> {
        let tags = tags.filter(|_| show != Show::Plain);
        Shown {
            split: ReasoningSplit::new(tags, prompt),
            out: Out {
                emit,
                show,
                is_dimmed: false,
                markdown: None,
                ends_line: None,
            },
        }
    }

    /// The same, with the markdown of the answer as a terminal shows it.
    #[must_use]
    pub fn with_markdown(mut self, markdown: Option<Markdown>) -> Shown<'a> {
        self.out.markdown = markdown;
        self
    }

    /// Takes text.
    pub fn push(&mut self, text: &str) -> io::Result<()> {
        self.split.push(text, |spoken, text| self.out.say(spoken, text))
    }

    /// Lets out what is left, and ends what is dimmed.
    pub fn finish(&mut self) -> io::Result<()> {
        self.split.finish(|spoken, text| self.out.say(spoken, text))?;
        self.out.dim(false)?;
        let left = self.out.markdown.as_mut().map(Markdown::finish).unwrap_or_default();
        if left.is_empty() {
            Ok(())
        } else {
            (self.out.emit)(&left)
        }
    }

    /// Whether the text that went out ends a line; `None` if none did.
    pub fn ends_line(&self) -> Option<bool> {
        self.out.ends_line
    }
}

impl Out<'_> {
    fn say(&mut self, spoken: Spoken, text: &str) -> io::Result<()> {
        if self.show == Show::Hidden && spoken != Spoken::Answer {
            return Ok(());
        }
        let is_thought = matches!(spoken, Spoken::Tag | Spoken::Reasoning);
        self.dim(is_thought && self.show == Show::Dimmed)?;
        self.ends_line = Some(text.ends_with('\n'));
        match self.markdown.as_mut().filter(|_| !is_thought) {
            Some(markdown) => (self.emit)(&markdown.push(text)),
            None => (self.emit)(text),
        }
    }

    fn dim(&mut self, wanted: bool) -> io::Result<()> {
        if self.is_dimmed != wanted {
            (self.emit)(if wanted { "\x1b[2m" } else { "\x1b[0m" })?;
            self.is_dimmed = wanted;
        }
        Ok(())
    }
}

/// Where an answer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Nothing but white space has come.
    Start(ReasoningTags),
    Reasoning(ReasoningTags),
    Answer,
}

/// Counts what a model thinks, and says when that has to end.
pub struct Budget {
    tags: ReasoningTags,
    /// Tokens that may still be thought.
    left: usize,
    /// What the model is made to think last.
    message: String,
    part: Part,
    /// The text that may hold a tag.
    seen: Vec<u8>,
}

impl Budget {
    /// So many tokens of thinking in an answer to this prompt.
    pub fn new(tags: ReasoningTags, prompt: &str, n_tokens: usize, message: &str) -> Budget {
        let is_open = prompt.trim_end().ends_with(tags.0);
        Budget {
            tags,
            left: n_tokens,
            message: message.to_owned(),
            part: if is_open {
                Part::Reasoning(tags)
            } else {
                Part::Start(tags)
            },
            seen: Vec::new(),
        }
    }

    /// Takes the bytes of a token of the answer.
    pub fn push(&mut self, bytes: &[u8]) {
        self.seen.extend_from_slice(bytes);
        match self.part {
            Part::Start((open, _)) => {
                let begun = self.seen.trim_ascii_start();
                if begun.starts_with(open.as_bytes()) {
                    self.part = Part::Reasoning(self.tags);
                    self.seen.clear();
                } else if !open.as_bytes().starts_with(begun) {
                    self.part = Part::Answer;
                }
            }
            Part::Reasoning((_, close)) => {
                let close = close.as_bytes();
                if self.seen.windows(close.len()).any(|text| text == close) {
                    self.part = Part::Answer;
                }
                self.left = self.left.saturating_sub(1);
                // No tag is longer than what is kept.
                let n_kept = self.seen.len().min(close.len());
                self.seen.drain(..self.seen.len() - n_kept);
            }
            Part::Answer => self.seen.clear(),
        }
    }

    /// What ends the thinking, if it has to end here; once.
    pub fn end(&mut self) -> Option<String> {
        if self.left > 0 || !matches!(self.part, Part::Reasoning(_)) {
            return None;
        }
        self.part = Part::Answer;
        let message = match self.message.as_str() {
            "" => String::new(),
            message => format!("\n{message}"),
        };
        Some(format!("{message}\n{}", self.tags.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THINK: Option<ReasoningTags> = Some(("<think>", "</think>"));

    /// What goes out, the same whether text comes whole or by characters.
    #[track_caller]
    fn shown(show: Show, prompt: &str, text: &str) -> String {
        let run = |pieces: &[&str]| {
            let mut out = String::new();
            let mut emit = |text: &str| {
                out.push_str(text);
                Ok(())
            };
            let mut shown = Shown::new(show, THINK, prompt, &mut emit);
            pieces.iter().for_each(|piece| shown.push(piece).unwrap());
            shown.finish().unwrap();
            out
        };
        let characters: Vec<&str> = text.split("").collect();
        let whole = run(&[text]);
        assert_eq!(run(&characters), whole);
        whole
    }

    #[test]
    fn reasoning_is_dimmed_or_hidden_and_answers_are_not() {
        let text = "\n<think>\nEasy: a < b.\n</think>\n\nYes é.\n";
        assert_eq!(shown(Show::Plain, "", text), text);
        assert_eq!(
            shown(Show::Dimmed, "", text),
            "\x1b[2m\n<think>\nEasy: a < b.\n</think>\x1b[0m\n\nYes é.\n"
        );
        assert_eq!(shown(Show::Hidden, "", text), "Yes é.\n");
        assert_eq!(shown(Show::Hidden, "", "<think></think>"), "");
    }

    #[test]
    fn a_prompt_may_open_it() {
        let text = "Easy.</think>Yes.";
        assert_eq!(shown(Show::Hidden, "<think>\n", text), "Yes.");
        assert_eq!(shown(Show::Dimmed, "<think>", text), "\x1b[2mEasy.</think>\x1b[0mYes.");
        assert_eq!(shown(Show::Hidden, "<think>\n\n</think>\n\n", "Yes."), "Yes.");
    }

    #[test]
    fn tags_within_an_answer_are_text_and_what_ends_early_is_whole() {
        for text in ["Yes <think>no</think>", " ", "<thin", "<thing>", ""] {
            assert_eq!(shown(Show::Dimmed, "", text), text);
            assert_eq!(shown(Show::Hidden, "", text), text);
        }
        assert_eq!(shown(Show::Dimmed, "", "<think>a</thi"), "\x1b[2m<think>a</thi\x1b[0m");
        assert_eq!(shown(Show::Hidden, "", "<think>a</thi"), "");
    }

    /// The tokens that are taken before thinking has to end, and how it does.
    fn ended(prompt: &str, n: usize, tokens: &[&str]) -> Option<(usize, String)> {
        let mut budget = Budget::new(("<think>", "</think>"), prompt, n, "enough");
        for (i, token) in tokens.iter().enumerate() {
            if let Some(end) = budget.end() {
                assert_eq!(budget.end(), None);
                return Some((i, end));
            }
            budget.push(token.as_bytes());
        }
        budget.end().map(|end| (tokens.len(), end))
    }

    #[test]
    fn thinking_ends_when_its_budget_is_spent() {
        let end = "\nenough\n</think>".to_owned();
        assert_eq!(ended("", 2, &["<thi", "nk>", "a", "b", "c"]), Some((4, end.clone())));
        assert_eq!(ended("x<think>\n", 0, &["a"]), Some((0, end.clone())));
        assert_eq!(ended("", 0, &["\n", "<think>", "a"]), Some((2, end)));
        assert_eq!(ended("", 3, &["<think>", "a", "</th", "ink>", "b", "c", "d"]), None);
        assert_eq!(ended("", 1, &["no", "<think>", "a", "b"]), None);
    }
}
