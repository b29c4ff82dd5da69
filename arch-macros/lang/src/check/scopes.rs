//! Names of values in nested scopes, and facts that hold in nested contexts.

use std::collections::HashMap;

use super::facts::Fact;
use crate::model::VarId;

/// Names in scope. A later value shadows earlier ones of the same name.
#[derive(Default)]
pub struct Scopes {
    /// Values of each scope, in order; the innermost scope is last.
    scopes: Vec<Vec<(String, VarId)>>,
    /// Values of each name; the visible one is last.
    by_name: HashMap<String, Vec<VarId>>,
}

impl Scopes {
    /// Returns a scope with these values.
    pub fn of(values: &[(String, VarId)]) -> Scopes {
        let mut scopes = Scopes::default();
        scopes.enter();
        values.iter().for_each(|(name, id)| scopes.bind(name, *id));
        scopes
    }

    /// Enters a scope.
    pub fn enter(&mut self) {
        self.scopes.push(Vec::new());
    }

    /// Leaves the innermost scope, and returns its values.
    pub fn leave(&mut self) -> Vec<(String, VarId)> {
        let left = self.scopes.pop().unwrap_or_default();
        for (name, _) in &left {
            if let Some(values) = self.by_name.get_mut(name) {
                values.pop();
            }
        }
        left
    }

    /// Adds a value to the innermost scope.
    pub fn bind(&mut self, name: &str, id: VarId) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.push((name.to_owned(), id));
            self.by_name.entry(name.to_owned()).or_default().push(id);
        }
    }

    /// Returns the value of a name.
    pub fn find(&self, name: &str) -> Option<VarId> {
        self.by_name.get(name)?.last().copied()
    }

    /// Returns all names.
    pub fn names(&self) -> Vec<String> {
        self.scopes.iter().flatten().map(|(name, _)| name.clone()).collect()
    }
}

/// Facts that hold in the current context.
#[derive(Default)]
pub struct Known {
    list: Vec<Fact>,
    /// Number of contexts that establish each fact.
    counts: HashMap<Fact, usize>,
}

impl Known {
    /// Adds the facts of an inner context.
    pub fn extend(&mut self, facts: impl IntoIterator<Item = Fact>) {
        for fact in facts {
            *self.counts.entry(fact.clone()).or_default() += 1;
            self.list.push(fact);
        }
    }

    /// Removes the facts of inner contexts, so that `len` facts are left.
    pub fn truncate(&mut self, len: usize) {
        for fact in self.list.drain(len..) {
            if let Some(n) = self.counts.get_mut(&fact) {
                *n -= 1;
            }
        }
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn contains(&self, fact: &Fact) -> bool {
        self.counts.get(fact).is_some_and(|&n| n > 0)
    }

    /// Returns all facts, the innermost last.
    pub fn all(&self) -> &[Fact] {
        &self.list
    }
}
