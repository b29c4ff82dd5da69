//! Grammars that a text has to keep to: what tokens may come next.
//!
//! - [`gbnf`], [`chars`]: llama.cpp's notation, parsed to rules over characters
//! - [`runs`], [`lark`]: rules to the notation of llguidance, which computes the masks
//! - [`schema`]: what JSON schemas must not ask for
//! - [`tokens`]: a model's vocabulary as llguidance wants it
//! - [`constraint`]: where a text is in its grammar
//! - [`lazy`]: where a part begins that keeps to it, if not all of a text does
//!
//! A grammar that cannot be kept in full is an error, never left out. Sizes, depths and work are bounded, so that a grammar may come from anybody.

mod chars;
mod constraint;
mod error;
mod gbnf;
mod lark;
mod lazy;
mod runs;
mod schema;
#[cfg(test)]
mod tests;
mod tokens;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::TokEnv;
use llguidance::{Matcher, ParserFactory, panic_utils};
use serde_json::json;

use crate::vocab::Vocab;
pub use constraint::{Allowed, Constraint, Faster};
pub use error::GrammarError;
pub use lazy::Trigger;

/// Longest grammar that is taken, in bytes.
pub const MAX_LEN: usize = 1 << 20;
/// Parsers of grammars call themselves; this is enough for the depths that are allowed.
const STACK: usize = 64 << 20;
/// Groups within each other in notations that are parsed elsewhere.
const MAX_DEPTH: usize = 200;
/// Parser states that one mask may take: a bound on time, some 50 ms.
const STEP_ITEMS: usize = 1_000_000;
const STEP_FUEL: u64 = 1_000_000;

/// What a text has to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Matched by the rule `root`, in the notation of llama.cpp's grammars; one that begins with `%llguidance` is taken as llguidance's own.
    Gbnf(String),
    /// A document that a JSON schema allows.
    JsonSchema(String),
    /// Matched by a regular expression as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// Makes constraints for the texts of a model.
pub struct Compiler {
    factory: ParserFactory,
    n_tokens: usize,
}

impl Compiler {
    /// For a vocabulary, of which a model has logits for `n_logits` tokens.
    pub fn new(vocab: &Vocab, n_logits: usize) -> Result<Compiler, GrammarError> {
        Compiler::unsliced(vocab, n_logits)?.sliced()
    }

    /// The same in less than half the time; the masks of its constraints take up to a thousand times as long, where much is allowed.
    pub fn unsliced(vocab: &Vocab, n_logits: usize) -> Result<Compiler, GrammarError> {
        let env = tokens::environment(vocab, n_logits)?;
        Compiler::over(&env, n_logits, &[])
    }

    /// One whose constraints know at once of whole classes of tokens, such as those that can stand within a string, that they are allowed.
    pub fn sliced(&self) -> Result<Compiler, GrammarError> {
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        Compiler::over(self.factory.tok_env(), self.n_tokens, &slices)
    }

    fn over(env: &TokEnv, n_logits: usize, slices: &[String]) -> Result<Compiler, GrammarError> {
        let made = ParserFactory::new(env, Default::default(), slices);
        let mut factory = made.map_err(|e| GrammarError::Vocabulary(e.to_string()))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.step_max_items = STEP_ITEMS;
        limits.step_lexer_fuel = STEP_FUEL;
        limits.verbose_errors = false;
        Ok(Compiler {
            factory,
            n_tokens: n_logits,
        })
    }

    /// The constraint of a grammar, at the beginning of a text.
    pub fn compile(&self, grammar: &Grammar, vocab: &Vocab) -> Result<Constraint, GrammarError> {
        check_length(grammar)?;
        let compile = || {
            let top = translate(grammar, vocab)?;
            let parser = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| self.factory.create_parser(top)));
            let mut matcher = Matcher::new(parser);
            match matcher.get_error() {
                Some(message) => Err(refused(&message)),
                None => match matcher.compute_mask_or_eos() {
                    Ok(mask) if mask.is_zero() => Err(GrammarError::Refused("no text matches it".to_owned())),
                    Ok(_) => Ok(matcher),
                    Err(e) => Err(refused(&e.to_string())),
                },
            }
        };
        let matcher = on_a_large_stack(compile)?;
        Ok(Constraint::new(matcher, self.n_tokens))
    }
}

impl Grammar {
    /// What can be told of it before it is compiled, which takes a while for large vocabularies: its notation, and what it names.
    pub fn check(&self, vocab: &Vocab) -> Result<(), GrammarError> {
        check_length(self)?;
        on_a_large_stack(|| translate(self, vocab).map(drop))
    }
}

fn translate(grammar: &Grammar, vocab: &Vocab) -> Result<TopLevelGrammar, GrammarError> {
    match grammar {
        Grammar::Gbnf(text) if text.trim_start().starts_with("%llguidance") => {
            check_depth(text)?;
            Ok(TopLevelGrammar::from_lark(text.clone()))
        }
        Grammar::Gbnf(text) => Ok(TopLevelGrammar::from_lark(lark_of(text, vocab)?)),
        Grammar::JsonSchema(text) => {
            let mut schema = schema::parse(text)?;
            if let Some(fields) = schema.as_object_mut() {
                // Without a bound a model may write blanks for ever.
                fields.insert(
                    "x-guidance".to_owned(),
                    json!({"whitespace_flexible": true, "whitespace_pattern": WHITE_SPACE}),
                );
            }
            Ok(TopLevelGrammar::from_json_schema(schema))
        }
        Grammar::Regex(text) => {
            check_depth(text)?;
            regex_syntax::parse(text).map_err(|e| GrammarError::Refused(e.to_string()))?;
            Ok(TopLevelGrammar::from_regex(text))
        }
        Grammar::Choice(texts) if texts.is_empty() => {
            Err(GrammarError::Refused("there is nothing to choose from".to_owned()))
        }
        Grammar::Choice(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| regex_syntax::escape(text)).collect();
            Ok(TopLevelGrammar::from_regex(&format!("(?:{})", texts.join("|"))))
        }
    }
}

/// Between parts of a JSON document.
const WHITE_SPACE: &str = r"[ ]|\n[ \t]{0,20}";

/// A grammar of llama.cpp's in the notation of llguidance.
fn lark_of(text: &str, vocab: &Vocab) -> Result<String, GrammarError> {
    let token = |name: &str| vocab.find(name);
    let mut rules = gbnf::parse(text, &token)?;
    runs::find(&mut rules);
    runs::split_doubtful(&mut rules);
    Ok(lark::text_of(&rules))
}

/// Runs what may call itself often.
fn on_a_large_stack<T: Send>(run: impl FnOnce() -> Result<T, GrammarError> + Send) -> Result<T, GrammarError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run);
        let no_thread = |e: std::io::Error| GrammarError::Refused(format!("there is no thread to compile it: {e}"));
        let failed = |_| GrammarError::Refused("compiling it failed".to_owned());
        thread.map_err(no_thread)?.join().map_err(failed)?
    })
}

fn check_length(grammar: &Grammar) -> Result<(), GrammarError> {
    let found = match grammar {
        Grammar::Gbnf(text) | Grammar::JsonSchema(text) | Grammar::Regex(text) => text.len(),
        Grammar::Choice(texts) => texts.iter().map(String::len).sum(),
    };
    match found > MAX_LEN {
        true => Err(GrammarError::TooLong {
            found,
            allowed: MAX_LEN,
        }),
        false => Ok(()),
    }
}

/// Bounds the depth of a notation that others parse.
fn check_depth(text: &str) -> Result<(), GrammarError> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(GrammarError::at(
                text,
                at,
                format!("more than {MAX_DEPTH} groups within each other"),
            ));
        }
    }
    Ok(())
}

/// The first line of what llguidance says: the rest is about its own state.
fn refused(message: &str) -> GrammarError {
    let line = message
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("it cannot be used");
    GrammarError::Refused(line.trim().to_owned())
}
