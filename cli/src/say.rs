//! What the program itself has to say goes to stderr: standard output is for what was asked for.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// A line. Unlike `eprintln!` it does not panic when nobody can read it.
pub fn line(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// A line beside the matter: dimmed on a terminal.
pub fn aside(text: impl Display) {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty()) || !io::stderr().is_terminal();
    if is_plain {
        line(text)
    } else {
        line(format_args!("\x1b[2m{text}\x1b[0m"))
    }
}
