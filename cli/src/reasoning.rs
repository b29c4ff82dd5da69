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
}
