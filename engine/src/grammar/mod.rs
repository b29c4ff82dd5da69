//! Grammar-constrained generation.
//!
//! - [`gbnf`], [`chars`]: parser for GBNF, llama.cpp's notation
//! - [`runs`], [`lark`]: conversion to the notation of llguidance, which computes token masks
//! - [`compilation`]: time limit of compilations
//! - [`schema`]: rewrites JSON schemas into the enforceable subset
//! - [`tokens`]: the model's vocabulary in llguidance's format
//! - [`constraint`]: grammar state of a sequence
//! - [`masks`], [`limit`]: token masks within time limits, off the caller's thread if they take long
//! - [`lazy`]: grammars that constrain only parts of the output
//!
//! Unsupported grammar features are errors and are never ignored. Size, depth, work, and time are bounded, so
//! grammars may come from untrusted clients.

mod chars;
mod compilation;
mod constraint;
mod error;
mod gbnf;
mod lark;
mod lazy;
mod limit;
mod masks;
mod runs;
mod schema;
#[cfg(test)]
mod tests;
mod thread_time;
mod tokens;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::TokEnv;
use llguidance::{Matcher, ParserFactory, panic_utils};
use serde_json::{Value, json};

use crate::vocab::Vocab;
pub use constraint::{AllowedTokens, Constraint, MatcherUpgrade};
pub use error::GrammarError;
pub use lazy::Trigger;
use limit::limited;
pub use schema::enforceable as enforceable_schema;

/// Maximum length of a grammar in bytes.
pub const MAX_LEN: usize = 1 << 20;
/// Stack size for the recursive grammar parsers, sufficient for the maximum nesting depth.
const STACK: usize = 64 << 20;
/// Maximum nesting depth in notations that third-party parsers handle.
const MAX_DEPTH: usize = 200;
/// Maximum parser items per mask. Each mask also has a time limit.
const STEP_ITEMS: usize = 1_000_000;
const STEP_FUEL: u64 = 1_000_000;
/// Maximum number of states that a grammar and its outputs add to the lexer. A state takes up to 2 kB.
const MAX_LEXER_STATES: usize = 50_000;

/// Specification of the allowed output.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// GBNF grammar, matched by the rule `root`. A grammar that starts with `%llguidance` is in llguidance's
    /// Lark notation.
    Gbnf(String),
    /// JSON documents valid under a JSON schema.
    JsonSchema(String),
    /// Strings that match a regular expression completely.
    Regex(String),
    /// A list of alternative strings.
    Choice(Vec<String>),
    /// A grammar in llguidance's Lark notation that refers to another grammar as `@document`.
    Around {
        /// Grammar source.
        text: String,
        /// Grammar in place of `@document`.
        document: Box<Grammar>,
    },
}

/// Compiles grammars for a model's vocabulary.
pub struct Compiler {
    factory: Arc<ParserFactory>,
    n_tokens: usize,
}

impl Compiler {
    /// Creates a compiler for a vocabulary and a model with `n_logits` logits.
    ///
    /// # Errors
    /// Returns [`GrammarError::Vocabulary`] if the vocabulary has no end-of-generation token, or is too large.
    pub fn new(vocab: &Vocab, n_logits: usize) -> Result<Compiler, GrammarError> {
        Compiler::unsliced(vocab, n_logits)?.sliced()
    }

    /// Like [`Compiler::new`], but takes less than half the time. Masks of its constraints can take up to
    /// 1000 times as long if many tokens are allowed.
    ///
    /// # Errors
    /// Returns [`GrammarError::Vocabulary`] if the vocabulary has no end-of-generation token, or is too large.
    pub fn unsliced(vocab: &Vocab, n_logits: usize) -> Result<Compiler, GrammarError> {
        let env = tokens::environment(vocab, n_logits)?;
        Compiler::over(&env, n_logits, &[])
    }

    /// Returns a compiler with precomputed masks for common classes of tokens, such as those valid inside a
    /// string.
    ///
    /// # Errors
    /// Returns [`GrammarError::Vocabulary`] if the vocabulary is rejected.
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
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.verbose_errors = false;
        Ok(Compiler {
            factory: Arc::new(factory),
            n_tokens: n_logits,
        })
    }

    /// Compiles a grammar to a constraint in its initial state.
    ///
    /// # Errors
    /// Returns [`GrammarError::TooSlow`] after five seconds.
    pub fn compile(&self, grammar: &Grammar, vocab: &Vocab) -> Result<Constraint, GrammarError> {
        self.compile_while(grammar, vocab, &|| true)
    }

    /// Like [`Compiler::compile`], and ends soon after `is_wanted` returns false.
    ///
    /// # Errors
    /// Returns [`GrammarError::Abandoned`] if the result is no longer wanted.
    pub fn compile_while(
        &self,
        grammar: &Grammar,
        vocab: &Vocab,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Constraint, GrammarError> {
        check_length(grammar)?;
        let top = on_a_large_stack(|| translate(grammar, vocab))?;
        let (factory, schema) = (self.factory.clone(), grammar.schema().map(str::to_owned));
        let compile = move |cancel: &compilation::Cancel| match (matcher(&factory, top, cancel), schema) {
            (Err(GrammarError::Refused(message)), Some(schema)) => {
                let part = |schema: Value| match matcher(&factory, of_schema(schema), cancel) {
                    Err(GrammarError::Refused(message)) => Some(message),
                    _ => None,
                };
                Err(schema::located(&schema::value(&schema)?, message, &part))
            }
            (made, _) => made,
        };
        let matcher = compilation::run(compile, is_wanted)?;
        Ok(Constraint::new(matcher, self.n_tokens))
    }
}

/// Creates a matcher and computes its first mask.
fn matcher(
    factory: &ParserFactory,
    grammar: TopLevelGrammar,
    cancel: &compilation::Cancel,
) -> Result<Matcher, GrammarError> {
    let parser = panic_utils::catch_unwind(AssertUnwindSafe(|| factory.create_parser(grammar)));
    let mut matcher = Matcher::new(parser).into_cancellable();
    if let Some(message) = matcher.get_error() {
        return Err(refused(&message));
    }
    cancel.of(&matcher);
    let mask = limited(&mut matcher, compilation::LIMIT, Matcher::compute_mask_or_eos);
    if matcher.is_cancelled() {
        return Err(compilation::too_slow());
    }
    match mask {
        Ok(mask) if mask.is_zero() => Err(GrammarError::Refused("the grammar matches no output".to_owned())),
        Ok(_) => Ok(matcher),
        Err(e) => Err(refused(&e.to_string())),
    }
}

impl Grammar {
    /// Returns the length of the source in bytes.
    pub fn n_bytes(&self) -> usize {
        match self {
            Grammar::Gbnf(text) | Grammar::JsonSchema(text) | Grammar::Regex(text) => text.len(),
            Grammar::Choice(texts) => texts.iter().map(String::len).sum(),
            Grammar::Around { text, document } => text.len() + document.n_bytes(),
        }
    }

    /// Returns the text of a JSON schema.
    fn schema(&self) -> Option<&str> {
        match self {
            Grammar::JsonSchema(text) => Some(text),
            _ => None,
        }
    }

    /// Validates the notation and the tokens that the grammar refers to, without the cost of compiling.
    ///
    /// # Errors
    /// Returns a [`GrammarError`] if the grammar is too long, its notation is invalid, or it refers to an unknown
    /// token.
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
            let schema = schema::parse(text)?;
            Ok(of_schema(schema))
        }
        Grammar::Regex(text) => {
            check_depth(text)?;
            regex_syntax::parse(text).map_err(|e| GrammarError::Refused(e.to_string()))?;
            Ok(TopLevelGrammar::from_regex(text))
        }
        Grammar::Around { text, document } => {
            check_depth(text)?;
            let mut top = TopLevelGrammar::from_lark(text.clone());
            let mut inner = translate(document, vocab)?;
            if let Some(first) = inner.grammars.first_mut() {
                first.name = Some(DOCUMENT.to_owned());
            }
            top.grammars.append(&mut inner.grammars);
            Ok(top)
        }
        Grammar::Choice(texts) if texts.is_empty() => {
            Err(GrammarError::Refused("the list of choices is empty".to_owned()))
        }
        Grammar::Choice(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| regex_syntax::escape(text)).collect();
            Ok(TopLevelGrammar::from_regex(&format!("(?:{})", texts.join("|"))))
        }
    }
}

/// Returns the grammar of a schema in the enforceable subset.
fn of_schema(mut schema: Value) -> TopLevelGrammar {
    if let Some(fields) = schema.as_object_mut() {
        // Unbounded white space would let a model generate blanks forever.
        fields.insert(
            "x-guidance".to_owned(),
            json!({"whitespace_flexible": true, "whitespace_pattern": WHITE_SPACE}),
        );
    }
    TopLevelGrammar::from_json_schema(schema)
}

/// Name of the inner grammar of [`Grammar::Around`].
const DOCUMENT: &str = "document";
/// White space between tokens of a JSON document.
const WHITE_SPACE: &str = r"[ ]|\n[ \t]{0,20}";

/// Converts GBNF to llguidance's notation.
fn lark_of(text: &str, vocab: &Vocab) -> Result<String, GrammarError> {
    let token = |name: &str| vocab.find(name);
    let mut rules = gbnf::parse(text, &token)?;
    runs::find(&mut rules);
    runs::split_doubtful(&mut rules);
    Ok(lark::text_of(&rules))
}

/// Runs a recursive parser on a thread with a large stack.
fn on_a_large_stack<T: Send>(run: impl FnOnce() -> Result<T, GrammarError> + Send) -> Result<T, GrammarError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run);
        let no_thread =
            |e: std::io::Error| GrammarError::Refused(format!("cannot start a thread to compile the grammar: {e}"));
        let failed = |_| GrammarError::Refused("compiling the grammar panicked".to_owned());
        thread.map_err(no_thread)?.join().map_err(failed)?
    })
}

fn check_length(grammar: &Grammar) -> Result<(), GrammarError> {
    let found = grammar.n_bytes();
    if found > MAX_LEN {
        return Err(GrammarError::TooLong {
            found,
            allowed: MAX_LEN,
        });
    }
    Ok(())
}

/// Bounds the nesting depth of notations that third-party parsers handle.
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
                format!("groups are nested more than {MAX_DEPTH} levels deep"),
            ));
        }
    }
    Ok(())
}

/// Returns the first line of an llguidance error; the following lines describe internal state.
fn refused(message: &str) -> GrammarError {
    let line = message
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("the grammar cannot be used");
    let line = match line.trim() {
        // No token continues a text that the grammar accepts.
        "NoExtensionBias" => "the grammar accepts no text; each rule needs an alternative that ends",
        line => line,
    };
    GrammarError::Refused(line.to_owned())
}
