//! Compilation of grammars on a background thread.

use std::sync::mpsc::{self, Receiver};

use engine::grammar::{Compiler, Constraint, Grammar, GrammarError};
use engine::vocab::Vocab;

use crate::{Error, Result};

/// A constraint on the output that is compiled on a background thread, for example while a model is loaded
/// or a prompt is processed.
pub struct PendingConstraint(State);

enum State {
    /// Compilation in progress.
    Waiting(Receiver<Result<Constraint, GrammarError>>),
    Ready(Box<Constraint>),
    Failed,
}

impl PendingConstraint {
    /// Starts compiling a grammar for a model with `n_logits` logits, in two forms. The first form is quick
    /// to compile and serves the first tokens. The second computes token masks faster and replaces the first.
    ///
    /// # Errors
    /// Returns [`Error::Grammar`] for invalid syntax. All other errors are returned by [`PendingConstraint::get`].
    pub fn compile<V>(grammar: &Grammar, vocab: V, n_logits: usize) -> Result<PendingConstraint>
    where
        V: AsRef<Vocab> + Send + 'static,
    {
        grammar.check(vocab.as_ref())?;
        let grammar = grammar.clone();
        let (sender, receiver) = mpsc::channel();
        let compile = move || -> Result<(), GrammarError> {
            let vocab = vocab.as_ref();
            let quick = Compiler::unsliced(vocab, n_logits).and_then(|c| Ok((c.compile(&grammar, vocab)?, c)));
            let (constraint, compiler) = match quick {
                Ok((constraint, compiler)) => (constraint, compiler),
                Err(e) => {
                    // The receiver may have been dropped.
                    let _ = sender.send(Err(e));
                    return Ok(());
                }
            };
            let (constraint, upgrade) = constraint.upgrade_when_ready();
            if sender.send(Ok(constraint)).is_ok() {
                upgrade.put(compiler.sliced()?.compile(&grammar, vocab)?);
            }
            Ok(())
        };
        // If the second compilation fails, the first form stays in use.
        let thread = std::thread::Builder::new().name("grammar".to_owned());
        let started = thread.spawn(move || compile().unwrap_or_default());
        started.map_err(Error::Thread)?;
        Ok(PendingConstraint(State::Waiting(receiver)))
    }

    /// Returns the constraint in its initial state, after waiting for its compilation if necessary.
    ///
    /// # Errors
    /// Returns [`Error::Grammar`] on the first call if the compilation failed, and [`Error::CompilerThread`]
    /// afterwards.
    pub fn get(&mut self) -> Result<Constraint> {
        let state = std::mem::replace(&mut self.0, State::Failed);
        let constraint = match state {
            State::Ready(constraint) => constraint,
            State::Waiting(receiver) => Box::new(receiver.recv().map_err(|_| Error::CompilerThread)??),
            State::Failed => return Err(Error::CompilerThread),
        };
        let copy = (*constraint).clone();
        self.0 = State::Ready(constraint);
        Ok(copy)
    }
}
