//! Where a text is in its grammar, and which tokens may come next there.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use super::lazy::{Lazy, Trigger};
use super::{GrammarError, refused};
use crate::vocab::Token;

/// Which tokens may come next in a text that keeps to a grammar. A copy goes on by itself.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    n_tokens: usize,
    awaited: Option<Awaited>,
    lazy: Option<Box<Lazy>>,
}

/// Tokens that may come next.
pub struct Allowed {
    mask: SimpleVob,
    n_tokens: usize,
}

impl Allowed {
    /// True if a token is among them.
    #[inline]
    pub fn has(&self, token: Token) -> bool {
        (token as usize) < self.n_tokens && self.mask.is_allowed(token)
    }
}

/// What will take the place of a matcher, and the text that it has to be told of then.
#[derive(Clone)]
struct Awaited {
    matcher: Arc<Mutex<Option<Matcher>>>,
    text: Vec<Token>,
}

/// Gives a constraint and its copies a faster form of themselves.
pub struct Faster(Arc<Mutex<Option<Matcher>>>);

impl Faster {
    /// The same grammar at the beginning of a text, by a compiler that took longer.
    pub fn put(self, constraint: Constraint) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(constraint.matcher);
    }
}

impl Constraint {
    pub(super) fn new(matcher: Matcher, n_tokens: usize) -> Constraint {
        Constraint {
            matcher,
            n_tokens,
            awaited: None,
            lazy: None,
        }
    }

    /// This constraint for parts of a text only: from where `trigger` says to where the grammar is complete, as often as that comes. A text that has
    /// begun to keep to it does not begin so anew.
    pub fn lazily(self, trigger: Trigger) -> Result<Constraint, GrammarError> {
        let env = self.matcher.tok_env().map_err(|e| refused(&e.to_string()))?;
        let lazy = Lazy::new(trigger, self.matcher.clone(), env);
        Ok(Constraint {
            lazy: Some(Box::new(lazy)),
            ..self
        })
    }

    /// True where any token may come next.
    pub fn is_free(&self) -> bool {
        self.lazy.as_ref().is_some_and(|lazy| lazy.is_free())
    }

    /// This constraint, which goes on as what will be given to the second part as soon as that has happened.
    pub fn until_faster(self) -> (Constraint, Faster) {
        let matcher = Arc::new(Mutex::new(None));
        let awaited = Awaited {
            matcher: matcher.clone(),
            text: Vec::new(),
        };
        let constraint = Constraint {
            awaited: Some(awaited),
            ..self
        };
        (constraint, Faster(matcher))
    }

    /// The tokens that may come next, where not all of them may; where the text is complete, those that end it. An error allows nothing.
    pub fn allowed(&mut self) -> Result<Allowed, GrammarError> {
        self.take_faster();
        let mask = self.matcher.compute_mask_or_eos();
        Ok(Allowed {
            mask: mask.map_err(|e| refused(&e.to_string()))?,
            n_tokens: self.n_tokens,
        })
    }

    /// Takes note of a token that has become part of the text.
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
        if let Some(awaited) = &mut self.awaited {
            awaited.text.push(token);
        }
        Ok(())
    }

    /// True if the text may end here, or the part of it that keeps to the grammar.
    pub fn is_complete(&mut self) -> bool {
        self.matcher.is_accepting().unwrap_or(false) || (self.matcher.is_stopped() && !self.matcher.is_error())
    }

    /// Back to the beginning of the text.
    pub fn reset(&mut self) -> Result<(), GrammarError> {
        if let Some(awaited) = &mut self.awaited {
            awaited.text.clear();
        }
        if let Some(lazy) = &mut self.lazy {
            lazy.reset();
        }
        self.matcher.reset().map_err(|e| refused(&e.to_string()))
    }

    /// Goes on as the faster form if it is there. A text that is at fault stays so.
    fn take_faster(&mut self) {
        let Some(awaited) = self.awaited.as_ref().filter(|_| !self.matcher.is_error()) else {
            return;
        };
        let faster = awaited.matcher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(mut faster) = faster {
            if faster.consume_tokens(&awaited.text).is_ok() {
                self.matcher = faster;
            }
            self.awaited = None;
        }
    }
}
