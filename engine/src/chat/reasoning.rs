//! The model's reasoning, told from its answer: between the tags of its template, at the beginning of what it says.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value as Json, json};

use super::{ChatTemplate, Message};
use crate::vocab::n_begun;

/// What comes before reasoning and behind it, in the families of models that reason.
const TAGS: &[ReasoningTags] = &[
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
];

/// Before reasoning, and behind it.
pub type ReasoningTags = (&'static str, &'static str);

/// The tags of a template: those of the common families that its source names, or what it puts around a thought that it is given.
pub fn reasoning_tags(template: &ChatTemplate, source: &str) -> Option<ReasoningTags> {
    let common = TAGS.iter().copied().find(|(_, close)| source.contains(close));
    common.or_else(|| rendered_tags(template))
}

/// What a template puts around a thought; some leave out what was thought before an answer, and keep what was before a call.
fn rendered_tags(template: &ChatTemplate) -> Option<ReasoningTags> {
    let call = json!([{"id": "aB3dE5gH7", "type": "function", "function": {"name": "f_5e0a", "arguments": {}}}]);
    tags_around(template, None).or_else(|| tags_around(template, Some(call)))
}

/// What a template puts around a thought. `None` if that is nothing, or no tags with nothing but tags between thought and answer.
fn tags_around(template: &ChatTemplate, calls: Option<Json>) -> Option<ReasoningTags> {
    const THOUGHT: &str = "~T-40c2~";
    const ANSWER: &str = "~A-9b13~";
    // The names that templates have for what is thought.
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
    // Not a part of a tag that both begin alike.
    let n = before[..n]
        .rfind(['<', '['])
        .filter(|&at| !before[at..n].contains(['>', ']']))
        .unwrap_or(n);
    let (open, rest) = (before[n..].trim(), rest.trim_start());
    let close = &rest[..tag_end(rest)?];
    // A channel is named by a word behind its tag.
    let is_tag = tag_end(open).is_some_and(|end| open[end..].chars().all(|c| c.is_ascii_lowercase()));
    let is_followed = || {
        let mut behind = rest[close.len()..].split_once(ANSWER)?.0.trim();
        while let Some(end) = tag_end(behind) {
            behind = behind[end..].trim_start();
        }
        Some(behind.is_empty())
    };
    let is_whole = calls.is_some() || is_followed() == Some(true);
    (is_tag && is_whole && open != close).then(|| (kept(open), kept(close)))
}

/// Where the tag ends that a text begins with: `<…>` or `[…]`.
fn tag_end(text: &str) -> Option<usize> {
    let last = match text.chars().next()? {
        '<' => '>',
        '[' => ']',
        _ => return None,
    };
    text.find(last).map(|at| at + 1).filter(|&end| end > 2)
}

/// A text for as long as the program runs: there are as many as kinds of templates.
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

/// What a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// A tag, with white space before the first one.
    Tag,
    /// What is thought.
    Reasoning,
    /// White space between reasoning and answer.
    Gap,
    /// What is said.
    Answer,
}

/// Tells reasoning from the answer as text comes.
#[derive(Clone, Debug)]
pub struct ReasoningSplit {
    part: Part,
    /// What may be the beginning of a tag.
    held: String,
}

/// Where the text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Nothing but white space has come.
    Start(ReasoningTags),
    Reasoning(ReasoningTags),
    /// White space behind reasoning.
    Gap,
    Answer,
}

impl ReasoningSplit {
    /// An answer to this prompt, whose end may have opened reasoning already. Without tags all is answer.
    pub fn new(tags: Option<ReasoningTags>, prompt: &str) -> ReasoningSplit {
        let part = match tags {
            None => Part::Answer,
            Some(tags) if prompt.trim_end().ends_with(tags.0) => Part::Reasoning(tags),
            Some(tags) => Part::Start(tags),
        };
        ReasoningSplit {
            part,
            held: String::new(),
        }
    }

    /// True as long as the answer has not begun and reasoning has.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.part, Part::Reasoning(_))
    }

    /// Takes text, and gives its parts to `emit`, none of them empty.
    pub fn push<E>(&mut self, text: &str, mut emit: impl FnMut(Spoken, &str) -> Result<(), E>) -> Result<(), E> {
        self.held.push_str(text);
        loop {
            match self.part {
                Part::Start(tags) => {
                    let begun = self.held.trim_start();
                    let n = self.held.len() - begun.len() + tags.0.len();
                    if begun.starts_with(tags.0) {
                        self.part = Part::Reasoning(tags);
                        self.say(n, Spoken::Tag, &mut emit)?;
                    } else if tags.0.starts_with(begun) {
                        return Ok(());
                    } else {
                        self.part = Part::Answer;
                    }
                }
                Part::Reasoning((_, close)) => {
                    let Some(at) = self.held.find(close) else {
                        let n = self.held.len() - n_begun(&self.held, close);
                        return self.say(n, Spoken::Reasoning, &mut emit);
                    };
                    self.part = Part::Gap;
                    self.say(at, Spoken::Reasoning, &mut emit)?;
                    self.say(close.len(), Spoken::Tag, &mut emit)?;
                }
                Part::Gap => {
                    let n = self.held.len() - self.held.trim_start().len();
                    self.say(n, Spoken::Gap, &mut emit)?;
                    if self.held.is_empty() {
                        return Ok(());
                    }
                    self.part = Part::Answer;
                }
                Part::Answer => return self.say(self.held.len(), Spoken::Answer, &mut emit),
            }
        }
    }

    /// Gives what is left to `emit` when no text follows.
    pub fn finish<E>(&mut self, mut emit: impl FnMut(Spoken, &str) -> Result<(), E>) -> Result<(), E> {
        let spoken = match self.part {
            Part::Reasoning(_) => Spoken::Reasoning,
            _ => Spoken::Answer,
        };
        self.say(self.held.len(), spoken, &mut emit)
    }

    /// Gives away the first `n` bytes of what is held.
    fn say<E>(
        &mut self,
        n: usize,
        spoken: Spoken,
        emit: &mut impl FnMut(Spoken, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        if n == 0 {
            return Ok(());
        }
        let said = emit(spoken, &self.held[..n]);
        self.held.drain(..n);
        said
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const THINK: Option<ReasoningTags> = Some(("<think>", "</think>"));

    /// Reasoning and answer, the same whether text comes whole or by characters.
    #[track_caller]
    fn split(prompt: &str, text: &str) -> (String, String) {
        let run = |pieces: &[&str]| {
            let (mut reasoning, mut answer) = (String::new(), String::new());
            let mut split = ReasoningSplit::new(THINK, prompt);
            let mut take = |spoken, text: &str| -> Result<(), Infallible> {
                assert!(!text.is_empty());
                match spoken {
                    Spoken::Reasoning => reasoning.push_str(text),
                    Spoken::Answer => answer.push_str(text),
                    Spoken::Tag | Spoken::Gap => {}
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
    fn reasoning_is_told_from_the_answer() {
        let text = "\n<think>\nEasy: a < b.\n</think>\n\nYes é.\n";
        assert_eq!(split("", text), of("\nEasy: a < b.\n", "Yes é.\n"));
        assert_eq!(split("", "<think></think>"), of("", ""));
        assert_eq!(split("", "<think>a</thi"), of("a</thi", ""));
    }

    #[test]
    fn a_prompt_may_open_it() {
        assert_eq!(split("<think>\n", "Easy.</think>Yes."), of("Easy.", "Yes."));
        assert_eq!(split("<think>\n\n</think>\n\n", "Yes."), of("", "Yes."));
    }

    #[test]
    fn tags_within_an_answer_are_text_and_what_ends_early_is_whole() {
        for text in ["Yes <think>no</think>", " ", "<thin", "<thing>", ""] {
            assert_eq!(split("", text), of("", text));
        }
    }

    #[track_caller]
    fn tags(source: &str) -> Option<ReasoningTags> {
        reasoning_tags(&ChatTemplate::new(source, "", "").unwrap(), source)
    }

    #[test]
    fn tags_are_those_of_the_template() {
        assert_eq!(tags("{{ '</think>' }}"), THINK);
        assert_eq!(tags("<thought>{{ messages[0].content }}"), None);
    }

    /// Whatever a template calls what is thought, and whatever it puts around it.
    #[test]
    fn tags_are_found_by_rendering() {
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
        // Words are no tags, and channels are more than tags.
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

    /// As Gemma 4 has it: a channel with a name, of which templates keep what came before calls only.
    #[test]
    fn channels_with_names_are_found_by_calls() {
        const GEMMA: &str = "{% for m in messages %}<|turn>{{ m.role }}\n{% set thought = m.reasoning or m.reasoning_content %}\
            {% if thought and m.tool_calls %}<|channel>thought\n{{ thought }}\n<channel|>{% endif %}\
            {% for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name }}{}<tool_call|>{% endfor %}{{ m.content }}<turn|>\n{% endfor %}\
            {% if add_generation_prompt %}<|turn>model\n{% if not enable_thinking %}<|channel>thought\n<channel|>{% endif %}{% endif %}";
        let found = tags(GEMMA);
        assert_eq!(found, Some(("<|channel>thought", "<channel|>")));
        let split = |prompt: &str, text: &str| {
            let mut said = Vec::new();
            let mut split = ReasoningSplit::new(found, prompt);
            for piece in text.split("") {
                let Ok(()) = split.push(piece, |spoken, text| -> Result<(), Infallible> {
                    said.push((spoken, text.to_owned()));
                    Ok(())
                });
            }
            let of = |wanted: Spoken| -> String {
                let all = said.iter().filter(|(spoken, _)| *spoken == wanted);
                all.map(|(_, text)| text.as_str()).collect()
            };
            (of(Spoken::Reasoning), of(Spoken::Answer))
        };
        let prompt = |thinks: bool| {
            let variables = [("enable_thinking".to_owned(), thinks.into())].into_iter().collect();
            let template = ChatTemplate::new(GEMMA, "", "").unwrap();
            template.render(&[Message::user("Hello.")], true, &variables).unwrap()
        };
        let text = "<|channel>thought\nEasy <b>.\n<channel|>Yes.";
        assert_eq!(split(&prompt(true), text), of("\nEasy <b>.\n", "Yes."));
        // Where it is told not to think, the prompt has an empty thought.
        assert_eq!(split(&prompt(false), "Yes."), of("", "Yes."));
    }
}
