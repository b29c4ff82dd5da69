//! Arguments of `llama run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::args::{
    AdapterArgs, ContextArgs, DisplayArgs, GrammarArgs, HubArgs, LoadArgs, MediaArgs, SamplerArgs, SpeculationArgs,
    TemplateArgs, TextBiasArgs,
};
use crate::input;

/// Arguments of `llama run`.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = RUN_NOTES)]
pub struct RunArgs {
    /// GGUF file or model name, such as qwen3:0.6b or user/repo:Q4_K_M
    ///
    /// Without a model, the default model is used. It is downloaded on first use.
    #[arg(value_name = "MODEL")]
    pub first: Option<OsString>,
    /// Prompt to answer
    ///
    /// Without a prompt, `llama run` reads standard input, or starts a chat if standard input is a terminal.
    #[arg(value_name = "PROMPT")]
    pub second: Option<OsString>,
    /// GGUF file or model name; replaces MODEL
    #[arg(short, long, value_name = "FILE|NAME")]
    pub model: Option<PathBuf>,
    /// Prompt to answer; replaces PROMPT
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// File to append to the prompt; `-` reads standard input
    #[arg(short, long, value_name = "FILE", alias = "prompt-file")]
    pub file: Option<PathBuf>,
    /// Like --file, but keep the trailing newline (-bf)
    #[arg(long, value_name = "FILE", conflicts_with = "file", hide_short_help = true)]
    pub binary_file: Option<PathBuf>,
    /// Maximum tokens to generate (-1: unlimited, -2: fill the context) [default: 2048]
    #[arg(short = 'n', long, value_name = "N", alias = "n-predict", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-2..))]
    pub predict: Option<i64>,
    /// When the context is full, drop the older half and continue
    #[arg(long, overrides_with = "no_context_shift", hide_short_help = true)]
    pub context_shift: bool,
    /// Stop when the context is full (default)
    #[arg(long, hide_short_help = true)]
    pub no_context_shift: bool,
    /// Prompt tokens that --context-shift never drops; -1: the whole prompt
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, hide_short_help = true,
          value_parser = clap::value_parser!(i64).range(-1..))]
    pub keep: i64,
    /// Keep generating even if the output loops
    #[arg(long, alias = "allow-loops", hide_short_help = true)]
    pub no_loop_detection: bool,
    /// System prompt
    #[arg(long, value_name = "TEXT", alias = "system-prompt")]
    pub system: Option<String>,
    /// File with the system prompt (-sysf)
    #[arg(
        long,
        value_name = "FILE",
        alias = "system-prompt-file",
        conflicts_with = "system",
        hide_short_help = true
    )]
    pub system_file: Option<PathBuf>,
    /// Stop generating before this string (may be repeated)
    #[arg(short, long, value_name = "TEXT", hide_short_help = true)]
    pub reverse_prompt: Vec<String>,
    /// Ignore end-of-sequence tokens and keep generating
    #[arg(long, conflicts_with = "grammar_flags", hide_short_help = true)]
    pub ignore_eos: bool,
    #[command(flatten)]
    pub template: TemplateArgs,
    /// Complete the prompt without applying the chat template (-no-cnv)
    #[arg(long, alias = "no-conversation", conflicts_with_all = ["chat_template", "chat_template_file"])]
    pub raw: bool,
    /// Continue as a chat after the first response (-cnv)
    #[arg(long, hide_short_help = true)]
    pub conversation: bool,
    /// Exit after the first response, even in a chat (-st)
    #[arg(long, conflicts_with = "conversation", hide_short_help = true)]
    pub single_turn: bool,
    /// Process escape sequences in --prompt and --system
    ///
    /// Supported sequences: \n, \r, \t, \", \', \\ and \xHH.
    #[arg(short, long, overrides_with = "no_escape", hide_short_help = true)]
    pub escape: bool,
    /// Do not process escape sequences (default)
    #[arg(long, hide_short_help = true)]
    pub no_escape: bool,
    /// Number of tokens that a chat with a recurrent model can rewind
    ///
    /// A chat rewinds when the next turn shares only part of the previous context. Without checkpoints, the
    /// whole prompt is processed again. Each checkpoint takes the memory of one recurrent state.
    #[arg(long, alias = "rollback", value_name = "N", default_value_t = 0, hide_short_help = true, value_parser = clap::value_parser!(u16).range(..=1024))]
    pub state_checkpoints: u16,
    /// File that caches the computed context, loaded at startup and saved at exit
    ///
    /// A chat also saves its messages to FILE.messages.json and resumes from them.
    #[arg(long, alias = "session", value_name = "FILE", hide_short_help = true)]
    pub prompt_cache: Option<PathBuf>,
    /// Do not update the prompt cache file
    #[arg(long, alias = "session-read-only", requires = "prompt_cache", hide_short_help = true)]
    pub prompt_cache_ro: bool,
    #[command(flatten)]
    pub display: DisplayArgs,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub media: MediaArgs,
    #[command(flatten)]
    pub adapters: AdapterArgs,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub grammar: GrammarArgs,
    #[command(flatten)]
    pub sampler: SamplerArgs,
    #[command(flatten)]
    pub text_bias: TextBiasArgs,
}

impl RunArgs {
    /// Returns text from the command line, with escape sequences replaced if --escape is given.
    pub fn text(&self, text: &str) -> String {
        if self.escape {
            input::unescaped(text)
        } else {
            text.to_owned()
        }
    }
}

const RUN_NOTES: &str = "The first argument is the model if it is an existing file, a path, FILE.gguf, or a name accepted by `llama pull`. Otherwise, it is the prompt.";
