//! How much a model may think before it has to answer.

use super::ReasoningTags;

/// Counts what a model thinks, and says when that has to end.
#[derive(Debug, Clone)]
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

/// Where an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Nothing but white space has come.
    Start(ReasoningTags),
    Reasoning(ReasoningTags),
    Answer,
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
