//! What a model says, told apart as it comes: what it thinks, what it answers, and functions that it calls.

use std::convert::Infallible;

use engine::chat::{ReasoningSplit, Spoken};

use crate::tools::{Harmony, Said, ToolSplit};

/// Tells parts of an answer from each other.
#[derive(Clone, Debug)]
pub enum OutputParser {
    /// Reasoning between tags, and calls in the answer behind it.
    Tags {
        /// Tells reasoning.
        reasoning: ReasoningSplit,
        /// Tells calls, if functions may be called.
        calls: Option<ToolSplit>,
    },
    /// Messages in channels.
    Harmony(Harmony),
}

impl OutputParser {
    /// All is answer.
    pub fn none() -> OutputParser {
        OutputParser::Tags {
            reasoning: ReasoningSplit::new(None, ""),
            calls: None,
        }
    }

    /// Takes text, and gives what is sure; with `is_last` all of it.
    pub fn push(&mut self, text: &str, is_last: bool) -> Vec<Said> {
        let mut said = Vec::new();
        match self {
            OutputParser::Harmony(harmony) => {
                harmony.push(text, &mut said);
                if is_last {
                    harmony.finish(&mut said);
                }
            }
            OutputParser::Tags { reasoning, calls } => {
                let (mut thought, mut content) = (String::new(), String::new());
                let mut take = |spoken: Spoken, text: &str| -> Result<(), Infallible> {
                    match spoken {
                        Spoken::Reasoning => thought.push_str(text),
                        Spoken::Answer => content.push_str(text),
                        Spoken::Tag | Spoken::Gap => {}
                    }
                    Ok(())
                };
                let Ok(()) = reasoning.push(text, &mut take);
                if is_last {
                    let Ok(()) = reasoning.finish(&mut take);
                }
                if !thought.is_empty() {
                    said.push(Said::Reasoning(thought));
                }
                match calls {
                    Some(calls) => {
                        calls.push(&content, &mut said);
                        if is_last {
                            calls.finish(&mut said);
                        }
                    }
                    None if content.is_empty() => {}
                    None => said.push(Said::Text(content)),
                }
            }
        }
        said
    }
}
