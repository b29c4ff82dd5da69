//! The flags of the sampler chain, from the engine's one table of its parameters, and biases of tokens by their text.

use clap::builder::{Str, StyledStr};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};
use engine::sample::{Allowed, LogitBias, PARAMS, ParamDef, SampleError, SamplerParams, Token};
use engine::vocab::Vocab;

use crate::failure::{Failure, Outcome};

/// Shown by `-h`; the rest only by `--help`.
const COMMON: &[&str] = &["seed", "temp", "top-k", "top-p", "min-p", "repeat-penalty"];

/// Sampler parameters as given on the command line: names and values, which were checked.
#[derive(Clone, Debug, Default)]
pub struct SamplerArgs(Vec<(&'static str, Vec<String>)>);

impl SamplerArgs {
    /// The most likely token was asked for.
    pub fn is_greedy(&self) -> bool {
        let mut params = SamplerParams::default();
        self.apply(&mut params).is_ok() && params.temp <= 0.0
    }

    /// Sets what was given; the rest stays.
    pub fn apply(&self, params: &mut SamplerParams) -> Result<(), SampleError> {
        self.0.iter().try_for_each(|(name, values)| {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            params.set(name, &values)
        })
    }
}

impl clap::Args for SamplerArgs {
    fn augment_args(command: Command) -> Command {
        command.args(PARAMS.iter().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn flag(def: &'static ParamDef) -> Arg {
    let default = if def.repeatable {
        String::new()
    } else {
        format!(" [default: {}]", def.default())
    };
    let arg = Arg::new(Str::from(def.flag))
        .long(def.flag)
        .help(StyledStr::from(format!("{}{default}", def.doc)))
        .help_heading("Sampling")
        .value_name(if matches!(def.allowed, Allowed::Count(_)) {
            "TEXT"
        } else {
            "N"
        })
        .allow_negative_numbers(true)
        .hide_short_help(!COMMON.contains(&def.flag))
        .action(if def.repeatable {
            ArgAction::Append
        } else {
            ArgAction::Set
        });
    if def.flag == "seed" { arg.short('s') } else { arg }
}

impl clap::FromArgMatches for SamplerArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = SamplerArgs::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for def in PARAMS {
            let Some(values) = matches.get_many::<String>(def.flag) else {
                continue;
            };
            let given = SamplerArgs(vec![(def.name, values.cloned().collect())]);
            given
                .apply(&mut SamplerParams::default())
                .map_err(|e| clap::Error::raw(ErrorKind::ValueValidation, format!("--{}: {e}\n", def.flag)))?;
            self.0.extend(given.0);
        }
        Ok(())
    }
}

/// Biases of tokens that are named by what they look like.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct TextBiasArgs {
    /// Added to the logit of the token that is this text: " yes=5", "no=-inf" (may be repeated). Spaces count, and a text of several tokens is an error
    #[arg(long, value_name = "TEXT=BIAS", value_parser = text_bias, hide_short_help = true)]
    logit_bias_text: Vec<TextBias>,
}

/// What looks like this, and what is added to its logit.
#[derive(Clone, Debug, PartialEq)]
struct TextBias {
    text: String,
    bias: f32,
}

impl TextBiasArgs {
    /// The same for the tokens of a vocabulary. `read`: what a text stands for.
    pub fn biases(&self, vocab: &Vocab, read: impl Fn(&str) -> String) -> Outcome<Vec<LogitBias>> {
        let mut biases = Vec::new();
        for TextBias { text, bias } in &self.logit_bias_text {
            let text = read(text);
            let ids = 0..Token::try_from(vocab.n_tokens()).unwrap_or(Token::MAX);
            // Some vocabularies have a character twice: as itself and as a byte.
            let tokens = ids.filter(|&token| vocab.token_to_piece(token, true) == text.as_bytes());
            let before = biases.len();
            biases.extend(tokens.map(|token| LogitBias { token, bias: *bias }));
            if biases.len() == before {
                return Err(no_token(vocab, &text));
            }
        }
        Ok(biases)
    }
}

/// The error for a text that is no token, with the tokens that it consists of.
fn no_token(vocab: &Vocab, text: &str) -> Failure {
    let piece = |&token: &Token| format!("{:?}", String::from_utf8_lossy(vocab.token_to_piece(token, true)));
    let pieces: Vec<_> = vocab.tokenize(text, false, true).iter().map(piece).collect();
    Failure::new(format_args!(
        "--logit-bias-text: no token of this model is {text:?}, which becomes {}; each of those can have a bias",
        pieces.join(", ")
    ))
}

/// Texts may hold a `=`, numbers do not.
fn text_bias(given: &str) -> Result<TextBias, String> {
    let form = "expected TEXT=BIAS with a number, inf or -inf";
    let (text, bias) = given.rsplit_once('=').ok_or(form)?;
    let bias = bias
        .trim()
        .parse()
        .ok()
        .filter(|bias: &f32| !bias.is_nan())
        .ok_or(form)?;
    match text {
        "" => Err("the text is empty: it is no token".to_owned()),
        text => Ok(TextBias {
            text: text.to_owned(),
            bias,
        }),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(args_override_self = true)]
    struct Line {
        #[command(flatten)]
        sampler: SamplerArgs,
    }

    fn parse(args: &[&str]) -> Result<SamplerParams, clap::Error> {
        let line = Line::try_parse_from(std::iter::once(&"llama").chain(args))?;
        let mut params = SamplerParams::default();
        line.sampler.apply(&mut params).expect("they were checked");
        Ok(params)
    }

    #[test]
    fn without_flags_there_are_the_defaults() {
        assert_eq!(parse(&[]).unwrap(), SamplerParams::default());
    }

    #[test]
    fn every_parameter_has_a_flag_that_takes_its_default() {
        for def in PARAMS.iter().filter(|def| !def.repeatable) {
            let flag = format!("--{}={}", def.flag, def.default());
            assert_eq!(parse(&[&flag]).unwrap(), SamplerParams::default(), "{flag}");
        }
    }

    #[test]
    fn a_bias_follows_the_last_equals_sign() {
        let of = |text: &str, bias| {
            Ok(TextBias {
                text: text.to_owned(),
                bias,
            })
        };
        assert_eq!(text_bias(" yes=-1.5"), of(" yes", -1.5));
        assert_eq!(text_bias("==inf"), of("=", f32::INFINITY));
        for bad in ["", "yes", "=1", "yes=", "yes=nan", "yes=x"] {
            assert!(text_bias(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn values_are_checked_and_the_last_one_counts() {
        let params = parse(&[
            "--temp",
            "2",
            "--temp",
            "-1",
            "-s",
            "7",
            "--logit-bias",
            "5-inf",
            "--logit-bias",
            "6+1",
        ]);
        let params = params.unwrap();
        assert_eq!((params.temp, params.seed, params.logit_bias.len()), (-1.0, Some(7), 2));
        let error = parse(&["--top-p", "1.5"]).unwrap_err().to_string();
        assert!(error.contains("--top-p") && error.contains("0 to 1"), "{error}");
    }
}
