//! `llama run`: one prompt and its answer, or a chat.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use engine::sample::{ParamDef, Recommended};

use crate::args::RunArgs;
use crate::commands::answer::{print_piece, report, speak};
use crate::commands::{chat, input};
use crate::conversation::Conversation;
use crate::failure::{Failure, Outcome};
use crate::naming::model_and_texts;
use crate::session::{End, Session};
use crate::{fetch, human, say};

/// Runs the model once, or as long as the user goes on.
pub fn run(args: &RunArgs) -> Outcome {
    say::set_log(args.display.log()?);
    let (model, prompt) = model_and_prompt(args)?;
    // Before waiting for standard input.
    let path = args.hub.file(model.as_deref())?;
    if let Some(path) = &path {
        fs::metadata(path).map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))?;
    }
    let prompt = whole_prompt(args, prompt)?;
    let path = match path {
        Some(path) => path,
        None => fetch::default_model(&args.hub)?,
    };
    let mut session = Session::open(&path, args)?;
    let conversation = Conversation::new(session.model(), args.raw, system(args)?.as_deref(), &args.template)?;
    if say::is_shown(say::Level::Verbose) {
        describe(&session, &conversation, args.sampler.is_greedy());
    }
    let end = match prompt {
        Some(prompt) if !args.conversation => Some(answer(&mut session, conversation, &prompt, args)?),
        first => {
            chat::run(&mut session, conversation, first, args)?;
            None
        }
    };
    if let Some(file) = args.session.as_ref().filter(|_| !args.session_read_only) {
        session.save(file)?;
    }
    match end {
        Some(End::Interrupted) => Err(Failure::Interrupted),
        _ => Ok(()),
    }
}

/// Instructions, as a flag gives them or a file.
fn system(args: &RunArgs) -> Outcome<Option<String>> {
    let text = match &args.system_file {
        Some(path) => Some(input::read(path)?),
        None => args.system.clone(),
    };
    Ok(text.map(|text| if args.escape { input::unescaped(&text) } else { text }))
}

/// Prints the answer to a prompt, and tells how it ended.
fn answer(session: &mut Session, mut conversation: Conversation, prompt: &str, args: &RunArgs) -> Outcome<End> {
    conversation.ask(prompt);
    let turn = speak(session, &conversation, args)?;
    if turn.text.is_empty() {
        print_piece("\n")?;
    }
    report(session, &turn, args);
    Ok(turn.end)
}

fn describe(session: &Session, conversation: &Conversation, greedy: bool) {
    for warning in session
        .vocab()
        .warnings()
        .iter()
        .filter(|warning| warning.is_put_right())
    {
        say::detail(format_args!("file     {warning}"));
    }
    let (model, context) = (session.model(), session.context());
    let (params, sizes) = (context.params(), context.sizes());
    let device = model.device();
    say::detail(format_args!("model    {}", model.path().display()));
    let (n, size) = (human::count(model.n_params()), human::bytes(model.n_bytes()));
    say::detail(format_args!("         {}, {n} parameters, {size}", model.arch().name));
    let template = if conversation.is_raw() {
        "no chat template in use"
    } else {
        "with its chat template"
    };
    say::detail(format_args!(
        "vocab    {} tokens, {template}",
        session.vocab().n_tokens()
    ));
    say::detail(format_args!("device   {}: {}", device.name(), device.description()));
    let recommended = Recommended::of(model.metadata(), greedy);
    if !recommended.names.is_empty() {
        let shown =
            |name: &&str| ParamDef::find(name).map(|def| format!("{} {}", def.flag, (def.get)(&session.sampler)));
        let shown: Vec<_> = recommended.names.iter().filter_map(shown).collect();
        say::detail(format_args!(
            "sampling as recommended for the model: {}",
            shown.join(", ")
        ));
    }
    let placement = model.placement_summary();
    let (n, all) = (placement.n_offloaded, placement.n_layers);
    let bytes = |(name, n): &(String, usize)| format!("{name} {}", human::mib(*n));
    let by_memory: Vec<_> = placement.bytes.iter().map(bytes).collect();
    say::detail(format_args!(
        "weights  {n}/{all} layers on devices; {}",
        by_memory.join(", ")
    ));
    say::detail(format_args!(
        "context  {} tokens (trained for {}), ubatches of {}, {} and {} threads, cache {} and {}",
        context.n_ctx(),
        model.base().n_ctx_train(),
        params.n_ubatch,
        params.n_threads,
        params.n_threads_batch,
        params.type_k,
        params.type_v
    ));
    let (weights, kv, compute) = (
        human::bytes(sizes.weights),
        human::bytes(sizes.kv + sizes.states),
        human::bytes(sizes.compute),
    );
    say::detail(format_args!(
        "memory   weights {weights}, cache {kv}, intermediate results {compute}"
    ));
}

/// What the arguments name: a first one can be either.
fn model_and_prompt(args: &RunArgs) -> Outcome<(Option<PathBuf>, Option<String>)> {
    let words = args.first.iter().chain(&args.second).cloned().collect();
    let (model, mut texts) = model_and_texts(args.model.as_deref(), &args.hub, words)?;
    if let [_, second] = &texts[..] {
        let why = match args.model {
            Some(_) => "the model is given by -m",
            None if args.hub.names_a_model() => "the model is given by -hf or -mu",
            None => "the first one is a prompt, since there is no file of that name",
        };
        return Err(Failure::new(format_args!("unexpected argument {second:?}: {why}")));
    }
    match (texts.pop(), &args.prompt) {
        (Some(_), Some(_)) => Err(Failure::new("the prompt is given twice: as an argument and by -p")),
        (given, by_flag) => Ok((model, given.or_else(|| by_flag.clone()))),
    }
}

/// The prompt with what `-f` and standard input, where it is no terminal, add. `None` on a terminal: that is a chat.
fn whole_prompt(args: &RunArgs, prompt: Option<String>) -> Outcome<Option<String>> {
    let prompt = prompt.map(|prompt| if args.escape { input::unescaped(&prompt) } else { prompt });
    let file = match (&args.file, &args.binary_file) {
        (Some(path), _) => Some(input::read(path)?),
        (None, Some(path)) => Some(input::read_whole(path)?),
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
            "there is no prompt: give one as an argument, by -p, by -f or on standard input",
        ));
    }
    Ok(Some(prompt))
}
