//! `llama run`: one prompt and its answer, or a chat.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use crate::args::RunArgs;
use crate::commands::answer::{limit, print_piece, report};
use crate::commands::{chat, input};
use crate::conversation::Conversation;
use crate::failure::{Failure, Outcome};
use crate::session::Session;
use crate::{fetch, human, say};

/// Runs the model once, or as long as the user goes on.
pub fn run(args: &RunArgs) -> Outcome {
    let (model, prompt) = model_and_prompt(args)?;
    // Before waiting for standard input.
    if let Some(path) = &model {
        fs::metadata(path).map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))?;
    }
    let prompt = whole_prompt(args, prompt)?;
    let path = match model {
        Some(path) => path,
        None => fetch::default_model()?,
    };
    let mut session = Session::open(&path, args)?;
    let conversation = Conversation::new(session.model(), args.raw, args.system.as_deref())?;
    if args.verbose {
        describe(&session, &conversation);
    }
    match prompt {
        Some(prompt) => answer(&mut session, conversation, &prompt, args)?,
        None => chat::run(&mut session, conversation, args)?,
    }
    match &args.session {
        Some(file) => session.save(file),
        None => Ok(()),
    }
}

fn answer(session: &mut Session, mut conversation: Conversation, prompt: &str, args: &RunArgs) -> Outcome {
    conversation.ask(prompt);
    let tokens = conversation.prompt(session.vocab())?;
    let turn = session.complete(&tokens, limit(args), &mut print_piece)?;
    if !turn.text.ends_with('\n') {
        print_piece("\n")?;
    }
    report(session, &turn, args);
    Ok(())
}

fn describe(session: &Session, conversation: &Conversation) {
    let (model, context) = (session.model(), session.context());
    let (params, sizes) = (context.params(), context.sizes());
    let device = model.device();
    say::line(format_args!("model    {}", model.path().display()));
    let (n, size) = (human::count(model.n_params()), human::bytes(model.n_bytes()));
    say::line(format_args!("         {}, {n} parameters, {size}", model.arch().name));
    let template = if conversation.is_raw() {
        "no chat template in use"
    } else {
        "with its chat template"
    };
    say::line(format_args!(
        "vocab    {} tokens, {template}",
        session.vocab().n_tokens()
    ));
    say::line(format_args!("device   {}: {}", device.name(), device.description()));
    let placement = model.placement_summary();
    let (n, all) = (placement.n_offloaded, placement.n_layers);
    let bytes = |(name, n): &(String, usize)| format!("{name} {}", human::mib(*n));
    let by_memory: Vec<_> = placement.bytes.iter().map(bytes).collect();
    say::line(format_args!(
        "weights  {n}/{all} layers on devices; {}",
        by_memory.join(", ")
    ));
    say::line(format_args!(
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
    say::line(format_args!(
        "memory   weights {weights}, cache {kv}, intermediate results {compute}"
    ));
}

/// What the arguments name: a single one can be either.
fn model_and_prompt(args: &RunArgs) -> Outcome<(Option<PathBuf>, Option<String>)> {
    let (model, prompt) = match (&args.model, &args.first, &args.second) {
        (Some(_), Some(_), Some(second)) => {
            return Err(Failure::new(format_args!(
                "unexpected argument {second:?}: the model is given by -m"
            )));
        }
        (Some(model), prompt, None) => (Some(model.clone()), prompt.clone()),
        (None, Some(model), Some(prompt)) => (Some(model.into()), Some(prompt.clone())),
        (None, Some(only), None) if names_a_model(only) => (Some(only.into()), None),
        (None, prompt, None) => (None, prompt.clone()),
        (_, None, Some(_)) => return Err(Failure::new("there is a second argument without a first one")),
    };
    match (prompt, &args.prompt) {
        (Some(_), Some(_)) => Err(Failure::new("the prompt is given twice: as an argument and by -p")),
        (given, by_flag) => Ok((model, given.or_else(|| by_flag.clone()))),
    }
}

/// Is a single argument a model? A file that is not there must not be taken for a question.
fn names_a_model(text: &str) -> bool {
    let looks_like_a_path = !text.contains(char::is_whitespace) && text.contains(std::path::MAIN_SEPARATOR);
    Path::new(text).is_file() || looks_like_a_path || text.to_ascii_lowercase().ends_with(".gguf")
}

/// The prompt with what `-f` adds; without either, standard input. `None` on a terminal: that is a chat.
fn whole_prompt(args: &RunArgs, prompt: Option<String>) -> Outcome<Option<String>> {
    let file = match &args.file {
        Some(path) => Some(input::read(path)?),
        None => None,
    };
    let prompt = match (prompt, file) {
        (Some(prompt), Some(file)) => format!("{prompt}\n\n{file}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) if io::stdin().is_terminal() && io::stdout().is_terminal() => return Ok(None),
        (None, None) => input::standard_input()?,
    };
    if prompt.trim().is_empty() {
        return Err(Failure::new(
            "there is no prompt: give one as an argument, by -p, by -f or on standard input",
        ));
    }
    Ok(Some(prompt))
}
