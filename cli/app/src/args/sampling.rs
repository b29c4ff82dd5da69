//! Sampling flags, generated from the engine's parameter table, and logit biases by token text.

use clap::builder::{Str, StyledStr};
use clap::{Arg, ArgAction, ArgMatches, Command};
use engine::model::Model;
use engine::sample::{LogitBias, NumberRange, PARAMS, ParamDef, Recommended, SampleError, SamplerParams, Token};
use engine::vocab::Vocab;
use tracing::warn;

use crate::failure::{Failure, Outcome};

/// Parameters shown by `-h`; `--help` shows all.
const COMMON: &[&str] = &["seed", "temp", "top-k", "top-p", "min-p", "repeat-penalty"];

/// Validated sampling parameters from the command line, as names and values.
#[derive(Clone, Debug, Default)]
pub struct SamplerArgs(Vec<(&'static str, Vec<String>)>);

impl SamplerArgs {
    /// Returns true if decoding is greedy (temperature 0).
    pub fn is_greedy(&self) -> bool {
        let mut params = SamplerParams::default();
        self.apply(&mut params).is_ok() && params.temp <= 0.0
    }

    /// Returns the parameters that the model recommends, overridden by the given ones. Invalid recommendations
    /// are ignored with a warning.
    pub fn params(&self, model: &Model) -> Outcome<SamplerParams> {
        let recommended = Recommended::of(model.metadata(), self.is_greedy());
        for key in &recommended.refused {
            warn!("ignoring {key} of the file: invalid value for this setting");
        }
        let mut params = recommended.params;
        self.apply(&mut params)?;
        Ok(params)
    }

    /// Sets the given parameters and leaves the others unchanged.
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
        .value_name(if matches!(def.allowed, NumberRange::Count(_)) {
            "TEXT"
        } else {
            "N"
        })
        .value_parser(move |text: &str| checked(def, text))
        .allow_negative_numbers(true)
        .hide_short_help(!COMMON.contains(&def.flag))
        .action(if def.repeatable {
            ArgAction::Append
        } else {
            ArgAction::Set
        });
    if def.flag == "seed" { arg.short('s') } else { arg }
}

/// Checks one value of a parameter.
fn checked(def: &ParamDef, text: &str) -> Result<String, String> {
    match SamplerParams::default().set(def.name, &[text]) {
        Ok(()) => Ok(text.to_owned()),
        Err(SampleError::Param { allowed, .. }) => Err(format!("expected {allowed}")),
        Err(e) => Err(e.to_string()),
    }
}

impl clap::FromArgMatches for SamplerArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = SamplerArgs::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for def in PARAMS {
            if let Some(values) = matches.get_many::<String>(def.flag) {
                self.0.push((def.name, values.cloned().collect()));
            }
        }
        Ok(())
    }
}

/// Logit biases of tokens given by their text.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct TextBiasArgs {
    /// Bias for the logit of a token given as text, such as " yes=5" (may be repeated)
    ///
    /// Use `-inf` to forbid the token. Spaces are significant, and the text must be exactly one token.
    #[arg(long, value_name = "TEXT=BIAS", value_parser = text_bias, hide_short_help = true)]
    logit_bias_text: Vec<TextBias>,
}

/// A token's text with its logit bias.
#[derive(Clone, Debug, PartialEq)]
struct TextBias {
    text: String,
    bias: f32,
}

impl TextBiasArgs {
    /// Resolves the biases to token ids. `read` processes escape sequences.
    pub fn biases(&self, vocab: &Vocab, read: impl Fn(&str) -> String) -> Outcome<Vec<LogitBias>> {
        let mut biases = Vec::new();
        for TextBias { text, bias } in &self.logit_bias_text {
            let text = read(text);
            let ids = 0..Token::try_from(vocab.n_tokens()).unwrap_or(Token::MAX);
            // Some vocabularies contain a character twice: as itself and as a byte.
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

/// Creates the error for a text that is not a single token, listing the tokens it consists of.
fn no_token(vocab: &Vocab, text: &str) -> Failure {
    let piece = |&token: &Token| format!("{:?}", String::from_utf8_lossy(vocab.token_to_piece(token, true)));
    let pieces: Vec<_> = vocab.tokenize(text, false, true).iter().map(piece).collect();
    Failure::new(format_args!(
        "--logit-bias-text: {text:?} is not a single token of this model; it consists of {}. Each of these tokens can have a bias",
        pieces.join(", ")
    ))
}

/// Splits at the last `=`, because the text may contain one.
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
        "" => Err("expected a non-empty token text".to_owned()),
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
        line.sampler.apply(&mut params).expect("clap validated the values");
        Ok(params)
    }

    #[test]
    fn sampler_without_flags_has_defaults() {
        assert_eq!(parse(&[]).unwrap(), SamplerParams::default());
    }

    #[test]
    fn every_parameter_flag_accepts_its_default() {
        for def in PARAMS.iter().filter(|def| !def.repeatable) {
            let flag = format!("--{}={}", def.flag, def.default());
            assert_eq!(parse(&[&flag]).unwrap(), SamplerParams::default(), "{flag}");
        }
    }

    #[test]
    fn bias_follows_last_equals_sign() {
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
    fn sampler_values_are_validated_and_last_wins() {
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
