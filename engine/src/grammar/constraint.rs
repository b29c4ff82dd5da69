//! Constrained generation: tracks the grammar state of a sequence and computes the allowed next tokens.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use super::lazy::{Lazy, Trigger};
use super::masks::Masks;
use super::{GrammarError, refused};
use crate::vocab::Token;

/// Grammar state of a sequence. Clones advance independently.
#[derive(Clone)]
pub struct Constraint {
    masks: Masks,
    n_tokens: usize,
    /// A faster matcher that is being compiled.
    pending: Option<Arc<Mutex<Option<Matcher>>>>,
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

/// Handle that upgrades a constraint and its clones to a faster matcher.
pub struct MatcherUpgrade(Arc<Mutex<Option<Matcher>>>);

impl MatcherUpgrade {
    /// Provides the faster matcher. `constraint` must be the same grammar in its initial state.
    pub fn put(self, constraint: Constraint) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(constraint.masks.begin().clone());
    }
}

impl Constraint {
    pub(super) fn new(matcher: Matcher, n_tokens: usize) -> Constraint {
        Constraint {
            masks: Masks::new(matcher),
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
        let env = self.masks.begin().tok_env().map_err(|e| refused(&e.to_string()))?;
        let lazy = Lazy::new(trigger, self.masks.begin().clone(), env);
        Ok(Constraint {
            lazy: Some(Box::new(lazy)),
            ..self
        })
    }

    /// Returns true if any token may come next.
    pub fn is_free(&self) -> bool {
        self.lazy.as_ref().is_some_and(|lazy| lazy.is_free())
    }

    /// Returns the end-of-generation tokens that may not come next although [`Constraint::is_free`] is true: the
    /// part of the output that the grammar covers is still missing.
    pub fn premature_ends(&self) -> &[Token] {
        self.lazy.as_ref().map_or(&[], |lazy| lazy.premature_ends())
    }

    /// Returns true if the grammar covers the end of the output, so that the output ends where it is complete.
    pub fn covers_end(&self) -> bool {
        self.lazy.as_ref().is_none_or(|lazy| lazy.covers_rest())
    }

    /// Returns a constraint that switches to a faster matcher once [`MatcherUpgrade::put`] provides one.
    pub fn upgrade_when_ready(self) -> (Constraint, MatcherUpgrade) {
        let matcher = Arc::new(Mutex::new(None));
        let constraint = Constraint {
            pending: Some(matcher.clone()),
            ..self
        };
        (constraint, MatcherUpgrade(matcher))
    }

    /// Returns true if [`Constraint::allowed`] returns immediately. Otherwise, a thread computes the allowed tokens,
    /// which takes more than 20 ms. Dropping the constraint cancels the thread.
    pub fn is_ready(&mut self) -> bool {
        if self.is_free() {
            return true;
        }
        self.upgrade();
        let is_ready = self.masks.is_ready();
        if is_ready {
            self.release_if_complete();
        }
        is_ready
    }

    /// Returns the allowed next tokens. If the output is complete, returns the end-of-generation tokens. Call
    /// only if [`Constraint::is_free`] is false. After an error, all further calls fail.
    ///
    /// # Errors
    /// Returns [`GrammarError::TooSlow`] after one second, or after ten seconds for all calls that take more than 20
    /// ms.
    pub fn allowed(&mut self) -> Result<AllowedTokens, GrammarError> {
        self.upgrade();
        let opening = self.lazy.as_ref().and_then(|lazy| lazy.opening());
        if let Some(opening) = opening {
            return self.allowed_at_start(&opening);
        }
        let mask = self.masks.take()?;
        self.release_if_complete();
        Ok(AllowedTokens {
            mask: if self.is_free() {
                SimpleVob::alloc_ones(self.n_tokens)
            } else {
                mask
            },
            n_tokens: self.n_tokens,
        })
    }

    /// Returns the tokens that continue the opening tag of the optional prefix or start the part that the grammar
    /// covers.
    fn allowed_at_start(&mut self, opening: &[Token]) -> Result<AllowedTokens, GrammarError> {
        let lazy = self.lazy.as_ref().filter(|lazy| lazy.has_text());
        let mut mask = match lazy {
            None => self.masks.take()?,
            Some(lazy) => match lazy.begun() {
                Some(begun) => Masks::new(begun).take()?,
                None => SimpleVob::alloc(self.n_tokens),
            },
        };
        opening.iter().for_each(|&token| mask.allow_token(token));
        Ok(AllowedTokens {
            mask,
            n_tokens: self.n_tokens,
        })
    }

    /// Advances the grammar state by a token.
    ///
    /// # Errors
    /// Returns a [`GrammarError`] if the grammar does not allow the token.
    pub fn accept(&mut self, token: Token) -> Result<(), GrammarError> {
        let Some(lazy) = &mut self.lazy else {
            return self.masks.accept(token);
        };
        if lazy.is_in_part() {
            self.masks.accept(token)?;
        } else if let Some(begun) = lazy.push(token) {
            self.masks = Masks::new(begun);
        } else {
            return Ok(());
        }
        self.release_if_complete();
        Ok(())
    }

    /// Ends the part of a lazy constraint once its grammar is complete.
    fn release_if_complete(&mut self) {
        if let Some(lazy) = &mut self.lazy
            && lazy.is_in_part()
            && !lazy.covers_rest()
            && self.masks.is_complete()
        {
            lazy.release();
        }
    }

    /// Returns true if the output, or the current part of a lazy constraint, may end here.
    pub fn is_complete(&mut self) -> bool {
        self.masks.is_complete()
    }

    /// Resets the constraint to its initial state.
    pub fn reset(&mut self) {
        match &mut self.lazy {
            None => self.masks.reset(),
            Some(lazy) => {
                lazy.reset();
                self.masks = Masks::new(lazy.begin().clone());
            }
        }
    }

    /// Computes the next masks on a thread, as for a slow grammar.
    #[cfg(test)]
    pub(super) fn always_on_a_thread(&mut self) {
        self.masks.slow_down();
    }

    /// Switches to the faster matcher if it is ready.
    fn upgrade(&mut self) {
        let Some(pending) = &self.pending else { return };
        let faster = pending.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(faster) = faster {
            self.masks.replace(&faster);
            self.pending = None;
        }
    }
}
