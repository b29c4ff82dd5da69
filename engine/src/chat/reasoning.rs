//! Separates reasoning from the response: reasoning is enclosed in the template's tags at the start of the
//! output.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value as Json, json};

use super::{ChatTemplate, Message};
use crate::vocab::partial_match_len;

/// Opening and closing reasoning tags of common model families.
const TAGS: &[ReasoningTags] = &[
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
];

/// Opening and closing tag of reasoning.
pub type ReasoningTags = (&'static str, &'static str);

/// Returns a template's reasoning tags: common tags that occur in its source, or the tags that it renders
/// around reasoning.
pub fn reasoning_tags(template: &ChatTemplate, source: &str) -> Option<ReasoningTags> {
    let common = TAGS.iter().copied().find(|(_, close)| source.contains(close));
    common.or_else(|| rendered_tags(template))
}

/// Returns the tags rendered around reasoning. Some templates omit reasoning before a response but keep it
/// before a tool call.
fn rendered_tags(template: &ChatTemplate) -> Option<ReasoningTags> {
    let call = json!([{"id": "aB3dE5gH7", "type": "function", "function": {"name": "f_5e0a", "arguments": {}}}]);
    tags_around(template, None).or_else(|| tags_around(template, Some(call)))
}

/// Returns the tags rendered around reasoning; `None` if there are none, or if other text separates reasoning
/// and response.
fn tags_around(template: &ChatTemplate, calls: Option<Json>) -> Option<ReasoningTags> {
    const THOUGHT: &str = "~T-40c2~";
    const ANSWER: &str = "~A-9b13~";
    // Fields that templates use for reasoning.
    let fields = ["reasoning_content", "reasoning", "thinking"].map(|name| (name.to_owned(), THOUGHT.into()));
    let calls_of = || calls.iter().map(|calls| ("tool_calls".to_owned(), calls.clone()));
    let render = |fields: &[(String, Json)]| {
        let mut answer = Message::assistant(ANSWER);
        answer.fields.extend(fields.iter().cloned().chain(calls_of()));
        let thinks = ["enable_thinking", "thinking"].map(|name| (name.to_owned(), true.into()));
        let variables = thinks.into_iter().collect();
        template
            .render(&[Message::user("~U-5a0e~"), answer], false, &variables)
            .ok()
    };
    let (with, without) = (render(&fields)?, render(&[])?);
    let (before, rest) = with.split_once(THOUGHT)?;
    let n = before.chars().zip(without.chars()).take_while(|(a, b)| a == b);
    let n: usize = n.map(|(c, _)| c.len_utf8()).sum();
    // Excludes a partial tag that both texts share.
    let n = before[..n]
        .rfind(['<', '['])
        .filter(|&at| !before[at..n].contains(['>', ']']))
        .unwrap_or(n);
    let (open, rest) = (before[n..].trim(), rest.trim_start());
    let close = &rest[..tag_end(rest)?];
    // A channel is identified by a word after its tag.
    let is_tag = tag_end(open).is_some_and(|end| open[end..].chars().all(|c| c.is_ascii_lowercase()));
    let is_followed = || {
        let mut behind = rest[close.len()..].split_once(ANSWER)?.0.trim();
        while let Some(end) = tag_end(behind) {
            behind = behind[end..].trim_start();
        }
        Some(behind.is_empty())
    };
    let is_whole = calls.is_some() || is_followed() == Some(true);
    if is_tag && is_whole && open != close {
        Some((kept(open), kept(close)))
    } else {
        None
    }
}

/// Returns the end of a leading tag `<…>` or `[…]`.
fn tag_end(text: &str) -> Option<usize> {
    let last = match text.chars().next()? {
        '<' => '>',
        '[' => ']',
        _ => return None,
    };
    text.find(last).map(|at| at + 1).filter(|&end| end > 2)
}

/// Interns a string for the lifetime of the process. The number of strings is bounded by the number of
/// distinct templates.
fn kept(text: &str) -> &'static str {
    static ALL: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    match all.get(text) {
        Some(known) => known,
        None => {
            let text: &'static str = String::leak(text.to_owned());
            all.insert(text);
            text
        }
    }
}

/// Kind of an output segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A tag; the opening tag includes preceding white space.
    Tag,
    /// Reasoning text of the model.
    Reasoning,
    /// White space between the reasoning and the response.
    Gap,
    /// Response text of the model.
    Answer,
}

/// Splits streamed output into reasoning and response.
#[derive(Clone, Debug)]
pub struct ReasoningSplit {
    part: Part,
    /// Buffered output that may be a prefix of a tag.
    buffer: String,
}

/// Part of the model's output that the parser is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Start of the output: only white space.
    Start(ReasoningTags),
    Reasoning(ReasoningTags),
    /// White space after the closing tag of the reasoning.
    Gap,
    Answer,
}

impl ReasoningSplit {
    /// Creates a splitter for the completion of `prompt`, whose end may contain the opening tag. Without
    /// tags, all output is response.
    pub fn new(tags: Option<ReasoningTags>, prompt: &str) -> ReasoningSplit {
        let part = match tags {
            None => Part::Answer,
            Some(tags) if prompt.trim_end().ends_with(tags.0) => Part::Reasoning(tags),
            Some(tags) => Part::Start(tags),
        };
        ReasoningSplit {
            part,
            buffer: String::new(),
        }
    }

    /// Returns true during reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.part, Part::Reasoning(_))
    }

    /// Adds output and passes its nonempty segments to `emit`.
    pub fn push<E>(&mut self, text: &str, mut emit: impl FnMut(Segment, &str) -> Result<(), E>) -> Result<(), E> {
        self.buffer.push_str(text);
        loop {
            match self.part {
                Part::Start(tags) => {
                    let begun = self.buffer.trim_start();
                    let n = self.buffer.len() - begun.len() + tags.0.len();
                    if begun.starts_with(tags.0) {
                        self.part = Part::Reasoning(tags);
                        self.emit_front(n, Segment::Tag, &mut emit)?;
                    } else if tags.0.starts_with(begun) {
                        return Ok(());
                    } else {
                        self.part = Part::Answer;
                    }
                }
                Part::Reasoning((_, close)) => {
                    let Some(at) = self.buffer.find(close) else {
                        let n = self.buffer.len() - partial_match_len(&self.buffer, close);
                        return self.emit_front(n, Segment::Reasoning, &mut emit);
                    };
                    self.part = Part::Gap;
                    self.emit_front(at, Segment::Reasoning, &mut emit)?;
                    self.emit_front(close.len(), Segment::Tag, &mut emit)?;
                }
                Part::Gap => {
                    let n = self.buffer.len() - self.buffer.trim_start().len();
                    self.emit_front(n, Segment::Gap, &mut emit)?;
                    if self.buffer.is_empty() {
                        return Ok(());
                    }
                    self.part = Part::Answer;
                }
                Part::Answer => return self.emit_front(self.buffer.len(), Segment::Answer, &mut emit),
            }
        }
    }

    /// Passes the remaining output to `emit` at the end of the stream.
    pub fn finish<E>(&mut self, mut emit: impl FnMut(Segment, &str) -> Result<(), E>) -> Result<(), E> {
        let segment = match self.part {
            Part::Reasoning(_) => Segment::Reasoning,
            _ => Segment::Answer,
        };
        self.emit_front(self.buffer.len(), segment, &mut emit)
    }

    /// Emits the first `n` buffered bytes.
    fn emit_front<E>(
        &mut self,
        n: usize,
        segment: Segment,
        emit: &mut impl FnMut(Segment, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        if n == 0 {
            return Ok(());
        }
        let result = emit(segment, &self.buffer[..n]);
        self.buffer.drain(..n);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const THINK: Option<ReasoningTags> = Some(("<think>", "</think>"));

    /// Returns reasoning and response. Checks that the result does not depend on how the output is chunked.
    #[track_caller]
    fn split(prompt: &str, text: &str) -> (String, String) {
        let run = |pieces: &[&str]| {
            let (mut reasoning, mut answer) = (String::new(), String::new());
            let mut split = ReasoningSplit::new(THINK, prompt);
            let mut take = |segment, text: &str| -> Result<(), Infallible> {
                assert!(!text.is_empty());
                match segment {
                    Segment::Reasoning => reasoning.push_str(text),
                    Segment::Answer => answer.push_str(text),
                    Segment::Tag | Segment::Gap => {}
                }
                Ok(())
            };
            for piece in pieces {
                let Ok(()) = split.push(piece, &mut take);
            }
            let Ok(()) = split.finish(&mut take);
            (reasoning, answer)
        };
        let characters: Vec<&str> = text.split("").collect();
        let whole = run(&[text]);
        assert_eq!(run(&characters), whole);
        whole
    }

    fn of(reasoning: &str, answer: &str) -> (String, String) {
        (reasoning.to_owned(), answer.to_owned())
    }

    #[test]
    fn split_separates_reasoning_and_response() {
        let text = "\n<think>\nEasy: a < b.\n</think>\n\nYes é.\n";
        assert_eq!(split("", text), of("\nEasy: a < b.\n", "Yes é.\n"));
        assert_eq!(split("", "<think></think>"), of("", ""));
        assert_eq!(split("", "<think>a</thi"), of("a</thi", ""));
    }

    #[test]
    fn split_starts_in_reasoning_if_prompt_opens_it() {
        assert_eq!(split("<think>\n", "Easy.</think>Yes."), of("Easy.", "Yes."));
        assert_eq!(split("<think>\n\n</think>\n\n", "Yes."), of("", "Yes."));
    }

    #[test]
    fn split_keeps_later_tags_and_partial_output() {
        for text in ["Yes <think>no</think>", " ", "<thin", "<thing>", ""] {
            assert_eq!(split("", text), of("", text));
        }
    }

    #[track_caller]
    fn tags(source: &str) -> Option<ReasoningTags> {
        reasoning_tags(&ChatTemplate::new(source, "", "").unwrap(), source)
    }

    #[test]
    fn reasoning_tags_come_from_template_source() {
        assert_eq!(tags("{{ messages[0].content }}{{ '</think>' }}"), THINK);
        assert_eq!(tags("<thought>{{ messages[0].content }}"), None);
    }

    /// Finds the tags for any field name and any tags.
    #[test]
    fn reasoning_tags_are_detected_by_rendering() {
        let around = |field: &str, open: &str, close: &str, before: &str| {
            let source = format!(
                "{{% for m in messages %}}<|{{{{ m.role }}}}|>{{% if m.{field} %}}{open}{{{{ m.{field} }}}}{close}{{% endif %}}{before}{{{{ m.content }}}}<|end|>{{% endfor %}}"
            );
            tags(&source)
        };
        assert_eq!(
            around("reasoning_content", "<thought>\n", "\n</thought>\n\n", ""),
            Some(("<thought>", "</thought>"))
        );
        assert_eq!(
            around("reasoning", "[THINK]", "[/THINK]", ""),
            Some(("[THINK]", "[/THINK]"))
        );
        let found = around(
            "thinking",
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            "<|START_RESPONSE|>",
        );
        assert_eq!(found, Some(("<|START_THINKING|>", "<|END_THINKING|>")));
        // Plain words are not tags, and a channel may include a word.
        assert_eq!(around("thinking", "I think: ", ". I say: ", ""), None);
        assert_eq!(
            around(
                "thinking",
                "<|channel|>analysis<|message|>",
                "<|end|>",
                "<|start|>assistant<|channel|>final<|message|>"
            ),
            None
        );
        assert_eq!(around("thoughts", "<thought>", "</thought>", ""), None);
    }

    /// Gemma 4 uses a named channel, and its template keeps reasoning only before tool calls.
    #[test]
    fn named_channel_is_detected_with_tool_call() {
        const GEMMA: &str = "{% for m in messages %}<|turn>{{ m.role }}\n{% set thought = m.reasoning or m.reasoning_content %}\
            {% if thought and m.tool_calls %}<|channel>thought\n{{ thought }}\n<channel|>{% endif %}\
            {% for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name }}{}<tool_call|>{% endfor %}{{ m.content }}<turn|>\n{% endfor %}\
            {% if add_generation_prompt %}<|turn>model\n{% if not enable_thinking %}<|channel>thought\n<channel|>{% endif %}{% endif %}";
        let found = tags(GEMMA);
        assert_eq!(found, Some(("<|channel>thought", "<channel|>")));
        let split = |prompt: &str, text: &str| {
            let mut result = Vec::new();
            let mut split = ReasoningSplit::new(found, prompt);
            for piece in text.split("") {
                let Ok(()) = split.push(piece, |segment, text| -> Result<(), Infallible> {
                    result.push((segment, text.to_owned()));
                    Ok(())
                });
            }
            let of = |wanted: Segment| -> String {
                let all = result.iter().filter(|(segment, _)| *segment == wanted);
                all.map(|(_, text)| text.as_str()).collect()
            };
            (of(Segment::Reasoning), of(Segment::Answer))
        };
        let prompt = |thinks: bool| {
            let variables = [("enable_thinking".to_owned(), thinks.into())].into_iter().collect();
            let template = ChatTemplate::new(GEMMA, "", "").unwrap();
            template.render(&[Message::user("Hello.")], true, &variables).unwrap()
        };
        let text = "<|channel>thought\nEasy <b>.\n<channel|>Yes.";
        assert_eq!(split(&prompt(true), text), of("\nEasy <b>.\n", "Yes."));
        // With thinking disabled, the prompt contains empty reasoning.
        assert_eq!(split(&prompt(false), "Yes."), of("", "Yes."));
    }
}
