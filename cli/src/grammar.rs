//! The flags of structured output: what an answer has to be.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use clap::Args;
use engine::grammar::{Compiler, Constraint, Grammar, GrammarError};
use engine::model::Model;

use crate::commands::input;
use crate::failure::{Failure, Outcome};

/// What answers have to be.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Structured output")]
#[group(id = "grammar_flags", multiple = false)]
pub struct GrammarArgs {
    /// Answers match the rule `root` of this grammar, written as for llama.cpp (GBNF)
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub grammar: Option<String>,
    /// The same, read from a file
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub grammar_file: Option<PathBuf>,
    /// Answers are JSON documents that this schema allows; {} is any document
    #[arg(short, long, value_name = "SCHEMA", hide_short_help = true)]
    pub json_schema: Option<String>,
    /// The same (-jf), read from a file
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub json_schema_file: Option<PathBuf>,
    /// Answers match this regular expression from begin to end
    #[arg(long, value_name = "REGEX", hide_short_help = true)]
    pub regex: Option<String>,
    /// Answers are one of the texts given so (repeat it)
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub choice: Vec<String>,
}

impl GrammarArgs {
    /// True if answers have to be something.
    pub fn is_given(&self) -> bool {
        let texts = [&self.grammar, &self.json_schema, &self.regex];
        let files = [&self.grammar_file, &self.json_schema_file];
        texts.iter().any(|text| text.is_some()) || files.iter().any(|file| file.is_some()) || !self.choice.is_empty()
    }

    /// The grammar, and what it is called in messages.
    fn grammar(&self) -> Outcome<Option<(String, Grammar)>> {
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

    /// What every answer of the model has to keep to; `None` if nothing was asked for. What can be told at once is wrong with it now, the rest
    /// when it is first used: for large vocabularies it takes a second, in which a prompt can be read.
    pub fn constraint(&self, model: &Arc<Model>) -> Outcome<Option<Prepared>> {
        let Some((name, grammar)) = self.grammar()? else {
            return Ok(None);
        };
        let of = |name: &str, e: GrammarError| Failure::new(format_args!("{name}: {e}"));
        grammar.check(model.vocab()).map_err(|e| of(&name, e))?;
        let model = model.clone();
        let thread = std::thread::Builder::new().name("grammar".to_owned()).spawn(move || {
            let compiled = Compiler::new(model.vocab(), model.base().n_vocab());
            let compiled = compiled.and_then(|compiler| compiler.compile(&grammar, model.vocab()));
            compiled.map_err(|e| of(&name, e))
        })?;
        Ok(Some(Prepared::Waiting(thread)))
    }
}

/// What answers have to keep to, or what is being made of it.
pub enum Prepared {
    /// It is being compiled.
    Waiting(JoinHandle<Outcome<Constraint>>),
    /// It is there.
    Ready(Box<Constraint>),
    /// It could not be compiled.
    Failed,
}

impl Prepared {
    /// The constraint, as soon as it is there.
    pub fn get(&mut self) -> Outcome<Constraint> {
        match std::mem::replace(self, Prepared::Failed) {
            Prepared::Ready(constraint) => *self = Prepared::Ready(constraint),
            Prepared::Waiting(thread) => {
                let failed = |_| Failure::new("the grammar cannot be used: compiling it failed");
                *self = Prepared::Ready(Box::new(thread.join().map_err(failed)??));
            }
            Prepared::Failed => {}
        }
        match self {
            Prepared::Ready(constraint) => Ok((**constraint).clone()),
            _ => Err(Failure::new("the grammar cannot be used")),
        }
    }
}
