//! Standard output, and its style: colors and animations. Also prints replies of interactive commands.

mod closed;

use std::fmt::Display;
use std::io::{self, IsTerminal, StdoutLock, Write};
use std::sync::OnceLock;

/// Style that the options select.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutputStyle {
    /// Colors on standard output; `None` enables them on capable terminals.
    pub colors: Option<bool>,
    /// Colors on stderr; `None` enables them on capable terminals.
    pub log_colors: Option<bool>,
    /// Disable animations and progress bars.
    pub is_simple: bool,
}

/// Standard stream that may be a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, for results.
    Out,
    /// Standard error, for messages.
    Err,
}

static STYLE: OnceLock<OutputStyle> = OnceLock::new();

/// Sets the style. Only the first call has an effect.
pub fn init(style: OutputStyle) {
    let _ = STYLE.set(style);
}

fn style() -> OutputStyle {
    STYLE.get().copied().unwrap_or_default()
}

/// Standard output for results. Writing fails if the stream was closed at startup.
pub struct CheckedStdout(StdoutLock<'static>);

/// Returns standard output.
pub fn output() -> CheckedStdout {
    CheckedStdout(io::stdout().lock())
}

/// Returns an error if standard output was closed at startup, so that a result would be lost.
pub fn check_output() -> io::Result<()> {
    if closed::is_stdout_closed() {
        return Err(io::Error::other(
            "cannot write to standard output: the stream is closed",
        ));
    }
    Ok(())
}

impl Write for CheckedStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        check_output()?;
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// Adds a description to errors of writing to standard output.
fn named(error: io::Error) -> io::Error {
    match error.kind() {
        // Callers handle these kinds: writers retry interrupted writes.
        kind @ (io::ErrorKind::BrokenPipe | io::ErrorKind::Interrupted) => io::Error::from(kind),
        kind => io::Error::new(kind, format!("cannot write to standard output: {error}")),
    }
}

/// Prints a reply of an interactive command to stderr. Unlike `eprintln!`, does not panic if stderr is closed.
pub fn reply(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Returns true if animations and progress bars are disabled.
pub fn is_simple() -> bool {
    style().is_simple
}

/// Returns true if output must not contain escape sequences.
pub fn is_plain(stream: Stream) -> bool {
    let (colors, is_terminal) = match stream {
        Stream::Out => (style().colors, io::stdout().is_terminal()),
        Stream::Err => (style().log_colors, io::stderr().is_terminal()),
    };
    let has_no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    match colors {
        Some(colors) => !colors,
        None => has_no_color || is_dumb || !is_terminal,
    }
}
