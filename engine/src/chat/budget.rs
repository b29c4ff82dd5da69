//! Reasoning budget: limits the number of reasoning tokens before the response.

use super::ReasoningTags;

/// End of a message header in the Harmony format.
const MESSAGE: &str = "<|message|>";
/// Tokens that end a Harmony message.
const ENDS: &[&str] = &["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];
/// Maximum length in bytes of a Harmony message header for channel detection.
const MAX_HEAD: usize = 256;

/// Format of the model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// Between tags at the start of the output.
    Tags(ReasoningTags),
    /// Harmony format: reasoning is in messages of the analysis channel, and the output may contain several.
    Channels {
        /// Tool calls are possible, so the message after reasoning need not be the final response.
        calls: bool,
    },
}

/// Counts reasoning tokens and ends the reasoning when the budget is exhausted.
#[derive(Debug, Clone)]
pub struct Budget {
    marks: Marks,
    /// Number of reasoning tokens left.
    left: usize,
    /// Text inserted at the end of the reasoning.
    message: String,
    part: Part,
    /// Recent output bytes that may contain a tag.
    seen: Vec<u8>,
    /// Whether the reasoning was already ended once.
    has_ended: bool,
}

/// Part of the model's output that is being generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Start of the output: only white space, and an opening tag may follow.
    Start,
    /// Header of a message, with role and channel.
    Head,
    Reasoning,
    /// A message without reasoning; another message may follow.
    Message,
    /// The model's response; no further reasoning follows.
    Answer,
}

impl Budget {
    /// Creates a budget of `n_tokens` reasoning tokens for the completion of `prompt`. `message` is inserted
    /// when the budget is exhausted.
    pub fn new(marks: Marks, prompt: &str, n_tokens: usize, message: &str) -> Budget {
        let part = match marks {
            Marks::Tags((open, _)) if prompt.trim_end().ends_with(open) => Part::Reasoning,
            Marks::Tags(_) => Part::Start,
            Marks::Channels { .. } => match prompt.strip_suffix(MESSAGE).and_then(|head| head.rfind("<|start|>")) {
                Some(at) => part_of(&prompt.as_bytes()[at..]),
                None => Part::Head,
            },
        };
        Budget {
            marks,
            left: n_tokens,
            message: message.to_owned(),
            part,
            seen: Vec::new(),
            has_ended: false,
        }
    }

    /// Adds the bytes of a generated token.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.part == Part::Reasoning {
            self.left = self.left.saturating_sub(1);
        }
        self.seen.extend_from_slice(bytes);
        match (self.part, self.marks) {
            (Part::Start, Marks::Tags((open, _))) => {
                let begun = self.seen.trim_ascii_start();
                if begun.starts_with(open.as_bytes()) {
                    self.part = Part::Reasoning;
                    self.seen.clear();
                } else if !open.as_bytes().starts_with(begun) {
                    self.part = Part::Answer;
                }
            }
            (Part::Reasoning, Marks::Tags((_, close))) => {
                if find(&self.seen, close).is_some() {
                    self.part = Part::Answer;
                }
                self.keep(close.len());
            }
            (Part::Head, _) => match find(&self.seen, MESSAGE) {
                Some(at) => {
                    self.part = part_of(&self.seen[..at]);
                    self.seen.drain(..at + MESSAGE.len());
                }
                None => self.keep(MAX_HEAD),
            },
            (Part::Reasoning | Part::Message, Marks::Channels { .. }) => {
                match ENDS.iter().filter_map(|end| find(&self.seen, end)).min() {
                    Some(at) => {
                        self.part = Part::Head;
                        self.seen.drain(..at);
                    }
                    None => self.keep(MESSAGE.len()),
                }
            }
            _ => self.seen.clear(),
        }
    }

    /// Exhausts the budget of the current reasoning. Returns false if the output is not in reasoning.
    pub fn spend(&mut self) -> bool {
        let thinks = self.part == Part::Reasoning;
        if thinks {
            self.left = 0;
        }
        thinks
    }

    /// Keeps the last `n` bytes, which is enough for the longest tag.
    fn keep(&mut self, n: usize) {
        self.seen.drain(..self.seen.len().saturating_sub(n));
    }

    /// Returns the text that ends the reasoning if the budget is exhausted. With tool calls, a Harmony model
    /// may start reasoning again; it is then ended immediately and followed by the final response.
    pub fn end(&mut self) -> Option<String> {
        if self.left > 0 || self.part != Part::Reasoning {
            return None;
        }
        let message = match self.message.as_str() {
            "" => String::new(),
            message => format!("\n{message}"),
        };
        self.seen.clear();
        let goes_on = matches!(self.marks, Marks::Channels { calls: true }) && !self.has_ended;
        self.part = if goes_on { Part::Head } else { Part::Answer };
        let message = if self.has_ended { String::new() } else { message };
        self.has_ended = true;
        Some(match self.marks {
            Marks::Tags((_, close)) => format!("{message}\n{close}"),
            Marks::Channels { .. } if goes_on => format!("{message}<|end|><|start|>assistant"),
            Marks::Channels { .. } => format!("{message}<|end|><|start|>assistant<|channel|>final{MESSAGE}"),
        })
    }
}

/// Determines the kind of a Harmony message by its header.
fn part_of(head: &[u8]) -> Part {
    let channel = "<|channel|>";
    let is_thought = find(head, channel).is_some_and(|at| {
        let name = head[at + channel.len()..].trim_ascii_start();
        name.starts_with(b"analysis") && find(head, "to=functions.").is_none()
    });
    if is_thought { Part::Reasoning } else { Part::Message }
}

fn find(text: &[u8], mark: &str) -> Option<usize> {
    text.windows(mark.len()).position(|text| text == mark.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of tokens before the reasoning is ended, and the inserted text.
    fn ended(prompt: &str, n: usize, tokens: &[&str]) -> Option<(usize, String)> {
        let tags = Marks::Tags(("<think>", "</think>"));
        let mut budget = Budget::new(tags, prompt, n, "enough");
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
    fn reasoning_ends_when_budget_is_exhausted() {
        let end = "\nenough\n</think>".to_owned();
        assert_eq!(ended("", 2, &["<thi", "nk>", "a", "b", "c"]), Some((4, end.clone())));
        assert_eq!(ended("x<think>\n", 0, &["a"]), Some((0, end.clone())));
        assert_eq!(ended("", 0, &["\n", "<think>", "a"]), Some((2, end)));
        assert_eq!(ended("", 3, &["<think>", "a", "</th", "ink>", "b", "c", "d"]), None);
        assert_eq!(ended("", 1, &["no", "<think>", "a", "b"]), None);
    }

    #[test]
    fn reasoning_can_be_ended_early() {
        let mut budget = Budget::new(Marks::Tags(("<think>", "</think>")), "", usize::MAX, "");
        assert!(!budget.spend(), "reasoning has not started");
        ["<think>", "a"].iter().for_each(|token| budget.push(token.as_bytes()));
        assert_eq!(budget.end(), None);
        assert!(budget.spend());
        assert_eq!(budget.end().as_deref(), Some("\n</think>"));
        assert!(!budget.spend(), "the response has started");
    }

    /// Simulates a Harmony completion that generates `pieces`. Inserted text is in brackets.
    fn in_channels(calls: bool, n: usize, pieces: &[&str]) -> String {
        let mut budget = Budget::new(Marks::Channels { calls }, "<|start|>assistant", n, "enough");
        let mut said = String::new();
        for piece in pieces {
            if let Some(end) = budget.end() {
                said += &format!("[{end}]");
                budget.push(end.as_bytes());
            }
            said += piece;
            budget.push(piece.as_bytes());
        }
        said
    }

    #[test]
    fn harmony_reasoning_ends_when_budget_is_exhausted() {
        let thought = ["<|channel|>", "analysis", "<|message|>", "a", "b"];
        let ends = |calls: bool, n: usize| in_channels(calls, n, &[&thought[..], &["c"]].concat());
        let begun = "<|channel|>analysis<|message|>ab";
        assert_eq!(ends(true, 2), format!("{begun}[\nenough<|end|><|start|>assistant]c"));
        let answer = format!("{begun}[\nenough<|end|><|start|>assistant<|channel|>final<|message|>]c");
        assert_eq!(ends(false, 2), answer);
        assert_eq!(ends(true, 9), format!("{begun}c"));
        // A second reasoning is followed by the response. Calls and their commentary do not count as
        // reasoning.
        let again = [&thought[..], &thought[..], &["c"]].concat();
        let said = in_channels(true, 2, &again);
        let twice = "[\nenough<|end|><|start|>assistant]<|channel|>analysis<|message|>[<|end|><|start|>assistant<|channel|>final<|message|>]ab";
        assert_eq!(said, format!("{begun}{twice}c"));
        let call = [
            "<|end|>",
            "<|start|>",
            "assistant",
            "<|channel|>commentary to=functions.f",
            "<|message|>",
            "{",
            "}",
            "<|call|>",
        ];
        let pieces = [&thought[..], &call[..]].concat();
        assert_eq!(in_channels(true, 3, &pieces), pieces.concat());
        // Several reasoning messages share one budget.
        let pieces = [
            &thought[..],
            &["<|end|>", "<|start|>assistant"],
            &thought[..3],
            &["c"],
            &["d"],
        ]
        .concat();
        assert!(
            in_channels(false, 4, &pieces)
                .ends_with("<|message|>c[\nenough<|end|><|start|>assistant<|channel|>final<|message|>]d")
        );
        let opened = Budget::new(
            Marks::Channels { calls: false },
            "<|start|>assistant<|channel|>analysis<|message|>",
            0,
            "",
        )
        .end();
        assert!(opened.is_some());
    }
}
