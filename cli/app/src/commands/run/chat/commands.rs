//! Slash commands of the interactive chat.

use std::fs;
use std::path::{Path, PathBuf};

use engine::model::Medium;
use engine::sample::PARAMS;

use super::{Chat, external, tell};
use crate::commands::run::conversation::Conversation;
use crate::commands::run::session::Session;
use crate::failure::{Failure, Outcome};
use crate::{dirs, format, input, terminal};

pub struct ChatCommand {
    pub name: &'static str,
    /// Kind of argument that the command takes.
    pub argument: Argument,
    /// Help text of the command; empty for an alias.
    about: &'static str,
    run: fn(&mut Chat<'_>, &str) -> Outcome<Next>,
}

/// Kind of argument that a chat command takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    None,
    Text,
    File,
    Model,
    Parameter,
}

/// Action of the chat after a command.
#[derive(PartialEq, Eq)]
pub enum Next {
    /// Read the next line of input.
    Read,
    /// Generate a response to the last message.
    Answer,
    /// Send this message to the model.
    Ask(String),
    /// Leave the chat.
    Leave,
}

impl Argument {
    fn name(self) -> &'static str {
        match self {
            Argument::None => "",
            Argument::Text => "[TEXT]",
            Argument::File => "FILE",
            Argument::Model => "[MODEL]",
            Argument::Parameter => "[NAME VALUE]",
        }
    }
}

const fn command(
    name: &'static str,
    argument: Argument,
    about: &'static str,
    run: fn(&mut Chat<'_>, &str) -> Outcome<Next>,
) -> ChatCommand {
    ChatCommand {
        name,
        argument,
        about,
        run,
    }
}

/// Chat commands in the order of `/help`.
pub const COMMANDS: &[ChatCommand] = &[
    command("/help", Argument::None, "this list", help),
    command(
        "/clear",
        Argument::None,
        "start a new conversation with the same system prompt",
        clear,
    ),
    command("/regen", Argument::None, "regenerate the last response", regen),
    command("/read", Argument::File, "prepend a file to the next message", read),
    command(
        "/image",
        Argument::File,
        "put an image before the next message (needs --mmproj)",
        image,
    ),
    command(
        "/audio",
        Argument::File,
        "put audio before the next message (needs --mmproj)",
        audio,
    ),
    command(
        "/edit",
        Argument::Text,
        "write the next message in $EDITOR, starting with TEXT or the last message",
        edit,
    ),
    command("/copy", Argument::None, "copy the last response to the clipboard", copy),
    command(
        "/system",
        Argument::Text,
        "start a new conversation with this system prompt, or without one",
        system,
    ),
    command(
        "/shift",
        Argument::None,
        "drop the older half of the conversation whenever the context is full",
        shift,
    ),
    command(
        "/set",
        Argument::Parameter,
        "change a sampling parameter; without arguments, show all",
        set,
    ),
    command(
        "/tokens",
        Argument::Text,
        "count the tokens of the conversation, or show the tokens of TEXT",
        tokens,
    ),
    command(
        "/model",
        Argument::Model,
        "switch to another model; without arguments, show the current one",
        model,
    ),
    command(
        "/save",
        Argument::File,
        "save the conversation to a file, or for /resume",
        save,
    ),
    command("/load", Argument::File, "load a saved conversation", load),
    command(
        "/resume",
        Argument::None,
        "load the conversation last saved without a file name",
        resume,
    ),
    command(
        "/exit",
        Argument::None,
        "leave the chat (also /quit, /bye, and Ctrl-D)",
        leave,
    ),
    command("/quit", Argument::None, "", leave),
    command("/bye", Argument::None, "", leave),
];

/// Runs a slash command; `None` if the line is not a command.
pub fn take(chat: &mut Chat<'_>, text: &str) -> Outcome<Option<Next>> {
    let (first, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
    let Some(command) = COMMANDS.iter().find(|c| c.name == first) else {
        if !looks_like_a_command(first) {
            return Ok(None);
        }
        terminal::reply(format_args!("Unknown command {first}. Type /help for commands."));
        return Ok(Some(Next::Read));
    };
    // A command error does not end the chat.
    match (command.run)(chat, rest.trim()) {
        Ok(next) => Ok(Some(next)),
        Err(e) => tell(e).map(|()| Some(Next::Read)),
    }
}

/// Checks that a word is a command, unlike paths such as `/etc/hosts`.
fn looks_like_a_command(word: &str) -> bool {
    word.strip_prefix('/')
        .is_some_and(|w| !w.is_empty() && w.chars().all(|c| c.is_ascii_lowercase()))
}

fn help(_: &mut Chat<'_>, _: &str) -> Outcome<Next> {
    for command in COMMANDS.iter().filter(|c| !c.about.is_empty()) {
        let typed = format!("{} {}", command.name, command.argument.name());
        terminal::reply(format_args!("  {typed:<20} {}", command.about));
    }
    terminal::reply("  \"\"\"                  start or end multi-line input; or end lines with \\");
    terminal::reply("  Ctrl-C               stop the response");
    Ok(Next::Read)
}

fn clear(chat: &mut Chat<'_>, _: &str) -> Outcome<Next> {
    chat.conversation.clear();
    Ok(Next::Read)
}

fn regen(chat: &mut Chat<'_>, _: &str) -> Outcome<Next> {
    if chat.conversation.take_back("assistant") {
        return Ok(Next::Answer);
    }
    terminal::reply("There is no response yet.");
    Ok(Next::Read)
}

fn read(chat: &mut Chat<'_>, file: &str) -> Outcome<Next> {
    let text = input::read(&file_of(file, "/read")?)?;
    terminal::reply(format_args!(
        "{file}: {} will be prepended to the next message.",
        format::plural(text.chars().count(), "character")
    ));
    chat.read.push(text);
    Ok(Next::Read)
}

fn image(chat: &mut Chat<'_>, file: &str) -> Outcome<Next> {
    attach(chat, Medium::Image, &file_of(file, "/image")?).map(|()| Next::Read)
}

fn audio(chat: &mut Chat<'_>, file: &str) -> Outcome<Next> {
    attach(chat, Medium::Audio, &file_of(file, "/audio")?).map(|()| Next::Read)
}

/// Puts an image or audio file before the next message.
pub fn attach(chat: &mut Chat<'_>, medium: Medium, file: &Path) -> Outcome {
    let rows = chat.session.medium(medium, file)?;
    terminal::reply(format_args!(
        "{}: {} will be put before the next message.",
        file.display(),
        format::plural(rows.len(), "row")
    ));
    chat.conversation.attach(rows);
    Ok(())
}

fn edit(chat: &mut Chat<'_>, text: &str) -> Outcome<Next> {
    let initial = match text {
        "" => chat.conversation.last("user").unwrap_or_default().to_owned(),
        text => text.to_owned(),
    };
    let text = external::edited(&initial)?;
    if text.trim().is_empty() {
        terminal::reply("The file is empty; no message was sent.");
        return Ok(Next::Read);
    }
    terminal::reply(&text);
    Ok(Next::Ask(text))
}

fn copy(chat: &mut Chat<'_>, _: &str) -> Outcome<Next> {
    let Some(answer) = chat.conversation.last("assistant") else {
        terminal::reply("There is no response yet.");
        return Ok(Next::Read);
    };
    let n = format::plural(answer.chars().count(), "character");
    let how = external::copy(answer)?;
    terminal::reply(format_args!("Copied {n} to the clipboard with {how}."));
    Ok(Next::Read)
}

fn system(chat: &mut Chat<'_>, text: &str) -> Outcome<Next> {
    chat.conversation.set_system(text)?;
    chat.conversation.clear();
    Ok(Next::Read)
}

/// Enables context shifts.
fn shift(chat: &mut Chat<'_>, _: &str) -> Outcome<Next> {
    chat.session.allow_shift()?;
    terminal::reply("Whenever the context is full, the older half of the conversation will be dropped.");
    Ok(Next::Read)
}

fn set(chat: &mut Chat<'_>, rest: &str) -> Outcome<Next> {
    let sampler = &mut chat.session.sampler;
    let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let name = name.trim_start_matches('-');
    let rows: Vec<_> = PARAMS
        .iter()
        .filter(|p| name.is_empty() || p.flag == name || p.name == name)
        .collect();
    match (&rows[..], value.trim()) {
        ([], _) => {
            let near = engine::model::nearest_names(name, PARAMS.iter().map(|p| p.flag));
            let near = if near.is_empty() {
                String::new()
            } else {
                format!(" Similar names: {}.", near.join(", "))
            };
            terminal::reply(format_args!("Unknown parameter {name}; type /set to list all.{near}"));
        }
        (rows, "") => {
            for p in rows {
                terminal::reply(format_args!("  {:<20} {:<8} {}", p.flag, (p.get)(sampler), p.doc));
            }
        }
        ([p, ..], value) => {
            let before = (p.get)(sampler);
            sampler.set(p.name, &[value])?;
            terminal::reply(format_args!("{} is now {}; it was {before}.", p.flag, (p.get)(sampler)));
        }
    }
    Ok(Next::Read)
}

fn tokens(chat: &mut Chat<'_>, text: &str) -> Outcome<Next> {
    let vocab = chat.session.vocab();
    if text.is_empty() {
        let n = chat.conversation.n_tokens(vocab, chat.session.projector())?;
        let (n_ctx, n_cached) = (chat.session.context().n_ctx(), chat.session.cached().len());
        let n = format::plural(n, "token");
        terminal::reply(format_args!(
            "The conversation has {n}; the context contains {n_cached} of at most {n_ctx}."
        ));
        return Ok(Next::Read);
    }
    let tokens = vocab.tokenize(text, false, true);
    for &token in &tokens {
        let piece = String::from_utf8_lossy(vocab.token_to_piece(token, true));
        terminal::reply(format_args!("{token:>8}  {piece:?}"));
    }
    terminal::reply(format::plural(tokens.len(), "token"));
    Ok(Next::Read)
}

fn model(chat: &mut Chat<'_>, given: &str) -> Outcome<Next> {
    if given.is_empty() {
        let model = chat.session.model();
        terminal::reply(format_args!(
            "{}: {}",
            super::name(chat.session),
            model.path().display()
        ));
        return Ok(Next::Read);
    }
    if chat.args.prompt_cache.is_some() {
        return Err(Failure::new(
            "/model cannot be used with --prompt-cache, which stores the state of one model",
        ));
    }
    let path = chat.args.hub.file_of(Path::new(given))?;
    let mut session = Session::open(&path, chat.args)?;
    session.ready()?;
    let mut conversation = Conversation::new(session.model(), chat.args.raw, None, &chat.args.template)?;
    conversation.take_over(&chat.conversation);
    std::mem::swap(chat.session, &mut session);
    chat.conversation = conversation;
    terminal::reply(format_args!("{} goes on.", super::name(chat.session)));
    Ok(Next::Read)
}

fn save(chat: &mut Chat<'_>, file: &str) -> Outcome<Next> {
    let path = match file {
        "" => default_file()?,
        file => PathBuf::from(file),
    };
    if file.is_empty()
        && let Some(dir) = path.parent()
    {
        fs::create_dir_all(dir)?;
    }
    chat.conversation.save(&path)?;
    terminal::reply(format_args!("Saved the conversation to {}.", path.display()));
    Ok(Next::Read)
}

fn load(chat: &mut Chat<'_>, file: &str) -> Outcome<Next> {
    resume_from(chat, &file_of(file, "/load")?)
}

fn resume(chat: &mut Chat<'_>, _: &str) -> Outcome<Next> {
    let path = default_file()?;
    if path.is_file() {
        resume_from(chat, &path)
    } else {
        Err(Failure::new("there is no conversation saved by /save"))
    }
}

fn leave(_: &mut Chat<'_>, _: &str) -> Outcome<Next> {
    Ok(Next::Leave)
}

fn resume_from(chat: &mut Chat<'_>, path: &Path) -> Outcome<Next> {
    fs::metadata(path).map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))?;
    let n = chat.conversation.replace_by(path)?;
    terminal::reply(format_args!(
        "Resuming the conversation after {}.",
        format::plural(n, "message")
    ));
    Ok(Next::Read)
}

/// Returns the file for conversations saved without a name.
fn default_file() -> Outcome<PathBuf> {
    let dir = dirs::state().ok_or_else(|| Failure::new("cannot locate the state directory; pass a file name"))?;
    Ok(dir.join("conversation.json"))
}

/// Returns the file argument of a command.
fn file_of(text: &str, command: &str) -> Outcome<PathBuf> {
    match text {
        "" => Err(Failure::new(format_args!("{command} requires a file name"))),
        text => Ok(PathBuf::from(text)),
    }
}
