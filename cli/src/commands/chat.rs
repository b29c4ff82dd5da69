//! A chat on the terminal: `llama run` without a prompt.

mod editor;

use std::path::{Path, PathBuf};

use engine::sample::PARAMS;

use super::answer::{report, speak};
use crate::args::RunArgs;
use crate::conversation::Conversation;
use crate::failure::{Failure, Outcome};
use crate::session::{End, Session};
use crate::{human, say};
use editor::{Editor, Input};

/// What can be said to the program instead of the model: name, argument, what it does.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("/help", "", "this list"),
    ("/clear", "", "begin anew; the instructions stay"),
    ("/regen", "", "another answer to the last question"),
    (
        "/system",
        "TEXT",
        "begin anew with these instructions; none without TEXT",
    ),
    (
        "/shift",
        "",
        "whenever the context is full, forget the older half of what was said",
    ),
    (
        "/set",
        "NAME VALUE",
        "change a sampling parameter; without arguments, show all",
    ),
    ("/exit", "", "leave, as /quit, /bye and Ctrl-D do"),
    ("/quit", "", ""),
    ("/bye", "", ""),
];

struct Chat<'a> {
    session: &'a mut Session,
    conversation: Conversation,
    args: &'a RunArgs,
}

/// Goes on until the user leaves; `first` is what is asked first, if that is known.
pub fn run(session: &mut Session, mut conversation: Conversation, first: Option<String>, args: &RunArgs) -> Outcome {
    let messages = args.session.as_deref().map(messages_of);
    let mut editor = Editor::new(COMMANDS.iter().map(|(name, ..)| *name).collect())?;
    let arch = session.model().arch().name;
    if conversation.is_raw() {
        say::line(format_args!(
            "{arch} without a chat template: it continues your text. /help lists the commands."
        ));
    } else {
        say::line(format_args!("Chat with {}. /help lists the commands.", name(session)));
    }
    if let Some(file) = &messages {
        let n = conversation.restore(file)?;
        if n > 0 {
            say::line(format_args!(
                "The conversation goes on behind {}.",
                human::plural(n, "message")
            ));
        }
    }
    let mut chat = Chat {
        session,
        conversation,
        args,
    };
    if let Some(first) = first {
        chat.ask(&first)?;
    }
    let mut n_interrupts = 0;
    loop {
        match editor.read()? {
            Input::End => break,
            Input::Interrupt => {
                n_interrupts += 1;
                if n_interrupts > 1 {
                    say::line("Ctrl-D or /exit leaves.");
                }
                continue;
            }
            Input::Text(text) if text.trim().is_empty() => {}
            Input::Text(text) => {
                if !chat.take(&text)? {
                    break;
                }
            }
        }
        n_interrupts = 0;
    }
    match &messages {
        Some(file) if !args.session_read_only => chat.conversation.save(file),
        _ => Ok(()),
    }
}

/// Where the messages of a session's chat are: beside what was computed of them.
fn messages_of(session: &Path) -> PathBuf {
    let mut name = session.as_os_str().to_owned();
    name.push(".messages.json");
    name.into()
}

/// The model's name as its file gives it, else the file's.
fn name(session: &Session) -> String {
    let model = session.model();
    let given = model.metadata().get("general.name").and_then(|v| v.as_str());
    let file = || {
        model
            .path()
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    given
        .filter(|n| !n.contains(char::is_control))
        .map_or_else(file, str::to_owned)
}

impl Chat<'_> {
    /// A line from the user; false if it is the last one.
    fn take(&mut self, text: &str) -> Outcome<bool> {
        let (first, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
        let rest = rest.trim();
        match first {
            "/exit" | "/quit" | "/bye" => return Ok(false),
            "/help" => help(),
            "/clear" => self.conversation.clear(),
            "/system" => match self.conversation.set_system(rest) {
                Ok(()) => self.conversation.clear(),
                Err(e) => tell(e)?,
            },
            "/shift" => self.shift()?,
            "/set" => self.set(rest),
            "/regen" if self.conversation.take_back("assistant") => self.answer()?,
            "/regen" => say::line("There is no answer yet."),
            _ if looks_like_a_command(first) => {
                say::line(format_args!("There is no {first}; /help lists the commands."))
            }
            _ => {
                self.ask(text)?;
                return Ok(!self.args.single_turn);
            }
        }
        Ok(true)
    }

    fn ask(&mut self, text: &str) -> Outcome {
        self.conversation.ask(text);
        self.answer()
    }

    /// The model's words to what was asked last. What goes wrong ends this turn, not the chat.
    fn answer(&mut self) -> Outcome {
        match speak(self.session, &self.conversation, self.args) {
            Ok(turn) => {
                if turn.end == End::Interrupted && turn.text.is_empty() {
                    self.conversation.take_back("user");
                } else {
                    self.conversation.answered(&turn.text);
                }
                report(self.session, &turn, self.args);
                if turn.end == End::ContextFull {
                    say::line("/shift forgets the older half of the conversation; /clear begins anew.");
                }
                Ok(())
            }
            Err(e) => {
                self.conversation.take_back("user");
                tell(e)
            }
        }
    }

    /// From now on a full context forgets its older half.
    fn shift(&mut self) -> Outcome {
        match self.session.allow_shift() {
            Ok(()) => say::line("Whenever the context is full, the older half of the conversation is forgotten."),
            Err(e) => tell(e)?,
        }
        Ok(())
    }

    fn set(&mut self, rest: &str) {
        let Some((name, value)) = rest.split_once(char::is_whitespace) else {
            let shown = |flag: &str| rest.is_empty() || rest == flag;
            let rows: Vec<_> = PARAMS.iter().filter(|p| shown(p.flag) || shown(p.name)).collect();
            if rows.is_empty() {
                say::line(format_args!("There is no parameter {rest}; /set lists them."));
            }
            for p in rows {
                say::line(format_args!(
                    "  {:<20} {:<8} {}",
                    p.flag,
                    (p.get)(&self.session.sampler),
                    p.doc
                ));
            }
            return;
        };
        if let Err(e) = self.session.sampler.set(name.trim_start_matches('-'), &[value.trim()]) {
            say::line(format_args!("{e}"));
        }
    }
}

/// Prints what failed; what ends the program is passed on.
fn tell(failure: Failure) -> Outcome {
    match failure {
        Failure::Message(text) => {
            say::line(format_args!("error: {text}"));
            Ok(())
        }
        other => Err(other),
    }
}

/// A path such as `/etc/hosts` is none.
fn looks_like_a_command(word: &str) -> bool {
    word.strip_prefix('/')
        .is_some_and(|w| !w.is_empty() && w.chars().all(|c| c.is_ascii_lowercase()))
}

fn help() {
    for (name, argument, what) in COMMANDS.iter().filter(|(.., what)| !what.is_empty()) {
        say::line(format_args!("  {:<20} {what}", format!("{name} {argument}")));
    }
    say::line("  \"\"\"                  begins and ends text of several lines; so does \\ at the end of a line");
    say::line("  Ctrl-C               stops the answer");
}
