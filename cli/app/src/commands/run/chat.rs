//! Interactive chat: `llama run` without a prompt.

mod commands;
mod complete;
mod dropped;
mod editor;
mod external;

use std::path::{Path, PathBuf};

use llama::Finish;
use tracing::error;

use super::answer::{report, speak};
use super::args::RunArgs;
use super::conversation::Conversation;
use super::session::Session;
use crate::failure::{Failure, Outcome};
use crate::hub::{Cache, SHORT_NAMES};
use crate::{format, interrupt, terminal};
use commands::Next;
use editor::{Editor, Input};

/// An interactive chat.
struct Chat<'a> {
    session: &'a mut Session,
    conversation: Conversation,
    args: &'a RunArgs,
    /// File contents to prepend to the next message.
    read: Vec<String>,
}

/// Runs the chat until the user exits. `first` is the first message, if any.
pub fn run(session: &mut Session, mut conversation: Conversation, first: Option<String>, args: &RunArgs) -> Outcome {
    let messages = args.prompt_cache.as_deref().map(messages_of);
    let mut editor = if args.display.simple_io {
        Editor::simple()
    } else {
        Editor::new(models())?
    };
    let arch = session.model().arch().name;
    if conversation.is_raw() {
        terminal::reply(format_args!(
            "{arch} has no chat template; your text will be continued. Type /help for commands."
        ));
    } else {
        terminal::reply(format_args!("Chat with {}. Type /help for commands.", name(session)));
    }
    if let Some(file) = &messages {
        let n = conversation.restore(file)?;
        if n > 0 {
            terminal::reply(format_args!(
                "Resuming the conversation after {}.",
                format::plural(n, "message")
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
    while !interrupt::is_terminated() {
        match editor.read()? {
            Input::End => break,
            Input::Interrupt => {
                n_interrupts += 1;
                if n_interrupts > 1 {
                    terminal::reply("Press Ctrl-D or type /exit to leave.");
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
        Some(file) if !args.prompt_cache_ro => chat.conversation.save(file),
        _ => Ok(()),
    }
}

/// Returns the path of the saved messages next to a prompt cache file.
fn messages_of(session: &Path) -> PathBuf {
    let mut name = session.as_os_str().to_owned();
    name.push(".messages.json");
    name.into()
}

/// Returns model names for completion: cached models and short names.
fn models() -> Vec<String> {
    let there = Cache::of_user().map(|cache| cache.list()).unwrap_or_default();
    let mut names: Vec<String> = there.iter().map(|entry| entry.name.to_string()).collect();
    names.extend(SHORT_NAMES.iter().map(|short| short.name.to_owned()));
    names
}

/// Returns the model name from the metadata, or the file name.
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
    /// Handles a line of input; returns false if the chat ends.
    fn take(&mut self, text: &str) -> Outcome<bool> {
        let text = match commands::take(self, text)? {
            Some(Next::Leave) => return Ok(false),
            Some(Next::Read) => return Ok(true),
            Some(Next::Answer) => return self.answer().map(|()| true),
            Some(Next::Ask(text)) => text,
            None => match self.attach_dropped(text) {
                Ok(text) if text.is_empty() => return Ok(true),
                Ok(text) => text,
                Err(failure) => return tell(failure).map(|()| true),
            },
        };
        self.ask(&text)?;
        Ok(!self.args.single_turn)
    }

    /// Attaches the files whose paths a message contains, if the model reads files. Returns the rest of the message.
    fn attach_dropped(&mut self, message: &str) -> Outcome<String> {
        if self.session.projector().is_none() {
            return Ok(message.to_owned());
        }
        let (text, files) = dropped::split(message);
        for (medium, path) in files {
            commands::attach(self, medium, &path)?;
        }
        Ok(text)
    }

    fn ask(&mut self, text: &str) -> Outcome {
        self.read.push(text.to_owned());
        let text = std::mem::take(&mut self.read).join("\n\n");
        self.conversation.ask(&text);
        self.answer()
    }

    /// Generates the response. Errors end the turn, not the chat.
    fn answer(&mut self) -> Outcome {
        match speak(self.session, &self.conversation, self.args) {
            Ok(turn) => {
                if turn.finish == Finish::Cancelled && turn.text.is_empty() {
                    self.conversation.take_back("user");
                } else {
                    self.conversation.answered(&turn.text);
                }
                report(self.session, &turn, self.args);
                if turn.finish == Finish::ContextFull {
                    terminal::reply("Use /shift to drop the older half of the conversation, or /clear to start over.");
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

/// Prints an error message; other failures are returned.
fn tell(failure: Failure) -> Outcome {
    match failure {
        Failure::Message(text) => {
            error!("{text}");
            Ok(())
        }
        other => Err(other),
    }
}
