//! `llama run`: answers one prompt or starts a chat.
//!
//! - [`args`][]: arguments
//! - [`session`]: a loaded model with a context
//! - [`conversation`]: messages and the prompts rendered from them
//! - [`answer`], [`reasoning`], [`markdown`]: generation and terminal rendering of responses
//! - [`chat`]: interactive chat

mod answer;
pub mod args;
mod chat;
mod conversation;
mod markdown;
mod reasoning;
mod session;

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use engine::model::Medium;
use engine::sample::{ParamDef, Recommended};
use llama::Finish;
use tracing::{Level, debug};

use crate::failure::{Failure, Outcome};
use crate::naming::model_and_texts;
use crate::{fetch, format, input, terminal};
use answer::{print_piece, report, speak};
use args::RunArgs;
use conversation::Conversation;
use session::Session;

/// Answers the prompt, or runs a chat.
pub fn run(args: &RunArgs) -> Outcome {
    terminal::check_output()?;
    let (model, prompt) = model_and_prompt(args)?;
    // Find the model before reading standard input.
    let path = args.hub.file(model.as_deref())?;
    let prompt = whole_prompt(args, prompt)?;
    let path = match path {
        Some(path) => path,
        None => fetch::default_model(&args.hub)?,
    };
    let mut session = Session::open(&path, args)?;
    let mut conversation = Conversation::new(session.model(), args.raw, system(args)?.as_deref(), &args.template)?;
    if tracing::enabled!(Level::DEBUG) {
        describe(&session, &conversation, args.sampler.is_greedy());
    }
    for file in &args.media.image {
        conversation.attach(session.medium(Medium::Image, file)?);
    }
    for file in &args.media.audio {
        conversation.attach(session.medium(Medium::Audio, file)?);
    }
    let end = match prompt {
        Some(prompt) if !args.conversation => Some(answer(&mut session, conversation, &prompt, args)?),
        first => {
            chat::run(&mut session, conversation, first, args)?;
            None
        }
    };
    if !args.prompt_cache_ro
        && let Some(file) = &args.prompt_cache
    {
        session.save(file)?;
    }
    match end {
        Some(Finish::Cancelled) => Err(Failure::Interrupted),
        _ => Ok(()),
    }
}

/// Returns the system prompt, given as a flag or a file.
fn system(args: &RunArgs) -> Outcome<Option<String>> {
    let text = match &args.system_file {
        Some(path) => Some(input::read(path)?),
        None => args.system.clone(),
    };
    Ok(text.map(|text| args.text(&text)))
}

/// Prints the response to a prompt and returns why it ended.
fn answer(session: &mut Session, mut conversation: Conversation, prompt: &str, args: &RunArgs) -> Outcome<Finish> {
    conversation.ask(prompt);
    let turn = speak(session, &conversation, args)?;
    if turn.text.is_empty() {
        print_piece("\n")?;
    }
    report(session, &turn, args);
    Ok(turn.finish)
}

fn describe(session: &Session, conversation: &Conversation, greedy: bool) {
    for warning in session
        .vocab()
        .warnings()
        .iter()
        .filter(|warning| warning.is_corrected())
    {
        debug!("file     {warning}");
    }
    let (model, context) = (session.model(), session.context());
    let (params, sizes) = (context.params(), context.sizes());
    let device = model.device();
    debug!("model    {}", model.path().display());
    let (n, size) = (format::count(model.n_params()), format::bytes(model.n_bytes()));
    debug!("         {}, {n} parameters, {size}", model.arch().name);
    let template = if conversation.is_raw() {
        "no chat template"
    } else {
        "with chat template"
    };
    debug!("vocab    {} tokens, {template}", session.vocab().n_tokens());
    debug!("device   {}: {}", device.name(), device.description());
    let recommended = Recommended::of(model.metadata(), greedy);
    if !recommended.names.is_empty() {
        let shown =
            |name: &&str| ParamDef::find(name).map(|def| format!("{} {}", def.flag, (def.get)(&session.sampler)));
        let shown: Vec<_> = recommended.names.iter().filter_map(shown).collect();
        debug!("sampling (recommended by the model): {}", shown.join(", "));
    }
    let placement = model.placement_summary();
    let (n, all) = (placement.n_offloaded, placement.n_layers);
    let bytes = |(name, n): &(String, usize)| format!("{name} {}", format::mib(*n));
    let by_memory: Vec<_> = placement.bytes.iter().map(bytes).collect();
    debug!("weights  {n}/{all} layers on devices; {}", by_memory.join(", "));
    debug!(
        "context  {} tokens (trained for {}), ubatch size {}, {} and {} threads, KV cache {} and {}",
        context.n_ctx(),
        model.base().n_ctx_train(),
        params.n_ubatch,
        params.n_threads,
        params.n_threads_batch,
        params.type_k,
        params.type_v
    );
    let (weights, kv, compute) = (
        format::bytes(sizes.weights),
        format::bytes(sizes.kv + sizes.states),
        format::bytes(sizes.compute),
    );
    debug!("memory   weights {weights}, KV cache {kv}, compute buffers {compute}");
}

/// Returns the model and prompt from the arguments; the first argument can be either.
fn model_and_prompt(args: &RunArgs) -> Outcome<(Option<PathBuf>, Option<String>)> {
    let words = args.first.iter().chain(&args.second).cloned().collect();
    let (model, mut texts) = model_and_texts(args.model.as_deref(), &args.hub, words)?;
    if let [_, second] = &texts[..] {
        let why = match args.model {
            Some(_) => "the model is already given by -m",
            None if args.hub.names_a_model() => "the model is already given by -hf or -mu",
            None => "the first argument is a prompt, because it names neither a file nor a checkpoint",
        };
        let error = Failure::new(format_args!("unexpected argument {second:?}: {why}"));
        return Err(match args.model {
            Some(_) => error,
            None => error.with_remedy("name the model with -m"),
        });
    }
    match (texts.pop(), &args.prompt) {
        (Some(_), Some(_)) => Err(Failure::new("the prompt is given twice: as an argument and with -p")),
        (given, by_flag) => Ok((model, given.or_else(|| by_flag.clone()))),
    }
}

/// Returns the prompt with the contents of `-f` and of standard input, unless that is a terminal. `None`
/// starts a chat.
fn whole_prompt(args: &RunArgs, prompt: Option<String>) -> Outcome<Option<String>> {
    let prompt = prompt.map(|prompt| args.text(&prompt));
    let file = match (&args.file, &args.binary_file) {
        (Some(path), _) => Some(input::read(path)?),
        (None, Some(path)) => Some(input::read_unchanged(path)?),
        (None, None) if prompt.is_some() && !io::stdin().is_terminal() => {
            Some(input::standard_input()?).filter(|text| !text.trim().is_empty())
        }
        (None, None) => None,
    };
    let prompt = match (prompt, file) {
        (Some(prompt), Some(file)) => format!("{prompt}\n\n{file}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) if args.display.simple_io || (io::stdin().is_terminal() && io::stdout().is_terminal()) => {
            return Ok(None);
        }
        (None, None) => input::standard_input()?,
    };
    if prompt.trim().is_empty() {
        return Err(Failure::new(
            "no prompt given; pass it as an argument, with -p, with -f, or on standard input",
        ));
    }
    Ok(Some(prompt))
}
