//! Preprocessing of media in a program.

use std::fmt;

use super::scalar::Expr;

/// Values of expressions over the hyperparameters of a loaded program.
pub trait Numbers {
    /// Returns the value of an integer expression.
    fn int(&self, expr: &Expr) -> usize;

    /// Returns the value of a number.
    fn float(&self, expr: &Expr) -> f32;
}

/// Function from the values of expressions to rules.
type RulesOf<T> = dyn Fn(&dyn Numbers) -> T + Send + Sync;

/// Rules of the preprocessing of a medium. Their numbers are expressions over hyperparameters.
pub struct MediaRules<T>(Box<RulesOf<T>>);

impl<T> MediaRules<T> {
    /// Creates rules from a function of the values of expressions.
    pub fn new(rules: impl Fn(&dyn Numbers) -> T + Send + Sync + 'static) -> MediaRules<T> {
        MediaRules(Box::new(rules))
    }

    /// Returns the rules of a loaded program.
    pub(super) fn of(&self, numbers: &dyn Numbers) -> T {
        (self.0)(numbers)
    }
}

impl<T> fmt::Debug for MediaRules<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MediaRules")
    }
}
