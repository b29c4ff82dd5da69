//! Scores of multiple-choice tasks.

use engine::context::{ContextParams, MAX_SEQUENCES};
use engine::measure::{Task, TaskKind, TaskTally, pack, score_tasks};

use super::args::PerplexityArgs;
use super::{context, load, of_measure, report};
use crate::failure::{Failure, Outcome};
use crate::{input, interrupt, progress};

/// Scores all tasks of a file.
pub fn run(args: &PerplexityArgs, kind: TaskKind) -> Outcome {
    let path = args.text()?;
    let bytes = input::bytes(path)?;
    // The longest task determines the size of the context.
    let mut params = args.params(args.n_batch());
    params.n_ctx = params.n_batch;
    let model = load(args, &args.model()?, &params)?;
    let of_text = |error| Failure::new(format_args!("{}: {error}", path.display()));
    let tasks = kind.parse(&bytes, args.tasks, model.vocab()).map_err(of_text)?;
    let longest = tasks.iter().map(Task::n_tokens).max().unwrap_or(0);
    let n_batch = params.n_batch.max(longest);
    let params = ContextParams {
        n_ctx: n_batch,
        n_batch,
        n_seq_max: MAX_SEQUENCES,
        ..params
    };
    let mut context = context(args, model, &params)?;
    let guard = interrupt::listen();
    let bar = progress::timed("scoring", tasks.len());
    let (mut tally, mut scores) = (TaskTally::default(), Vec::new());
    for group in pack(&tasks, n_batch).map_err(of_text)? {
        let end = group.end;
        for score in score_tasks(&mut context, kind, &tasks[group]).map_err(of_measure)? {
            tally.add(&score);
            scores.push(score);
        }
        if guard.is_set() {
            return Err(Failure::Interrupted);
        }
        bar.set(end);
    }
    drop(bar);
    report::tasks(args, kind, &tally, &scores)
}
