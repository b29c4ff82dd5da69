//! Arguments for structured output: grammars, JSON schemas, regular expressions and choices.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use engine::grammar::Grammar;
use engine::model::VocabHook;
use engine::vocab::Vocab;
use llama::Error;
use llama::parts::PendingConstraint;

use crate::commands::input;
use crate::failure::{Failure, Outcome};

/// Structured output options.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Structured output")]
#[group(id = "grammar_flags", multiple = false)]
pub struct GrammarArgs {
    /// GBNF grammar (as in llama.cpp) whose `root` rule responses must match
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub grammar: Option<String>,
    /// File with a GBNF grammar that responses must match
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub grammar_file: Option<PathBuf>,
    /// JSON schema that responses must match; {} allows any JSON document
    #[arg(short, long, value_name = "SCHEMA", hide_short_help = true)]
    pub json_schema: Option<String>,
    /// File with a JSON schema that responses must match (-jf)
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub json_schema_file: Option<PathBuf>,
    /// Regular expression that whole responses must match
    #[arg(long, value_name = "REGEX", hide_short_help = true)]
    pub regex: Option<String>,
    /// String that a response may consist of (repeat for each choice)
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub choice: Vec<String>,
}

impl GrammarArgs {
    /// Returns true if any constraint is given.
    pub fn is_given(&self) -> bool {
        let texts = [&self.grammar, &self.json_schema, &self.regex];
        let files = [&self.grammar_file, &self.json_schema_file];
        texts.iter().any(|text| text.is_some()) || files.iter().any(|file| file.is_some()) || !self.choice.is_empty()
    }

    /// Returns the grammar and its name for error messages.
    pub fn grammar(&self) -> Outcome<Option<(String, Grammar)>> {
        let named = |name: &str, grammar| Some((name.to_owned(), grammar));
        Ok(if let Some(text) = &self.grammar {
            named("--grammar", Grammar::Gbnf(text.clone()))
        } else if let Some(path) = &self.grammar_file {
            named(&path.display().to_string(), Grammar::Gbnf(input::read(path)?))
        } else if let Some(text) = &self.json_schema {
            named("--json-schema", Grammar::JsonSchema(text.clone()))
        } else if let Some(path) = &self.json_schema_file {
            named(&path.display().to_string(), Grammar::JsonSchema(input::read(path)?))
        } else if let Some(text) = &self.regex {
            named("--regex", Grammar::Regex(text.clone()))
        } else if !self.choice.is_empty() {
            named("--choice", Grammar::Choice(self.choice.clone()))
        } else {
            None
        })
    }

    /// Returns the constraint, to be compiled once the vocabulary is loaded; `None` without a constraint.
    pub fn pending(&self) -> Outcome<Option<Pending>> {
        let given = self.grammar()?;
        Ok(given.map(|(name, grammar)| Pending {
            name,
            grammar,
            started: Arc::new(Mutex::new(None)),
        }))
    }
}

/// A grammar that is compiled while the model's weights are loaded.
pub struct Pending {
    name: String,
    grammar: Grammar,
    started: Arc<Mutex<Option<llama::Result<PendingConstraint>>>>,
}

impl Pending {
    /// Returns the hook that starts the compilation.
    pub fn hook(&self) -> VocabHook {
        let (grammar, started) = (self.grammar.clone(), self.started.clone());
        Arc::new(move |vocab: &Arc<Vocab>, n_logits| {
            let constraint = PendingConstraint::compile(&grammar, vocab.clone(), n_logits);
            *started.lock().unwrap_or_else(PoisonError::into_inner) = Some(constraint);
        })
    }

    /// Returns the running compilation. Syntax errors are reported here, all others on first use.
    pub fn started(self) -> Outcome<Prepared> {
        let started = self.started.lock().unwrap_or_else(PoisonError::into_inner).take();
        let constraint = started.unwrap_or(Err(Error::CompilerThread));
        Ok(Prepared {
            constraint: constraint.map_err(|e| named_error(&self.name, e))?,
            name: self.name,
        })
    }
}

/// Converts an error of the grammar with this name.
pub fn named_error(name: &str, error: Error) -> Failure {
    match error {
        Error::Grammar(error) => Failure::new(format_args!("{name}: {error}")),
        error => error.into(),
    }
}

/// A constraint, or its compilation in progress.
pub struct Prepared {
    name: String,
    constraint: PendingConstraint,
}

impl Prepared {
    /// Returns the name of the grammar for error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn constraint(&mut self) -> &mut PendingConstraint {
        &mut self.constraint
    }

    /// Waits until the constraint is compiled.
    pub fn wait(&mut self) -> Outcome {
        let compiled = self.constraint.get();
        compiled.map(drop).map_err(|e| named_error(&self.name, e))
    }
}
