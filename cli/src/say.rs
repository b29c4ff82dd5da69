//! What the program itself has to say goes to stderr: standard output is for what was asked for.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// A line. Unlike `eprintln!` it does not panic when nobody can read it.
pub fn line(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// True where nothing but text is wanted: no terminal, or one without colours.
pub fn is_plain(stream: &impl IsTerminal) -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty()) || !stream.is_terminal()
}

/// A line beside the matter: dimmed on a terminal.
pub fn aside(text: impl Display) {
    if is_plain(&io::stderr()) {
        line(text)
    } else {
        line(format_args!("\x1b[2m{text}\x1b[0m"))
    }
}
