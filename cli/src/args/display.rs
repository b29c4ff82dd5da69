//! The flags of what is shown: of the prompt, the answer and messages about both.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use crate::failure::{Failure, Outcome};
use crate::say::{Level, Log};

/// What is shown besides an answer, and how.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct DisplayArgs {
    /// Hide the line of statistics
    #[arg(long, alias = "no-show-timings", alias = "no-perf", help_heading = None)]
    pub no_stats: bool,
    /// Show it after each answer: the default
    #[arg(
        long,
        alias = "show-timings",
        alias = "perf",
        overrides_with = "no_stats",
        hide_short_help = true
    )]
    pub stats: bool,
    /// Show an answer's markdown as it is; on terminals it is coloured and wrapped otherwise
    #[arg(long, hide_short_help = true)]
    pub no_markdown: bool,
    /// Print the prompt before the answer
    #[arg(long, overrides_with = "no_display_prompt", hide_short_help = true)]
    pub display_prompt: bool,
    /// Leave it out: the default
    #[arg(long, hide_short_help = true)]
    pub no_display_prompt: bool,
    /// Print the tokens of the prompt on stderr before the answer
    #[arg(long, hide_short_help = true)]
    pub verbose_prompt: bool,
    /// Print the names of special tokens where an answer has some
    #[arg(long, hide_short_help = true)]
    pub special: bool,
    /// Colours (-co): on, off or auto, on terminals unless NO_COLOR is set
    #[arg(long, value_name = "HOW", value_parser = ["on", "off", "auto"], default_value = "auto", hide_short_help = true)]
    pub color: String,
    /// Read the lines of a chat from standard input as they come, without an editor, colours or moving text
    #[arg(long, hide_short_help = true)]
    pub simple_io: bool,
    /// Tell on stderr what is loaded and how
    #[arg(short, long, alias = "log-verbose", help_heading = None)]
    pub verbose: bool,
    /// How much to tell (-lv): 1 errors, 2 warnings too, 3 how it goes, 4 as -v does
    #[arg(
        long,
        value_name = "N",
        alias = "log-verbosity",
        default_value_t = 3,
        hide_short_help = true
    )]
    pub verbosity: u8,
    /// Tell errors only
    #[arg(long, hide_short_help = true)]
    pub log_disable: bool,
    /// How messages are written
    #[command(flatten)]
    pub log: LogArgs,
}

/// How messages are written.
#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// File that all messages are added to
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub log_file: Option<PathBuf>,
    /// Messages are JSON objects, one in each line
    #[arg(long, overrides_with = "no_log_jsonl", hide_short_help = true)]
    pub log_jsonl: bool,
    /// Messages are text: the default
    #[arg(long, hide_short_help = true)]
    pub no_log_jsonl: bool,
    /// Messages begin with a letter for their level
    #[arg(long, overrides_with = "no_log_prefix", hide_short_help = true)]
    pub log_prefix: bool,
    /// They do not: the default
    #[arg(long, hide_short_help = true)]
    pub no_log_prefix: bool,
    /// Messages begin with the seconds since the start
    #[arg(long, overrides_with = "no_log_timestamps", hide_short_help = true)]
    pub log_timestamps: bool,
    /// They do not: the default
    #[arg(long, hide_short_help = true)]
    pub no_log_timestamps: bool,
    /// Colours of messages: on, off or auto
    #[arg(long, value_name = "HOW", value_parser = ["on", "off", "auto"], default_value = "auto", hide_short_help = true)]
    pub log_colors: String,
}

impl DisplayArgs {
    /// Where messages go, from here on.
    pub fn log(&self) -> Outcome<Log> {
        let plain = |colors: Option<bool>| if self.simple_io { Some(false) } else { colors };
        let log = self.log.log()?;
        Ok(Log {
            level: match (self.log_disable, self.verbose) {
                (true, _) => Level::Always,
                (false, true) => Level::Verbose,
                (false, false) => Level::of_number(self.verbosity),
            },
            colors: plain(chosen(&self.color)),
            log_colors: plain(log.log_colors),
            is_simple: self.simple_io,
            ..log
        })
    }
}

/// Whether there are colours, if that was said.
fn chosen(how: &str) -> Option<bool> {
    match how {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

impl LogArgs {
    /// Where messages go, from here on, down to how it goes.
    pub fn log(&self) -> Outcome<Log> {
        let file = match &self.log_file {
            Some(path) => {
                let cannot = |e| Failure::new(format_args!("--log-file {}: {e}", path.display()));
                let file = OpenOptions::new().append(true).create(true).open(path);
                Some(file.map_err(cannot)?)
            }
            None => None,
        };
        Ok(Log {
            file,
            level: Level::Info,
            is_jsonl: self.log_jsonl,
            has_prefix: self.log_prefix,
            has_timestamps: self.log_timestamps,
            colors: None,
            log_colors: chosen(&self.log_colors),
            is_simple: false,
            start: Instant::now(),
        })
    }
}
