//! The line editor: history, text of several lines, completion of commands.

use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Helper};

use crate::dirs;
use crate::failure::Outcome;

const PROMPT: &str = "> ";
/// Around text of several lines.
const FENCE: &str = "\"\"\"";
const MAX_HISTORY: usize = 1000;

/// What the user did.
pub enum Input {
    /// Typed this.
    Text(String),
    /// Pressed Ctrl-C.
    Interrupt,
    /// Pressed Ctrl-D.
    End,
}

/// Reads from the terminal and remembers.
pub struct Editor {
    editor: rustyline::Editor<Assistant, FileHistory>,
    history: Option<PathBuf>,
}

impl Editor {
    /// An editor that completes these commands, with the history of earlier chats.
    pub fn new(commands: Vec<&'static str>) -> Outcome<Editor> {
        let config = Config::builder()
            .max_history_size(MAX_HISTORY)?
            .history_ignore_dups(true)?
            .auto_add_history(true);
        let mut editor = rustyline::Editor::with_config(config.build())?;
        editor.set_helper(Some(Assistant { commands }));
        let history = dirs::state().map(|dir| dir.join("chat_history"));
        if let Some(path) = &history {
            // There is none before the first chat; one that cannot be read is no reason not to chat.
            let _ = editor.load_history(path);
        }
        Ok(Editor { editor, history })
    }

    /// The next input.
    pub fn read(&mut self) -> Outcome<Input> {
        match self.editor.readline(PROMPT) {
            Ok(text) => {
                self.remember();
                Ok(Input::Text(plain(&text)))
            }
            Err(ReadlineError::Interrupted) => Ok(Input::Interrupt),
            Err(ReadlineError::Eof) => Ok(Input::End),
            Err(e) => Err(e.into()),
        }
    }

    /// Adds what is new to the file, which other chats may be adding to. Not being able to is no reason to fail.
    fn remember(&mut self) {
        if let Some(path) = &self.history {
            let _ = path.parent().map(std::fs::create_dir_all);
            let _ = self.editor.append_history(path);
        }
    }
}

/// Is the text unfinished: a fence is open, or the last line ends in a backslash?
fn is_open(text: &str) -> bool {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => !rest.contains(FENCE),
        None => text.ends_with('\\'),
    }
}

/// The text without fences and continuing backslashes.
fn plain(text: &str) -> String {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => {
            let (inside, after) = rest.split_once(FENCE).unwrap_or((rest, ""));
            let inside = inside.strip_prefix('\n').unwrap_or(inside);
            let inside = inside.strip_suffix('\n').unwrap_or(inside);
            format!("{inside}{after}")
        }
        None => text.replace("\\\n", "\n"),
    }
}

struct Assistant {
    commands: Vec<&'static str>,
}

impl Validator for Assistant {
    fn validate(&self, ctx: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(if is_open(ctx.input()) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Completer for Assistant {
    type Candidate = String;

    fn complete(&self, line: &str, pos: usize, _ctx: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..pos];
        let fits = |command: &&&str| typed.starts_with('/') && command.starts_with(typed);
        Ok((0, self.commands.iter().filter(fits).map(|c| (*c).to_owned()).collect()))
    }
}

impl Hinter for Assistant {
    type Hint = String;
}

impl Highlighter for Assistant {}

impl Helper for Assistant {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_several_lines() {
        assert!(is_open("\"\"\"one\ntwo") && is_open("one\\") && !is_open("one") && !is_open("\"\"\"one\"\"\""));
        assert_eq!(plain("\"\"\"\none\n\ntwo\n\"\"\""), "one\n\ntwo");
        assert_eq!(plain("\"\"\"one\"\"\" two"), "one two");
        assert_eq!(plain("one\\\ntwo"), "one\ntwo");
        assert_eq!(plain("a \"\"\" b"), "a \"\"\" b");
    }
}
