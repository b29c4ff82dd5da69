//! Multiple-choice tasks: the answer with the highest mean log-probability is the model's choice.

mod parse;
mod score;
mod select;

use std::ops::Range;

use super::error::MeasureError;
use crate::vocab::{Token, Vocab};

pub use score::{Score, TaskTally, pack, score_tasks};

/// Kind of tasks, which determines the format of a file of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Six lines per task: the context, the index of the correct ending, and four endings.
    HellaSwag,
    /// Lines of comma-separated values: an index, a sentence with `_`, two choices, and the correct one (1 or 2).
    WinoGrande,
    /// Binary file of llama.cpp: questions with any number of answers.
    MultipleChoice,
}

/// A task as text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TaskText {
    /// Complete texts, one for each answer.
    texts: Vec<String>,
    /// Beginning of each text that is not scored if enough tokens follow; only for WinoGrande.
    heads: Vec<String>,
    is_right: Vec<bool>,
}

/// A task as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Tokens of each answer with its context.
    sequences: Vec<Vec<Token>>,
    /// Number of tokens that all sequences have in common.
    n_common: usize,
    /// Scored tokens of each sequence.
    scored: Vec<Range<usize>>,
    is_right: Vec<bool>,
}

impl TaskKind {
    /// Parses a file of tasks. `limit` selects as many tasks as llama.cpp selects, at random but reproducibly.
    ///
    /// # Errors
    /// Returns an error if a task is damaged.
    pub fn parse(self, bytes: &[u8], limit: Option<usize>, vocab: &Vocab) -> Result<Vec<Task>, MeasureError> {
        let texts = match self {
            TaskKind::HellaSwag => parse::hellaswag(parse::text(bytes)?)?,
            TaskKind::WinoGrande => parse::winogrande(parse::text(bytes)?)?,
            TaskKind::MultipleChoice => parse::multiple_choice(bytes)?,
        };
        let n = texts.len();
        let order = match (self, limit) {
            (TaskKind::HellaSwag, _) => select::removed_in_turn(n, limit.unwrap_or(n).min(n)),
            (_, Some(limit)) if limit > 0 && limit < n => select::replaced_by_last(n, limit),
            _ => (0..n).collect(),
        };
        order
            .into_iter()
            .map(|i| {
                Task::new(&texts[i], vocab).ok_or_else(|| MeasureError::InvalidTask {
                    number: i + 1,
                    problem: "an answer is empty".to_owned(),
                })
            })
            .collect()
    }
}

/// If all sentences of a WinoGrande task have more tokens than this from the choice on, the choice is not scored.
const MIN_TRAILING: usize = 3;

impl Task {
    /// Tokenizes a task; `None` if an answer has no tokens.
    fn new(text: &TaskText, vocab: &Vocab) -> Option<Task> {
        let tokens = |text: &String| vocab.tokenize(text, true, false);
        let sequences: Vec<Vec<Token>> = text.texts.iter().map(tokens).collect();
        let shortest = sequences.iter().map(Vec::len).min()?;
        let is_common = |&i: &usize| sequences.iter().all(|sequence| sequence[i] == sequences[0][i]);
        // At least one token of every sequence is scored, and the first token has no probability.
        let n_common = (0..shortest)
            .take_while(is_common)
            .count()
            .min(shortest.checked_sub(1)?);
        if n_common == 0 {
            return None;
        }
        let has_trailing = sequences
            .iter()
            .all(|sequence| sequence.len() - n_common > MIN_TRAILING);
        let scored = |(i, sequence): (usize, &Vec<Token>)| match text.heads.get(i) {
            Some(head) => {
                let head = if has_trailing { tokens(head).len() } else { n_common };
                let head = head.clamp(n_common, sequence.len() - 1);
                // The last token is usually a period.
                let last = usize::from(sequence.len() - head > 1);
                head..sequence.len() - last
            }
            None => n_common..sequence.len(),
        };
        Some(Task {
            scored: sequences.iter().enumerate().map(scored).collect(),
            sequences,
            n_common,
            is_right: text.is_right.clone(),
        })
    }

    /// Returns the number of tokens to decode.
    pub fn n_tokens(&self) -> usize {
        let each = self.sequences.iter().map(|sequence| sequence.len() - self.n_common);
        self.n_common + each.sum::<usize>()
    }

    /// Returns the number of answers.
    pub fn n_answers(&self) -> usize {
        self.sequences.len()
    }
}

#[cfg(test)]
mod tests;
