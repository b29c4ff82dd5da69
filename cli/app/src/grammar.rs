//! Grammars that compile while the model is loaded.

use std::sync::{Arc, Mutex, PoisonError};

use engine::grammar::Grammar;
use engine::model::VocabHook;
use engine::vocab::Vocab;
use llama::Error;
use llama::parts::PendingConstraint;

use crate::args::GrammarArgs;
use crate::failure::{Failure, Outcome};

impl GrammarArgs {
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

    /// Returns the running compilation. Syntax errors are reported here, all other errors on first use.
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
