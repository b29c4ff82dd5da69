//! `llama logits`: writes the logits of every position in the format of recorded results.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use engine::conformance::{context_for, logits_of};
use engine::context::ContextParams;
use engine::finite::check_finite;
use engine::gguf::logits::Logits;
use engine::sample::Token;

use crate::args::{AdapterArgs, ComputeArgs, HubArgs, LoadArgs, ModelArgs, UbatchSizeArgs};
use crate::failure::{Failure, Outcome};
use crate::loading::warn_of_threads;
use crate::{input, output};

/// Arguments of `llama logits`.
#[derive(Debug, Args)]
#[command(args_override_self = true, group = clap::ArgGroup::new("sequence").required(true))]
pub struct LogitsArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Token ids, separated by commas or whitespace
    #[arg(long, value_name = "IDS", group = "sequence")]
    pub tokens: Option<String>,
    /// File of token ids, separated by commas or whitespace; `-` reads standard input
    #[arg(long, value_name = "FILE", group = "sequence")]
    pub tokens_file: Option<PathBuf>,
    /// Output file: u32 n_tokens, u32 n_vocab, i32 tokens, f32 logits (little-endian)
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub adapters: AdapterArgs,
    #[command(flatten)]
    pub ubatch: UbatchSizeArgs,
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// Decodes the tokens and writes their logits.
pub fn run(args: &LogitsArgs) -> Outcome {
    output::check(&args.output)?;
    let text = match (&args.tokens, &args.tokens_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => input::read(path)?,
        (None, None) => String::new(),
    };
    let tokens = parse_tokens(&text)?;
    let params = ContextParams {
        n_ubatch: args.ubatch.size,
        ..args.compute.params()
    };
    warn_of_threads(params.n_threads.max(params.n_threads_batch));
    let model = args.model.file(&args.hub)?;
    let model = args
        .load
        .load(&model, args.compute.precision.mode, Some(params.memory(tokens.len())))?;
    let mut context = context_for(model, tokens.len(), &params)?;
    args.adapters.apply(&mut context)?;
    let values = logits_of(&mut context, &tokens)?;
    check_finite(&values)?;
    let n_vocab = values.len() / tokens.len();
    let logits = Logits::new(tokens.iter().map(|&t| t as i32).collect(), n_vocab, values)?;
    write(&logits, &args.output)
}

/// Parses token ids separated by commas or whitespace. The file format requires ids that fit a non-negative
/// i32.
fn parse_tokens(text: &str) -> Outcome<Vec<Token>> {
    let id = |word: &str| match word.parse::<i32>().ok().and_then(|id| Token::try_from(id).ok()) {
        Some(id) => Ok(id),
        None => Err(Failure::new(format_args!("invalid token id {word:?}"))),
    };
    let words = text
        .split(|c: char| c == ',' || c.is_whitespace())
        .filter(|w| !w.is_empty());
    let tokens = words.map(id).collect::<Outcome<Vec<_>>>()?;
    if tokens.is_empty() {
        Err(Failure::new("no token ids given"))
    } else {
        Ok(tokens)
    }
}

/// Writes rows of values to a file.
pub fn write(logits: &Logits, path: &Path) -> Outcome {
    let failed = |e: std::io::Error| Failure::new(format_args!("cannot write {}: {e}", path.display()));
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    logits.write(&mut out).and_then(|()| out.flush()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ids_parse_with_commas_or_whitespace() {
        assert_eq!(parse_tokens(" 1,2 ,3\n4\t 5,").unwrap(), [1, 2, 3, 4, 5]);
        for bad in ["", " , ", "1,x", "-1", "2147483648", "1.5"] {
            assert!(parse_tokens(bad).is_err(), "{bad:?}");
        }
    }
}
