//! The flags of structured output: what an answer has to be.

use std::path::PathBuf;

use clap::Args;
use engine::grammar::{Compiler, Constraint, Grammar};
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

    /// What every answer of the model has to keep to; `None` if nothing was asked for.
    pub fn constraint(&self, model: &Model) -> Outcome<Option<Constraint>> {
        let Some((name, grammar)) = self.grammar()? else {
            return Ok(None);
        };
        let wrong = |e| Failure::new(format_args!("{name}: {e}"));
        let compiler = Compiler::new(model.vocab(), model.base().n_vocab()).map_err(wrong)?;
        compiler.compile(&grammar, model.vocab()).map(Some).map_err(wrong)
    }
}
