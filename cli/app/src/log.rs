//! Logging: prints `tracing` events of all crates of the project to stderr and, optionally, to a log file. Standard
//! output is reserved for results.

use std::fmt::{self, Debug};
use std::fs::File;
use std::io;
use std::sync::Mutex;
use std::time::Instant;

use serde_json::{Map, Value as Json};
use server::guard::REQUEST_TARGET;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::printable::printable;
use crate::terminal::{self, Stream};

/// Target of hints, which are dimmed on terminals.
pub const HINT: &str = "llama::hint";

/// Prefix of the targets of the command line (`llama_app`), the server, and the library. Events of other crates are not
/// printed.
const OURS: &str = "llama";

/// Prefix of the engine's targets.
const ENGINE: &str = "engine";

/// Logs a hint, dimmed on terminals.
macro_rules! hint {
    ($($arg:tt)+) => {
        tracing::info!(target: $crate::log::HINT, $($arg)+)
    };
}
pub(crate) use hint;

/// Destinations of the log.
#[derive(Debug)]
pub struct LogOptions {
    /// Log file; receives events of all levels.
    pub file: Option<File>,
    /// Maximum level printed to stderr.
    pub level: LevelFilter,
    pub format: LogFormat,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            file: None,
            level: LevelFilter::INFO,
            format: LogFormat::default(),
        }
    }
}

/// Format of the log.
#[derive(Clone, Copy, Debug)]
pub struct LogFormat {
    /// Write one JSON object per line.
    pub is_jsonl: bool,
    /// Prefix messages with a level letter.
    pub has_prefix: bool,
    /// Prefix messages with the seconds since startup.
    pub has_timestamps: bool,
    /// Dim hints.
    pub has_colors: bool,
    pub start: Instant,
}

impl Default for LogFormat {
    fn default() -> LogFormat {
        LogFormat {
            is_jsonl: false,
            has_prefix: false,
            has_timestamps: false,
            has_colors: false,
            start: Instant::now(),
        }
    }
}

/// Converts llama.cpp's verbosity: 0 and 1 errors, 2 warnings, 3 information, 4 and above everything.
pub fn level_of_number(n: u8) -> LevelFilter {
    match n {
        0 | 1 => LevelFilter::ERROR,
        2 => LevelFilter::WARN,
        3 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    }
}

/// Starts the log. Only the first call has an effect.
pub fn init(options: LogOptions) {
    // The command line prints the engine's warnings itself, so the engine's events only add details for debugging.
    let is_verbose = options.level >= LevelFilter::DEBUG;
    let is_ours = || {
        filter_fn(move |metadata: &Metadata<'_>| {
            metadata.target().starts_with(OURS) || is_verbose && metadata.target().starts_with(ENGINE)
        })
    };
    let to_file = options.file.map(|file| {
        let layer = tracing_subscriber::fmt::layer().event_format(options.format);
        // Write errors, such as a full disk, must not stop generation.
        let layer = layer.log_internal_errors(false).with_writer(Mutex::new(file));
        layer.with_filter(is_ours().and(LevelFilter::DEBUG))
    });
    let format = LogFormat {
        has_colors: !terminal::is_plain(Stream::Err),
        ..options.format
    };
    let layer = tracing_subscriber::fmt::layer().event_format(format);
    let layer = layer.log_internal_errors(false).with_writer(io::stderr);
    let to_stderr = layer.with_filter(is_ours().and(options.level));
    let subscriber = tracing_subscriber::registry().with(to_file).with(to_stderr);
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Message and fields of an event.
#[derive(Default)]
struct Record {
    message: String,
    fields: Map<String, Json>,
}

impl Record {
    fn set(&mut self, field: &Field, value: impl Into<Json>) {
        self.fields.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Record {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.to_owned(),
            _ => self.set(field, value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

impl LogFormat {
    /// Formats an event as a line, without the newline.
    fn line(&self, metadata: &Metadata<'_>, record: Record) -> String {
        let seconds = self.start.elapsed().as_secs_f64();
        let level = *metadata.level();
        if self.is_jsonl {
            let name = level.as_str().to_ascii_lowercase();
            let mut object = serde_json::json!({ "level": name, "message": record.message });
            if self.has_timestamps {
                object["seconds"] = seconds.into();
            }
            for (name, value) in record.fields {
                object[name] = value;
            }
            return object.to_string();
        }
        let mut line = String::new();
        if self.has_timestamps {
            line += &format!("{seconds:10.3} ");
        }
        if self.has_prefix {
            line += &format!("{} ", &level.as_str()[..1]);
        }
        if level == Level::ERROR {
            line += "error: ";
        } else if level == Level::WARN {
            line += "warning: ";
        }
        line += &record.message;
        // The message of a request record contains its fields.
        if metadata.target() != REQUEST_TARGET {
            for (name, value) in &record.fields {
                let space = if line.is_empty() || line.ends_with(' ') {
                    ""
                } else {
                    " "
                };
                line += &format!("{space}{name}={value}");
            }
        }
        line
    }
}

impl<S, N> FormatEvent<S, N> for LogFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut record = Record::default();
        event.record(&mut record);
        let line = self.line(event.metadata(), record);
        let line = printable(&line);
        if self.has_colors && !self.is_jsonl && event.metadata().target() == HINT {
            writeln!(out, "\x1b[2m{line}\x1b[0m")
        } else {
            writeln!(out, "{line}")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing::{error, info, warn};

    use super::*;

    /// Returns the log of the events that `emit` sends.
    fn logged(format: LogFormat, emit: impl FnOnce()) -> String {
        #[derive(Clone, Default)]
        struct Buffer(Arc<Mutex<Vec<u8>>>);

        impl io::Write for Buffer {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let buffer = Buffer::default();
        let writer = buffer.clone();
        let layer = tracing_subscriber::fmt::layer().event_format(format);
        let layer = layer.with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), emit);
        String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn log_lines_have_configured_format() {
        let log = |is_jsonl, has_prefix, has_timestamps| LogFormat {
            is_jsonl,
            has_prefix,
            has_timestamps,
            ..LogFormat::default()
        };
        let plain = log(false, false, false);
        assert_eq!(logged(plain, || info!("a")), "a\n");
        assert_eq!(logged(plain, || error!("a")), "error: a\n");
        assert_eq!(logged(log(false, true, false), || warn!("a")), "W warning: a\n");
        assert_eq!(logged(log(false, true, true), || info!("a")), "     0.000 I a\n");
        assert_eq!(
            logged(log(true, true, false), || info!("a \"b\"\n")),
            "{\"level\":\"info\",\"message\":\"a \\\"b\\\"\\n\"}\n"
        );
    }

    #[test]
    fn control_characters_are_escaped() {
        let emit = || info!(name = "\u{9b}2J", "arch \u{1b}[31mred\u{1b}[0m\nnext");
        let plain = LogFormat::default();
        assert_eq!(
            logged(plain, emit),
            "arch \\u001b[31mred\\u001b[0m\nnext name=\"\\u009b2J\"\n"
        );
        let json = LogFormat {
            is_jsonl: true,
            ..plain
        };
        let line = logged(json, emit);
        assert!(line.trim_end().chars().all(|c| !c.is_control()), "{line:?}");
        assert_eq!(serde_json::from_str::<Json>(&line).unwrap()["name"], "\u{9b}2J");
    }

    #[test]
    fn fields_follow_message() {
        let emit = || info!(n = 3, path = %"/a", is_new = true, "loaded");
        assert_eq!(
            logged(LogFormat::default(), emit),
            "loaded n=3 path=\"/a\" is_new=true\n"
        );
        let emit = || info!(target: REQUEST_TARGET, status = 200, "GET /a 200");
        assert_eq!(logged(LogFormat::default(), emit), "GET /a 200\n");
        let json = LogFormat {
            is_jsonl: true,
            ..LogFormat::default()
        };
        let line: Json = serde_json::from_str(&logged(json, emit)).unwrap();
        assert_eq!((&line["status"], &line["message"]), (&200.into(), &"GET /a 200".into()));
    }

    #[test]
    fn hints_are_dimmed_with_colors() {
        let format = LogFormat {
            has_colors: true,
            ..LogFormat::default()
        };
        assert_eq!(logged(format, || hint!("a")), "\x1b[2ma\x1b[0m\n");
        assert_eq!(logged(format, || info!("a")), "a\n");
    }

    #[test]
    fn levels_match_llama_cpp() {
        let levels: Vec<LevelFilter> = (0..=5).map(level_of_number).collect();
        assert!(levels.is_sorted());
        assert_eq!((levels[2], levels[5]), (LevelFilter::WARN, LevelFilter::DEBUG));
    }
}
