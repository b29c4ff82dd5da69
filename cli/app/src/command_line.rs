//! The command line: all commands with their arguments.

use clap::{CommandFactory, Parser, Subcommand};

use crate::args::LoadArgs;
use crate::commands;
use crate::commands::arch::ArchArgs;
use crate::commands::batch::BatchArgs;
use crate::commands::bench::args::BenchArgs;
use crate::commands::convert::ConvertArgs;
use crate::commands::cvector::CvectorArgs;
use crate::commands::devices::DevicesArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::embed::EmbedArgs;
use crate::commands::encode::EncodeArgs;
use crate::commands::generate::{CompletionsArgs, ManArgs};
use crate::commands::gguf::GgufArgs;
use crate::commands::imatrix::ImatrixArgs;
use crate::commands::inspect::InspectArgs;
use crate::commands::logits::LogitsArgs;
use crate::commands::lora::{ConvertLoraArgs, ExportLoraArgs};
use crate::commands::models::{ListArgs, PsArgs, PullArgs, RmArgs};
use crate::commands::perplexity::PerplexityArgs;
use crate::commands::quantize::QuantizeArgs;
use crate::commands::run::args::RunArgs;
use crate::commands::serve::args::ServeArgs;
use crate::commands::synth::SynthArgs;
use crate::commands::tokenize::TokenizeArgs;
use crate::commands::transcribe::TranscribeArgs;
use crate::failure::Outcome;
use crate::log::LogOptions;
use crate::terminal::OutputStyle;

/// Run language models from GGUF files
#[derive(Debug, Parser)]
#[command(name = "llama", version, args_override_self = true, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Returns the declared command line. Options take negative numbers as values, so that the error of a value below
    /// the range names the range.
    pub fn program() -> clap::Command {
        let command = with_negative_numbers(Cli::command());
        // `clap` would print one word per line.
        match std::env::var("COLUMNS").as_deref() {
            Ok("0") => command.term_width(DEFAULT_WIDTH),
            _ => command,
        }
    }
}

/// Width of help texts if the width of the terminal is unknown, as in `clap`.
const DEFAULT_WIDTH: usize = 100;

fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let is_option = |arg: &clap::Arg| !arg.is_positional() && arg.get_action().takes_values();
    command
        .mut_args(|arg| {
            let allows = arg.is_allow_negative_numbers_set() || is_option(&arg);
            arg.allow_negative_numbers(allows)
        })
        .mut_subcommands(with_negative_numbers)
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one value per process")]
pub enum Command {
    /// Answer a prompt, or start a chat if no prompt is given
    #[command(visible_alias = "cli")]
    Run(RunArgs),
    /// Serve models over the OpenAI, Anthropic, Ollama, and llama-server APIs
    #[command(visible_alias = "server")]
    Serve(ServeArgs),
    /// Process a JSONL file of requests in parallel
    Batch(BatchArgs),
    /// Show the metadata and tensors of a GGUF file
    #[command(visible_alias = "show")]
    Inspect(InspectArgs),
    /// Compute embeddings, compare texts, or rerank documents
    Embed(EmbedArgs),
    /// Write the rows of an image or of audio, which a language model reads like token embeddings
    Encode(EncodeArgs),
    /// Write down the speech of audio files
    Transcribe(TranscribeArgs),
    /// Tokenize a string
    Tokenize(TokenizeArgs),
    /// List, show, and check model architectures
    Arch(ArchArgs),
    /// Write the logits of every position of a token sequence to a file
    Logits(LogitsArgs),
    /// Benchmark prefill and decoding
    Bench(BenchArgs),
    /// Split, merge, edit, compare, and check GGUF files
    Gguf(GgufArgs),
    /// Measure perplexity, divergence from another model, or the accuracy of multiple-choice tasks
    Perplexity(PerplexityArgs),
    /// Measure the importance of weights for `llama quantize --imatrix`
    Imatrix(ImatrixArgs),
    /// Write a model file from a published checkpoint (safetensors)
    Convert(ConvertArgs),
    /// Write a model file with weights in smaller types
    Quantize(QuantizeArgs),
    /// Write a LoRA adapter from one that the PEFT library has saved
    ConvertLora(ConvertLoraArgs),
    /// Write a model file with LoRA adapters merged into the weights
    ExportLora(ExportLoraArgs),
    /// Derive a control vector from pairs of contrasting prompts
    Cvector(CvectorArgs),
    /// Write a model file with random weights, for benchmarks
    Synth(SynthArgs),
    /// Download models
    Pull(PullArgs),
    /// List local models
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Remove downloaded models
    Rm(RmArgs),
    /// List running llama processes and their models
    Ps(PsArgs),
    /// List available devices, and why others are unavailable
    Devices(DevicesArgs),
    /// Report this machine's capabilities and how a model would run on it
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write man pages
    #[command(hide = true)]
    Man(ManArgs),
    /// Print the Markdown reference of all commands
    #[command(hide = true)]
    Reference,
}

impl Command {
    /// Returns the style of the output.
    pub fn style(&self) -> OutputStyle {
        match self {
            Command::Run(args) => args.display.style(),
            Command::Serve(args) => args.log.style(),
            _ => OutputStyle::default(),
        }
    }

    /// Returns the options for loading a model, if the command computes with one.
    pub fn load(&self) -> Option<&LoadArgs> {
        match self {
            Command::Run(args) => Some(&args.load),
            Command::Serve(args) => Some(&args.serving.load),
            Command::Batch(args) => Some(&args.serving.load),
            Command::Embed(args) => Some(&args.load),
            Command::Encode(args) => Some(&args.load),
            Command::Transcribe(args) => Some(&args.load),
            Command::Logits(args) => Some(&args.load),
            Command::Bench(args) => Some(&args.load),
            Command::Perplexity(args) => Some(&args.load),
            Command::Imatrix(args) => Some(&args.load),
            Command::Cvector(args) => Some(&args.load),
            _ => None,
        }
    }

    /// Returns the options of the log, with the opened log file.
    pub fn log(&self) -> Outcome<LogOptions> {
        match self {
            Command::Run(args) => args.display.log(),
            Command::Serve(args) => args.log.log(),
            _ => Ok(LogOptions::default()),
        }
    }
}

/// Runs a command.
pub fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Arch(args) => commands::arch::run(&args),
        Command::Gguf(args) => commands::gguf::run(&args),
        Command::Reference => commands::reference::run(Cli::command()),
        Command::Completions(args) => commands::generate::completions(&args, Cli::command()),
        Command::Man(args) => commands::generate::man(&args, Cli::command()),
        Command::Run(args) => commands::run::run(&args),
        Command::Serve(args) => commands::serve::run(args, Cli::program()),
        Command::Batch(args) => commands::batch::run(&args),
        Command::Tokenize(args) => commands::tokenize::run(&args),
        Command::Embed(args) => commands::embed::run(&args),
        Command::Encode(args) => commands::encode::run(&args),
        Command::Transcribe(args) => commands::transcribe::run(&args),
        Command::Logits(args) => commands::logits::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Pull(args) => commands::models::pull(&args),
        Command::List(args) => commands::models::list(&args),
        Command::Rm(args) => commands::models::rm(&args),
        Command::Ps(args) => commands::models::ps(&args),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Perplexity(args) => commands::perplexity::run(&args),
        Command::Imatrix(args) => commands::imatrix::run(&args),
        Command::Convert(args) => commands::convert::run(&args),
        Command::Quantize(args) => commands::quantize::run(&args),
        Command::ConvertLora(args) => commands::lora::convert(&args),
        Command::ExportLora(args) => commands::lora::export(&args),
        Command::Cvector(args) => commands::cvector::run(&args),
        Command::Synth(args) => commands::synth::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::arch::draw::Drawing;

    #[test]
    fn clap_declaration_is_valid() {
        Cli::program().debug_assert();
    }

    #[test]
    fn old_flag_spellings_equal_new_ones() {
        for (command, old, new) in [
            ("run", &["--allow-loops"][..], &["--no-loop-detection"][..]),
            ("run", &["--rollback", "3"], &["--state-checkpoints", "3"]),
            ("run", &["--session", "s"], &["--prompt-cache", "s"]),
            (
                "run",
                &["--session", "s", "--session-read-only"],
                &["--prompt-cache", "s", "--prompt-cache-ro"],
            ),
            ("run", &["--lookup"], &["--prompt-lookup"]),
            ("serve", &["--lookup"], &["--prompt-lookup"]),
            ("serve", &["--max-waiting", "7"], &["--max-queue", "7"]),
            ("serve", &["--prompt-step", "50"], &["--prefill-budget-ms", "50"]),
            ("serve", &["--drain", "5"], &["--shutdown-timeout", "5"]),
        ] {
            let parse = |args: &[&str]| {
                let line = [&["llama", command], args].concat();
                let cli = Cli::try_parse_from(line).unwrap_or_else(|e| panic!("{args:?}: {e}"));
                format!("{:?}", cli.command)
            };
            assert_eq!(parse(old), parse(new), "{old:?}");
            assert_ne!(parse(old), parse(&[]), "{old:?}");
            let mut program = Cli::command();
            let command = program.find_subcommand_mut(command).expect("the command exists");
            let help = command.render_long_help().to_string();
            assert!(
                !help.contains(&format!("{} ", old[0])) && help.contains(new[0]),
                "{old:?}"
            );
        }
    }

    #[test]
    fn arch_prefers_subcommands_over_architecture_names() {
        let arch = |args: &[&str]| {
            let args = ["llama", "arch"].iter().chain(args);
            match Cli::try_parse_from(args).map(|cli| cli.command) {
                Ok(Command::Arch(args)) => Some(args),
                _ => None,
            }
        };
        assert!(arch(&[]).is_some_and(|a| a.name.is_none() && a.command.is_none()));
        assert!(arch(&["qwen3", "--draw", "dot"]).is_some_and(|a| a.draw == Some(Drawing::Dot)));
        assert!(arch(&["list"]).is_some_and(|a| a.command.is_some()));
        assert!(arch(&["--draw", "dot"]).is_none(), "--draw requires an architecture");
    }
}
