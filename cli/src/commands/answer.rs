//! Printing an answer: its text as it comes, then why it ended and how fast it came. `run` and its chat share this.

use std::io::{self, Write};

use engine::chat::{Budget, Marks};
use engine::sample::Token;

use crate::args::RunArgs;
use crate::conversation::Conversation;
use crate::failure::Outcome;
use crate::markdown::Markdown;
use crate::reasoning::{Show, Shown};
use crate::session::{Bounds, End, Generation, Session};
use crate::{human, say};

/// Most tokens of an answer of which nothing else is said.
const DEFAULT_LIMIT: usize = 2048;

/// How far an answer to this prompt goes.
fn bounds(conversation: &Conversation, prompt: &str, args: &RunArgs) -> Bounds {
    let (tags, template) = (conversation.tags(), &args.template);
    let n_thought = usize::try_from(template.reasoning_budget).ok();
    let budget = |(tags, n)| Budget::new(Marks::Tags(tags), prompt, n, &template.reasoning_budget_message);
    Bounds {
        limit: args.predict.map_or(Some(DEFAULT_LIMIT), |n| usize::try_from(n).ok()),
        tags,
        // What has to match a grammar is not thought.
        budget: tags.zip(n_thought).filter(|_| !args.grammar.is_given()).map(budget),
    }
}

/// Columns of a terminal that does not say how many it has.
const DEFAULT_WIDTH: usize = 80;

/// Markdown is for people: programs read it as it is, and so do those who want a text continued.
fn markdown(conversation: &Conversation, args: &RunArgs) -> Option<Markdown> {
    let is_wanted = !args.display.no_markdown && !conversation.is_raw() && !say::is_plain(say::Stream::Out);
    let width = || terminal_size::terminal_size().map_or(DEFAULT_WIDTH, |(width, _)| width.0.into());
    is_wanted.then(|| Markdown::new(width()))
}

/// Text goes out at once: people read along, and so do programs.
pub fn print_piece(piece: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(piece.as_bytes())?;
    out.flush()
}

/// The model's words to what was said last, printed as they come; what it thinks before is shown as the flags say.
pub fn speak(session: &mut Session, conversation: &Conversation, args: &RunArgs) -> Outcome<Generation> {
    let (text, tokens) = conversation.prompt(session.vocab())?;
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
    let turn = session.complete(&tokens, bounds(conversation, &text, args), &mut |piece| {
        shown.push(piece)
    });
    // Whatever became of it, the terminal is not left dimmed.
    shown.finish()?;
    if shown.ends_line() == Some(false) {
        print_piece("\n")?;
    }
    turn
}

/// The tokens of a prompt, one in each line.
fn print_tokens(session: &Session, tokens: &[Token]) {
    say::line(format_args!("the prompt has {}:", human::plural(tokens.len(), "token")));
    for &token in tokens {
        let piece = String::from_utf8_lossy(session.vocab().token_to_piece(token, true));
        say::line(format_args!("{token:>8}  {piece:?}"));
    }
}

/// Says why text is cut off where that is not what was asked for, and how fast it came.
pub fn report(session: &Session, generation: &Generation, args: &RunArgs) {
    let n_ctx = session.context().n_ctx();
    if generation.end == End::ContextFull {
        say::line(format_args!(
            "stopped: the context of {n_ctx} tokens is full; -c sets its size, --context-shift forgets the oldest and goes on"
        ));
    }
    if generation.end == End::Limit && args.predict.is_none() {
        say::line(format_args!(
            "stopped: the answer has {DEFAULT_LIMIT} tokens, as many as it may have unless -n says otherwise; -n -1 has no limit"
        ));
    }
    if let End::Loop(n) = generation.end {
        say::line(format_args!(
            "stopped: the answer repeats its last {} again and again; --allow-loops goes on, --repeat-penalty 1.1 may help",
            human::plural(n, "token")
        ));
    }
    if !args.display.no_stats {
        say::aside(statistics(session, generation));
    }
}

fn statistics(session: &Session, generation: &Generation) -> String {
    let rate = |n: usize, seconds: f64| if n == 0 { 0.0 } else { n as f64 / seconds.max(1e-9) };
    let reused = if generation.n_reused > 0 {
        format!(" (and {} reused)", generation.n_reused)
    } else {
        String::new()
    };
    let forgotten = match generation.n_forgotten {
        0 => String::new(),
        n => format!(", {} forgotten", human::plural(n, "token")),
    };
    let drafted = match generation.drafted {
        Some(drafted) => format!(
            " | {} of {} right",
            drafted.n_right,
            human::plural(drafted.n_drafts, "draft")
        ),
        None => String::new(),
    };
    format!(
        "prompt {}{reused}, {:.1} tok/s | generated {}, {:.1} tok/s | loaded in {:.2} s | context {} of {}{forgotten}{drafted}",
        human::plural(generation.n_prompt, "token"),
        rate(generation.n_prompt, generation.t_prompt.as_secs_f64()),
        human::plural(generation.n_generated, "token"),
        // The first one comes with the prompt.
        rate(
            generation.n_generated.saturating_sub(1),
            generation.t_generated.as_secs_f64()
        ),
        session.t_load.as_secs_f64(),
        session.held().len(),
        session.context().n_ctx(),
    )
}
