//! Compiled output constraints of one model.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use engine::grammar::{Compiler, Constraint, Grammar, GrammarError};
use engine::model::Model;
use engine::sample::Token;
use engine::vocab::Vocab;

use crate::api::{ApiError, ApiResult};
use crate::wanted::is_wanted;

/// Compiles constraints for one model and caches the most recently used ones.
pub struct Constraints {
    model: Arc<Model>,
    /// Compiler, built on first use because it scans the whole vocabulary.
    compiler: OnceLock<Result<Compiler, GrammarError>>,
    /// Compiled constraints, most recently used last.
    cached: Mutex<Vec<(Grammar, Constraint)>>,
}

/// Maximum number of cached constraints.
const MAX_CACHED: usize = 32;
/// Maximum size in bytes of a grammar whose constraint is cached.
const MAX_CACHED_LEN: usize = 64 << 10;

impl Constraints {
    /// Creates an empty cache.
    pub fn new(model: Arc<Model>) -> Constraints {
        Constraints {
            model,
            compiler: OnceLock::new(),
            cached: Mutex::default(),
        }
    }

    /// Returns the constraint of a grammar. Compiles it if it is not cached, so call it on a blocking thread.
    pub fn constraint(&self, grammar: &Grammar) -> ApiResult<Constraint> {
        if let Some(cached) = self.cached(grammar) {
            return Ok(cached);
        }
        let (vocab, n_vocab) = (self.model.vocab(), self.model.base().n_vocab());
        let make = || Compiler::new(vocab, n_vocab);
        let compiler = self.compiler.get_or_init(make).as_ref().map_err(refused)?;
        let made = compiler
            .compile_while(grammar, vocab, &is_wanted)
            .map_err(|e| refused(&e))?;
        probe(&made, vocab).map_err(|e| refused(&e))?;
        if grammar.n_bytes() <= MAX_CACHED_LEN {
            let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
            if cached.len() == MAX_CACHED {
                cached.remove(0);
            }
            cached.push((grammar.clone(), made.clone()));
        }
        Ok(made)
    }

    fn cached(&self, grammar: &Grammar) -> Option<Constraint> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cached.iter().position(|(known, _)| known == grammar)?;
        let found = cached.remove(at);
        let constraint = found.1.clone();
        // The states that outputs have added to the grammar may have reached their limit.
        if constraint.clone().allowed().is_err() {
            return None;
        }
        cached.push(found);
        Some(constraint)
    }
}

fn refused(error: &GrammarError) -> ApiError {
    let message = format!("cannot constrain the output: {error}");
    if matches!(error, GrammarError::Busy(_)) {
        return ApiError {
            retry_after: Some(5),
            ..ApiError::unavailable(message)
        };
    }
    ApiError {
        code: Some("invalid_grammar"),
        ..ApiError::invalid(message)
    }
}

/// Follows random output of a constraint for some tokens. Rejects a grammar whose masks exceed the limits of the
/// parser before the completion starts.
fn probe(constraint: &Constraint, vocab: &Vocab) -> Result<(), GrammarError> {
    /// Number of outputs, and of tokens of each.
    const WALKS: u64 = 2;
    const STEPS: usize = 24;
    /// Time limit of a compilation, which bounds the delay of a request.
    const MAX_TIME: Duration = Duration::from_millis(100);
    let begin = Instant::now();
    let n_tokens = vocab.n_tokens();
    for walk in 0..WALKS {
        let (mut constraint, mut state) = (constraint.clone(), walk);
        for _ in 0..STEPS {
            if begin.elapsed() > MAX_TIME {
                return Ok(());
            }
            let allowed = constraint.allowed()?;
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let first = (state >> 33) as Token % n_tokens;
            let mut tokens = (first..n_tokens).chain(0..first);
            let Some(token) = tokens.find(|&token| allowed.has(token) && !vocab.is_eog(token)) else {
                break;
            };
            constraint.accept(token)?;
        }
    }
    Ok(())
}
