//! The flags of structured output: what an answer has to be.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use engine::grammar::{Compiler, Constraint, Grammar, GrammarError};
use engine::model::VocabHook;
use engine::vocab::Vocab;

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

    /// What every answer has to keep to, to be begun as soon as a vocabulary is there; `None` if nothing was asked for.
    pub fn pending(&self) -> Outcome<Option<Pending>> {
        let asked = self.grammar()?;
        Ok(asked.map(|(name, grammar)| Pending {
            name,
            grammar,
            begun: Arc::new(Mutex::new(None)),
        }))
    }
}

/// A grammar whose compilation begins while the weights of a model are loaded.
pub struct Pending {
    name: String,
    grammar: Grammar,
    begun: Arc<Mutex<Option<Outcome<Prepared>>>>,
}

impl Pending {
    /// What begins it.
    pub fn hook(&self) -> VocabHook {
        let (name, grammar, begun) = (self.name.clone(), self.grammar.clone(), self.begun.clone());
        Arc::new(move |vocab: &Arc<Vocab>, n_logits| {
            let prepared = begin(&name, &grammar, vocab, n_logits);
            *begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(prepared);
        })
    }

    /// What was begun; what can be told at once is wrong with the grammar now, and the rest when it is first used.
    pub fn begun(self) -> Outcome<Prepared> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner).take();
        begun.unwrap_or(Ok(Prepared::Failed))
    }
}

fn fault(name: &str, error: GrammarError) -> Failure {
    Failure::new(format_args!("{name}: {error}"))
}

/// Compiles in the background, first in the way that takes less time, for the first tokens, then in the one whose masks do.
fn begin(name: &str, grammar: &Grammar, vocab: &Arc<Vocab>, n_logits: usize) -> Outcome<Prepared> {
    grammar.check(vocab).map_err(|e| fault(name, e))?;
    let (name, grammar, vocab) = (name.to_owned(), grammar.clone(), vocab.clone());
    let (sender, receiver) = mpsc::channel();
    let compile = move || -> Result<(), GrammarError> {
        let quick = Compiler::unsliced(&vocab, n_logits).and_then(|c| Ok((c.compile(&grammar, &vocab)?, c)));
        let (constraint, compiler) = match quick {
            Ok((constraint, compiler)) => (constraint, compiler),
            Err(e) => {
                // Nobody may wait for it any more.
                let _ = sender.send(Err(fault(&name, e)));
                return Ok(());
            }
        };
        let (constraint, faster) = constraint.until_faster();
        if sender.send(Ok(constraint)).is_ok() {
            faster.put(compiler.sliced()?.compile(&grammar, &vocab)?);
        }
        Ok(())
    };
    // Without the second form all goes on with the first.
    let thread = std::thread::Builder::new().name("grammar".to_owned());
    thread.spawn(move || compile().unwrap_or_default())?;
    Ok(Prepared::Waiting(receiver))
}

/// What answers have to keep to, or what is being made of it.
pub enum Prepared {
    /// It is being compiled.
    Waiting(Receiver<Outcome<Constraint>>),
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
            Prepared::Waiting(receiver) => {
                let failed = |_| Failure::new("the grammar cannot be used: compiling it failed");
                *self = Prepared::Ready(Box::new(receiver.recv().map_err(failed)??));
            }
            Prepared::Failed => {}
        }
        match self {
            Prepared::Ready(constraint) => Ok((**constraint).clone()),
            _ => Err(Failure::new("the grammar cannot be used")),
        }
    }
}
