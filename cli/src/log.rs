//! Logging to stderr and, optionally, to a log file. Standard output is reserved for results.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Instant;

/// Log destination and format.
#[derive(Debug)]
pub struct Log {
    /// Log file; receives messages of all levels.
    pub file: Option<File>,
    /// Maximum level printed to stderr.
    pub level: Level,
    /// Write one JSON object per line.
    pub is_jsonl: bool,
    /// Prefix messages with a level letter.
    pub has_prefix: bool,
    /// Prefix messages with the seconds since startup.
    pub has_timestamps: bool,
    /// Colors on standard output; `None` enables them on capable terminals.
    pub colors: Option<bool>,
    /// Colors on stderr; `None` enables them on capable terminals.
    pub log_colors: Option<bool>,
    /// Disable animations and progress bars.
    pub is_simple: bool,
    pub start: Instant,
}

/// Severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Requested output, and errors.
    Always,
    Warning,
    Info,
    /// Details about loading.
    Verbose,
}

impl Level {
    /// Converts llama.cpp's verbosity: 0 and 1 errors, 2 warnings, 3 information, 4 and above everything.
    pub fn of_number(n: u8) -> Level {
        match n {
            0 | 1 => Level::Always,
            2 => Level::Warning,
            3 => Level::Info,
            _ => Level::Verbose,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Level::Always => "message",
            Level::Warning => "warning",
            Level::Info => "info",
            Level::Verbose => "verbose",
        }
    }
}

/// Standard stream that may be a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, for results.
    Out,
    /// Standard error, for messages.
    Err,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Sets the log configuration. Only the first call has an effect.
pub fn init(log: Log) {
    let _ = LOG.set(log);
}

/// Prints a line. Unlike `eprintln!`, it does not panic if stderr is closed.
pub fn line(text: impl Display) {
    let text = text.to_string();
    let level = if text.starts_with("warning: ") {
        Level::Warning
    } else {
        Level::Always
    };
    write(&text, level, false);
}

/// Prints an event as a line. In JSON logs, `fields` are part of the object.
pub fn event(text: impl Display, fields: serde_json::Map<String, serde_json::Value>) {
    write_with(&text.to_string(), Level::Always, false, fields);
}

/// Prints a hint, dimmed on terminals.
pub fn hint(text: impl Display) {
    write(&text.to_string(), Level::Info, true);
}

/// Prints a line if the log is verbose.
pub fn detail(text: impl Display) {
    write(&text.to_string(), Level::Verbose, false);
}

/// Returns true if animations and progress bars are disabled.
pub fn is_simple() -> bool {
    LOG.get().is_some_and(|log| log.is_simple)
}

/// Returns true if messages of this level are printed.
pub fn is_shown(level: Level) -> bool {
    LOG.get().is_some_and(|log| log.level >= level)
}

fn write(text: &str, level: Level, is_dim: bool) {
    write_with(text, level, is_dim, serde_json::Map::new());
}

fn write_with(text: &str, level: Level, is_dim: bool, fields: serde_json::Map<String, serde_json::Value>) {
    let Some(log) = LOG.get() else {
        let _ = writeln!(io::stderr(), "{text}");
        return;
    };
    let line = log.line(text, level, fields);
    if let Some(mut file) = log.file.as_ref() {
        // Write errors, such as a full disk, must not stop generation.
        let _ = writeln!(file, "{line}");
    }
    if log.level < level {
        return;
    }
    let _ = match is_dim && !log.is_jsonl && !is_plain(Stream::Err) {
        true => writeln!(io::stderr(), "\x1b[2m{line}\x1b[0m"),
        false => writeln!(io::stderr(), "{line}"),
    };
}

impl Log {
    fn line(&self, text: &str, level: Level, fields: serde_json::Map<String, serde_json::Value>) -> String {
        let seconds = self.start.elapsed().as_secs_f64();
        if self.is_jsonl {
            let mut object = serde_json::json!({ "level": level.name(), "message": text });
            if self.has_timestamps {
                object["seconds"] = seconds.into();
            }
            object
                .as_object_mut()
                .into_iter()
                .for_each(|all| all.extend(fields.clone()));
            return object.to_string();
        }
        let mut line = String::new();
        if self.has_timestamps {
            line += &format!("{seconds:10.3} ");
        }
        if self.has_prefix {
            line += &format!("{} ", &level.name()[..1].to_ascii_uppercase());
        }
        line + text
    }
}

/// Returns true if output must not contain escape sequences.
pub fn is_plain(stream: Stream) -> bool {
    let log = LOG.get();
    let (chosen, is_terminal) = match stream {
        Stream::Out => (log.and_then(|log| log.colors), io::stdout().is_terminal()),
        Stream::Err => (log.and_then(|log| log.log_colors), io::stderr().is_terminal()),
    };
    let has_no_color = || std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    chosen.map_or_else(|| has_no_color() || !is_terminal, |colors| !colors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_have_configured_format() {
        let log = |is_jsonl, has_prefix, has_timestamps| Log {
            file: None,
            level: Level::Info,
            is_jsonl,
            has_prefix,
            has_timestamps,
            colors: None,
            log_colors: None,
            is_simple: false,
            start: Instant::now(),
        };
        let none = serde_json::Map::new;
        assert_eq!(log(false, false, false).line("a", Level::Info, none()), "a");
        assert_eq!(log(false, true, false).line("a", Level::Warning, none()), "W a");
        assert_eq!(log(false, true, true).line("a", Level::Info, none()), "     0.000 I a");
        assert_eq!(
            log(true, true, false).line("a \"b\"\n", Level::Always, none()),
            r#"{"level":"message","message":"a \"b\"\n"}"#
        );
    }

    #[test]
    fn levels_match_llama_cpp() {
        let levels: Vec<Level> = (0..=5).map(Level::of_number).collect();
        assert!(levels.is_sorted());
        assert_eq!((levels[2], levels[5]), (Level::Warning, Level::Verbose));
    }
}
