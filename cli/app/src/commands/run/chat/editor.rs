//! Chat input: a line editor with history, multi-line input, and completion, or plain lines.

use std::io::BufRead;
use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Helper};

use super::complete;
use crate::commands::run::answer::print_piece;
use crate::dirs;
use crate::failure::Outcome;

const PROMPT: &str = "> ";
/// Delimiter of multi-line input.
const FENCE: &str = "\"\"\"";
const MAX_HISTORY: usize = 1000;

/// User input.
pub enum Input {
    /// A line of input, or several lines.
    Text(String),
    Interrupt,
    End,
}

/// Source of user input.
pub enum Editor {
    /// Line editor on a terminal.
    Lines {
        editor: Box<rustyline::Editor<Assistant, FileHistory>>,
        /// History file.
        history: Option<PathBuf>,
    },
    /// Plain lines from standard input.
    Simple,
}

impl Editor {
    /// Creates a reader of plain lines.
    pub fn simple() -> Editor {
        Editor::Simple
    }

    /// Creates a line editor with the history of earlier chats that completes commands and model names.
    pub fn new(models: Vec<String>) -> Outcome<Editor> {
        let config = Config::builder()
            .max_history_size(MAX_HISTORY)?
            .history_ignore_dups(true)?
            .auto_add_history(true);
        let mut editor = rustyline::Editor::with_config(config.build())?;
        editor.set_helper(Some(Assistant { models }));
        let history = dirs::state().map(|dir| dir.join("chat_history"));
        if let Some(path) = &history {
            // The file does not exist before the first chat; read errors are ignored.
            let _ = editor.load_history(path);
        }
        Ok(Editor::Lines {
            editor: Box::new(editor),
            history,
        })
    }

    /// Reads the next input.
    pub fn read(&mut self) -> Outcome<Input> {
        let (editor, history) = match self {
            Editor::Simple => return read_simple(),
            Editor::Lines { editor, history } => (editor, history),
        };
        match editor.readline(PROMPT) {
            Ok(text) => {
                // Append, because other chats may use the same file. Errors are ignored.
                if let Some(path) = history {
                    let _ = path.parent().map(std::fs::create_dir_all);
                    let _ = editor.append_history(path);
                }
                Ok(Input::Text(plain(&text)))
            }
            Err(ReadlineError::Interrupted) => Ok(Input::Interrupt),
            Err(ReadlineError::Eof) => Ok(Input::End),
            Err(e) => Err(e.into()),
        }
    }
}

fn read_simple() -> Outcome<Input> {
    print_piece(PROMPT)?;
    let mut text = String::new();
    loop {
        if std::io::stdin().lock().read_line(&mut text)? == 0 {
            return Ok(if text.is_empty() {
                Input::End
            } else {
                Input::Text(plain(&text))
            });
        }
        let line = text.trim_end_matches(['\r', '\n']);
        if !is_open(line) {
            return Ok(Input::Text(plain(line)));
        }
    }
}

/// Returns true if a delimiter is open or the last line ends in a backslash.
fn is_open(text: &str) -> bool {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => !rest.contains(FENCE),
        None => text.ends_with('\\'),
    }
}

/// Removes delimiters and line-continuation backslashes.
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

/// Validation and completion for the line editor.
pub struct Assistant {
    models: Vec<String>,
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
        Ok(complete::candidates(&line[..pos], &self.models))
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
    fn multi_line_input_is_joined() {
        assert!(is_open("\"\"\"one\ntwo") && is_open("one\\") && !is_open("one") && !is_open("\"\"\"one\"\"\""));
        assert_eq!(plain("\"\"\"\none\n\ntwo\n\"\"\""), "one\n\ntwo");
        assert_eq!(plain("\"\"\"one\"\"\" two"), "one two");
        assert_eq!(plain("one\\\ntwo"), "one\ntwo");
        assert_eq!(plain("a \"\"\" b"), "a \"\"\" b");
    }
}
