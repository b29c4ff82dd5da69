//! Terminal rendering of reasoning and answers.

use std::io;

use engine::chat::{ReasoningSplit, ReasoningTags, Segment};

use super::markdown::Markdown;
use crate::terminal::{self, Stream};

/// Callback that receives generated text.
pub type Emit<'a> = dyn FnMut(&str) -> io::Result<()> + 'a;

/// Rendering of reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Rendered like the response.
    Plain,
    /// Dimmed, for terminals.
    Dimmed,
    /// Omitted, including the tags.
    Hidden,
}

impl Show {
    /// Returns `Dimmed` if standard output is a terminal with colors.
    pub fn on_stdout(hide: bool) -> Show {
        if hide {
            Show::Hidden
        } else if terminal::is_plain(Stream::Out) {
            Show::Plain
        } else {
            Show::Dimmed
        }
    }
}

/// Writer for a response that separates reasoning from the answer.
pub struct Shown<'a> {
    out: Out<'a>,
    split: ReasoningSplit,
    /// Opening tag at the end of the prompt, to be written before the response.
    opening: String,
}

/// Output side of [`Shown`].
struct Out<'a> {
    emit: &'a mut Emit<'a>,
    show: Show,
    is_dimmed: bool,
    /// Markdown renderer for the answer, on terminals.
    markdown: Option<Markdown>,
    ends_line: Option<bool>,
}

impl<'a> Shown<'a> {
    /// Creates a writer for the response to `prompt`, which may already end in an open reasoning tag.
    pub fn new(show: Show, tags: Option<ReasoningTags>, prompt: &str, emit: &'a mut Emit<'a>) -> Shown<'a> {
        // Plain output needs no separation.
        let tags = if show == Show::Plain { None } else { tags };
        Shown {
            split: ReasoningSplit::new(tags, prompt),
            opening: String::new(),
            out: Out {
                emit,
                show,
                is_dimmed: false,
                markdown: None,
                ends_line: None,
            },
        }
    }

    /// Renders the answer with the given Markdown renderer.
    #[must_use]
    pub fn with_markdown(mut self, markdown: Option<Markdown>) -> Shown<'a> {
        self.out.markdown = markdown;
        self
    }

    /// Writes the opening tag before the response if the prompt ends with it, so that each closing tag has an opening
    /// tag.
    #[must_use]
    pub fn with_opening_tag(mut self, tags: Option<ReasoningTags>, prompt: &str) -> Shown<'a> {
        if let Some((open, _)) = tags
            && prompt.trim_end().ends_with(open)
            && let Some(at) = prompt.rfind(open)
        {
            self.opening = prompt[at..].to_owned();
        }
        self
    }

    pub fn push(&mut self, text: &str) -> io::Result<()> {
        if !self.opening.is_empty() && !text.is_empty() {
            let opening = std::mem::take(&mut self.opening);
            self.out.write(Segment::Tag, &opening)?;
        }
        self.split.push(text, |segment, text| self.out.write(segment, text))
    }

    /// Emits buffered text and ends dimming.
    pub fn finish(&mut self) -> io::Result<()> {
        self.split.finish(|segment, text| self.out.write(segment, text))?;
        self.out.dim(false)?;
        let left = self.out.markdown.as_mut().map(Markdown::finish).unwrap_or_default();
        if left.is_empty() {
            Ok(())
        } else {
            (self.out.emit)(&left)
        }
    }

    /// Returns whether the output ends with a newline; `None` if there was no output.
    pub fn ends_line(&self) -> Option<bool> {
        self.out.ends_line
    }
}

impl Out<'_> {
    fn write(&mut self, segment: Segment, text: &str) -> io::Result<()> {
        if self.show == Show::Hidden && segment != Segment::Answer {
            return Ok(());
        }
        let is_thought = matches!(segment, Segment::Tag | Segment::Reasoning);
        self.dim(is_thought && self.show == Show::Dimmed)?;
        self.ends_line = Some(text.ends_with('\n'));
        match &mut self.markdown {
            Some(markdown) if !is_thought => (self.emit)(&markdown.push(text)),
            _ => (self.emit)(text),
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

    /// Returns the rendered text, and asserts that it does not depend on how the input is split.
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
    fn reasoning_is_dimmed_or_hidden() {
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
    fn split_starts_in_reasoning_if_prompt_opens_it() {
        let text = "Easy.</think>Yes.";
        assert_eq!(shown(Show::Hidden, "<think>\n", text), "Yes.");
        assert_eq!(shown(Show::Dimmed, "<think>", text), "\x1b[2mEasy.</think>\x1b[0mYes.");
        assert_eq!(shown(Show::Hidden, "<think>\n\n</think>\n\n", "Yes."), "Yes.");
    }

    #[test]
    fn opening_tag_of_prompt_is_written_before_reasoning() {
        let shown = |show, prompt: &str, text: &str| {
            let mut out = String::new();
            let mut emit = |text: &str| {
                out.push_str(text);
                Ok(())
            };
            let mut shown = Shown::new(show, THINK, prompt, &mut emit).with_opening_tag(THINK, prompt);
            shown.push("").unwrap();
            text.split("").for_each(|piece| shown.push(piece).unwrap());
            shown.finish().unwrap();
            out
        };
        let text = "Easy.\n</think>\n\nYes.";
        assert_eq!(shown(Show::Plain, "<user>a<think>\n", text), format!("<think>\n{text}"));
        assert_eq!(
            shown(Show::Dimmed, "<think>", text),
            "\x1b[2m<think>Easy.\n</think>\x1b[0m\n\nYes."
        );
        assert_eq!(shown(Show::Hidden, "<think>\n", text), "Yes.");
        for prompt in ["", "<think>\n\n</think>\n\n", "say <think> twice"] {
            assert_eq!(shown(Show::Plain, prompt, text), text);
        }
        assert_eq!(shown(Show::Plain, "<think>\n", ""), "");
    }

    #[test]
    fn split_keeps_later_tags_and_partial_output() {
        for text in ["Yes <think>no</think>", " ", "<thin", "<thing>", ""] {
            assert_eq!(shown(Show::Dimmed, "", text), text);
            assert_eq!(shown(Show::Hidden, "", text), text);
        }
        assert_eq!(shown(Show::Dimmed, "", "<think>a</thi"), "\x1b[2m<think>a</thi\x1b[0m");
        assert_eq!(shown(Show::Hidden, "", "<think>a</thi"), "");
    }
}
