//! Constrained generation: tracks the grammar state of a sequence and computes the allowed next tokens.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use super::lazy::{Lazy, Trigger};
use super::{GrammarError, refused};
use crate::vocab::Token;

/// Grammar state of a sequence. Clones advance independently.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    n_tokens: usize,
    pending: Option<PendingMatcher>,
    lazy: Option<Box<Lazy>>,
}

/// Set of tokens that the grammar allows next.
pub struct AllowedTokens {
    mask: SimpleVob,
    n_tokens: usize,
}

impl AllowedTokens {
    /// Returns true if the grammar allows `token`.
    #[inline]
    pub fn has(&self, token: Token) -> bool {
        (token as usize) < self.n_tokens && self.mask.is_allowed(token)
    }
}

/// A faster matcher that is being compiled, and the tokens that it must consume when it is ready.
#[derive(Clone)]
struct PendingMatcher {
    matcher: Arc<Mutex<Option<Matcher>>>,
    text: Vec<Token>,
}

/// Handle that upgrades a constraint and its clones to a faster matcher.
pub struct MatcherUpgrade(Arc<Mutex<Option<Matcher>>>);

impl MatcherUpgrade {
    /// Provides the faster matcher. `constraint` must be the same grammar in its initial state.
    pub fn put(self, constraint: Constraint) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(constraint.matcher);
    }
}

impl Constraint {
    pub(super) fn new(matcher: Matcher, n_tokens: usize) -> Constraint {
        Constraint {
            matcher,
            n_tokens,
            pending: None,
            lazy: None,
        }
    }

    /// Restricts the constraint to parts of the output: each part starts where `trigger` matches and ends
    /// where the grammar is complete.
    ///
    /// Fails if the tokenizer environment is unavailable. Must be called before any token is accepted.
    pub fn lazily(self, trigger: Trigger) -> Result<Constraint, GrammarError> {
        let env = self.matcher.tok_env().map_err(|e| refused(&e.to_string()))?;
        let lazy = Lazy::new(trigger, self.matcher.clone(), env);
        Ok(Constraint {
            lazy: Some(Box::new(lazy)),
            ..self
        })
    }

    /// Returns true if any token may come next.
    pub fn is_free(&self) -> bool {
        self.lazy.as_ref().is_some_and(|lazy| lazy.is_free())
    }

    /// Returns a constraint that switches to a faster matcher once [`MatcherUpgrade::put`] provides one.
    pub fn upgrade_when_ready(self) -> (Constraint, MatcherUpgrade) {
        let matcher = Arc::new(Mutex::new(None));
        let pending = PendingMatcher {
            matcher: matcher.clone(),
            text: Vec::new(),
        };
        let constraint = Constraint {
            pending: Some(pending),
            ..self
        };
        (constraint, MatcherUpgrade(matcher))
    }

    /// Returns the allowed next tokens. If the output is complete, returns the end-of-generation tokens. Call
    /// only if [`Constraint::is_free`] is false. After an error, all further calls fail.
    pub fn allowed(&mut self) -> Result<AllowedTokens, GrammarError> {
        self.upgrade();
        let mask = self.matcher.compute_mask_or_eos();
        Ok(AllowedTokens {
            mask: mask.map_err(|e| refused(&e.to_string()))?,
            n_tokens: self.n_tokens,
        })
    }

    /// Advances the grammar state by a token.
    pub fn accept(&mut self, token: Token) -> Result<(), GrammarError> {
        let Some(lazy) = &mut self.lazy else {
            return self.consume(token);
        };
        if !lazy.is_free() {
            self.consume(token)?;
        } else if let Some(begun) = lazy.push(token) {
            self.matcher = begun;
        } else {
            return Ok(());
        }
        if self.is_complete()
            && let Some(lazy) = &mut self.lazy
        {
            lazy.release();
        }
        Ok(())
    }

    fn consume(&mut self, token: Token) -> Result<(), GrammarError> {
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(|e| refused(&e.to_string()))?;
        if let Some(pending) = &mut self.pending {
            pending.text.push(token);
        }
        Ok(())
    }

    /// Returns true if the output, or the current part of a lazy constraint, may end here.
    pub fn is_complete(&mut self) -> bool {
        self.matcher.is_accepting().unwrap_or(false) || (self.matcher.is_stopped() && !self.matcher.is_error())
    }

    /// Resets the constraint to its initial state.
    pub fn reset(&mut self) -> Result<(), GrammarError> {
        if let Some(pending) = &mut self.pending {
            pending.text.clear();
        }
        if let Some(lazy) = &mut self.lazy {
            lazy.reset();
        }
        self.matcher.reset().map_err(|e| refused(&e.to_string()))
    }

    /// Switches to the faster matcher if it is ready. A matcher with an error is kept.
    fn upgrade(&mut self) {
        if self.matcher.is_error() {
            return;
        }
        let Some(pending) = &self.pending else { return };
        let faster = pending.matcher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(mut faster) = faster {
            if faster.consume_tokens(&pending.text).is_ok() {
                self.matcher = faster;
            }
            self.pending = None;
        }
    }
}
