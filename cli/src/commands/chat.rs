//! A chat on the terminal: `llama run` without a prompt.

mod commands;
mod complete;
mod editor;
mod outside;

use std::path::{Path, PathBuf};

use super::answer::{report, speak};
use crate::args::RunArgs;
use crate::conversation::Conversation;
use crate::failure::{Failure, Outcome};
use crate::hub::SHORT_NAMES;
use crate::hub::cache::Cache;
use crate::session::{End, Session};
use crate::{human, say};
use commands::Next;
use editor::{Editor, Input};

/// A chat under way.
struct Chat<'a> {
    session: &'a mut Session,
    conversation: Conversation,
    args: &'a RunArgs,
    /// Texts that come before the next question.
    read: Vec<String>,
}

/// Goes on until the user leaves; `first` is what is asked first, if that is known.
pub fn run(session: &mut Session, mut conversation: Conversation, first: Option<String>, args: &RunArgs) -> Outcome {
    let messages = args.session.as_deref().map(messages_of);
    let mut editor = match args.display.simple_io {
        true => Editor::simple(),
        false => Editor::new(models())?,
    };
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
        read: Vec::new(),
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

/// Models that can be named: those in the cache, and the short names.
fn models() -> Vec<String> {
    let there = Cache::of_user().map(|cache| cache.list()).unwrap_or_default();
    let mut names: Vec<String> = there.iter().map(|entry| entry.name.to_string()).collect();
    names.extend(SHORT_NAMES.iter().map(|short| short.name.to_owned()));
    names
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
        let text = match commands::take(self, text)? {
            Some(Next::Leave) => return Ok(false),
            Some(Next::Read) => return Ok(true),
            Some(Next::Answer) => return self.answer().map(|()| true),
            Some(Next::Ask(text)) => text,
            None => text.to_owned(),
        };
        self.ask(&text)?;
        Ok(!self.args.single_turn)
    }

    fn ask(&mut self, text: &str) -> Outcome {
        self.read.push(text.to_owned());
        let text = std::mem::take(&mut self.read).join("\n\n");
        self.conversation.ask(&text);
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
