//! Prints responses: the text as it is generated, why generation stopped, and statistics. Shared by `run` and
//! its chat.

use std::io::{self, Write};

use engine::chat::{Budget, Marks};
use engine::context::MEDIA_TOKENS;
use engine::sample::Token;
use llama::Finish;
use tracing::info;

use super::args::RunArgs;
use super::conversation::Conversation;
use super::markdown::Markdown;
use super::reasoning::{Show, Shown};
use super::session::{Bounds, Generation, Session};
use crate::failure::Outcome;
use crate::format;
use crate::log::hint;
use crate::terminal::{self, Stream};

/// Default maximum number of tokens of a response.
const DEFAULT_LIMIT: usize = 2048;

/// Returns the limits of the response to `prompt`.
fn bounds(conversation: &Conversation, prompt: &str, args: &RunArgs) -> Bounds {
    let (tags, template) = (conversation.tags(), &args.template);
    let n_thought = usize::try_from(template.reasoning_budget).ok();
    let budget = match (tags, n_thought) {
        // Output constrained by a grammar contains no reasoning.
        (Some(tags), Some(n)) if !args.grammar.is_given() => Some(Budget::new(
            Marks::Tags(tags),
            prompt,
            n,
            &template.reasoning_budget_message,
        )),
        _ => None,
    };
    Bounds {
        limit: args.predict.map_or(Some(DEFAULT_LIMIT), |n| usize::try_from(n).ok()),
        tags,
        budget,
    }
}

/// Default terminal width in columns.
const DEFAULT_WIDTH: usize = 80;

/// Returns a Markdown renderer if the output goes to a terminal and is not a raw completion.
fn markdown(conversation: &Conversation, args: &RunArgs) -> Option<Markdown> {
    if args.display.no_markdown || conversation.is_raw() || terminal::is_plain(Stream::Out) {
        return None;
    }
    let width = terminal_size::terminal_size().map_or(DEFAULT_WIDTH, |(width, _)| width.0.into());
    Some(Markdown::new(width))
}

/// Writes and flushes text, so that users and programs can follow the output.
pub fn print_piece(piece: &str) -> io::Result<()> {
    let mut out = terminal::output();
    out.write_all(piece.as_bytes())?;
    out.flush()
}

/// Generates and prints the response to the last message. Reasoning is shown according to the flags.
pub fn speak(session: &mut Session, conversation: &Conversation, args: &RunArgs) -> Outcome<Generation> {
    let (text, tokens) = conversation.prompt(session.vocab(), session.projector())?;
    if args.display.verbose_prompt {
        print_tokens(session, &tokens);
    }
    if args.display.display_prompt {
        print_piece(&text)?;
    }
    let show = Show::on_stdout(args.template.hide_reasoning);
    let mut emit = print_piece;
    let markdown = markdown(conversation, args);
    let mut shown = Shown::new(show, conversation.tags(), &text, &mut emit).with_markdown(markdown);
    if !args.display.display_prompt {
        shown = shown.with_opening_tag(conversation.tags(), &text);
    }
    let bounds = bounds(conversation, &text, args);
    let turn = session.complete(&tokens, conversation.images(), bounds, &mut |piece| shown.push(piece));
    // Reset the terminal style even after an error.
    shown.finish()?;
    if shown.ends_line() == Some(false) {
        print_piece("\n")?;
    }
    turn
}

/// Prints the tokens of a prompt, one per line.
fn print_tokens(session: &Session, tokens: &[Token]) {
    info!("prompt: {}", format::plural(tokens.len(), "token"));
    for &token in tokens {
        if token >= MEDIA_TOKENS {
            info!("          row of an image");
            continue;
        }
        let piece = String::from_utf8_lossy(session.vocab().token_to_piece(token, true));
        info!("{token:>8}  {piece:?}");
    }
}

/// Prints why generation stopped, unless the model finished, and the statistics.
pub fn report(session: &Session, generation: &Generation, args: &RunArgs) {
    let n_ctx = session.context().n_ctx();
    if generation.finish == Finish::ContextFull {
        info!(
            "stopped: the context ({n_ctx} tokens) is full; use a larger one (-c), or --context-shift to drop the oldest tokens"
        );
    }
    if generation.finish == Finish::Limit && args.predict.is_none() {
        info!("stopped: reached the default limit of {DEFAULT_LIMIT} tokens; use -n to change it (-n -1: unlimited)");
    }
    if let Finish::Loop { period } = generation.finish {
        info!(
            "stopped: the output repeats its last {}; use --no-loop-detection to continue, or try --repeat-penalty 1.1",
            format::plural(period, "token")
        );
    }
    if !args.display.no_stats {
        hint!("{}", statistics(session, generation));
    }
}

fn statistics(session: &Session, generation: &Generation) -> String {
    let stats = generation.stats;
    let cached = if stats.cached_tokens > 0 {
        format!(" ({} cached)", stats.cached_tokens)
    } else {
        String::new()
    };
    let dropped = match stats.dropped_tokens {
        0 => String::new(),
        n => format!("; {} dropped", format::plural(n, "token")),
    };
    let drafted = match generation.drafted {
        Some(drafted) => format!(
            " | {} of {} accepted",
            drafted.n_right,
            format::plural(drafted.n_drafts, "draft")
        ),
        None => String::new(),
    };
    format!(
        "prompt {}{cached}{} | generated {}{} | loaded in {:.2} s | context {} of {}{dropped}{drafted}",
        format::plural(stats.prompt_tokens, "token"),
        rate(stats.prompt_speed()),
        format::plural(stats.generated_tokens, "token"),
        rate(stats.generation_speed()),
        session.t_load.as_secs_f64(),
        session.cached().len(),
        session.context().n_ctx(),
    )
}

/// Formats a speed. Returns no text for a speed of 0: a single token has none.
fn rate(speed: f64) -> String {
    if speed > 0.0 {
        format!(", {speed:.1} tok/s")
    } else {
        String::new()
    }
}
