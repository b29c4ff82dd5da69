//! `llama tokenize`: prints the tokens of a text.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use engine::gguf::FileKind;
use engine::sample::Token;
use engine::vocab::Vocab;

use crate::args::HubArgs;
use crate::checkpoints;
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::fetch;
use crate::input;
use crate::loading::check_kind;
use crate::naming::model_and_texts;

/// Arguments of `llama tokenize`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct TokenizeArgs {
    /// GGUF file; only its metadata is read [default: the default model]
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// GGUF file, unless -m is given
    #[arg(value_name = "MODEL", allow_hyphen_values = true)]
    pub first: Option<OsString>,
    /// String to tokenize [default: standard input]
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    pub second: Option<OsString>,
    /// String to tokenize; replaces TEXT
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Print only token ids, separated by commas
    #[arg(long)]
    pub ids: bool,
    /// Do not add BOS and EOS tokens
    #[arg(long)]
    pub no_bos: bool,
    /// Treat the names of special tokens as plain text
    #[arg(long)]
    pub no_parse_special: bool,
    /// Combine --no-bos and --no-parse-special
    #[arg(long)]
    pub no_special: bool,
    #[command(flatten)]
    pub hub: HubArgs,
}

pub fn run(args: &TokenizeArgs) -> Outcome {
    let words = args.first.iter().chain(&args.second).cloned().collect();
    let (model, texts) = model_and_texts(args.model.as_deref(), &args.hub, words)?;
    let mut texts = texts.into_iter().chain(args.prompt.clone());
    let text = texts.next();
    if let Some(second) = texts.next() {
        return Err(Failure::new(format_args!(
            "unexpected argument {second:?}: only one text can be tokenized"
        )));
    }
    let path = fetch::model(model.as_deref(), &args.hub)?;
    let header = checkpoints::header(&path, "auto")?;
    check_kind(&path, &header, &[FileKind::Model, FileKind::Vocabulary])?;
    let vocab = Vocab::load(&header).map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))?;
    let text = match text {
        Some(text) => text,
        None => input::whole_standard_input()?,
    };
    let add_special = !(args.no_bos || args.no_special);
    let parse_special = !(args.no_parse_special || args.no_special);
    let tokens = vocab.tokenize(&text, add_special, parse_special);
    let mut out = stdout();
    if args.ids {
        let ids: Vec<_> = tokens.iter().map(Token::to_string).collect();
        writeln!(out, "{}", ids.join(","))?;
    } else {
        for &token in &tokens {
            let piece = String::from_utf8_lossy(vocab.token_to_piece(token, true)).into_owned();
            writeln!(out, "{token:>8}  {piece:?}")?;
        }
    }
    Ok(out.flush()?)
}
