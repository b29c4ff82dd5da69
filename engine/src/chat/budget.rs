//! How much a model may think before it has to answer.

use super::ReasoningTags;

/// The end of the head of a message in channels.
const MESSAGE: &str = "<|message|>";
/// What ends a message in channels.
const ENDS: &[&str] = &["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];
/// Bytes that the head of a message in channels has at most, for its channel to be seen.
const MAX_HEAD: usize = 256;

/// How a model marks what it thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// Between tags, at the beginning of what it says.
    Tags(ReasoningTags),
    /// In messages of a channel (Harmony), of which there may be several.
    Channels {
        /// Functions may be called, so that something else than the answer may follow.
        calls: bool,
    },
}

/// Counts what a model thinks, and says when that has to end.
#[derive(Debug, Clone)]
pub struct Budget {
    marks: Marks,
    /// Tokens that may still be thought.
    left: usize,
    /// What the model is made to think last.
    message: String,
    part: Part,
    /// The text that may hold a mark.
    seen: Vec<u8>,
    /// It had to end before.
    has_ended: bool,
}

/// Where an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Nothing but white space has come, and a tag may.
    Start,
    /// Role and channel of a message.
    Head,
    Reasoning,
    /// A message that is not thought, and another may follow.
    Message,
    /// Nothing is thought any more.
    Answer,
}

impl Budget {
    /// So many tokens of thinking in an answer to this prompt.
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

    /// Takes the bytes of a token of the answer.
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

    /// Has the thinking under way end now. False where nothing is being thought.
    pub fn spend(&mut self) -> bool {
        let thinks = self.part == Part::Reasoning;
        if thinks {
            self.left = 0;
        }
        thinks
    }

    /// No mark is longer than what is kept.
    fn keep(&mut self, n: usize) {
        self.seen.drain(..self.seen.len().saturating_sub(n));
    }

    /// What ends the thinking, if it has to end here. In channels a model may then think again, which has to end at once, and the answer follows.
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

/// What a message in channels is, by its head.
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

    /// The tokens that are taken before thinking has to end, and how it does.
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
    fn thinking_ends_when_its_budget_is_spent() {
        let end = "\nenough\n</think>".to_owned();
        assert_eq!(ended("", 2, &["<thi", "nk>", "a", "b", "c"]), Some((4, end.clone())));
        assert_eq!(ended("x<think>\n", 0, &["a"]), Some((0, end.clone())));
        assert_eq!(ended("", 0, &["\n", "<think>", "a"]), Some((2, end)));
        assert_eq!(ended("", 3, &["<think>", "a", "</th", "ink>", "b", "c", "d"]), None);
        assert_eq!(ended("", 1, &["no", "<think>", "a", "b"]), None);
    }

    #[test]
    fn thinking_can_be_ended_while_it_goes_on() {
        let mut budget = Budget::new(Marks::Tags(("<think>", "</think>")), "", usize::MAX, "");
        assert!(!budget.spend(), "nothing is thought yet");
        ["<think>", "a"].iter().for_each(|token| budget.push(token.as_bytes()));
        assert_eq!(budget.end(), None);
        assert!(budget.spend());
        assert_eq!(budget.end().as_deref(), Some("\n</think>"));
        assert!(!budget.spend(), "the answer has begun");
    }

    /// An answer in channels, of pieces that a model would write; what it is made to say instead stands in brackets.
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
    fn thinking_in_a_channel_ends_when_its_budget_is_spent() {
        let thought = ["<|channel|>", "analysis", "<|message|>", "a", "b"];
        let ends = |calls: bool, n: usize| in_channels(calls, n, &[&thought[..], &["c"]].concat());
        let begun = "<|channel|>analysis<|message|>ab";
        assert_eq!(ends(true, 2), format!("{begun}[\nenough<|end|><|start|>assistant]c"));
        let answer = format!("{begun}[\nenough<|end|><|start|>assistant<|channel|>final<|message|>]c");
        assert_eq!(ends(false, 2), answer);
        assert_eq!(ends(true, 9), format!("{begun}c"));
        // Who thinks again has to answer; a call and what is said with it are no thoughts.
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
        // Several thoughts have one budget.
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
