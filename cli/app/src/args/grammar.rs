//! Arguments for structured output: grammars, JSON schemas, regular expressions, and choices.

use std::path::PathBuf;

use clap::Args;
use engine::grammar::Grammar;

use crate::failure::Outcome;
use crate::input;

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
}
