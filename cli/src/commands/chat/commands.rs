//! What can be said to the program instead of the model.

use std::fs;
use std::path::{Path, PathBuf};

use engine::sample::PARAMS;

use super::{Chat, outside, tell};
use crate::commands::input;
use crate::conversation::Conversation;
use crate::failure::{Failure, Outcome};
use crate::session::Session;
use crate::{dirs, human, say};

/// A command of a chat.
pub struct Command {
    /// As it is typed.
    pub name: &'static str,
    /// What stands behind it.
    pub argument: Argument,
    /// What it does; empty for another name of one.
    about: &'static str,
    run: fn(&mut Chat<'_>, &str) -> Outcome<Next>,
}

/// What stands behind a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    None,
    Text,
    File,
    Model,
    Parameter,
}

/// What a chat does behind a command.
#[derive(PartialEq, Eq)]
pub enum Next {
    /// Goes on.
    Read,
    /// The model answers what was asked last.
    Answer,
    /// The user asks this.
    Ask(String),
    /// It ends.
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
) -> Command {
    Command {
        name,
        argument,
        about,
        run,
    }
}

/// The commands, in the order of the help.
pub const COMMANDS: &[Command] = &[
    command("/help", Argument::None, "this list", help),
    command("/clear", Argument::None, "begin anew; the instructions stay", clear),
    command("/regen", Argument::None, "another answer to the last question", regen),
    command(
        "/read",
        Argument::File,
        "put a file's text before the next question",
        read,
    ),
    command(
        "/edit",
        Argument::Text,
        "write the next question in $EDITOR, beginning with TEXT or with the last one",
        edit,
    ),
    command("/copy", Argument::None, "put the last answer into the clipboard", copy),
    command(
        "/system",
        Argument::Text,
        "begin anew with these instructions; none without TEXT",
        system,
    ),
    command(
        "/shift",
        Argument::None,
        "whenever the context is full, forget the older half of what was said",
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
        "count the tokens of the conversation, or show those of TEXT",
        tokens,
    ),
    command(
        "/model",
        Argument::Model,
        "go on with another model; without arguments, name this one",
        model,
    ),
    command(
        "/save",
        Argument::File,
        "keep the conversation in a file; without one, for /resume",
        save,
    ),
    command("/load", Argument::File, "go on with a conversation that was kept", load),
    command(
        "/resume",
        Argument::None,
        "go on with the last one that was kept without a file",
        resume,
    ),
    command("/exit", Argument::None, "leave, as /quit, /bye and Ctrl-D do", leave),
    command("/quit", Argument::None, "", leave),
    command("/bye", Argument::None, "", leave),
];

/// Does what a line says if it is a command; `None` if it is none.
pub fn take(chat: &mut Chat<'_>, text: &str) -> Outcome<Option<Next>> {
    let (first, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
    let Some(command) = COMMANDS.iter().find(|c| c.name == first) else {
        if !looks_like_a_command(first) {
            return Ok(None);
        }
        say::line(format_args!("There is no {first}; /help lists the commands."));
        return Ok(Some(Next::Read));
    };
    // What goes wrong ends the command, not the chat.
    match (command.run)(chat, rest.trim()) {
        Ok(next) => Ok(Some(next)),
        Err(e) => tell(e).map(|()| Some(Next::Read)),
    }
}

/// A path such as `/etc/hosts` is none.
fn looks_like_a_command(word: &str) -> bool {
    word.strip_prefix('/')
        .is_some_and(|w| !w.is_empty() && w.chars().all(|c| c.is_ascii_lowercase()))
}

fn help(_: &mut Chat<'_>, _: &str) -> Outcome<Next> {
    for command in COMMANDS.iter().filter(|c| !c.about.is_empty()) {
        let typed = format!("{} {}", command.name, command.argument.name());
        say::line(format_args!("  {typed:<20} {}", command.about));
    }
    say::line("  \"\"\"                  begins and ends text of several lines; so does \\ at the end of a line");
    say::line("  Ctrl-C               stops the answer");
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
    say::line("There is no answer yet.");
    Ok(Next::Read)
}

fn read(chat: &mut Chat<'_>, file: &str) -> Outcome<Next> {
    let text = input::read(&file_of(file, "/read")?)?;
    say::line(format_args!(
        "{file}: {} come before the next question.",
        human::plural(text.chars().count(), "character")
    ));
    chat.read.push(text);
    Ok(Next::Read)
}

fn edit(chat: &mut Chat<'_>, text: &str) -> Outcome<Next> {
    let begun = match text {
        "" => chat.conversation.last("user").unwrap_or_default().to_owned(),
        text => text.to_owned(),
    };
    let text = outside::edited(&begun)?;
    if text.trim().is_empty() {
        say::line("Nothing is asked: the file is empty.");
        return Ok(Next::Read);
    }
    say::line(&text);
    Ok(Next::Ask(text))
}

fn copy(chat: &mut Chat<'_>, _: &str) -> Outcome<Next> {
    let Some(answer) = chat.conversation.last("assistant") else {
        say::line("There is no answer yet.");
        return Ok(Next::Read);
    };
    let n = human::plural(answer.chars().count(), "character");
    let how = outside::copy(answer)?;
    say::line(format_args!("{n} are in the clipboard, by {how}."));
    Ok(Next::Read)
}

fn system(chat: &mut Chat<'_>, text: &str) -> Outcome<Next> {
    chat.conversation.set_system(text)?;
    chat.conversation.clear();
    Ok(Next::Read)
}

/// From now on a full context forgets its older half.
fn shift(chat: &mut Chat<'_>, _: &str) -> Outcome<Next> {
    chat.session.allow_shift()?;
    say::line("Whenever the context is full, the older half of the conversation is forgotten.");
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
            let near = match near.is_empty() {
                true => String::new(),
                false => format!(" The nearest are {}.", near.join(", ")),
            };
            say::line(format_args!("There is no parameter {name}; /set lists them.{near}"));
        }
        (rows, "") => {
            for p in rows {
                say::line(format_args!("  {:<20} {:<8} {}", p.flag, (p.get)(sampler), p.doc));
            }
        }
        ([p, ..], value) => {
            let before = (p.get)(sampler);
            sampler.set(p.name, &[value])?;
            say::line(format_args!("{} is {}; it was {before}.", p.flag, (p.get)(sampler)));
        }
    }
    Ok(Next::Read)
}

fn tokens(chat: &mut Chat<'_>, text: &str) -> Outcome<Next> {
    let vocab = chat.session.vocab();
    if text.is_empty() {
        let n = chat.conversation.n_tokens(vocab)?;
        let (n_ctx, n_held) = (chat.session.context().n_ctx(), chat.session.held().len());
        let n = human::plural(n, "token");
        say::line(format_args!(
            "The conversation has {n}; the context holds {n_held} and has room for {n_ctx}."
        ));
        return Ok(Next::Read);
    }
    let tokens = vocab.tokenize(text, false, true);
    for &token in &tokens {
        let piece = String::from_utf8_lossy(vocab.token_to_piece(token, true));
        say::line(format_args!("{token:>8}  {piece:?}"));
    }
    say::line(human::plural(tokens.len(), "token"));
    Ok(Next::Read)
}

fn model(chat: &mut Chat<'_>, given: &str) -> Outcome<Next> {
    if given.is_empty() {
        let model = chat.session.model();
        say::line(format_args!(
            "{}: {}",
            super::name(chat.session),
            model.path().display()
        ));
        return Ok(Next::Read);
    }
    if chat.args.session.is_some() {
        return Err(Failure::new(
            "--session keeps what one model has computed: /model cannot be used with it",
        ));
    }
    let path = chat.args.hub.file_of(Path::new(given))?;
    fs::metadata(&path).map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))?;
    let mut session = Session::open(&path, chat.args)?;
    session.ready()?;
    let mut conversation = Conversation::new(session.model(), chat.args.raw, None, &chat.args.template)?;
    conversation.take_over(&chat.conversation);
    std::mem::swap(chat.session, &mut session);
    chat.conversation = conversation;
    say::line(format_args!("{} goes on.", super::name(chat.session)));
    Ok(Next::Read)
}

fn save(chat: &mut Chat<'_>, file: &str) -> Outcome<Next> {
    let path = match file {
        "" => kept()?,
        file => PathBuf::from(file),
    };
    if let Some(dir) = path.parent().filter(|_| file.is_empty()) {
        fs::create_dir_all(dir)?;
    }
    chat.conversation.save(&path)?;
    say::line(format_args!("The conversation is in {}.", path.display()));
    Ok(Next::Read)
}

fn load(chat: &mut Chat<'_>, file: &str) -> Outcome<Next> {
    resume_from(chat, &file_of(file, "/load")?)
}

fn resume(chat: &mut Chat<'_>, _: &str) -> Outcome<Next> {
    let path = kept()?;
    match path.is_file() {
        true => resume_from(chat, &path),
        false => Err(Failure::new("no conversation was kept by /save")),
    }
}

fn leave(_: &mut Chat<'_>, _: &str) -> Outcome<Next> {
    Ok(Next::Leave)
}

fn resume_from(chat: &mut Chat<'_>, path: &Path) -> Outcome<Next> {
    fs::metadata(path).map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))?;
    let n = chat.conversation.replace_by(path)?;
    say::line(format_args!(
        "The conversation goes on behind {}.",
        human::plural(n, "message")
    ));
    Ok(Next::Read)
}

/// Where a conversation is kept that nobody has named.
fn kept() -> Outcome<PathBuf> {
    let dir = dirs::state().ok_or_else(|| Failure::new("there is no folder for conversations: name a file"))?;
    Ok(dir.join("conversation.json"))
}

/// The file that is named.
fn file_of(text: &str, command: &str) -> Outcome<PathBuf> {
    match text {
        "" => Err(Failure::new(format_args!("{command} needs a file"))),
        text => Ok(PathBuf::from(text)),
    }
}
