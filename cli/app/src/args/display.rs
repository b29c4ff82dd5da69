//! Arguments for terminal output and logging.

use std::fs::OpenOptions;
use std::path::PathBuf;

use clap::Args;
use tracing::level_filters::LevelFilter;

use super::values::Toggle;
use crate::failure::{Failure, Outcome};
use crate::log::{LogFormat, LogOptions, level_of_number};
use crate::terminal::OutputStyle;

/// Output options: statistics, prompt echo, colors, and verbosity.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct DisplayArgs {
    /// Hide the statistics line
    #[arg(long, alias = "no-show-timings", alias = "no-perf", help_heading = None)]
    pub no_stats: bool,
    /// Print statistics after each response (default)
    #[arg(
        long,
        alias = "show-timings",
        alias = "perf",
        overrides_with = "no_stats",
        hide_short_help = true
    )]
    pub stats: bool,
    /// Print Markdown source instead of rendering it on the terminal
    #[arg(long, hide_short_help = true)]
    pub no_markdown: bool,
    /// Print the prompt before the response
    #[arg(long, overrides_with = "no_display_prompt", hide_short_help = true)]
    pub display_prompt: bool,
    /// Do not print the prompt (default)
    #[arg(long, hide_short_help = true)]
    pub no_display_prompt: bool,
    /// Print the prompt's tokens to stderr before the response
    #[arg(long, hide_short_help = true)]
    pub verbose_prompt: bool,
    /// Print special tokens by name in the output
    #[arg(long, hide_short_help = true)]
    pub special: bool,
    /// Colored output (-co)
    ///
    /// `auto` uses colors on terminals unless NO_COLOR is set.
    #[arg(
        long,
        value_name = "MODE",
        ignore_case = true,
        default_value = "auto",
        hide_short_help = true
    )]
    pub color: Toggle,
    /// Read chat input as plain lines, without editor, colors, or animations
    #[arg(long, hide_short_help = true)]
    pub simple_io: bool,
    /// Print model-loading details to stderr
    #[arg(short, long, alias = "log-verbose", help_heading = None)]
    pub verbose: bool,
    /// Log level (-lv): 1 errors, 2 warnings, 3 progress, 4 details (like -v)
    #[arg(
        long,
        value_name = "N",
        alias = "log-verbosity",
        default_value_t = 3,
        hide_short_help = true
    )]
    pub verbosity: u8,
    /// Log errors only
    #[arg(long, hide_short_help = true)]
    pub log_disable: bool,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Logging options.
#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// File to append all log messages to
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub log_file: Option<PathBuf>,
    /// Log JSON objects, one per line
    #[arg(long, overrides_with = "no_log_jsonl", hide_short_help = true)]
    pub log_jsonl: bool,
    /// Log plain lines (default)
    #[arg(long, hide_short_help = true)]
    pub no_log_jsonl: bool,
    /// Prefix log messages with a level letter
    #[arg(long, overrides_with = "no_log_prefix", hide_short_help = true)]
    pub log_prefix: bool,
    /// Do not prefix log messages with a level letter (default)
    #[arg(long, hide_short_help = true)]
    pub no_log_prefix: bool,
    /// Prefix log messages with the seconds since startup
    #[arg(long, overrides_with = "no_log_timestamps", hide_short_help = true)]
    pub log_timestamps: bool,
    /// Do not prefix log messages with timestamps (default)
    #[arg(long, hide_short_help = true)]
    pub no_log_timestamps: bool,
    /// Colored log messages
    #[arg(
        long,
        value_name = "MODE",
        ignore_case = true,
        default_value = "auto",
        hide_short_help = true
    )]
    pub log_colors: Toggle,
}

impl DisplayArgs {
    /// Opens the log that these options describe.
    pub fn log(&self) -> Outcome<LogOptions> {
        let level = if self.log_disable {
            LevelFilter::ERROR
        } else if self.verbose {
            LevelFilter::DEBUG
        } else {
            level_of_number(self.verbosity)
        };
        Ok(LogOptions {
            level,
            ..self.log.log()?
        })
    }

    /// Returns the style of the output.
    pub fn style(&self) -> OutputStyle {
        if self.simple_io {
            return OutputStyle {
                colors: Some(false),
                log_colors: Some(false),
                is_simple: true,
            };
        }
        OutputStyle {
            colors: self.color.choice(),
            ..self.log.style()
        }
    }
}

impl LogArgs {
    /// Opens the log, with progress messages enabled.
    pub fn log(&self) -> Outcome<LogOptions> {
        let file = match &self.log_file {
            Some(path) => {
                let cannot = |e| Failure::new(format_args!("--log-file {}: {e}", path.display()));
                let file = OpenOptions::new().append(true).create(true).open(path);
                Some(file.map_err(cannot)?)
            }
            None => None,
        };
        Ok(LogOptions {
            file,
            level: LevelFilter::INFO,
            format: LogFormat {
                is_jsonl: self.log_jsonl,
                has_prefix: self.log_prefix,
                has_timestamps: self.log_timestamps,
                ..LogFormat::default()
            },
        })
    }

    /// Returns the style of the log.
    pub fn style(&self) -> OutputStyle {
        OutputStyle {
            log_colors: self.log_colors.choice(),
            ..OutputStyle::default()
        }
    }
}
