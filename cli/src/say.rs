//! What the program itself has to say goes to stderr, and to a log file if one is asked for: standard output is for what was asked for.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Instant;

/// Where messages go, and what is said with them.
#[derive(Debug)]
pub struct Log {
    /// Everything is written here too, whatever the level.
    pub file: Option<File>,
    /// The greatest level that is shown.
    pub level: Level,
    /// Each message is a JSON object of its own line.
    pub is_jsonl: bool,
    /// Messages begin with the letter of their level.
    pub has_prefix: bool,
    /// Messages begin with the seconds since the start.
    pub has_timestamps: bool,
    /// Colours of standard output; `None` where it is a terminal that takes them.
    pub colors: Option<bool>,
    /// The same of messages.
    pub log_colors: Option<bool>,
    /// Nothing moves on the screen.
    pub is_simple: bool,
    /// When the program started.
    pub start: Instant,
}

/// How much a message matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What a user has asked for, and why a command fails.
    Always,
    /// What may go wrong.
    Warning,
    /// How it goes.
    Info,
    /// What is loaded and how.
    Verbose,
}

impl Level {
    /// As llama.cpp counts: 0 and 1 are errors, 2 warnings, 3 how it goes, 4 and more all.
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

/// A stream that people may be reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output: what was asked for.
    Out,
    /// Standard error: messages.
    Err,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Decides once and for all how messages are written.
pub fn set_log(log: Log) {
    let _ = LOG.set(log);
}

/// A line. Unlike `eprintln!` it does not panic when nobody can read it.
pub fn line(text: impl Display) {
    let text = text.to_string();
    let level = if text.starts_with("warning: ") {
        Level::Warning
    } else {
        Level::Always
    };
    write(&text, level, false);
}

/// What happened, as a line, with what is to be read by programs where messages are objects.
pub fn record(text: impl Display, fields: serde_json::Map<String, serde_json::Value>) {
    write_with(&text.to_string(), Level::Always, false, fields);
}

/// A line beside the matter: dimmed on a terminal.
pub fn aside(text: impl Display) {
    write(&text.to_string(), Level::Info, true);
}

/// A line for those who want to know more.
pub fn detail(text: impl Display) {
    write(&text.to_string(), Level::Verbose, false);
}

/// True if nothing may move on the screen.
pub fn is_simple() -> bool {
    LOG.get().is_some_and(|log| log.is_simple)
}

/// True if such messages are shown.
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
        // A full disk is no reason to stop an answer.
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

/// True where nothing but text is wanted: no terminal, one without colours, or colours switched off.
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
    fn messages_have_the_form_that_is_asked_for() {
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
    fn levels_are_counted_as_elsewhere() {
        let levels: Vec<Level> = (0..=5).map(Level::of_number).collect();
        assert!(levels.is_sorted());
        assert_eq!((levels[2], levels[5]), (Level::Warning, Level::Verbose));
    }
}
