//! Scores of tasks.

use std::ops::Range;

use rayon::prelude::*;

use super::{Task, TaskKind};
use crate::context::{Batch, Context, MAX_SEQUENCES, SeqSet};
use crate::finite::check_logits;
use crate::measure::error::MeasureError;
use crate::measure::position::LogProbs;
use crate::measure::statistics::{Estimate, fraction};
use crate::vocab::Token;

/// Mean log-probabilities of the answers of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Mean log-probability of each answer.
    pub answers: Vec<f64>,
    /// Index of the answer that the model chooses.
    pub choice: usize,
    /// Whether the choice is right.
    pub is_right: bool,
}

/// Number of right choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskTally {
    /// Number of tasks.
    pub n_tasks: usize,
    /// Number of right choices.
    pub n_right: usize,
    /// Number of answers of all tasks.
    pub n_answers: usize,
}

/// Quantile of the normal distribution for an interval of 95 %.
const Z: f64 = 1.959_963_984_54;

impl TaskTally {
    /// Adds the score of a task.
    pub fn add(&mut self, score: &Score) {
        self.n_tasks += 1;
        self.n_right += usize::from(score.is_right);
        self.n_answers += score.answers.len();
    }

    /// Returns the fraction of right choices.
    pub fn accuracy(&self) -> Estimate {
        fraction(self.n_right, self.n_tasks)
    }

    /// Returns the accuracy of choices at random.
    pub fn chance(&self) -> f64 {
        self.n_tasks as f64 / self.n_answers.max(1) as f64
    }

    /// Returns Wilson's confidence interval of 95 %.
    pub fn interval(&self) -> (f64, f64) {
        let n = self.n_tasks.max(1) as f64;
        let p = self.accuracy().value;
        let z = Z * Z / n;
        let half = z * (n * (4.0 * p * (1.0 - p) + z)).sqrt() / (2.0 * Z);
        ((p + z / 2.0 - half) / (1.0 + z), (p + z / 2.0 + half) / (1.0 + z))
    }
}

/// Divides tasks into groups that are decoded at once, of at most `n_batch` tokens and [`MAX_SEQUENCES`] answers.
///
/// # Errors
/// Returns an error if a task has more than `n_batch` tokens.
pub fn pack(tasks: &[Task], n_batch: usize) -> Result<Vec<Range<usize>>, MeasureError> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let (mut n_tokens, mut n_answers) = (0, 0);
    for (i, task) in tasks.iter().enumerate() {
        if task.n_tokens() > n_batch || task.n_answers() > MAX_SEQUENCES {
            return Err(MeasureError::InvalidTask {
                number: i + 1,
                problem: format!("{} tokens do not fit in the context of {n_batch}", task.n_tokens()),
            });
        }
        n_tokens += task.n_tokens();
        n_answers += task.n_answers();
        match groups.last_mut() {
            Some(group) if n_tokens <= n_batch && n_answers <= MAX_SEQUENCES => group.end = i + 1,
            _ => {
                groups.push(i..i + 1);
                (n_tokens, n_answers) = (task.n_tokens(), task.n_answers());
            }
        }
    }
    Ok(groups)
}

/// Decodes tasks at once and scores their answers.
///
/// # Errors
/// Returns an error if decoding fails, or a logit is not a number.
pub fn score_tasks(context: &mut Context, kind: TaskKind, tasks: &[Task]) -> Result<Vec<Score>, MeasureError> {
    let mut batch = Batch::new();
    let mut first_seq = 0;
    // For each scored token of each answer: the index of the position before it, and the token.
    let mut positions: Vec<Vec<Vec<(usize, Token)>>> = Vec::new();
    for task in tasks {
        positions.push(push(&mut batch, task, first_seq));
        first_seq += task.n_answers();
    }
    context.clear();
    context.decode(&batch)?;
    let mut rows = Vec::with_capacity(positions.len());
    for answers in &positions {
        let of_task = answers.iter().map(|positions| rows_at(context, positions));
        rows.push(of_task.collect::<Result<Vec<_>, _>>()?);
    }
    let of_answer = |rows: &Vec<Row<'_>>| mean(rows);
    let answers = rows
        .par_iter()
        .map(|answers| answers.iter().map(of_answer).collect::<Vec<f64>>())
        .collect::<Vec<_>>();
    let scored = answers.into_iter().zip(tasks);
    Ok(scored.map(|(answers, task)| chosen(kind, answers, task)).collect())
}

/// Adds the tokens of a task. Returns the positions whose outputs predict scored tokens.
fn push(batch: &mut Batch, task: &Task, first_seq: usize) -> Vec<Vec<(usize, Token)>> {
    let start = batch.len();
    let all = SeqSet::of(first_seq..first_seq + task.n_answers());
    for (pos, &token) in task.sequences[0][..task.n_common].iter().enumerate() {
        batch.push(token, pos, all, pos + 1 == task.n_common);
    }
    let mut positions = Vec::new();
    for (i, (sequence, scored)) in task.sequences.iter().zip(&task.scored).enumerate() {
        let own = batch.len();
        for (pos, &token) in sequence.iter().enumerate().skip(task.n_common) {
            batch.push(token, pos, SeqSet::one(first_seq + i), scored.contains(&(pos + 1)));
        }
        let before = |pos: usize| match pos.checked_sub(task.n_common) {
            Some(own_pos) => own + own_pos,
            None => start + pos,
        };
        positions.push(scored.clone().map(|pos| (before(pos - 1), sequence[pos])).collect());
    }
    positions
}

/// Logits, and the token to be predicted from them.
type Row<'a> = (&'a [f32], Token);

/// Returns the logits of positions.
fn rows_at<'a>(context: &'a Context, positions: &[(usize, Token)]) -> Result<Vec<Row<'a>>, MeasureError> {
    let row = |&(index, token): &(usize, Token)| {
        let logits = context.logits(index).ok_or_else(|| rejection(context))?;
        check_logits(logits).map_err(|error| MeasureError::NotFinite { chunk: 1, error })?;
        Ok((logits, token))
    };
    positions.iter().map(row).collect()
}

/// Returns the mean log-probability of tokens.
fn mean(rows: &[Row<'_>]) -> f64 {
    let sum: f64 = rows
        .iter()
        .map(|&(logits, token)| LogProbs::new(logits).of(token))
        .sum();
    sum / rows.len().max(1) as f64
}

/// Returns the reason why a position has no logits.
fn rejection(context: &Context) -> MeasureError {
    let reason = context.rejected().first().map(|rejection| rejection.error.to_string());
    MeasureError::Rejected(reason.unwrap_or_default())
}

fn chosen(kind: TaskKind, answers: Vec<f64>, task: &Task) -> Score {
    let mut choice = 0;
    for (i, &answer) in answers.iter().enumerate() {
        // llama.cpp prefers the second choice of a WinoGrande task with equal scores.
        if answer > answers[choice] || kind == TaskKind::WinoGrande && answer >= answers[choice] {
            choice = i;
        }
    }
    Score {
        is_right: task.is_right.get(choice).copied().unwrap_or(false),
        choice,
        answers,
    }
}
