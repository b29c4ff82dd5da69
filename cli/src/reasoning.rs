//! The model's reasoning, told from its answer: between the tags of its template, at the beginning of what it says.

use std::io;

use crate::output::{Emit, n_begun};
use crate::say;

/// What comes before reasoning and behind it, in the families of models that reason.
const TAGS: &[(&str, &str)] = &[
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
];

/// The tags of a template that names some.
pub fn tags_of(template: &str) -> Option<Tags> {
    TAGS.iter().copied().find(|(_, close)| template.contains(close))
}

/// Before reasoning, and behind it.
pub type Tags = (&'static str, &'static str);

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
            false if say::is_plain(&io::stdout()) => Show::Plain,
            false => Show::Dimmed,
        }
    }
}

/// Text of an answer on its way out.
pub struct Shown<'a> {
    emit: &'a mut Emit<'a>,
    show: Show,
    part: Part,
    /// What may be the beginning of a tag.
    held: String,
    is_dimmed: bool,
    /// Whether the text that went out ends a line; `None` if none did.
    pub ends_line: Option<bool>,
}

/// Where the text is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Nothing but white space has come.
    Start(Tags),
    Reasoning(Tags),
    /// White space behind reasoning that is hidden.
    Gap,
    Answer,
}

impl<'a> Shown<'a> {
    /// An answer to this prompt, whose end may have opened reasoning already.
    pub fn new(show: Show, tags: Option<Tags>, prompt: &str, emit: &'a mut Emit<'a>) -> Shown<'a> {
        let part = match tags.filter(|_| show != Show::Plain) {
            None => Part::Answer,
            Some(tags) if prompt.trim_end().ends_with(tags.0) => Part::Reasoning(tags),
            Some(tags) => Part::Start(tags),
        };
        Shown {
            emit,
            show,
            part,
            held: String::new(),
            is_dimmed: false,
            ends_line: None,
        }
    }

    /// Takes text.
    pub fn push(&mut self, text: &str) -> io::Result<()> {
        self.held.push_str(text);
        loop {
            let part = self.part;
            match part {
                Part::Start((open, _)) => {
                    let begun = self.held.trim_start();
                    if open.starts_with(begun) && begun != open {
                        return Ok(());
                    }
                    self.part = match (part, begun.starts_with(open)) {
                        (Part::Start(tags), true) => Part::Reasoning(tags),
                        _ => Part::Answer,
                    };
                }
                Part::Reasoning((_, close)) => {
                    let Some(at) = self.held.find(close) else {
                        return self.say(self.held.len() - n_begun(&self.held, close), true);
                    };
                    self.say(at + close.len(), true)?;
                    self.part = if self.show == Show::Hidden {
                        Part::Gap
                    } else {
                        Part::Answer
                    };
                }
                Part::Gap => {
                    let n = self.held.len() - self.held.trim_start().len();
                    self.held.drain(..n);
                    if self.held.is_empty() {
                        return Ok(());
                    }
                    self.part = Part::Answer;
                }
                Part::Answer => return self.say(self.held.len(), false),
            }
        }
    }

    /// Lets out what is left, and ends what is dimmed.
    pub fn finish(&mut self) -> io::Result<()> {
        self.say(self.held.len(), matches!(self.part, Part::Reasoning(_)))?;
        self.dim(false)
    }

    /// Lets out the first `n` bytes of what is held.
    fn say(&mut self, n: usize, is_reasoning: bool) -> io::Result<()> {
        if n == 0 {
            return Ok(());
        }
        if !is_reasoning || self.show != Show::Hidden {
            self.dim(is_reasoning && self.show == Show::Dimmed)?;
            self.ends_line = Some(self.held[..n].ends_with('\n'));
            (self.emit)(&self.held[..n])?;
        }
        self.held.drain(..n);
        Ok(())
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

    const THINK: Option<Tags> = Some(("<think>", "</think>"));

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

    #[test]
    fn tags_are_those_of_the_template() {
        assert_eq!(tags_of("{{ '</think>' }}"), THINK);
        assert_eq!(tags_of("<thought>"), None);
    }
}
