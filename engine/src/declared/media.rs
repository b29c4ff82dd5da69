//! Preprocessing of media in a program.

use std::fmt;

use super::scalar::Expr;

/// Rules of the preprocessing of a medium. Their numbers are expressions over hyperparameters.
pub struct MediaRules<T>(Box<dyn Fn(&dyn Fn(&Expr) -> usize) -> T + Send + Sync>);

impl<T> MediaRules<T> {
    /// Creates rules from a function, which receives the values of expressions.
    pub fn new(rules: impl Fn(&dyn Fn(&Expr) -> usize) -> T + Send + Sync + 'static) -> MediaRules<T> {
        MediaRules(Box::new(rules))
    }

    /// Returns the rules with the values of `number`.
    pub(super) fn of(&self, number: &dyn Fn(&Expr) -> usize) -> T {
        (self.0)(number)
    }
}

impl<T> fmt::Debug for MediaRules<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MediaRules")
    }
}
